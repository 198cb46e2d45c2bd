//! The crate as text: every module with its items, its imports and where a name in it leads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::Visit;

/// The segments of a module's or an item's path, without `crate`.
pub(crate) type Segments = Vec<String>;

/// One token, flat: groups become an opening and a closing token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Word(String),
    Mark(char),
    Literal(String),
    Open(char),
    Close(char),
}

impl Token {
    pub(crate) fn is_mark(&self, mark: char) -> bool {
        *self == Token::Mark(mark)
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        matches!(self, Token::Word(w) if w == word)
    }
}

/// The tokens of a macro call or of a whole file. Comments are gone, doc comments are attributes.
pub(crate) fn tokens_of(buffer: &TokenBuffer) -> Vec<Token> {
    let mut out = Vec::new();
    flatten(buffer.begin(), &mut out);
    out
}

pub(crate) fn tokens_of_macro(mac: &syn::Macro) -> Vec<Token> {
    tokens_of(&TokenBuffer::new2(mac.tokens.clone()))
}

fn flatten(mut at: Cursor<'_>, out: &mut Vec<Token>) {
    while !at.eof() {
        if let Some((word, rest)) = at.ident() {
            out.push(Token::Word(word.to_string()));
            at = rest;
        } else if let Some((mark, rest)) = at.punct() {
            out.push(Token::Mark(mark.as_char()));
            at = rest;
        } else if let Some((literal, rest)) = at.literal() {
            out.push(Token::Literal(literal.to_string()));
            at = rest;
        } else if let Some((_, rest)) = at.lifetime() {
            at = rest;
        } else if let Some((inside, delimiter, _, rest)) = at.any_group() {
            let (open, close) = match format!("{delimiter:?}").as_str() {
                "Parenthesis" => ('(', ')'),
                "Brace" => ('{', '}'),
                "Bracket" => ('[', ']'),
                _ => (' ', ' '),
            };
            out.push(Token::Open(open));
            flatten(inside, out);
            out.push(Token::Close(close));
            at = rest;
        } else {
            break;
        }
    }
}

/// A path as written, with what a `use` does to it.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) segments: Segments,
    /// `::name`, which is always another crate.
    pub(crate) leading: bool,
    /// `use a::b::*` has the segments `a::b` and this.
    pub(crate) glob: bool,
    /// The name that a `use` gives it; `None` outside of `use`.
    pub(crate) bound: Option<String>,
}

impl Written {
    pub(crate) fn text(&self) -> String {
        let mut text = String::from(if self.leading { "::" } else { "" });
        text.push_str(&self.segments.join("::"));
        if self.glob {
            text.push_str("::*");
        }
        text
    }
}

pub(crate) fn written_path(path: &syn::Path) -> Written {
    Written {
        segments: path.segments.iter().map(|s| s.ident.to_string()).collect(),
        leading: path.leading_colon.is_some(),
        glob: false,
        bound: None,
    }
}

/// Every leaf of a `use` tree.
pub(crate) fn written_use(item: &syn::ItemUse) -> Vec<Written> {
    fn walk(tree: &syn::UseTree, prefix: &Segments, leading: bool, out: &mut Vec<Written>) {
        let mut push = |segments: Segments, glob: bool, bound: Option<String>| {
            out.push(Written {
                segments,
                leading,
                glob,
                bound,
            });
        };
        match tree {
            syn::UseTree::Path(p) => {
                let mut longer = prefix.clone();
                longer.push(p.ident.to_string());
                walk(&p.tree, &longer, leading, out);
            }
            syn::UseTree::Group(g) => g.items.iter().for_each(|t| walk(t, prefix, leading, out)),
            syn::UseTree::Glob(_) => push(prefix.clone(), true, None),
            syn::UseTree::Name(n) => {
                let mut segments = prefix.clone();
                if n.ident != "self" || segments.is_empty() {
                    segments.push(n.ident.to_string());
                }
                let bound = segments.last().cloned();
                push(segments, false, bound);
            }
            syn::UseTree::Rename(r) => {
                let mut segments = prefix.clone();
                if r.ident != "self" || segments.is_empty() {
                    segments.push(r.ident.to_string());
                }
                push(segments, false, Some(r.rename.to_string()));
            }
        }
    }
    let mut out = Vec::new();
    walk(
        &item.tree,
        &Vec::new(),
        item.leading_colon.is_some(),
        &mut out,
    );
    out
}

