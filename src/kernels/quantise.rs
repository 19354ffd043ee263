//! Activations rounded as ggml rounds them, in the order in which kernels read them.
//!
//! By the same operations as ggml's functions on x86-64 with AVX2, on every path and processor; blocks with NaN, infinities
//! or numbers so small that a factor overflows go through ggml's own.

// Loads, stores and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::ffi::c_void;

use ggml_sys as sys;

use super::Path;
use super::activations::{BIAS, Rows, record};
use super::weight_type::Format;

/// Rows of F32.
pub(super) struct Input {
    pub(super) data: *const u8,
    pub(super) row_bytes: usize,
}

type FromFloat = unsafe extern "C" fn(*const f32, *mut c_void, i64);

fn from_float(format: Format) -> FromFloat {
    // SAFETY: the table is static and has every type.
    let traits = unsafe { sys::ggml_get_type_traits_cpu(format.raw()) };
    // SAFETY: an entry of ggml's static table.
    unsafe { &*traits }.from_float.expect("a type of activations")
}

/// The share of thread `ith` of `nth`.
///
/// # Safety
/// `input` has the shape of `rows`; each thread comes once. `path` is available.
pub(super) unsafe fn share(rows: &Rows, input: &Input, path: Path, ith: usize, nth: usize) {
    let (n, n_blocks, block) = (rows.shape.n, rows.shape.n_blocks(), rows.shape.format.block());
    let from_float = from_float(rows.shape.format);
    let mut odd = false;
    for at in n * n_blocks * ith / nth..n * n_blocks * (ith + 1) / nth {
        let (j, l) = (at / n_blocks, at % n_blocks);
        let x = input.data.wrapping_add(j * input.row_bytes + l * block * size_of::<f32>()).cast::<f32>();
        // SAFETY: block `l` lies within row `j` on both sides; this thread alone has it.
        unsafe {
            match rows.shape.format {
                Format::Q8_0 => {
                    let (quants, scale) = rows.block(j, l);
                    odd |= block_32(from_float, path, x, quants, scale);
                }
                Format::Q8K => block_256(from_float, path, x, rows.record(j, l)),
                Format::F32 => debug_assert!(false, "floats are read as they are"),
            }
        }
    }
    // SAFETY: once for each thread.
    unsafe { rows.note_odd(ith, nth, odd) }
}

/// 32 values; true if a quant is -128.
///
/// # Safety
/// `x` has 32 values, `quants` room for 32; `scale` is aligned. `path` is available.
unsafe fn block_32(from_float: FromFloat, path: Path, x: *const f32, quants: *mut u8, scale: *mut f32) -> bool {
    // SAFETY: the caller's promise.
    let odd = unsafe {
        match path {
            Path::Scalar => scalar::block_32(x, quants, scale),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 | Path::Avx512 => super::avx2::quantise::block_32(x, quants, scale),
            #[cfg(target_arch = "aarch64")]
            Path::Neon => super::neon::quantise::block_32(x, quants, scale),
        }
    };
    if let Some(odd) = odd {
        return odd;
    }
    let mut raw = [0u16; 17];
    // SAFETY: a block has 34 bytes.
    unsafe { from_float(x, raw.as_mut_ptr().cast(), 32) };
    // SAFETY: no preconditions.
    let as_float = unsafe { sys::ggml_fp16_to_fp32(raw[0]) };
    // SAFETY: aligned (the caller's promise).
    unsafe { *scale = as_float };
    let mut odd = false;
    for (i, pair) in raw[1..].iter().enumerate() {
        let pair = pair.to_ne_bytes();
        odd |= pair.contains(&(i8::MIN as u8));
        // SAFETY: 32 bytes of room.
        unsafe { *quants.wrapping_add(2 * i).cast::<[u8; 2]>() = pair.map(|q| q ^ BIAS) };
    }
    odd
}

/// 256 values.
///
/// # Safety
/// `x` has 256 values; `to` is a record. `path` is available.
unsafe fn block_256(from_float: FromFloat, path: Path, x: *const f32, to: *mut u8) {
    // SAFETY: the caller's promise.
    let done = unsafe {
        match path {
            Path::Scalar => scalar::block_256(x, to),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 | Path::Avx512 => super::avx2::quantise::block_256(x, to),
            #[cfg(target_arch = "aarch64")]
            Path::Neon => super::neon::quantise::block_256(x, to),
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
    //! One value at a time: what the other paths are held to.

    use super::{BIAS, record, sys};

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
    pub(super) unsafe fn block_32(x: *const f32, quants: *mut u8, scale: *mut f32) -> Option<bool> {
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
            *quants.cast::<[u8; 32]>() = std::array::from_fn(|i| round(x[i], factor) as u8 ^ BIAS);
            *scale = sys::ggml_fp16_to_fp32(half);
        }
        Some(false)
    }

    /// False: not for this code.
    ///
    /// # Safety
    /// As `super::block_256`.
    pub(super) unsafe fn block_256(x: *const f32, to: *mut u8) -> bool {
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
