//! What a user of the crate sees: types in public signatures, what dropping a future does, and the
//! places where library code could panic.

use syn::visit::{self, Visit};

use crate::source::{
    Leads, Module, Token, Tree, Written, is_public, is_test_only, item_attributes, item_is_public,
    item_name, tokens_of_macro, written_path, written_tokens, written_use,
};

/// One path in one public signature, with where it leads.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) module: Vec<String>,
    /// `handle::Handle::call_tool`
    pub(crate) place: String,
    pub(crate) leads: Vec<String>,
}

/// All paths to other crates in what is public.
pub(crate) fn shown(tree: &Tree) -> Vec<Shown> {
    let mut out = Vec::new();
    for module in tree.library() {
        let mut walk = Walk {
            tree,
            module,
            out: &mut out,
        };
        for item in &module.items {
            if !is_test_only(item_attributes(item)) {
                walk.item(item);
            }
        }
    }
    out
}

struct Walk<'a> {
    tree: &'a Tree,
    module: &'a Module,
    out: &'a mut Vec<Shown>,
}

/// The paths in a piece of a signature; bodies are not part of it.
#[derive(Default)]
struct Paths(Vec<Written>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.push(written_path(path));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.0.extend(written_tokens(&tokens_of_macro(mac)));
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_block(&mut self, _: &'ast syn::Block) {}
}

impl Walk<'_> {
    fn show(&mut self, what: &str, collect: impl FnOnce(&mut Paths)) {
        let mut paths = Paths::default();
        collect(&mut paths);
        let place = format!("{}::{what}", self.module.name());
        let here = self.module.path.clone();
        for written in paths.0 {
            self.lead(&place, &here, &written, 4);
        }
    }

    /// Notes an outside path; looks through type aliases that are not public themselves.
    fn lead(&mut self, place: &str, here: &[String], written: &Written, depth: usize) {
        let leads = self.tree.resolve(here, written);
        match &leads {
            Some(Leads::Outside(outside)) => self.out.push(Shown {
                module: self.module.path.clone(),
                place: place.to_owned(),
                leads: outside.clone(),
            }),
            Some(found) if depth > 0 => {
                if let Some((module, syn::Item::Type(alias))) = self.tree.definition(found)
                    && !is_public(&alias.vis)
                {
                    let mut paths = Paths::default();
                    paths.visit_type(&alias.ty);
                    let there = module.path.clone();
                    for inner in paths.0 {
                        self.lead(place, &there, &inner, depth - 1);
                    }
                }
            }
            _ => {}
        }
    }

    fn item(&mut self, item: &syn::Item) {
        use syn::Item;
        let name = item_name(item).map(ToString::to_string).unwrap_or_default();
        match item {
            Item::Impl(i) => return self.implementation(i),
            Item::Macro(m) => return self.macro_call(m),
            _ if !item_is_public(item) => return,
            _ => {}
        }
        match item {
            Item::Const(i) => self.show(&name, |p| p.visit_type(&i.ty)),
            Item::Static(i) => self.show(&name, |p| p.visit_type(&i.ty)),
            Item::Enum(i) => self.show(&name, |p| {
                p.visit_generics(&i.generics);
                i.variants.iter().for_each(|v| p.visit_fields(&v.fields));
            }),
            Item::Fn(i) => self.show(&name, |p| p.visit_signature(&i.sig)),
            Item::Struct(i) => self.show(&name, |p| {
                p.visit_generics(&i.generics);
                i.fields
                    .iter()
                    .filter(|f| is_public(&f.vis))
                    .for_each(|f| p.visit_type(&f.ty));
            }),
            Item::Trait(i) => self.show(&name, |p| p.visit_item_trait(i)),
            Item::Type(i) => self.show(&name, |p| {
                p.visit_generics(&i.generics);
                p.visit_type(&i.ty);
            }),
            Item::Use(i) => self.show("use", |p| p.0.extend(written_use(i))),
            _ => {}
        }
    }

    fn implementation(&mut self, item: &syn::ItemImpl) {
        let self_name = type_name(&item.self_ty);
        if self.is_hidden_type(&item.self_ty) {
            return;
        }
        let Some((_, of_trait, _)) = &item.trait_ else {
            let mut any = false;
            for inner in &item.items {
                match inner {
                    syn::ImplItem::Fn(f) if is_public(&f.vis) && !is_test_only(&f.attrs) => {
                        any = true;
                        let place = format!("{self_name}::{}", f.sig.ident);
                        self.show(&place, |p| p.visit_signature(&f.sig));
                    }
                    syn::ImplItem::Const(c) if is_public(&c.vis) => {
                        any = true;
                        let place = format!("{self_name}::{}", c.ident);
                        self.show(&place, |p| p.visit_type(&c.ty));
                    }
                    _ => {}
                }
            }
            if any {
                self.show(&self_name, |p| {
                    p.visit_generics(&item.generics);
                    p.visit_type(&item.self_ty);
                });
            }
            return;
        };
        // a trait that only this crate sees is nobody else's business
        let written = written_path(of_trait);
        if let Some(found) = self.tree.resolve(&self.module.path, &written)
            && let Some((_, definition)) = self.tree.definition(&found)
            && !item_is_public(definition)
        {
            return;
        }
        let place = format!("{self_name} as {}", written.text());
        self.show(&place, |p| {
            p.visit_generics(&item.generics);
            p.visit_path(of_trait);
            p.visit_type(&item.self_ty);
            for inner in &item.items {
                match inner {
                    syn::ImplItem::Fn(f) => p.visit_signature(&f.sig),
                    syn::ImplItem::Type(t) => p.visit_type(&t.ty),
                    syn::ImplItem::Const(c) => p.visit_type(&c.ty),
                    _ => {}
                }
            }
        });
    }

    fn is_hidden_type(&self, ty: &syn::Type) -> bool {
        let syn::Type::Path(path) = ty else {
            return false;
        };
        self.tree
            .resolve(&self.module.path, &written_path(&path.path))
            .and_then(|found| {
                self.tree
                    .definition(&found)
                    .map(|(_, item)| !item_is_public(item))
            })
            .unwrap_or(false)
    }

    /// A macro that writes `pub` may write anything after it: all that its tokens name counts.
    fn macro_call(&mut self, item: &syn::ItemMacro) {
        let tokens = tokens_of_macro(&item.mac);
        let mut writes_public = false;
        for pair in tokens.windows(2) {
            writes_public |= pair[0].is_word("pub") && pair[1] != Token::Open('(');
        }
        if writes_public {
            let name = item
                .ident
                .as_ref()
                .map_or_else(|| written_path(&item.mac.path).text(), ToString::to_string);
            self.show(&format!("{name}!"), |p| p.0.extend(written_tokens(&tokens)));
        }
    }
}

