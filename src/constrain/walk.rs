//! One answer's walk: free text up to where its grammar begins, then the grammar.
//! Owns the phases and the masks. Knows nothing of what grammars are made of.

use std::sync::Arc;

use engine::{Allowed, Constraint};
use llguidance::Matcher;
use text::TokenId;
use toktrie::SimpleVob;

use crate::watch::Watched;
use crate::words::{Words, find};

/// Free text that goes on until some text has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lead {
    /// What ends it.
    pub(crate) until: Vec<u8>,
    /// The control token that is it; then no text is.
    pub(crate) token: Option<TokenId>,
    /// The answer may end within it.
    pub(crate) may_end: bool,
    /// White space, in bytes, that may follow before the grammar begins.
    pub(crate) gap: usize,
}

/// Where a walk stands.
#[derive(Clone, Debug)]
enum Phase {
    /// In the free text of a lead; the end of it that may be the beginning of what ends it.
    Free { lead: usize, tail: Vec<u8> },
    /// Before the grammar: so much white space may come, or the token that opens the first lead.
    Gap { left: usize, opening: Option<TokenId> },
    /// In the grammar.
    Bound,
}

/// A walk.
pub(crate) struct Walk {
    words: Arc<Words>,
    matcher: Matcher,
    watched: Watched,
    leads: Arc<[Lead]>,
    phase: Phase,
    mask: SimpleVob,
    barred: Vec<TokenId>,
    deadline_ms: u128,
}

impl Walk {
    /// With an `opening` the leads come only after this token, which may be the first one.
    pub(crate) fn new(
        words: Arc<Words>,
        matcher: Matcher,
        watched: Watched,
        leads: Arc<[Lead]>,
        opening: Option<TokenId>,
        deadline_ms: u128,
    ) -> Self {
        let phase = match (leads.is_empty(), opening) {
            (true, _) => Phase::Bound,
            (false, None) => Phase::Free { lead: 0, tail: Vec::new() },
            (false, opening) => Phase::Gap { left: 0, opening },
        };
        let mask = SimpleVob::new();
        Self { words, matcher, watched, leads, phase, mask, barred: Vec::new(), deadline_ms }
    }

    /// Does something with the matcher under the deadline, and says in words what went wrong.
    fn work<T, E: ToString>(&mut self, work: impl FnOnce(&mut Matcher) -> Result<T, E>) -> Result<T, String> {
        let Self { watched, matcher, .. } = self;
        let done = watched.during(|| work(matcher));
        done.map_err(|error| {
            if self.matcher.is_cancelled() {
                return format!("the grammar took more than {} ms for one token: make it simpler", self.deadline_ms);
            }
            format!("the grammar cannot go on here: {}", plain(&error.to_string()))
        })
    }

    /// How many of the tokens the grammar takes from where it stands.
    fn n_bound(&mut self, tokens: &[u32]) -> usize {
        self.work(|m| m.validate_tokens(tokens)).unwrap_or(0)
    }

    fn length_of_blank(&self, token: TokenId) -> Option<usize> {
        let found = self.words.blanks.binary_search_by_key(&token, |blank| blank.0).ok()?;
        Some(self.words.blanks[found].1)
    }

    /// Where `phase` goes by a token, without a change to the matcher: the new phase, and the bytes that the grammar is
    /// then to take. `None` when the token cannot come there.
    fn after(&mut self, phase: &Phase, token: TokenId) -> Option<(Phase, Vec<u8>)> {
        match phase {
            Phase::Bound => (self.n_bound(&[token.0]) == 1).then(|| (Phase::Bound, Vec::new())),
            Phase::Gap { opening: Some(opening), .. } if *opening == token => {
                Some((Phase::Free { lead: 0, tail: Vec::new() }, Vec::new()))
            }
            Phase::Gap { left, .. } => {
                if self.n_bound(&[token.0]) == 1 {
                    return Some((Phase::Bound, Vec::new()));
                }
                let n = self.length_of_blank(token).filter(|n| n <= left)?;
                Some((Phase::Gap { left: left - n, opening: None }, Vec::new()))
            }
            Phase::Free { lead, tail } => {
                if self.words.eog.contains(&token) {
                    return None;
                }
                let text = match self.leads[*lead].token {
                    Some(ends) if ends == token => self.leads[*lead].until.clone(),
                    Some(_) => Vec::new(),
                    None => [tail, self.words.text(token)].concat(),
                };
                self.after_text(*lead, text)
            }
        }
    }

    /// As [`Walk::after`], for the text since the beginning of a lead, as far as it still matters.
    fn after_text(&mut self, mut lead: usize, mut text: Vec<u8>) -> Option<(Phase, Vec<u8>)> {
        loop {
            let until = &self.leads[lead].until;
            let Some(at) = find(&text, until) else {
                let from = text.len().saturating_sub(until.len() - 1);
                return Some((Phase::Free { lead, tail: text.split_off(from) }, Vec::new()));
            };
            text.drain(..at + until.len());
            if lead + 1 == self.leads.len() {
                break;
            }
            lead += 1;
            if self.leads[lead].token.is_some() {
                return Some((Phase::Free { lead, tail: Vec::new() }, Vec::new()));
            }
        }
        let gap = self.leads[lead].gap;
        // What came with the end of the lead belongs to the grammar, if it fits there, or else to the gap.
        let cut = self.words.cut(&text);
        if !text.is_empty() && self.n_bound(&cut) == cut.len() {
            return Some((Phase::Bound, text));
        }
        let n_blank = text.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if n_blank > gap {
            return None;
        }
        if n_blank == text.len() {
            let left = gap - n_blank;
            return Some((Phase::Gap { left, opening: None }, Vec::new()));
        }
        let rest = text.split_off(n_blank);
        let cut = self.words.cut(&rest);
        (self.n_bound(&cut) == cut.len()).then_some((Phase::Bound, rest))
    }

