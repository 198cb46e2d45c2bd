//! The stdio transport: one frame is one line and one write.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::{Arc, mpsc};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use crate::engine::{Context, Out, Server, default_steps, pick, wire_id};
use crate::protocol;
use crate::script::Step;

#[derive(Debug)]
enum Order {
    Write(Vec<u8>, Option<oneshot::Sender<()>>),
    Close(oneshot::Sender<()>),
}

/// The one writer of standard output: a thread, so that a full pipe blocks nobody else.
#[derive(Debug, Clone)]
pub(crate) struct StdioOut(mpsc::Sender<Order>);

impl StdioOut {
    pub(crate) fn start() -> std::io::Result<Self> {
        let mut file = Some(File::from(std::io::stdout().as_fd().try_clone_to_owned()?));
        let (orders, inbox) = mpsc::channel();
        std::thread::Builder::new()
            .name("stdout".to_owned())
            .spawn(move || {
                for order in inbox {
                    match order {
                        Order::Write(bytes, done) => {
                            if let Some(file) = &mut file {
                                let _ = file.write_all(&bytes);
                            }
                            if let Some(done) = done {
                                let _ = done.send(());
                            }
                        }
                        Order::Close(done) => {
                            drop(file.take());
                            close_fd(1);
                            let _ = done.send(());
                        }
                    }
                }
            })?;
        Ok(Self(orders))
    }

    /// Writes and waits until it is written.
    pub(crate) async fn write(&self, bytes: Vec<u8>) {
        let (done, written) = oneshot::channel();
        let _ = self.0.send(Order::Write(bytes, Some(done)));
        let _ = written.await;
    }

    fn write_later(&self, bytes: Vec<u8>) {
        let _ = self.0.send(Order::Write(bytes, None));
    }

    pub(crate) async fn flush(&self) {
        self.write(Vec::new()).await;
    }

    /// Closes standard output for good, after what was written before.
    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        let _ = self.0.send(Order::Close(done));
        let _ = closed.await;
    }
}

/// Really closes descriptor 0 or 1; /dev/null then takes its number, so that no later file gets it.
fn close_fd(number: i32) {
    #[cfg(feature = "stdio")]
    {
        use std::os::fd::IntoRawFd as _;
        if let Err(error) = nix::unistd::close(number) {
            eprintln!("fault_server: cannot close descriptor {number}: {error}");
        }
        if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
            let _ = null.into_raw_fd();
        }
    }
    #[cfg(not(feature = "stdio"))]
    {
        eprintln!("fault_server: closing descriptor {number} needs the feature stdio");
        std::process::exit(97);
    }
}

/// Serves until end of file on standard input.
pub(crate) async fn serve(server: Arc<Server>, out: StdioOut) -> std::io::Result<()> {
    let stdin = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let reader: Box<dyn AsyncRead + Unpin + Send> = match pipe::Receiver::from_file(stdin) {
        Ok(pipe) => Box::new(pipe),
        Err(_) => Box::new(tokio::io::stdin()),
    };
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    let mut stop = server.stop_reading.subscribe();
    let mut close = server.close_stdin.subscribe();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = tokio::select! {
            biased;
            _ = stop.wait_for(|set| *set) => return std::future::pending().await,
            _ = close.wait_for(|set| *set) => {
                drop(reader);
                close_fd(0);
                return std::future::pending().await;
            }
            read = reader.read_until(b'\n', &mut line) => read,
        };
        match read {
            Ok(0) => break,
            Ok(_) => receive(&server, &out, &line).await,
            Err(error) => {
                eprintln!("fault_server: standard input: {error}");
                break;
            }
        }
    }
    if server.script.ignore_eof {
        server
            .dir
            .line("signals", &format!("{} EOF", std::process::id()));
        std::future::pending::<()>().await;
    }
    server.flush().await;
    std::process::exit(0);
}

async fn receive(server: &Arc<Server>, out: &StdioOut, line: &[u8]) {
    let generation = server.start;
    let mut message: Value = match serde_json::from_slice(line) {
        Ok(message) => message,
        Err(_) if line.trim_ascii().is_empty() => return,
        Err(_) => {
            server.dir.wire(&format!("{generation} invalid -"));
            return;
        }
    };
    let method = message["method"].as_str().unwrap_or("response").to_owned();
    server
        .dir
        .wire(&format!("{generation} {method} {}", wire_id(&message)));
    if server.script.log_messages {
        let entry = serde_json::json!({"generation": generation, "message": message});
        server.dir.line("messages", &entry.to_string());
    }
    let modern = protocol::is_modern(&message);
    let mut context = Context::message(
        server,
        generation,
        modern,
        &mut message,
        Out::Stdio(out.clone()),
    );
    let is_request = context.id.is_some();
    let Some((rule, steps)) = pick(
        server,
        generation,
        &method,
        is_request,
        &context.params,
        None,
    ) else {
        if !is_request {
            return;
        }
        let steps = default_steps(server, generation, &method, &context.params);
        if steps.len() > 1 {
            context.ledger();
        }
        if context.is_quick() {
            let mut frame = context.frame();
            frame.push('\n');
            out.write_later(frame.into_bytes());
        } else {
            tokio::spawn(async move { context.run(&[Step::Answer]).await });
        }
        return;
    };
    context.rule = rule;
    // What decides about later reads happens before the next one; so does the ledger line.
    let waits = |step: &Step| {
        matches!(
            step,
            Step::SleepMs(_) | Step::WaitFile(_) | Step::Hold(_) | Step::Hang
        )
    };
    let prompt = steps.iter().position(waits).unwrap_or(steps.len());
    let dies = steps[..prompt]
        .iter()
        .position(|step| matches!(step, Step::Exit(_) | Step::Kill))
        .filter(|_| context.is_quick());
    let stops = steps
        .iter()
        .rposition(|step| matches!(step, Step::StopReading | Step::CloseStdin));
    let inline = dies.or(stops);
    let mut from = 0;
    if let Some(last) = inline {
        context.run(&steps[..=last]).await;
        from = last + 1;
    } else if let Some(Step::Ledger) = steps.first() {
        context.ledger();
        from = 1;
    } else if let Some(Step::Default) = steps.first()
        && default_steps(server, generation, &method, &context.params).len() > 1
    {
        context.ledger();
        tokio::spawn(async move {
            context.run(&[Step::Answer]).await;
            context.run(&steps[1..]).await;
        });
        return;
    }
    tokio::spawn(async move { context.run(&steps[from..]).await });
}