fn type_name(ty: &syn::Type) -> String {
    match ty {
        syn::Type::Path(p) => p.path.segments.last().map(|s| s.ident.to_string()),
        syn::Type::Reference(r) => Some(type_name(&r.elem)),
        _ => None,
    }
    .unwrap_or_else(|| "?".to_owned())
}

/// Types of the actor framework in public signatures outside `link`.
pub(crate) fn ractor_violations(tree: &Tree) -> Vec<String> {
    let mut out: Vec<String> = shown(tree)
        .into_iter()
        .filter(|s| s.module.first().is_none_or(|m| m != "link"))
        .filter(|s| s.leads[0] == "ractor")
        .map(|s| format!("{} shows {}", s.place, s.leads.join("::")))
        .collect();
    out.extend(hiding_globs(tree, "ractor", &["link"]));
    out.sort();
    out.dedup();
    out
}

/// The name of a type or trait in a path of rmcp, or the whole path when it has none.
fn rmcp_name(leads: &[String]) -> String {
    leads
        .iter()
        .find(|s| s.starts_with(char::is_uppercase))
        .cloned()
        .unwrap_or_else(|| leads.join("::"))
}

pub(crate) fn rmcp_violations(tree: &Tree, list: &[&str]) -> Vec<String> {
    let mut out: Vec<String> = shown(tree)
        .into_iter()
        .filter(|s| s.leads[0] == "rmcp")
        .filter(|s| !list.contains(&rmcp_name(&s.leads).as_str()))
        .map(|s| format!("{} shows {}", s.place, s.leads.join("::")))
        .collect();
    out.extend(hiding_globs(tree, "rmcp", &[]));
    out.sort();
    out.dedup();
    out
}

/// Names on the list that nothing public shows any more.
pub(crate) fn unused_rmcp_names(tree: &Tree, list: &[&str]) -> Vec<String> {
    let used: Vec<String> = shown(tree)
        .into_iter()
        .filter(|s| s.leads[0] == "rmcp")
        .map(|s| rmcp_name(&s.leads))
        .collect();
    list.iter()
        .filter(|n| !used.iter().any(|u| u == *n))
        .map(|n| (*n).to_owned())
        .collect()
}

/// After `use rmcp::model::*` a reader (and this test) cannot tell where a name comes from.
fn hiding_globs(tree: &Tree, of: &str, except: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    for module in tree.library() {
        if module
            .path
            .first()
            .is_some_and(|m| except.contains(&m.as_str()))
        {
            continue;
        }
        for (here, written) in crate::reading::Reads::of(module).paths {
            if written.glob
                && let Some(Leads::Outside(outside)) = tree.resolve(&here, &written)
                && outside[0] == of
            {
                out.push(format!(
                    "{}: a glob hides names: {}",
                    module.name(),
                    written.text()
                ));
            }
        }
    }
    out
}

