//! Activations rounded by registers of four floats.

use std::arch::aarch64::*;

use crate::activations::record;

/// 16 floats.
///
/// # Safety
/// 16 floats can be read at `p`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(p: *const f32) -> [float32x4_t; 4] {
    // SAFETY: 16 floats can be read at `p` (the caller).
    std::array::from_fn(|i| unsafe { vld1q_f32(p.add(4 * i)) })
}

/// The largest size, as bits: NaN is above infinity, which is above all numbers.
#[inline]
#[target_feature(enable = "neon")]
fn sizes(x: [float32x4_t; 4]) -> uint32x4_t {
    let [a, b, c, d] = x.map(|x| vreinterpretq_u32_f32(vabsq_f32(x)));
    vmaxq_u32(vmaxq_u32(a, b), vmaxq_u32(c, d))
}

/// 16 floats times `factor`, rounded to bytes, in order.
#[inline]
#[target_feature(enable = "neon")]
fn pack(x: [float32x4_t; 4], factor: f32) -> int8x16_t {
    let [a, b, c, d] = x.map(|x| vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(x, factor))));
    vcombine_s8(vmovn_s16(vcombine_s16(a, b)), vmovn_s16(vcombine_s16(c, d)))
}

/// `None`: not for this code.
///
/// # Safety
/// As `quantise::block_32`.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn block_32(x: *const f32, quants: *mut u8, scale: *mut f32) -> Option<bool> {
    // SAFETY: 32 values.
    let x = unsafe { [load(x), load(x.add(16))] };
    let most = f32::from_bits(vmaxvq_u32(vmaxq_u32(sizes(x[0]), sizes(x[1]))));
    let factor = if most == 0.0 { 0.0 } else { 127.0 / most };
    if !most.is_finite() || !factor.is_finite() {
        return None;
    }
    let half = vcvt_f16_f32(vdupq_n_f32(most / 127.0));
    // SAFETY: room for 32 bytes, and for the scale.
    unsafe {
        vst1q_s8(quants.cast(), pack(x[0], factor));
        vst1q_s8(quants.add(16).cast(), pack(x[1], factor));
        *scale = vgetq_lane_f32::<0>(vcvt_f32_f16(half));
    }
    Some(false)
}

/// False: not for this code.
///
/// # Safety
/// As `quantise::block_256`.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn block_256(x: *const f32, to: *mut u8) -> bool {
    let mut most = vdupq_n_u32(0);
    // SAFETY: 256 values.
    let load = |s: usize| unsafe { load(x.add(16 * s)) };
    for s in 0..16 {
        most = vmaxq_u32(most, sizes(load(s)));
    }
    let bits = vmaxvq_u32(most);
    // The factor takes the sign of the first value of that size.
    let found = |s: &usize| vmaxvq_u32(sizes(load(*s))) == bits;
    let sixteen = 16 * (0..16).find(found).unwrap_or(0);
    // SAFETY: 16 of the 256 values.
    let values = unsafe { *x.add(sixteen).cast::<[f32; 16]>() };
    let first = values.into_iter().find(|x| x.abs().to_bits() == bits).unwrap_or(0.0);
    let factor = if bits == 0 { 0.0 } else { -127.0 / first };
    if !first.is_finite() || !factor.is_finite() {
        return false;
    }
    let mut sums = [0i16; 16];
    for (s, sum) in sums.iter_mut().enumerate() {
        let q = pack(load(s), factor);
        // SAFETY: room for 256 bytes.
        unsafe { vst1q_s8(to.add(16 * s).cast(), q) };
        *sum = vaddlvq_s8(q);
    }
    // SAFETY: parts of the record, which is aligned to its line.
    unsafe {
        *to.add(record::SCALE).cast::<f32>() = if bits == 0 { 0.0 } else { 1.0 / factor };
        *to.add(record::SUMS_16).cast::<[i16; 16]>() = sums;
        *to.add(record::SUMS_32).cast::<[i16; 8]>() = std::array::from_fn(|i| sums[2 * i] + sums[2 * i + 1]);
    }
    true
}
