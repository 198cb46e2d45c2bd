//! Sending a refused operation once more, with credentials that the server has not refused.

use super::{
    attempt::{Without, cancelled},
    operation::Operation,
};

impl Operation<'_> {
    /// Whether the operation was refused for its credentials and its connection's own setting
    /// allows it to be sent once more, with the others that were just had.
    pub(super) async fn has_fresh_credentials(&self, without: &Without) -> bool {
        let Some(tokens) = &self.line.settings.resend_with else {
            return false;
        };
        let refusal = without.report.refusal();
        let Some(refusal) = refusal.filter(|r| r.status == 401 || r.is_scope()) else {
            return false;
        };
        tokio::select! {
            biased;
            () = cancelled(&self.times) => false,
            () = self.line.closing.cancelled() => false,
            () = self.times.spent() => false,
            renewed = tokens.0.renewed(&refusal) => renewed.is_ok(),
        }
    }
}
