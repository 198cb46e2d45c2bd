//! Starting a session: transport, handshake, and what a failed one was.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use rmcp::{
    ClientServiceExt as _, RoleClient,
    model::{ClientConfig, ErrorCode, ProtocolVersion, TASKS_EXTENSION_ID},
    service::{ClientInitializeError, ClientLifecycleMode, RunningService},
    transport::Transport,
};
use tokio::io::AsyncRead;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Session, SessionArgs,
    host_side::{HostSide, lists_to},
    kept::lend,
    offer::{Offering, version},
};
use crate::{
    error::{Source, StartFailure},
    operation::Ownership,
    spec::{
        BoxError, ConnectionSpec, Era, OpenStream, OpenTransport, Panicked, Settings, SpecError,
        TransportSpec, WireOrder,
    },
    telemetry::FarEnd,
    transport::{
        ExitWatch, Pulse,
        ordered::{OrderedOptions, OrderedTransport},
        server_error,
        witness::WitnessTransport,
    },
};
#[cfg(feature = "http")]
use crate::{
    evidence::WireFault,
    transport::http::{Endpoint, Handshake, Posts},
};
#[cfg(feature = "stdio")]
use crate::{spec::StdioSpec, transport::stdio::ServerProcess};

/// How long a failed start waits for the process to exit: the reason is often on its stderr, a
/// moment after the end of its stdout.
#[cfg(feature = "stdio")]
const REASON_ON_STDERR: Duration = Duration::from_millis(200);

/// A spec, checked and ready to open transports.
pub(crate) enum Connector {
    #[cfg(feature = "stdio")]
    Stdio(StdioSpec),
    #[cfg(feature = "http")]
    Http(Endpoint),
    Custom(Arc<dyn OpenTransport>, WireOrder),
    Stream(Arc<dyn OpenStream>),
}

impl Connector {
    pub(crate) fn new(spec: &ConnectionSpec) -> Result<Self, SpecError> {
        match &spec.transport {
            #[cfg(feature = "stdio")]
            TransportSpec::Stdio(spec) => Ok(Self::Stdio(spec.clone())),
            #[cfg(not(feature = "stdio"))]
            TransportSpec::Stdio(_) => Err(SpecError::NotCompiled { feature: "stdio" }),
            #[cfg(feature = "http")]
            TransportSpec::Http(spec) => Endpoint::new(spec).map(Self::Http),
            #[cfg(not(feature = "http"))]
            TransportSpec::Http(_) => Err(SpecError::NotCompiled { feature: "http" }),
            TransportSpec::Custom(open, order) => Ok(Self::Custom(Arc::clone(open), *order)),
            TransportSpec::Stream(open) => Ok(Self::Stream(Arc::clone(open))),
        }
    }

    /// Where its requests go, as far as a span tells of it.
    pub(crate) fn far_end(&self) -> FarEnd {
        match self {
            #[cfg(feature = "stdio")]
            Self::Stdio(_) => FarEnd::pipe(),
            #[cfg(feature = "http")]
            Self::Http(endpoint) => endpoint.far_end(),
            Self::Custom(..) | Self::Stream(_) => FarEnd::default(),
        }
    }
}

pub(super) type Service = RunningService<RoleClient, HostSide>;

/// What there is to stop once a session was begun, whether or not it ever started.
#[derive(Default)]
pub(super) struct Running {
    pub(super) service: Option<Service>,
    #[cfg(feature = "stdio")]
    pub(super) process: Option<ServerProcess>,
    /// Stops the writer of a byte stream.
    pub(super) stop_writing: CancellationToken,
}

/// Why a session did not start.
pub(super) struct NotStarted {
    pub(super) failure: StartFailure,
    pub(super) source: Option<Source>,
    pub(super) exit: Option<ExitWatch>,
}

impl From<StartFailure> for NotStarted {
    fn from(failure: StartFailure) -> Self {
        Self {
            failure,
            source: None,
            exit: None,
        }
    }
}

/// Opens the transport and negotiates. What was begun is in `running` at every moment, so that it
/// can be stopped when this future is dropped or fails.
pub(super) async fn start(
    args: &SessionArgs,
    running: &mut Running,
) -> Result<Session, NotStarted> {
    let (settings, pulse) = (&*args.settings, &args.pulse);
    let host = HostSide::new(args).map_err(|Panicked| StartFailure::HandlerPanicked)?;
    match &*args.connector {
        #[cfg(feature = "stdio")]
        Connector::Stdio(spec) => {
            let spawned = ServerProcess::spawn(spec, settings.limits.stderr_tail_bytes);
            let (process, pipes) = spawned.map_err(|(failure, error)| NotStarted {
                failure,
                source: Some(Arc::new(error)),
                exit: None,
            })?;
            let mut exit = process.exit_watch();
            let options = OrderedOptions {
                exit: Some(exit.clone()),
                stop_writing: process.close_stdin.clone(),
                ..ordered_options(settings, running)
            };
            running.process = Some(process);
            let transport =
                OrderedTransport::new(pipes.stdout, pipes.stdin, Arc::clone(pulse), options);
            let started = negotiate_stream(transport, host, args, running).await;
            if started.is_err() {
                // Without the status the failure is told all the same.
                let _ = tokio::time::timeout(REASON_ON_STDERR, exit.exited()).await;
            }
            started.map_err(|error| NotStarted {
                exit: Some(exit),
                ..explain(error)
            })
        }
        #[cfg(feature = "http")]
        Connector::Http(endpoint) => negotiate_http(endpoint, host, args, running).await,
        Connector::Custom(open, order) => {
            let open = Arc::clone(open);
            let opened = guarded(async move { open.open().await }).await?;
            let transport = WitnessTransport::new(opened, *order, Arc::clone(pulse));
            negotiate(transport, host, settings, &settings.era, pulse, running)
                .await
                .map(|(session, _)| session)
                .map_err(explain)
        }
        Connector::Stream(open) => {
            let open = Arc::clone(open);
            let (read, write) = guarded(async move { open.open().await }).await?;
            let options = ordered_options(settings, running);
            let transport = OrderedTransport::new(read, write, Arc::clone(pulse), options);
            negotiate_stream(transport, host, args, running)
                .await
                .map_err(explain)
        }
    }
}

