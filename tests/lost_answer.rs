//! The regression of the field: the server commits, and the answer is lost.
//!
//! However it is lost, the tool ran once, was sent once, and nobody claims to know. The next call
//! recovers by itself where the runtime may do that, and names the owner where it may not.

mod support;

use std::error::Error as _;
use std::time::Duration;

use mcp_supervisor::{
    CallError, Connection, Era, Outcome, Page, Ping, PromptGet, ResourceRead, ToolCall,
    ToolContract,
    error::{NotSentReason, UnknownCause, Wait},
    evidence::{Loss, ServerError, WireFault},
    policy::{Backoff, Repeats},
};
use serde_json::{Value, json};
use support::{
    bounded,
    rig::{
        Held, LENDERS, OWNERS, Owner, Rig, SECRET, WIRES, Wire, assert_discreet, cause, charge,
        echo, eras, side_by_side,
    },
};

/// How an answer gets lost after the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The process exits; over HTTP the exchange is reset.
    Closed,
    /// A JSON-RPC error says that the session was terminated.
    SessionOver,
    /// HTTP 404 to a live session.
    NotFound,
    /// Nothing comes within the deadline.
    Timeout,
}

const WAYS: [Way; 4] = [Way::Closed, Way::SessionOver, Way::NotFound, Way::Timeout];

/// Long enough for the effect to be there, short enough to wait for.
const SHORT: Duration = Duration::from_millis(1_500);

impl Way {
    /// Whether there is such a loss there: a 404 is about an HTTP session, which the revisions with
    /// `initialize` have.
    fn exists(self, wire: Wire, era: &Era) -> bool {
        self != Self::NotFound || (wire == Wire::Http && *era != Era::Discover)
    }

    /// The steps that lose an answer.
    fn steps(self, wire: Wire) -> Vec<Value> {
        match (self, wire) {
            (Self::Closed, Wire::Stdio) => vec![json!({"exit": 1})],
            (Self::Closed, Wire::Http) => vec![json!("reset")],
            (Self::SessionOver, _) => vec![json!({"error":
                {"code": -32001, "message": "Session terminated"}})],
            (Self::NotFound, _) => vec![
                json!({"expire_session": true}),
                json!({"http": {"status": 404}}),
            ],
            (Self::Timeout, _) => vec![json!("hang")],
        }
    }

    /// The steps of a call that has its effect first.
    fn after_effect(self, wire: Wire) -> Vec<Value> {
        let mut steps = vec![json!("ledger")];
        steps.extend(self.steps(wire));
        steps
    }

    /// The deadline of what is lost this way.
    fn limit(self) -> Duration {
        match self {
            Self::Timeout => SHORT,
            _ => Duration::from_secs(20),
        }
    }

    /// Whether the session is over by it, and not only suspect.
    fn ends_the_session(self, wire: Wire) -> bool {
        match self {
            Self::Closed => wire == Wire::Stdio,
            Self::SessionOver | Self::NotFound => true,
            Self::Timeout => false,
        }
    }

    /// The generation of a framework-owned connection's next operation.
    ///
    /// Over HTTP the server may acknowledge the cancel that follows a deadline: it lives, and the
    /// session goes on if that was heard in time.
    fn assert_next_generation(self, wire: Wire, generation: u64) {
        let acknowledged = self == Self::Timeout && wire == Wire::Http;
        let lowest = if acknowledged { 1 } else { 2 };
        assert!(
            (lowest..=2).contains(&generation),
            "{self:?} {wire:?}: generation {generation}"
        );
    }

    /// The original error is there, as itself.
    fn assert_source(self, wire: Wire, error: &CallError) {
        let found = match (self, wire) {
            (Self::Closed, Wire::Stdio) => cause::<Loss>(error).is_some(),
            (Self::Closed, Wire::Http) => cause::<WireFault>(error).is_some(),
            (Self::SessionOver, _) => {
                cause::<ServerError>(error).is_some_and(|e| e.message == "Session terminated")
            }
            (Self::NotFound, _) => cause(error) == Some(&Loss::Terminated { status: Some(404) }),
            (Self::Timeout, _) => cause(error) == Some(&UnknownCause::DeadlinePassed(Wait::Total)),
        };
        assert!(found, "{self:?}: the source is {:?}", error.source());
    }
}

