//! L1: a list is complete and of one generation, or it is not published.

use mcp_supervisor::{
    CallError, Catalog, Connection, Era, Limits,
    catalog::{List, Stale},
    error::ListError,
    operation::{EndlessList, ListKind},
};
use rmcp::model::Tool;
use serde_json::{Value, json};

use crate::support::{
    bounded, initialize, kill, until,
    world::{Wire, World, echo, everywhere, lend, open, shut_down, supervisor},
};

/// Five tools in three pages.
pub(crate) fn three_pages() -> Value {
    let names = ["a", "b", "c", "d", "e"];
    let tools: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    json!({"tools_only": true, "page_size": 2, "tools": tools})
}

/// The same with rules.
fn three_pages_with(rules: Value) -> Value {
    let mut script = three_pages();
    script["rules"] = rules;
    script
}

pub(crate) fn names(tools: &[Tool]) -> Vec<&str> {
    tools.iter().map(|tool| &*tool.name).collect()
}

const ALL: [&str; 5] = ["a", "b", "c", "d", "e"];

fn failure<T>(list: &List<T>) -> &ListError {
    match list.stale() {
        Some(Stale::ReadFailed(why)) => why,
        other => panic!("not stale for a failed reading: {other:?}"),
    }
}

/// All of `ALL`, of the first generation, and stale since a reading failed; also without waiting.
async fn still_the_first_list(catalog: &Catalog) -> ListError {
    let known = catalog.known_tools().expect("it was read once");
    assert_eq!(names(&known), ALL);
    assert_eq!(known.generation().number(), 1);
    let age = known.age();
    let again = catalog.tools().await.expect("the last list stays");
    assert_eq!(names(&again), ALL);
    assert_eq!(again.generation().number(), 1);
    assert!(again.age() >= age, "it is as old as it is");
    failure(&again);
    failure(&known).clone()
}

#[tokio::test]
async fn three_pages_are_one_list() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, three_pages()).await;
            let (supervisor, server) = open(world.spec()).await;
            let tools = server.catalog().tools().await.unwrap();
            assert_eq!(names(&tools), ALL);
            assert!(tools.stale().is_none(), "{:?}", tools.stale());
            assert_eq!(tools.generation().number(), 1);
            assert_eq!(world.bed.read("tools/list"), 3);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn prompts_resources_and_templates_are_lists_as_well() {
    for (wire, era) in everywhere() {
        bounded(async {
            let templates: Vec<Value> = (0..3)
                .map(|n| json!({"uriTemplate": format!("mem://{n}/{{id}}"), "name": format!("t{n}")}))
                .collect();
            let script = json!({"page_size": 2, "resource_templates": templates});
            let world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec()).await;
            let catalog = server.catalog();
            assert!(catalog.known_prompts().is_none(), "nothing was asked yet");
            assert_eq!(catalog.prompts().await.unwrap()[0].name, "greet");
            assert_eq!(catalog.resources().await.unwrap()[0].uri, "mem://note");
            assert_eq!(catalog.resource_templates().await.unwrap().len(), 3);
            assert_eq!(catalog.known_prompts().unwrap().len(), 1);
            shut_down(supervisor).await;
        })
        .await;
    }
}

/// A server of skills: one page each for two skills, and what it vouches for them.
fn skills(ttl: u64) -> Value {
    let page = |name: &str, next: Value| {
        json!({"result": {"ttlMs": ttl, "cacheScope": "private", "nextCursor": next, "skills": [
            {"uri": format!("skill://{name}/SKILL.md"), "resources": [],
             "frontmatter": {"name": name, "description": "how to"}}]}})
    };
    json!({
        "capabilities": {"tools": {}, "extensions": {"io.modelcontextprotocol/skills": {}}},
        "rules": [
            {"on": "skills/list", "params": {"cursor": "2"}, "do": [page("test", json!(null))]},
            {"on": "skills/list", "do": [page("deploy", json!("2"))]},
        ],
    })
}

