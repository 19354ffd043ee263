//! Which tensor has which type, as files of that name have it.
//! The K mixes give more bits to the head, to fused projections and to every few value and down matrices.

use std::fmt;
use std::str::FromStr;

use gguf::TensorType;

use super::shapes::Shape;

/// A mix of types, named as quantisation tools name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    name: &'static str,
    /// Most matrices.
    base: TensorType,
    /// The head, and the embedding where it is the head.
    head: TensorType,
    /// The fused projection of delta nets.
    qkv: TensorType,
    /// Value and down matrices of favoured layers.
    favoured: TensorType,
    /// `general.file_type`.
    file_type: u32,
}

/// What a matrix does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Embedding,
    Head,
    /// Fused projection of a delta net.
    Qkv,
    /// Decay and beta of a delta net, and the head's projection: small, or touchy.
    Careful,
    /// Values of attention, or down: `i` of `n` of its kind.
    Favoured {
        i: usize,
        n: usize,
    },
    /// Everything else with two dimensions.
    Plain,
}

const MIXES: &[Mix] = {
    use TensorType::*;
    const fn mix(name: &'static str, base: TensorType, head: TensorType, file_type: u32) -> Mix {
        Mix { name, base, head, qkv: base, favoured: base, file_type }
    }
    &[
        mix("f32", F32, F32, 0),
        mix("f16", F16, F16, 1),
        mix("bf16", BF16, BF16, 32),
        mix("q8_0", Q8_0, Q8_0, 7),
        mix("q4_0", Q4_0, Q6_K, 2),
        mix("q4_k", Q4_K, Q6_K, 14),
        Mix { qkv: Q5_K, favoured: Q6_K, ..mix("q4_k_m", Q4_K, Q6_K, 15) },
        mix("q5_k", Q5_K, Q6_K, 16),
        Mix { qkv: Q6_K, favoured: Q6_K, ..mix("q5_k_m", Q5_K, Q6_K, 17) },
        mix("q6_k", Q6_K, Q6_K, 18),
    ]
};

impl Mix {
    /// Type of a matrix of this role with rows of `n_cols`: one that such rows are whole blocks of.
    pub(crate) fn of(&self, role: Role, shape: &Shape, n_cols: u64) -> TensorType {
        fitting(self.preferred(role, shape), n_cols)
    }

    /// Type of a matrix of no special role.
    pub(crate) fn plain(&self, n_cols: u64) -> TensorType {
        fitting(self.base, n_cols)
    }

    fn preferred(&self, role: Role, shape: &Shape) -> TensorType {
        match role {
            Role::Head => self.head,
            Role::Embedding if shape.tied => self.head,
            Role::Qkv => self.qkv,
            Role::Careful if self.base.block_size() > 1 => TensorType::Q8_0,
            Role::Favoured { i, n } if more_bits(i, n) => self.favoured,
            _ => self.base,
        }
    }

    pub(crate) fn file_type(&self) -> u32 {
        self.file_type
    }
}

/// The type, or the nearest one that rows of `n_cols` are whole blocks of.
fn fitting(dtype: TensorType, n_cols: u64) -> TensorType {
    let fits = |dtype: &TensorType| n_cols.is_multiple_of(dtype.block_size());
    let coarse = (dtype == TensorType::Q4_K).then_some(TensorType::Q5_0);
    let fallbacks = coarse.into_iter().chain([TensorType::Q8_0]);
    std::iter::once(dtype).chain(fallbacks).find(fits).unwrap_or(TensorType::F16)
}

/// The layers that get more bits: the first and last eighth, and every third between.
fn more_bits(i: usize, n: usize) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let names = || MIXES.iter().map(|mix| mix.name).collect::<Vec<_>>().join(", ");
        let found = MIXES.iter().find(|mix| mix.name.eq_ignore_ascii_case(s));
        found.copied().ok_or_else(|| format!("`{s}` is not one of {}", names()))
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
