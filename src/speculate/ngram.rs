//! Prompt lookup: what came after the last tokens when they stood in the context before. Needs no MTP layer and computes
//! nothing; good where a generation repeats its prompt or itself.
//! Owns an index of each sequence's tokens, and how often what was found is what came. That is seen in the text as it grows,
//! whether or not a draft was made of it. Knows nothing of costs or graphs.

use engine::EngineConfig;
use model::Model;
use text::TokenId;

use crate::chances::Chances;
use crate::depth::Depth;

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

/// Kinds of drafts, by the length of the repetition.
const N_KINDS: usize = 5;

/// The chances of their first tokens before anything was seen: the longer, the better.
const FIRST_GUESS: [f64; N_KINDS] = [0.3, 0.4, 0.5, 0.7, 0.8];

/// Prompt lookup for the sequences of an engine.
pub struct Ngram {
    depth: Depth,
    /// Tokens of a draft at most.
    max: usize,
    slots: Vec<Lookup>,
    /// By kind.
    chances: Vec<Chances>,
}

impl Ngram {
    /// For the sequences of an engine made with `config`.
    pub fn new(model: &Model, config: &EngineConfig, depth: Depth) -> Self {
        Self::with_max(config.n_sequences, config.memory(model).n_ctx, depth, depth.max())
    }

    /// Drafts are no longer than `max`, for which the state was planned.
    pub(crate) fn up_to(self, max: usize) -> Self {
        Self { max: max.min(self.max), ..self }
    }

    /// For so many sequences of up to `n_ctx` tokens, and drafts of up to `max`.
    pub(crate) fn with_max(n_slots: usize, n_ctx: usize, depth: Depth, max: usize) -> Self {
        Self {
            depth,
            max,
            slots: (0..n_slots).map(|_| Lookup::new(n_ctx)).collect(),
            chances: FIRST_GUESS.map(|first| Chances::with_first(first, n_slots, max)).to_vec(),
        }
    }

    pub(crate) fn depth(&self) -> Depth {
        self.depth
    }

    pub(crate) fn max_depth(&self) -> usize {
        self.max
    }

    pub(crate) fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// What came after the longest repetition of the last tokens of `slot`, up to `most` tokens; nothing where there is none.
    pub(crate) fn find(&mut self, slot: usize, most: usize) -> Found {
        let Some((kind, mut tokens)) = self.slots.get_mut(slot).and_then(|lookup| lookup.find(self.max)) else {
            return Found::default();
        };
        tokens.truncate(most);
        let expected = (0..=tokens.len()).map(|n| self.chances[kind].tokens(&[slot], n)).collect();
        Found { tokens, expected }
    }

    /// The sequence of `slot` stands after `tokens`.
    pub(crate) fn begin(&mut self, slot: usize, tokens: &[TokenId]) {
        if let Some(lookup) = self.slots.get_mut(slot) {
            lookup.begin(tokens);
            self.chances.iter_mut().for_each(|kind| kind.begin(slot));
        }
    }

    /// `tokens` were computed, and `next` was sampled after them.
    pub(crate) fn extend(&mut self, slot: usize, tokens: &[TokenId], next: Option<TokenId>) {
        if let Some(seen) = self.slots.get_mut(slot).and_then(|lookup| lookup.extend(tokens, next)) {
            self.chances[seen.kind].verified(slot, seen.n_compared, seen.n_right);
        }
    }
}

/// What came after a repetition.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) tokens: Vec<TokenId>,
    /// Tokens that a step is expected to give with the first of these as its draft, by how many: from none to all.
    pub(crate) expected: Vec<f64>,
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
    /// What was found and is compared with the tokens that come now.
    compared: Option<Compared>,
}

/// One draft, handed out or not, beside the tokens that came.
#[derive(Debug)]
struct Compared {
    kind: usize,
    tokens: Vec<TokenId>,
    n_right: usize,
}

