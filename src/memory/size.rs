//! The tensors that state is made of, and their bytes: what is planned beside a model's weights and what is allocated
//! later are the same numbers.

use ggml::Dtype;

use crate::cache_type::CacheType;
use crate::error::Error;
use crate::layout::{LayerState, StateLayout};
use crate::slots::MemoryConfig;

/// Contexts, and the cells that attention reads, are rounded up to this, so that graphs are reused from step to step.
pub const KV_STEP: usize = 256;

/// The same on devices other than CPUs, where a graph is dear to build and a masked cell cheap to read, in short contexts.
const KV_STEP_OF_DEVICES: usize = 1024;

/// Bytes of a granule, as GPUs have them.
const GRANULE: usize = 2 << 20;

/// In long contexts there, this share of them.
const KV_SHARE: usize = 8;

/// Cells that attention reads of a sequence of `len` positions: a few more than it has, so that graphs are reused.
pub(crate) fn n_cells_read(len: usize, on_cpu: bool) -> usize {
    let step = if on_cpu {
        KV_STEP
    } else {
        // Powers of two: steps of one size follow each other.
        KV_STEP_OF_DEVICES.max(len.checked_ilog2().map_or(0, |log| 1 << log) / KV_SHARE)
    };
    len.next_multiple_of(step)
}

