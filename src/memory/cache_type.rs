//! In which types keys and values are kept: ggml's, and two of our own.

use std::fmt;
use std::str::FromStr;

use ggml::{Dtype, Turbo};

/// Types that keys and values are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CacheType {
    /// 4 bytes an element, exact.
    F32,
    /// 2 bytes.
    #[default]
    F16,
    /// 1.06 bytes.
    Q8_0,
    /// 0.75 bytes, with a minimum.
    Q5_1,
    /// 0.69 bytes.
    Q5_0,
    /// 0.63 bytes, with a minimum.
    Q4_1,
    /// 0.56 bytes, uneven steps.
    Iq4Nl,
    /// 0.56 bytes.
    Q4_0,
    /// 0.52 bytes, rotated, uneven steps; for CPUs, and GPUs with kernels of ours.
    Turbo4,
    /// 0.39 bytes, likewise.
    Turbo3,
}

impl CacheType {
    /// All of them.
    pub const ALL: [CacheType; 10] = [
        CacheType::F32,
        CacheType::F16,
        CacheType::Q8_0,
        CacheType::Q5_1,
        CacheType::Q5_0,
        CacheType::Q4_1,
        CacheType::Iq4Nl,
        CacheType::Q4_0,
        CacheType::Turbo4,
        CacheType::Turbo3,
    ];

    /// The element type of its tensors: of types of our own, bytes.
    pub fn dtype(self) -> Dtype {
        match self {
            CacheType::F32 => Dtype::F32,
            CacheType::F16 => Dtype::F16,
            CacheType::Q8_0 => Dtype::Q8_0,
            CacheType::Q5_1 => Dtype::Q5_1,
            CacheType::Q5_0 => Dtype::Q5_0,
            CacheType::Q4_1 => Dtype::Q4_1,
            CacheType::Iq4Nl => Dtype::IQ4_NL,
            CacheType::Q4_0 => Dtype::Q4_0,
            CacheType::Turbo4 | CacheType::Turbo3 => Dtype::I8,
        }
    }

    /// Its name, as options take it.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::Turbo4 => "turbo4",
            CacheType::Turbo3 => "turbo3",
            _ => self.dtype().name(),
        }
    }

    /// Bits of a value, of types of our own.
    fn turbo_bits(self) -> Option<usize> {
        match self {
            CacheType::Turbo4 => Some(4),
            CacheType::Turbo3 => Some(3),
            _ => None,
        }
    }

    /// True for types of our own.
    pub fn is_turbo(self) -> bool {
        self.turbo_bits().is_some()
    }

    /// How heads of `d` elements are kept; `None` for ggml's types, and where no group divides them.
    pub fn turbo(self, d: usize) -> Option<Turbo> {
        Turbo::of(self.turbo_bits()?, d)
    }

    /// Bytes of a head of `d` elements; `None` where its blocks do not divide it.
    pub fn head_bytes(self, d: usize) -> Option<usize> {
        match self.is_turbo() {
            true => self.turbo(d)?.n_bytes(d),
            false => self.dtype().row_bytes(i64::try_from(d).ok()?).ok(),
        }
    }

    /// The first dimension of tensors whose rows are `n` heads of `d` elements: elements, of types of our own bytes.
    pub(crate) fn row(self, d: usize, n: usize) -> Option<usize> {
        let head = if self.is_turbo() { self.head_bytes(d)? } else { d };
        head.checked_mul(n)
    }

    /// What tells types apart in files.
    pub(crate) fn id(self) -> u64 {
        match self.turbo_bits() {
            // Behind all of ggml's; the first kind of blocks.
            Some(bits) => 0x1_0000 + bits as u64,
            None => self.dtype().id().into(),
        }
    }

    /// The largest number that is kept as a finite one: larger ones overflow, a block's in its scale (F16, for so many steps) or
    /// its minimum (F16). F32 stops where products of keys could overflow. Types of our own see to it themselves.
    pub(crate) fn most(self) -> f32 {
        const F16: f32 = 65504.0;
        match self {
            CacheType::F32 | CacheType::Turbo4 | CacheType::Turbo3 => 1e30,
            CacheType::F16 => F16,
            CacheType::Q8_0 => 127.0 * F16,
            // The scale is that of a difference, which is twice as large at most.
            CacheType::Q5_1 | CacheType::Q4_1 => F16,
            CacheType::Q5_0 => 16.0 * F16,
            CacheType::Iq4Nl => 113.0 * F16,
            CacheType::Q4_0 => 8.0 * F16,
        }
    }

    /// True when all numbers in cells of heads of `d` elements are finite: of blocks, their scales.
    pub(crate) fn is_finite(self, cells: &[u8], d: usize) -> bool {
        let scales = |block: usize, first: usize, n: usize| {
            let of_block =
                |block: &[u8]| block[first.min(block.len())..].as_chunks::<2>().0.iter().take(n).all(is_finite_f16);
            cells.chunks(block).all(of_block)
        };
        match self {
            CacheType::F32 => cells.as_chunks::<4>().0.iter().all(|&v| f32::from_le_bytes(v).is_finite()),
            CacheType::F16 => cells.as_chunks::<2>().0.iter().all(is_finite_f16),
            CacheType::Q8_0 | CacheType::Q5_0 | CacheType::Iq4Nl | CacheType::Q4_0 => {
                scales(self.dtype().block_bytes(), 0, 1)
            }
            CacheType::Q5_1 | CacheType::Q4_1 => scales(self.dtype().block_bytes(), 0, 2),
            CacheType::Turbo4 | CacheType::Turbo3 => {
                self.turbo(d).is_none_or(|t| scales(t.block_bytes(), t.block_bytes() - 2, 1))
            }
        }
    }

    /// True when elements are stored one by one, so that values can be kept transposed.
    pub fn is_plain(self) -> bool {
        matches!(self, CacheType::F32 | CacheType::F16)
    }
}

fn is_finite_f16(bytes: &[u8; 2]) -> bool {
    u16::from_le_bytes(*bytes) & 0x7C00 != 0x7C00
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CacheType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|t| t.name() == s);
        let all = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("cache type `{s}` is not one of {}", all()))
    }
}