/// Every path among tokens, `use` groups included. A metavariable (`$name`) is not a path, `$crate` is.
pub(crate) fn written_tokens(tokens: &[Token]) -> Vec<Written> {
    let mut out = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let Token::Word(word) = &tokens[i] else {
            i += 1;
            continue;
        };
        let before = |n: usize| i.checked_sub(n).and_then(|j| tokens.get(j));
        let field =
            before(1).is_some_and(|t| t.is_mark('.')) && !before(2).is_some_and(|t| t.is_mark('.'));
        let variable = before(1).is_some_and(|t| t.is_mark('$')) && word != "crate";
        if field || variable {
            i += 1;
            continue;
        }
        let leading =
            before(1).is_some_and(|t| t.is_mark(':')) && before(2).is_some_and(|t| t.is_mark(':'));
        let in_use = before(1).is_some_and(|t| t.is_word("use"));
        i = token_tree(tokens, i, &Vec::new(), leading, in_use, &mut out);
    }
    out
}

fn token_tree(
    tokens: &[Token],
    start: usize,
    prefix: &Segments,
    leading: bool,
    in_use: bool,
    out: &mut Vec<Written>,
) -> usize {
    let mut segments = prefix.clone();
    let mut i = start;
    let colons = |i: usize| {
        tokens.get(i).is_some_and(|t| t.is_mark(':'))
            && tokens.get(i + 1).is_some_and(|t| t.is_mark(':'))
    };
    loop {
        match tokens.get(i) {
            Some(Token::Word(word)) => {
                if word != "self" || segments.is_empty() {
                    segments.push(word.clone());
                }
                i += 1;
            }
            Some(Token::Mark('*')) if !segments.is_empty() => {
                out.push(Written {
                    segments,
                    leading,
                    glob: true,
                    bound: None,
                });
                return i + 1;
            }
            Some(Token::Open('{')) if !segments.is_empty() => {
                i += 1;
                while let Some(token) = tokens.get(i) {
                    match token {
                        Token::Close('}') => return i + 1,
                        Token::Word(_) | Token::Mark('*') | Token::Open('{') => {
                            i = token_tree(tokens, i, &segments, leading, in_use, out).max(i + 1);
                        }
                        _ => i += 1,
                    }
                }
                return i;
            }
            _ => return i.max(start + 1),
        }
        if colons(i) && !matches!(tokens.get(i + 2), Some(Token::Mark('<')) | None) {
            i += 2;
            continue;
        }
        let mut bound = in_use.then(|| segments.last().cloned().unwrap_or_default());
        if in_use && tokens.get(i).is_some_and(|t| t.is_word("as")) {
            if let Some(Token::Word(name)) = tokens.get(i + 1) {
                bound = Some(name.clone());
            }
            i += 2;
        }
        out.push(Written {
            segments,
            leading,
            glob: false,
            bound,
        });
        return i;
    }
}

/// One module: a file, or a `mod name { .. }` inside one.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) path: Segments,
    pub(crate) file: String,
    /// Its items without inline modules, which are modules of their own here.
    pub(crate) items: Vec<syn::Item>,
    /// Under a `#[cfg(test)]`.
    pub(crate) test_only: bool,
    /// Some `mod` statement names it.
    pub(crate) declared: bool,
    /// What its `use` statements bring in, also those inside functions.
    imports: Vec<Written>,
}

impl Module {
    pub(crate) fn name(&self) -> String {
        name_of(&self.path)
    }

    pub(crate) fn item(&self, name: &str) -> Option<&syn::Item> {
        self.items
            .iter()
            .find(|i| item_name(i).is_some_and(|n| n == name))
    }

    fn imported(&self, name: &str) -> Option<&Written> {
        self.imports
            .iter()
            .find(|w| w.bound.as_deref() == Some(name))
    }
}

pub(crate) fn name_of(path: &[String]) -> String {
    if path.is_empty() {
        "lib.rs".to_owned()
    } else {
        path.join("::")
    }
}

/// Where a written path leads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Leads {
    /// An item of this crate: the deepest module on the way, and the rest of the path.
    Here { module: Segments, rest: Segments },
    /// Another crate, with the whole path through imports and re-exports.
    Outside(Segments),
}

/// All of `src`, or a planted stand-in for it.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) modules: BTreeMap<Segments, Module>,
}

const DEPTH: usize = 8;

impl Tree {
    /// Reads the directory `src` of this package.
    pub(crate) fn of_this_package() -> Tree {
        let src = package_file("src");
        let files: Vec<(String, String)> = files_below(&src, "rs")
            .into_iter()
            .map(|file| {
                let short = file.strip_prefix(&src).expect("a file below src");
                (short.to_string_lossy().into_owned(), read(&file))
            })
            .collect();
        let borrowed: Vec<(&str, &str)> = files
            .iter()
            .map(|(n, t)| (n.as_str(), t.as_str()))
            .collect();
        Tree::of_sources(&borrowed)
    }

