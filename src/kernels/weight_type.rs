//! Types of weights that the kernels serve, how their blocks lie, and what their products make of activations.
//! Layouts are those of ggml's files; all sizes in bytes. Computes nothing.

use ggml_sys as sys;

use crate::isa::Isa;

/// A type of weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 32 values: F16 scale, 32 signed bytes.
    Q8_0,
    /// 32 values less 8: F16 scale, 16 bytes of nibbles, the low ones first.
    Q4_0,
    /// 32 values out of [`iq4nl::VALUES`]: F16 scale, 16 bytes of nibbles, the low ones first.
    IQ4NL,
    /// 32 values less 16: F16 scale, fifth bits in 4 bytes, 16 bytes of nibbles, the low ones first.
    Q5_0,
    /// 32 values and a minimum: F16 scale, F16 minimum, 16 bytes of nibbles, the low ones first.
    Q4_1,
    /// As `Q4_1`, with fifth bits in 4 bytes before the nibbles.
    Q5_1,
    /// 32 values out of [`mxfp4::VALUES`]: a power of two as a byte, 16 bytes of nibbles, the low ones first.
    MXFP4,
    /// 256 values: F16 scale, F16 scale of minima, 8 scales and 8 minima of 6 bits in 12 bytes, 128 bytes of nibbles.
    Q4K,
    /// As `Q4K`, with a fifth bit for each value in 32 bytes before the nibbles.
    Q5K,
    /// 256 values: 128 bytes of low nibbles, 64 bytes of upper pairs of bits, 16 signed scales, F16 scale.
    Q6K,
    /// 256 values of two bits, with a scale and a minimum of four bits for each 16 ([`crate::low_bits`], as all of the following).
    Q2K,
    /// 256 values of three bits less 4, with a scale of six bits for each 16.
    Q3K,
    /// 256 values out of [`iq4nl::VALUES`], with a scale of six bits for each 32.
    IQ4XS,
    /// 256 values, each four out of 256 entries of a grid, with signs and a scale of four bits for each 32.
    IQ3XXS,
    /// Likewise out of 512 entries.
    IQ3S,
    /// 256 values, each eight out of 256 entries of a grid, with signs and a scale of four bits for each 32.
    IQ2XXS,
    /// Likewise out of 512 entries, with a scale for each 16.
    IQ2XS,
    /// Likewise out of 1,024 entries.
    IQ2S,
    /// 256 values, each eight out of 2,048 entries of -1, 0 and 1, an eighth more or less, with a scale of three bits for each 32.
    IQ1S,
    /// Likewise with a scale for each 16.
    IQ1M,
    /// Plain values; a block is 16 of them.
    F32,
    /// As `F32`, halves.
    F16,
    /// As `F32`, upper halves of floats.
    BF16,
}

/// What activations are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationFormat {
    /// Blocks of 32.
    Q8_0,
    /// Blocks of 256.
    Q8K,
    /// Nothing: they are read as they are.
    F32,
}

/// Columns that the kernels take with weights of any type.
pub const FEW_COLUMNS: i64 = 32;

/// Numbers of a small matrix.
const SMALL: i64 = 1 << 22;

impl WeightType {
    /// That of a tensor's type.
    pub fn of(raw: sys::ggml_type) -> Option<Self> {
        Some(match raw {
            sys::GGML_TYPE_Q8_0 => Self::Q8_0,
            sys::GGML_TYPE_Q4_0 => Self::Q4_0,
            sys::GGML_TYPE_IQ4_NL => Self::IQ4NL,
            sys::GGML_TYPE_Q5_0 => Self::Q5_0,
            sys::GGML_TYPE_Q4_1 => Self::Q4_1,
            sys::GGML_TYPE_Q5_1 => Self::Q5_1,
            sys::GGML_TYPE_MXFP4 => Self::MXFP4,
            sys::GGML_TYPE_Q4_K => Self::Q4K,
            sys::GGML_TYPE_Q5_K => Self::Q5K,
            sys::GGML_TYPE_Q6_K => Self::Q6K,
            sys::GGML_TYPE_Q2_K => Self::Q2K,
            sys::GGML_TYPE_Q3_K => Self::Q3K,
            sys::GGML_TYPE_IQ4_XS => Self::IQ4XS,
            sys::GGML_TYPE_IQ3_XXS => Self::IQ3XXS,
            sys::GGML_TYPE_IQ3_S => Self::IQ3S,
            sys::GGML_TYPE_IQ2_XXS => Self::IQ2XXS,
            sys::GGML_TYPE_IQ2_XS => Self::IQ2XS,
            sys::GGML_TYPE_IQ2_S => Self::IQ2S,
            sys::GGML_TYPE_IQ1_S => Self::IQ1S,
            sys::GGML_TYPE_IQ1_M => Self::IQ1M,
            sys::GGML_TYPE_F32 => Self::F32,
            sys::GGML_TYPE_F16 => Self::F16,
            sys::GGML_TYPE_BF16 => Self::BF16,
            _ => return None,
        })
    }

