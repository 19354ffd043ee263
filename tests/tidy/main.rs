//! What no compiler checks of the repository: that floors are kept, links lead somewhere, lists are complete, files are in order.
//! Looks at tracked files only and changes nothing.

mod circles;
mod documents;
mod files;
mod floors;
mod links;
mod rust;
mod tree;

/// Fails with all of `found`, one a line, under `what`.
#[track_caller]
fn none(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}
