//! Rust sources: opening lines, `unsafe`, macros that must not stay, architectures that are in the table.

use crate::none;
use crate::tree::Tree;

/// Made by bindgen: it opens with a line that says so.
const GENERATED: &str = "vendor/ggml-sys/bindings.rs";

/// Where `unsafe` may stand.
const FENCED: &[&str] = &["src/ggml/", "src/kernels/", "vendor/ggml-sys/"];

/// Macros for a programmer's own eyes.
const LEFTOVERS: &[&str] = &["todo", "unimplemented", "dbg"];

#[test]
fn every_source_says_what_it_is_for() {
    let tree = Tree::read();
    let silent = tree.ending(".rs").filter(|&file| file != GENERATED && !tree.text(file).starts_with("//! "));
    none("sources that do not open with a `//!` line", silent.map(str::to_owned).collect());
}

#[test]
fn unsafe_stands_in_the_fenced_crates_only() {
    let tree = Tree::read();
    let outside = tree.ending(".rs").filter(|file| !FENCED.iter().any(|fence| file.starts_with(fence)));
    let found = outside.flat_map(|file| {
        words(&code(&tree.text(file)), "unsafe").into_iter().map(move |line| format!("{file}:{line}"))
    });
    none("`unsafe` outside src/ggml, src/kernels and vendor/ggml-sys", found.collect());
}

#[test]
fn no_leftovers_stand_in_the_code() {
    let tree = Tree::read();
    let mut found = Vec::new();
    for file in tree.ending(".rs") {
        let code = code(&tree.text(file));
        for &name in LEFTOVERS {
            found.extend(calls(&code, name).into_iter().map(|line| format!("{file}:{line}: {name}!")));
        }
    }
    none("macros that are not for committed code", found);
}

#[test]
fn every_architecture_file_is_in_the_table() {
    let tree = Tree::read();
    let module = code(&tree.text("src/model/arch/mod.rs"));
    let files: Vec<&str> =
        tree.ending(".rs").filter_map(|file| file.strip_prefix("src/model/arch/")?.strip_suffix(".rs")).collect();
    // Parts of an architecture lie in a folder of its name.
    let files: Vec<&str> = files.into_iter().filter(|name| !name.contains('/')).collect();
    assert!(files.len() > 1, "no architectures were found in src/model/arch");
    none("architectures that src/model/arch/mod.rs does not list", unlisted(&module, &files));
}

#[test]
fn the_readme_names_every_architecture() {
    let readme = Tree::read().text("README.md");
    let missing = model::architectures().into_iter().filter(|name| !readme.contains(&format!("`{name}`")));
    none("architectures that README.md does not name", missing.map(str::to_owned).collect());
}

/// Files of `arch/` whose module or whose entry is missing in the table's source.
fn unlisted(module: &str, files: &[&str]) -> Vec<String> {
    let listed = |name: &str| module.contains(&format!("mod {name};")) && module.contains(&format!("{name}::ENTRY"));
    files.iter().filter(|&&name| name != "mod" && !listed(name)).map(|&name| name.to_owned()).collect()
}

/// `source` with comments, strings and characters blanked, line by line as long as before.
pub(crate) fn code(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let before = out.chars().next_back();
        let part = hidden(rest, before.is_some_and(is_word));
        let (text, keep) = if part == 0 { (&rest[..c.len_utf8()], true) } else { (&rest[..part], false) };
        out.extend(text.chars().map(|c| if keep || c == '\n' { c } else { ' ' }));
        rest = &rest[text.len()..];
    }
    out
}

/// Bytes of the comment, string or character that `text` begins with; 0 if it begins with none.
fn hidden(text: &str, in_word: bool) -> usize {
    let to = |end: Option<usize>| end.unwrap_or(text.len());
    if text.starts_with("//") {
        return to(text.find('\n'));
    }
    if text.starts_with("/*") {
        return block_comment(text);
    }
    if text.starts_with('"') {
        return quoted(text, '"');
    }
    if let Some(after) = text.strip_prefix('\'') {
        // A lifetime has no closing quote after its first character.
        let mut chars = after.chars();
        let first = chars.next();
        let closed = first == Some('\\') || chars.next() == Some('\'');
        return if closed { quoted(text, '\'') } else { 0 };
    }
    let raw = text.strip_prefix("br").or_else(|| text.strip_prefix("cr")).or_else(|| text.strip_prefix('r'));
    let Some(raw) = raw.filter(|_| !in_word) else { return 0 };
    let n = raw.bytes().take_while(|&b| b == b'#').count();
    let Some(body) = raw[n..].strip_prefix('"') else { return 0 };
    let start = text.len() - body.len();
    to(body.find(&format!("\"{}", "#".repeat(n))).map(|end| start + end + 1 + n))
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        let step = if rest.starts_with(b"/*") {
            depth += 1;
            2
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            2
        } else {
            1
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Lines on which `word` stands by itself.
fn words(code: &str, word: &str) -> Vec<usize> {
    found(code, word, |after| !after.is_some_and(is_word))
}

/// Lines on which the macro `name` is called.
fn calls(code: &str, name: &str) -> Vec<usize> {
    found(code, name, |after| after == Some('!'))
}

fn found(code: &str, word: &str, fits: impl Fn(Option<char>) -> bool) -> Vec<usize> {
    let places = code.match_indices(word).filter(|(at, _)| {
        let before = code[..*at].chars().next_back();
        !before.is_some_and(is_word) && fits(code[at + word.len()..].chars().next())
    });
    places.map(|(at, _)| code[..at].matches('\n').count() + 1).collect()
}

#[test]
fn the_scanner_sees_code_and_nothing_else() {
    let source = r###"#![forbid(unsafe_code)] // unsafe
/* unsafe /* unsafe */ unsafe */ let a = "unsafe \" unsafe"; let b = 'u'; let c = '\'';
fn f<'unsafe_a>(x: &'unsafe_a str) { let d = r#"unsafe " unsafe"#; let e = br"unsafe\"; }
unsafe fn g() { todo!() }
let todo = "todo!()"; my_todo!(); unsafe { dbg!(1) }
"###;
    let code = code(source);
    assert_eq!(code.lines().count(), source.lines().count());
    assert_eq!(words(&code, "unsafe"), [4, 5], "{code}");
    assert_eq!(calls(&code, "todo"), [4]);
    assert_eq!(calls(&code, "dbg"), [5]);
    assert_eq!(words("unsafe", "unsafe"), [1]);
}

#[test]
fn a_file_outside_the_table_is_found() {
    let module = "mod a;\nmod b;\nconst TABLE: &[Entry] = &[a::ENTRY];";
    assert_eq!(unlisted(module, &["mod", "a", "b", "c"]), ["b", "c"]);
}
