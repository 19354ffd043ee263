//! Which texts go through the target model together. On a GPU the last bits of a text's numbers depend on its company, so what is
//! kept in memory is always computed in the same one: a training that was broken off and taken up, which knows nothing at first,
//! gets the numbers that it would have known. Owns no numbers.

use crate::batches::Part;

/// Tokens and texts that a pass has room for; a longer text is alone, and takes several.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Tokens of all its texts.
    pub n_rows: usize,
    /// Texts.
    pub n_texts: usize,
}

impl Room {
    /// Texts by their numbers, in passes in this order. `length` is the number of tokens of a text.
    pub fn passes(self, texts: impl Iterator<Item = usize>, length: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
        let (mut passes, mut n_rows): (Vec<Vec<usize>>, usize) = (Vec::new(), 0);
        for i in texts {
            let n = length(i);
            match passes.last_mut().filter(|pass| n_rows + n <= self.n_rows && pass.len() < self.n_texts) {
                Some(pass) => pass.push(i),
                None => {
                    passes.push(vec![i]);
                    n_rows = 0;
                }
            }
            n_rows += n;
        }
        passes
    }
}

/// The passes whose results are kept in memory.
#[derive(Debug, Default)]
pub struct Plan {
    passes: Vec<Vec<usize>>,
    /// Of each text that is in one of them.
    pass_of: Vec<Option<usize>>,
}

impl Plan {
    /// Keeps what these parts need, the first ones first, as long as there is room: `n_bytes` in all, of which a token takes
    /// `of_token`. `lengths` are the tokens of all texts.
    pub fn new<'a>(
        parts: impl Iterator<Item = &'a Part>,
        lengths: &[usize],
        room: Room,
        (mut n_bytes, of_token): (usize, usize),
    ) -> Self {
        let mut plan = Self { passes: Vec::new(), pass_of: vec![None; lengths.len()] };
        for part in parts {
            for pass in room.passes(part.iter().copied(), |i| lengths[i]) {
                let takes = of_token * pass.iter().map(|&i| lengths[i]).sum::<usize>();
                if takes > n_bytes || pass.iter().any(|&i| plan.pass_of[i].is_some()) {
                    continue;
                }
                n_bytes -= takes;
                pass.iter().for_each(|&i| plan.pass_of[i] = Some(plan.passes.len()));
                plan.passes.push(pass);
            }
        }
        plan
    }

    /// The pass that a text is computed in, where its result is kept.
    pub fn pass_of(&self, text: usize) -> Option<&[usize]> {
        self.pass_of.get(text).copied().flatten().map(|n| &self.passes[n][..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { n_rows: 10, n_texts: 3 };

    #[test]
    fn passes_have_no_more_than_there_is_room_for() {
        let lengths = [4, 4, 4, 1, 1, 1, 1, 25, 10];
        let passes = ROOM.passes(0..9, |i| lengths[i]);
        assert_eq!(passes, [vec![0, 1], vec![2, 3, 4], vec![5, 6], vec![7], vec![8]]);
    }

    #[test]
    fn the_first_parts_are_kept_and_each_text_has_one_pass() {
        let lengths = [4, 4, 4, 1, 9, 2];
        let parts = [vec![4], vec![0, 1, 2], vec![3, 5], vec![2, 3]];
        let plan = Plan::new(parts.iter(), &lengths, ROOM, (200, 10));
        let found: Vec<_> = (0..6).map(|i| plan.pass_of(i)).collect();
        let (first, second): (&[usize], &[usize]) = (&[4], &[0, 1]);
        // The text of 4 tokens does not fit any more, those of 1 and 2 do.
        assert_eq!(found, [Some(second), Some(second), None, Some(&[3, 5]), Some(first), Some(&[3, 5])]);
        assert!((0..6).all(|i| Plan::default().pass_of(i).is_none()));
    }
}
