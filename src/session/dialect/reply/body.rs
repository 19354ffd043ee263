//! The JSON of a call while it comes in, up to its last brace. Owns where it stands in braces and texts.

use super::marked;
use super::value::{json_call, object};

/// JSON that has not ended.
#[derive(Debug)]
pub(super) struct Body {
    /// What came before it, which is text if this is no call.
    opening: String,
    /// Nothing came before it: the reply is this JSON.
    pub(super) is_bare: bool,
    /// The function's name, if it has come.
    name: Option<String>,
    mark: Option<&'static str>,
    text: String,
    depth: usize,
    inside: Inside,
}

/// Where a body stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Braces,
    Quotes { escaped: bool },
    Marks,
}

impl Body {
    pub(super) fn new(opening: String, name: Option<String>, mark: Option<&'static str>, is_bare: bool) -> Self {
        Self { opening, is_bare, name, mark, text: String::new(), depth: 0, inside: Inside::Braces }
    }

    /// Takes text up to the last brace; gives where that was.
    pub(super) fn push(&mut self, text: &str) -> Option<usize> {
        for (at, c) in text.char_indices() {
            self.text.push(c);
            self.see(c);
            if self.depth == 0 {
                return Some(at + c.len_utf8());
            }
        }
        None
    }

    fn see(&mut self, c: char) {
        let ends_with = |mark: &str| self.text.ends_with(mark);
        let is_mark = self.mark.is_some_and(|mark| mark.ends_with(c) && ends_with(mark));
        // The quotes of a mark are none.
        let in_mark = c == '"' && self.mark.is_some_and(|mark| mark.find(c).is_some_and(|at| ends_with(&mark[..=at])));
        self.inside = match (self.inside, c) {
            (Inside::Braces, _) if is_mark => Inside::Marks,
            (Inside::Marks, _) if is_mark => Inside::Braces,
            (Inside::Braces, '"') if !in_mark => Inside::Quotes { escaped: false },
            (Inside::Quotes { escaped: false }, '"') => Inside::Braces,
            (Inside::Quotes { escaped }, _) => Inside::Quotes { escaped: !escaped && c == '\\' },
            (Inside::Braces, '{') => {
                self.depth += 1;
                Inside::Braces
            }
            (Inside::Braces, '}') => {
                self.depth = self.depth.saturating_sub(1);
                Inside::Braces
            }
            (inside, _) => inside,
        };
    }

    /// Name and arguments, if it is a call. Where it is all of the reply, it must have both.
    pub(super) fn call(&self) -> Option<(String, String)> {
        let Some(name) = &self.name else { return json_call(&self.text, self.is_bare) };
        let arguments = match self.mark {
            Some(mark) => object(&marked::to_json(&self.text, mark)),
            None => object(&self.text),
        };
        Some((name.clone(), arguments?))
    }

    /// All that has come, as text.
    pub(super) fn into_text(self) -> String {
        self.opening + &self.text
    }
}
