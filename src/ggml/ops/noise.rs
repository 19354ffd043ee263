//! Noise on logits, made where they are.

use super::checks::ask;
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

/// How the noise of one row is made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NoiseKey {
    /// What it depends on beside the token.
    pub key: u64,
    /// What it is multiplied with; 0 for none.
    pub temperature: f32,
}

impl NoiseKey {
    /// Numbers of a key in an input.
    pub const N: usize = 4;

    /// The key as [`Graph::add_gumbel`] reads it.
    pub fn numbers(self) -> [i32; Self::N] {
        [self.key as i32, (self.key >> 32) as i32, self.temperature.to_bits() as i32, 0]
    }
}

impl<'g> Graph<'g> {
    /// `logits: [n, n_rows]` F32 and the Gumbel noise of its words ([`crate::gumbel`]), times a temperature: `keys: [4, n_rows]`
    /// I32 has [`NoiseKey::numbers`] of each row. `words`: the token of each word, I32, and F32 that is below zero for words
    /// that are not there, which get a number beyond all logits; without the first a word's number is its token. All
    /// contiguous. On CUDA a kernel of ours serves ([`crate::Device::makes_noise`]), elsewhere the CPU.
    pub fn add_gumbel(
        &self,
        logits: Tensor<'g>,
        keys: Tensor<'g>,
        words: Option<(Tensor<'g>, Option<Tensor<'g>>)>,
    ) -> Tensor<'g> {
        const OP: &str = "add_gumbel";
        let (nl, nk) = (logits.ne(), keys.ne());
        let n_all = |t: Tensor<'g>| t.ne().iter().product::<i64>();
        let (ids, mask) = (words.map(|words| words.0), words.and_then(|words| words.1));
        let fits = nk[0] == NoiseKey::N as i64 && n_all(keys) == nk[0] * nl[1] * nl[2] * nl[3];
        let of_words = |t: Option<Tensor<'g>>, dtype| t.is_none_or(|t| t.dtype() == dtype && n_all(t) == nl[0]);
        let fits = fits && keys.dtype() == Dtype::I32 && of_words(ids, Dtype::I32) && of_words(mask, Dtype::F32);
        let operands = || [Some(logits), Some(keys), ids, mask].into_iter().flatten();
        let sound = self.check_f32(OP, "logits", logits)
            && self.check(OP, fits, || format!("keys {keys:?} or words do not fit `logits` {nl:?}"))
            && self.check(OP, operands().all(|t| ask!(ggml_is_contiguous, t)), || "not all is contiguous".into());
        if !sound {
            return logits;
        }
        let operands: Vec<_> = operands().collect();
        self.custom_of(OP, Dtype::F32, nl, &operands, kernels::add_gumbel, &[kernels::GUMBEL])
    }
}
