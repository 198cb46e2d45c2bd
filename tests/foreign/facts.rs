//! What is asked of a server that works, one fact after the other of one process: interpreters take
//! long to start. Each fact is a test of its own.

use std::{collections::BTreeSet, time::Duration};

use mcp_supervisor::{
    CallError, Completion, Connection, Page, Ping, PromptGet, ResourceRead, Subscription, ToolCall,
    Update,
};
use serde_json::json;

use crate::{
    rows::{Row, Seat},
    seat::Taken,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    Revision,
    Lists,
    Tools,
    Reads,
    Templates,
    Questions,
    Changes,
    Alive,
    Progress,
    Cancelled,
}

impl Fact {
    pub const ALL: [Self; 10] = [
        Self::Revision,
        Self::Lists,
        Self::Tools,
        Self::Reads,
        Self::Templates,
        Self::Questions,
        Self::Changes,
        Self::Alive,
        Self::Progress,
        Self::Cancelled,
    ];

    pub async fn check(self, row: &Row, seat: Seat, taken: &Taken) {
        match self {
            Self::Revision => revision(row, seat, taken).await,
            Self::Lists => lists(row, taken).await,
            Self::Tools => tools(row, taken).await,
            Self::Reads => reads(row, taken).await,
            Self::Templates => templates(row, taken).await,
            Self::Questions => questions(row, seat, taken).await,
            Self::Changes => changes(row, seat, taken).await,
            Self::Alive => alive(row, taken).await,
            Self::Progress => progress(row, taken).await,
            Self::Cancelled => cancelled(row, taken).await,
        }
    }
}

async fn revision(row: &Row, seat: Seat, taken: &Taken) {
    let ping = taken.connection.ping(Ping::default()).await;
    // 2026-07-28 has no ping, so none is sent there
    if seat.revision == "2026-07-28" {
        assert!(matches!(ping, Err(CallError::NotSent(_))), "{ping:?}");
        taken.echo(row).await;
    } else {
        ping.unwrap();
    }
    let status = taken.connection.status();
    assert_eq!(status.revision.as_deref(), Some(seat.revision));
    assert_eq!(status.generation.unwrap().number(), 1);
    assert_eq!(status.dropped.garbage, 0, "stdout is the protocol's");
}

pub async fn all_tools(connection: &Connection) -> (Vec<String>, usize) {
    let (mut names, mut pages, mut page) = (Vec::new(), 0, Page::first());
    loop {
        let list = connection.list_tools(page).await.unwrap();
        pages += 1;
        assert!(pages < 20, "the list does not end");
        names.extend(list.tools.iter().map(|tool| tool.name.to_string()));
        match list.next_cursor {
            Some(cursor) => page = Page::after(cursor),
            None => return (names, pages),
        }
    }
}

async fn lists(row: &Row, taken: &Taken) {
    let (names, pages) = all_tools(&taken.connection).await;
    let unique: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(unique.len(), names.len(), "{names:?}");
    for tool in row.tools {
        assert!(unique.contains(tool), "no {tool} in {names:?}");
    }
    assert_eq!(pages, row.pages_of_tools, "{names:?}");

    let prompts = taken.connection.list_prompts(Page::first()).await.unwrap();
    assert!(prompts.prompts.iter().any(|p| p.name == row.prompt.name));
    let listed = taken
        .connection
        .list_resources(Page::first())
        .await
        .unwrap();
    let uris: Vec<&str> = listed.resources.iter().map(|r| &*r.uri).collect();
    assert!(uris.contains(&row.resource.0), "{uris:?}");
}

async fn tools(row: &Row, taken: &Taken) {
    taken.echo(row).await;
    if let Some(text) = row.failure {
        let call = ToolCall::new("fails", json!({}));
        let answer = taken.connection.call_tool(call).await.unwrap();
        assert!(answer.is_error());
        assert_eq!(answer.text(), text);
    }
    // What it says about a tool that it does not have differs; that it is no unknown does not.
    let call = ToolCall::new("there-is-no-such-tool", json!({}));
    let told = match taken.connection.call_tool(call).await {
        Ok(answer) => {
            assert!(answer.is_error(), "{}", answer.text());
            "a tool error".to_owned()
        }
        Err(CallError::Rejected(_)) => "a rejection".to_owned(),
        Err(other) => format!("{other:?}"),
    };
    assert_eq!(told, row.no_such_tool);
}

