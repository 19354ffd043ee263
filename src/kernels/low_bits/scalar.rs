//! Blocks of few bits in plain Rust, one value at a time: what the other instruction sets are held to.

use super::grids;
use crate::weight_type::{WeightType, iq4nl};

/// A block, as numbers.
pub(crate) struct Block {
    /// The factor.
    pub(crate) d: f32,
    /// The scale of each 16 values.
    pub(crate) scales: [i32; 16],
    /// What values stand for, in steps of their scale.
    pub(crate) values: [i32; 256],
    /// The factor of minima, and the minimum of each 16 values in steps of it.
    pub(crate) mins: Option<(f32, [i32; 16])>,
}

impl Block {
    /// That of `bytes`, a block of a type of few bits.
    pub(crate) fn read(ty: WeightType, bytes: &[u8]) -> Self {
        match ty {
            WeightType::Q2K => q2k(bytes),
            WeightType::Q3K => q3k(bytes),
            WeightType::IQ4XS => iq4xs(bytes),
            WeightType::IQ3XXS => iq3xxs(bytes),
            WeightType::IQ3S => iq3s(bytes),
            WeightType::IQ2XXS => iq2xxs(bytes),
            WeightType::IQ2XS => iq2xs(bytes),
            WeightType::IQ2S => iq2s(bytes),
            WeightType::IQ1S => iq1s(bytes),
            _ => iq1m(bytes),
        }
    }