#[tokio::test]
async fn skills_are_a_list_as_well() {
    for (wire, era) in everywhere() {
        for lent in [false, true] {
            bounded(async {
                let world = World::new(wire, era.clone(), skills(600_000)).await;
                let client = world.client().await;
                let (supervisor, catalog) = if lent {
                    let supervisor = supervisor().await;
                    let catalog = lend(&supervisor, &client, true).await.catalog();
                    (supervisor, catalog)
                } else {
                    let (supervisor, server) = open(world.spec()).await;
                    (supervisor, server.catalog())
                };
                assert!(catalog.known_skills().is_none(), "nothing was asked yet");
                let skills = catalog.skills().await.unwrap();
                let named: Vec<_> = skills.iter().map(|s| &*s.frontmatter.name).collect();
                assert_eq!(named, ["deploy", "test"]);
                assert!(skills.stale().is_none(), "{:?}", skills.stale());
                catalog.skills().await.unwrap();
                assert_eq!(world.bed.read("skills/list"), 2, "read once, in two pages");
                assert!(catalog.refresh(ListKind::Skills).await.unwrap().is_empty());
                assert_eq!(catalog.known_skills().unwrap().len(), 2);
                assert_eq!(world.bed.read("skills/list"), 4);
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_server_that_does_not_declare_what_a_list_is_of_has_an_empty_one_and_is_not_asked() {
    for (wire, era) in everywhere() {
        for lent in [false, true] {
            bounded(async {
                // It would answer all of them.
                let world = World::new(wire, era.clone(), json!({"capabilities": {}})).await;
                let client = world.client().await;
                let (supervisor, catalog) = if lent {
                    let supervisor = supervisor().await;
                    let catalog = lend(&supervisor, &client, false).await.catalog();
                    (supervisor, catalog)
                } else {
                    let (supervisor, server) = open(world.spec()).await;
                    (supervisor, server.catalog())
                };
                let tools = catalog.tools().await.unwrap();
                assert!(tools.is_empty() && tools.stale().is_none(), "{tools:?}");
                assert_eq!(tools.generation().number(), 1);
                assert!(catalog.prompts().await.unwrap().is_empty());
                assert!(catalog.resources().await.unwrap().is_empty());
                assert!(catalog.resource_templates().await.unwrap().is_empty());
                assert!(catalog.skills().await.unwrap().is_empty());
                assert!(catalog.refresh(ListKind::Tools).await.unwrap().is_empty());
                let wire = world.bed.wire();
                let mut asked = wire.iter().filter(|read| read.method.ends_with("/list"));
                assert_eq!(asked.next(), None);
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_server_of_resources_that_knows_no_templates_has_none_and_one_that_denies_its_tools_fails()
 {
    let unknown = json!({"error": {"code": -32601, "message": "method not found"}});
    for (wire, era) in everywhere() {
        bounded(async {
            let rules =
                json!([{"on": ["resources/templates/list", "tools/list"], "do": [unknown]}]);
            let world = World::new(wire, era, json!({"rules": rules})).await;
            let (supervisor, server) = open(world.spec()).await;
            let catalog = server.catalog();
            let templates = catalog.resource_templates().await.unwrap();
            assert!(templates.is_empty() && templates.stale().is_none());
            assert_eq!(world.bed.read("resources/templates/list"), 1);
            assert_eq!(catalog.resources().await.unwrap().len(), 1);
            // It declares tools: an empty list would be as good as a guess.
            let why = catalog.tools().await.unwrap_err();
            assert!(
                matches!(why, ListError::PageFailed { page: 1, .. }),
                "{why}"
            );
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn the_same_cursor_for_ever_ends_in_an_error_and_the_last_list_stays() {
    for (wire, era) in everywhere() {
        bounded(async {
            // The first reading is three requests.
            let endless = json!({"result": {"tools": [], "nextCursor": "again"}});
            let rules = json!([{"on": "tools/list", "nth": "4+", "do": [endless]}]);
            let world = World::new(wire, era, three_pages_with(rules)).await;
            let (supervisor, server) = open(world.spec()).await;
            let catalog = server.catalog();
            catalog.tools().await.unwrap();

            let why = catalog.refresh(ListKind::Tools).await.unwrap_err();
            assert!(
                matches!(
                    why,
                    ListError::Endless {
                        why: EndlessList::RepeatedCursor { pages: 2 },
                        ..
                    }
                ),
                "{why}"
            );
            assert_eq!(world.bed.read("tools/list"), 5, "two pages, and no third");
            let why = still_the_first_list(&catalog).await;
            assert!(matches!(why, ListError::Endless { .. }), "{why}");
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_list_that_was_never_whole_is_an_error_and_no_part_of_it_is_shown() {
    for (wire, era) in everywhere() {
        bounded(async {
            let endless = json!({"result": {"tools": [{"name": "a", "inputSchema": {}}], "nextCursor": "again"}});
            let script = json!({"rules": [{"on": "tools/list", "do": [endless]}]});
            let world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec()).await;
            let why = server.catalog().tools().await.unwrap_err();
            assert!(matches!(why, ListError::Endless { .. }), "{why}");
            assert!(server.catalog().known_tools().is_none());
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn new_cursors_for_ever_end_at_the_limit_of_the_connection() {
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), three_pages()).await;
        let limits = Limits {
            max_pages: 2,
            ..Limits::default()
        };
        let (supervisor, server) = open(world.spec().limits(limits)).await;
        let why = server.catalog().tools().await.unwrap_err();
        assert!(
            matches!(
                why,
                ListError::Endless {
                    why: EndlessList::TooManyPages { most: 2 },
                    ..
                }
            ),
            "{why}"
        );
        assert_eq!(world.bed.read("tools/list"), 2);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn where_page_two_fails_the_last_list_stays_with_its_age_and_the_reason() {
    let refused = json!({"error": {"code": -32603, "message": "the index is being rebuilt"}});
    for (wire, era) in everywhere() {
        bounded(async {
            let rules = json!([{"on": "tools/list", "params": {"cursor": "2"}, "nth": [2, 3],
                "do": [refused]}]);
            let world = World::new(wire, era, three_pages_with(rules)).await;
            let (supervisor, server) = open(world.spec()).await;
            let catalog = server.catalog();
            catalog.tools().await.unwrap();

            catalog.refresh(ListKind::Tools).await.unwrap_err();
            let why = still_the_first_list(&catalog).await;
            assert!(
                matches!(
                    &why,
                    ListError::PageFailed {
                        page: 2,
                        error: CallError::Failed(_),
                        ..
                    }
                ),
                "{why:?}"
            );
            // The page works again, and so the list does.
            let tools = catalog.tools().await.unwrap();
            assert!(tools.stale().is_none(), "{:?}", tools.stale());
            assert_eq!(names(&tools), ALL);
            shut_down(supervisor).await;
        })
        .await;
    }
}

/// What ends a session at its second page.
fn ends_at_page_two(wire: Wire, generations: Value) -> Value {
    let end = match wire {
        Wire::Stdio => json!("kill"),
        Wire::Http => json!({"http": {"status": 404}}),
    };
    json!([{"on": "tools/list", "params": {"cursor": "2"}, "generation": generations, "do": [end]}])
}

/// Where a session can end between two pages: over HTTP in 2026-07-28 there is none to end.
fn with_sessions() -> [(Wire, Era); 3] {
    [
        (Wire::Stdio, initialize()),
        (Wire::Stdio, Era::Discover),
        (Wire::Http, initialize()),
    ]
}

#[tokio::test]
async fn pages_of_two_generations_are_never_one_list() {
    for (wire, era) in with_sessions() {
        bounded(async {
            let rules = ends_at_page_two(wire, json!([2, 3, 4, 5]));
            let world = World::new(wire, era, three_pages_with(rules)).await;
            let (supervisor, server) = open(world.spec()).await;
            let catalog = server.catalog();
            catalog.tools().await.unwrap();
            server.reconnect().await.unwrap();

            // Once more on the next session, from the start, and then it is told.
            let tools = catalog.tools().await.unwrap();
            assert_eq!(names(&tools), ALL);
            assert_eq!(tools.generation().number(), 1);
            let why = failure(&tools);
            assert!(
                matches!(why, ListError::GenerationChanged { page: 2, .. }),
                "{why}"
            );
            let asked: Vec<u64> = asked_in(&world);
            assert_eq!(
                asked,
                [1, 1, 1, 2, 2, 3, 3],
                "no page two without its page one"
            );
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_list_whose_session_died_between_two_pages_is_read_whole_on_the_next() {
    for (wire, era) in with_sessions() {
        bounded(async {
            let rules = ends_at_page_two(wire, json!(1));
            let world = World::new(wire, era, three_pages_with(rules)).await;
            let (supervisor, server) = open(world.spec()).await;
            let tools = server.catalog().tools().await.unwrap();
            assert_eq!(names(&tools), ALL);
            assert_eq!(tools.generation().number(), 2);
            assert_eq!(asked_in(&world), [1, 1, 2, 2, 2]);
            shut_down(supervisor).await;
        })
        .await;
    }
}

/// The generations in which pages were asked for.
fn asked_in(world: &World) -> Vec<u64> {
    let wire = world.bed.wire();
    let lists = wire.iter().filter(|r| r.method == "tools/list");
    lists.map(|r| r.generation).collect()
}

#[tokio::test]
async fn a_kill_from_outside_between_two_pages_is_a_change_of_generation() {
    bounded(async {
        let rules = json!([{"on": "tools/list", "params": {"cursor": "2"}, "generation": 1,
            "do": [{"touch": "at-page-two"}, "hang"]}]);
        let world = World::new(Wire::Stdio, initialize(), three_pages_with(rules)).await;
        let (supervisor, server) = open(world.spec()).await;
        let catalog = server.catalog();
        let reading = tokio::spawn(async move { catalog.tools().await });
        world.bed.until_file("at-page-two").await;
        kill(world.bed.running()[0]);
        let tools = reading.await.unwrap().unwrap();
        assert_eq!(tools.generation().number(), 2);
        assert_eq!(names(&tools), ALL);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn after_a_reconnect_a_list_is_read_again_before_it_is_used() {
    for (wire, era) in with_sessions() {
        bounded(async {
            let script = json!({"tools_only": true, "tools": [
                {"name": "old", "generation": 1}, {"name": "new", "generation": 2}]});
            let world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec()).await;
            let catalog = server.catalog();
            assert_eq!(names(&catalog.tools().await.unwrap()), ["old"]);
            server.reconnect().await.unwrap();
            assert_eq!(world.bed.read("tools/list"), 1, "nobody has used it yet");
            let known = catalog.known_tools().unwrap();
            assert_eq!(names(&known), ["old"]);
            assert!(
                matches!(known.stale(), Some(Stale::SessionOver)),
                "{:?}",
                known.stale()
            );

            let tools = catalog.tools().await.unwrap();
            assert_eq!(names(&tools), ["new"]);
            assert_eq!(tools.generation().number(), 2);
            assert!(tools.stale().is_none());
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn fifty_who_wait_share_one_reading_and_those_who_go_do_not_end_it() {
    for (wire, era) in everywhere() {
        bounded(async {
            let rules = json!([{"on": "tools/list", "nth": 1,
                "do": [{"touch": "asked"}, {"wait_file": "go"}, "answer"]}]);
            let world = World::new(wire, era, three_pages_with(rules)).await;
            let (supervisor, server) = open(world.spec()).await;
            let mut asking: Vec<_> = (0..50)
                .map(|_| {
                    let catalog = server.catalog();
                    tokio::spawn(async move { catalog.tools().await })
                })
                .collect();
            world.bed.until_file("asked").await;
            // Among them the one that began it.
            for gone in asking.drain(..25) {
                gone.abort();
                let _ = gone.await;
            }
            world.bed.touch("go");
            for asking in asking {
                assert_eq!(names(&asking.await.unwrap().unwrap()), ALL);
            }
            assert_eq!(
                world.bed.read("tools/list"),
                3,
                "one reading of three pages"
            );
            shut_down(supervisor).await;
        })
        .await;
    }
}

/// The catalog is not on the way of a call.
#[tokio::test]
async fn a_call_without_a_contract_reads_no_list() {
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), json!({})).await;
        let (supervisor, server) = open(world.spec()).await;
        server.call_tool(echo()).await.unwrap();
        assert_eq!(world.bed.read("tools/list"), 0);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_list_of_a_server_that_went_away_is_stale_and_says_why() {
    bounded(async {
        let rules = json!([{"on": "start", "generation": [2, 3], "do": [{"exit": 3}]}]);
        let world = World::new(Wire::Stdio, initialize(), three_pages_with(rules)).await;
        let (supervisor, server) = open(world.spec()).await;
        let catalog = server.catalog();
        catalog.tools().await.unwrap();
        kill(world.bed.running()[0]);
        server
            .status_when(|s| s.state == mcp_supervisor::connection::ConnectionState::Idle)
            .await;
        let why = {
            let tools = catalog.tools().await.unwrap();
            assert_eq!(names(&tools), ALL);
            failure(&tools).clone()
        };
        assert!(
            matches!(
                &why,
                ListError::PageFailed {
                    page: 1,
                    error: CallError::NotSent(_),
                    ..
                }
            ),
            "{why:?}"
        );
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_lent_connection_has_a_catalog_too_and_no_cache_answers_for_its_server() {
    for (wire, era) in everywhere() {
        for as_peer in [false, true] {
            bounded(async {
                let mut script = three_pages();
                script["page_size"] = json!(0);
                script["ttl_ms"] = json!(600_000);
                let mut world = World::new(wire, era.clone(), script).await;
                let client = world.client().await;
                // In 2026-07-28 rmcp answers this from its cache from now on.
                client.peer().list_tools(None).await.unwrap();
                let supervisor = supervisor().await;
                let lent = lend(&supervisor, &client, as_peer).await;
                let catalog = lent.catalog();
                assert_eq!(names(&catalog.tools().await.unwrap()), ALL);
                assert_eq!(world.bed.read("tools/list"), 2, "asked of the server");
                assert!(catalog.refresh(ListKind::Tools).await.unwrap().is_empty());
                assert_eq!(world.bed.read("tools/list"), 3);

                for pid in world.bed.running() {
                    kill(pid);
                }
                if let Some(http) = &mut world.http {
                    http.kill();
                }
                world.bed.until_all_gone().await;
                catalog.refresh(ListKind::Tools).await.unwrap_err();
                let known = catalog.known_tools().unwrap();
                assert_eq!(names(&known), ALL);
                failure(&known);
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

/// What the server vouches for in 2026-07-28. Older revisions know no such hint.
#[tokio::test]
async fn the_time_that_a_server_vouches_for_a_list_is_honoured() {
    for (ttl, reads) in [(json!(0), 3), (json!(600_000), 1)] {
        for wire in [Wire::Stdio, Wire::Http] {
            for era in [initialize(), Era::Discover] {
                bounded(async {
                    let world = World::new(wire, era.clone(), json!({"ttl_ms": ttl})).await;
                    let (supervisor, server) = open(world.spec()).await;
                    for _ in 0..3 {
                        let tools = server.catalog().tools().await.unwrap();
                        assert!(tools.stale().is_none(), "{:?}", tools.stale());
                    }
                    let has_hints = era == Era::Discover;
                    let reads = if has_hints { reads } else { 1 };
                    assert_eq!(world.bed.read("tools/list"), reads);
                    let known = server.catalog().known_tools().unwrap();
                    let expired = matches!(known.stale(), Some(Stale::Expired));
                    assert_eq!(expired, has_hints && ttl == json!(0));
                    shut_down(supervisor).await;
                })
                .await;
            }
        }
    }
}

#[tokio::test]
async fn a_list_expires_after_the_shortest_time_that_a_page_was_vouched_for() {
    bounded(async {
        let page = |name: &str, ttl: u64, next: Value| {
            json!({"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}}],
                "ttlMs": ttl, "cacheScope": "private", "nextCursor": next}})
        };
        let script = json!({"rules": [
            {"on": "tools/list", "params": {"cursor": null}, "do": [page("a", 600_000, json!("2"))]},
            {"on": "tools/list", "do": [page("b", 200, json!(null))]}]});
        let world = World::new(Wire::Stdio, Era::Discover, script).await;
        let (supervisor, server) = open(world.spec()).await;
        let catalog = server.catalog();
        assert_eq!(names(&catalog.tools().await.unwrap()), ["a", "b"]);
        until("the shorter time is over", || {
            let known = catalog.known_tools().unwrap();
            matches!(known.stale(), Some(Stale::Expired))
        })
        .await;
        catalog.tools().await.unwrap();
        assert_eq!(world.bed.read("tools/list"), 4);
        shut_down(supervisor).await;
    })
    .await;
}

/// A handle that only calls has the catalog as well.
#[tokio::test]
async fn whoever_may_call_may_read_the_catalog() {
    async fn first(server: &Connection) -> String {
        server.catalog().tools().await.unwrap()[0].name.to_string()
    }
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), three_pages()).await;
        let (supervisor, server) = open(world.spec()).await;
        assert_eq!(first(&server).await, "a");
        assert_eq!(first(&server.share()).await, "a");
        assert_eq!(world.bed.read("tools/list"), 3);
        shut_down(supervisor).await;
    })
    .await;
}
