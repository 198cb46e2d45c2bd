//! One POST, as far as its message tells.

use std::sync::Arc;

use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, GetExtensions as _, GetMeta as _, JsonRpcMessage,
    RequestId,
};

use crate::{
    evidence::{DispatchCell, WireReport},
    transport::{
        decode::Wanted,
        witness::{Outlives, cell_of},
    },
};

/// One POST: where its report goes, and what kind of message it carries.
pub(super) struct Exchange {
    pub(super) cell: Option<Arc<DispatchCell>>,
    pub(super) request: Option<RequestId>,
    /// The handshake's `server/discover`, which a server may be too old for.
    pub(super) may_fall_back: bool,
    pub(super) wanted: Wanted,
    pub(super) is_handshake: bool,
    pub(super) can_resume: bool,
    pub(super) in_session: bool,
    /// Its answer is wanted also after it was cancelled.
    pub(super) outlives: bool,
}

impl Exchange {
    pub(super) fn of(message: &ClientJsonRpcMessage, in_session: bool, falls_back: bool) -> Self {
        let mut exchange = Self {
            cell: cell_of(message),
            request: None,
            may_fall_back: false,
            wanted: Wanted::Other,
            is_handshake: false,
            can_resume: true,
            in_session,
            outlives: false,
        };
        if let JsonRpcMessage::Request(r) = message {
            exchange.request = Some(r.id.clone());
            // A later `server/discover` is a probe, and has a cell.
            let is_discover =
                exchange.cell.is_none() && matches!(r.request, ClientRequest::DiscoverRequest(_));
            exchange.may_fall_back = falls_back && is_discover;
            exchange.is_handshake =
                is_discover || matches!(r.request, ClientRequest::InitializeRequest(_));
            exchange.wanted = Wanted::by(&r.request);
            exchange.outlives = r.request.extensions().get::<Outlives>().is_some();
            exchange.can_resume = r
                .request
                .get_meta()
                .protocol_version()
                .is_none_or(|v| v.has_initialize());
        }
        exchange
    }

    /// A tool call on the lane.
    pub(super) fn on_lane(
        number: i64,
        cell: Option<Arc<DispatchCell>>,
        in_session: bool,
        can_resume: bool,
    ) -> Self {
        Self {
            cell,
            request: Some(RequestId::Number(number)),
            may_fall_back: false,
            wanted: Wanted::Tool,
            is_handshake: false,
            can_resume,
            in_session,
            outlives: false,
        }
    }

    /// What is reported of it before anything is known.
    pub(super) fn report(&self) -> WireReport {
        WireReport {
            in_session: self.in_session,
            ..WireReport::default()
        }
    }

    /// Whether this is the request of this number.
    pub(super) fn asked(&self, id: i64) -> bool {
        self.request == Some(RequestId::Number(id))
    }
}
