//! Element types of tensors: ids as they stand in files, names, block and row sizes.
//! Asks ggml for every size, so nothing here can drift from it.

use std::ffi::CStr;
use std::fmt;

use ggml_sys as sys;

use crate::error::Error;

/// An element type that ggml knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dtype(sys::ggml_type);

impl Dtype {
    /// 32-bit float.
    pub const F32: Self = Self(sys::GGML_TYPE_F32);
    /// 16-bit IEEE float.
    pub const F16: Self = Self(sys::GGML_TYPE_F16);
    /// 16-bit brain float.
    pub const BF16: Self = Self(sys::GGML_TYPE_BF16);
    /// 8-bit blocks of 32 with one scale.
    pub const Q8_0: Self = Self(sys::GGML_TYPE_Q8_0);
    /// 4-bit blocks of 32 with one scale.
    pub const Q4_0: Self = Self(sys::GGML_TYPE_Q4_0);
    /// 4-bit blocks of 32 with a scale and a minimum.
    pub const Q4_1: Self = Self(sys::GGML_TYPE_Q4_1);
    /// 5-bit blocks of 32 with one scale.
    pub const Q5_0: Self = Self(sys::GGML_TYPE_Q5_0);
    /// 5-bit blocks of 32 with a scale and a minimum.
    pub const Q5_1: Self = Self(sys::GGML_TYPE_Q5_1);
    /// 4-bit places in an uneven table, blocks of 32 with one scale.
    pub const IQ4_NL: Self = Self(sys::GGML_TYPE_IQ4_NL);
    /// 4-bit super-blocks of 256.
    pub const Q4_K: Self = Self(sys::GGML_TYPE_Q4_K);
    /// 5-bit super-blocks of 256.
    pub const Q5_K: Self = Self(sys::GGML_TYPE_Q5_K);
    /// 6-bit super-blocks of 256.
    pub const Q6_K: Self = Self(sys::GGML_TYPE_Q6_K);
    /// 8-bit super-blocks of 256 that ggml makes of activations; not found in files.
    pub(crate) const Q8_K: Self = Self(sys::GGML_TYPE_Q8_K);
    /// Bytes: what ggml makes nothing of, as rows of types of our own.
    pub const I8: Self = Self(sys::GGML_TYPE_I8);
    /// 32-bit signed integer.
    pub const I32: Self = Self(sys::GGML_TYPE_I32);
    /// 64-bit signed integer.
    pub const I64: Self = Self(sys::GGML_TYPE_I64);

    /// The type with this id in a GGUF file.
    ///
    /// # Errors
    /// [`Error::UnknownDtype`]: an id past the last type, or one that ggml has given up.
    pub fn from_id(id: u32) -> Result<Self, Error> {
        if id >= sys::GGML_TYPE_COUNT {
            return Err(Error::UnknownDtype(id));
        }
        let dtype = Self(id);
        // Ids of removed types stay in the table with a block of zero elements.
        if dtype.block_size() == 0 { Err(Error::UnknownDtype(id)) } else { Ok(dtype) }
    }

    /// The id that stands in GGUF files.
    pub fn id(self) -> u32 {
        self.0
    }

    /// Elements in one block.
    pub fn block_size(self) -> usize {
        // SAFETY: `self.0` is below GGML_TYPE_COUNT (every constructor checks), which is all the table look-up asks for.
        let n = unsafe { sys::ggml_blck_size(self.0) };
        n as usize
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        // SAFETY: `self.0` is below GGML_TYPE_COUNT.
        unsafe { sys::ggml_type_size(self.0) }
    }

    /// True for types that store blocks with scales.
    pub fn is_quantized(self) -> bool {
        // SAFETY: `self.0` is below GGML_TYPE_COUNT.
        unsafe { sys::ggml_is_quantized(self.0) }
    }

    /// Bytes of a row of `n` elements.
    ///
    /// # Errors
    /// [`Error::Row`]: `n` is negative or no multiple of the block.
    pub fn row_bytes(self, n: i64) -> Result<usize, Error> {
        let block = self.block_size();
        let whole = usize::try_from(n).ok().filter(|n| n.is_multiple_of(block));
        let bytes = whole.and_then(|n| (n / block).checked_mul(self.block_bytes()));
        bytes.ok_or(Error::Row { n, dtype: self.name(), block })
    }

