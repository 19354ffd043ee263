//! Products in plain Rust, one value at a time: what every other path is held to, bit for bit.
//!
//! The order of the sums is that of ggml's `vec_dot` on x86-64 with AVX2: integers within a block, exactly; eight lanes of
//! floats over the blocks, each by a fused multiply-add; the lanes by a tree. Lane `t` has values `4t` to `4t + 3` of every
//! 32. Plain values have an order of our own, which ggml's differs from, with activations in full precision.
//! The K types add minima the same way, in four lanes (`Q4K`) or one (`Q5K`).

// Loads, stores and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use super::activations::{BIAS, Columns, record};
use super::weight_type::{Kind, q6, q45};
use super::{Dots, Group};

/// # Safety
/// As `Path::dots`.
pub(super) unsafe fn dots(kind: Kind, group: &Group, y: &Columns) -> Dots {
    let mut dots = Dots::default();
    for (dots, &w) in dots.iter_mut().zip(&group.rows) {
        for (dot, &row) in dots[..y.n].iter_mut().zip(&y.rows) {
            // SAFETY: the caller's promise.
            *dot = unsafe {
                match kind {
                    Kind::Q8_0 | Kind::Q4_0 => q_0(kind, w, row, y.n_blocks, y.scales),
                    Kind::Q4K | Kind::Q5K => q45(kind, w, row, y.n_blocks),
                    Kind::Q6K => q6_k(w, row, y.n_blocks),
                    Kind::F32 | Kind::F16 | Kind::BF16 => floats(kind, w, row, y.n_blocks),
                }
            };
        }
    }
    dots
}

/// The bytes at `p`.
unsafe fn bytes<'a>(p: *const u8, n: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(p, n) }
}

fn half(block: &[u8], at: usize) -> f32 {
    // SAFETY: no preconditions.
    unsafe { ggml_sys::ggml_fp16_to_fp32(u16::from_le_bytes([block[at], block[at + 1]])) }
}

pub(super) fn tree(x: [f32; 8]) -> f32 {
    let four = |i: usize| x[i + 4] + x[i];
    (four(0) + four(2)) + (four(1) + four(3))
}

unsafe fn q_0(kind: Kind, w: *const u8, y: *const u8, n_blocks: usize, scales: usize) -> f32 {
    let n_bytes = kind.block_bytes();
    let mut lanes = [0f32; 8];
    for l in 0..n_blocks {
        // SAFETY: block `l` lies in both rows; scales are aligned.
        let (w, q, dy) = unsafe {
            let scale = *y.add(scales + 4 * l).cast::<f32>();
            (bytes(w.add(n_bytes * l), n_bytes), bytes(y.add(32 * l), 32), scale)
        };
        let d = half(w, 0) * dy;
        let weight = |i: usize| match kind {
            Kind::Q8_0 => i32::from(w[2 + i] as i8),
            _ => i32::from(w[2 + i % 16] >> (i / 16 * 4) & 15) - 8,
        };
        for (t, lane) in lanes.iter_mut().enumerate() {
            let value = |i: usize| weight(i) * i32::from((q[i] ^ BIAS) as i8);
            let dot: i32 = (4 * t..4 * t + 4).map(value).sum();
            *lane = d.mul_add(dot as f32, *lane);
        }
    }
    tree(lanes)
}

/// Sixteen lanes, one value of a block each; then lanes `t` and `t + 8` together, then the tree.
unsafe fn floats(kind: Kind, w: *const u8, y: *const u8, n_blocks: usize) -> f32 {
    let mut lanes = [0f32; 16];
    for l in 0..n_blocks {
        // SAFETY: block `l` lies in both rows.
        let (w, x) = unsafe { (bytes(w.add(kind.block_bytes() * l), kind.block_bytes()), bytes(y.add(64 * l), 64)) };
        let float = |b: &[u8], i: usize| f32::from_le_bytes([b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]]);
        for (t, lane) in lanes.iter_mut().enumerate() {
            let weight = match kind {
                Kind::F16 => half(w, 2 * t),
                Kind::BF16 => f32::from_le_bytes([0, 0, w[2 * t], w[2 * t + 1]]),
                _ => float(w, t),
            };
            *lane = weight.mul_add(float(x, t), *lane);
        }
    }
    tree(std::array::from_fn(|t| lanes[t] + lanes[t + 8]))
}

