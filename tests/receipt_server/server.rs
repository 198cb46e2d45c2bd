//! The server of orders on its standard streams: `receipt_server DATABASE [VERSION [STEP]]`. It kills
//! itself at the step of a call that it is given.

mod orders;

use std::{
    io,
    pin::Pin,
    process::abort,
    task::{Context, Poll},
};

use orders::{Orders, Setting, Step};
use rmcp::ServiceExt as _;
use tokio::io::{AsyncWrite, Stdout};

/// Standard output, until an answer of a tool is to be written.
struct Dying {
    stdout: Stdout,
    die: Step,
}

impl AsyncWrite for Dying {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let answer = b"structuredContent";
        let is_answer = bytes.windows(answer.len()).any(|window| window == answer);
        if is_answer && self.die == Step::Answer {
            abort();
        }
        Pin::new(&mut self.stdout).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stdout).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stdout).poll_shutdown(cx)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let mut setting = Setting::new(words.next().ok_or("a database is missing")?);
    if let Some(version) = words.next() {
        setting.version = version.parse()?;
    }
    setting.die = Step::named(&words.next().unwrap_or_default());
    let stdout = Dying {
        stdout: tokio::io::stdout(),
        die: setting.die,
    };
    let serving = Orders::new(&setting)
        .server
        .serve((tokio::io::stdin(), stdout))
        .await?;
    serving.waiting().await?;
    Ok(())
}
