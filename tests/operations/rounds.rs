//! Servers that ask for input before they go on, in 2026-07-28.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mcp_supervisor::{
    AnswerKind, CallError, ConnectionSpec, Era, Limits, PromptGet, ResourceRead, ToolCall,
    ToolContract,
    error::{InputMissing, UnknownCause, Wait},
};
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationCapability, GetPromptResponse, Implementation,
    },
    service::RequestContext,
};
use serde_json::{Value, json};

use super::requests::params;
use crate::support::{
    bounded,
    lane::{BOTH, Over, Rig, unknown, unknown_cause},
};

/// Answers each question after a while, or with an error.
struct Person {
    asked: Arc<AtomicUsize>,
    thinks: Duration,
    refuses: bool,
}

impl ClientHandler for Person {
    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(self.thinks).await;
        if self.refuses {
            return Err(ErrorData::internal_error("no person is here", None));
        }
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"name": "Ada"})))
    }

    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(ElicitationCapability::default());
        ClientConfig::new(capabilities, Implementation::new("person", "1"))
    }
}

fn person() -> (Person, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let person = Person {
        asked: Arc::clone(&asked),
        thinks: Duration::ZERO,
        refuses: false,
    };
    (person, asked)
}

pub(super) fn question(state: &str) -> Value {
    json!({"result": {
        "resultType": "input_required",
        "requestState": state,
        "inputRequests": {"who": {"method": "elicitation/create", "params": {
            "message": "Who are you?",
            "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
        }}},
    }})
}

/// `charge` asks twice, and then charges.
pub(super) fn asks_twice() -> Value {
    json!({"log_messages": true, "rules": [
        {"on": "tools/call", "params": {"requestState": null}, "do": [question("one")]},
        {"on": "tools/call", "params": {"requestState": "one"}, "do": [question("two")]},
    ]})
}

