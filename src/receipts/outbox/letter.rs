//! One intent as it is kept, and what each thing that is heard about it makes of it. Time comes in as
//! an argument: milliseconds of the one clock by which the store goes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    plan::{Age, Bar, Limits, Promises, Rest, Situation, Step, Why, absence_is_final, plan, rest},
    provider::{Found, Outgoing, Reason, Sent},
    reference::Reference,
    table::{Event, Illegal, State, next},
};

/// What a handler wants of a provider: committed with its receipt, and sent afterwards.
#[derive(Clone, PartialEq)]
pub struct Intent {
    /// The [name](super::Provider::name) of the provider.
    pub provider: String,
    /// What it is to do. It is sent as it is by every attempt.
    pub body: Value,
}

impl Intent {
    /// An intent for the provider of this name.
    pub fn new(provider: impl Into<String>, body: Value) -> Self {
        Self {
            provider: provider.into(),
            body,
        }
    }
}

impl std::fmt::Debug for Intent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intent")
            .field("provider", &self.provider)
            .finish_non_exhaustive()
    }
}

/// An intent in the outbox.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) reference: Reference,
    pub(crate) intent: Intent,
    pub(crate) progress: Progress,
}

/// How far an intent got.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub(crate) state: State,
    pub(crate) attempts: u32,
    pub(crate) look_ups: u32,
    pub(crate) barred: Option<Bar>,
    pub(crate) committed_at: i64,
    pub(crate) first_sent_at: Option<i64>,
    pub(crate) last_sent_at: Option<i64>,
    /// When something may be done next. It means nothing once the intent is over.
    pub(crate) due_at: i64,
    /// What the provider applied.
    pub(crate) result: Option<Value>,
    /// What the provider said last that was no result.
    pub(crate) reason: Option<String>,
    /// Why it was given up.
    pub(crate) why: Option<Why>,
}

/// What the provider and the settings allow, and chance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    pub(crate) promises: Promises,
    pub(crate) limits: &'a Limits,
    /// A random number from 0 to 1.
    pub(crate) jitter: f64,
}

impl Progress {
    /// An intent that is committed at `now` and may be sent at once.
    pub(crate) fn new(now: i64) -> Self {
        Self {
            state: State::Pending,
            attempts: 0,
            look_ups: 0,
            barred: None,
            committed_at: now,
            first_sent_at: None,
            last_sent_at: None,
            due_at: now,
            result: None,
            reason: None,
            why: None,
        }
    }

    /// Whoever made the attempt that was on its way is gone.
    pub(crate) fn recover(&mut self) -> Result<(), Illegal> {
        match self.state.is_on_its_way() {
            true => self.goes(Event::LoseSight),
            false => Ok(()),
        }
    }

    /// What may be done at `now`, or `None` where that is nothing and it is over therefore.
    pub(crate) fn step(&mut self, now: i64, rules: Rules<'_>) -> Result<Option<Next>, Illegal> {
        match plan(&self.situation(now, rules), rules.limits) {
            Step::Send => {
                self.goes(Event::Send)?;
                self.attempts = self.attempts.saturating_add(1);
                self.first_sent_at.get_or_insert(now);
                self.last_sent_at = Some(now);
                Ok(Some(Next::Send))
            }
            Step::LookUp => Ok(Some(Next::LookUp)),
            end => self.ends(end).map(|()| None),
        }
    }

    /// What came of the attempt.
    pub(crate) fn sent(&mut self, sent: Sent, now: i64, rules: Rules<'_>) -> Result<(), Illegal> {
        let (event, reason) = match sent {
            Sent::Accepted(result) => {
                self.result = Some(result);
                return self.goes(Event::Accept);
            }
            Sent::Refused(reason) => (Event::Refuse, reason),
            Sent::Conflict(reason) => (Event::Conflict, reason),
            Sent::Deferred(reason) => (Event::Defer, reason),
            Sent::Unclear(reason) => (Event::LoseSight, reason),
        };
        self.goes(event)?;
        self.reason = Some(reason.text);
        if event == Event::Refuse {
            self.barred = Some(Bar::Denied);
        }
        self.rests(reason.retry_after, now, rules)
    }

