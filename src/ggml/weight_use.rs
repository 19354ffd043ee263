//! Whether a device can compute with a weight, asked of its backend before the weight is placed.
//! Owns the nodes that it is asked with.

use ggml_sys as sys;

use crate::device::Device;
use crate::dtype::Dtype;
use crate::raw::Context;

/// What graphs do with a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightUse {
    /// `mul_mat`.
    Product,
    /// `mul_mat_id`: dimension 2 counts experts.
    Experts,
    /// `get_rows`.
    Rows,
}

impl Device {
    /// True when the device's backend says that it has the op of `by` for a weight of this type and shape, with activations in
    /// F32. A worker says so of everything.
    pub fn computes_with(self, dtype: Dtype, ne: [i64; 4], by: WeightUse) -> bool {
        // A weight, activations, ids, and the node.
        let Some(arena) = Context::new(4, 0) else { return true };
        let ctx = arena.as_ptr();
        let tensor = |dtype: Dtype, ne: [i64; 4]| {
            // SAFETY: the arena has room for four tensors; `ne` has four dimensions.
            unsafe { sys::ggml_new_tensor(ctx, dtype.raw(), 4, ne.map(|n| n.max(1)).as_ptr()) }
        };
        let weight = tensor(dtype, ne);
        let node = match by {
            WeightUse::Product => {
                let b = tensor(Dtype::F32, [ne[0], 1, ne[2], ne[3]]);
                // SAFETY: both lie in the arena and fit each other.
                unsafe { sys::ggml_mul_mat(ctx, weight, b) }
            }
            WeightUse::Experts => {
                let (b, ids) = (tensor(Dtype::F32, [ne[0], 1, 1, 1]), tensor(Dtype::I32, [1; 4]));
                // SAFETY: all lie in the arena and fit each other.
                unsafe { sys::ggml_mul_mat_id(ctx, weight, b, ids) }
            }
            WeightUse::Rows => {
                let ids = tensor(Dtype::I32, [1; 4]);
                // SAFETY: both lie in the arena and fit each other.
                unsafe { sys::ggml_get_rows(ctx, weight, ids) }
            }
        };
        // SAFETY: a registry entry, and a node whose arena is alive.
        unsafe { sys::ggml_backend_dev_supports_op(self.raw(), node) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_computes_with_what_it_has_kernels_for() {
        let cpu = Device::cpu().unwrap();
        for by in [WeightUse::Product, WeightUse::Rows] {
            assert!(cpu.computes_with(Dtype::Q4_K, [256, 8, 1, 1], by), "{by:?}");
        }
        assert!(cpu.computes_with(Dtype::Q4_K, [256, 8, 4, 1], WeightUse::Experts));
    }
}
