//! Drafts by looking up what came after the last tokens when they stood in the context before. Needs no head and computes
//! nothing; good where an answer repeats its prompt or itself.
//! Owns an index of each sequence's tokens and what drafts from it were worth. Knows nothing of graphs.

use std::time::Duration;

use engine::{Ask, EngineConfig, Observed, Proposer};
use model::{Model, RunError, Runner};
use text::TokenId;

use crate::nextn::{Depth, MAX_DEPTH};

/// The shortest repetition that is looked up.
const MIN_MATCH: usize = 2;

/// Repetitions are told apart up to this length.
const MAX_MATCH: usize = 16;

/// Earlier places that are compared at most, the newest first.
const MAX_PLACES: usize = 64;

/// Bits of the index.
const HASH_BITS: u32 = 12;

/// The end of a list of places.
const NONE: u32 = u32::MAX;

/// Weight of a new draft in what is known of its kind.
const WEIGHT: f64 = 0.12;

/// A kind of drafts that is right less often than this is left alone..
const WORTH: f64 = 0.4;

/// ..but for one in so many chances, to see whether that has changed.
const RETRY_EVERY: u32 = 24;

/// Weight of a new time in a running mean.
const TIME_WEIGHT: f64 = 0.15;

/// What a further row costs before it was measured, as a share of the first.
const ROW_COST: f64 = 0.2;

/// How much better a draft must look than none.
const MARGIN: f64 = 1.03;

/// Look-up as a source of drafts.
pub struct Ngram {
    depth: Depth,
    slots: Vec<Lookup>,
    times: Times,
}

impl Ngram {
    /// Look-up for the sequences of an engine made with `config`.
    pub fn new(model: &Model, config: &EngineConfig, depth: Depth) -> Self {
        let n_ctx = config.memory(model).n_ctx;
        Self { depth, slots: (0..config.n_sequences).map(|_| Lookup::new(n_ctx)).collect(), times: Times::default() }
    }

    /// The draft for `ask` with the chance that each of its tokens is right; empty when there is none worth its rows.
    /// The draft counts as made only when [`Ngram::made`] says so.
    pub(crate) fn find(&mut self, ask: &Ask) -> Found {
        let auto = self.depth == Depth::Auto;
        let Some(lookup) = self.slots.get_mut(ask.slot) else { return Found::default() };
        let mut found = lookup.find(ask.max.min(self.depth.max()));
        if auto && !found.tokens.is_empty() && !found.retry {
            let n = self.times.best(found.chance, found.tokens.len());
            found.tokens.truncate(n);
        }
        found
    }

    /// The draft was handed to the engine.
    pub(crate) fn made(&mut self, slot: usize, found: &Found) {
        self.slots[slot].judging = (!found.tokens.is_empty()).then_some(found.kind);
    }

    /// The last draft handed out for `slot` was this look-up's.
    pub(crate) fn is_judging(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|s| s.judging.is_some())
    }
}

impl Proposer for Ngram {
    fn max_depth(&self) -> usize {
        self.depth.max()
    }

    fn begin(&mut self, slot: usize, tokens: &[TokenId], _: Option<&[f32]>) -> Result<(), RunError> {
        if let Some(lookup) = self.slots.get_mut(slot) {
            lookup.begin(tokens);
        }
        Ok(())
    }

    fn observe(&mut self, _: &mut Runner, observed: &[Observed<'_>], took: Option<Duration>) -> Result<(), RunError> {
        if let (Some(took), [o]) = (took, observed) {
            self.times.took(1 + o.n_drafted, took);
        }
        for o in observed {
            if let Some(lookup) = self.slots.get_mut(o.slot) {
                lookup.judged(o.n_drafted, o.n_accepted);
                lookup.extend(o.tokens, o.next);
            }
        }
        Ok(())
    }

    fn propose(&mut self, _: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError> {
        let draft = |ask: &Ask| {
            let found = self.find(ask);
            self.made(ask.slot, &found);
            found.tokens
        };
        Ok(asks.iter().map(draft).collect())
    }
}

/// What came after a repetition.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) tokens: Vec<TokenId>,
    /// The chance that a token is right if those before it are.
    pub(crate) chance: f64,
    /// Its kind has been wrong so far.
    pub(crate) retry: bool,
    kind: usize,
}

/// The tokens of one sequence, and where each pair of them stood last.
#[derive(Debug)]
struct Lookup {
    /// As far as they are known: the last one may be picked and not computed yet.
    tokens: Vec<TokenId>,
    /// The last place of each hash: the number of tokens up to the end of the pair.
    newest: Vec<u32>,
    /// For each place the one before it with the same hash.
    earlier: Vec<u32>,
    /// The last token was picked after the step that was observed last: it comes again.
    ahead: bool,
    /// For each kind of drafts the share that was right, token by token.
    right: [f64; N_KINDS],
    /// Chances passed over since the last try.
    skipped: [u32; N_KINDS],
    /// The kind of the draft that the engine judges now.
    judging: Option<usize>,
}

/// Kinds of drafts, by the length of the repetition.
const N_KINDS: usize = 5;

/// The chances before anything was seen: the longer, the better.
const FIRST_GUESS: [f64; N_KINDS] = [0.4, 0.5, 0.6, 0.75, 0.85];

fn kind(n_match: usize) -> usize {
    match n_match {
        0..=2 => 0,
        3 => 1,
        4..=5 => 2,
        6..=9 => 3,
        _ => 4,
    }
}

impl Lookup {
    /// Room for `n_ctx` tokens is made at once: a sequence never has more.
    fn new(n_ctx: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(n_ctx + 1),
            newest: vec![NONE; 1 << HASH_BITS],
            earlier: Vec::with_capacity(n_ctx + 1),
            ahead: false,
            right: FIRST_GUESS,
            skipped: [0; N_KINDS],
            judging: None,
        }
    }