    /// What a look-up found.
    pub(crate) fn found(
        &mut self,
        found: Found,
        now: i64,
        rules: Rules<'_>,
    ) -> Result<(), Illegal> {
        let reason = match found {
            Found::Applied(result) => {
                self.result = Some(result);
                return self.goes(Event::Accept);
            }
            Found::Refused(reason) => {
                self.reason = Some(reason.text);
                return self.goes(Event::FindRefused);
            }
            Found::Absent if absence_is_final(&self.situation(now, rules)) => {
                self.goes(Event::FindAbsent)?;
                Reason::new("the provider does not have it, and nothing can arrive any more")
            }
            Found::Absent => Reason::new("the provider does not have it yet"),
            Found::Unclear(reason) => reason,
        };
        self.look_ups = self.look_ups.saturating_add(1);
        // Why it was denied tells more than why a look-up found nothing.
        if self.barred != Some(Bar::Denied) {
            self.reason = Some(reason.text);
        }
        self.rests(reason.retry_after, now, rules)
    }

    /// Until when nothing is done about it, or how it ends.
    fn rests(
        &mut self,
        mut hint: Option<Duration>,
        now: i64,
        rules: Rules<'_>,
    ) -> Result<(), Illegal> {
        if self.state.is_over() {
            return Ok(());
        }
        loop {
            match rest(
                &self.situation(now, rules),
                rules.limits,
                hint,
                rules.jitter,
            ) {
                Rest::Wait(wait) => {
                    let wait = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
                    self.due_at = now.saturating_add(wait);
                    return Ok(());
                }
                Rest::HintDoesNotFit => {
                    self.barred = Some(Bar::ToldToWait);
                    hint = None;
                }
                Rest::End(step) => return self.ends(step),
            }
        }
    }

    fn ends(&mut self, step: Step) -> Result<(), Illegal> {
        match step {
            Step::GiveUp(why) => {
                self.why = Some(why);
                self.goes(Event::GiveUp)
            }
            Step::Refuse => self.goes(Event::Refuse),
            Step::Send | Step::LookUp => Ok(()),
        }
    }

    fn goes(&mut self, event: Event) -> Result<(), Illegal> {
        self.state = next(self.state, event)?;
        Ok(())
    }

    fn situation(&self, now: i64, rules: Rules<'_>) -> Situation {
        Situation {
            state: self.state,
            attempts: self.attempts,
            look_ups: self.look_ups,
            barred: self.barred,
            age: Age::of(Some(self.committed_at), now),
            since_first: Age::of(self.first_sent_at, now),
            since_last: Age::of(self.last_sent_at, now),
            promises: rules.promises,
        }
    }
}

/// What is done about an intent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// An attempt, which is to be durable before it is made.
    Send,
    /// A look-up.
    LookUp,
}

