//! What may be done next about an intent. A pure function of what is known and of ages: it reads no
//! clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::table::State;
use crate::policy::Backoff;

/// How long and how often an intent is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The most attempts to send one intent.
    pub max_attempts: u32,
    /// The most look-ups of one intent that find nothing out.
    pub max_look_ups: u32,
    /// The age, from its commit on, after which nothing is sent any more.
    pub max_age: Duration,
    /// The longest that one attempt or look-up may take.
    pub attempt_timeout: Duration,
    /// How much longer than an attempt its intent is held: for the writes before and after it. What a
    /// process left behind is taken up by another one when both times are over.
    pub lease_margin: Duration,
    /// The waits between attempts.
    pub backoff: Backoff,
    /// By how much before the end of the provider's key retention nothing is sent again: the time for
    /// which an attempt may be under way, and what two clocks may differ by.
    pub retention_margin: Duration,
}

impl Default for Limits {
    /// 8 attempts and 8 look-ups within an hour of at most 10 s each, up to 30 s apart, and none again
    /// in the last 5 minutes of a key's retention.
    fn default() -> Self {
        Self {
            max_attempts: 8,
            max_look_ups: 8,
            max_age: Duration::from_secs(60 * 60),
            attempt_timeout: Duration::from_secs(10),
            lease_margin: Duration::from_secs(5),
            backoff: Backoff {
                base: Duration::from_millis(200),
                cap: Duration::from_secs(30),
            },
            retention_margin: Duration::from_secs(5 * 60),
        }
    }
}

/// What a provider promises that helps to find out what became of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Promises {
    /// For how long the provider knows a key and answers a second request under it with the first
    /// one's result. `None`: it does not deduplicate by key.
    pub key_retention: Option<Duration>,
    /// Whether a request can be looked up by its reference. `None`: it cannot.
    pub look_up: Option<LookUp>,
}

/// What a look-up is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LookUp {
    /// How long after the last attempt an absence is final, because no delayed request can arrive any
    /// more. `None`: never.
    pub absence_final_after: Option<Duration>,
}

impl Promises {
    /// A provider that promises nothing: an attempt without an answer stays unknown.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The provider deduplicates by key, and knows each for this long after the first request.
    #[must_use]
    pub fn keys_kept_for(mut self, retention: Duration) -> Self {
        self.key_retention = Some(retention);
        self
    }

    /// The provider can be asked what it has under a reference. `absence_final_after`: how long after
    /// the last attempt an absence is final; `None`: never.
    #[must_use]
    pub fn looked_up(mut self, absence_final_after: Option<Duration>) -> Self {
        self.look_up = Some(LookUp {
            absence_final_after,
        });
        self
    }
}

/// Everything that a plan depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    /// Where it stands; never on its way, never over.
    pub(crate) state: State,
    /// How many attempts were made.
    pub(crate) attempts: u32,
    /// How many look-ups found nothing out.
    pub(crate) look_ups: u32,
    /// Why it may not be sent any more, if the provider said so.
    pub(crate) barred: Option<Bar>,
    /// Since it was committed.
    pub(crate) age: Age,
    /// Since the first attempt, from which on the provider may know its key.
    pub(crate) since_first: Age,
    /// Since the last attempt.
    pub(crate) since_last: Age,
    /// What the provider promises.
    pub(crate) promises: Promises,
}

/// What a provider said that ends the sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bar {
    /// It refused an attempt. A denial is not asked about twice.
    Denied,
    /// It said to come back later than anything may be sent.
    ToldToWait,
}

/// How long something is ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// It has not happened.
    Never,
    /// So long.
    Ago(Duration),
    /// It is in the future by so much: the clock was set back, and nobody knows how old it is.
    Ahead(Duration),
}

impl Age {
    /// The age at `now` of what happened at `then`, both in milliseconds of one clock.
    pub(crate) fn of(then: Option<i64>, now: i64) -> Self {
        match then {
            None => Self::Never,
            Some(then) => {
                let apart = Duration::from_millis(now.abs_diff(then));
                match then <= now {
                    true => Self::Ago(apart),
                    false => Self::Ahead(apart),
                }
            }
        }
    }