async fn reads(row: &Row, taken: &Taken) {
    let mut get = PromptGet::new(row.prompt.name);
    for (name, value) in row.prompt.arguments {
        get = get.argument(*name, *value);
    }
    let prompt = taken.connection.get_prompt(get).await.unwrap();
    let said = json!(prompt.messages);
    assert!(said.to_string().contains(row.prompt.says), "{said}");

    for (uri, says) in [row.resource, row.of_the_template] {
        let read = ResourceRead::new(uri);
        let contents = taken.connection.read_resource(read).await.unwrap();
        let contents = json!(contents.contents).to_string();
        assert!(contents.contains(says), "{uri}: {contents}");
    }
}

async fn templates(row: &Row, taken: &Taken) {
    let page = Page::first();
    let listed = taken.connection.list_resource_templates(page).await;
    let templates = listed.unwrap().resource_templates;
    let uris: Vec<&str> = templates.iter().map(|t| &*t.uri_template).collect();
    assert!(uris.contains(&row.template), "{uris:?}");

    let of = &row.completion;
    let ask = Completion::of_prompt(of.prompt, of.argument, of.begun);
    let completed = taken.connection.complete(ask).await.unwrap();
    assert_eq!(completed.values, of.values);
}

async fn questions(row: &Row, seat: Seat, taken: &Taken) {
    for (call, says) in row.questions() {
        let answer = taken.connection.call_tool(call).await.unwrap();
        if seat.asks {
            assert!(!answer.is_error(), "{}", answer.text());
            assert!(answer.text().contains(says), "{}", answer.text());
        } else {
            assert!(answer.is_error(), "{}", answer.text());
        }
    }
}

async fn changes(row: &Row, seat: Seat, taken: &Taken) {
    let uri = row.resource.0;
    let wanted = Subscription::new().resource(uri);
    let mut updates = taken.connection.subscribe(wanted).unwrap();
    taken.echo(row).await;
    let first = updates.next().await.unwrap();
    if !seat.tells {
        assert!(matches!(first, Update::Refused { .. }), "{first:?}");
        return;
    }
    let Update::Subscribed { .. } = first else {
        panic!("{first:?}");
    };
    taken.connection.call_tool(row.pin()).await.unwrap();
    let told = updates.next().await.unwrap();
    assert!(
        matches!(&told, Update::Resource(of) if of == uri),
        "{told:?}"
    );
}

/// The longest silence that the calls with progress allow, and how long they take altogether.
const IDLE: Duration = Duration::from_secs(3);
const STEPS: u64 = 8;
const STEP: Duration = Duration::from_millis(500);

async fn alive(row: &Row, taken: &Taken) {
    taken.echo(row).await;
    let call = row.slow("long", STEPS, STEP).idle_limit(IDLE);
    let answer = taken.connection.call_tool(call).await.unwrap();
    assert!(!answer.is_error(), "{}", answer.text());
}

async fn progress(row: &Row, taken: &Taken) {
    let mut call = row.slow("told", 5, Duration::from_millis(50));
    let mut progress = call.progress();
    let answer = taken.connection.call_tool(call).await.unwrap();
    assert!(!answer.is_error(), "{}", answer.text());
    let mut told = Vec::new();
    while let Some(step) = progress.next().await {
        assert_eq!(step.missed, 0);
        told.push((step.progress, step.total));
    }
    let total = row.tells_the_total.then_some(5.0);
    assert_eq!(told, [1.0, 2.0, 3.0, 4.0, 5.0].map(|step| (step, total)));
}

async fn cancelled(row: &Row, taken: &Taken) {
    taken.echo(row).await;
    if row.keeps_a_ledger {
        let call = row.slow("given-up", 1_000, Duration::from_millis(50));
        {
            let mut calling = std::pin::pin!(taken.connection.call_tool(call));
            tokio::select! {
                answer = &mut calling => panic!("{answer:?}"),
                () = taken.until_noted("slow given-up begin") => {}
            }
        }
        taken.until_noted("slow given-up cancelled").await;
        assert!(!taken.has_noted("slow given-up end"));
    } else {
        let call = row.slow("given-up", 1_000, Duration::from_millis(50));
        let limited = call.deadline(Duration::from_secs(2));
        let error = taken.connection.call_tool(limited).await.unwrap_err();
        assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
    }
    // and works on, on the same session
    taken.echo(row).await;
    assert_eq!(taken.generation(), 1);
}
