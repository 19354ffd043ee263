//! What layouts of blocks are written in: registers of any instruction set, what a block becomes, and what several layouts share.

use crate::weight_type::WeightType;

/// Four bytes of each of several weight rows, those of a row in a lane of 32 bits.
///
/// # Safety of its functions
/// The CPU has the instruction set whose register this is; what is read can be read, entries of grids among it.
pub(crate) trait Register: Copy {
    /// Where a block of each row begins.
    type Blocks;
    /// A float of each row.
    type Floats: Copy;

    /// Bytes `at + 4c` to `at + 4c + 3` of every block in register `c`.
    unsafe fn sixteen_bytes(blocks: &Self::Blocks, at: usize) -> [Self; 4];
    /// The four bytes at `at` of every block.
    unsafe fn word(blocks: &Self::Blocks, at: usize) -> Self;
    /// The half at `at` of every block as a float.
    unsafe fn half(blocks: &Self::Blocks, at: usize) -> Self::Floats;
    /// The low 16 bits of each lane, a half, as a float.
    unsafe fn low_half(self) -> Self::Floats;
    /// `x` times a power of two.
    unsafe fn times(x: Self::Floats, factor: f32) -> Self::Floats;
    /// This word in every lane.
    unsafe fn every(word: u32) -> Self;
    /// Bits that both have.
    unsafe fn and(self, other: Self) -> Self;
    /// Bits that either has.
    unsafe fn or(self, other: Self) -> Self;
    /// Bits that one of them has.
    unsafe fn xor(self, other: Self) -> Self;
    /// Byte by byte.
    unsafe fn add_bytes(self, other: Self) -> Self;
    /// Byte by byte.
    unsafe fn sub_bytes(self, other: Self) -> Self;
    /// Lanes shifted to the left by `n < 32`.
    unsafe fn left(self, n: usize) -> Self;
    /// Lanes shifted to the right by `n < 32`.
    unsafe fn right(self, n: usize) -> Self;
    /// What each byte, below 16, chooses.
    unsafe fn look_up(self, table: &[u8; 16]) -> Self;
    /// Byte `n` of each lane four times.
    unsafe fn byte(self, n: usize) -> Self;
    /// Bytes, negative where `signs` has a bit of `bit` there.
    unsafe fn negated(self, signs: Self, bit: Self) -> Self;
    /// Bytes 0 and 1 of each lane or, if `high`, 2 and 3, as its halves.
    unsafe fn spread(self, high: bool) -> Self;
    /// Entries of `grid`, chosen by byte `n` of lanes. Choices are in memory, where addresses are read more quickly than they are taken
    /// out of a register; they should have been there for some time.
    unsafe fn four_by_byte(grid: &[u32], choices: &Self, n: usize) -> Self;
    /// Likewise by half `n` of lanes.
    unsafe fn four_by_half(grid: &[u32], choices: &Self, n: usize) -> Self;
    /// Entries of eight values, the first four and the others, chosen by byte `n` of lanes.
    unsafe fn eight_by_byte(grid: &[u64], choices: &Self, n: usize) -> [Self; 2];
    /// Likewise by half `n` of lanes.
    unsafe fn eight_by_half(grid: &[u64], choices: &Self, n: usize) -> [Self; 2];
}

/// What a block's head says, of every row.
pub(crate) struct Head<R: Register, More> {
    /// The factor.
    pub(crate) d: R::Floats,
    /// The scale of each 16 values, a signed byte: those of four times 16 in a register.
    pub(crate) scales: [R; 4],
    /// Of blocks with minima their factor, and likewise what it is multiplied with.
    pub(crate) mins: Option<(R::Floats, [R; 4])>,
    /// What else values need.
    pub(crate) more: More,
}

/// A type of weight: how its blocks lie. 32 values at a time, number `s` of eight.
///
/// # Safety of its functions
/// As [`Register`]; blocks of this type begin at `blocks`; `s` is below 8.
pub(crate) trait Layout<R: Register> {
    /// The type.
    const TYPE: WeightType;
    /// What values have more than they stand for: a power of two, or 0.
    const BIAS: u8;
    /// The largest value, with its bias. Only AVX2 asks.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const MOST: usize;
    /// Blocks have minima.
    const MINS: bool = false;
    /// How often bytes are brought side by side in a block: a divisor of 8.
    const PASSES: usize;
    /// What values need of the head.
    type More;
    /// What is brought side by side at a time.
    type Packed;