#[tokio::test]
async fn a_tool_that_asks_is_answered_by_the_handler_and_each_round_is_sent_once() {
    bounded(async {
        for over in BOTH {
            let (person, asked) = person();
            let rig = Rig::with(over, Era::Discover, asks_twice(), |s| s.handler(person)).await;
            let call = ToolCall::new("charge", json!({"cents": 7})).meta("tenant", json!("t"));
            let answer = rig.connection.call_tool(call).await.unwrap();
            assert_eq!(answer.structured().unwrap()["charged"], true);
            assert_eq!((answer.attempts(), asked.load(Ordering::SeqCst)), (1, 2));
            let rounds = params(&rig, "tools/call");
            assert_eq!(rounds.len(), 3);
            for (round, state) in rounds.iter().zip([json!(null), json!("one"), json!("two")]) {
                assert_eq!(round["requestState"], state);
                assert_eq!(round["arguments"], json!({"cents": 7}));
                assert_eq!(round["_meta"]["tenant"], "t");
            }
            let given = &rounds[2]["inputResponses"]["who"];
            assert_eq!(
                *given,
                json!({"action": "accept", "content": {"name": "Ada"}})
            );
            assert_eq!(rig.bed.effects().len(), 1);
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_loss_in_a_later_round_is_unknown_whatever_the_contract_and_runs_nothing_again() {
    bounded(async {
        for over in BOTH {
            let script = json!({"rules": [
                {"on": "tools/call", "params": {"requestState": null}, "do": [question("one")]},
                {"on": "tools/call", "params": {"requestState": "one"}, "do": ["ledger", "kill"]},
            ]});
            let (person, asked) = person();
            let adjust = |spec: ConnectionSpec| {
                spec.handler(person)
                    .contract("charge", ToolContract::Idempotent)
            };
            let rig = Rig::with(over, Era::Discover, script, adjust).await;
            unknown(rig.call("charge", json!({})).await);
            assert_eq!(asked.load(Ordering::SeqCst), 1);
            assert_eq!(rig.bed.effects().len(), 1);
            let _ = rig.supervisor.shutdown(Duration::from_secs(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn input_for_a_session_that_is_over_goes_to_no_other_session() {
    bounded(async {
        let script = json!({"rules": [
            {"on": "tools/call", "params": {"requestState": null}, "tool": "charge",
             "do": [question("one"), {"sleep_ms": 50}, "kill"]},
        ]});
        let (mut person, _) = person();
        person.thinks = Duration::from_secs(30);
        let rig = Rig::with(Over::Stdio, Era::Discover, script, |s| s.handler(person)).await;
        let cause = unknown(rig.call("charge", json!({})).await);
        assert_eq!(cause, UnknownCause::InputMissing(InputMissing::SessionGone));
        assert_eq!(rig.echo().await, 2);
        assert!(
            rig.bed
                .effects()
                .iter()
                .all(|effect| effect.tool != "charge")
        );
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn rounds_are_bounded_also_where_the_server_only_wants_to_be_asked_again() {
    bounded(async {
        for (answer, asks) in [
            (question("again"), 2),
            (
                json!({"result": {"resultType": "input_required", "requestState": "again"}}),
                0,
            ),
        ] {
            let script = json!({"rules": [{"on": "tools/call", "do": ["ledger", answer]}]});
            let (person, asked) = person();
            let limits = Limits {
                max_rounds: 3,
                ..Limits::default()
            };
            let adjust = |spec: ConnectionSpec| spec.handler(person).limits(limits);
            let rig = Rig::with(Over::Stdio, Era::Discover, script, adjust).await;
            let cause = unknown(rig.call("charge", json!({})).await);
            let most = InputMissing::TooManyRounds { most: 3 };
            assert_eq!(cause, UnknownCause::InputMissing(most));
            assert_eq!(rig.bed.effects().len(), 3);
            assert_eq!(asked.load(Ordering::SeqCst), asks);
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_fails_ends_the_call_with_its_code_and_nothing_more_is_sent() {
    bounded(async {
        let (mut person, _) = person();
        person.refuses = true;
        let rig = Rig::with(Over::Stdio, Era::Discover, asks_twice(), |s| {
            s.handler(person)
        })
        .await;
        let cause = unknown(rig.call("charge", json!({})).await);
        let failed = InputMissing::HandlerFailed { code: -32603 };
        assert_eq!(cause, UnknownCause::InputMissing(failed));
        assert_eq!(params(&rig, "tools/call").len(), 1);
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn the_clock_of_a_call_stands_while_a_person_answers_and_only_so_long() {
    bounded(async {
        for (hold, in_time) in [(Duration::from_secs(30), true), (Duration::ZERO, false)] {
            let (mut person, _) = person();
            person.thinks = Duration::from_secs(4);
            let limits = Limits {
                hold,
                ..Limits::default()
            };
            let adjust = |spec: ConnectionSpec| spec.handler(person).limits(limits);
            let script = json!({"rules": [
                {"on": "tools/call", "params": {"requestState": null}, "do": [question("one")]}]});
            let rig = Rig::with(Over::Stdio, Era::Discover, script, adjust).await;
            rig.connection
                .ping(mcp_supervisor::Ping::default())
                .await
                .unwrap_err();
            let call = ToolCall::new("charge", json!({})).deadline(Duration::from_secs(3));
            let answer = rig.connection.call_tool(call).await;
            match in_time {
                true => assert_eq!(answer.unwrap().kind(), AnswerKind::Complete),
                false => {
                    assert_eq!(unknown(answer), UnknownCause::DeadlinePassed(Wait::Input));
                }
            }
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_caller_can_take_the_rounds_itself() {
    bounded(async {
        for over in BOTH {
            let (person, asked) = person();
            let rig = Rig::with(over, Era::Discover, asks_twice(), |s| s.handler(person)).await;
            let call = ToolCall::new("charge", json!({"cents": 7}));
            let mut answer = rig.connection.call_tool_once(call.clone()).await.unwrap();
            for _ in 0..2 {
                let asked = answer.input_required().unwrap();
                let given = [("who".to_owned(), json!({"action": "decline"}))].into();
                let next = call.clone().with_input(asked, given);
                answer = rig.connection.call_tool_once(next).await.unwrap();
            }
            assert_eq!(answer.kind(), AnswerKind::Complete);
            assert_eq!(asked.load(Ordering::SeqCst), 0);
            assert_eq!(params(&rig, "tools/call").len(), 3);
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn prompts_and_resources_ask_too_and_without_a_handler_the_caller_learns_it() {
    bounded(async {
        for over in BOTH {
            let script = json!({"rules": [
                {"on": ["prompts/get", "resources/read"], "params": {"requestState": null}, "do": [question("one")]},
                {"on": "prompts/get", "do": [{"result": {"messages": []}}]},
                {"on": "resources/read", "do": [{"result": {"contents": [], "ttlMs": 1, "cacheScope": "private"}}]},
                {"on": "tools/call", "params": {"requestState": null}, "do": [question("one")]},
            ]});
            let (person, asked) = person();
            let rig = Rig::with(over, Era::Discover, script.clone(), |s| s.handler(person)).await;
            rig.connection.get_prompt(PromptGet::new("p")).await.unwrap();
            rig.connection.read_resource(ResourceRead::new("x://r")).await.unwrap();
            assert_eq!(asked.load(Ordering::SeqCst), 2);
            rig.finish().await;

            let rig = Rig::new(over, Era::Discover, script).await;
            let prompt = rig.connection.get_prompt(PromptGet::new("p")).await;
            let cause = unknown_cause(&prompt.unwrap_err());
            assert_eq!(cause, UnknownCause::InputMissing(InputMissing::NoHandler));
            let once = rig.connection.get_prompt_once(PromptGet::new("p")).await.unwrap();
            assert!(matches!(once, GetPromptResponse::InputRequired(_)));
            let answer = rig.call("charge", json!({})).await.unwrap();
            assert_eq!(answer.kind(), AnswerKind::InputRequired);
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_servers_refusal_of_a_round_is_passed_through() {
    bounded(async {
        let script = json!({"rules": [
            {"on": "tools/call", "params": {"requestState": null}, "do": [question("one")]},
            {"on": "tools/call", "do": [{"error": {"code": -32602, "message": "stale"}}]},
        ]});
        let (person, _) = person();
        let rig = Rig::with(Over::Stdio, Era::Discover, script, |s| s.handler(person)).await;
        let refused = rig.call("charge", json!({})).await;
        assert!(
            matches!(refused, Err(CallError::Rejected(_))),
            "{refused:?}"
        );
        rig.finish().await;
    })
    .await;
}

/// Counts how many questions it has at a time.
#[derive(Clone, Default)]
struct Counting {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl ClientHandler for Counting {
    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        Ok(ElicitResult::new(ElicitationAction::Decline))
    }
}

#[tokio::test]
async fn the_questions_of_one_round_are_with_the_handler_a_bounded_number_at_a_time() {
    bounded(async {
        for over in BOTH {
            let mut asked = question("one");
            let requests = &mut asked["result"]["inputRequests"];
            let who = requests["who"].clone();
            *requests = (0..20).map(|n| (format!("q{n}"), who.clone())).collect();
            let script = json!({"log_messages": true, "rules": [
                {"on": "tools/call", "params": {"requestState": null}, "do": [asked]},
            ]});
            let host = Counting::default();
            let limits = Limits {
                max_asked: 3,
                ..Limits::default()
            };
            let handler = host.clone();
            let adjust = |spec: ConnectionSpec| spec.handler(handler).limits(limits);
            let rig = Rig::with(over, Era::Discover, script, adjust).await;
            rig.call("charge", json!({})).await.unwrap();
            let given = &params(&rig, "tools/call")[1]["inputResponses"];
            assert_eq!(given.as_object().unwrap().len(), 20);
            assert_eq!(host.most.load(Ordering::SeqCst), 3);
            rig.finish().await;
        }
    })
    .await;
}
