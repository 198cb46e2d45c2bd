//! What a module may name: the reading order, the table's bans, and what a pure module does without.

use syn::visit::{self, Visit};

use crate::source::{
    Leads, Module, Token, Tree, Written, is_test_only, item_attributes, name_of, tokens_of_macro,
    written_path, written_tokens, written_use,
};

/// The rooms from the first to the last; each may name those before it and itself.
pub(crate) const READING_ORDER: &[&str] = &[
    "operation",
    "credentials",
    "evidence",
    "extension",
    "policy",
    "spec",
    "event",
    "error",
    "telemetry",
    "journal",
    "transport",
    "auth",
    "config",
    "subscription",
    "session",
    "catalog",
    "connection",
    "call",
    "handle",
    "toolbox",
    "supervisor",
    "receipts",
    "link",
    // In a build for the fuzzer alone.
    "fuzzing",
];

/// (module, what it must not name): crates and their parts, or modules of this crate as `crate::name`.
/// A path that merely passes through counts too: `rmcp` forbids `rmcp::model::Tool`.
const BANS: &[(&str, &[&str])] = &[
    ("operation", &["tokio", "rmcp::transport"]),
    ("credentials", &["rmcp", "tokio"]),
    ("evidence", &["rmcp", "tokio"]),
    ("extension", &["rmcp", "tokio"]),
    ("policy", &["crate::journal", "tokio::time"]),
    ("spec", &["ractor"]),
    ("config", &["ractor", "rmcp", "tokio"]),
    ("error", &["ractor"]),
    ("journal", &["crate::connection"]),
    ("transport", &["crate::policy", "crate::journal"]),
    ("auth", &["crate::policy", "crate::journal"]),
    ("session", &["crate::policy", "crate::journal"]),
    ("catalog", &["crate::connection"]),
    ("connection", &["crate::journal", "crate::supervisor"]),
    ("call", &["ractor", "crate::supervisor"]),
    ("handle", &["ractor"]),
    (
        "receipts",
        &[
            "crate::transport",
            "crate::session",
            "crate::catalog",
            "crate::connection",
            "crate::call",
            "crate::handle",
            "crate::supervisor",
        ],
    ),
];

/// Modules that compute and do nothing else. What is below one of them is pure as well.
pub(crate) const PURE: [&str; 8] = [
    "evidence",
    "policy",
    "connection::step",
    "supervisor::circuit",
    "journal::table",
    "receipts::table",
    "receipts::outbox::table",
    "receipts::outbox::plan",
];

/// What a pure module does without, as a run of path segments anywhere in a path.
const IMPURE_PATHS: [&str; 33] = [
    "Instant::now",
    "SystemTime",
    "UNIX_EPOCH",
    "Uuid::now_v7",
    "tokio::time",
    "tokio::fs",
    "tokio::net",
    "tokio::io",
    "tokio::process",
    "tokio::signal",
    "tokio::task",
    "tokio::runtime",
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "io::stdin",
    "io::stdout",
    "io::stderr",
    "rand::rng",
    "rand::random",
    "thread_rng",
    "spawn",
    "spawn_blocking",
    "spawn_local",
    "spawn_linked",
    "block_on",
    "tracing",
    "println",
    "eprintln",
    "print",
    "dbg",
];

/// `operation` knows points in time, as deadlines, but does not read a clock. A new id may (UUIDv7).
const CLOCKS: [&str; 4] = ["Instant::now", "SystemTime", "UNIX_EPOCH", "tokio::time"];

/// And as a method: `elapsed` reads the clock as `now` does.
const IMPURE_METHODS: [&str; 7] = [
    "elapsed",
    "spawn",
    "spawn_blocking",
    "spawn_local",
    "spawn_linked",
    "block_on",
    "await",
];

/// What a module writes: every path, from code, `use`, attributes and the tokens of macro calls, and
/// every method.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// (the module it stands in, the path)
    pub(crate) paths: Vec<(Vec<String>, Written)>,
    pub(crate) methods: Vec<String>,
    here: Vec<String>,
}

impl Reads {
    pub(crate) fn of(module: &Module) -> Reads {
        let mut reads = Reads {
            here: module.path.clone(),
            ..Reads::default()
        };
        module.items.iter().for_each(|i| reads.visit_item(i));
        reads
    }

    fn push(&mut self, written: Written) {
        self.paths.push((self.here.clone(), written));
    }