/// Each way to lose an answer, wherever it exists.
fn everywhere() -> Vec<(Way, Wire, Era)> {
    let mut all = Vec::new();
    for wire in WIRES {
        for era in eras() {
            all.extend(WAYS.map(|way| (way, wire, era.clone())));
        }
    }
    all.retain(|(way, wire, era)| way.exists(*wire, era));
    all
}

/// A script in which the charges of the first session are lost, once.
fn losing_charges(way: Way, wire: Wire) -> Value {
    json!({"rules": [{"on": "tools/call", "tool": "charge", "generation": 1, "nth": 1,
        "do": way.after_effect(wire)}]})
}

/// Charges after the session was seen to work, so that a deadline is the charge's alone.
async fn lose(rig: &Rig, connection: &Connection, way: Way) -> CallError {
    echo(connection).await.unwrap();
    let lost = connection.call_tool(charge().deadline(way.limit())).await;
    let error = lost.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    assert_discreet(&error);
    support::until("the effect is there", || rig.bed.ran("charge") > 0).await;
    error
}

/// One effect, and one `tools/call` beside the echoes.
fn assert_once(rig: &Rig) {
    assert_eq!(rig.bed.ran("charge"), 1, "effects");
    assert_eq!(rig.bed.read("tools/call"), 1 + rig.bed.ran("echo"), "sent");
}