/// Public functions that give a future, and public types that are one, without a word on dropping it.
pub(crate) fn cancel_safety_violations(tree: &Tree) -> Vec<String> {
    let mut out = Vec::new();
    for module in tree.library() {
        let mut note = |name: String, attributes: &[syn::Attribute]| {
            if !documentation(attributes).contains("# Cancel safety") {
                out.push(format!(
                    "{}::{name} gives a future and has no `# Cancel safety`",
                    module.name()
                ));
            }
        };
        for item in module
            .items
            .iter()
            .filter(|i| !is_test_only(item_attributes(i)))
        {
            match item {
                syn::Item::Fn(f) if is_public(&f.vis) && gives_future(&f.sig) => {
                    note(f.sig.ident.to_string(), &f.attrs);
                }
                syn::Item::Trait(t) if is_public(&t.vis) => {
                    for inner in &t.items {
                        if let syn::TraitItem::Fn(f) = inner
                            && gives_future(&f.sig)
                        {
                            note(format!("{}::{}", t.ident, f.sig.ident), &f.attrs);
                        }
                    }
                }
                syn::Item::Impl(i) => {
                    let walk = Walk {
                        tree,
                        module,
                        out: &mut Vec::new(),
                    };
                    if walk.is_hidden_type(&i.self_ty) {
                        continue;
                    }
                    let name = type_name(&i.self_ty);
                    if let Some((_, of_trait, _)) = &i.trait_ {
                        let last = of_trait.segments.last().map(|s| s.ident.to_string());
                        if matches!(last.as_deref(), Some("Future" | "IntoFuture"))
                            && let syn::Type::Path(path) = &*i.self_ty
                            && let Some(found) =
                                tree.resolve(&module.path, &written_path(&path.path))
                            && let Some((_, definition)) = tree.definition(&found)
                        {
                            note(name, item_attributes(definition));
                        }
                        continue;
                    }
                    for inner in &i.items {
                        if let syn::ImplItem::Fn(f) = inner
                            && is_public(&f.vis)
                            && !is_test_only(&f.attrs)
                            && gives_future(&f.sig)
                        {
                            note(format!("{name}::{}", f.sig.ident), &f.attrs);
                        }
                    }
                }
                _ => {}
            }
        }
    }
    out
}

fn gives_future(signature: &syn::Signature) -> bool {
    if signature.asyncness.is_some() {
        return true;
    }
    let mut paths = Paths::default();
    paths.visit_return_type(&signature.output);
    paths.0.iter().any(|w| {
        w.segments
            .last()
            .is_some_and(|l| matches!(l.as_str(), "Future" | "BoxFuture" | "LocalBoxFuture"))
    })
}

fn documentation(attributes: &[syn::Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("doc")) {
        if let syn::Meta::NameValue(pair) = &attribute.meta
            && let syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(line),
                ..
            }) = &pair.value
        {
            text.push_str(&line.value());
            text.push('\n');
        }
    }
    text
}

/// `unwrap` in any form, and `expect` without a message that says something.
pub(crate) fn unwrap_violations(tree: &Tree) -> Vec<String> {
    let mut out = Vec::new();
    for module in tree.library() {
        let mut look = Unwraps {
            name: module.name(),
            out: &mut out,
        };
        module.items.iter().for_each(|i| look.visit_item(i));
    }
    out
}

struct Unwraps<'a> {
    name: String,
    out: &'a mut Vec<String>,
}

/// Shorter than this, a message only repeats that something was expected.
const SHORTEST_MESSAGE: usize = 8;

impl Unwraps<'_> {
    fn message(&mut self, text: Option<String>) {
        let text = text.unwrap_or_default();
        if text.trim().len() < SHORTEST_MESSAGE {
            self.out.push(format!(
                "{}: an expect without a message: {text:?}",
                self.name
            ));
        }
    }
}

impl<'ast> Visit<'ast> for Unwraps<'_> {
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

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "unwrap" && call.args.is_empty() {
            self.out.push(format!("{}: .unwrap()", self.name));
        }
        if call.method == "expect" && call.args.len() == 1 {
            self.message(match call.args.first() {
                Some(syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(s),
                    ..
                })) => Some(s.value()),
                _ => None,
            });
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        if path.path.segments.len() > 1
            && path
                .path
                .segments
                .last()
                .is_some_and(|s| s.ident == "unwrap")
        {
            self.out
                .push(format!("{}: unwrap as a function", self.name));
        }
        visit::visit_expr_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        let tokens = tokens_of_macro(mac);
        for window in tokens.windows(4) {
            if !window[0].is_mark('.') || window[2] != Token::Open('(') {
                continue;
            }
            if window[1].is_word("unwrap") && window[3] == Token::Close(')') {
                self.out.push(format!("{}: .unwrap()", self.name));
            }
            if window[1].is_word("expect") {
                self.message(match &window[3] {
                    Token::Literal(l) => syn::parse_str::<syn::LitStr>(l).ok().map(|s| s.value()),
                    _ => None,
                });
            }
        }
    }
}
