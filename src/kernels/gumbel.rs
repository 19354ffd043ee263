//! Gumbel noise of drafts: what is added to the logit of each token, divided by the temperature, so that the largest sum is the
//! draft. It depends on a key and on the token alone. A device that makes it by itself (`vendor/ggml-sys/cuda/gumbel.cu`) follows
//! this file; logarithms are good for 3 digits, since a draft may be wrong.

use std::ffi::{c_int, c_void};

use ggml_sys as sys;

use crate::nodes::n_columns;

/// The parameter that tells [`add_gumbel`] from other nodes with functions, at [`crate::FIRST_PARAMETER`].
pub const GUMBEL: i32 = 0x6e6f_6973;

/// Beyond all logits.
const NOT_THERE: f32 = -1e30;

/// The noise of token `id`: `-ln(-ln(u))` of a uniform number `u` that [`uniform`] makes of key and token.
#[inline]
pub fn gumbel(key: u64, id: u32) -> f32 {
    let u = uniform(key, u64::from(id));
    // Near 1, where the winners are, the difference from 1 would be lost in the rounding.
    let rest = (1.0 - u) as f32;
    let exponential = if rest < 1.0 / 64.0 { rest * (1.0 + 0.5 * rest) } else { -rough_ln(u as f32) };
    -rough_ln(exponential)
}

/// Uniform in (0, 1), an odd multiple of 2^-53, so that its logarithm is finite and not zero: by number `i` of the SplitMix64
/// stream that starts at `key`.
#[inline]
pub fn uniform(key: u64, i: u64) -> f64 {
    // The 52 bits become those of a number in [1, 2): exact, and without the slow conversion of a 64-bit integer.
    f64::from_bits(1.0_f64.to_bits() | mix(key, i) >> 12) - (1.0 - HALF_STEP)
}

/// Number `i` of the SplitMix64 stream that starts at `key`. Source: Steele et al. 2014.
#[inline]
fn mix(key: u64, i: u64) -> u64 {
    let z = key.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const HALF_STEP: f64 = 1.0 / (1_u64 << 53) as f64;

/// Natural logarithm of a positive normal number, good for 3 digits or within 1e-4.
#[inline]
fn rough_ln(x: f32) -> f32 {
    let bits = x.to_bits();
    let e = (bits.wrapping_sub(0x3f35_04f3) as i32) >> 23;
    let m = f32::from_bits(bits.wrapping_sub((e << 23) as u32));
    let s = (m - 1.0) / (m + 1.0);
    e as f32 * std::f32::consts::LN_2 + s * (2.0 + s * s * (2.0 / 3.0))
}

/// `src[0]: [n, n_rows]` F32 and the noise of its words in `dst`. `src[1]: [4, n_rows]` I32, for each row the two halves of a key,
/// the lower first, the bits of a temperature, which is zero for a row without noise, and nothing. `src[2]: [n]` I32, the token
/// of each word (absent: its number), and `src[3]: [n]` F32, below zero for words that are not there (absent: none). All lie
/// dense. Parameter: [`GUMBEL`].
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn add_gumbel(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: operands are alive, or absent.
    let operands: [Option<&sys::ggml_tensor>; 4] = std::array::from_fn(|i| unsafe { dst.src[i].as_ref() });
    let [Some(logits), Some(keys), ids, mask] = operands else { return };
    let (n, n_rows) = (dst.ne[0] as usize, n_columns(dst));
    let all = n * n_rows;
    let (first, end) = (all * ith as usize / nth as usize, all * (ith as usize + 1) / nth as usize);
    for at in first..end {
        let (row, word) = (at / n, at % n);
        // SAFETY: four numbers for each row.
        let key = unsafe { keys.data.cast::<[i32; 4]>().add(row).read() };
        // SAFETY: a number for each word.
        let id = ids.map_or(word as u32, |ids| unsafe { ids.data.cast::<i32>().add(word).read() } as u32);
        // SAFETY: likewise.
        let is_there = mask.is_none_or(|mask| unsafe { mask.data.cast::<f32>().add(word).read() } >= 0.0);
        // SAFETY: a number for each word of each row.
        let logit = unsafe { logits.data.cast::<f32>().add(at).read() };
        // SAFETY: this thread's part of the result.
        unsafe { dst.data.cast::<f32>().add(at).write(if is_there { logit + noise(key, id) } else { NOT_THERE }) };
    }
}

/// By a key as [`add_gumbel`] takes it.
fn noise([low, high, temperature, _]: [i32; 4], id: u32) -> f32 {
    let temperature = f32::from_bits(temperature as u32);
    let key = u64::from(high as u32) << 32 | u64::from(low as u32);
    if temperature > 0.0 { temperature * gumbel(key, id) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_within_their_open_range() {
        let all: Vec<f64> = (0..100_000).map(|id| uniform(7, id)).collect();
        assert!(all.iter().all(|u| *u > 0.0 && *u < 1.0));
        let mean = all.iter().sum::<f64>() / 1e5;
        // The mean of 100,000 has a standard deviation of 0.0009.
        assert!((mean - 0.5).abs() < 0.003, "{mean}");
        assert_eq!(f64::from_bits(1.0_f64.to_bits()) - (1.0 - HALF_STEP), HALF_STEP);
        assert_eq!(f64::from_bits(2.0_f64.to_bits() - 1) - (1.0 - HALF_STEP), 1.0 - HALF_STEP);
    }

    #[test]
    fn a_key_means_the_same_numbers_forever() {
        // SplitMix64 from 1234567: published values.
        assert_eq!([0, 1].map(|i| mix(1_234_567, i)), [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn rough_logarithms_are_as_good_as_they_say() {
        for i in 0..200_000 {
            let x = (f64::from(i) * 4e-4 - 40.0).exp() as f32;
            let want = x.ln();
            assert!((rough_ln(x) - want).abs() <= 1e-3 * want.abs().max(0.1), "rough_ln({x:e})");
        }
    }

    #[test]
    fn a_row_without_a_temperature_has_no_noise() {
        assert_eq!(noise([1, 2, 0, 0], 3), 0.0);
        assert_eq!(noise([1, -2, 0.5_f32.to_bits() as i32, 0], 3), 0.5 * gumbel(0xffff_fffe_0000_0001, 3));
    }
}
