//! That no two files of a crate use each other, straight or through others: what a file needs stands below it.
//! Reads imports and paths as text. A crate's root is left out: it declares and hands on. A name that a folder's `mod.rs`
//! hands on is looked up in the file that defines it.

use std::collections::{BTreeMap, BTreeSet};

use crate::none;
use crate::rust::code;
use crate::tree::Tree;

type Path = Vec<String>;

#[test]
fn no_module_of_a_crate_uses_itself_through_others() {
    let tree = Tree::read();
    let roots: Vec<&str> = tree.ending("/lib.rs").filter(|file| file.starts_with("src/")).collect();
    assert!(roots.len() > 10, "the crates were not found: {roots:?}");
    let mut found = Vec::new();
    for root in roots {
        let folder = root.strip_suffix("lib.rs").expect("by the ending");
        let others = ["tests/", "examples/", "benches/", "fuzz/"].map(|name| format!("{folder}{name}"));
        let files = tree.ending(".rs").filter(|f| f.starts_with(folder) && !others.iter().any(|o| f.starts_with(o)));
        let sources = files.map(|file| (file[folder.len()..].to_owned(), tree.text(file))).collect();
        found.extend(circles(&sources).into_iter().map(|circle| format!("{folder}: {}", circle.join(" <-> "))));
    }
    none("files that use each other", found);
}

/// The groups of files that reach each other, by their names within the crate.
fn circles(sources: &BTreeMap<String, String>) -> Vec<Vec<String>> {
    let modules: BTreeMap<Path, String> =
        sources.keys().filter(|f| *f != "build.rs").map(|file| (module_of(file), file.clone())).collect();
    let code: BTreeMap<&str, String> =
        sources.iter().map(|(file, text)| (file.as_str(), without_tests(text))).collect();
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (module, file) in modules.iter().filter(|(module, _)| !module.is_empty()) {
        for path in paths(&code[file.as_str()], module, &modules) {
            let target = resolve(&path, &modules, &code, 0);
            if let Some(target) = target.filter(|target| !target.is_empty() && target != module) {
                uses.entry(file).or_default().insert(&modules[&target]);
            }
        }
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> = uses.keys().map(|file| (*file, reached(file, &uses))).collect();
    let group = |file: &str| -> Vec<String> {
        let back = |other: &&&str| reach.get(**other).is_some_and(|back| back.contains(file));
        reach[file].iter().filter(back).map(|other| (*other).to_owned()).collect()
    };
    let mut groups: Vec<Vec<String>> = reach.keys().map(|file| group(file)).filter(|group| group.len() > 1).collect();
    groups.sort();
    groups.dedup();
    groups
}

/// All files that `from` uses, straight or through others.
fn reached<'f>(from: &'f str, uses: &BTreeMap<&'f str, BTreeSet<&'f str>>) -> BTreeSet<&'f str> {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(file) = left.pop() {
        left.extend(uses.get(file).into_iter().flatten().copied().filter(|next| seen.insert(*next)));
    }
    seen
}

fn module_of(file: &str) -> Path {
    let name = file.strip_suffix(".rs").unwrap_or(file);
    let name = name.strip_suffix("/mod").unwrap_or(name);
    if name == "lib" { Vec::new() } else { name.split('/').map(str::to_owned).collect() }
}

/// The code before the file's own tests.
fn without_tests(text: &str) -> String {
    let code = code(text);
    let tests = ["#[cfg(test)]\nmod ", "#[cfg(test)]\npub(super) mod "];
    let end = tests.iter().filter_map(|tests| code.find(tests)).min().unwrap_or(code.len());
    code[..end].to_owned()
}

/// All paths into the crate that the code of `module` names, from the crate's root on.
fn paths(code: &str, module: &[String], modules: &BTreeMap<Path, String>) -> Vec<Path> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = code[at..].find(is_word).map(|n| n + at) {
        let word: String = code[start..].chars().take_while(|c| is_word(*c)).collect();
        at = start + word.len();
        let before = code[..start].chars().next_back();
        if before == Some(':') || !code[at..].starts_with("::") {
            continue;
        }
        let base = match word.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            child if modules.contains_key(&[module, &[child.to_owned()]].concat()) => {
                [module, &[child.to_owned()]].concat()
            }
            _ => continue,
        };
        expand(&code[at + 2..], base, &mut found);
    }
    found
}

/// The paths of a tree such as `a::{b, c::D}`, which follows `base`.
fn expand(text: &str, base: Path, found: &mut Vec<Path>) {
    let text = text.trim_start();
    if let Some(inner) = text.strip_prefix('{') {
        let (mut depth, mut from) = (0, 0);
        for (i, c) in inner.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => return expand(&inner[from..i], base, found),
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&inner[from..i], base.clone(), found);
                    from = i + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let word: String = text.chars().take_while(|c| is_word(*c)).collect();
    let rest = &text[word.len()..];
    let next = match word.as_str() {
        "" | "self" => base,
        "super" => base[..base.len().saturating_sub(1)].to_vec(),
        _ => [&base[..], std::slice::from_ref(&word)].concat(),
    };
    match rest.strip_prefix("::") {
        Some(more) if !word.is_empty() => expand(more, next, found),
        _ => found.push(next),
    }
}

/// The module that defines what `path` names, as far as it can be told.
fn resolve(
    path: &[String],
    modules: &BTreeMap<Path, String>,
    code: &BTreeMap<&str, String>,
    depth: usize,
) -> Option<Path> {
    let n = (0..=path.len()).rev().find(|&n| modules.contains_key(&path[..n]))?;
    let module = path[..n].to_vec();
    let Some(name) = path.get(n) else { return Some(module) };
    let text = &code[modules[&module].as_str()];
    for (at, _) in text.match_indices("use ") {
        let public = text[..at].trim_end().ends_with("pub") || text[..at].trim_end().ends_with(')');
        let end = text[at..].find(';').map_or(text.len(), |n| n + at);
        if !public || depth > 4 {
            continue;
        }
        let handed = paths(&text[at + 4..end], &module, modules);
        if let Some(from) = handed.iter().find(|from| from.last() == Some(name) && from[..] != path[..=n]) {
            return resolve(from, modules, code, depth + 1);
        }
    }
    Some(module)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[test]
fn a_circle_is_found_and_what_only_looks_like_one_is_not() {
    let crate_of = |files: &[(&str, &str)]| files.iter().map(|(f, t)| ((*f).to_owned(), (*t).to_owned())).collect();
    let found = circles(&crate_of(&[
        ("lib.rs", "mod a; mod b; mod c; pub use a::A;"),
        ("a.rs", "use crate::{b::{B, Other}, c};"),
        ("b.rs", "fn f() -> super::c::C { todo() }"),
        ("c/mod.rs", "mod d; pub use d::D; fn g() { d::h() }"),
        ("c/d.rs", "use crate::a::A;"),
    ]));
    assert_eq!(found, [["a.rs", "b.rs", "c/d.rs", "c/mod.rs"]]);
    let sound = circles(&crate_of(&[
        ("lib.rs", "mod a; mod c; pub use a::A;"),
        ("a.rs", "// use crate::c::C;\nuse crate::c::D;\n#[cfg(test)]\nmod tests { use crate::c::C; }"),
        ("c/mod.rs", "mod d; mod e; pub use d::D; use e::E; use crate::A;"),
        ("c/d.rs", "pub struct D;"),
        ("c/e.rs", "use super::D;"),
    ]));
    assert_eq!(sound, Vec::<Vec<String>>::new());
}