#[tokio::test]
async fn lost_answer_is_not_replayed_and_the_next_call_recovers() {
    side_by_side(everywhere(), async |(way, wire, era)| {
        let rig = Rig::new(wire, &era, losing_charges(way, wire)).await;
        let billing = rig.open().await;
        let error = lose(&rig, &billing, way).await;
        way.assert_source(wire, &error);
        assert_eq!(error.about().attempts, 1);
        assert_once(&rig);
        let answer = echo(&billing).await.unwrap();
        way.assert_next_generation(wire, answer.generation().number());
        assert_eq!(answer.attempts(), 1);
        assert_eq!(rig.bed.ran("echo"), 2);
        assert_once(&rig);
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn hints_that_claim_idempotence_change_nothing() {
    side_by_side(everywhere(), async |(way, wire, era)| {
        let mut script = losing_charges(way, wire);
        script["tools"] = json!([{"name": "charge",
                "annotations": {"readOnlyHint": true, "idempotentHint": true}}]);
        let rig = Rig::new(wire, &era, script).await;
        let billing = rig.open().await;
        let tools = billing.list_tools(Page::first()).await.unwrap().tools;
        let hinted = |t: &rmcp::model::Tool| {
            let hints = t.annotations.as_ref();
            hints.is_some_and(|h| h.read_only_hint == Some(true))
        };
        assert!(tools.iter().any(|t| t.name == "charge" && hinted(t)));
        let error = lose(&rig, &billing, way).await;
        way.assert_source(wire, &error);
        echo(&billing).await.unwrap();
        assert_once(&rig);
        rig.finish().await;
    })
    .await;
}

/// The same hints beside a contract: now the client vouches, and the count is what it authorised.
#[tokio::test]
async fn a_contract_of_the_clients_authorises_what_hints_do_not() {
    let contracts = [
        (ToolContract::Idempotent, 2),
        (ToolContract::keyed("key"), 2),
        (ToolContract::status("lookup", "key"), 1),
    ];
    let cases = everywhere().into_iter().flat_map(|case| {
        let contracts = contracts.clone().into_iter();
        contracts.map(move |contract| (case.clone(), contract))
    });
    side_by_side(cases, async |((way, wire, era), (contract, effects))| {
        let mut script = losing_charges(way, wire);
        script["tools"] = json!([{"name": "charge",
                    "annotations": {"readOnlyHint": true, "idempotentHint": true}}]);
        let rig = Rig::new(wire, &era, script).await;
        let spec = rig.spec().contract("charge", contract.clone());
        let spec = spec.repeats(quick_repeats());
        let billing = rig.open_with(spec).await;
        echo(&billing).await.unwrap();
        let arguments = json!({"amount": 1999, "card": SECRET, "key": "order-1"});
        let call = ToolCall::new("charge", arguments)
            .idempotency_key("order-1".parse().unwrap())
            .attempt_limit(way.limit());
        let answer = billing.call_tool(call).await.unwrap();
        let looked_up = matches!(contract, ToolContract::Status { .. });
        assert_eq!(answer.was_looked_up(), looked_up, "{way:?} {wire:?}");
        assert_eq!(answer.attempts(), effects, "{way:?} {wire:?} {era:?}");
        way.assert_next_generation(wire, answer.generation().number());
        assert_eq!(rig.bed.ran("charge"), effects as usize);
        rig.finish().await;
    })
    .await;
}

fn quick_repeats() -> Repeats {
    Repeats {
        backoff: Backoff {
            base: Duration::from_millis(1),
            cap: Duration::from_millis(10),
        },
        ..Repeats::default()
    }
}

/// A lent connection that is lost is left to its owner: not one more request goes out on it.
#[tokio::test]
async fn a_lost_lent_connection_is_left_to_its_owner() {
    let losses = everywhere()
        .into_iter()
        .filter(|(way, wire, _)| way.ends_the_session(*wire));
    side_by_side(
        for_each_lender(losses),
        async |((way, wire, era), owner)| {
            let rig = Rig::new(wire, &era, losing_charges(way, wire)).await;
            let held = rig.hold(owner).await;
            let error = lose(&rig, held.connection(), way).await;
            assert!(error.source().is_some(), "{error}");
            assert_once(&rig);
            let before = rig.requests();
            assert_refused_as_the_owners(&held, &rig).await;
            assert_eq!(rig.requests(), before, "requests after the loss");
            assert_once(&rig);
            drop(held);
            rig.finish().await;
        },
    )
    .await;
}

/// Each case with each way to lend a connection.
fn for_each_lender<T: Clone>(
    cases: impl IntoIterator<Item = T>,
) -> impl Iterator<Item = (T, Owner)> {
    let cases = cases.into_iter();
    cases.flat_map(|case| LENDERS.map(|owner| (case.clone(), owner)))
}

/// Every kind of operation is refused, before anything is sent, and says whose part is next.
async fn assert_refused_as_the_owners(held: &Held, rig: &Rig) {
    let connection = held.connection();
    let discovers = connection.status().revision.as_deref() == Some("2026-07-28");
    let mut errors = vec![
        echo(connection).await.unwrap_err(),
        connection.list_tools(Page::first()).await.unwrap_err(),
    ];
    for read in READS {
        if *read != Read::Ping || !discovers {
            errors.push(
                read.ask(connection, Duration::from_secs(20))
                    .await
                    .unwrap_err(),
            );
        }
    }
    for error in errors {
        let CallError::NotSent(not_sent) = &error else {
            panic!("{error}")
        };
        assert!(
            matches!(not_sent.reason, NotSentReason::CallerOwnedClosed),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("caller-owned"), "{text}");
        assert!(text.contains("replacement"), "{text}");
        for claim in ["reconnected", "re-established", "replaced"] {
            assert!(!text.contains(claim), "{text}");
        }
    }
    assert_eq!(rig.bed.pids().len(), 1, "no process was started");
}

/// Suspicion does not condemn what is lent: its next call is tried, on the same session.
#[tokio::test]
async fn a_suspect_lent_connection_is_tried_again_by_the_next_call() {
    let suspicions = everywhere()
        .into_iter()
        .filter(|(way, wire, _)| !way.ends_the_session(*wire));
    side_by_side(
        for_each_lender(suspicions),
        async |((way, wire, era), owner)| {
            let rig = Rig::new(wire, &era, losing_charges(way, wire)).await;
            let held = rig.hold(owner).await;
            lose(&rig, held.connection(), way).await;
            let answer = echo(held.connection()).await.unwrap();
            assert_eq!(answer.generation().number(), 1);
            assert_once(&rig);
            assert_eq!(
                rig.bed.read("initialize") + rig.bed.read("server/discover"),
                1
            );
            drop(held);
            rig.finish().await;
        },
    )
    .await;
}

/// Sixteen calls are in flight when the server goes: half of them were answered.
#[tokio::test]
async fn of_sixteen_calls_in_flight_each_gets_one_outcome_and_runs_once() {
    for wire in WIRES {
        for era in eras() {
            for owner in OWNERS {
                bounded(async {
                    let rig = Rig::new(wire, &era, half_of_sixteen(wire)).await;
                    let held = rig.hold(owner).await;
                    let (answered, lost) = sixteen_calls(&rig, held.connection()).await;
                    assert_eq!((answered, lost), (8, 8), "{wire:?} {owner:?}");
                    assert_eq!(rig.bed.ran("charge"), 16);
                    assert_eq!(rig.bed.read("tools/call"), 16);
                    let next = echo(held.connection()).await;
                    match owner {
                        Owner::Framework => {
                            assert_eq!(next.unwrap().generation().number(), 2);
                        }
                        // The exchanges were reset, the session was not.
                        _ if wire == Wire::Http => {
                            assert_eq!(next.unwrap().generation().number(), 1);
                        }
                        _ => assert_eq!(next.unwrap_err().outcome(), Outcome::NotSent),
                    }
                    assert_eq!(rig.bed.ran("charge"), 16);
                    drop(held);
                    rig.finish().await;
                })
                .await;
            }
        }
    }
}

/// The calls that are to be answered wait for `go`, the others for `die`.
fn half_of_sixteen(wire: Wire) -> Value {
    let end = match wire {
        Wire::Stdio => json!("kill"),
        Wire::Http => json!("reset"),
    };
    json!({"rules": [
        {"on": "tools/call", "tool": "charge", "args": {"answered": true},
            "do": ["ledger", {"wait_file": "go"}, "answer"]},
        {"on": "tools/call", "tool": "charge", "args": {"answered": false},
            "do": ["ledger", {"wait_file": "die"}, end]}
    ]})
}

/// How many of them were answered, and how many ended unknown. Each effect is its own.
async fn sixteen_calls(rig: &Rig, connection: &Connection) -> (usize, usize) {
    let call = |n: usize| {
        let arguments = json!({"n": n, "answered": n.is_multiple_of(2)});
        connection.call_tool(ToolCall::new("charge", arguments))
    };
    let calls = (0..16).map(|n| async move { (n, call(n).await) });
    let conduct = async {
        support::until("all sixteen run", || rig.bed.ran("charge") == 16).await;
        rig.bed.touch("go");
        let answers = || rig.bed.file("go").exists() && connection.status().in_flight == 8;
        support::until("half of them are answered", answers).await;
        rig.bed.touch("die");
    };
    let (outcomes, ()) = tokio::join!(futures::future::join_all(calls), conduct);
    let mut effects: Vec<_> = rig.bed.effects().into_iter().map(|e| e.arguments).collect();
    effects.sort();
    effects.dedup();
    assert_eq!(effects.len(), 16, "an effect for each call, and one only");
    let (mut answered, mut lost) = (0, 0);
    for (n, outcome) in outcomes {
        match outcome {
            Ok(_) if n.is_multiple_of(2) => answered += 1,
            Err(error) if !n.is_multiple_of(2) => {
                assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
                assert!(error.source().is_some(), "{error}");
                lost += 1;
            }
            other => panic!("call {n}: {other:?}"),
        }
    }
    (answered, lost)
}

/// The requests that change nothing by the protocol's own definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Tools,
    Prompts,
    Prompt,
    Resources,
    Resource,
    Ping,
}

const READS: &[Read] = &[
    Read::Tools,
    Read::Prompts,
    Read::Prompt,
    Read::Resources,
    Read::Resource,
    Read::Ping,
];

impl Read {
    fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Prompt => "prompts/get",
            Self::Resources => "resources/list",
            Self::Resource => "resources/read",
            Self::Ping => "ping",
        }
    }

    async fn ask(self, connection: &Connection, within: Duration) -> Result<(), CallError> {
        let page = Page::first().deadline(within);
        match self {
            Self::Tools => connection.list_tools(page).await.map(drop),
            Self::Prompts => connection.list_prompts(page).await.map(drop),
            Self::Prompt => {
                let prompt = PromptGet::new("greet").deadline(within);
                connection.get_prompt(prompt).await.map(drop)
            }
            Self::Resources => connection.list_resources(page).await.map(drop),
            Self::Resource => {
                let resource = ResourceRead::new("mem://note").deadline(within);
                connection.read_resource(resource).await.map(drop)
            }
            Self::Ping => connection.ping(Ping::default().deadline(within)).await,
        }
    }

    /// 2026-07-28 has no ping.
    fn exists(self, era: &Era) -> bool {
        self != Self::Ping || *era != Era::Discover
    }
}