    /// Fills `barred` with the tokens that cannot come in free text: those that end generation, if it may not end here,
    /// and those that end the lead and go on with what the grammar does not begin with.
    fn bar(&mut self, lead: usize, tail: &[u8]) {
        let Lead { until, token, .. } = self.leads[lead].clone();
        self.barred.clear();
        if !self.leads[lead].may_end {
            self.barred.extend_from_slice(&self.words.eog);
        }
        if token.is_some() {
            return;
        }
        let words = Arc::clone(&self.words);
        let mut suspects: Vec<TokenId> = Vec::new();
        for n in (1..until.len()).filter(|&n| tail.ends_with(&until[..n])) {
            suspects.extend(words.beyond(&until[n..]).map(|(id, _)| id));
        }
        suspects.extend(words.holders_of(&until));
        let phase = Phase::Free { lead, tail: tail.to_vec() };
        for token in suspects {
            if self.after(&phase, token).is_none() {
                self.barred.push(token);
            }
        }
    }
}

impl Constraint for Walk {
    fn allowed(&mut self) -> Result<Allowed<'_>, String> {
        if let Phase::Free { lead, tail } = &self.phase {
            let (lead, tail) = (*lead, tail.clone());
            self.bar(lead, &tail);
            return Ok(Allowed::AllBut(&self.barred));
        }
        self.mask = self.work(Matcher::compute_mask)?;
        if let Phase::Gap { left, opening } = self.phase {
            let blanks = self.words.blanks.iter().filter(|(_, n)| *n <= left);
            blanks.for_each(|(id, _)| self.mask.allow_token(id.0));
            if let Some(id) = opening {
                self.mask.allow_token(id.0);
            }
        }
        Ok(Allowed::Only(self.mask.as_slice()))
    }

    fn accept(&mut self, token: TokenId) -> Result<(), String> {
        if matches!(self.phase, Phase::Bound) {
            return self.work(|m| m.consume_token(token.0));
        }
        let from = self.phase.clone();
        let Some((phase, text)) = self.after(&from, token) else {
            return Err(format!("token {} cannot come where it was picked", token.0));
        };
        if matches!(phase, Phase::Bound) {
            let cut = if text.is_empty() && matches!(from, Phase::Gap { .. }) {
                vec![token.0]
            } else {
                self.words.cut(&text)
            };
            self.work(|m| m.consume_tokens(&cut))?;
        }
        self.phase = phase;
        Ok(())
    }

    fn n_fitting(&mut self, tokens: &[TokenId]) -> usize {
        let ids: Vec<u32> = tokens.iter().map(|id| id.0).collect();
        let mut phase = self.phase.clone();
        for n in 0..ids.len() {
            // The matcher stands at its beginning until the first token of the grammar, so it can try all that follow.
            if matches!(phase, Phase::Bound) || matches!(phase, Phase::Gap { .. }) && self.n_bound(&ids[n..=n]) == 1 {
                return n + self.n_bound(&ids[n..]);
            }
            match self.after(&phase, tokens[n]) {
                Some((next, text)) if text.is_empty() => phase = next,
                Some((_, text)) => {
                    let before = self.words.cut(&text);
                    let n_taken = self.n_bound(&[&before, &ids[n + 1..]].concat());
                    return n + 1 + n_taken.saturating_sub(before.len());
                }
                None => {
                    let may_end = matches!(phase, Phase::Free { lead, .. } if self.leads[lead].may_end);
                    return n + usize::from(may_end && self.words.eog.contains(&tokens[n]));
                }
            }
        }
        ids.len()
    }

    fn forced(&mut self) -> Vec<TokenId> {
        if !matches!(self.phase, Phase::Bound) || self.matcher.is_stopped() {
            return Vec::new();
        }
        let Self { watched, matcher, .. } = self;
        watched.during(|| matcher.compute_ff_tokens()).into_iter().map(TokenId).collect()
    }

    fn is_complete(&self) -> bool {
        matches!(self.phase, Phase::Bound) && self.matcher.is_stopped()
    }

    fn may_think(&self) -> bool {
        matches!(self.phase, Phase::Free { .. } | Phase::Gap { opening: Some(_), .. })
    }
}

/// An error of llguidance without its marks.
pub(crate) fn plain(message: &str) -> String {
    let message = message.split("\n<").next().unwrap_or_default();
    let message = message.split("\n<backtrace>").next().unwrap_or_default().trim();
    let words: Vec<&str> = message.split_whitespace().collect();
    let mut text = words.join(" ");
    if text.len() > MAX_MESSAGE {
        let at = (0..=MAX_MESSAGE).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(at);
        text.push_str(" ...");
    }
    text
}

/// Longest message of llguidance that is passed on: it may quote the grammar.
const MAX_MESSAGE: usize = 500;
