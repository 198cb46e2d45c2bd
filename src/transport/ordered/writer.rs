//! The one writer of a byte stream, which is its witness.

use std::sync::Arc;

use rmcp::model::{ClientJsonRpcMessage, ErrorCode, ServerJsonRpcMessage};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::made_up_error;
use crate::{
    evidence::{DispatchCell, WireFault, WireReport},
    transport::Pulse,
};

pub(super) struct Outgoing {
    pub(super) message: ClientJsonRpcMessage,
    pub(super) cell: Option<Arc<DispatchCell>>,
    /// The id as rmcp knows it, to release its waiter should the request be dropped.
    pub(super) id: Option<i64>,
}

pub(super) struct Writer<W> {
    pub(super) stream: W,
    pub(super) outgoing: mpsc::UnboundedReceiver<Outgoing>,
    pub(super) releases: mpsc::UnboundedSender<ServerJsonRpcMessage>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) failed: CancellationToken,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(super) async fn run(mut self) {
        let mut bytes = Vec::with_capacity(1_024);
        while let Some(Outgoing { message, cell, id }) = self.outgoing.recv().await {
            bytes.clear();
            if let Err(error) = serde_json::to_writer(&mut bytes, &message) {
                if let Some(cell) = &cell {
                    let fault = Some(WireFault::Unencodable(error.to_string()));
                    cell.report(WireReport {
                        fault,
                        ..WireReport::default()
                    });
                }
                self.release(id);
                continue;
            }
            bytes.push(b'\n');
            if cell.as_ref().is_some_and(|cell| !cell.begin_write()) {
                self.release(id);
                continue;
            }
            let written = async {
                self.stream.write_all(&bytes).await?;
                self.stream.flush().await
            };
            if written.await.is_err() || self.pulse.is_ended() {
                self.failed.cancel();
                return;
            }
            if let Some(cell) = &cell {
                cell.finish_write();
            }
            if bytes.capacity() > 1024 * 1024 {
                bytes = Vec::with_capacity(1_024);
            }
        }
    }

    /// Lets rmcp forget a request that will never be answered, because it was never sent.
    fn release(&self, id: Option<i64>) {
        if let Some(id) = id {
            // The reader is gone only when the session is.
            let _ = self
                .releases
                .send(made_up_error(id, ErrorCode::INTERNAL_ERROR));
        }
    }
}