/// A script in which the reads of the first session are lost.
fn losing_reads(read: Read, way: Way, wire: Wire) -> Value {
    json!({"rules": [{"on": read.method(), "generation": 1, "nth": 1, "do": way.steps(wire)}]})
}

/// The reads of one kind of loss that `wanted` picks, everywhere.
fn reads_everywhere(wanted: fn(Way, Wire) -> bool) -> Vec<(Read, Way, Wire, Era)> {
    let mut all = Vec::new();
    for (way, wire, era) in everywhere() {
        let reads = READS.iter().filter(|read| read.exists(&era));
        all.extend(reads.map(|read| (*read, way, wire, era.clone())));
    }
    all.retain(|(_, way, wire, _)| wanted(*way, *wire));
    all
}

#[tokio::test]
async fn a_read_is_asked_once_more_on_a_fresh_session_after_a_loss() {
    side_by_side(
        reads_everywhere(Way::ends_the_session),
        async |(read, way, wire, era)| {
            let rig = Rig::new(wire, &era, losing_reads(read, way, wire)).await;
            let billing = rig.open().await;
            echo(&billing).await.unwrap();
            let asked = read.ask(&billing, Duration::from_secs(20)).await;
            assert!(
                asked.is_ok(),
                "{read:?} {way:?} {wire:?} {era:?}: {asked:?}"
            );
            assert_eq!(rig.bed.read(read.method()), 2, "{read:?} {way:?}");
            assert_eq!(billing.status().generation.unwrap().number(), 2);
            rig.finish().await;
        },
    )
    .await;
}