    /// ggml's number of the type.
    pub(crate) fn raw(self) -> sys::ggml_type {
        match self {
            Self::Q8_0 => sys::GGML_TYPE_Q8_0,
            Self::Q4_0 => sys::GGML_TYPE_Q4_0,
            Self::IQ4NL => sys::GGML_TYPE_IQ4_NL,
            Self::Q5_0 => sys::GGML_TYPE_Q5_0,
            Self::Q4_1 => sys::GGML_TYPE_Q4_1,
            Self::Q5_1 => sys::GGML_TYPE_Q5_1,
            Self::MXFP4 => sys::GGML_TYPE_MXFP4,
            Self::Q4K => sys::GGML_TYPE_Q4_K,
            Self::Q5K => sys::GGML_TYPE_Q5_K,
            Self::Q6K => sys::GGML_TYPE_Q6_K,
            Self::Q2K => sys::GGML_TYPE_Q2_K,
            Self::Q3K => sys::GGML_TYPE_Q3_K,
            Self::IQ4XS => sys::GGML_TYPE_IQ4_XS,
            Self::IQ3XXS => sys::GGML_TYPE_IQ3_XXS,
            Self::IQ3S => sys::GGML_TYPE_IQ3_S,
            Self::IQ2XXS => sys::GGML_TYPE_IQ2_XXS,
            Self::IQ2XS => sys::GGML_TYPE_IQ2_XS,
            Self::IQ2S => sys::GGML_TYPE_IQ2_S,
            Self::IQ1S => sys::GGML_TYPE_IQ1_S,
            Self::IQ1M => sys::GGML_TYPE_IQ1_M,
            Self::F32 => sys::GGML_TYPE_F32,
            Self::F16 => sys::GGML_TYPE_F16,
            Self::BF16 => sys::GGML_TYPE_BF16,
        }
    }

    /// Blocks of 256 values of one to four bits ([`crate::low_bits`]).
    pub(crate) fn is_low_bit(self) -> bool {
        self.format() == ActivationFormat::Q8K && !matches!(self, Self::Q4K | Self::Q5K | Self::Q6K)
    }

    /// What its products make of activations.
    pub fn format(self) -> ActivationFormat {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::IQ4NL | Self::Q5_0 | Self::Q4_1 | Self::Q5_1 | Self::MXFP4 => {
                ActivationFormat::Q8_0
            }
            Self::F32 | Self::F16 | Self::BF16 => ActivationFormat::F32,
            // The K types, and those of few bits.
            _ => ActivationFormat::Q8K,
        }
    }

    /// True if columns with a quant of -128 are left to ggml, whose products of these weights give it the sign of weights.
    pub(crate) fn leaves_minus_128(self) -> bool {
        self.format() == ActivationFormat::Q8_0 && !matches!(self, Self::Q4_1 | Self::Q5_1)
    }

    /// False for plain values.
    pub(crate) fn is_quantised(self) -> bool {
        self.format() != ActivationFormat::F32
    }

    /// Columns of a product at most; for more, ggml is faster, with other bits. So many are the draft tokens of several
    /// sequences, whose columns must have the bits that they have alone. Quantised weights are ours at any number: on x86-64
    /// ggml is slower, on aarch64 its builds for every processor have no dot product of bytes. But those of few bits, which are
    /// unpacked for eight columns at a time, where ggml unpacks them once; with AMX they are unpacked once here, too.
    ///
    /// Small matrices of floats (routers, gates) take so little time that they keep their bits in prompts, too: a token that
    /// is generated may stand beside the prompt of another sequence.
    pub fn max_columns(self, n_weights: i64) -> i64 {
        match self.format() {
            ActivationFormat::F32 if n_weights <= SMALL => i64::MAX,
            ActivationFormat::F32 => FEW_COLUMNS,
            _ if self.is_low_bit() && !Isa::chosen().is_some_and(Isa::has_tiles) => FEW_COLUMNS,
            _ => i64::MAX,
        }
    }

    /// Bytes of one block.
    pub(crate) const fn block_bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::IQ4NL => 18,
            Self::Q5_0 => 22,
            Self::Q4_1 => 20,
            Self::Q5_1 => 24,
            Self::MXFP4 => 17,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Q2K => 84,
            Self::Q3K | Self::IQ3S => 110,
            Self::IQ4XS => 136,
            Self::IQ3XXS => 98,
            Self::IQ2XXS => 66,
            Self::IQ2XS => 74,
            Self::IQ2S => 82,
            Self::IQ1S => 50,
            Self::IQ1M => 56,
            Self::F32 => 64,
            Self::F16 | Self::BF16 => 32,
        }
    }

    /// Bytes of a row of `k` values.
    pub fn row_bytes(self, k: usize) -> usize {
        k / self.format().block() * self.block_bytes()
    }
}

