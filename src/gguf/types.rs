//! The tensor types of ggml 0.28 with their block shapes.
//! Owns ids, names and sizes (a test in the ggml crate compares them with ggml's); knows nothing of what is in a block.

macro_rules! tensor_types {
    ($($variant:ident = $id:literal, $name:literal, $block:literal, $bytes:literal;)*) => {
        /// How the elements of a tensor are stored; spelled and numbered as in ggml.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum TensorType { $($variant = $id,)* }

        impl TensorType {
            /// Every type, by id.
            pub const ALL: &'static [TensorType] = &[$(TensorType::$variant,)*];

            /// None for ids that ggml has removed or not given yet.
            pub fn from_id(id: u32) -> Option<TensorType> {
                match id { $($id => Some(TensorType::$variant),)* _ => None }
            }

            /// ggml's name, as in `q4_K`.
            pub fn name(self) -> &'static str {
                match self { $(TensorType::$variant => $name,)* }
            }

            /// Elements per block; 1 for plain numbers.
            pub fn block_size(self) -> u64 {
                match self { $(TensorType::$variant => $block,)* }
            }

            /// Bytes per block.
            pub fn type_size(self) -> u64 {
                match self { $(TensorType::$variant => $bytes,)* }
            }
        }
    };
}

tensor_types! {
    F32 = 0, "f32", 1, 4;
    F16 = 1, "f16", 1, 2;
    Q4_0 = 2, "q4_0", 32, 18;
    Q4_1 = 3, "q4_1", 32, 20;
    Q5_0 = 6, "q5_0", 32, 22;
    Q5_1 = 7, "q5_1", 32, 24;
    Q8_0 = 8, "q8_0", 32, 34;
    Q8_1 = 9, "q8_1", 32, 36;
    Q2_K = 10, "q2_K", 256, 84;
    Q3_K = 11, "q3_K", 256, 110;
    Q4_K = 12, "q4_K", 256, 144;
    Q5_K = 13, "q5_K", 256, 176;
    Q6_K = 14, "q6_K", 256, 210;
    Q8_K = 15, "q8_K", 256, 292;
    IQ2_XXS = 16, "iq2_xxs", 256, 66;
    IQ2_XS = 17, "iq2_xs", 256, 74;
    IQ3_XXS = 18, "iq3_xxs", 256, 98;
    IQ1_S = 19, "iq1_s", 256, 50;
    IQ4_NL = 20, "iq4_nl", 32, 18;
    IQ3_S = 21, "iq3_s", 256, 110;
    IQ2_S = 22, "iq2_s", 256, 82;
    IQ4_XS = 23, "iq4_xs", 256, 136;
    I8 = 24, "i8", 1, 1;
    I16 = 25, "i16", 1, 2;
    I32 = 26, "i32", 1, 4;
    I64 = 27, "i64", 1, 8;
    F64 = 28, "f64", 1, 8;
    IQ1_M = 29, "iq1_m", 256, 56;
    BF16 = 30, "bf16", 1, 2;
    TQ1_0 = 34, "tq1_0", 256, 54;
    TQ2_0 = 35, "tq2_0", 256, 66;
    MXFP4 = 39, "mxfp4", 32, 17;
    NVFP4 = 40, "nvfp4", 64, 36;
    Q1_0 = 41, "q1_0", 128, 18;
    Q2_0 = 42, "q2_0", 64, 18;
    F8_E4M3 = 43, "f8_e4m3", 1, 1;
}

impl TensorType {
    /// The number in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of a row of `n` elements; None when `n` is not a multiple of the block, or the size does not fit.
    pub fn row_bytes(self, n: u64) -> Option<u64> {
        if !n.is_multiple_of(self.block_size()) {
            return None;
        }
        (n / self.block_size()).checked_mul(self.type_size())
    }

    /// Bytes of a contiguous tensor of shape `ne`, fastest dimension first; 0 when a dimension is 0.
    /// None when the first dimension is not a multiple of the block, the number of elements is over `i64::MAX` (ggml
    /// counts in i64), or the size does not fit.
    pub fn tensor_bytes(self, ne: &[u64; 4]) -> Option<u64> {
        let n = n_elements(ne)?;
        if !ne[0].is_multiple_of(self.block_size()) {
            return None;
        }
        (n / self.block_size()).checked_mul(self.type_size())
    }
}

/// The product of the dimensions in their order; None when it passes `i64::MAX` on the way.
pub(crate) fn n_elements(ne: &[u64; 4]) -> Option<u64> {
    let n = ne.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim).filter(|n| i64::try_from(*n).is_ok()))?;
    ne.iter().all(|dim| i64::try_from(*dim).is_ok()).then_some(n)
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_are_unique_and_lead_back_to_their_type() {
        for t in TensorType::ALL {
            assert_eq!(TensorType::from_id(t.id()), Some(*t));
            assert_eq!(TensorType::ALL.iter().filter(|o| o.name() == t.name()).count(), 1, "{t}");
        }
        for removed in [4, 5, 31, 32, 33, 36, 37, 38, 44, u32::MAX] {
            assert_eq!(TensorType::from_id(removed), None);
        }
    }

    #[test]
    fn sizes_that_do_not_fit_or_split_a_block_are_none() {
        assert_eq!(TensorType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(TensorType::Q4_K.row_bytes(300), None);
        assert_eq!(TensorType::F32.row_bytes(u64::MAX / 2), None);
        assert_eq!(TensorType::BF16.tensor_bytes(&[1024, 4, 1, 1]), Some(8192));
        assert_eq!(TensorType::F32.tensor_bytes(&[1 << 62, 4, 1, 1]), None);
        assert_eq!(TensorType::I8.tensor_bytes(&[1 << 62, 2, 1, 1]), None, "fits u64, not i64");
        assert_eq!(TensorType::I8.tensor_bytes(&[1 << 62, 0, 1 << 62, 1]), Some(0));
        assert_eq!(TensorType::I8.tensor_bytes(&[0, 1 << 63, 1, 1]), None, "ggml reads this one as negative");
    }
}