/// How long the handshake's `server/discover` may take before the server is taken for an older one;
/// with a pinned era there is no older one to be taken for.
fn discover_limit(settings: &Settings) -> Option<Duration> {
    (settings.era == Era::Automatic).then_some(settings.limits.discover)
}

fn ordered_options(settings: &Settings, running: &Running) -> OrderedOptions {
    OrderedOptions {
        max_frame_bytes: settings.limits.max_answer_bytes,
        discover_limit: discover_limit(settings),
        exit: None,
        stop_writing: running.stop_writing.clone(),
    }
}

/// Runs the user's factory in a task of its own, so that a panic in it is an error here. The call
/// of the factory is part of `opening`: it may panic before it has made its future.
async fn guarded<T: Send + 'static>(
    opening: impl Future<Output = Result<T, BoxError>> + Send + 'static,
) -> Result<T, NotStarted> {
    // Dropped with the start that ran out of time.
    match AbortOnDropHandle::new(tokio::spawn(opening)).await {
        Ok(Ok(opened)) => Ok(opened),
        Ok(Err(error)) => Err(NotStarted {
            failure: StartFailure::Factory("returned an error"),
            source: Some(Arc::from(error)),
            exit: None,
        }),
        Err(_) => Err(StartFailure::Factory("panicked").into()),
    }
}

/// Negotiates over a byte stream. A server that was slow to start may have been taken for an older
/// one and say that it is not; the same process is then asked once more, as one of the newer era.
async fn negotiate_stream<R>(
    transport: OrderedTransport<R>,
    host: HostSide,
    args: &SessionArgs,
    running: &mut Running,
) -> Result<Session, ClientInitializeError>
where
    R: AsyncRead + Send + Unpin + 'static,
{
    let (settings, pulse) = (&*args.settings, &args.pulse);
    let lane = transport.lane();
    let (lent, mut returned) = lend(transport);
    let negotiated = negotiate(lent, host, settings, &settings.era, pulse, running).await;
    let (mut session, client) = match negotiated {
        Err(error) if serves_the_newer_era_alone(&error) => {
            let (Ok(transport), Ok(host)) = (returned.try_recv(), HostSide::new(args)) else {
                return Err(error);
            };
            negotiate(transport, host, settings, &Era::Discover, pulse, running).await?
        }
        done => done?,
    };
    session.go_by(lane, client, lists_to(args));
    Ok(session)
}

/// Negotiates over HTTP, and asks once more for the same reason. rmcp's worker ends with its
/// handshake, so that the second one has a worker of its own.
#[cfg(feature = "http")]
async fn negotiate_http(
    endpoint: &Endpoint,
    host: HostSide,
    args: &SessionArgs,
    running: &mut Running,
) -> Result<Session, NotStarted> {
    let (settings, pulse) = (&*args.settings, &args.pulse);
    let (limits, probe) = (&settings.limits, discover_limit(settings));
    let (transport, handshake) = endpoint.open(Arc::clone(pulse), limits, probe);
    let open_lane = |mut session: Session, client, (posts, lane): (Posts, _)| {
        posts.begin(endpoint, &session.revision);
        session.go_by(lane, client, lists_to(args));
        session
    };
    let way = transport.lane();
    let (lent, mut returned) = lend(transport);
    let error = match negotiate(lent, host, settings, &settings.era, pulse, running).await {
        Ok((session, client)) => {
            handshake.standing_stream().await;
            return Ok(open_lane(session, client, way));
        }
        Err(error) => error,
    };
    let again = if serves_the_newer_era_alone(&error) {
        returned.try_recv().ok().zip(HostSide::new(args).ok())
    } else {
        None
    };
    let Some((failed, host)) = again else {
        return Err(explain_http(error, &handshake));
    };
    let (transport, handshake) = endpoint.open_again(failed, limits);
    let way = transport.lane();
    negotiate(transport, host, settings, &Era::Discover, pulse, running)
        .await
        .map(|(session, client)| open_lane(session, client, way))
        .map_err(|error| explain_http(error, &handshake))
}