/// What a comparison has shown.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: usize,
    /// Tokens up to the first that was wrong, or all.
    n_compared: usize,
    n_right: usize,
}

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
            compared: None,
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
        (self.ahead, self.compared) = (false, None);
    }

    /// At most one comparison ends here: another begins with the next search.
    fn extend(&mut self, tokens: &[TokenId], next: Option<TokenId>) -> Option<Seen> {
        let known = usize::from(std::mem::take(&mut self.ahead) && !tokens.is_empty());
        let mut seen = None;
        for &token in tokens[known..].iter().chain(&next) {
            seen = seen.or(self.compare(token));
            self.push(token);
        }
        self.ahead = next.is_some();
        seen
    }

    fn compare(&mut self, token: TokenId) -> Option<Seen> {
        let of = self.compared.as_mut()?;
        let right = of.tokens.get(of.n_right) == Some(&token);
        of.n_right += usize::from(right);
        if right && of.n_right < of.tokens.len() {
            return None;
        }
        let Compared { kind, n_right, .. } = self.compared.take()?;
        Some(Seen { kind, n_compared: n_right + usize::from(!right), n_right })
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

    /// What came after the longest repetition of the last tokens, the newest among equals, and its kind.
    fn find(&mut self, max: usize) -> Option<(usize, Vec<TokenId>)> {
        let (n_match, place) = self.longest()?;
        // Past the end of the text it goes on with itself.
        let mut tokens: Vec<TokenId> = Vec::with_capacity(max);
        for i in 0..max {
            let at = place + i;
            tokens.push(if at < self.tokens.len() { self.tokens[at] } else { tokens[at - self.tokens.len()] });
        }
        let kind = kind(n_match);
        if max > 0 && self.compared.is_none() {
            self.compared = Some(Compared { kind, tokens: tokens.clone(), n_right: 0 });
        }
        Some((kind, tokens))
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
        let found = lookup(text).find(max).unwrap_or_default().1;
        found.iter().map(|id| id.0 as u8 as char).collect()
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
    fn what_was_found_is_compared_with_what_came_whoever_drafted() {
        let mut lookup = lookup("abcdefgh, ab");
        assert_eq!(lookup.find(4).map(|(kind, tokens)| (kind, tokens.len())), Some((0, 4)));
        assert_eq!(lookup.extend(&ids("c"), Some(TokenId(100))), None, "c and d are right so far");
        // What is found meanwhile waits: one comparison at a time.
        lookup.find(4);
        let seen = lookup.extend(&ids("d"), Some(TokenId(120)));
        assert_eq!(seen, Some(Seen { kind: 0, n_compared: 3, n_right: 2 }));
        assert_eq!(lookup.extend(&ids("x"), Some(TokenId(121))), None, "nothing is found after x");
        lookup.begin(&ids("abcdefgh, ab"));
        lookup.find(2);
        assert_eq!(lookup.extend(&ids("cde"), None), Some(Seen { kind: 0, n_compared: 2, n_right: 2 }));
    }

    #[test]
    fn what_is_expected_follows_what_came() {
        let mut ngram = Ngram::with_max(1, 4096, Depth::Auto, 4);
        let expected = |ngram: &mut Ngram| *ngram.find(0, 4).expected.last().expect("`ab` stands there twice");
        ngram.begin(0, &ids("abcdefab"));
        let at_first = expected(&mut ngram);
        for i in 0..20 {
            ngram.find(0, 4);
            ngram.extend(0, &[TokenId(1000 + i), TokenId(97), TokenId(98)], None);
        }
        let wrong = expected(&mut ngram);
        assert!(wrong < 1.1 && wrong < at_first, "{wrong} tokens, {at_first} at first: never the same after `ab`");
        for _ in 0..60 {
            ngram.find(0, 4);
            ngram.extend(0, &ids("x?ab"), None);
        }
        let right = expected(&mut ngram);
        assert!(right > 4.0, "{right} tokens: `x?ab` has followed again and again");
        assert_eq!(ngram.find(0, 2).expected.len(), 3, "of none, one and two");
    }
}