    /// `(path below src, text)` pairs.
    pub(crate) fn of_sources(files: &[(&str, &str)]) -> Tree {
        let mut modules = BTreeMap::new();
        // (module, is it for tests), from every `mod` statement
        let mut declarations: Vec<(Segments, bool)> = vec![(Vec::new(), false)];
        for (file, text) in files {
            let parsed = syn::parse_file(text).unwrap_or_else(|e| panic!("src/{file}: {e}"));
            let mut path: Segments = file
                .trim_end_matches(".rs")
                .split('/')
                .map(str::to_owned)
                .collect();
            if path == ["lib"] {
                path.clear();
            } else if path.last().is_some_and(|last| last == "mod") {
                path.pop();
            }
            let test_only = is_test_only(&parsed.attrs);
            add_module(
                &mut modules,
                &mut declarations,
                file,
                path,
                parsed.items,
                test_only,
            );
        }
        let tests: Vec<Segments> = declarations
            .iter()
            .filter(|d| d.1)
            .map(|d| d.0.clone())
            .collect();
        for module in modules.values_mut() {
            let module: &mut Module = module;
            module.declared = declarations.iter().any(|(d, _)| *d == module.path);
            module.test_only |= tests.iter().any(|t| module.path.starts_with(t));
        }
        Tree { modules }
    }

    /// The modules that are part of the library as users get it.
    pub(crate) fn library(&self) -> impl Iterator<Item = &Module> {
        self.modules.values().filter(|m| !m.test_only)
    }

    /// A path that starts with `crate`, `self` or `super`, without those words. More `super` than
    /// there are parents stop at the root.
    pub(crate) fn absolute(module: &[String], segments: &[String]) -> Option<Segments> {
        let mut here: Segments = match segments.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => {
                let mut up = module.to_vec();
                up.pop();
                up
            }
            _ => return None,
        };
        let mut rest = &segments[1..];
        while rest.first().is_some_and(|s| s == "super") {
            here.pop();
            rest = &rest[1..];
        }
        here.extend(rest.iter().cloned());
        Some(here)
    }

    /// Follows a path through imports, re-exports and globs.
    pub(crate) fn resolve(&self, module: &[String], written: &Written) -> Option<Leads> {
        let in_use = written.glob || written.bound.is_some();
        self.follow(module, &written.segments, written.leading, in_use, DEPTH)
    }

    fn follow(
        &self,
        module: &[String],
        segments: &[String],
        leading: bool,
        in_use: bool,
        depth: usize,
    ) -> Option<Leads> {
        let first = segments.first()?;
        if leading {
            return Some(Leads::Outside(segments.to_vec()));
        }
        let depth = depth.checked_sub(1)?;
        if let Some(absolute) = Tree::absolute(module, segments) {
            return Some(self.descend(&absolute, depth));
        }
        if let Some(found) = self.look_up(module, segments, depth) {
            return Some(found);
        }
        let crate_like = first.starts_with(|c: char| c.is_lowercase() || c == '_');
        (crate_like && (in_use || segments.len() > 1)).then(|| Leads::Outside(segments.to_vec()))
    }

    /// What the first segment is called in this module: a child, an item, an import, or through a glob.
    fn look_up(&self, module: &[String], segments: &[String], depth: usize) -> Option<Leads> {
        let depth = depth.checked_sub(1)?;
        let first = segments.first()?;
        let mut child = module.to_vec();
        child.push(first.clone());
        if self.modules.contains_key(&child) {
            child.extend(segments[1..].iter().cloned());
            return Some(self.descend(&child, depth));
        }
        let here = self.modules.get(module)?;
        if here.item(first).is_some() {
            return Some(Leads::Here {
                module: module.to_vec(),
                rest: segments.to_vec(),
            });
        }
        if let Some(import) = here.imported(first) {
            let mut longer = import.segments.clone();
            longer.extend(segments[1..].iter().cloned());
            if import.segments.first() == Some(first) {
                // `use name;` or `use name::name`: the first word is a crate, not this import again
                return Some(Leads::Outside(longer));
            }
            return self.follow(module, &longer, import.leading, true, depth);
        }
        here.imports.iter().filter(|w| w.glob).find_map(|glob| {
            let base = self.follow(module, &glob.segments, glob.leading, true, depth)?;
            match base {
                Leads::Here {
                    module: target,
                    rest,
                } if rest.is_empty() && target != module => self.look_up(&target, segments, depth),
                _ => None,
            }
        })
    }

    fn descend(&self, absolute: &[String], depth: usize) -> Leads {
        let mut cut = absolute.len();
        while cut > 0 && !self.modules.contains_key(&absolute[..cut]) {
            cut -= 1;
        }
        let (module, rest) = absolute.split_at(cut);
        if !rest.is_empty()
            && let Some(found) = self.look_up(module, rest, depth)
        {
            return found;
        }
        Leads::Here {
            module: module.to_vec(),
            rest: rest.to_vec(),
        }
    }

    /// The item that a path leads to, when it is one of this crate's own.
    pub(crate) fn definition(&self, leads: &Leads) -> Option<(&Module, &syn::Item)> {
        let Leads::Here { module, rest } = leads else {
            return None;
        };
        let module = self.modules.get(module)?;
        Some((module, module.item(rest.first()?)?))
    }
}

