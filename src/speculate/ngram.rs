//! Prompt lookup: drafts what came after the last tokens when they stood in the context before. Needs no MTP layer and
//! computes nothing; good where a generation repeats its prompt or itself.
//! Owns an index of each sequence's tokens and what drafts from it were worth. Knows nothing of graphs.

use engine::{
    DraftRequest, EngineConfig, ObservedStep, Proposer, ProposerInfo, SavedDraftError, SequenceChange, TargetState,
};
use model::{Model, RunError, Runner};
use text::TokenId;

use crate::depth::Depth;
use crate::step_costs::StepCosts;

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

/// A kind of drafts that is accepted less often than this is left alone..
const WORTH: f64 = 0.4;

/// ..but for one in so many chances, to see whether that has changed.
const RETRY_EVERY: u32 = 24;

/// What a drafted token costs before a step without drafts was measured, as a share of it.
const UNKNOWN_COST: f64 = 0.2;

/// How much better a draft must look than none.
const MARGIN: f64 = 1.03;

/// Prompt lookup as a proposer.
pub struct Ngram {
    depth: Depth,
    slots: Vec<Lookup>,
    /// Of steps with one sequence.
    costs: StepCosts,
    /// Steps so far.
    now: u64,
}

impl Ngram {
    /// Prompt lookup for the sequences of an engine made with `config`.
    pub fn new(model: &Model, config: &EngineConfig, depth: Depth) -> Self {
        let n_ctx = config.memory(model).n_ctx;
        let slots = (0..config.n_sequences).map(|_| Lookup::new(n_ctx)).collect();
        Self { depth, slots, costs: StepCosts::default(), now: 0 }
    }

    /// The draft for `request` with the chance that each of its tokens is accepted; empty when there is none worth its cost.
    /// The draft counts as made only when [`Ngram::made`] says so.
    pub(crate) fn find(&mut self, request: &DraftRequest) -> Found {
        let auto = self.depth == Depth::Auto;
        let Some(lookup) = self.slots.get_mut(request.slot) else { return Found::default() };
        let mut found = lookup.find(request.max.min(self.depth.max()));
        if auto && !found.tokens.is_empty() && !found.retry {
            let n = best_depth(&self.costs, found.chance, found.tokens.len());
            found.tokens.truncate(n);
        }
        found
    }

    /// The draft was handed to the engine.
    pub(crate) fn made(&mut self, slot: usize, found: &Found) {
        self.slots[slot].verifying = (!found.tokens.is_empty()).then_some(found.kind);
    }

    /// The last draft handed out for `slot` was this lookup's.
    pub(crate) fn is_verifying(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|s| s.verifying.is_some())
    }
}

impl Proposer for Ngram {
    fn info(&self) -> ProposerInfo {
        ProposerInfo { max_depth: self.depth.max(), ..ProposerInfo::default() }
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        // What is loaded begins before it is used, and the index is made anew from the tokens.
        if let (SequenceChange::Begin { tokens, .. }, Some(lookup)) = (change, self.slots.get_mut(slot)) {
            lookup.begin(tokens);
        }
        Ok(())
    }

    fn observe(&mut self, _: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        if let (Some(took), [s]) = (step.took, step.sequences) {
            self.now += 1;
            self.costs.add(1, s.n_drafted, took, self.now);
        }
        for s in step.sequences {
            if let Some(lookup) = self.slots.get_mut(s.slot) {
                lookup.verified(s.n_drafted, s.n_accepted);
                lookup.extend(s.tokens, s.next);
            }
        }
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut Runner,
        _: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let draft = |request: &DraftRequest| {
            let found = self.find(request);
            self.made(request.slot, &found);
            found.tokens
        };
        Ok(requests.iter().map(draft).collect())
    }
}

/// What came after a repetition.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) tokens: Vec<TokenId>,
    /// The chance that a token is accepted if those before it are.
    pub(crate) chance: f64,
    /// Its kind has been rejected so far.
    pub(crate) retry: bool,
    kind: usize,
}

/// The tokens of one sequence, and where each pair of them stood last.
#[derive(Debug)]
struct Lookup {
    /// As far as they are known: the last one may be sampled and not computed yet.
    tokens: Vec<TokenId>,
    /// The last place of each hash: the number of tokens up to the end of the pair.
    newest: Vec<u32>,
    /// For each place the one before it with the same hash.
    earlier: Vec<u32>,
    /// The last token was sampled after the step that was observed last: it comes again.
    ahead: bool,
    /// For each kind of drafts the share that was accepted, token by token.
    right: [f64; N_KINDS],
    /// Chances passed over since the last try.
    skipped: [u32; N_KINDS],
    /// The kind of the draft that the engine verifies now.
    verifying: Option<usize>,
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
            verifying: None,
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
        self.verifying = None;
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

    fn verified(&mut self, n_drafted: usize, n_accepted: usize) {
        let Some(kind) = self.verifying.take().filter(|_| n_drafted > 0) else { return };
        for i in 0..n_drafted.min(n_accepted + 1) {
            self.right[kind] += WEIGHT * (f64::from(u8::from(i < n_accepted)) - self.right[kind]);
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
        // A try costs one token; past the end of the text it goes on with itself.
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

/// Tokens of a draft of up to `max` with which most are expected for the time; 0 where plain decoding is better. `chance`:
/// that a token is accepted if those before it are.
fn best_depth(costs: &StepCosts, chance: f64, max: usize) -> usize {
    // Before anything was measured only the proportions count.
    let plain = costs.measured(1, 0);
    let time = |d: usize| plain.map_or(1.0 + UNKNOWN_COST * d as f64, |plain| costs.estimate(1, d, plain));
    let mut best = (MARGIN / time(0), 0);
    let (mut tokens, mut all_accepted) = (1.0, 1.0);
    for d in 1..=max {
        all_accepted *= chance;
        tokens += all_accepted;
        let rate = tokens / time(d);
        if rate > best.0 {
            best = (rate, d);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    fn a_sampled_token_that_is_computed_later_counts_once() {
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
                lookup.verifying = Some(found.kind);
                lookup.verified(found.tokens.len(), 0);
            }
        }
        assert!((5..20).contains(&n_drafts), "{n_drafts} drafts of 200, all wrong");
        // From here on it is right: soon all are made again.
        let full = (0..2000).filter(|_| {
            let found = lookup.find(4);
            lookup.verifying = Some(found.kind).filter(|_| !found.tokens.is_empty());
            lookup.verified(found.tokens.len(), found.tokens.len());
            found.tokens.len() == 4
        });
        assert!(full.count() > 1500);
    }

    #[test]
    fn the_length_of_a_draft_follows_what_its_tokens_cost() {
        let measured = |times: &[(usize, u64)]| {
            let mut costs = StepCosts::default();
            times.iter().for_each(|&(depth, us)| costs.add(1, depth, Duration::from_micros(us), 1));
            costs
        };
        let cheap = measured(&[(0, 1000), (1, 1050), (2, 1100), (3, 1150), (4, 1200), (5, 1250), (6, 1300)]);
        assert_eq!([(0.9, 6), (0.9, 3), (0.02, 6)].map(|(chance, max)| best_depth(&cheap, chance, max)), [6, 3, 0]);
        assert_eq!(best_depth(&measured(&[(0, 1000), (2, 3000)]), 0.9, 6), 0);
        assert_eq!(best_depth(&measured(&[]), 0.95, 6), 6, "a guess, before anything was measured");
    }
}
