//! Traces by hand: what the rules let happen and what not, where only that is told which can be watched.

use super::machine::{
    Caller, Contract, Ending, Fact, Journal, Machine, Refused, Reply, Session, Setting, State, Step,
};

const FIRST: Session = Session {
    host: 0,
    generation: 1,
};
const SECOND: Session = Session {
    host: 0,
    generation: 2,
};

fn machine(contract: Contract, journal: Journal) -> Machine<2> {
    Machine::new(Setting {
        lent: false,
        ordered: true,
        journal,
        receipts: false,
        stalls: false,
        max_attempts: 3,
        contracts: [contract; 2],
    })
}

fn follow(machine: &Machine<2>, trace: &[Step]) -> Result<State<2>, (Step, Refused)> {
    let start = machine.setting.start();
    trace.iter().try_fold(start, |state, step| {
        let next = machine.follow(&state, step);
        next.map_err(|refused| (*step, refused))
    })
}

const CALL: Step = Step::Called { op: 0, host: 0 };
const OPENING: Step = Step::Opening {
    host: 0,
    asked: false,
};
const OPENED: Step = Step::Opened { host: 0 };

fn handed_over(op: u8, session: Session) -> Step {
    Step::HandedOver { op, session }
}

fn begun(op: u8, session: Session) -> Step {
    Step::Begun { op, session }
}

fn ran(op: u8, session: Session) -> Step {
    let reply = Reply::Result;
    Step::Arrived { op, session, reply }
}

fn told(op: u8, ending: Ending) -> Step {
    Step::Told { op, ending }
}

#[test]
fn a_call_that_is_answered_is_followed_without_the_reading_of_its_answer() {
    let machine = machine(Contract::AtMostOnce, Journal::Off);
    let trace = [
        CALL,
        OPENING,
        OPENED,
        handed_over(0, FIRST),
        begun(0, FIRST),
        ran(0, FIRST),
        told(0, Ending::Answered),
    ];
    let end = follow(&machine, &trace).expect("it is allowed");
    assert_eq!(end.ops[0].caller, Caller::Told(Ending::Answered));
    assert_eq!((end.ops[0].effects, end.ops[0].authorised), (1, 1));
}

#[test]
fn what_was_not_sent_moves_to_the_next_session_and_what_was_sent_does_not() {
    let machine = machine(Contract::AtMostOnce, Journal::Off);
    let second_call = Step::Called { op: 1, host: 0 };
    let mut trace = vec![
        CALL,
        second_call,
        OPENING,
        OPENED,
        handed_over(0, FIRST),
        handed_over(1, FIRST),
        begun(0, FIRST),
        Step::Ended { session: FIRST },
    ];
    let ended = trace.len();
    trace.extend([
        Step::TakenBack { op: 1, host: 0 },
        OPENING,
        OPENED,
        handed_over(1, SECOND),
        begun(1, SECOND),
        ran(1, SECOND),
        told(1, Ending::Answered),
        told(0, Ending::Unknown),
    ]);
    follow(&machine, &trace).expect("it is allowed");

    trace.truncate(ended);
    trace.extend([Step::TakenBack { op: 1, host: 0 }, OPENING, OPENED]);
    trace.push(handed_over(0, SECOND));
    let (step, why) = follow(&machine, &trace).expect_err("it was sent");
    assert_eq!(step, handed_over(0, SECOND), "{why}");
}

#[test]
fn a_second_attempt_is_followed_where_the_contract_allows_it_and_refused_where_none_does() {
    let trace = [
        CALL,
        OPENING,
        OPENED,
        handed_over(0, FIRST),
        begun(0, FIRST),
        ran(0, FIRST),
        Step::Ended { session: FIRST },
        Step::LostSight { op: 0, host: 0 },
        Step::Repeated { op: 0, host: 0 },
        OPENING,
        OPENED,
        handed_over(0, SECOND),
    ];
    let allows = machine(Contract::Idempotent, Journal::Off);
    let end = follow(&allows, &trace).expect("the contract allows it");
    assert_eq!(end.ops[0].authorised, 2);
    let none = machine(Contract::AtMostOnce, Journal::Off);
    let (step, _) = follow(&none, &trace).expect_err("nothing allows it");
    assert_eq!(step, Step::Repeated { op: 0, host: 0 });
}

#[test]
fn not_sent_is_told_only_of_what_was_not_begun() {
    let machine = machine(Contract::AtMostOnce, Journal::Off);
    let queued = [CALL, OPENING, OPENED, handed_over(0, FIRST)];
    let end = [told(0, Ending::NotSent)];
    follow(&machine, &[&queued[..], &end].concat()).expect("a recall that is won");
    let written = [begun(0, FIRST)];
    let trace = [&queued[..], &written, &end].concat();
    let (step, _) = follow(&machine, &trace).expect_err("it was begun");
    assert_eq!(step, told(0, Ending::NotSent));
}

#[test]
fn an_ordered_writer_that_overtakes_is_refused() {
    let machine = machine(Contract::AtMostOnce, Journal::Off);
    let trace = [
        CALL,
        Step::Called { op: 1, host: 0 },
        OPENING,
        OPENED,
        handed_over(0, FIRST),
        handed_over(1, FIRST),
        begun(1, FIRST),
    ];
    let (step, _) = follow(&machine, &trace).expect_err("the first one is first");
    assert_eq!(step, begun(1, FIRST));
}

#[test]
fn with_a_journal_an_attempt_is_handed_over_only_after_its_record() {
    let machine = machine(Contract::AtMostOnce, Journal::Alone);
    let record = |fact| Step::Recorded {
        op: 0,
        host: 0,
        fact,
    };
    let end = [OPENING, OPENED, handed_over(0, FIRST)];
    let durable = [CALL, record(Fact::Accepted), record(Fact::Dispatching)];
    let mailed = [Step::Mailed { op: 0, host: 0 }];
    follow(&machine, &[&durable[..], &mailed, &end].concat()).expect("it is durable");
    let trace = [&durable[..2], &mailed, &end].concat();
    let (step, _) = follow(&machine, &trace).expect_err("it is not durable");
    assert_eq!(step, mailed[0]);
}