impl Letter {
    /// The attempt that its progress tells of.
    pub(crate) fn outgoing(&self) -> Outgoing {
        Outgoing {
            reference: self.reference.clone(),
            body: self.intent.body.clone(),
            attempt: self.progress.attempts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A provider whose losses are drawn from a seed, and who counts its effects.
    struct World {
        draws: u64,
        promises: Promises,
        effects: u32,
        /// When it first had an effect under the key.
        knows_since: Option<i64>,
    }

    const RETENTION: Duration = Duration::from_secs(60);

    impl World {
        fn draw(&mut self, below: u64) -> u64 {
            // Knuth's constants for a linear congruential generator.
            self.draws = self
                .draws
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.draws >> 33) % below
        }

        fn send(&mut self, now: i64) -> Sent {
            let reason = || Reason::new("a reason");
            match self.draw(6) {
                0 => return Sent::Unclear(reason()),
                1 => return Sent::Deferred(reason()),
                2 => return Sent::Deferred(reason().retry_after(Duration::from_secs(20))),
                3 => return Sent::Refused(reason()),
                _ => {}
            }
            let kept = i64::try_from(RETENTION.as_millis()).unwrap();
            let known = self.promises.key_retention.is_some()
                && self.knows_since.is_some_and(|since| now - since < kept);
            if !known {
                self.effects += 1;
                self.knows_since = Some(now);
            }
            match self.draw(2) {
                0 => Sent::Unclear(reason()),
                _ => Sent::Accepted(Value::Null),
            }
        }

        fn look_up(&mut self) -> Found {
            match (self.draw(3), self.effects) {
                (0, _) => Found::Unclear(Reason::new("a reason")),
                (_, 0) => Found::Absent,
                _ => Found::Applied(Value::Null),
            }
        }
    }

    #[test]
    fn whatever_is_lost_there_is_one_effect_at_most_and_no_end_that_is_not_true() {
        let final_after = Some(Duration::from_secs(5));
        let mut ends = std::collections::BTreeMap::new();
        for promises in [
            Promises::none(),
            Promises::none().keys_kept_for(RETENTION),
            Promises::none().looked_up(None),
            Promises::none().looked_up(final_after),
            Promises::none()
                .keys_kept_for(RETENTION)
                .looked_up(final_after),
        ] {
            for seed in 0..2_000 {
                let mut world = World {
                    draws: seed,
                    promises,
                    effects: 0,
                    knows_since: None,
                };
                let state = run(&mut world);
                *ends.entry(state.word()).or_insert(0) += 1;
                assert!(world.effects <= 1, "seed {seed}, {promises:?}");
                let true_of = match state {
                    State::Answered => world.effects == 1,
                    State::Refused | State::NotSent => world.effects == 0,
                    State::Unknown => true,
                    other => panic!("{other:?} is no end"),
                };
                assert!(
                    true_of,
                    "seed {seed}, {promises:?}: {state:?}, {}",
                    world.effects
                );
            }
        }
        assert_eq!(ends.len(), 4, "not every end was met: {ends:?}");
    }

    /// One intent from its commit to its end, with crashes in between.
    fn run(world: &mut World) -> State {
        let limits = Limits {
            retention_margin: Duration::from_secs(1),
            ..Limits::default()
        };
        let mut now = 1_000_000;
        let mut progress = Progress::new(now);
        for _ in 0..1_000 {
            let rules = Rules {
                promises: world.promises,
                limits: &limits,
                jitter: world.draw(100) as f64 / 100.0,
            };
            now = now.max(progress.due_at) + i64::try_from(world.draw(2_000)).unwrap();
            progress.recover().unwrap();
            match progress.step(now, rules).unwrap() {
                None => {}
                Some(Next::Send) => {
                    let sent = world.send(now);
                    // A crash: the answer is written nowhere.
                    if world.draw(4) > 0 {
                        progress.sent(sent, now, rules).unwrap();
                    }
                }
                Some(Next::LookUp) => progress.found(world.look_up(), now, rules).unwrap(),
            }
            if progress.state.is_over() {
                return progress.state;
            }
        }
        panic!("it does not end: {progress:?}");
    }

    #[test]
    fn what_a_provider_is_to_do_is_not_shown() {
        let intent = Intent::new("bank", Value::from("card 4242"));
        let shown = format!("{intent:?}");
        assert!(shown.contains("bank") && !shown.contains("4242"), "{shown}");
    }

    #[test]
    fn an_attempt_that_had_no_effect_is_made_again_when_the_provider_asked_for_it_and_not_before() {
        let limits = Limits::default();
        let rules = Rules {
            promises: Promises::none(),
            limits: &limits,
            jitter: 0.0,
        };
        let mut progress = Progress::new(0);
        assert_eq!(progress.step(0, rules), Ok(Some(Next::Send)));
        let reason = Reason::new("busy").retry_after(Duration::from_secs(20));
        progress.sent(Sent::Deferred(reason), 1_000, rules).unwrap();
        assert_eq!((progress.state, progress.due_at), (State::Pending, 21_000));
        assert_eq!(progress.reason.as_deref(), Some("busy"));
        assert_eq!(progress.step(21_000, rules), Ok(Some(Next::Send)));
        assert_eq!(
            (progress.attempts, progress.last_sent_at),
            (2, Some(21_000))
        );
        assert_eq!(progress.first_sent_at, Some(0));
        let denied = Sent::Refused(Reason::new("not you"));
        progress.sent(denied, 22_000, rules).unwrap();
        assert_eq!(
            progress.state,
            State::Refused,
            "of the one before nothing stands"
        );
    }

    #[test]
    fn a_provider_that_asks_for_more_time_than_there_is_ends_it_unsent() {
        let limits = Limits::default();
        let rules = Rules {
            promises: Promises::none(),
            limits: &limits,
            jitter: 0.0,
        };
        let mut progress = Progress::new(0);
        progress.step(0, rules).unwrap();
        let reason = Reason::new("tomorrow").retry_after(Duration::from_secs(24 * 3600));
        progress.sent(Sent::Deferred(reason), 0, rules).unwrap();
        assert_eq!(progress.state, State::NotSent);
        assert_eq!(progress.why, Some(Why::ToldToWait));
    }

    #[test]
    fn an_absence_allows_another_attempt_only_once_nothing_can_arrive_any_more() {
        let limits = Limits::default();
        let rules = Rules {
            promises: Promises::none().looked_up(Some(Duration::from_secs(5))),
            limits: &limits,
            jitter: 0.0,
        };
        let mut progress = Progress::new(0);
        assert_eq!(progress.step(0, rules), Ok(Some(Next::Send)));
        let lost = Sent::Unclear(Reason::new("lost"));
        progress.sent(lost, 0, rules).unwrap();
        for (now, state) in [(1, State::Unclear), (4_999, State::Unclear)] {
            assert_eq!(progress.step(now, rules), Ok(Some(Next::LookUp)));
            progress.found(Found::Absent, now, rules).unwrap();
            assert_eq!((progress.state, progress.attempts), (state, 1), "{now}");
        }
        assert_eq!(progress.due_at, 5_000, "an absence says something then");
        assert_eq!(progress.step(5_000, rules), Ok(Some(Next::LookUp)));
        progress.found(Found::Absent, 5_000, rules).unwrap();
        assert_eq!((progress.state, progress.look_ups), (State::Pending, 3));
        assert_eq!(progress.step(5_000, rules), Ok(Some(Next::Send)));
    }

    #[test]
    fn every_attempt_is_the_same_but_for_its_number() {
        let reference = Reference::of("acme", "charge", "order-1");
        let mut progress = Progress::new(0);
        progress.attempts = 3;
        let letter = Letter {
            reference: reference.clone(),
            intent: Intent::new("bank", Value::from(7)),
            progress,
        };
        let sent = letter.outgoing();
        assert_eq!((sent.reference, sent.body), (reference, Value::from(7)));
        assert_eq!(sent.attempt, 3);
    }

    #[test]
    fn the_reason_of_a_denial_outlives_what_look_ups_say() {
        let limits = Limits::default();
        let rules = Rules {
            promises: Promises::none()
                .looked_up(Some(Duration::ZERO))
                .keys_kept_for(RETENTION * 60),
            limits: &limits,
            jitter: 0.0,
        };
        let mut progress = Progress::new(0);
        progress.step(0, rules).unwrap();
        progress
            .sent(Sent::Unclear(Reason::new("lost")), 0, rules)
            .unwrap();
        assert_eq!(progress.step(0, rules), Ok(Some(Next::Send)));
        progress
            .sent(Sent::Refused(Reason::new("not you")), 0, rules)
            .unwrap();
        assert_eq!(progress.step(0, rules), Ok(Some(Next::LookUp)));
        progress.found(Found::Absent, 0, rules).unwrap();
        assert_eq!(progress.state, State::Refused);
        assert_eq!(progress.reason.as_deref(), Some("not you"));
    }
}
