//! What the actors wait for while they hold their mailbox.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use crate::source::{Leads, Tree, is_test_only, tokens_of_macro, written_path};

/// The functions of an actor that run while messages queue up behind them.
const HANDLERS: [&str; 2] = ["handle", "handle_supervisor_evt"];

/// What a handler may wait for, and why that cannot be a peer.
pub(crate) const AWAITED: [(&str, &str); 1] = [(
    "spawn_linked",
    "starts a child actor; its pre_start must not wait for a peer either",
)];

/// A body and what stands where: the name of the function, and in which module.
struct Function<'a> {
    module: &'a [String],
    name: String,
    block: &'a syn::Block,
}

/// Everything that handlers in these two rooms wait for, followed through the rooms' own functions.
/// Also gives the number of actors looked at, so that a caller sees when it looked at none.
pub(crate) fn handler_violations(tree: &Tree) -> (usize, Vec<String>) {
    let mut functions: Vec<Function<'_>> = Vec::new();
    let mut entries: Vec<usize> = Vec::new();
    let mut actors = 0;
    for module in tree.library() {
        let room = module.path.first().map(String::as_str);
        if !matches!(room, Some("connection" | "supervisor")) {
            continue;
        }
        for item in &module.items {
            match item {
                syn::Item::Fn(f) if !is_test_only(&f.attrs) => functions.push(Function {
                    module: &module.path,
                    name: f.sig.ident.to_string(),
                    block: &f.block,
                }),
                syn::Item::Impl(i) if !is_test_only(&i.attrs) => {
                    let actor = i.trait_.as_ref().is_some_and(|(_, path, _)| {
                        match tree.resolve(&module.path, &written_path(path)) {
                            Some(Leads::Outside(o)) => {
                                o[0] == "ractor" && o.last().is_some_and(|l| l == "Actor")
                            }
                            _ => path.segments.last().is_some_and(|s| s.ident == "Actor"),
                        }
                    });
                    actors += usize::from(actor);
                    for inner in &i.items {
                        if let syn::ImplItem::Fn(f) = inner {
                            let name = f.sig.ident.to_string();
                            if actor && HANDLERS.contains(&name.as_str()) {
                                entries.push(functions.len());
                            }
                            functions.push(Function {
                                module: &module.path,
                                name,
                                block: &f.block,
                            });
                        }
                    }
                }
                _ => {}
            }
        }
    }
    let mut out = Vec::new();
    let mut seen = BTreeSet::new();
    while let Some(index) = entries.pop() {
        if !seen.insert(index) {
            continue;
        }
        let function = &functions[index];
        let mut awaits = Awaits::default();
        awaits.visit_block(function.block);
        let place = format!("{}::{}", function.module.join("::"), function.name);
        for wait in awaits.found {
            let Some(name) = wait else {
                out.push(format!("{place} waits for something without a name"));
                continue;
            };
            if AWAITED.iter().any(|(allowed, _)| *allowed == name) {
                continue;
            }
            let same_room: Vec<usize> = (0..functions.len())
                .filter(|i| functions[*i].name == name)
                .filter(|i| functions[*i].module.first() == function.module.first())
                .collect();
            if same_room.is_empty() {
                out.push(format!("{place} waits for {name}"));
            }
            entries.extend(same_room);
        }
    }
    out.sort();
    out.dedup();
    (actors, out)
}

/// The names of what is awaited in a body. What only stands in a closure or an `async` block of it is
/// somebody else's wait, unless that block is awaited itself, which has no name and is reported.
#[derive(Default)]
struct Awaits {
    found: Vec<Option<String>>,
}

impl<'ast> Visit<'ast> for Awaits {
    fn visit_expr_await(&mut self, expr: &'ast syn::ExprAwait) {
        self.found.push(callee(&expr.base));
        visit::visit_expr(self, &expr.base);
    }

    fn visit_expr_async(&mut self, _: &'ast syn::ExprAsync) {}

    fn visit_expr_closure(&mut self, _: &'ast syn::ExprClosure) {}

    fn visit_item(&mut self, _: &'ast syn::Item) {}

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        let name = written_path(&mac.path)
            .segments
            .last()
            .cloned()
            .unwrap_or_default();
        if matches!(name.as_str(), "select" | "join" | "try_join") {
            self.found.push(Some(format!("{name}!")));
        }
        for pair in tokens_of_macro(mac).windows(2) {
            if pair[0].is_mark('.') && pair[1].is_word("await") {
                self.found.push(Some(format!("something inside {name}!")));
            }
        }
    }
}

fn callee(expr: &syn::Expr) -> Option<String> {
    match expr {
        syn::Expr::Call(call) => match &*call.func {
            syn::Expr::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()),
            _ => None,
        },
        syn::Expr::MethodCall(call) => Some(call.method.to_string()),
        syn::Expr::Paren(inner) => callee(&inner.expr),
        _ => None,
    }
}
