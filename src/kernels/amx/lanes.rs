//! A float of each of sixteen weight rows.

use std::arch::x86_64::*;

use crate::tile::WIDEST;

/// A float of each of sixteen rows: a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Lanes(pub(super) [f32; WIDEST]);

impl Lanes {
    pub(super) const NOTHING: Self = Self([0.0; WIDEST]);
}

/// What was added up to a step.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn before(step: usize, lanes: &Lanes) -> __m512 {
    // SAFETY: sixteen floats, aligned.
    unsafe { if step == 0 { _mm512_setzero_ps() } else { _mm512_load_ps(lanes.0.as_ptr()) } }
}

/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn store(x: __m512, lanes: &mut Lanes) {
    // SAFETY: room for sixteen floats, aligned.
    unsafe { _mm512_store_ps(lanes.0.as_mut_ptr(), x) }
}
