//! Which of a model's heads drafts for a sequence: its own, or that of another file.
//! Owns the choice and what it is made by, how often the drafts of each were accepted. Pure arithmetic: heads of one model take the same
//! time, so times do not count.
//!
//! Each sequence has a favourite, which is the head that gives more tokens a step in its text as far as that is known, else in all
//! texts before. The other is tried now and then, as often as the tokens that this is expected to lose stay a small share of all.

use crate::chances::Chances;

/// Share of the tokens that trying the other head may lose.
const ALLOWANCE: f64 = 0.01;

/// Tokens that a try is expected to lose at least: the other head lacks what was computed since it drafted last.
const LEAST_LOSS: f64 = 0.25;

/// Tokens for each sequence of a step that are saved up for tries at most.
const MOST_SAVED: f64 = 4.0;

/// A head that was verified less often drafts first.
const FEW_VERIFIED: f64 = 4.0;

/// How much more the other head must promise to become the favourite.
const MARGIN: f64 = 1.02;

/// Heads are compared by drafts of so many tokens, as far as they make as many.
const DEPTH: usize = 3;

/// The choice between the heads of one engine.
#[derive(Debug)]
pub(crate) struct HeadChoice {
    heads: Vec<Chances>,
    depth: usize,
    /// By slot.
    favourites: Vec<usize>,
    /// By slot, the head of the draft that is verified now, or was last.
    used: Vec<usize>,
    /// Tokens that tries may lose now.
    allowance: f64,
    /// Drafts of a warm-up so far.
    n_warm: usize,
}

impl HeadChoice {
    /// Between `n_heads`, one or two, for so many sequences and drafts of up to `max_depth` tokens. The first goes first while nothing
    /// is known.
    pub(crate) fn new(n_heads: usize, n_slots: usize, max_depth: usize) -> Self {
        Self {
            heads: vec![Chances::new(n_slots, max_depth); n_heads],
            depth: DEPTH.min(max_depth),
            favourites: vec![0; n_slots],
            used: vec![0; n_slots],
            allowance: 0.0,
            n_warm: 0,
        }
    }

    /// A new generation begins on `slot`.
    pub(crate) fn begin(&mut self, slot: usize) {
        self.heads.iter_mut().for_each(|head| head.begin(slot));
        self.favourites[slot] = self.best(slot).0;
    }

    /// The head for each of these sequences in the next step.
    pub(crate) fn choose(&mut self, slots: &[usize], warm_up: bool) -> Vec<usize> {
        let heads = self.choose_heads(slots, warm_up);
        slots.iter().zip(&heads).for_each(|(&slot, &head)| self.used[slot] = head);
        heads
    }

    fn choose_heads(&mut self, slots: &[usize], warm_up: bool) -> Vec<usize> {
        let n_heads = self.heads.len();
        if n_heads == 1 {
            return vec![0; slots.len()];
        }
        if warm_up {
            self.n_warm += 1;
            return vec![self.n_warm % n_heads; slots.len()];
        }
        let n_verified = |&i: &usize| self.heads[i].n_of_all();
        let newest = (0..n_heads).min_by(|a, b| n_verified(a).total_cmp(&n_verified(b))).unwrap_or(0);
        if n_verified(&newest) < FEW_VERIFIED {
            return vec![newest; slots.len()];
        }
        let tokens = |slot: usize, head: usize| self.heads[head].tokens(&[slot], self.depth);
        let lost = |&slot: &usize| {
            let favourite = self.favourites[slot];
            (tokens(slot, favourite) - tokens(slot, n_heads - 1 - favourite)).max(LEAST_LOSS)
        };
        let loss = slots.iter().map(lost).sum::<f64>();
        // All at once: the heads draft one after the other.
        let tries = loss <= self.allowance;
        self.allowance -= if tries { loss } else { 0.0 };
        let of = |&slot: &usize| if tries { n_heads - 1 - self.favourites[slot] } else { self.favourites[slot] };
        slots.iter().map(of).collect()
    }

    /// The head that promises most in the text of `slot`, and how many tokens a step.
    fn best(&self, slot: usize) -> (usize, f64) {
        let tokens = self.heads.iter().map(|head| head.tokens(&[slot], self.depth)).enumerate();
        tokens.fold((0, 0.0), |best, this| if this.1 > best.1 { this } else { best })
    }

    /// The head of the draft of `slot` that is verified now.
    pub(crate) fn used(&self, slot: usize) -> usize {
        self.used[slot]
    }

    /// That draft is no try: it tells what drafts are worth. While no head is known there are but tries.
    pub(crate) fn is_favourite(&self, slot: usize) -> bool {
        self.is_settled() && self.used[slot] == self.favourites[slot]
    }

    /// Every head was verified often enough to compare them.
    fn is_settled(&self) -> bool {
        self.heads.len() == 1 || self.heads.iter().all(|head| head.n_of_all() >= FEW_VERIFIED)
    }

    /// How often drafts of the favourite of `slot` were accepted, once that is known of several; `None` where there is no choice.
    pub(crate) fn of_favourite(&self, slot: usize) -> Option<&Chances> {
        let favourite = &self.heads[self.favourites[slot]];
        (self.heads.len() > 1 && favourite.n_of_all() >= FEW_VERIFIED).then_some(favourite)
    }