    /// Goes back or over to `tokens`; what they share with those before stays indexed.
    fn begin(&mut self, tokens: &[TokenId]) {
        let n_same = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The index is a stack: places leave in the order opposite to that in which they came.
        while self.tokens.len() > n_same {
            let earlier = self.earlier.pop().unwrap_or(NONE);
            if let Some(hash) = hash(&self.tokens) {
                self.newest[hash] = earlier;
            }
            self.tokens.pop();
        }
        tokens[n_same..].iter().for_each(|&token| self.push(token));
        self.ahead = false;
        // Another text: what was learned of the last one is a first guess, no more.
        for (right, first) in self.right.iter_mut().zip(FIRST_GUESS) {
            *right = 0.5 * (*right + first);
        }
        self.skipped = [0; N_KINDS];
        self.judging = None;
    }

    fn extend(&mut self, tokens: &[TokenId], next: Option<TokenId>) {
        let known = usize::from(std::mem::take(&mut self.ahead) && !tokens.is_empty());
        for &token in tokens[known..].iter().chain(&next) {
            self.push(token);
        }
        self.ahead = next.is_some();
    }

    fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        let place = self.tokens.len() as u32;
        let earlier = match hash(&self.tokens) {
            Some(hash) => std::mem::replace(&mut self.newest[hash], place),
            None => NONE,
        };
        self.earlier.push(earlier);
    }

    fn judged(&mut self, n_drafted: usize, n_right: usize) {
        let Some(kind) = self.judging.take().filter(|_| n_drafted > 0) else { return };
        for i in 0..n_drafted.min(n_right + 1) {
            self.right[kind] += WEIGHT * (f64::from(u8::from(i < n_right)) - self.right[kind]);
        }
    }

    /// What came after the longest repetition of the last tokens, the newest among equals.
    fn find(&mut self, max: usize) -> Found {
        let Some((n_match, place)) = self.longest() else { return Found::default() };
        let kind = kind(n_match);
        let chance = self.right[kind];
        let retry = chance < WORTH;
        if retry {
            self.skipped[kind] += 1;
            if self.skipped[kind] < RETRY_EVERY {
                return Found::default();
            }
            self.skipped[kind] = 0;
        }
        // A try costs one row; past the end of the text it goes on with itself.
        let n = if retry { max.min(1) } else { max };
        let mut tokens: Vec<TokenId> = Vec::with_capacity(n);
        for i in 0..n {
            let at = place + i;
            tokens.push(if at < self.tokens.len() { self.tokens[at] } else { tokens[at - self.tokens.len()] });
        }
        Found { tokens, chance, retry, kind }
    }

    fn longest(&self) -> Option<(usize, usize)> {
        let n = self.tokens.len();
        let mut place = self.earlier.last().copied().filter(|_| n > MIN_MATCH)?;
        let mut best = None;
        for _ in 0..MAX_PLACES {
            if place == NONE {
                break;
            }
            let end = place as usize;
            let backwards = self.tokens[..end].iter().rev().zip(self.tokens.iter().rev());
            let n_match = backwards.take(MAX_MATCH).take_while(|(a, b)| a == b).count();
            if n_match >= MIN_MATCH && best.is_none_or(|(n, _)| n_match > n) {
                best = Some((n_match, end));
                if n_match == MAX_MATCH {
                    break;
                }
            }
            place = self.earlier[end - 1];
        }
        best
    }
}

