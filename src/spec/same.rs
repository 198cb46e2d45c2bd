//! Whether two specs say the same, as far as a file can say it. Each field is named here, so that a
//! new one is a decision.

use super::{ConnectionSpec, HttpSpec, Settings, StdioSpec, TransportSpec};

impl ConnectionSpec {
    /// Whether a connection with this spec would be as good as one with the other. What only code
    /// can set is not looked at.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let transport = match (&self.transport, &other.transport) {
            (TransportSpec::Stdio(this), TransportSpec::Stdio(that)) => this.is_same(that),
            (TransportSpec::Http(this), TransportSpec::Http(that)) => this.is_same(that),
            // What code builds cannot be compared.
            _ => false,
        };
        transport && self.settings.is_same(&other.settings)
    }
}

impl StdioSpec {
    fn is_same(&self, other: &Self) -> bool {
        let Self {
            command,
            args,
            env,
            cwd,
            inherit_env,
            // How it is written is not what it says.
            written_command: _,
            written_cwd: _,
        } = self;
        *command == other.command
            && *args == other.args
            && *env == other.env
            && *cwd == other.cwd
            && *inherit_env == other.inherit_env
    }
}

impl HttpSpec {
    fn is_same(&self, other: &Self) -> bool {
        let Self {
            url,
            headers,
            bearer,
            tokens: _,
            tokens_of_host,
            resend_after_401,
            said_credentials,
            http2_prior_knowledge,
            written_url: _,
        } = self;
        *url == other.url
            && *headers == other.headers
            && *bearer == other.bearer
            && *tokens_of_host == other.tokens_of_host
            && *resend_after_401 == other.resend_after_401
            && *said_credentials == other.said_credentials
            && *http2_prior_knowledge == other.http2_prior_knowledge
    }
}

impl Settings {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let Self {
            limits,
            recovery,
            era,
            start,
            contracts,
            repeats,
            rules,
            keep_alive,
            trace_context,
            resend_with: _,
            handler: _,
            handled: _,
            tasks,
        } = self;
        *limits == other.limits
            && *recovery == other.recovery
            && *era == other.era
            && *start == other.start
            && *contracts == other.contracts
            && *repeats == other.repeats
            && *rules == other.rules
            && *keep_alive == other.keep_alive
            && *trace_context == other.trace_context
            && *tasks == other.tasks
    }
}
