//! The checkers on small sources that are wrong on purpose, and on right ones beside them.

use crate::source::Tree;
use crate::{handlers, none_of, reading, surface};

/// A planted file below `src`, its text, and a piece of the finding that it has to cause.
type Planted = (&'static str, &'static str, &'static str);

/// Puts one wrong file among right ones and expects its finding, and no finding without it.
fn plant(cases: &[Planted], base: &[(&str, &str)], check: impl Fn(&Tree) -> Vec<String>) {
    none_of("the base is to be clean", &check(&Tree::of_sources(base)));
    for (file, text, expected) in cases {
        let mut sources: Vec<(&str, &str)> = base
            .iter()
            .filter(|(name, _)| name != file)
            .copied()
            .collect();
        sources.push((file, text));
        let findings = check(&Tree::of_sources(&sources));
        assert!(
            findings.iter().any(|f| f.contains(expected)),
            "planted in {file}: {text}\nexpected a finding with {expected:?}, got {findings:#?}"
        );
    }
}

#[rustfmt::skip]
const BASE: [(&str, &str); 7] = [
    ("lib.rs", "mod operation; mod evidence; mod policy; mod error; mod connection; mod supervisor; mod transport;
         pub use supervisor::{Supervisor, Y}; pub use operation::Id; pub use error::*;"),
    ("operation.rs", "pub struct Id; macro_rules! id { ($n:ident) => { pub(crate) struct $n(pub(super) u8); } }"),
    ("error.rs", "use crate::operation::Id; pub struct CallError { pub id: Id }
         #[cfg(test)] mod tests { use super::*; use crate::supervisor::Supervisor; use ractor::Actor; }"),
    ("connection.rs", "mod step; use ractor::ActorRef; use crate::{Id, CallError, error}; pub(crate) use self::step::State;
         pub(crate) struct Holder(ActorRef<()>); pub(in crate::connection) fn f() -> error::CallError { todo!() }"),
    ("connection/step.rs", "use super::Holder; use super::super::operation; use std::time::{Duration, Instant};
         pub(crate) struct State { since: Instant, wait: Duration, id: operation::Id }
         impl State { fn late(&self, now: Instant) -> bool { now.duration_since(self.since) > self.wait } }"),
    ("supervisor.rs", "use crate::connection::Holder; pub struct Supervisor; pub enum Y { A }"),
    ("transport.rs", "pub(crate) use rmcp::transport::Transport; pub(crate) use tokio::time as clock;"),
];

#[rustfmt::skip]
#[test]
fn planted_violations_are_found() {
    let below = "names supervisor, which is below it";
    let cases: Vec<Planted> = vec![
        // the order, each way of naming
        ("error.rs", "fn f() { crate::supervisor::start() }", below),
        ("error.rs", "use crate::supervisor::Supervisor;", below),
        ("error.rs", "use crate::{operation::Id, supervisor::{self, Y}};", below),
        ("error.rs", "use crate::{operation, supervisor as s};", below),
        ("error.rs", "use super::supervisor::Y;", below),
        ("error.rs", "use self::super::supervisor::Y;", below),
        ("error.rs", "use crate::supervisor::*;", below),
        ("error.rs", "fn f() { use crate::supervisor::Y; }", below),
        ("error.rs", "mod inner { fn f(y: super::super::supervisor::Y) {} }", below),
        ("error.rs", "mod inner { use super::super::supervisor::Y; }", below),
        ("error.rs", "fn f() { mod g { use super::super::supervisor::Y; } }", below),
        ("connection/step.rs", "fn f() -> super::super::supervisor::Y { todo!() }", below),
        ("connection/step.rs", "use super::super::{operation, supervisor::Y};", below),
        ("error.rs", "pub use crate::supervisor::Supervisor;", below),
        ("error.rs", "pub(crate) use crate::supervisor::Supervisor as Other;", below),
        ("error.rs", "fn f(x: u8) -> bool { matches!(x, crate::supervisor::Y) }", below),
        ("error.rs", "fn f() { assert!(vec![1].iter().all(|_| super::supervisor::ok())) }", below),
        ("error.rs", "macro_rules! m { () => { $crate::supervisor::Y } }", below),
        ("error.rs", "m! { use crate::{operation, supervisor::Y}; }", below),
        ("error.rs", "struct S(Vec<Option<crate::supervisor::Y>>);", below),
        ("error.rs", "fn f<T: crate::supervisor::Tr>() where T: Copy {}", below),
        ("error.rs", "impl crate::supervisor::Tr for u8 {}", below),
        ("error.rs", "fn f() { let _ = <crate::supervisor::Y as Clone>::clone; }", below),
        ("error.rs", "#[derive(crate::supervisor::Derive)] struct S;", below),
        ("error.rs", "struct S { #[serde(with = \"crate::supervisor::codec\")] a: u8 }", below),
        ("error.rs", "#[cfg(any(test, unix))] mod t { use crate::supervisor::Y; }", below),
        ("error.rs", "#[cfg(not(test))] mod t { use crate::supervisor::Y; }", below),
        // through the re-exports at the root
        ("error.rs", "use crate::Supervisor;", below),
        ("error.rs", "fn f() -> crate::Y { crate::Y::A }", below),
        ("operation.rs", "use crate::CallError;", "names error, which is below it"),
        // the whole crate at once
        ("error.rs", "use crate as me; fn f() { me::supervisor::start() }", "names the whole crate"),
        ("error.rs", "use super::*;", "names the whole crate"),
        ("error.rs", "use crate::*;", "names the whole crate"),
        ("connection/step.rs", "use super::super as up;", "names the whole crate"),
        ("error.rs", "extern crate self as me;", "names the whole crate"),
        ("error.rs", "include!(\"other.txt\");", "include!"),
        ("error.rs", "#[path = \"x.rs\"] mod x;", "#[path]"),
        ("lib.rs", "macro_rules! m { () => { crate::supervisor::Y } }", "a macro there hides"),
        ("lib.rs", "extern crate self as me;", "a second name for the crate"),
        ("gateway.rs", "pub struct G;", "no place in the reading order"),
        // the bans
        ("evidence.rs", "use tokio::sync::Notify;", "evidence must not name tokio"),
        ("evidence.rs", "fn f(p: ::rmcp::Peer) {}", "evidence must not name rmcp"),
        ("evidence.rs", "use rmcp as r;", "evidence must not name rmcp"),
        ("evidence.rs", "use tokio::*;", "evidence must not name tokio"),
        ("evidence.rs", "extern crate tokio;", "evidence must not name tokio"),
        ("evidence.rs", "fn f() { g!(rmcp::model::Tool) }", "evidence must not name rmcp"),
        ("operation.rs", "use tokio::time::Instant;", "operation must not name tokio"),
        ("operation.rs", "use rmcp::{model, transport::Transport};", "operation must not name rmcp::transport"),
        ("operation.rs", "use rmcp::transport as t;", "operation must not name rmcp::transport"),
        ("policy.rs", "use crate::journal::Record;", "policy must not name journal"),
        ("policy.rs", "use tokio::time;", "policy must not name tokio::time"),
        ("spec.rs", "use ractor::Actor;", "spec must not name ractor"),
        ("error.rs", "use ractor::SpawnErr;", "error must not name ractor"),
        ("error.rs", "enum E { #[error(transparent)] A(#[from] ractor::SpawnErr) }", "error must not name ractor"),
        ("journal.rs", "use crate::connection::Holder;", "journal must not name connection"),
        ("journal/table.rs", "use super::super::connection;", "journal::table must not name connection"),
        ("transport.rs", "use crate::policy::Contract;", "transport must not name policy"),
        ("transport/stdio.rs", "use crate::journal::Record;", "transport::stdio must not name journal"),
        ("session.rs", "use crate::policy::Contract;", "session must not name policy"),
        ("session.rs", "use crate::journal::Record;", "session must not name journal"),
        ("catalog.rs", "use crate::connection::Holder;", "catalog must not name connection"),
        ("connection/step.rs", "use crate::journal::Record;", "connection::step must not name journal"),
        ("connection/step.rs", "use crate::supervisor::Y;", "connection::step must not name supervisor"),
        ("call.rs", "use ractor::cast;", "call must not name ractor"),
        ("call.rs", "fn f() { ractor::cast!(a, b) }", "call must not name ractor"),
        ("call.rs", "use crate::supervisor::registry::Registry;", "call must not name supervisor"),
        ("handle.rs", "use ractor::ActorRef;", "handle must not name ractor"),
        ("handle.rs", "use crate::connection::ActorRef;", "handle must not name ractor"),
        ("receipts.rs", "use crate::handle::Handle;", "receipts must not name handle"),
    ];
    plant(&cases, &BASE, reading::order_violations);

    let stray = Tree::of_sources(&[("lib.rs", "mod error;"), ("error.rs", ""), ("stray.rs", "")]);
    assert_eq!(
        reading::orphans(&stray),
        ["src/stray.rs (stray) is in no module tree"]
    );
}

#[rustfmt::skip]
#[test]
fn planted_impurities_are_found() {
    let cases: Vec<Planted> = vec![
        ("connection/step.rs", "fn f() { std::time::Instant::now(); }", "Instant::now"),
        ("connection/step.rs", "use std::time::Instant; fn f() { Instant::now(); }", "Instant::now"),
        ("connection/step.rs", "use std::time::Instant; fn f() { o.unwrap_or_else(Instant::now); }", "Instant::now"),
        ("connection/step.rs", "use std::time::Instant as I; fn f() { I::now(); }", "Instant::now"),
        ("connection/step.rs", "use std::time::Instant as I;", "under another name"),
        ("connection/step.rs", "fn f(since: std::time::Instant) { since.elapsed(); }", ".elapsed"),
        ("connection/step.rs", "fn f() { assert!(since.elapsed() > x) }", ".elapsed"),
        ("policy.rs", "use std::time::SystemTime;", "SystemTime"),
        ("policy.rs", "fn f() { tokio::time::sleep(d); }", "tokio::time"),
        ("policy.rs", "use tokio::time; fn f() { time::sleep(d); }", "tokio::time"),
        ("policy.rs", "use crate::transport::clock; fn f() { clock::sleep(d); }", "tokio::time"),
        ("evidence.rs", "fn f() { std::fs::read(p); }", "std::fs"),
        ("evidence.rs", "use std::net::TcpStream;", "std::net"),
        ("evidence.rs", "fn f() { std::thread::yield_now(); }", "std::thread"),
        ("evidence.rs", "use std::{thread, time::Duration};", "std::thread"),
        ("evidence.rs", "fn f() { tokio::spawn(g()); }", "has spawn"),
        ("evidence.rs", "fn f(r: Runtime) { r.spawn(g()); }", ".spawn"),
        ("evidence.rs", "async fn f() { g().await }", ".await"),
        ("evidence.rs", "fn f() { println!(\"x\") }", "println"),
        ("evidence.rs", "fn f() { std::eprintln!(\"x\") }", "eprintln"),
        ("evidence.rs", "fn f() { tracing::info!(\"x\") }", "tracing"),
        ("policy.rs", "fn f() -> f64 { rand::random() }", "rand::random"),
        ("supervisor/circuit.rs", "use std::time::Instant; fn f() { Instant::now(); }", "Instant::now"),
        ("journal/table.rs", "fn f() { uuid::Uuid::now_v7(); }", "now_v7"),
        ("operation.rs", "fn f() { std::time::Instant::now(); }", "is to know no clock"),
    ];
    plant(&cases, &BASE, reading::purity_violations);
}

#[rustfmt::skip]
#[test]
fn planted_locks_are_found() {
    let cases: Vec<Planted> = vec![
        ("call.rs", "use tokio::sync::Mutex;", "holds a lock"),
        ("handle.rs", "struct H(tokio::sync::RwLock<u8>);", "holds a lock"),
        ("connection/step.rs", "use tokio::sync; struct H(sync::Mutex<u8>);", "holds a lock"),
        ("connection/step.rs", "use tokio::sync::{mpsc, Mutex as Gate};", "holds a lock"),
        ("call.rs", "use tokio::sync::*;", "holds a lock"),
        ("call.rs", "fn f() { let s = Semaphore::new(1); }", "one permit"),
    ];
    plant(&cases, &BASE, reading::lock_violations);
    let admission = [(
        "call.rs",
        "fn f(n: usize) { tokio::sync::Semaphore::new(n); }",
    )];
    none_of(
        "admission is no lock",
        &reading::lock_violations(&Tree::of_sources(&admission)),
    );
}

#[rustfmt::skip]
#[test]
fn planted_waits_are_found() {
    fn actor(body: &str) -> Tree {
        let text = format!(
            "use ractor::Actor; impl Actor for Shell {{
                 async fn pre_start(&self) {{ anything().await }}
                 async fn handle(&self) {{ {body} }}
             }}
             impl Shell {{
                 async fn quick(&self) {{ Actor::spawn_linked(None).await; }}
                 async fn slow(&self) {{ self.session.close().await }}
             }}"
        );
        Tree::of_sources(&[("connection.rs", &text)])
    }
    for right in [
        "Session::spawn_linked(None, Session, args, me).await?;",
        "self.quick().await;",
        "tokio::spawn(async move { peer.call().await });",
        "let later = || async { peer.call().await }; keep(later);",
    ] {
        assert_eq!(
            handlers::handler_violations(&actor(right)),
            (1, vec![]),
            "{right}"
        );
    }
    for (wrong, expected) in [
        ("peer.call_tool(p).await;", "waits for call_tool"),
        ("rmcp::serve_client(a, b).await;", "waits for serve_client"),
        ("self.slow().await;", "connection::slow waits for close"),
        ("async { peer.call().await }.await", "without a name"),
        ("pending.await;", "without a name"),
        ("tokio::select! { r = pending => r }", "waits for select!"),
        ("let x = vec![peer.call().await];", "inside vec!"),
        ("if let Some(p) = state { match p { P::A => p.tell().await, _ => {} } }", "waits for tell"),
    ] {
        let (_, findings) = handlers::handler_violations(&actor(wrong));
        assert!(
            findings.iter().any(|f| f.contains(expected)),
            "{wrong}: {findings:?}"
        );
    }
}

#[rustfmt::skip]
#[test]
fn planted_types_on_the_face_are_found() {
    let shows = "shows ractor";
    let cases: Vec<Planted> = vec![
        ("handle.rs", "pub fn f(a: ractor::ActorRef<u8>) {}", shows),
        ("handle.rs", "use ractor::ActorRef; pub fn f() -> Option<ActorRef<u8>> { None }", shows),
        ("handle.rs", "use ractor::ActorRef as A; pub struct S { pub a: A<u8> }", shows),
        ("handle.rs", "use ractor::ActorRef; pub struct S(pub ActorRef<u8>);", shows),
        ("handle.rs", "use ractor::ActorRef; pub enum E { V(ActorRef<u8>) }", shows),
        ("handle.rs", "pub trait T: ractor::Actor {}", shows),
        ("handle.rs", "pub trait T { fn f(&self) -> ractor::ActorCell; }", shows),
        ("handle.rs", "pub fn f<A: ractor::Actor>(a: A) {}", shows),
        ("handle.rs", "pub fn f<A>(a: A) where A: ractor::Actor {}", shows),
        ("handle.rs", "pub struct S; impl ractor::Actor for S {}", shows),
        ("handle.rs", "pub struct S; impl From<ractor::SpawnErr> for S { fn from(e: ractor::SpawnErr) -> S { S } }", shows),
        ("handle.rs", "pub struct S; impl S { pub fn f(&self) -> ractor::ActorCell { todo!() } }", shows),
        ("handle.rs", "pub struct S; impl Iterator for S { type Item = ractor::ActorCell; }", shows),
        ("handle.rs", "pub type A = ractor::ActorCell;", shows),
        ("handle.rs", "type A = ractor::ActorCell; pub fn f(a: A) {}", shows),
        ("handle.rs", "pub use ractor::ActorCell;", shows),
        ("handle.rs", "use crate::connection::ActorRef; pub fn f(a: ActorRef<u8>) {}", shows),
        ("handle.rs", "m! { pub struct S(pub ractor::ActorCell); }", shows),
        ("handle.rs", "pub const C: Option<ractor::ActorCell> = None;", shows),
        ("handle.rs", "use ractor::*;", "a glob hides"),
    ];
    plant(&cases, &BASE, surface::ractor_violations);
    let hidden = [
        ("link.rs", "pub fn spawn_linked(parent: ractor::ActorCell) {}"),
        ("connection.rs", "use ractor::{Actor, ActorRef}; struct Shell; impl Actor for Shell { type Msg = ActorRef<u8>; }
         pub(crate) fn f(a: ActorRef<u8>) {} pub struct S { a: ActorRef<u8> } pub(crate) struct H { pub a: ActorRef<u8> }
         impl S { pub(crate) fn f(a: ActorRef<u8>) {} fn g(a: ActorRef<u8>) {} } impl H { pub fn f(a: ActorRef<u8>) {} }"),
    ];
    none_of(
        "what is not public",
        &surface::ractor_violations(&Tree::of_sources(&hidden)),
    );

    let cases: Vec<Planted> = vec![
        ("handle.rs", "pub fn f(t: rmcp::model::Tool) {}", "shows rmcp::model::Tool"),
        ("handle.rs", "use rmcp::model; pub fn f(t: Vec<model::Tool>) {}", "shows rmcp::model::Tool"),
        ("handle.rs", "pub struct S; impl rmcp::Other for S {}", "shows rmcp::Other"),
        ("handle.rs", "pub use rmcp;", "shows rmcp"),
        ("handle.rs", "pub use rmcp::model;", "shows rmcp::model"),
        ("handle.rs", "pub fn f() -> impl Fn(rmcp::Peer) -> rmcp::model::Tool { todo!() }", "shows rmcp::model::Tool"),
        ("handle.rs", "use rmcp::model::*;", "a glob hides"),
    ];
    plant(&cases, &BASE, |tree| {
        surface::rmcp_violations(tree, &["Peer"])
    });
    let listed = [(
        "handle.rs",
        "pub fn f(p: rmcp::service::Peer) {} pub(crate) fn g(t: rmcp::model::Tool) {}",
    )];
    none_of(
        "what is listed",
        &surface::rmcp_violations(&Tree::of_sources(&listed), &["Peer"]),
    );
}

#[rustfmt::skip]
#[test]
fn planted_silence_about_dropping_is_found() {
    let cases: Vec<Planted> = vec![
        ("handle.rs", "/// Waits.\npub async fn f() {}", "handle::f"),
        ("handle.rs", "pub fn f() -> impl Future<Output = ()> { async {} }", "handle::f"),
        ("handle.rs", "pub fn f() -> Pin<Box<dyn Future<Output = ()> + Send>> { todo!() }", "handle::f"),
        ("handle.rs", "pub fn f() -> BoxFuture<'static, ()> { todo!() }", "handle::f"),
        ("handle.rs", "pub struct H; impl H { pub async fn call(&self) {} }", "H::call"),
        ("handle.rs", "pub trait T { async fn call(&self); }", "T::call"),
        ("handle.rs", "/// Waits.\npub struct P; impl Future for P {}", "handle::P"),
    ];
    plant(&cases, &BASE, surface::cancel_safety_violations);
    let said = [(
        "handle.rs",
        "/// Waits.\n///\n/// # Cancel safety\n///\n/// Nothing is lost.\npub async fn f() {}
         pub(crate) async fn g() {} struct H; impl H { pub async fn call(&self) {} }",
    )];
    none_of(
        "what is said",
        &surface::cancel_safety_violations(&Tree::of_sources(&said)),
    );
}

#[rustfmt::skip]
#[test]
fn planted_unwraps_are_found() {
    let cases: Vec<Planted> = vec![
        ("handle.rs", "fn f(o: Option<u8>) { o.unwrap(); }", ".unwrap()"),
        ("handle.rs", "fn f(o: Option<u8>) { println!(\"{}\", o.unwrap()); }", ".unwrap()"),
        ("handle.rs", "fn f() { all.map(Option::unwrap); }", "unwrap as a function"),
        ("handle.rs", "fn f(o: Option<u8>) { o.expect(\"\"); }", "an expect without"),
        ("handle.rs", "fn f(o: Option<u8>) { o.expect(&text); }", "an expect without"),
        ("handle.rs", "fn f(o: Option<u8>) { vec![o.expect(\"!\")]; }", "an expect without"),
    ];
    plant(&cases, &BASE, surface::unwrap_violations);
    let fine = [(
        "handle.rs",
        "fn f(o: Option<u8>) { o.expect(\"the caller checked it\"); o.unwrap_or(1); }
         #[cfg(test)] mod tests { fn g() { o.unwrap(); } }",
    )];
    none_of(
        "what is fine",
        &surface::unwrap_violations(&Tree::of_sources(&fine)),
    );
}