/// The place in the index of the last [`MIN_MATCH`] tokens.
fn hash(tokens: &[TokenId]) -> Option<usize> {
    let [.., a, b] = tokens else { return None };
    let mixed = (u64::from(a.0) << 32 | u64::from(b.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Some((mixed >> (64 - HASH_BITS)) as usize)
}

/// Seconds of a step with one sequence, by its rows.
#[derive(Debug, Default)]
struct Times([Option<f64>; 1 + MAX_DEPTH]);

impl Times {
    fn took(&mut self, n_rows: usize, took: Duration) {
        let Some(mean) = self.0.get_mut(n_rows - 1) else { return };
        let seconds = took.as_secs_f64();
        // A pause of the machine is not a cost: it counts as little more than usual.
        *mean = Some(mean.map_or(seconds, |m| m + TIME_WEIGHT * (seconds.min(2.0 * m) - m)));
    }

    /// Tokens of a draft of up to `max` with which most are expected for the time; 0 where plain decoding is better.
    fn best(&self, chance: f64, max: usize) -> usize {
        let plain = self.0[0].unwrap_or(1.0);
        let row = |d: usize| Some((self.0.get(d).copied().flatten()? - plain).max(0.0) / d as f64);
        let known = || (1..self.0.len()).filter_map(|d| Some((d, row(d)?)));
        let time = |d: usize| match self.0.get(d).copied().flatten().filter(|_| self.0[0].is_some()) {
            Some(time) => time,
            // Stretched from the nearest that was measured.
            None => {
                let near = known().filter(|_| self.0[0].is_some()).min_by_key(|(k, _)| k.abs_diff(d));
                plain + d as f64 * near.map_or(ROW_COST * plain, |(_, row)| row)
            }
        };
        let mut best = (MARGIN / plain, 0);
        let (mut tokens, mut all_right) = (1.0, 1.0);
        for d in 1..=max {
            all_right *= chance;
            tokens += all_right;
            let rate = tokens / time(d);
            if rate > best.0 {
                best = (rate, d);
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<TokenId> {
        text.bytes().map(|b| TokenId(b.into())).collect()
    }

    fn lookup(text: &str) -> Lookup {
        let mut lookup = Lookup::new(256);
        lookup.begin(&ids(text));
        lookup
    }

    fn found(text: &str, max: usize) -> String {
        lookup(text).find(max).tokens.iter().map(|id| id.0 as u8 as char).collect()
    }

    #[test]
    fn the_longest_repetition_goes_on_and_the_newest_among_equals() {
        assert_eq!(found("the cat sat. the ca", 4), "t sa");
        // " ca" stood twice: after "he" it is longer.
        assert_eq!(found("the cat, a car, the ca", 1), "t");
        assert_eq!(found("xab1 yab2 zab", 1), "2");
        // What repeats itself goes on past the end.
        assert_eq!(found("abcabcabc", 7), "abcabca");
        assert_eq!(found("aaaa", 3), "aaa");
        assert_eq!(found("abcdef", 3), "");
        assert_eq!(found("", 3), "");
        assert_eq!(found("aa", 3), "");
    }

    #[test]
    fn going_back_leaves_the_index_of_a_fresh_start() {
        let texts = ["abcabcabd", "abcabx", "", "abcab", "zzzzzzzz", "abcabcabdabcabcabd"];
        let mut one = Lookup::new(64);
        for text in texts {
            one.begin(&ids(text));
            let fresh = lookup(text);
            assert_eq!((&one.tokens, &one.newest, &one.earlier), (&fresh.tokens, &fresh.newest, &fresh.earlier));
        }
    }

    #[test]
    fn a_picked_token_that_is_computed_later_counts_once() {
        let mut lookup = Lookup::new(64);
        lookup.begin(&ids("ab"));
        lookup.extend(&ids("cd"), Some(TokenId(101)));
        lookup.extend(&ids("ef"), None);
        lookup.extend(&ids("g"), Some(TokenId(104)));
        assert_eq!(lookup.tokens, ids("abcdefgh"));
    }

    #[test]
    fn what_is_wrong_is_left_alone_and_tried_again() {
        let mut lookup = lookup("abcabcab");
        let mut n_drafts = 0;
        for _ in 0..200 {
            let found = lookup.find(4);
            if !found.tokens.is_empty() {
                n_drafts += 1;
                lookup.judging = Some(found.kind);
                lookup.judged(found.tokens.len(), 0);
            }
        }
        assert!((5..20).contains(&n_drafts), "{n_drafts} drafts of 200, all wrong");
        // From here on it is right: soon all are made again.
        let full = (0..2000).filter(|_| {
            let found = lookup.find(4);
            lookup.judging = Some(found.kind).filter(|_| !found.tokens.is_empty());
            lookup.judged(found.tokens.len(), found.tokens.len());
            found.tokens.len() == 4
        });
        assert!(full.count() > 1500);
    }

    #[test]
    fn the_length_of_a_draft_follows_what_its_rows_cost() {
        let mut times = Times::default();
        for rows in 1..=7 {
            times.took(rows, Duration::from_micros(1000 + 50 * (rows as u64 - 1)));
        }
        assert_eq!((times.best(0.9, 6), times.best(0.9, 3), times.best(0.02, 6)), (6, 3, 0));
        let mut dear = Times::default();
        dear.took(1, Duration::from_millis(1));
        dear.took(3, Duration::from_millis(3));
        assert_eq!(dear.best(0.9, 6), 0);
        assert_eq!(Times::default().best(0.95, 6), 6, "a guess, before anything was measured");
    }
}
