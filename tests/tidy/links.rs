//! Links of Markdown pages: every relative one leads to a tracked file or folder, and every `#part` to a heading.

use crate::none;
use crate::tree::Tree;

#[test]
fn relative_links_lead_somewhere() {
    let tree = Tree::read();
    let mut dead = Vec::new();
    let mut n_links = 0;
    for page in tree.ending(".md") {
        for (line, target) in links(&tree.text(page)) {
            n_links += 1;
            if let Err(why) = follow(&tree, page, &target) {
                dead.push(format!("{page}:{line}: {target}: {why}"));
            }
        }
    }
    assert!(n_links > 20, "only {n_links} links were seen in all pages");
    none("links that lead nowhere", dead);
}

fn follow(tree: &Tree, page: &str, target: &str) -> Result<(), String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, part) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() { Some(page.to_owned()) } else { resolve(page, path) };
    let file = file.ok_or("it leaves the repository")?;
    if !tree.has(&file) {
        return if tree.has_folder(&file) && part.is_empty() { Ok(()) } else { Err(format!("{file} is not tracked")) };
    }
    if part.is_empty() || headings(&tree.text(&file)).iter().any(|heading| heading == part) {
        return Ok(());
    }
    Err(format!("{file} has no such heading"))
}

/// `path` as seen from `page`, as a path from the root; `None` when it leads out.
fn resolve(page: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The lines of `page` outside of fenced code, numbered, with inline code blanked.
fn prose(page: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (i, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let parts = line.split('`').enumerate();
            let seen = parts.map(|(i, part)| if i % 2 == 0 { part.to_owned() } else { "`".repeat(part.len()) });
            lines.push((i + 1, seen.collect::<Vec<_>>().join("`")));
        }
    }
    lines
}

/// Targets of `[text](target)`, `[name]: target`, and `src` and `srcset` of pictures, with their lines.
fn links(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(page) {
        let mut take = |text: &str| {
            let target = text.split_whitespace().next().unwrap_or_default();
            found.push((number, target.trim_matches(['<', '>']).to_owned()));
        };
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            take(&rest[..rest.find(')').unwrap_or(rest.len())]);
        }
        for name in ["src=\"", "srcset=\""] {
            for (at, _) in line.match_indices(name) {
                let rest = &line[at + name.len()..];
                take(&rest[..rest.find('"').unwrap_or(rest.len())]);
            }
        }
        if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            take(target);
        }
    }
    found
}

/// The names under which a page's headings can be reached.
fn headings(page: &str) -> Vec<String> {
    let mut fenced = false;
    let titles = page.lines().filter_map(|line| {
        fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        (!fenced && line.starts_with('#') && title.starts_with(' ')).then(|| title.trim().to_lowercase())
    });
    let name = |title: String| {
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    titles.map(name).collect()
}

#[test]
fn the_scanner_sees_links_outside_of_code() {
    let page = "# A `b` c\n[x](a/b.md) and `[y](no.md)`, [z](<c d.md> \"title\")\n```\n[no](no.md)\n```\n[ref]: ../e.md\n\
                <img src=\"f.png\">\n";
    let found = links(page);
    assert_eq!(found, [(2, "a/b.md".into()), (2, "c".into()), (6, "../e.md".into()), (7, "f.png".into())]);
    assert_eq!(headings(page), ["a-b-c"]);
    assert_eq!(resolve("docs/x/page.md", "../../src/./lib.rs").as_deref(), Some("src/lib.rs"));
    assert_eq!(resolve("page.md", "../x"), None);
}

#[test]
fn a_dead_link_is_found() {
    let tree = Tree::read();
    for target in ["docs/no-such-page.md", "Docs/STYLE.md", "../outside.md", "docs/STYLE.md#no-such-part", "#nowhere"] {
        assert!(follow(&tree, "README.md", target).is_err(), "{target}");
    }
    for target in ["docs/STYLE.md", "docs/STYLE.md#doc-comments", "src/", "https://example.org/x", "LICENSE"] {
        assert_eq!(follow(&tree, "README.md", target), Ok(()), "{target}");
    }
}
