//! Products with AVX-512 VNNI: four weight rows at a time, two in a register, each block loaded once for all rows.
//! The paths' common parts; a file for each kind of weight.

// Loads and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

mod floats;
mod q4k_q5k;
mod q6k;
mod q8_0_q4_0;

use std::arch::x86_64::*;

use super::activations::Columns;
use super::dispatch::by_kind;
use super::weight_type::Kind;
use super::x86::tree;
use super::{Dots, Group};

/// # Safety
/// As `Path::dots`; the CPU has the features of the kernels.
pub(super) unsafe fn dots(kind: Kind, group: &Group, y: &Columns) -> Dots {
    // SAFETY: the caller's promise.
    unsafe { by_kind!(kind, group, y) }
}

/// 32 bytes of each of two weight rows.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn pair(low: *const u8, high: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    let (low, high) = unsafe { (_mm256_loadu_si256(low.cast()), _mm256_loadu_si256(high.cast())) };
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// 32 bytes, twice.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn twice(p: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(p.cast()) })
}

/// A float of a row in all lanes.
///
/// # Safety
/// It can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn float(p: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    _mm512_set1_ps(unsafe { p.cast::<f32>().read_unaligned() })
}

/// Four F16 scales, first two in the halves of one register, then the other two.
#[inline]
#[target_feature(enable = "avx512f,f16c")]
fn scales(halves: [u16; 4]) -> [__m512; 2] {
    let [a, b, c, d] = halves.map(u64::from);
    let halves = a | b << 16 | c << 32 | d << 48;
    let floats = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi64_si128(halves as i64)));
    let first = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    let second = _mm512_set_epi32(3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2);
    [_mm512_permutexvar_ps(first, floats), _mm512_permutexvar_ps(second, floats)]
}

/// A half of a block.
///
/// # Safety
/// It can be read.
#[inline]
unsafe fn half(p: *const u8) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { p.cast::<u16>().read_unaligned() }
}

/// Sums the lanes of each of four weight rows in ggml's order.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn trees(sums: &[__m512; 2]) -> [f32; 4] {
    let low = sums.map(|s| tree(_mm512_castps512_ps256(s)));
    let high = sums.map(|s| tree(_mm512_extractf32x8_ps::<1>(s)));
    [low[0], high[0], low[1], high[1]]
}
