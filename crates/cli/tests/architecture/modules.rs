//! The module tree of each crate, and who imports what from whom.
//!
//! Imports are read from the tokens of the sources: `use` declarations and every path that begins with `crate`, `self` or `super`,
//! also inside macros. A path is followed through re-exports to the module that defines the name, so that a `pub use` cannot hide a
//! cycle. Items under `#[cfg(test)]` are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Attribute, Item};

/// A module by its path from the crate's root; the root itself is empty.
pub(crate) type ModulePath = Vec<String>;

/// One path in the source of a module.
#[derive(Clone, Debug)]
pub(crate) struct Import {
    /// The module that contains the path.
    pub(crate) from: ModulePath,
    /// The module that defines what the path names.
    pub(crate) to: ModulePath,
    /// The last segments of the path, below `to`.
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
}

/// What is known of one module.
#[derive(Default)]
pub(crate) struct Module {
    /// The file that contains it.
    pub(crate) file: PathBuf,
    /// Its items, without its child modules and without what is compiled for tests only.
    pub(crate) tokens: TokenStream,
    /// Items that are defined in the module itself.
    defined: BTreeSet<String>,
    /// Names that `use` declarations bring into the module, with their paths.
    used: BTreeMap<String, Vec<String>>,
    /// Paths of `use …::*`.
    globs: Vec<Vec<String>>,
    /// All paths, with the line of each.
    paths: Vec<(Vec<String>, usize)>,
}

/// All modules of one crate.
pub(crate) struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

/// Modules that import each other, directly or through others.
#[derive(Debug)]
pub(crate) struct Cycle {
    /// The modules, each standing for itself and everything below it.
    pub(crate) modules: Vec<ModulePath>,
    /// One import for each pair of modules of the cycle.
    pub(crate) imports: Vec<Import>,
}

impl Crate {
    /// Reads a crate from its root file (`lib.rs` or `main.rs`).
    pub(crate) fn read(root: &Path) -> Self {
        let mut graph = Self { modules: BTreeMap::new() };
        graph.read_file(root, root.parent().expect("a file is in a folder"), Vec::new());
        graph
    }

    /// The modules of the crate, by path.
    pub(crate) fn modules(&self) -> &BTreeMap<ModulePath, Module> {
        &self.modules
    }

    fn read_file(&mut self, file: &Path, children: &Path, at: ModulePath) {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.read_items(parsed.items, file, children, at);
    }

    fn read_items(&mut self, items: Vec<Item>, file: &Path, children: &Path, at: ModulePath) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items {
            if is_for_tests(attributes(&item)) {
                continue;
            }
            if let Item::Mod(inner) = item {
                let name = inner.ident.to_string();
                let (below, path) = (children.join(&name), [at.clone(), vec![name.clone()]].concat());
                match inner.content {
                    Some((_, items)) => self.read_items(items, file, &below, path),
                    None => {
                        let flat = children.join(format!("{name}.rs"));
                        let file = if flat.is_file() { flat } else { below.join("mod.rs") };
                        self.read_file(&file, &below, path);
                    }
                }
                continue;
            }
            if let Some(name) = name_of(&item) {
                module.defined.insert(name);
            }
            if let Item::Use(declaration) = &item {
                for path in paths_of_use(declaration.tree.to_token_stream()) {
                    match path.last().map(String::as_str) {
                        Some("*") => module.globs.push(path[..path.len() - 1].to_vec()),
                        Some(_) => drop(module.used.insert(bound_name(declaration, &path), path)),
                        None => {}
                    }
                }
            }
            item.to_tokens(&mut module.tokens);
        }
        scan(module.tokens.clone(), &mut module.paths);
        self.modules.insert(at, module);
    }

    /// Every path of the crate that names something of another module.
    pub(crate) fn imports(&self) -> Vec<Import> {
        let mut found = Vec::new();
        for (from, module) in &self.modules {
            for (path, line) in &module.paths {
                let Some((to, name)) = self.resolve(from, path, 0) else { continue };
                if to != *from {
                    found.push(Import { from: from.clone(), to, name, file: module.file.clone(), line: *line });
                }
            }
        }
        found
    }

    /// The module that defines what a path names, and the rest of the path. `None` for other crates.
    fn resolve(&self, from: &ModulePath, path: &[String], depth: usize) -> Option<(ModulePath, String)> {
        // More re-exports of one name in a row do not occur.
        if depth > 8 {
            return None;
        }
        let mut at = from.clone();
        let mut remaining = path;
        match path.first()?.as_str() {
            "crate" => (at, remaining) = (Vec::new(), &path[1..]),
            "self" => remaining = &path[1..],
            "super" => {}
            first => {
                let is_child = self.modules.contains_key(&[at.clone(), vec![first.to_owned()]].concat());
                let is_bound =
                    depth > 0 && self.modules.get(&at).is_some_and(|module| module.used.contains_key(first));
                if !is_child && !is_bound {
                    return None;
                }
            }
        }
        while remaining.first().is_some_and(|segment| segment == "super") {
            at.pop()?;
            remaining = &remaining[1..];
        }
        while let Some(segment) = remaining.first() {
            let child = [at.clone(), vec![segment.clone()]].concat();
            if self.modules.contains_key(&child) {
                (at, remaining) = (child, &remaining[1..]);
                continue;
            }
            let module = self.modules.get(&at)?;
            if module.defined.contains(segment) {
                break;
            }
            if let Some(target) = module.used.get(segment) {
                let target = [target.as_slice(), &remaining[1..]].concat();
                return self.resolve(&at, &target, depth + 1).or_else(|| Some((at, remaining.join("::"))));
            }
            for glob in &module.globs {
                let target = [glob.as_slice(), remaining].concat();
                if let Some((to, name)) = self.resolve(&at, &target, depth + 1)
                    && self
                        .modules
                        .get(&to)
                        .is_some_and(|module| name.is_empty() || module.defined.contains(segment))
                {
                    return Some((to, name));
                }
            }
            break;
        }
        Some((at, remaining.join("::")))
    }

    /// The import cycles. A module and everything below it count as one node.
    pub(crate) fn cycles(&self) -> Vec<Cycle> {
        let mut between: BTreeMap<(ModulePath, ModulePath), Import> = BTreeMap::new();
        for import in self.imports() {
            let common = import.from.iter().zip(&import.to).take_while(|(a, b)| a == b).count();
            if common < import.from.len() && common < import.to.len() {
                let node = |path: &ModulePath| path[..=common].to_vec();
                between.entry((node(&import.from), node(&import.to))).or_insert(import);
            }
        }
        let mut cycles = Vec::new();
        let mut done = BTreeSet::new();
        let nodes: BTreeSet<&ModulePath> = between.keys().flat_map(|(from, to)| [from, to]).collect();
        for node in nodes {
            if done.contains(node) {
                continue;
            }
            let reached = reachable(&between, node);
            let modules: Vec<ModulePath> =
                reached.iter().filter(|other| reachable(&between, other).contains(node)).cloned().collect();
            if modules.len() > 1 {
                done.extend(modules.iter().cloned());
                let inside = |(from, to): &(ModulePath, ModulePath)| modules.contains(from) && modules.contains(to);
                let imports =
                    between.iter().filter(|(pair, _)| inside(pair)).map(|(_, import)| import.clone()).collect();
                cycles.push(Cycle { modules, imports });
            }
        }
        cycles
    }
}