    /// With a scale for 16 values, from its number, and no minima.
    fn new(d: f32, scale: impl Fn(usize) -> i32, value: impl Fn(usize) -> i32) -> Self {
        Self { d, scales: std::array::from_fn(scale), values: std::array::from_fn(value), mins: None }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn half(bits: u16) -> f32 {
    // SAFETY: no preconditions.
    unsafe { ggml_sys::ggml_fp16_to_fp32(bits) }
}

/// Nibble number `i` of `bytes`, the lower one of each first.
fn nibble(bytes: &[u8], i: usize) -> i32 {
    i32::from(bytes[i / 2] >> (i % 2 * 4) & 15)
}

/// Pair of bits of value `i` among 32 bytes for 128 values.
fn pair(bytes: &[u8], i: usize) -> i32 {
    i32::from(bytes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3)
}

/// Value `i` of an entry of a grid, negative where bit `sign` of `signs` is set.
fn of_grid(entry: impl Into<u64>, i: usize, signs: u8, sign: usize) -> i32 {
    let size = i32::from(entry.into().to_le_bytes()[i]);
    if signs >> sign & 1 == 1 { -size } else { size }
}

/// The eighth of eight signs makes the number of negative ones even.
fn eight_signs(seven: u8) -> u8 {
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

fn q2k(b: &[u8]) -> Block {
    let plain = Block::new(half(short(b, 80)), |i| i32::from(b[i] & 15), |i| pair(&b[16..], i));
    let mins = std::array::from_fn(|i| i32::from(b[i] >> 4));
    Block { mins: Some((half(short(b, 82)), mins)), ..plain }
}

fn q3k(b: &[u8]) -> Block {
    let scale = |i: usize| {
        let low = b[96 + i % 8] >> (i / 8 * 4) & 15;
        i32::from(low | (b[104 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32
    };
    let value = |i: usize| pair(&b[32..], i) + i32::from(b[i % 32] >> (i / 32) & 1) * 4 - 4;
    Block::new(half(short(b, 108)), scale, value)
}

fn iq4xs(b: &[u8]) -> Block {
    let scale = |i: usize| nibble(&b[4..], i / 2) + (i32::from(short(b, 2) >> (i / 2 * 2) & 3) << 4) - 32;
    let value = |i: usize| {
        let choice = b[8 + i / 32 * 16 + i % 16] >> (i / 16 % 2 * 4) & 15;
        i32::from(iq4nl::VALUES[usize::from(choice)])
    };
    Block::new(half(short(b, 0)), scale, value)
}

fn iq3xxs(b: &[u8]) -> Block {
    let words = |i: usize| word(b, 66 + i / 32 * 4);
    let scale = |i: usize| (words(16 * i) >> 28) as i32 * 2 + 1;
    let value = |i: usize| {
        let signs = eight_signs((words(i) >> (i / 8 % 4 * 7) & 127) as u8);
        of_grid(grids::iq3xxs()[usize::from(b[2 + i / 4])], i % 4, signs, i % 8)
    };
    Block::new(half(short(b, 0)) * 0.25, scale, value)
}

fn iq3s(b: &[u8]) -> Block {
    let scale = |i: usize| nibble(&b[106..], i / 2) * 2 + 1;
    let value = |i: usize| {
        let ninth = usize::from(b[66 + i / 32] >> (i / 4 % 8) & 1) << 8;
        of_grid(grids::iq3s()[usize::from(b[2 + i / 4]) | ninth], i % 4, b[74 + i / 8], i % 8)
    };
    Block::new(half(short(b, 0)), scale, value)
}

fn iq2xxs(b: &[u8]) -> Block {
    let words = |i: usize| word(b, 6 + i / 32 * 8);
    let scale = |i: usize| (words(16 * i) >> 28) as i32 * 2 + 1;
    let value = |i: usize| {
        let signs = eight_signs((words(i) >> (i / 8 % 4 * 7) & 127) as u8);
        of_grid(grids::iq2xxs()[usize::from(b[2 + i / 32 * 8 + i / 8 % 4])], i % 8, signs, i % 8)
    };
    Block::new(half(short(b, 0)) * 0.125, scale, value)
}

fn iq2xs(b: &[u8]) -> Block {
    let value = |i: usize| {
        let both = short(b, 2 + i / 8 * 2);
        of_grid(grids::iq2xs()[usize::from(both & 511)], i % 8, eight_signs((both >> 9) as u8), i % 8)
    };
    Block::new(half(short(b, 0)) * 0.125, |i| nibble(&b[66..], i) * 2 + 1, value)
}

fn iq2s(b: &[u8]) -> Block {
    let value = |i: usize| {
        let above = usize::from(b[66 + i / 32] >> (i / 8 % 4 * 2) & 3) << 8;
        of_grid(grids::iq2s()[usize::from(b[2 + i / 8]) | above], i % 8, b[34 + i / 8], i % 8)
    };
    Block::new(half(short(b, 0)) * 0.125, |i| nibble(&b[74..], i) * 2 + 1, value)
}

/// Value `i` of entry `index` and an eighth more or, if `less`, less, times eight.
fn of_iq1(index: usize, less: bool, i: usize) -> i32 {
    of_grid(grids::iq1()[index], i % 8, 0, 0) - i32::from(grids::IQ1_BIAS) + if less { -1 } else { 1 }
}

fn iq1s(b: &[u8]) -> Block {
    let above = |i: usize| short(b, 34 + i / 32 * 2);
    let value = |i: usize| {
        let index = usize::from(b[2 + i / 8]) | usize::from(above(i) >> (i / 8 % 4 * 3) & 7) << 8;
        of_iq1(index, above(i) >> 15 == 1, i)
    };
    Block::new(half(short(b, 0)) * 0.125, |i| i32::from(above(16 * i) >> 12 & 7) * 2 + 1, value)
}

fn iq1m(b: &[u8]) -> Block {
    let shorts: [u16; 4] = std::array::from_fn(|i| short(b, 48 + 2 * i));
    let d = (0..4).fold(0, |d, i| d | (shorts[i] >> 12) << (4 * i));
    let scale = |i: usize| i32::from(shorts[i / 4] >> (i % 4 * 3) & 7) * 2 + 1;
    let value = |i: usize| {
        let above = nibble(&b[32..], i / 8);
        of_iq1(usize::from(b[i / 8]) | (above as usize & 7) << 8, above >> 3 == 1, i)
    };
    Block::new(half(d) * 0.125, scale, value)
}
