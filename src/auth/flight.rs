//! One renewal at a time, for everybody who waits.
//!
//! ```text
//! nothing ──a request needs a token──▶ in flight ──landed──▶ nothing
//! ```
//!
//! A flight is a task of its own. A caller that leaves does not end it, and every wait in it has a
//! limit.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use super::{Grant, OAuth, Source, store::Credentials};
use crate::credentials::{AccessToken, Challenge, CredentialsError, Refusal};

/// The wait after a failed renewal before the next is tried: half a second, doubled up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const FIRST_WAIT: Duration = Duration::from_millis(500);

type Landed = Result<Option<AccessToken>, CredentialsError>;

/// What a flight is to bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// A token that is good.
    Token,
    /// A token that may do more than the refused one.
    Scope {
        scope: String,
        refused: Option<AccessToken>,
    },
}

/// What a source knows between two requests.
#[derive(Default)]
pub(super) struct State {
    pub(super) held: Option<Credentials>,
    /// Credentials that the store did not take.
    pub(super) unsaved: bool,
    /// The token that the server refused.
    refused: Option<AccessToken>,
    /// The refresh token that the authorisation server refused.
    pub(super) dead: Option<String>,
    /// The header of the last refusal.
    pub(super) challenge: Option<String>,
    flight: Option<(Goal, watch::Receiver<Option<Landed>>)>,
    failed: Option<Failure>,
    /// rmcp's manager, once it has discovered and is set up for the credentials held.
    pub(super) manager: Option<Box<super::issuer::Manager>>,
}

struct Failure {
    error: CredentialsError,
    until: Instant,
    wait: Duration,
}

/// What there is without waiting.
pub(super) enum Standing {
    /// A token.
    Good(AccessToken),
    /// A token that is to be renewed and is good meanwhile.
    Early(AccessToken),
    /// Nothing, and it was tried a moment ago.
    Failed(CredentialsError),
    /// Nothing.
    None,
}

impl State {
    pub(super) fn standing(&self, margin: Duration) -> Standing {
        let failed = self.failed.as_ref().filter(|f| Instant::now() < f.until);
        let held = self.held.as_ref().filter(|c| self.may_use(c));
        if let Some((held, token)) = held.and_then(|c| Some((c, c.token()?))) {
            match held.remaining(margin) {
                Remaining::Enough => return Standing::Good(token),
                Remaining::Little if failed.is_some() => return Standing::Good(token),
                Remaining::Little => return Standing::Early(token),
                Remaining::Nothing if failed.is_some() && !held.has_expired() => {
                    return Standing::Good(token);
                }
                Remaining::Nothing => {}
            }
        }
        failed.map_or(Standing::None, |f| Standing::Failed(f.error.clone()))
    }

    /// Whether the server has not refused its token.
    pub(super) fn may_use(&self, credentials: &Credentials) -> bool {
        let token = credentials.token();
        token.is_some() && token != self.refused
    }

    pub(super) fn refused(&mut self, refusal: &Refusal) {
        let held = self.held.as_ref().and_then(Credentials::token);
        if refusal.token != held {
            // The answer is late: there is another token by now.
            return;
        }
        if refusal.status == 401 {
            self.refused.clone_from(&refusal.token);
            self.challenge.clone_from(&refusal.header);
        } else if refusal.is_scope() {
            self.challenge.clone_from(&refusal.header);
        }
    }

    pub(super) fn hold(&mut self, credentials: &Credentials) -> Option<AccessToken> {
        self.held = Some(credentials.clone());
        self.failed = None;
        credentials.token()
    }

    pub(super) fn required(&self) -> CredentialsError {
        let challenge = self.challenge.as_deref().and_then(Challenge::parse);
        CredentialsError::AuthorizationRequired {
            challenge: challenge.map(Box::new),
        }
    }

    fn landed(&mut self, landed: &Landed) {
        self.flight = None;
        match landed {
            // What is required now can be there in a moment: another process may be asking.
            Ok(_) | Err(CredentialsError::AuthorizationRequired { .. }) => {}
            Err(error) => self.fail(error),
        }
    }

    /// Nothing is tried again for a while.
    pub(super) fn fail(&mut self, error: &CredentialsError) {
        let wait = self.failed.take().map_or(FIRST_WAIT, |f| f.wait * 2);
        let wait = wait.min(LONGEST_WAIT);
        self.failed = Some(Failure {
            error: error.clone(),
            until: Instant::now() + wait,
            wait,
        });
    }
}

/// How much of a token's life is left.
pub(super) enum Remaining {
    Enough,
    /// Less than the margin, and more than half of it.
    Little,
    Nothing,
}

/// Ends a flight, also one that panics.
struct Landing {
    source: Arc<Source>,
    told: watch::Sender<Option<Landed>>,
    landed: Option<Landed>,
}

impl Landing {
    fn land(mut self, landed: Landed) {
        self.landed = Some(landed);
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let landed = self.landed.take().unwrap_or_else(|| {
            Err(CredentialsError::Source(
                "the renewal of the credentials was broken off".into(),
            ))
        });
        self.source.state().landed(&landed);
        self.told.send_replace(Some(landed));
    }
}

impl OAuth {
    /// The flight with this goal, begun where there is none. Where one with another goal is under
    /// way, it is that one.
    pub(super) fn begin_flight(&self, goal: &Goal) -> (Goal, watch::Receiver<Option<Landed>>) {
        let (told, flight) = {
            let mut state = self.0.state();
            if let Some(flight) = &state.flight {
                return flight.clone();
            }
            let (told, landed) = watch::channel(None);
            let flight = (goal.clone(), landed);
            state.flight = Some(flight.clone());
            (told, flight)
        };
        let landing = Landing {
            source: Arc::clone(&self.0),
            told,
            landed: None,
        };
        let (oauth, its_goal) = (self.clone(), goal.clone());
        // Where the runtime is at its end the flight lands in here, which takes the state's lock.
        tokio::spawn(async move {
            let landed = oauth.obtain(&its_goal).await;
            if let Err(error) = &landed {
                tracing::debug!(%error, "no access token");
            }
            landing.land(landed);
        });
        flight
    }

