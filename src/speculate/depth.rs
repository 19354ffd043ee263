//! The length of a draft as the user gives it.

use std::fmt;
use std::str::FromStr;

use model::Facts;

/// The longest draft that is chosen automatically: with the token before it a batch has 7 tokens, the most for which every
/// output of every quantised weight has the bits that it has alone (docs/NUMERICS.md).
pub(crate) const MAX_DEPTH: usize = 6;

/// The longest draft that may be asked for.
const DEEPEST: usize = 16;

/// Tokens of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Depth {
    /// As many as pay, by measured costs and acceptance; none where drafting is slower than plain decoding.
    #[default]
    Auto,
    /// Always this many, as far as the generation has room.
    Fixed(usize),
}

impl Depth {
    /// The longest draft.
    pub(crate) fn max(self) -> usize {
        match self {
            Depth::Auto => MAX_DEPTH,
            Depth::Fixed(n) => n,
        }
    }

    /// The longest draft by a model's head: one layer makes a chain, of several each makes one token, and of a block at most
    /// all rows but the first are drafted.
    pub(crate) fn of_head(self, facts: &Facts) -> usize {
        match (facts.block, facts.n_mtp_layers()) {
            (Some(block), _) => self.max().min(block.n_rows - 1),
            (None, 0 | 1) => self.max(),
            (None, n) => self.max().min(n),
        }
    }
}

impl FromStr for Depth {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.parse() {
            _ if s == "auto" => Ok(Self::Auto),
            Ok(n) if n <= DEEPEST => Ok(Self::Fixed(n)),
            _ => Err(format!("`{s}` is not auto or a number from 0 to {DEEPEST}")),
        }
    }
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(n) => write!(f, "{n}"),
        }
    }
}