    /// True when a tensor of this type and shape has whole rows, no empty dimension and at most [`MAX_BYTES`].
    pub(crate) fn is_sizeable(self, ne: [i64; 4]) -> bool {
        let row = self.row_bytes(ne[0]).ok().filter(|_| ne.iter().all(|&n| n >= 1));
        let n_rows = ne[1..].iter().try_fold(1usize, |all, &n| all.checked_mul(usize::try_from(n).ok()?));
        row.zip(n_rows).and_then(|(row, n_rows)| row.checked_mul(n_rows)).is_some_and(|bytes| bytes <= MAX_BYTES)
    }

    /// True for F32, F16 and BF16.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// True when a weight may have this type: ggml multiplies it on a CPU, and reads its rows.
    pub fn is_for_weights(self) -> bool {
        self.multiplies() && self.unpacks()
    }

    /// True when rows of this type can be multiplied with F32 rows. ggml calls a null pointer otherwise.
    pub(crate) fn multiplies(self) -> bool {
        // SAFETY: `self.0` is below GGML_TYPE_COUNT; the table is static.
        let traits = unsafe { sys::ggml_get_type_traits_cpu(self.0) };
        // SAFETY: an entry of the static table.
        unsafe { &*traits }.vec_dot.is_some()
    }

    /// True when F32 rows can be written as this type without preparation.
    pub(crate) fn packs(self) -> bool {
        // SAFETY: `self.0` is below GGML_TYPE_COUNT; the table is static.
        let traits = unsafe { sys::ggml_get_type_traits_cpu(self.0) };
        // SAFETY: an entry of the static table.
        let from_float = unsafe { &*traits }.from_float.is_some();
        from_float && (self.is_float() || self.is_quantized())
    }

    /// True for the types that [`crate::pack_rows`] makes: those that take any finite floats, without weights. (ggml ends
    /// the process over some inputs of the smaller IQ types.)
    pub fn can_be_packed(self) -> bool {
        let plain = [Self::F32, Self::F16, Self::BF16, Self::Q8_0, Self::Q4_0, Self::Q4_K, Self::Q6_K];
        let others = [
            sys::GGML_TYPE_Q4_1,
            sys::GGML_TYPE_Q5_0,
            sys::GGML_TYPE_Q5_1,
            sys::GGML_TYPE_Q2_K,
            sys::GGML_TYPE_Q3_K,
            sys::GGML_TYPE_Q5_K,
            sys::GGML_TYPE_IQ4_NL,
            sys::GGML_TYPE_IQ4_XS,
        ];
        plain.contains(&self) || others.contains(&self.0)
    }

    /// True when rows of this type can be read as F32.
    pub fn unpacks(self) -> bool {
        // SAFETY: `self.0` is below GGML_TYPE_COUNT; the table is static.
        let traits = unsafe { sys::ggml_get_type_traits(self.0) };
        // SAFETY: an entry of the static table.
        let to_float = unsafe { &*traits }.to_float.is_some();
        self == Self::F32 || (to_float && (self.is_float() || self.is_quantized()))
    }

    pub(crate) fn raw(self) -> sys::ggml_type {
        self.0
    }

    pub(crate) fn from_raw(raw: sys::ggml_type) -> Self {
        Self(raw)
    }

    /// ggml's name, such as `q4_K`.
    pub fn name(self) -> &'static str {
        // SAFETY: `self.0` is below GGML_TYPE_COUNT; the table's names are static.
        let name = unsafe { sys::ggml_type_name(self.0) };
        if name.is_null() {
            return "?";
        }
        // SAFETY: not null, NUL-terminated and static.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_str().unwrap_or("?")
    }
}

/// Bytes of one tensor at most. ggml multiplies and adds sizes without a look at overflow; sums of these stay in range.
const MAX_BYTES: usize = 1 << 44;

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_past_the_table_and_removed_types_are_refused() {
        assert!(Dtype::from_id(sys::GGML_TYPE_COUNT).is_err());
        assert!(Dtype::from_id(4).is_err(), "Q4_2 was removed");
        assert_eq!(Dtype::from_id(8).unwrap(), Dtype::Q8_0);
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(Dtype::Q8_0.row_bytes(64).unwrap(), 68);
        assert!(Dtype::Q8_0.row_bytes(65).is_err());
        assert!(Dtype::Q4_K.row_bytes(-256).is_err());
    }
}
