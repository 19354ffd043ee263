//! Pages that have a form: decisions and the change log.

use crate::none;
use crate::tree::Tree;

/// What every decision tells, in this order.
const SECTIONS: &[&str] = &["## Context", "## Choice", "## Price", "## When to revisit"];

#[test]
fn every_decision_has_its_sections() {
    let tree = Tree::read();
    let mut wrong = Vec::new();
    let mut numbers = Vec::new();
    for page in tree.files.iter().filter_map(|file| file.strip_prefix("docs/decisions/")) {
        let number = page.get(..4).filter(|n| n.bytes().all(|b| b.is_ascii_digit()) && page[4..].starts_with('-'));
        let Some(number) = number.filter(|_| page.ends_with(".md")) else {
            wrong.push(format!("{page}: a name such as 0001-title.md was expected"));
            continue;
        };
        numbers.push(number.to_owned());
        let text = tree.text(&format!("docs/decisions/{page}"));
        wrong.extend(lacks(&text, number).into_iter().map(|what| format!("{page}: {what}")));
    }
    none("decisions out of form", wrong);
    let expected: Vec<String> = (1..=numbers.len()).map(|n| format!("{n:04}")).collect();
    assert!(!numbers.is_empty(), "no decisions were found");
    assert_eq!(numbers, expected, "decisions are numbered from 0001, each number once, without gaps");
}

/// What a decision's page lacks.
fn lacks(text: &str, number: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !text.starts_with(&format!("# {number}: ")) {
        found.push(format!("it does not open with `# {number}: title`"));
    }
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
    if headings != SECTIONS {
        found.push(format!("sections {SECTIONS:?} expected, {headings:?} found"));
    }
    let mut parts = text.split("\n## ").skip(1);
    if parts.any(|part| part.split_once('\n').is_none_or(|(_, body)| body.trim().is_empty())) {
        found.push("a section is empty".into());
    }
    found
}

#[test]
fn the_change_log_is_open_for_the_next_change() {
    let log = Tree::read().text("CHANGELOG.md");
    let first = log.lines().find(|line| line.starts_with("## "));
    assert_eq!(first, Some("## Unreleased"), "CHANGELOG.md: its first block takes what is not released yet");
}

#[test]
fn a_decision_out_of_form_is_found() {
    let sound = "# 0007: x\n\n## Context\na\n\n## Choice\nb\n\n## Price\nc\n\n## When to revisit\nd\n";
    assert_eq!(lacks(sound, "0007"), Vec::<String>::new());
    assert_eq!(lacks(sound, "0008").len(), 1);
    assert_eq!(lacks(&sound.replace("## Price", "## Cost"), "0007").len(), 1);
    assert_eq!(lacks(&sound.replace("\nc\n", "\n"), "0007").len(), 1);
}