/// Whether the server refused the `initialize` of the fall-back, which there is only with the
/// automatic era, because it takes the newer era alone.
fn serves_the_newer_era_alone(error: &ClientInitializeError) -> bool {
    let ClientInitializeError::LegacyFallbackFailed { fallback, .. } = error else {
        return false;
    };
    let ClientInitializeError::JsonRpcError(refused) = &**fallback else {
        return false;
    };
    let supported = refused.data.as_ref().and_then(|d| d.get("supported"));
    let supported = supported.and_then(|s| s.as_array());
    refused.code == ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
        && supported.is_some_and(|s| {
            s.iter()
                .any(|v| v == ProtocolVersion::V_2026_07_28.as_str())
        })
}

async fn negotiate<T>(
    transport: T,
    mut host: HostSide,
    settings: &Settings,
    era: &Era,
    pulse: &Arc<Pulse>,
    running: &mut Running,
) -> Result<(Session, ClientConfig), ClientInitializeError>
where
    T: Transport<RoleClient> + 'static,
{
    let config = &mut host.offered;
    // The newest revision that has an `initialize`: offered a newer one, some servers echo it.
    config.protocol_version = ProtocolVersion::LATEST_WITH_INITIALIZE;
    if settings.tasks {
        let extensions = config.capabilities.extensions.get_or_insert_default();
        extensions.entry(TASKS_EXTENSION_ID.to_owned()).or_default();
    }
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    let lifecycle = match era {
        Era::Automatic => ClientLifecycleMode::Auto {
            preferred_versions,
            legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
        },
        Era::Discover => ClientLifecycleMode::Discover { preferred_versions },
        Era::Initialize(revision) => {
            config.protocol_version = version(revision.as_str());
            ClientLifecycleMode::Initialize
        }
    };
    let client = host.offered.clone();
    let (transport, offer) = Offering::new(transport, &host);
    let withheld = Arc::clone(&host.withheld);
    let service = host.serve_with_lifecycle(transport, lifecycle).await?;
    withheld.show_greeting(service.peer());
    let negotiated = service
        .peer_info()
        .map(|info| info.protocol_version.clone());
    let peer = service.peer().clone();
    running.service = Some(service);
    let revision = negotiated.unwrap_or_default();
    let allowed = offer.allowed(era);
    if !allowed.contains(&revision) {
        return Err(ClientInitializeError::NoCompatibleProtocolVersion {
            client_supported: allowed,
            server_supported: vec![revision],
        });
    }
    let session = Session::new(peer, revision, Ownership::Framework, Arc::clone(pulse));
    Ok((session, client))
}

fn explain(error: ClientInitializeError) -> NotStarted {
    use ClientInitializeError as E;
    let failure = match &error {
        E::ConnectionClosed(_) => StartFailure::EndedDuringHandshake,
        E::TransportError { .. } => StartFailure::EndedDuringHandshake,
        E::JsonRpcError(error) => StartFailure::Refused(server_error(error.clone())),
        E::NoCompatibleProtocolVersion {
            client_supported,
            server_supported,
        } => StartFailure::Revision {
            offered: list(server_supported),
            allowed: list(client_supported),
        },
        E::Cancelled => StartFailure::Stopped,
        E::LegacyFallbackFailed { .. } => {
            let E::LegacyFallbackFailed { fallback, .. } = error else {
                return StartFailure::NotUnderstood.into();
            };
            return explain(*fallback);
        }
        _ => StartFailure::NotUnderstood,
    };
    // rmcp's own text repeats what the server sent; its kind says enough.
    let source = Arc::new(std::io::Error::new(
        ErrorKind::ConnectionAborted,
        failure.to_string(),
    ));
    NotStarted {
        failure,
        source: Some(source),
        exit: None,
    }
}

fn list(versions: &[ProtocolVersion]) -> String {
    versions
        .iter()
        .map(ProtocolVersion::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(feature = "http")]
fn explain_http(error: ClientInitializeError, handshake: &Handshake) -> NotStarted {
    let mut not_started = explain(error);
    let Some(report) = handshake.last() else {
        return not_started;
    };
    // A refusal of the credentials or of the rate is one, whatever stands in its body: what to do
    // next is in its headers.
    let by_status = matches!(not_started.failure, StartFailure::Refused(_))
        && matches!(report.status, Some(401 | 403 | 429));
    if by_status || not_started.failure == StartFailure::EndedDuringHandshake {
        let failed = report.failed_status();
        not_started.failure = match (report.fault, failed) {
            (Some(WireFault::ConnectFailed(why) | WireFault::ExchangeBroke(why)), _) => {
                StartFailure::Unreachable(why)
            }
            (Some(WireFault::NoToken(error)), _) => StartFailure::Credentials(error),
            (Some(_), _) => StartFailure::NotUnderstood,
            (None, Some(status)) => StartFailure::Status {
                status,
                challenge: report.challenge,
                retry_after: report.retry_after,
            },
            (None, None) => StartFailure::EndedDuringHandshake,
        };
        not_started.source = None;
    }
    not_started
}