/// All nodes that imports lead to, directly or not; the start only if something leads back to it.
fn reachable(between: &BTreeMap<(ModulePath, ModulePath), Import>, start: &ModulePath) -> BTreeSet<ModulePath> {
    let mut found = BTreeSet::new();
    let mut open = vec![start.clone()];
    while let Some(node) = open.pop() {
        for (from, to) in between.keys() {
            if *from == node && found.insert(to.clone()) {
                open.push(to.clone());
            }
        }
    }
    found
}

/// Whether an item is compiled for tests only.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.meta.to_token_stream().to_string();
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg") && condition.contains("test") && !condition.contains("not"))
    })
}

/// The attributes of an item.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        _ => return None,
    };
    Some(name.to_string())
}

/// The name under which a path of a `use` declaration is known: its last segment, or what stands after `as`.
fn bound_name(declaration: &syn::ItemUse, path: &[String]) -> String {
    fn renamed(tree: &syn::UseTree, path: &[String]) -> Option<String> {
        match tree {
            syn::UseTree::Path(tree) => {
                (path.first()? == &tree.ident.to_string()).then(|| renamed(&tree.tree, &path[1..]))?
            }
            syn::UseTree::Rename(tree) => (path == [tree.ident.to_string()]).then(|| tree.rename.to_string()),
            syn::UseTree::Group(group) => group.items.iter().find_map(|tree| renamed(tree, path)),
            syn::UseTree::Name(_) | syn::UseTree::Glob(_) => None,
        }
    }
    renamed(&declaration.tree, path)
        .unwrap_or_else(|| path.iter().rfind(|segment| *segment != "self").cloned().unwrap_or_default())
}

/// The paths of a `use` tree: one for each name.
fn paths_of_use(tree: TokenStream) -> Vec<Vec<String>> {
    let tokens: Vec<TokenTree> = tree.into_iter().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        at = path_at(&tokens, at, &[], &mut found).max(at + 1);
    }
    found.into_iter().map(|(path, _)| path).collect()
}

/// Adds every path that begins with `crate`, `self` or `super`, and every path of `use` declarations.
fn scan(tokens: TokenStream, found: &mut Vec<(Vec<String>, usize)>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => scan(group.stream(), found),
            TokenTree::Ident(ident) if is_path_start(&tokens, at, &ident.to_string()) => {
                at = path_at(&tokens, at, &[], found);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
}

fn is_path_start(tokens: &[TokenTree], at: usize, ident: &str) -> bool {
    let after_use = at > 0 && matches!(&tokens[at - 1], TokenTree::Ident(before) if before == "use");
    let inside_path = at > 0 && is_colon(&tokens[at - 1]);
    (after_use || ["crate", "self", "super"].contains(&ident))
        && !inside_path
        && tokens.get(at + 1).is_some_and(is_colon)
}

fn is_colon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':')
}

/// Reads the path at `at`, with the groups of a `use` tree; returns where the next token is.
fn path_at(tokens: &[TokenTree], mut at: usize, before: &[String], found: &mut Vec<(Vec<String>, usize)>) -> usize {
    let mut path = before.to_vec();
    let mut line = 0;
    let note = |line: &mut usize, span: Span| *line = if *line == 0 { span.start().line } else { *line };
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => {
                note(&mut line, ident.span());
                path.push(ident.to_string());
            }
            Some(TokenTree::Punct(star)) if star.as_char() == '*' => {
                note(&mut line, star.span());
                path.push("*".into());
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let mut inside = 0;
                while inside < inner.len() {
                    inside = path_at(&inner, inside, &path, found).max(inside + 1);
                    while inside < inner.len()
                        && !matches!(&inner[inside], TokenTree::Punct(comma) if comma.as_char() == ',')
                    {
                        inside += 1;
                    }
                    inside += 1;
                }
                return at + 1;
            }
            _ => break,
        }
        at += 1;
        if tokens.get(at).is_some_and(is_colon) && tokens.get(at + 1).is_some_and(is_colon) {
            at += 2;
            continue;
        }
        break;
    }
    if path.len() > before.len() {
        found.push((path, line));
    }
    at
}