/// One tensor of a layer's state: what it is for, type, shape.
pub(crate) type StateTensor = (&'static str, Dtype, [i64; 4]);

impl MemoryConfig {
    /// Bytes of the state of one layer.
    ///
    /// # Errors
    /// [`Error::Layout`]: a quantised type whose block does not divide a head, or more than can be counted.
    pub fn layer_bytes(&self, layer: &LayerState) -> Result<usize, Error> {
        let bytes = |&(what, dtype, ne): &StateTensor| {
            let n_rows = ne[1..].iter().try_fold(1usize, |n, &ne| n.checked_mul(usize::try_from(ne).ok()?));
            let row = dtype.row_bytes(ne[0]).map_err(|e| Error::Layout(format!("{what}: {e}")))?;
            n_rows.and_then(|n| n.checked_mul(row)).ok_or_else(|| Error::Layout(format!("{what}: {ne:?} is too large")))
        };
        self.tensors(layer)?.iter().try_fold(0usize, |all, tensor| Ok(all.saturating_add(bytes(tensor)?)))
    }

    /// Bytes of the state of one layer that one sequence needs where the memory of others is taken when they write to it.
    ///
    /// # Errors
    /// As [`MemoryConfig::layer_bytes`].
    pub fn least_bytes(&self, layer: &LayerState) -> Result<usize, Error> {
        let all = self.layer_bytes(layer)?;
        let parts: usize = self.part_bytes(layer)?.into_iter().filter(|&part| part >= GRANULE).sum();
        let n_of_slot = if matches!(layer, LayerState::Recurrent(_)) { self.n_planes() } else { 1 };
        let of_one = parts.saturating_mul(n_of_slot);
        // Small tensors have their memory from the start.
        Ok(all.saturating_sub(of_one.saturating_mul(self.n_slots - 1)))
    }

    /// Bytes of each tensor of a layer that belong to one sequence and lie together, in their order: where memory is taken in
    /// granules before it is written, a tensor whose parts are smaller has its memory from the start.
    pub(crate) fn part_bytes(&self, layer: &LayerState) -> Result<Vec<usize>, Error> {
        let of_tensor = |(_, dtype, ne): StateTensor| {
            let row = dtype.row_bytes(ne[0]).unwrap_or(0);
            match layer {
                // Values of one cell lie all over the slot, and what is not all taken as it is written is not counted so.
                _ if self.v_transposed => 0,
                LayerState::Kv(_) => row.saturating_mul(usize::try_from(ne[1]).unwrap_or(0)),
                LayerState::Recurrent(_) => row,
                LayerState::None => 0,
            }
        };
        Ok(self.tensors(layer)?.into_iter().map(of_tensor).collect())
    }

    /// Bytes of the state of all layers: what [`crate::Memory::n_bytes`] will say of one device.
    ///
    /// # Errors
    /// As [`MemoryConfig::layer_bytes`].
    pub fn n_bytes(&self, layout: &StateLayout) -> Result<usize, Error> {
        let add = |all: usize, layer| Ok(all.saturating_add(self.layer_bytes(layer)?));
        layout.layers.iter().try_fold(self.rotation_bytes(layout), add)
    }

    /// With the context as memory has it.
    pub(crate) fn rounded(self) -> Self {
        Self { n_ctx: self.n_ctx.checked_next_multiple_of(KV_STEP).unwrap_or(self.n_ctx), ..self }
    }

    /// Recurrent states of each sequence that there is room for.
    pub(crate) fn n_planes(&self) -> usize {
        self.n_snapshots.saturating_mul(if self.transactional { 2 } else { 1 })
    }

    /// The tensors of a layer's state.
    pub(crate) fn tensors(&self, layer: &LayerState) -> Result<Vec<StateTensor>, Error> {
        let config = self.rounded();
        let n_slots = as_dim(config.n_slots);
        match layer {
            LayerState::None => Ok(Vec::new()),
            LayerState::Kv(kv) => {
                let type_v = if kv.latent { config.type_k } else { config.type_v };
                let row = |(d, t, of): (usize, CacheType, &str)| {
                    let row = t.row(d, kv.n_head_kv).filter(|_| t.head_bytes(d).is_some());
                    row.map(as_dim).ok_or_else(|| Error::Layout(unkept(d, t, of)))
                };
                let (d_k, d_v) = (row((kv.d_k, config.type_k, "key"))?, row((kv.d_v, type_v, "value"))?);
                if kv.latent && config.type_k.turbo(kv.d_k).is_some_and(|turbo| turbo.n_bytes(kv.d_v).is_none()) {
                    return Err(Error::Layout(unkept(kv.d_v, config.type_k, "value")));
                }
                let n_cells = as_dim(config.n_cells(kv.window));
                let k = ("cache_k", config.type_k.dtype(), [d_k, n_cells, n_slots, 1]);
                if kv.latent {
                    return Ok(vec![k]);
                }
                let v = if config.v_transposed { [n_cells, d_v, n_slots, 1] } else { [d_v, n_cells, n_slots, 1] };
                Ok(vec![k, ("cache_v", config.type_v.dtype(), v)])
            }
            LayerState::Recurrent(r) => {
                let n_rows = as_dim(config.n_slots.saturating_mul(config.n_planes()));
                let rows = |what, n| (what, Dtype::F32, [as_dim(n), n_rows, 1, 1]);
                let tensors = [rows("conv", r.n_conv_state()), rows("heads", r.n_head_state())];
                // A layer may keep the inputs of a convolution and nothing else.
                Ok(tensors.into_iter().filter(|(_, _, ne)| ne[0] > 0).collect())
            }
        }
    }
}

/// Why heads of `d` elements cannot be kept as `t`, and what to do.
fn unkept(d: usize, t: CacheType, of: &str) -> String {
    let option = if of == "key" { "--cache-type-k" } else { "--cache-type-v" };
    let instead = match t.is_turbo() && CacheType::Q4_0.head_bytes(d).is_some() {
        true => "q4_0",
        false => "f16",
    };
    let takes = if t.is_turbo() { ", which takes multiples of 64" } else { "" };
    format!("a {of} head of {d} elements cannot be kept as {t}{takes}: use {option} {instead}")
}

pub(crate) fn as_dim(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_reads_all_cells_and_few_more_in_few_steps() {
        for on_cpu in [true, false] {
            let mut sizes: Vec<usize> = (1..=65536).map(|len| n_cells_read(len, on_cpu)).collect();
            for (len, n) in (1..=65536).zip(&sizes) {
                assert!(*n >= len && n % KV_STEP == 0, "{len}: {n}");
                let most = if on_cpu { KV_STEP - 1 } else { (KV_STEP_OF_DEVICES - 1).max(len / KV_SHARE) };
                assert!(n - len <= most, "{len}: {n}");
            }
            assert!(sizes.is_sorted());
            sizes.dedup();
            assert_eq!(sizes.len(), if on_cpu { 256 } else { 32 }, "{sizes:?}");
        }
        assert_eq!((n_cells_read(100, true), n_cells_read(100, false)), (256, 1024));
    }
}