    /// A step of so many sequences verified `n_drafted` draft tokens of `slot` and accepted the first `n_accepted`. True when another
    /// head becomes the favourite, or the first one is found.
    pub(crate) fn verified(&mut self, slot: usize, n_seqs: usize, (n_drafted, n_accepted): (usize, usize)) -> bool {
        let was_settled = self.is_settled();
        self.heads[self.used[slot]].verified(slot, n_drafted, n_accepted);
        let more = ALLOWANCE * (1 + n_accepted) as f64;
        self.allowance = (self.allowance + more).min(MOST_SAVED * n_seqs as f64);
        if self.heads.len() == 1 || !self.is_settled() {
            return false;
        }
        let (best, tokens) = self.best(slot);
        let favourite = self.favourites[slot];
        let changes = best != favourite && tokens > MARGIN * self.heads[favourite].tokens(&[slot], self.depth);
        if changes {
            tracing::debug!(slot, head = best, tokens, "another NextN head drafts");
            self.favourites[slot] = best;
        }
        changes || !was_settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drafts of three tokens by heads whose drafts are right with these chances; counts tokens, and drafts of each head.
    struct World {
        choice: HeadChoice,
        seed: u64,
    }

    impl World {
        fn new() -> Self {
            Self { choice: HeadChoice::new(2, 2, 6), seed: 7 }
        }

        fn chance(&mut self) -> f64 {
            self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.seed >> 33) as f64 / (1u64 << 31) as f64
        }

        /// Tokens a step of one sequence, and drafts of each head.
        fn run(&mut self, slot: usize, n: usize, chances: [f64; 2]) -> (f64, [usize; 2]) {
            let (mut n_tokens, mut used) = (0, [0; 2]);
            for _ in 0..n {
                let head = self.choice.choose(&[slot], false)[0];
                let n_accepted = (0..3).take_while(|_| self.chance() < chances[head]).count();
                self.choice.verified(slot, 1, (3, n_accepted));
                n_tokens += 1 + n_accepted;
                used[head] += 1;
            }
            (n_tokens as f64 / n as f64, used)
        }
    }

    #[test]
    fn the_better_head_is_found_and_the_other_costs_little() {
        for chances in [[0.9, 0.3], [0.3, 0.9], [0.0, 0.9], [0.9, 0.0], [0.7, 0.6], [0.6, 0.7]] {
            let better = usize::from(chances[1] > chances[0]);
            let mut world = World::new();
            world.run(0, 60, chances);
            let (tokens, used) = world.run(0, 2000, chances);
            let alone = {
                let p: f64 = chances[better];
                1.0 + p + p * p + p * p * p
            };
            assert!(tokens > 0.975 * alone, "{chances:?}: {tokens} of {alone}, {used:?}");
            assert!(used[1 - better] > 5, "{chances:?}: {used:?}, the other is still looked at");
        }
    }

    #[test]
    fn whoever_draws_on_the_favourite_is_told_when_it_changes() {
        let mut choice = HeadChoice::new(2, 1, 6);
        assert!(choice.of_favourite(0).is_none() && !choice.is_favourite(0), "nothing is known");
        let mut changes = Vec::new();
        for step in 0..12 {
            let n_accepted = if choice.choose(&[0], false)[0] == 1 { 3 } else { 0 };
            if choice.verified(0, 1, (3, n_accepted)) {
                changes.push(step);
            }
        }
        assert!(matches!(changes[..], [step] if step < 10), "{changes:?}");
        let tokens = choice.of_favourite(0).expect("several").tokens(&[0], 3);
        assert!(tokens > 3.0, "{tokens} tokens a step by the better head");
    }

    #[test]
    fn heads_that_are_alike_share_the_work_and_lose_nothing() {
        let (tokens, _) = World::new().run(0, 4000, [0.8, 0.8]);
        assert!(tokens > 2.85, "{tokens} of 2.95");
    }

    #[test]
    fn a_text_that_changes_changes_the_head() {
        let mut world = World::new();
        world.run(0, 500, [0.9, 0.3]);
        world.run(0, 300, [0.3, 0.9]);
        let (_, used) = world.run(0, 300, [0.3, 0.9]);
        assert!(used[1] > 270, "{used:?}");
    }

    #[test]
    fn what_was_learned_in_one_answer_holds_in_the_next_and_in_other_sequences() {
        let mut world = World::new();
        world.run(0, 200, [0.2, 0.9]);
        for slot in [0, 1] {
            world.choice.begin(slot);
            let (_, used) = world.run(slot, 30, [0.2, 0.9]);
            assert!(used[0] <= 2, "{used:?} of slot {slot}");
        }
    }

    #[test]
    fn sequences_have_their_own_favourites_and_one_head_is_no_choice() {
        let mut world = World::new();
        for _ in 0..100 {
            world.run(0, 10, [0.9, 0.2]);
            world.run(1, 10, [0.2, 0.9]);
        }
        assert_eq!(world.choice.favourites, [0, 1]);
        let mut one = HeadChoice::new(1, 2, 6);
        assert_eq!((0..100).flat_map(|_| one.choose(&[0, 1], false)).max(), Some(0));
        assert!(one.is_favourite(0));
    }

    #[test]
    fn a_warm_up_computes_both() {
        let mut choice = HeadChoice::new(2, 2, 6);
        let all: Vec<_> = (0..4).map(|_| choice.choose(&[0, 1], true)).collect();
        assert_eq!(all, [[1, 1], [0, 0], [1, 1], [0, 0]]);
    }
}
