//! Blocks of the tensor types: random ones of a given spread, and exact ones for rows that mean something.
//! Owns bit layouts; knows nothing of what a value is for.
//!
//! Exact rows have few distinct values, zero among them, and zero stays zero: scales are the block's largest value over
//! the largest code, offsets a whole number of steps.

use gguf::TensorType;
use half::{bf16, f16};

use super::random::Random;

/// Scale and offset of sub-blocks of random K blocks: all alike.
const SUB: u8 = 33;

/// Fills `out` with whole blocks of random values around 0 with spread `scale`. The type is one that a mix has.
pub(crate) fn random(dtype: TensorType, scale: f32, rng: &mut Random, out: &mut [u8]) {
    rng.fill(out);
    let half = |x: f32| f16::from_f32(x).to_le_bytes();
    match dtype {
        TensorType::F32 => spread(out, scale, |exp, word: &mut [u8; 4]| {
            *word = (u32::from_le_bytes(*word) & 0x807f_ffff | exp.wrapping_add(127) << 23).to_le_bytes();
        }),
        TensorType::F16 => spread(out, scale, |exp, word: &mut [u8; 2]| {
            *word = (u16::from_le_bytes(*word) & 0x83ff | (exp.wrapping_add(15) as u16) << 10).to_le_bytes();
        }),
        TensorType::BF16 => spread(out, scale, |exp, word: &mut [u8; 2]| {
            *word = (u16::from_le_bytes(*word) & 0x807f | (exp.wrapping_add(127) as u16) << 7).to_le_bytes();
        }),
        TensorType::Q8_0 => {
            let d = half(scale / 73.3);
            for block in out.as_chunks_mut::<34>().0 {
                for q in &mut block[2..] {
                    // -128 is no code of this type.
                    *q = if *q == 0x80 { 0x81 } else { *q };
                }
                block[..2].copy_from_slice(&d);
            }
        }
        TensorType::Q4_0 => {
            let d = half(scale / 4.61);
            out.as_chunks_mut::<18>().0.iter_mut().for_each(|block| block[..2].copy_from_slice(&d));
        }
        TensorType::Q5_0 => {
            let d = half(scale / 9.23);
            out.as_chunks_mut::<22>().0.iter_mut().for_each(|block| block[..2].copy_from_slice(&d));
        }
        TensorType::Q4_K => {
            let head = k_head(scale / (f32::from(SUB) * 4.61), 7.5, SUB, SUB);
            out.as_chunks_mut::<144>().0.iter_mut().for_each(|block| block[..16].copy_from_slice(&head));
        }
        TensorType::Q5_K => {
            let head = k_head(scale / (f32::from(SUB) * 9.23), 15.5, SUB, SUB);
            out.as_chunks_mut::<176>().0.iter_mut().for_each(|block| block[..16].copy_from_slice(&head));
        }
        TensorType::Q6_K => {
            let d = half(scale / (16.0 * 18.5));
            for block in out.as_chunks_mut::<210>().0 {
                block[192..208].fill(16);
                block[208..].copy_from_slice(&d);
            }
        }
        _ => unreachable!("{dtype} is not one of the types that are made"),
    }
}

/// Gives every word of random bits the exponent that makes the spread about `scale`: mantissas from 1 to 2 have 1.53.
fn spread<const N: usize>(out: &mut [u8], scale: f32, set: impl Fn(u32, &mut [u8; N])) {
    let exp = (scale / 1.53).log2().round() as i32;
    out.as_chunks_mut::<N>().0.iter_mut().for_each(|word| set(exp as u32, word));
}

/// Writes `values`, whole blocks, as exactly as the type allows. The type is one that a mix has.
pub(crate) fn exact(dtype: TensorType, values: &[f32], out: &mut [u8]) {
    match dtype {
        TensorType::F32 => floats(values, out, f32::to_le_bytes),
        TensorType::F16 => floats(values, out, |v| f16::from_f32(v).to_le_bytes()),
        TensorType::BF16 => floats(values, out, |v| bf16::from_f32(v).to_le_bytes()),
        TensorType::Q8_0 => blocks(values, out, q8_0),
        TensorType::Q4_0 => blocks(values, out, q4_0),
        TensorType::Q5_0 => blocks(values, out, q5_0),
        TensorType::Q4_K => blocks(values, out, q4_k),
        TensorType::Q5_K => blocks(values, out, q5_k),
        TensorType::Q6_K => blocks(values, out, q6_k),
        _ => unreachable!("{dtype} is not one of the types that are made"),
    }
}

fn floats<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (word, &v) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *word = bytes(v);
    }
}

fn blocks<const N: usize, const B: usize>(values: &[f32], out: &mut [u8], encode: impl Fn(&[f32; N], &mut [u8; B])) {
    for (block, values) in out.as_chunks_mut::<B>().0.iter_mut().zip(values.as_chunks::<N>().0) {
        encode(values, block);
    }
}

/// The step for codes up to `most`, as the file has it, and its inverse.
fn step(values: &[f32], most: f32) -> ([u8; 2], f32) {
    let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let d = f16::from_f32(largest / most);
    (d.to_le_bytes(), if largest > 0.0 { 1.0 / d.to_f32() } else { 0.0 })
}

