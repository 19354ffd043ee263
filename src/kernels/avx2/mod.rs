//! Products with AVX2: a file for each kind of weight.

// Loads and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

mod floats;
mod q4k_q5k;
mod q6k;
mod q8_0_q4_0;
pub(super) mod quantise;

use std::arch::x86_64::*;

use super::activations::Columns;
use super::dispatch::by_kind;
use super::weight_type::Kind;
use super::{Dots, Group};

/// # Safety
/// As `Path::dots`; the CPU has the features of the kernels.
pub(super) unsafe fn dots(kind: Kind, group: &Group, y: &Columns) -> Dots {
    // SAFETY: the caller's promise.
    unsafe { by_kind!(kind, group, y) }
}

/// 32 bytes.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn load(p: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(p.cast()) }
}

/// The half at `p` as a float.
///
/// # Safety
/// It can be read.
#[inline]
#[target_feature(enable = "f16c")]
unsafe fn half(p: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    let half = unsafe { p.cast::<u16>().read_unaligned() };
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(half))))
}
