//! Rotation of keys and values that are kept in blocks: outliers of a head are spread over its elements by a Walsh-Hadamard
//! transform before they are rounded, and so cost the other elements of their block less. Queries are rotated as keys are,
//! which leaves their products as they were; what is read of rotated values is rotated back.
//! Source: QuaRot (Ashkboos et al. 2024); sizes as in llama.cpp, so that quality can be compared.

use ggml::{Graph, StateId, Tensor};

use crate::cache_type::CacheType;
use crate::layout::{Kv, LayerState, StateLayout};
use crate::slots::{Memory, MemoryConfig};
use crate::view::StepView;

/// Elements that are rotated together at least, and all that are of values.
const LEAST: usize = 64;

/// Elements of a layer's keys and of its values that are rotated together; `None` for none.
type Rotation = (Option<usize>, Option<usize>);

impl MemoryConfig {
    /// The rotation of a layer's keys and values.
    pub(crate) fn rotation(&self, kv: &Kv) -> Rotation {
        // Types of our own rotate by themselves.
        let is_kept =
            |d: usize, t: CacheType| self.rotate && !t.is_plain() && !t.is_turbo() && d > 0 && d.is_multiple_of(LEAST);
        if kv.latent {
            // The values are elements of the keys, so both are rotated in the same runs.
            let n = (is_kept(kv.d_k, self.type_k) && kv.d_v.is_multiple_of(LEAST)).then_some(LEAST);
            return (n, n);
        }
        let largest = |d: usize| 1 << d.trailing_zeros();
        let k = is_kept(kv.d_k, self.type_k).then(|| largest(kv.d_k));
        (k, is_kept(kv.d_v, self.type_v).then_some(LEAST))
    }

    /// The rotations of each layer's keys and values.
    fn of_layers(&self, layout: &StateLayout) -> Vec<Option<usize>> {
        let of_layer = |layer: &LayerState| match layer {
            LayerState::Kv(kv) => self.rotation(kv),
            LayerState::None | LayerState::Recurrent(_) => (None, None),
        };
        layout.layers.iter().map(of_layer).flat_map(<[_; 2]>::from).collect()
    }

    /// The sizes of all rotations, each once.
    pub(crate) fn rotations(&self, layout: &StateLayout) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.of_layers(layout).into_iter().flatten().collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The matrix of a rotation of `n` elements, `[n, n]`, as F32 in bytes; `n` is a power of two.
    pub(crate) fn rotation_matrix(n: usize) -> Vec<u8> {
        let scale = 1.0 / (n as f32).sqrt();
        let sign =
            |row: usize, column: usize| if (row & column).count_ones().is_multiple_of(2) { scale } else { -scale };
        (0..n * n).flat_map(|i| sign(i / n, i % n).to_le_bytes()).collect()
    }

    /// Bytes of the matrices of all rotations, on each device that has layers.
    pub fn rotation_bytes(&self, layout: &StateLayout) -> usize {
        self.rotations(layout).into_iter().map(|n| 4 * n * n).sum()
    }
}

impl Memory {
    /// See [`crate::StateShape`].
    pub(crate) fn rotation_words(&self) -> Vec<u64> {
        let all = self.config.of_layers(&self.layout);
        match all.iter().all(Option::is_none) {
            true => Vec::new(),
            false => all.into_iter().map(|n| n.unwrap_or(0) as u64).collect(),
        }
    }
}

impl StepView<'_> {
    /// Queries or keys of layer `il`, `[d_k, n_head, n_tokens]`, contiguous, as the keys are kept.
    pub fn rotate_k<'g>(&self, g: &Graph<'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        self.rotate(g, x, self.rotation_of(il).0)
    }

    /// Values of layer `il`, `[d_v, ..]`, contiguous, as they are kept, or those that were read as they were given.
    pub fn rotate_v<'g>(&self, g: &Graph<'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        self.rotate(g, x, self.rotation_of(il).1)
    }

    fn rotation_of(&self, il: usize) -> (Option<StateId>, Option<StateId>) {
        self.memory.rotations.get(self.at(il)).copied().unwrap_or_default()
    }

    fn rotate<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, matrix: Option<StateId>) -> Tensor<'g> {
        let Some(id) = matrix else { return x };
        let h = g.state(&self.memory.buffer, id); // [n, n]
        let (n, ne) = (h.ne()[0], x.ne());
        let runs = g.reshape(x, [n, x.n_elements() / n]); // was [d, ..]
        g.reshape(g.hadamard(h, runs), ne)
    }
}