    /// The head.
    unsafe fn head(blocks: &R::Blocks) -> Head<R, Self::More>;
    /// What pass `pass` brings side by side.
    unsafe fn packed(blocks: &R::Blocks, pass: usize) -> Self::Packed;
    /// Values `32 s` to `32 s + 31`, four in a register, with their bias.
    unsafe fn weights(more: &Self::More, packed: &Self::Packed, s: usize) -> [R; 8];
}

/// Every byte of a word.
pub(super) const fn bytes(byte: u8) -> u32 {
    byte as u32 * 0x0101_0101
}

/// 32 bytes of every block from `at` on.
///
/// # Safety
/// As [`Register`].
#[inline(always)]
pub(super) unsafe fn thirty_two_bytes<R: Register>(blocks: &R::Blocks, at: usize) -> [R; 8] {
    // SAFETY: the caller's.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (R::sixteen_bytes(blocks, at), R::sixteen_bytes(blocks, at + 16)) };
    [a, b, c, d, e, f, g, h]
}

/// Scales of `x`, words with a number below 8 or 16 in each half, for twice 16 values of each half: the number twice and 1 more.
///
/// # Safety
/// As [`Register`].
#[inline(always)]
pub(super) unsafe fn odd_scales<R: Register>(x: R) -> R {
    // SAFETY: the caller's.
    unsafe { x.or(x.left(8)).left(1).or(R::every(bytes(1))) }
}

/// Bytes of seven signs, to which the eighth comes: so that the number of negative ones is even.
///
/// # Safety
/// As [`Register`].
#[inline(always)]
pub(super) unsafe fn eight_signs<R: Register>(seven: R) -> R {
    /// Whether the bits of a nibble are odd in number, as the highest bit of a byte.
    const ODD: [u8; 16] = {
        let mut odd = [0; 16];
        let mut i = 0;
        while i < 16 {
            odd[i] = (i.count_ones() as u8 & 1) << 7;
            i += 1;
        }
        odd
    };
    // SAFETY: the caller's.
    unsafe {
        let nibble = R::every(bytes(15));
        let (low, high) = (seven.and(nibble), seven.right(4).and(nibble));
        seven.or(low.xor(high).look_up(&ODD))
    }
}

/// Four values of a grid with their signs, bits 0 to 3 or 4 to 7 (`high`) of byte `n` of `signs`, and with `bias` more.
///
/// # Safety
/// As [`Register`].
#[inline(always)]
pub(super) unsafe fn signed<R: Register>(values: R, signs: R, n: usize, high: bool, bias: u8) -> R {
    // SAFETY: the caller's.
    unsafe {
        let bit = R::every(if high { 0x8040_2010 } else { 0x0804_0201 });
        values.negated(signs.byte(n), bit).add_bytes(R::every(bytes(bias)))
    }
}

/// Scales in the upper four bits of words, of 32 values each.
///
/// # Safety
/// As [`Register`].
#[inline(always)]
pub(super) unsafe fn scales_above<R: Register>(words: &[R; 8]) -> [R; 4] {
    let mut scales = [words[0]; 4];
    for (i, scale) in scales.iter_mut().enumerate() {
        // SAFETY: the caller's.
        *scale = unsafe {
            let high = words[2 * i + 1].right(12).and(R::every(15 << 16));
            odd_scales(words[2 * i].right(28).or(high))
        };
    }
    scales
}

/// The signs in the lower 28 bits of words, seven for each eight values.
///
/// # Safety
/// As [`Register`].
#[inline(always)]
pub(super) unsafe fn four_times_seven<R: Register>(words: &[R; 8]) -> [R; 8] {
    let mut signs = *words;
    for signs in &mut signs {
        // SAFETY: the caller's.
        *signs = unsafe {
            let part = |n: usize| signs.left(n).and(R::every(0x7f << (8 * n)));
            eight_signs(part(0).or(part(1)).or(part(2).or(part(3))))
        };
    }
    signs
}