    fn later(self, by: Duration) -> Self {
        match self {
            Self::Ago(ago) => Self::Ago(ago.saturating_add(by)),
            other => other,
        }
    }

    /// Whether it is less than `limit`. What never happened is, and so is what the clock, when it was
    /// set back by up to `tolerance`, put into the future.
    fn is_below(self, limit: Duration, tolerance: Duration) -> bool {
        match self {
            Self::Never => true,
            Self::Ago(ago) => ago < limit,
            Self::Ahead(by) => by < tolerance && !limit.is_zero(),
        }
    }
}

/// What may be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send it, under its key.
    Send,
    /// Ask the provider for it.
    LookUp,
    /// Tell that the provider refused it: nothing stands.
    Refuse,
    /// Nothing is left.
    GiveUp(Why),
}

/// Why nothing is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// The provider may have forgotten the key, so the request could be applied a second time. Or nobody
    /// knows for how long it has the key, because the clock was set back.
    KeyTooOld,
    /// It is older than an intent may get.
    TooOld,
    /// It was tried often enough.
    TooOften,
    /// The provider refused a later attempt, and nobody knows of the earlier one.
    Denied,
    /// The provider neither knows keys nor can be asked.
    NoWayToTell,
    /// The provider said to come back later than anything may be sent.
    ToldToWait,
}

/// What may be done about an intent now.
pub(crate) fn plan(s: &Situation, limits: &Limits) -> Step {
    let send = match s.state {
        State::Pending => may_send(s, limits),
        _ => may_repeat(s, limits),
    };
    match send {
        Ok(()) => Step::Send,
        Err(Why::Denied) if s.state == State::Pending => Step::Refuse,
        Err(_) if s.state != State::Pending && may_look(s, limits) => Step::LookUp,
        Err(why) => Step::GiveUp(why),
    }
}

/// What comes between this moment and the next thing that may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// A wait.
    Wait(Duration),
    /// What the provider asks to wait for is longer than anything may be sent. Bar it, and see what is
    /// left.
    HintDoesNotFit,
    /// Nothing may be done any more: this is how it ends.
    End(Step),
}

/// The wait after an attempt or a look-up. `hint` is what the provider said about when to come back,
/// `jitter` a random number from 0 to 1.
pub(crate) fn rest(s: &Situation, limits: &Limits, hint: Option<Duration>, jitter: f64) -> Rest {
    let tries = s.attempts.saturating_add(s.look_ups);
    let backoff = limits.backoff.wait(tries, jitter);
    let hinted = backoff.max(hint.unwrap_or_default());
    match (
        plan(&s.later(hinted), limits),
        plan(&s.later(backoff), limits),
    ) {
        (Step::Send, _) => Rest::Wait(hinted),
        (_, Step::Send) => Rest::HintDoesNotFit,
        (_, Step::LookUp) => Rest::Wait(s.look_up_wait(backoff)),
        (_, end) => Rest::End(end),
    }
}

/// Whether an absence that a look-up tells of now is final.
pub(crate) fn absence_is_final(s: &Situation) -> bool {
    s.until_absence_is_final() == Some(Duration::ZERO)
}

impl Situation {
    fn later(&self, by: Duration) -> Self {
        Self {
            age: self.age.later(by),
            since_first: self.since_first.later(by),
            since_last: self.since_last.later(by),
            ..*self
        }
    }

    fn until_absence_is_final(&self) -> Option<Duration> {
        let after = self.promises.look_up?.absence_final_after?;
        match self.since_last {
            Age::Ago(ago) => Some(after.saturating_sub(ago)),
            Age::Never | Age::Ahead(_) => None,
        }
    }

    /// The first look-up finds what was applied at once; those after it wait until an absence would say
    /// something.
    fn look_up_wait(&self, backoff: Duration) -> Duration {
        match self.until_absence_is_final() {
            Some(until) if self.look_ups > 0 => backoff.max(until),
            _ => backoff,
        }
    }
}