    fn tokens(&mut self, tokens: &[Token]) {
        for written in written_tokens(tokens) {
            self.push(written);
        }
        for pair in tokens.windows(2) {
            if let [Token::Mark('.'), Token::Word(method)] = pair {
                self.methods.push(method.clone());
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reads {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test_only(item_attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test_only(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        // only a module inside a function's body comes here with a body: the others are in the tree
        self.here.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.here.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for written in written_use(item) {
            self.push(written);
        }
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        let name = item.ident.to_string();
        let segments = if name == "self" {
            vec!["crate".to_owned()]
        } else {
            vec![name]
        };
        self.push(Written {
            segments,
            leading: false,
            glob: false,
            bound: Some(String::new()),
        });
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.push(written_path(path));
        visit::visit_path(self, path);
    }

    // `pub(in path)` can only name a parent
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.push(written_path(&mac.path));
        self.tokens(&tokens_of_macro(mac));
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        self.push(written_path(attribute.path()));
        if let syn::Meta::List(list) = &attribute.meta {
            let buffer = syn::buffer::TokenBuffer::new2(list.tokens.clone());
            let tokens = crate::source::tokens_of(&buffer);
            self.tokens(&tokens);
            // `#[serde(with = "crate::name")]` is a path too
            for token in &tokens {
                if let Token::Literal(text) = token
                    && let Ok(literal) = syn::parse_str::<syn::LitStr>(text)
                    && let Ok(path) = literal.parse::<syn::Path>()
                    && Tree::absolute(&[], &written_path(&path).segments).is_some()
                {
                    self.push(written_path(&path));
                }
            }
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.methods.push(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_await(&mut self, expr: &'ast syn::ExprAwait) {
        self.methods.push("await".to_owned());
        visit::visit_expr_await(self, expr);
    }
}

fn place(module: &str) -> Option<usize> {
    READING_ORDER.iter().position(|m| *m == module)
}

fn starts_with(segments: &[String], ban: &str) -> bool {
    let ban: Vec<&str> = ban.split("::").collect();
    segments.len() >= ban.len() && ban.iter().zip(segments).all(|(b, s)| b == s)
}

pub(crate) fn contains_run(segments: &[String], run: &str) -> bool {
    let run: Vec<&str> = run.split("::").collect();
    segments
        .windows(run.len())
        .any(|w| w.iter().zip(&run).all(|(s, r)| s == r))
}

/// Every breach of the order and of the bans, one line each; empty when all is well.
pub(crate) fn order_violations(tree: &Tree) -> Vec<String> {
    let mut out = Vec::new();
    for module in tree.library() {
        let Some(room) = module.path.first() else {
            root_tricks(module, &mut out);
            continue;
        };
        let name = module.name();
        let Some(own_place) = place(room) else {
            out.push(format!("{name}: {room} has no place in the reading order"));
            continue;
        };
        for item in &module.items {
            if let syn::Item::Mod(m) = item
                && m.attrs.iter().any(|a| a.path().is_ident("path"))
            {
                out.push(format!("{name}: #[path] hides which file {} is", m.ident));
            }
        }
        let bans: Vec<&str> = BANS
            .iter()
            .filter(|(m, _)| m == room)
            .flat_map(|(_, b)| b.iter().copied())
            .collect();
        for (here, written) in Reads::of(module).paths {
            let text = written.text();
            if text == "include" {
                out.push(format!("{name}: include! hides what it names"));
            }
            let led = tree.resolve(&here, &written);
            if let Some(absolute) = Tree::absolute(&here, &written.segments) {
                match named_room(tree, &absolute, led.as_ref()) {
                    Named::Room(other) => {
                        if place(&other).is_some_and(|p| p > own_place) {
                            out.push(format!("{name} names {other}, which is below it: {text}"));
                        }
                        for ban in bans.iter().filter_map(|b| b.strip_prefix("crate::")) {
                            if ban == other {
                                out.push(format!("{name} must not name {ban}: {text}"));
                            }
                        }
                    }
                    Named::Root => {
                        // alone, as in `pub(crate)` among tokens, the word names nothing
                        let brings = written.glob || written.bound.is_some();
                        if brings || !absolute.is_empty() {
                            out.push(format!("{name} names the whole crate: {text}"));
                        }
                    }
                    Named::Outside => {}
                }
            }
            if let Some(Leads::Outside(outside)) = &led {
                for ban in bans.iter().filter(|b| starts_with(outside, b)) {
                    out.push(format!("{name} must not name {ban}: {text}"));
                }
            }
        }
    }
    out.sort();
    out.dedup();
    out
}

enum Named {
    Room(String),
    /// The root itself or an item that stands in lib.rs.
    Root,
    Outside,
}

/// The top-level module behind an absolute path, through the re-exports of lib.rs.
fn named_room(tree: &Tree, absolute: &[String], led: Option<&Leads>) -> Named {
    let Some(first) = absolute.first() else {
        return Named::Root;
    };
    let is_module = place(first).is_some() || tree.modules.contains_key(&absolute[..1]);
    if is_module {
        return Named::Room(first.clone());
    }
    match led {
        Some(Leads::Outside(_)) => Named::Outside,
        Some(Leads::Here { module, .. }) if !module.is_empty() => Named::Room(module[0].clone()),
        _ => exported_macro(tree, first).map_or(Named::Root, Named::Room),
    }
}

/// `#[macro_export]` puts a macro at the root, whichever module it stands in.
fn exported_macro(tree: &Tree, name: &str) -> Option<String> {
    tree.library()
        .filter(|m| !m.path.is_empty())
        .find(|m| matches!(m.item(name), Some(syn::Item::Macro(_))))
        .map(|m| m.path[0].clone())
}

/// lib.rs may name everything, so what it defines could smuggle names to those who use it.
fn root_tricks(root: &Module, out: &mut Vec<String>) {
    for item in &root.items {
        match item {
            syn::Item::Macro(m) if m.mac.path.is_ident("macro_rules") => {
                out.push("lib.rs: a macro there hides what its callers name".to_owned());
            }
            syn::Item::ExternCrate(e) if e.ident == "self" => {
                out.push("lib.rs: a second name for the crate hides what is named".to_owned());
            }
            syn::Item::Mod(m) if m.attrs.iter().any(|a| a.path().is_ident("path")) => {
                out.push(format!("lib.rs: #[path] hides which file {} is", m.ident));
            }
            _ => {}
        }
    }
}

/// Every clock, input, output, spawn or random number in a pure module, and a clock in `operation`.
pub(crate) fn purity_violations(tree: &Tree) -> Vec<String> {
    let mut out = Vec::new();
    for module in tree.library() {
        let name = module.name();
        let pure = PURE.iter().any(|p| starts_with(&module.path, p));
        let (runs, methods, kind) = if pure {
            (&IMPURE_PATHS[..], &IMPURE_METHODS[..], "is to be pure")
        } else if starts_with(&module.path, "operation") {
            (&CLOCKS[..], &IMPURE_METHODS[..1], "is to know no clock")
        } else {
            continue;
        };
        let reads = Reads::of(module);
        for (here, written) in &reads.paths {
            let mut seen = vec![written.segments.clone()];
            if let Some(Leads::Outside(outside)) = tree.resolve(here, written) {
                let renamed = written
                    .bound
                    .as_ref()
                    .is_some_and(|b| outside.last() != Some(b));
                if renamed && outside.last().is_some_and(|l| l == "Instant") {
                    out.push(format!(
                        "{name}: Instant under another name: {}",
                        written.text()
                    ));
                }
                seen.push(outside);
            }
            for run in runs {
                if seen.iter().any(|s| contains_run(s, run)) {
                    out.push(format!("{name} {kind} and has {run}: {}", written.text()));
                }
            }
        }
        for method in &reads.methods {
            if methods.contains(&method.as_str()) {
                out.push(format!("{name} {kind} and has .{method}"));
            }
        }
    }
    out.sort();
    out.dedup();
    out
}

/// Types of a lock by which calls would wait for one another.
const ORDERING_LOCKS: [&str; 8] = [
    "tokio::sync::Mutex",
    "tokio::sync::RwLock",
    "tokio::sync::OwnedMutexGuard",
    "tokio::sync::MutexGuard",
    "futures::lock",
    "futures_util::lock",
    "async_lock",
    "async_mutex",
];

/// Locks, and semaphores with a single permit, on the way of a call. A semaphore with `max_in_flight`
/// permits only counts: it is admission.
pub(crate) fn lock_violations(tree: &Tree) -> Vec<String> {
    let mut out = Vec::new();
    for module in tree.library() {
        let name = module.name();
        if !["connection", "call", "handle"]
            .iter()
            .any(|m| starts_with(&module.path, m))
        {
            continue;
        }
        for (here, written) in Reads::of(module).paths {
            if let Some(Leads::Outside(outside)) = tree.resolve(&here, &written) {
                let glob_of_sync = written.glob && outside == ["tokio", "sync"];
                if glob_of_sync || ORDERING_LOCKS.iter().any(|l| starts_with(&outside, l)) {
                    out.push(format!(
                        "{name} holds a lock that can order calls: {}",
                        written.text()
                    ));
                }
            }
        }
        let mut single = SinglePermit {
            name: &name,
            out: &mut out,
        };
        module.items.iter().for_each(|i| single.visit_item(i));
    }
    out.sort();
    out.dedup();
    out
}

struct SinglePermit<'a> {
    name: &'a str,
    out: &'a mut Vec<String>,
}

impl<'ast> Visit<'ast> for SinglePermit<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test_only(item_attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func
            && contains_run(&written_path(&path.path).segments, "Semaphore::new")
            && let Some(syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Int(permits),
                ..
            })) = call.args.first()
            && permits.base10_digits() == "1"
        {
            self.out.push(format!(
                "{} has a semaphore of one permit, which is a lock",
                self.name
            ));
        }
        visit::visit_expr_call(self, call);
    }
}

/// Files below `src` that no `mod` statement names: the other checks would read them for nothing, or
/// a file brought in some other way would escape them.
pub(crate) fn orphans(tree: &Tree) -> Vec<String> {
    tree.modules
        .values()
        .filter(|m| !m.declared)
        .map(|m| format!("src/{} ({}) is in no module tree", m.file, name_of(&m.path)))
        .collect()
}
