//! A limit on thinking: when it is reached, tokens that end the thinking take the place of those that would be picked.
//! Knows which tokens open and close thinking; knows nothing of their texts.

use std::collections::VecDeque;

use text::TokenId;

/// A limit on the tokens of thinking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thinking {
    /// Tokens of thinking, the opening one left out.
    pub max_tokens: usize,
    /// The prompt ends inside of thinking; otherwise it begins when the model picks `start`.
    pub open: bool,
    /// Opens thinking.
    pub start: TokenId,
    /// Ends thinking.
    pub end: TokenId,
    /// What is put in when the limit is reached; holds `end`.
    pub forced: Vec<TokenId>,
}

/// How much thinking is left to one generation.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: Option<Thinking>,
    thinks: bool,
    n_left: usize,
    forced: VecDeque<TokenId>,
}

impl Budget {
    /// The limit of a generation that may think, if it has a constraint that lets it.
    pub(crate) fn new(limit: Option<Thinking>, may_think: bool) -> Self {
        let (thinks, n_left) = limit.as_ref().map_or((false, 0), |t| (t.open && may_think, t.max_tokens));
        Self { limit, thinks, n_left, forced: VecDeque::new() }
    }

    /// The token that has to come now; `None`: the sampler decides.
    pub(crate) fn next(&mut self) -> Option<TokenId> {
        if self.thinks && self.n_left == 0 {
            self.thinks = false;
            self.forced.extend(self.limit.iter().flat_map(|t| &t.forced));
        }
        self.forced.pop_front()
    }

    /// Ends the thinking now. Gives whether there is any.
    pub(crate) fn end(&mut self) -> bool {
        if self.thinks {
            self.n_left = 0;
        }
        self.thinks
    }

    /// A token that ends thinking has to come next.
    pub(crate) fn is_forcing(&self) -> bool {
        !self.forced.is_empty() || self.thinks && self.n_left == 0
    }

    /// This token was picked, by whomever, and after it the generation may think or not: in the text of a grammar the tags are
    /// text, and nothing may be put in.
    pub(crate) fn picked(&mut self, token: TokenId, may_think: bool) {
        let Some(limit) = &self.limit else { return };
        if self.thinks {
            self.thinks = may_think && token != limit.end;
            // A grammar may bring several tokens at once, more than are left.
            self.n_left = self.n_left.saturating_sub(1);
        } else if token == limit.start && self.forced.is_empty() {
            self.thinks = may_think;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: TokenId = TokenId(1);
    const END: TokenId = TokenId(2);

    fn budget(max_tokens: usize, open: bool) -> Budget {
        let forced = vec![TokenId(9), END, TokenId(8)];
        Budget::new(Some(Thinking { max_tokens, open, start: START, end: END, forced }), true)
    }

    /// What comes of a sampler that would pick these tokens.
    fn run(mut budget: Budget, wanted: &[u32]) -> Vec<u32> {
        let picked = wanted.iter().map(|&id| {
            let token = budget.next().unwrap_or(TokenId(id));
            budget.picked(token, true);
            token.0
        });
        picked.collect()
    }

    #[test]
    fn thinking_over_the_limit_is_ended_once() {
        assert_eq!(run(budget(2, true), &[5, 5, 5, 5, 5, 6, 7]), [5, 5, 9, 2, 8, 6, 7]);
        assert_eq!(run(budget(0, true), &[5, 5, 5, 6]), [9, 2, 8, 6]);
    }

    #[test]
    fn thinking_that_ends_by_itself_is_left_alone() {
        assert_eq!(run(budget(3, true), &[5, 2, 6, 6, 6, 6]), [5, 2, 6, 6, 6, 6]);
        assert_eq!(run(Budget::new(None, true), &[5, 1, 5, 5]), [5, 1, 5, 5]);
    }

    #[test]
    fn thinking_opened_by_the_model_counts_from_there() {
        assert_eq!(run(budget(1, false), &[6, 6, 1, 5, 5, 5, 5, 6]), [6, 6, 1, 5, 9, 2, 8, 6]);
    }

    #[test]
    fn more_tokens_at_once_than_are_left_end_thinking_after_them() {
        let mut budget = budget(2, true);
        (0..5).for_each(|_| budget.picked(TokenId(5), true));
        assert!(budget.is_forcing());
        assert_eq!(run(budget, &[5, 5, 5, 6]), [9, 2, 8, 6]);
    }

    #[test]
    fn thinking_is_ended_from_outside_once_and_only_while_it_lasts() {
        let mut thinking = budget(usize::MAX, true);
        thinking.picked(TokenId(5), true);
        assert!(thinking.end() && thinking.is_forcing());
        // What it opens again is ended at once.
        assert_eq!(run(thinking, &[5, 5, 5, 6, 1, 5, 5]), [9, 2, 8, 6, 1, 9, 2]);
        let mut silent = budget(usize::MAX, false);
        assert!(!silent.end() && !silent.is_forcing());
        assert!(!Budget::new(None, true).end());
    }

    #[test]
    fn where_a_grammar_holds_tags_are_text() {
        let mut budget = budget(2, false);
        [1, 5, 5, 5, 2, 1, 5].into_iter().for_each(|id| budget.picked(TokenId(id), false));
        assert_eq!((budget.is_forcing(), budget.next()), (false, None));
        // Thinking that the grammar takes for ended is so, however its end was cut into tokens.
        let mut split = self::budget(2, true);
        split.picked(TokenId(5), true);
        split.picked(TokenId(7), false);
        assert_eq!((split.is_forcing(), split.next()), (false, None));
    }
}