/// Whether an attempt may be made where no other can stand beside it.
fn may_send(s: &Situation, limits: &Limits) -> Result<(), Why> {
    match s.barred {
        Some(Bar::Denied) => return Err(Why::Denied),
        Some(Bar::ToldToWait) => return Err(Why::ToldToWait),
        None => {}
    }
    if s.attempts >= limits.max_attempts {
        return Err(Why::TooOften);
    }
    // The age is capped for the caller's sake, and a clock's jump is no reason to give up.
    if !s.age.is_below(limits.max_age, Duration::MAX) {
        return Err(Why::TooOld);
    }
    match s.promises.key_retention {
        Some(retention) => {
            // Beyond the margin, an attempt could arrive after the key is forgotten.
            let usable = retention.saturating_sub(limits.retention_margin);
            match s.since_first.is_below(usable, limits.retention_margin) {
                true => Ok(()),
                false => Err(Why::KeyTooOld),
            }
        }
        None => Ok(()),
    }
}

/// Whether an attempt may be made although an earlier one may stand.
fn may_repeat(s: &Situation, limits: &Limits) -> Result<(), Why> {
    match s.promises.key_retention {
        Some(_) => may_send(s, limits),
        None => Err(Why::NoWayToTell),
    }
}

fn may_look(s: &Situation, limits: &Limits) -> bool {
    s.promises.look_up.is_some() && s.look_ups < limits.max_look_ups
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn at(state: State, promises: Promises) -> Situation {
        Situation {
            state,
            attempts: 1,
            look_ups: 0,
            barred: None,
            age: Age::Ago(Duration::from_secs(2)),
            since_first: Age::Ago(Duration::from_secs(1)),
            since_last: Age::Ago(Duration::from_secs(1)),
            promises,
        }
    }

    fn planned(s: Situation) -> Step {
        plan(&s, &Limits::default())
    }

    fn keyed() -> Promises {
        Promises::none().keys_kept_for(DAY)
    }

    #[test]
    fn an_attempt_without_an_answer_is_repeated_looked_up_or_given_up_as_the_provider_promises() {
        let both = keyed().looked_up(None);
        for (promises, step) in [
            (keyed(), Step::Send),
            (both, Step::Send),
            (Promises::none().looked_up(None), Step::LookUp),
            (Promises::none(), Step::GiveUp(Why::NoWayToTell)),
        ] {
            assert_eq!(planned(at(State::Unclear, promises)), step);
            // What nothing stands of may be sent whatever the provider promises.
            assert_eq!(planned(at(State::Pending, promises)), Step::Send);
        }
    }

    #[test]
    fn nothing_is_sent_again_once_its_key_may_be_forgotten() {
        let limits = Limits {
            max_age: 100 * DAY,
            ..Limits::default()
        };
        let kept = DAY - limits.retention_margin;
        for state in [State::Pending, State::Unclear] {
            for (promises, end) in [
                (keyed(), Step::GiveUp(Why::KeyTooOld)),
                (keyed().looked_up(None), Step::LookUp),
            ] {
                let end = match state {
                    State::Pending => Step::GiveUp(Why::KeyTooOld),
                    _ => end,
                };
                let just_before = kept - Duration::from_millis(1);
                for (ago, step) in [(just_before, Step::Send), (kept, end), (DAY, end)] {
                    let s = Situation {
                        since_first: Age::Ago(ago),
                        ..at(state, promises)
                    };
                    assert_eq!(plan(&s, &limits), step, "{state:?} after {ago:?}");
                }
            }
        }
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_key_younger() {
        let margin = i64::try_from(Limits::default().retention_margin.as_millis()).unwrap();
        for (back, step) in [
            (margin - 1, Step::Send),
            (margin, Step::GiveUp(Why::KeyTooOld)),
        ] {
            let s = Situation {
                age: Age::of(Some(back), 0),
                since_first: Age::of(Some(back), 0),
                ..at(State::Unclear, keyed())
            };
            assert_eq!(planned(s), step);
        }
        // Of what was never sent no key can be too old, and a jump of the clock is no reason to stop.
        let s = Situation {
            attempts: 0,
            age: Age::of(Some(100 * margin), 0),
            since_first: Age::Never,
            since_last: Age::Never,
            ..at(State::Pending, keyed())
        };
        assert_eq!(planned(s), Step::Send);
    }

    #[test]
    fn attempts_and_age_are_capped() {
        for (state, promises) in [
            (State::Pending, Promises::none()),
            (State::Unclear, keyed()),
        ] {
            let s = Situation {
                attempts: 8,
                ..at(state, promises)
            };
            assert_eq!(planned(s), Step::GiveUp(Why::TooOften));
            let s = Situation {
                age: Age::Ago(HOUR),
                ..at(state, promises)
            };
            assert_eq!(planned(s), Step::GiveUp(Why::TooOld));
        }
    }

    #[test]
    fn a_denial_is_not_asked_about_again() {
        let denied = |state, promises| Situation {
            barred: Some(Bar::Denied),
            ..at(state, promises)
        };
        assert_eq!(planned(denied(State::Pending, keyed())), Step::Refuse);
        assert_eq!(
            planned(denied(State::Unclear, keyed())),
            Step::GiveUp(Why::Denied)
        );
        assert_eq!(
            planned(denied(State::Unclear, keyed().looked_up(None))),
            Step::LookUp
        );
    }

    #[test]
    fn look_ups_are_capped_too() {
        let s = Situation {
            look_ups: 8,
            ..at(State::Unclear, Promises::none().looked_up(None))
        };
        assert_eq!(planned(s), Step::GiveUp(Why::NoWayToTell));
    }

    #[test]
    fn the_wait_is_the_longer_of_backoff_and_hint_where_the_hint_fits() {
        let limits = Limits::default();
        let s = at(State::Unclear, keyed());
        assert_eq!(
            rest(&s, &limits, None, 0.5),
            Rest::Wait(Duration::from_millis(100))
        );
        let minute = Duration::from_secs(60);
        assert_eq!(rest(&s, &limits, Some(minute), 0.5), Rest::Wait(minute));
        assert_eq!(rest(&s, &limits, Some(2 * HOUR), 0.5), Rest::HintDoesNotFit);
        // A look-up is no attempt: it needs no leave of the provider's.
        let s = at(State::Unclear, Promises::none().looked_up(None));
        assert_eq!(
            rest(&s, &limits, Some(2 * HOUR), 0.5),
            Rest::Wait(Duration::from_millis(100))
        );
        let s = at(State::Unclear, Promises::none());
        assert_eq!(
            rest(&s, &limits, Some(minute), 0.5),
            Rest::End(Step::GiveUp(Why::NoWayToTell))
        );
    }

    #[test]
    fn a_hint_beyond_the_time_for_which_the_key_is_known_does_not_fit() {
        let limits = Limits {
            max_age: 100 * DAY,
            ..Limits::default()
        };
        let s = at(State::Unclear, keyed());
        let fits = DAY / 2;
        assert_eq!(rest(&s, &limits, Some(fits), 0.0), Rest::Wait(fits));
        assert_eq!(rest(&s, &limits, Some(DAY), 0.0), Rest::HintDoesNotFit);
    }

    #[test]
    fn a_second_look_up_waits_until_an_absence_says_something() {
        let limits = Limits::default();
        let promises = Promises::none().looked_up(Some(Duration::from_secs(31)));
        let first = at(State::Unclear, promises);
        assert_eq!(rest(&first, &limits, None, 0.0), Rest::Wait(Duration::ZERO));
        let second = Situation {
            look_ups: 1,
            ..first
        };
        assert_eq!(
            rest(&second, &limits, None, 0.0),
            Rest::Wait(Duration::from_secs(30))
        );
        assert!(!absence_is_final(&second));
        assert!(absence_is_final(&second.later(Duration::from_secs(30))));
        let never = at(State::Unclear, Promises::none().looked_up(None));
        assert!(!absence_is_final(&never.later(DAY)));
    }
}