    /// Waits for what a flight with this goal brings.
    pub(super) async fn fly(&self, goal: Goal) -> Landed {
        loop {
            let (its_goal, mut landed) = self.begin_flight(&goal);
            let landed = match landed.wait_for(Option::is_some).await {
                Ok(landed) => landed.clone(),
                Err(_) => None,
            };
            if its_goal == goal {
                let broken = || Err(CredentialsError::Source("the renewal ended".into()));
                return landed.unwrap_or_else(broken);
            }
        }
    }

    async fn obtain(&self, goal: &Goal) -> Landed {
        let source = &self.0;
        let stored = self.load().await?;
        if let Some(stored) = &stored
            && self.brings(stored, goal)
        {
            return Ok(source.state().hold(stored));
        }
        if let (Goal::Token, Some(stored)) = (goal, &stored) {
            if let Some(token) = self.at_first_look(stored) {
                return Ok(Some(token));
            }
            match self.refresh(stored).await {
                Ok(Some(token)) => return Ok(Some(token)),
                Ok(None) => {
                    if let Some(token) = self.bear(stored, None) {
                        return Ok(Some(token));
                    }
                }
                Err(error) => return self.bear(stored, Some(&error)).map(Some).ok_or(error),
            }
        }
        let step_up = match goal {
            Goal::Token => None,
            Goal::Scope { scope, .. } => Some(scope.clone()),
        };
        if source.spec.grant == Grant::ClientCredentials {
            return self.exchange_secret(step_up).await;
        }
        let challenged = source.state().challenge.is_some();
        match (&source.spec.ask, &stored) {
            // A server that has not refused anything may want no token at all.
            (_, None) if !challenged => Ok(None),
            (Some(ask), _) => self.ask(&**ask, step_up).await,
            (None, None) => Ok(None),
            (None, Some(_)) => Err(source.state().required()),
        }
    }

    /// What the store has when it is first read, where it is early to renew it: the next request
    /// sees that, and does not wait for it either.
    fn at_first_look(&self, stored: &Credentials) -> Option<AccessToken> {
        let mut state = self.0.state();
        let is_early = matches!(stored.remaining(self.0.spec.margin), Remaining::Little);
        match is_early && state.held.is_none() {
            true => state.hold(stored),
            false => None,
        }
    }

    /// A token that is good for a moment yet, where no new one could be had.
    fn bear(&self, stored: &Credentials, error: Option<&CredentialsError>) -> Option<AccessToken> {
        let mut state = self.0.state();
        if !state.may_use(stored) || stored.has_expired() {
            return None;
        }
        state.held = Some(stored.clone());
        if let Some(error) = error {
            state.fail(error);
        }
        stored.token()
    }

    /// Whether these credentials are what the flight is for: another process may have been first.
    pub(super) fn brings(&self, stored: &Credentials, goal: &Goal) -> bool {
        if !self.0.state().may_use(stored)
            || !matches!(stored.remaining(self.0.spec.margin), Remaining::Enough)
        {
            return false;
        }
        match goal {
            Goal::Token => true,
            Goal::Scope { scope, refused } => stored.token() != *refused && stored.covers(scope),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(token: &str) -> Credentials {
        let response = serde_json::json!({"access_token": token, "token_type": "bearer"});
        let granted = serde_json::json!({"client_id": "c", "token_response": response});
        serde_json::from_value(serde_json::json!({ "granted": granted })).unwrap()
    }

    fn refusal(token: &str) -> Refusal {
        Refusal {
            token: Some(AccessToken::new(token)),
            status: 401,
            header: None,
        }
    }

    #[test]
    fn a_late_refusal_of_an_older_token_says_nothing_about_the_newer_one() {
        let standing = |state: &State| state.standing(Duration::from_secs(60));
        let mut state = State::default();
        state.hold(&credentials("new"));
        state.refused(&refusal("old"));
        assert!(matches!(standing(&state), Standing::Good(_)));
        state.refused(&refusal("new"));
        assert!(matches!(standing(&state), Standing::None));
        state.refused(&refusal("old"));
        assert!(
            matches!(standing(&state), Standing::None),
            "it stays refused"
        );
    }

    #[test]
    fn a_flight_that_a_runtime_at_its_end_does_not_take_is_over_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let handle = runtime.handle().clone();
        drop(runtime);
        let _in_it = handle.enter();
        let oauth = OAuth::for_server("http://h.example/mcp").build().unwrap();
        let (_, landed) = oauth.begin_flight(&Goal::Token);
        assert!(matches!(*landed.borrow(), Some(Err(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_are_followed_by_growing_waits() {
        let error = CredentialsError::Unavailable("refresh");
        let mut state = State::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            state.landed(&Err(error.clone()));
            let began = Instant::now();
            while matches!(state.standing(Duration::ZERO), Standing::Failed(_)) {
                tokio::time::advance(Duration::from_millis(100)).await;
            }
            waits.push(began.elapsed());
        }
        assert_eq!(waits[0], FIRST_WAIT);
        assert_eq!(waits[1], FIRST_WAIT * 2);
        assert_eq!(waits[7], LONGEST_WAIT);
        state.hold(&credentials("new"));
        assert!(matches!(state.standing(Duration::ZERO), Standing::Good(_)));
    }
}
