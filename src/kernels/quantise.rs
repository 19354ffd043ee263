//! Activations rounded as ggml rounds them, in the order in which kernels read them.
//!
//! By the same operations as ggml's functions on x86-64 with AVX2, on every instruction set and processor; blocks with NaN,
//! infinities or numbers so small that a factor overflows go through ggml's own.

use std::ffi::c_void;

use ggml_sys as sys;

use crate::activations::{Activations, offset, record};
use crate::isa::Isa;
use crate::weight_type::ActivationFormat;

/// Columns of F32.
pub(crate) struct Input {
    pub(crate) data: *const u8,
    pub(crate) column_bytes: usize,
}

type FromFloat = unsafe extern "C" fn(*const f32, *mut c_void, i64);

fn from_float(format: ActivationFormat) -> FromFloat {
    // SAFETY: the table is static and has every type.
    let traits = unsafe { sys::ggml_get_type_traits_cpu(format.raw()) };
    // SAFETY: an entry of ggml's static table.
    unsafe { &*traits }.from_float.expect("a type of activations")
}

/// What thread `ith` of `nth` rounds.
///
/// # Safety
/// `input` has the shape of `to`; each thread comes once. `isa` is available.
pub(crate) unsafe fn on_thread(to: &Activations, input: &Input, isa: Isa, ith: usize, nth: usize) {
    let (n, n_blocks, block) = (to.shape.n, to.shape.n_blocks(), to.shape.format.block());
    let from_float = from_float(to.shape.format);
    let mut found = false;
    for at in n * n_blocks * ith / nth..n * n_blocks * (ith + 1) / nth {
        let (j, l) = (at / n_blocks, at % n_blocks);
        let x = input.data.wrapping_add(j * input.column_bytes + l * block * size_of::<f32>()).cast::<f32>();
        // SAFETY: block `l` lies within column `j` on both sides; this thread alone has it.
        unsafe {
            match to.shape.format {
                ActivationFormat::Q8_0 => {
                    let (quants, scale) = to.block(j, l);
                    found |= block_32(from_float, isa, x, quants, scale);
                    if isa.wants_offsets() {
                        *to.offset(j, l) = offset(&*quants.cast());
                    }
                }
                ActivationFormat::Q8K => block_256(from_float, isa, x, to.record(j, l)),
                ActivationFormat::F32 => debug_assert!(false, "floats are read as they are"),
            }
            if isa.wants_pairs() {
                to.copy_to_pair(j, l);
            }
        }
    }
    // SAFETY: once for each thread.
    unsafe { to.note_minus_128(ith, nth, found) }
}