fn add_module(
    modules: &mut BTreeMap<Segments, Module>,
    declarations: &mut Vec<(Segments, bool)>,
    file: &str,
    path: Segments,
    items: Vec<syn::Item>,
    test_only: bool,
) {
    let mut kept = Vec::new();
    for item in items {
        let syn::Item::Mod(inner) = item else {
            kept.push(item);
            continue;
        };
        let mut below = path.clone();
        below.push(inner.ident.to_string());
        let inner_test = test_only || is_test_only(&inner.attrs);
        declarations.push((below.clone(), inner_test));
        match inner.content {
            Some((_, items)) => {
                add_module(modules, declarations, file, below, items, inner_test);
            }
            None => kept.push(syn::Item::Mod(inner)),
        }
    }
    struct Imports(Vec<Written>);
    impl<'ast> Visit<'ast> for Imports {
        fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
            if !is_test_only(&item.attrs) {
                self.0.extend(written_use(item));
            }
        }
    }
    let mut imports = Imports(Vec::new());
    kept.iter().for_each(|i| imports.visit_item(i));
    modules.insert(
        path.clone(),
        Module {
            path,
            file: file.to_owned(),
            items: kept,
            test_only,
            declared: false,
            imports: imports.0,
        },
    );
}

/// `#[cfg(test)]` or `#[cfg(all(test, ..))]`; `any` and `not` do not count.
pub(crate) fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    fn says_test(meta: &syn::Meta) -> bool {
        match meta {
            syn::Meta::Path(p) => p.is_ident("test"),
            syn::Meta::List(l) if l.path.is_ident("all") => l
                .parse_args_with(
                    syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated,
                )
                .is_ok_and(|all| all.iter().any(says_test)),
            _ => false,
        }
    }
    attributes.iter().any(|a| {
        a.path().is_ident("test")
            || (a.path().is_ident("cfg")
                && a.parse_args::<syn::Meta>().is_ok_and(|m| says_test(&m)))
    })
}

pub(crate) fn item_attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item;
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::ExternCrate(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::ForeignMod(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::TraitAlias(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

pub(crate) fn item_name(item: &syn::Item) -> Option<&syn::Ident> {
    use syn::Item;
    match item {
        Item::Const(i) => Some(&i.ident),
        Item::Enum(i) => Some(&i.ident),
        Item::Fn(i) => Some(&i.sig.ident),
        Item::Macro(i) => i.ident.as_ref(),
        Item::Static(i) => Some(&i.ident),
        Item::Struct(i) => Some(&i.ident),
        Item::Trait(i) => Some(&i.ident),
        Item::Type(i) => Some(&i.ident),
        Item::Union(i) => Some(&i.ident),
        _ => None,
    }
}

pub(crate) fn item_is_public(item: &syn::Item) -> bool {
    use syn::Item;
    let vis = match item {
        Item::Const(i) => &i.vis,
        Item::Enum(i) => &i.vis,
        Item::Fn(i) => &i.vis,
        Item::Static(i) => &i.vis,
        Item::Struct(i) => &i.vis,
        Item::Trait(i) => &i.vis,
        Item::Type(i) => &i.vis,
        Item::Union(i) => &i.vis,
        Item::Use(i) => &i.vis,
        _ => return false,
    };
    is_public(vis)
}

/// `pub`, and nothing narrower. The lint `unreachable_pub` sees to it that such an item really is
/// within reach of a user, so this is the public face.
pub(crate) fn is_public(vis: &syn::Visibility) -> bool {
    matches!(vis, syn::Visibility::Public(_))
}

pub(crate) fn package_file(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(below)
}

pub(crate) fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// All files below a directory with this extension (all, if it is empty), sorted.
pub(crate) fn files_below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if extension.is_empty() || path.extension().is_some_and(|e| e == extension) {
                out.push(path);
            }
        }
    }
    out.sort();
    out
}
