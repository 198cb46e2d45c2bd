//! The servers that are reached over sockets: a process each, which is killed, stopped and started
//! again by a schedule.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::TcpListener,
    process::{Child, Command},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Ending, lines,
    shop::Shop,
    web::{self, Sessions},
};

/// Below the ports that a system gives to those who connect, so that nobody has one while its server
/// is away.
const PORTS: std::ops::Range<u16> = 18_000..30_000;
/// How long a server has to begin.
const BEGINS: Duration = Duration::from_secs(30);

// ------------------------------------------------------------------------------------ in the process

/// Serves at both ports until stdin ends.
pub(crate) async fn child(shop: Shop, ports: [u16; 2]) -> Ending {
    let (shop, sessions) = (Arc::new(shop), Arc::new(Sessions::default()));
    let [web, plain] = [listen(ports[0]).await?, listen(ports[1]).await?];
    println!(
        "{} {}",
        web.local_addr()?.port(),
        plain.local_addr()?.port()
    );
    let mut stdin = tokio::io::stdin();
    let mut end = [0; 1];
    let gone = stdin.read(&mut end);
    tokio::pin!(gone);
    loop {
        tokio::select! {
            accepted = web.accept() => if let Ok((stream, _)) = accepted {
                tokio::spawn(web::socket(stream, Arc::clone(&shop), Arc::clone(&sessions)));
            },
            accepted = plain.accept() => if let Ok((stream, _)) = accepted {
                tokio::spawn(lines::socket(stream, Arc::clone(&shop)));
            },
            _ = &mut gone => return Ok(()),
        }
    }
}

/// Listens at a port, or at any where it is 0.
async fn listen(port: u16) -> Ending<TcpListener> {
    let mut last = None;
    for _ in 0..100 {
        let port = match port {
            0 => rand::rng().random_range(PORTS),
            port => port,
        };
        match TcpListener::bind(("127.0.0.1", port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(format!("port {port}: {last:?}").into())
}

// --------------------------------------------------------------------------------------- at the host

/// A server's process, or the place where it was and will be.
pub(crate) struct Hall {
    name: String,
    run: PathBuf,
    seed: u64,
    ports: [u16; 2],
    process: Option<Child>,
}

impl Hall {
    pub(crate) async fn open(run: &Path, number: usize, seed: u64) -> Ending<Self> {
        let mut hall = Self {
            name: format!("hall-{number}"),
            run: run.to_owned(),
            seed,
            ports: [0; 2],
            process: None,
        };
        hall.start().await?;
        Ok(hall)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where HTTP is spoken, and where lines are.
    pub(crate) fn ports(&self) -> [u16; 2] {
        self.ports
    }

    /// Ends when it listens.
    async fn start(&mut self) -> Ending {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["serve-sockets".as_ref(), self.run.as_os_str()])
            .args([&self.name, &self.seed.to_string()])
            .args(self.ports.map(|port| port.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = process.stdout.take().ok_or("a pipe was asked for")?;
        let mut says = BufReader::new(stdout).lines();
        let said = tokio::time::timeout(BEGINS, says.next_line()).await??;
        let said = said.ok_or("a server of sockets did not begin")?;
        let (web, plain) = said.split_once(' ').ok_or("two ports were asked for")?;
        self.ports = [web.parse()?, plain.parse()?];
        self.process = Some(process);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        let id = self.process.as_ref().and_then(Child::id);
        if let Some(id) = id.and_then(|id| i32::try_from(id).ok()) {
            let _ = kill(Pid::from_raw(id), signal);
        }
    }

    async fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill().await;
        }
    }

    /// Is killed and comes back, or stands still and goes on, until the token says that it is quiet.
    /// Then it works.
    pub(crate) async fn misbehave(&mut self, quiet: CancellationToken, number: u64) -> Ending {
        let mut dice = StdRng::seed_from_u64(self.seed ^ (number << 8));
        let mut wait = async |millis: std::ops::Range<u64>| {
            let wait = Duration::from_millis(dice.random_range(millis));
            tokio::select! {
                () = tokio::time::sleep(wait) => true,
                () = quiet.cancelled() => false,
            }
        };
        let mut kills = true;
        while wait(1_500..6_000).await {
            if kills {
                self.kill().await;
                wait(100..1_500).await;
                self.start().await?;
            } else {
                self.signal(Signal::SIGSTOP);
                wait(200..2_500).await;
                self.signal(Signal::SIGCONT);
            }
            kills = !kills;
        }
        Ok(())
    }

    pub(crate) async fn close(mut self) {
        self.kill().await;
    }
}