/// 32 values; true if a quant is -128.
///
/// # Safety
/// `x` has 32 values, `quants` room for 32; `scale` is aligned. `isa` is available.
unsafe fn block_32(from_float: FromFloat, isa: Isa, x: *const f32, quants: *mut u8, scale: *mut f32) -> bool {
    // SAFETY: `x`, `quants` and `scale` are as this function wants them (the caller); the instruction set is available.
    let found = unsafe {
        match isa {
            Isa::Scalar => scalar::block_32(x, quants, scale),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Amx => {
                crate::avx2::quantise::block_32(x, quants, scale, isa.bias())
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::I8mm => crate::neon::quantise::block_32(x, quants, scale),
        }
    };
    if let Some(found) = found {
        return found;
    }
    let mut raw = [0u16; 17];
    // SAFETY: a block has 34 bytes.
    unsafe { from_float(x, raw.as_mut_ptr().cast(), 32) };
    // SAFETY: no preconditions.
    let as_float = unsafe { sys::ggml_fp16_to_fp32(raw[0]) };
    // SAFETY: aligned (the caller).
    unsafe { *scale = as_float };
    let mut found = false;
    for (i, pair) in raw[1..].iter().enumerate() {
        let pair = pair.to_ne_bytes();
        found |= pair.contains(&(i8::MIN as u8));
        // SAFETY: 32 bytes of room.
        unsafe { *quants.wrapping_add(2 * i).cast::<[u8; 2]>() = pair.map(|q| q ^ isa.bias()) };
    }
    found
}

/// 256 values.
///
/// # Safety
/// `x` has 256 values; `to` is a record. `isa` is available.
unsafe fn block_256(from_float: FromFloat, isa: Isa, x: *const f32, to: *mut u8) {
    // SAFETY: `x` and `to` are as this function wants them (the caller); the instruction set is available.
    let done = unsafe {
        match isa {
            Isa::Scalar => scalar::block_256(x, to),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Amx => crate::avx2::quantise::block_256(x, to),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::I8mm => crate::neon::quantise::block_256(x, to),
        }
    };
    if done {
        return;
    }
    // Scale, 256 quants, 16 sums. ggml leaves the sums of a block of zeros as they are.
    let mut raw = [0u32; 73];
    // SAFETY: a block has 292 bytes.
    unsafe { from_float(x, raw.as_mut_ptr().cast(), 256) };
    let quants = raw[1..65].iter().flat_map(|q| q.to_ne_bytes());
    for (i, q) in quants.enumerate() {
        // SAFETY: 256 bytes of room.
        unsafe { *to.wrapping_add(i) = q };
    }
    let sums = raw[65..].iter().flat_map(|s| [*s as u16, (*s >> 16) as u16]).map(|s| s as i16);
    let sums: [i16; 16] = std::array::from_fn(|i| sums.clone().nth(i).unwrap_or(0));
    let sums = if cfg!(target_endian = "big") { std::array::from_fn(|i| sums[i ^ 1]) } else { sums };
    // SAFETY: parts of the record, which is aligned to its line.
    unsafe {
        *to.add(record::SCALE).cast::<f32>() = f32::from_bits(raw[0]);
        *to.add(record::SUMS_16).cast::<[i16; 16]>() = sums;
        *to.add(record::SUMS_32).cast::<[i16; 8]>() =
            std::array::from_fn(|i| sums[2 * i].wrapping_add(sums[2 * i + 1]));
    }
}

mod scalar {
    //! One value at a time: what the other instruction sets are held to.

    use super::{record, sys};

    /// The bits of the largest size among `x`.
    fn largest(x: &[f32]) -> u32 {
        x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0)
    }

    /// Rounded to the nearest, ties to even; within a byte for every factor made of the largest size.
    fn round(x: f32, factor: f32) -> i8 {
        (x * factor).round_ties_even() as i8
    }

    /// `None`: not for this code.
    ///
    /// # Safety
    /// As `super::block_32`.
    pub(crate) unsafe fn block_32(x: *const f32, quants: *mut u8, scale: *mut f32) -> Option<bool> {
        // SAFETY: 32 values.
        let x = unsafe { std::slice::from_raw_parts(x, 32) };
        let most = f32::from_bits(largest(x));
        let factor = if most == 0.0 { 0.0 } else { 127.0 / most };
        if !most.is_finite() || !factor.is_finite() {
            return None;
        }
        // SAFETY: no preconditions.
        let half = unsafe { sys::ggml_fp32_to_fp16(most / 127.0) };
        // SAFETY: room for 32 bytes, and for the scale.
        unsafe {
            *quants.cast::<[u8; 32]>() = std::array::from_fn(|i| round(x[i], factor) as u8);
            *scale = sys::ggml_fp16_to_fp32(half);
        }
        Some(false)
    }

    /// False: not for this code.
    ///
    /// # Safety
    /// As `super::block_256`.
    pub(crate) unsafe fn block_256(x: *const f32, to: *mut u8) -> bool {
        // SAFETY: 256 values.
        let x = unsafe { std::slice::from_raw_parts(x, 256) };
        let bits = largest(x);
        // The factor takes the sign of the first value of that size.
        let first = x.iter().copied().find(|x| x.abs().to_bits() == bits).unwrap_or(0.0);
        let factor = if bits == 0 { 0.0 } else { -127.0 / first };
        if !first.is_finite() || !factor.is_finite() {
            return false;
        }
        let quants: [i8; 256] = std::array::from_fn(|i| round(x[i], factor));
        let sums: [i16; 16] = std::array::from_fn(|s| quants[16 * s..][..16].iter().map(|&q| i16::from(q)).sum());
        // SAFETY: parts of the record, which is aligned to its line.
        unsafe {
            *to.cast() = quants;
            *to.add(record::SCALE).cast::<f32>() = if bits == 0 { 0.0 } else { 1.0 / factor };
            *to.add(record::SUMS_16).cast::<[i16; 16]>() = sums;
            *to.add(record::SUMS_32).cast::<[i16; 8]>() = std::array::from_fn(|i| sums[2 * i] + sums[2 * i + 1]);
        }
        true
    }
}
