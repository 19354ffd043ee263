//! Products with AVX2: a file for each kind of weight.

// Loads and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

mod floats;
mod q45;
mod q6;
mod q8_0;

use std::arch::x86_64::*;

use super::kind::Kind;
use super::rows::Columns;
use super::{Dots, Group};

/// # Safety
/// As `Path::dots`; the CPU has the features of the kernels.
pub(super) unsafe fn dots(kind: Kind, group: &Group, y: &Columns) -> Dots {
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            Kind::Q8_0 => q8_0::dots::<false>(group, y),
            Kind::Q4_0 => q8_0::dots::<true>(group, y),
            Kind::Q4K => q45::dots::<false>(group, y),
            Kind::Q5K => q45::dots::<true>(group, y),
            Kind::Q6K => q6::dots(group, y),
            Kind::F32 => floats::dots::<{ floats::F32 }>(group, y),
            Kind::F16 => floats::dots::<{ floats::F16 }>(group, y),
            Kind::BF16 => floats::dots::<{ floats::BF16 }>(group, y),
        }
    }
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

/// A float of a row.
///
/// # Safety
/// It can be read.
unsafe fn float(p: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { p.cast::<f32>().read_unaligned() }
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