/// A record's parts: quants, scale, sums.
unsafe fn parts<'a>(y: *const u8, l: usize) -> (&'a [u8], f32, [i16; 8], [i16; 16]) {
    let y = y.wrapping_add(record::BYTES * l);
    // SAFETY: a record of the row, aligned to its line.
    unsafe {
        let (scale, sums_32, sums_16) = (y.add(record::SCALE), y.add(record::SUMS_32), y.add(record::SUMS_16));
        (bytes(y, 256), *scale.cast(), *sums_32.cast(), *sums_16.cast())
    }
}

/// Scale and minimum number `s` of a `Q4K` or `Q5K` block.
fn scale_and_min(packed: &[u8], s: usize) -> (i32, i32) {
    let (scale, min) = if s < 4 {
        (packed[s] & 63, packed[s + 4] & 63)
    } else {
        let low = packed[s + 4];
        ((low & 15) | (packed[s - 4] >> 6 << 4), (low >> 4) | (packed[s] >> 6 << 4))
    };
    (scale.into(), min.into())
}

unsafe fn q45(kind: Kind, w: *const u8, y: *const u8, n_blocks: usize) -> f32 {
    let five = kind == Kind::Q5K;
    let (mut lanes, mut mins, mut all_mins) = ([0f32; 8], [0f32; 4], 0f32);
    for l in 0..n_blocks {
        // SAFETY: block `l` lies in both rows.
        let (w, (q, dy, sums, _)) = unsafe { (bytes(w.add(kind.block_bytes() * l), kind.block_bytes()), parts(y, l)) };
        let nibbles = &w[kind.block_bytes() - 128..];
        let weight = |s: usize, i: usize| {
            let low = nibbles[s / 2 * 32 + i] >> (s % 2 * 4) & 15;
            i32::from(low | if five { (w[q45::HIGH + i] >> s & 1) << 4 } else { 0 })
        };
        let packed = &w[q45::SCALES..];
        let (d, dmin) = (dy * half(w, q45::SCALE), -dy * half(w, q45::SCALE + 2));
        for (t, lane) in lanes.iter_mut().enumerate() {
            let value = |s: usize, i: usize| weight(s, i) * i32::from(q[32 * s + i] as i8);
            let part = |s: usize| scale_and_min(packed, s).0 * (4 * t..4 * t + 4).map(|i| value(s, i)).sum::<i32>();
            *lane = d.mul_add((0..8).map(part).sum::<i32>() as f32, *lane);
        }
        let min =
            |t: usize| -> i32 { (2 * t..2 * t + 2).map(|s| scale_and_min(packed, s).1 * i32::from(sums[s])).sum() };
        if five {
            all_mins = dmin.mul_add((0..4).map(min).sum::<i32>() as f32, all_mins);
        } else {
            mins = std::array::from_fn(|t| dmin.mul_add(min(t) as f32, mins[t]));
        }
    }
    tree(lanes) + if five { all_mins } else { (mins[0] + mins[2]) + (mins[1] + mins[3]) }
}

unsafe fn q6_k(w: *const u8, y: *const u8, n_blocks: usize) -> f32 {
    let mut lanes = [0f32; 8];
    for l in 0..n_blocks {
        // SAFETY: block `l` lies in both rows.
        let (w, (q, dy, _, sums)) = unsafe { (bytes(w.add(210 * l), 210), parts(y, l)) };
        let weight = |s: usize, i: usize| {
            let (h, s) = (s / 4, s % 4);
            let low = w[64 * h + s % 2 * 32 + i] >> (s / 2 * 4) & 15;
            i32::from(low | (w[q6::HIGH + 32 * h + i] >> (2 * s) & 3) << 4)
        };
        let scale = |i: usize| i32::from(w[q6::SCALES + i] as i8);
        let d = dy * half(w, q6::SCALE);
        for (t, lane) in lanes.iter_mut().enumerate() {
            let value = |s: usize, i: usize| weight(s, i) * i32::from(q[32 * s + i] as i8);
            let part = |s: usize| scale(2 * s + t / 4) * (4 * t..4 * t + 4).map(|i| value(s, i)).sum::<i32>();
            let offset: i32 = (2 * t..2 * t + 2).map(|i| scale(i) * i32::from(sums[i])).sum();
            *lane = d.mul_add(((0..8).map(part).sum::<i32>() - 32 * offset) as f32, *lane);
        }
    }
    tree(lanes)
}
