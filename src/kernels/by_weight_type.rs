//! The choice of an instruction set's kernel by the type of weight. Computes nothing.

/// What an instruction set's kernels make of this type of quantised weight: a `dots` in a module of the caller for each.
macro_rules! by_weight_type {
    ($isa:expr, $ty:expr, $group:expr, $y:expr) => {
        match $ty {
            WeightType::Q8_0 => q8_0_q4_0::dots::<{ $crate::weight_type::quants::BYTES }>($group, $y),
            WeightType::Q4_0 => q8_0_q4_0::dots::<{ $crate::weight_type::quants::NIBBLES }>($group, $y),
            WeightType::IQ4NL => q8_0_q4_0::dots::<{ $crate::weight_type::quants::CHOICES }>($group, $y),
            WeightType::Q5_0 => q8_0_q4_0::dots::<{ $crate::weight_type::quants::FIVES }>($group, $y),
            WeightType::Q4_1 => q8_0_q4_0::dots::<{ $crate::weight_type::quants::NIBBLES_FROM }>($group, $y),
            WeightType::Q5_1 => q8_0_q4_0::dots::<{ $crate::weight_type::quants::FIVES_FROM }>($group, $y),
            WeightType::MXFP4 => q8_0_q4_0::dots::<{ $crate::weight_type::quants::POWERS }>($group, $y),
            WeightType::Q4K => q4k_q5k::dots::<false>($group, $y),
            WeightType::Q5K => q4k_q5k::dots::<true>($group, $y),
            WeightType::Q6K => q6k::dots($group, $y),
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => $crate::floats::dots($isa, $ty, $group, $y),
            _ => $crate::neon::low_bits::by_type($ty, $group, $y),
        }
    };
}

pub(crate) use by_weight_type;