fn q8_0(values: &[f32; 32], out: &mut [u8; 34]) {
    let (d, inverse) = step(values, 127.0);
    out[..2].copy_from_slice(&d);
    for (q, v) in out[2..].iter_mut().zip(values) {
        *q = (v * inverse).round().clamp(-127.0, 127.0) as i8 as u8;
    }
}

fn q4_0(values: &[f32; 32], out: &mut [u8; 18]) {
    let (d, inverse) = step(values, 7.0);
    let code = |v: f32| ((v * inverse).round() + 8.0).clamp(0.0, 15.0) as u8;
    out[..2].copy_from_slice(&d);
    for (i, q) in out[2..].iter_mut().enumerate() {
        *q = code(values[i]) | code(values[i + 16]) << 4;
    }
}

/// Codes stand for -16 to 15 steps, of which whole multiples of 1/7 use 14; the fifth bits lie together.
fn q5_0(values: &[f32; 32], out: &mut [u8; 22]) {
    let (d, inverse) = step(values, 14.0);
    let code = |v: f32| ((v * inverse).round() + 16.0).clamp(0.0, 31.0) as u8;
    out[..2].copy_from_slice(&d);
    let mut high = 0u32;
    for i in 0..16 {
        let (a, b) = (code(values[i]), code(values[i + 16]));
        out[6 + i] = a & 15 | (b & 15) << 4;
        high |= u32::from(a >> 4) << i | u32::from(b >> 4) << (i + 16);
    }
    out[2..6].copy_from_slice(&high.to_le_bytes());
}

/// Eight sub-blocks of scale 9 and offset 63: codes stand for -7 to 8 steps of 9.
fn q4_k(values: &[f32; 256], out: &mut [u8; 144]) {
    let (d, inverse) = step(values, 9.0 * 7.0);
    let code = |v: f32| ((v * inverse / 9.0).round() + 7.0).clamp(0.0, 15.0) as u8;
    out[..16].copy_from_slice(&k_head_of(d, d, 9, 63));
    for (qs, values) in out[16..].as_chunks_mut::<32>().0.iter_mut().zip(values.as_chunks::<64>().0) {
        for (i, q) in qs.iter_mut().enumerate() {
            *q = code(values[i]) | code(values[i + 32]) << 4;
        }
    }
}

/// Eight sub-blocks of scale 4 and offset 60: codes stand for -15 to 16 steps of 4. Scales leave room for whole multiples
/// of 1/7.
fn q5_k(values: &[f32; 256], out: &mut [u8; 176]) {
    let (d, inverse) = step(values, 4.0 * 14.0);
    let code = |v: f32| ((v * inverse / 4.0).round() + 15.0).clamp(0.0, 31.0) as u8;
    out[..16].copy_from_slice(&k_head_of(d, d, 4, 60));
    let (high, low) = out[16..].split_at_mut(32);
    high.fill(0);
    for (part, (qs, values)) in low.as_chunks_mut::<32>().0.iter_mut().zip(values.as_chunks::<64>().0).enumerate() {
        for (i, q) in qs.iter_mut().enumerate() {
            let (a, b) = (code(values[i]), code(values[i + 32]));
            *q = a & 15 | (b & 15) << 4;
            high[i] |= (a >> 4) << (2 * part) | (b >> 4) << (2 * part + 1);
        }
    }
}

/// Sixteen sub-blocks of scale 1; codes stand for -32 to 31 steps, of which whole multiples of 1/7 use 28.
fn q6_k(values: &[f32; 256], out: &mut [u8; 210]) {
    let (d, inverse) = step(values, 28.0);
    let code = |v: f32| ((v * inverse).round() + 32.0).clamp(0.0, 63.0) as u8;
    let (low, rest) = out.split_at_mut(128);
    let (high, rest) = rest.split_at_mut(64);
    rest[..16].fill(1);
    rest[16..].copy_from_slice(&d);
    for (part, values) in values.as_chunks::<128>().0.iter().enumerate() {
        for i in 0..32 {
            let [a, b, c, e] = [0, 32, 64, 96].map(|at| code(values[i + at]));
            low[64 * part + i] = a & 15 | (c & 15) << 4;
            low[64 * part + i + 32] = b & 15 | (e & 15) << 4;
            high[32 * part + i] = a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (e >> 4) << 6;
        }
    }
}

/// Head of a Q4_K or Q5_K block: step, step of the offsets, eight equal scales and offsets of 6 bits.
fn k_head(d: f32, offset: f32, scale: u8, min: u8) -> [u8; 16] {
    let d = f16::from_f32(d);
    k_head_of(d.to_le_bytes(), f16::from_f32(offset * d.to_f32()).to_le_bytes(), scale, min)
}

fn k_head_of(d: [u8; 2], d_min: [u8; 2], scale: u8, min: u8) -> [u8; 16] {
    let mut head = [0; 16];
    head[..2].copy_from_slice(&d);
    head[2..4].copy_from_slice(&d_min);
    // The last four of eight lie in parts: low bits at the end, high bits on top of the first four.
    head[4..8].fill(scale & 63 | (scale >> 4) << 6);
    head[8..12].fill(min & 63 | (min >> 4) << 6);
    head[12..].fill(scale & 15 | (min & 15) << 4);
    head
}
