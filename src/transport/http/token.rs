//! The access token of each request, and what its refusal sets going.

use ::http::HeaderMap;

use super::{HttpClient, reading::challenges};
use crate::{
    credentials::AccessToken,
    evidence::{DispatchCell, WireFault, WireReport},
};

/// Says that a request waits for its token, for as long as it lives.
struct Waits<'a>(Option<&'a DispatchCell>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(cell) = self.0 {
            cell.note_wait_for_token(false);
        }
    }
}

impl HttpClient {
    /// The token to send, had before anything is written. An error without a fault: the session
    /// ended meanwhile.
    pub(super) async fn token(
        &self,
        cell: Option<&DispatchCell>,
    ) -> Result<Option<AccessToken>, Option<WireFault>> {
        let Some(tokens) = &self.tokens else {
            return Ok(None);
        };
        if let Some(cell) = cell {
            cell.note_wait_for_token(true);
        }
        let _waits = Waits(cell);
        tokio::select! {
            biased;
            () = self.pulse.ended() => Err(None),
            token = tokens.0.token() => token.map_err(|e| Some(WireFault::NoToken(e))),
        }
    }

    /// Notes the challenge, and tells the source of the token what became of it.
    pub(super) fn tell_refusal(
        &self,
        report: &mut WireReport,
        token: Option<AccessToken>,
        headers: &HeaderMap,
    ) {
        report.challenge = challenges(headers);
        if matches!(report.status, Some(401 | 403)) {
            report.refused_token = token;
        }
        if let (Some(tokens), Some(refusal)) = (&self.tokens, report.refusal()) {
            tokens.0.refused(&refusal);
        }
    }

    /// Whether the handshake was just refused and may go out once more, with another token.
    pub(super) async fn renewed_after_the_handshake(&self) -> bool {
        let refusal = self.handshake.last().and_then(|report| report.refusal());
        let (Some(tokens), Some(refusal)) = (&self.tokens, refusal) else {
            return false;
        };
        if !self.resend_after_401 || (refusal.status == 403 && !refusal.is_scope()) {
            return false;
        }
        tokio::select! {
            biased;
            () = self.pulse.ended() => false,
            renewed = tokens.0.renewed(&refusal) => renewed.is_ok(),
        }
    }
}
