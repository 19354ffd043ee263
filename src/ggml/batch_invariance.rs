//! What products on this CPU promise for each type of weight: how many tokens a batch may have without a token's bits
//! depending on the others. The tests in `tests/ops/every_type.rs` hold every type to it.

use ggml_sys as sys;
use kernels::{FEW_COLUMNS, Isa, WeightType};

use crate::device::DeviceKind;
use crate::dtype::Dtype;
use crate::weight_tensor::WeightId;
use crate::weights::Weights;

/// Tokens up to which ggml's own products of quantised weights on a CPU give each the bits that it has alone, where they do:
/// from the next on it takes tiles of the larger super-blocks, which it sums in another order.
const FEW_OF_GGML: usize = 7;

/// Bytes up to which models multiply matrices of floats with a token twice where ggml has another product for one token.
pub const SMALL_FLOATS: usize = 1 << 20;

/// Up to which batch width a token has the bits that it has alone, in products with weights of one type on this CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchInvariance {
    /// Any.
    Any,
    /// So many tokens; with more the results are close, not equal.
    UpTo(usize),
    /// None: a token's bits depend on how many tokens there are.
    No,
}

impl BatchInvariance {
    /// Of products with weights of this type. It tells of a type that [`Dtype::is_for_weights`].
    pub fn of(dtype: Dtype) -> Self {
        match WeightType::of(dtype.raw()) {
            Some(ty) if Isa::chosen().is_some() => match ty.max_columns(i64::MAX) {
                i64::MAX => Self::Any,
                n => Self::UpTo(n as usize),
            },
            _ => Self::of_ggml(dtype),
        }
    }

    /// As [`BatchInvariance::of`], of a tensor of so many bytes: small floats that ggml multiplies are given a token twice, and
    /// keep its bits where ggml's products of two and of seven tokens are alike.
    pub fn of_tensor(dtype: Dtype, n_bytes: usize) -> Self {
        match Self::of(dtype) {
            Self::No if dtype.is_float() && n_bytes <= SMALL_FLOATS && cfg!(target_arch = "x86_64") => {
                Self::UpTo(FEW_OF_GGML)
            }
            promise => promise,
        }
    }

    /// Of ggml's own products. On 64-bit ARM it takes columns in pairs, or in tiles, where the processor has instructions for
    /// it, so nothing is promised there of types for which that is known.
    fn of_ggml(dtype: Dtype) -> Self {
        // SAFETY: the table is static and has every type.
        let traits = unsafe { sys::ggml_get_type_traits_cpu(dtype.raw()) };
        // SAFETY: an entry of ggml's static table.
        let one_by_one = unsafe { &*traits }.nrows <= 1;
        let x86 = cfg!(target_arch = "x86_64");
        match dtype.raw() {
            // One token is another product than several.
            sys::GGML_TYPE_F32 | sys::GGML_TYPE_F16 | sys::GGML_TYPE_BF16 => Self::No,
            // The product of several tokens adds blocks in another order than the dot product does.
            sys::GGML_TYPE_IQ4_NL if x86 => Self::No,
            // Only dot products, or products of several tokens with their order of sums.
            sys::GGML_TYPE_Q4_0
            | sys::GGML_TYPE_Q4_1
            | sys::GGML_TYPE_Q5_0
            | sys::GGML_TYPE_Q5_1
            | sys::GGML_TYPE_Q8_0
            | sys::GGML_TYPE_Q1_0
            | sys::GGML_TYPE_Q2_0
            | sys::GGML_TYPE_TQ1_0
            | sys::GGML_TYPE_TQ2_0
            | sys::GGML_TYPE_MXFP4
            | sys::GGML_TYPE_NVFP4
            | sys::GGML_TYPE_F8_E4M3
                if x86 =>
            {
                Self::Any
            }
            _ if x86 => Self::UpTo(FEW_OF_GGML),
            // Our kernels serve what ggml has tiles for.
            raw if one_by_one && (WeightType::of(raw).is_none() || dot_products_alone(raw)) => Self::UpTo(FEW_OF_GGML),
            _ => Self::No,
        }
    }

    /// The batch width; the largest that is used where any would do.
    pub fn width(self) -> Option<usize> {
        match self {
            Self::Any => Some(FEW_COLUMNS as usize),
            Self::UpTo(n) => Some(n),
            Self::No => None,
        }
    }
}

/// Types that our kernels serve although ggml has no tiles for them on 64-bit ARM.
fn dot_products_alone(raw: sys::ggml_type) -> bool {
    matches!(
        raw,
        sys::GGML_TYPE_IQ4_NL | sys::GGML_TYPE_Q5_0 | sys::GGML_TYPE_Q4_1 | sys::GGML_TYPE_Q5_1 | sys::GGML_TYPE_MXFP4
    )
}

/// The width of a type among others in a file.
fn width_in_weights(dtype: Dtype) -> Option<usize> {
    match BatchInvariance::of(dtype) {
        BatchInvariance::No if dtype.is_float() && cfg!(target_arch = "x86_64") => Some(FEW_OF_GGML),
        promise => promise.width(),
    }
}

impl Weights {
    /// Tokens of a forward pass up to which each has the bits that it has alone, in products with these weights; `None` where a
    /// token's bits depend on how many there are: where some weights are of a type of which [`BatchInvariance::No`] is said, or
    /// lie on another device, whose backend says nothing of its kernels. Large matrices of floats are not counted on x86-64 that
    /// the kernels do not serve: with these a token may differ from the token alone.
    pub fn rows_alike(&self) -> Option<usize> {
        let width = |id: WeightId| {
            let (dtype, device) = (self.dtype(id)?, self.device_of(id)?);
            match device.kind() {
                DeviceKind::Cpu => width_in_weights(dtype),
                _ => device.columns_alike(dtype, self.ne(id)?),
            }
        };
        let least = self.ids().map(width).try_fold(usize::MAX, |least, n| Some(least.min(n?)))?;
        Some(if self.is_empty() { FEW_COLUMNS as usize } else { least })
    }

    /// The names of the types that keep [`Weights::rows_alike`] from a number, each once.
    pub fn dtypes_of_no_promise(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.dtypes().filter(|&t| width_in_weights(t).is_none()).map(Dtype::name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
