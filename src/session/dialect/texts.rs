//! The texts of a family's description as a grammar sees them: a control token never comes as text, so it is named by its id.

use constrain::lark;
use text::{TokenId, TokenKind, Vocab};

use super::family::{Arguments, Family, Form, ID, NUMBER};

/// The control tokens among a family's texts.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    control: Vec<(String, TokenId)>,
}

impl Texts {
    pub(super) fn new(family: &Family, vocab: &Vocab) -> Self {
        let forms = family.calls.as_ref().map_or(&[][..], |calls| calls.forms);
        let texts: Vec<&str> = forms.iter().flat_map(of_form).collect();
        let is_control = |id: TokenId| vocab.kind(id) == Some(TokenKind::Control);
        let control = vocab
            .special_tokens()
            .filter(|(id, text)| !text.is_empty() && is_control(*id) && texts.iter().any(|whole| whole.contains(text)));
        Self { control: control.map(|(id, text)| (text.to_owned(), id)).collect() }
    }

    /// In Lark, for a rule.
    pub(super) fn lark(&self, text: &str) -> String {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((at, n, part)) = self.next(rest) {
            parts.extend((at > 0).then(|| lark::text(&rest[..at])));
            parts.push(part);
            rest = &rest[at + n..];
        }
        parts.extend((!rest.is_empty()).then(|| lark::text(rest)));
        parts.join(" ")
    }

    /// Cut before the first control token: what can stand in a terminal, and the rest.
    pub(super) fn split<'t>(&self, text: &'t str) -> (&'t str, &'t str) {
        text.split_at(self.next(text).map_or(text.len(), |(at, ..)| at))
    }

    /// Whether this is one control token, or no part of it is.
    pub(super) fn is_one(&self, text: &str) -> bool {
        self.control.iter().any(|(token, _)| token == text)
            || !self.control.iter().any(|(token, _)| text.contains(token.as_str()))
    }

    /// The first control token or id in a text: where it is, its length, and what it is in Lark.
    fn next(&self, text: &str) -> Option<(usize, usize, String)> {
        let tokens = self
            .control
            .iter()
            .filter_map(|(token, id)| Some((text.find(token.as_str())?, token.len(), format!("<[{}]>", id.0))));
        let id = text.find(ID).map(|at| (at, ID.len_utf8(), lark::regex("[A-Za-z0-9]{9}")));
        let number = text.find(NUMBER).map(|at| (at, NUMBER.len_utf8(), lark::regex("[0-9]{1,3}")));
        tokens.chain(id).chain(number).min_by_key(|(at, n, _)| (*at, usize::MAX - n))
    }
}

fn of_form(form: &Form) -> Vec<&'static str> {
    let mut texts = vec![form.opening, form.first, form.before, form.after, form.end, form.closing];
    texts.extend(form.between);
    match &form.arguments {
        Arguments::Object | Arguments::Json | Arguments::Keywords => {}
        Arguments::Tagged(t) => texts.extend([t.open, t.named, t.value, t.close]),
        Arguments::Marked(mark) => texts.push(mark),
    }
    texts
}