impl ActivationFormat {
    /// Values that share a scale; those of a block of weights, too.
    pub const fn block(self) -> usize {
        match self {
            Self::Q8_0 => 32,
            Self::Q8K => 256,
            Self::F32 => 16,
        }
    }

    /// ggml's number of the type.
    pub(crate) fn raw(self) -> sys::ggml_type {
        match self {
            Self::Q8_0 => sys::GGML_TYPE_Q8_0,
            Self::Q8K => sys::GGML_TYPE_Q8_K,
            Self::F32 => sys::GGML_TYPE_F32,
        }
    }
}

/// How 32 weights lie behind their scale, as parameters of kernels.
pub(crate) mod quants {
    /// Signed bytes (`Q8_0`).
    pub(crate) const BYTES: usize = 0;
    /// Nibbles less 8 (`Q4_0`).
    pub(crate) const NIBBLES: usize = 1;
    /// Nibbles that choose among [`super::iq4nl::VALUES`] (`IQ4NL`).
    pub(crate) const CHOICES: usize = 2;
    /// Nibbles with a fifth bit, less 16 (`Q5_0`).
    pub(crate) const FIVES: usize = 3;
    /// Nibbles that choose among [`super::mxfp4::VALUES`], behind a scale of one byte (`MXFP4`).
    pub(crate) const POWERS: usize = 4;
    /// As `NIBBLES`, with a minimum behind the scale: that of the nibbles as they are (`Q4_1`).
    pub(crate) const NIBBLES_FROM: usize = 5;
    /// As `FIVES`, likewise (`Q5_1`).
    pub(crate) const FIVES_FROM: usize = 6;

    /// Bytes of a block, its scale included.
    pub(crate) const fn block_bytes(quants: usize) -> usize {
        start(quants) + if quants == BYTES { 32 } else { 16 }
    }

    /// Where bytes or nibbles begin in a block.
    pub(crate) const fn start(quants: usize) -> usize {
        match quants {
            FIVES => 6,
            POWERS => 1,
            NIBBLES_FROM => 4,
            FIVES_FROM => 8,
            _ => 2,
        }
    }

    /// Where the half of the minimum is in a block; none for most.
    pub(crate) const fn minimum(quants: usize) -> Option<usize> {
        if matches!(quants, NIBBLES_FROM | FIVES_FROM) { Some(2) } else { None }
    }

    /// What weights with a minimum are less than their nibbles and fifth bits. The minimum of what is left is so many scales higher.
    pub(crate) const fn less(quants: usize) -> f32 {
        if quants == FIVES_FROM { 16.0 } else { 8.0 }
    }

    /// What nibbles choose among.
    pub(crate) const fn values(quants: usize) -> &'static [i8; 16] {
        if quants == POWERS { &super::mxfp4::VALUES } else { &super::iq4nl::VALUES }
    }
}

/// What the nibbles of an `IQ4NL` block stand for.
pub(crate) mod iq4nl {
    /// By nibble, in steps of the block's scale.
    pub(crate) const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
}

/// What a block of `MXFP4` holds: floats of four bits, which are doubled to be whole, and half of their scale.
pub(crate) mod mxfp4 {
    /// By nibble, in steps of [`scale`].
    pub(crate) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

    /// Half of the power of two that a scale's byte stands for; no byte stands for an infinity or NaN.
    pub(crate) fn scale(exponent: u8) -> f32 {
        let exponent = u32::from(exponent);
        f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })
    }
}

/// Types of floats as parameters of kernels.
pub(crate) mod float {
    pub(crate) const F32: usize = 0;
    pub(crate) const F16: usize = 1;
    pub(crate) const BF16: usize = 2;
}

/// Where the parts of a `Q4K` or `Q5K` block begin.
pub(crate) mod q4k_q5k {
    /// Two halves: the scale, and the scale of the minima.
    pub(crate) const SCALE: usize = 0;
    /// Twelve bytes.
    pub(crate) const SCALES: usize = 4;
    /// Fifth bits (`Q5K`): bit `s` of byte `i` belongs to value `i` of the 32 values number `s`.
    pub(crate) const HIGH: usize = 16;
}

/// Where the parts of a `Q6K` block begin.
pub(crate) mod q6k {
    /// Upper pairs of bits.
    pub(crate) const HIGH: usize = 128;
    /// Sixteen bytes.
    pub(crate) const SCALES: usize = 192;
    /// A half.
    pub(crate) const SCALE: usize = 208;
}