/// The second loss is told. Nothing is asked a third time.
#[tokio::test]
async fn a_read_is_asked_no_third_time() {
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let script = json!({"rules": [
                    {"on": "tools/list", "do": Way::SessionOver.steps(wire)}]});
                let rig = Rig::new(wire, &era, script).await;
                let billing = rig.open().await;
                echo(&billing).await.unwrap();
                let error = billing.list_tools(Page::first()).await.unwrap_err();
                assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
                assert_eq!(error.about().attempts, 2);
                assert_eq!(rig.bed.read("tools/list"), 2);
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_read_that_times_out_or_breaks_off_is_not_repeated() {
    side_by_side(
        reads_everywhere(|way, wire| !way.ends_the_session(wire)),
        async |(read, way, wire, era)| {
            let rig = Rig::new(wire, &era, losing_reads(read, way, wire)).await;
            let billing = rig.open().await;
            echo(&billing).await.unwrap();
            let error = read.ask(&billing, way.limit()).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
            way.assert_source(wire, &error);
            assert_eq!(rig.bed.read(read.method()), 1, "{read:?} {way:?}");
            let next = echo(&billing).await.unwrap();
            way.assert_next_generation(wire, next.generation().number());
            rig.finish().await;
        },
    )
    .await;
}

#[tokio::test]
async fn a_lost_read_on_a_lent_connection_is_never_asked_again() {
    let reads = reads_everywhere(Way::ends_the_session);
    side_by_side(
        for_each_lender(reads),
        async |((read, way, wire, era), owner)| {
            let rig = Rig::new(wire, &era, losing_reads(read, way, wire)).await;
            let held = rig.hold(owner).await;
            echo(held.connection()).await.unwrap();
            let asked = read.ask(held.connection(), Duration::from_secs(20)).await;
            let error = asked.unwrap_err();
            assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
            assert_eq!(rig.bed.read(read.method()), 1, "{read:?} {way:?}");
            let before = rig.requests();
            assert_refused_as_the_owners(&held, &rig).await;
            assert_eq!(rig.requests(), before, "requests after the loss");
            drop(held);
            rig.finish().await;
        },
    )
    .await;
}

#[tokio::test]
async fn there_is_no_ping_to_send_in_2026_07_28() {
    for wire in WIRES {
        for owner in OWNERS {
            bounded(async {
                let rig = Rig::new(wire, &Era::Discover, json!({})).await;
                let held = rig.hold(owner).await;
                echo(held.connection()).await.unwrap();
                let error = held.connection().ping(Ping::default()).await.unwrap_err();
                assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
                assert_eq!(rig.bed.read("ping"), 0);
                drop(held);
                rig.finish().await;
            })
            .await;
        }
    }
}
