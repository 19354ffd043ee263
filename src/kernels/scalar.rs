//! Products in plain Rust, one value at a time: what every other instruction set is held to, bit for bit.
//!
//! The order of the sums is that of ggml's `vec_dot` on x86-64 with AVX2: integers within a block, exactly; eight lanes of
//! floats over the blocks, each by a fused multiply-add; the lanes in pairs (`lanes.rs`). Lane `t` has values `4t` to `4t +
//! 3` of every 32. Plain values: `floats.rs`. The K types add minima the same way, in four lanes (`Q4K`) or one (`Q5K`).

use crate::activations::{BIAS, ColumnTile, record};
use crate::floats;
use crate::isa::Isa;
use crate::lanes::sum_array;
use crate::tile::{Dots, RowGroup};
use crate::weight_type::{WeightType, float, iq4nl, q4k_q5k, q6k};

/// # Safety
/// The tile contract.
pub(crate) unsafe fn dots(ty: WeightType, group: &RowGroup, y: &ColumnTile) -> Dots {
    let one: unsafe fn(WeightType, *const u8, *const u8, &ColumnTile) -> f32 = match ty {
        WeightType::Q8_0 | WeightType::Q4_0 | WeightType::IQ4NL => q_0,
        WeightType::Q4K | WeightType::Q5K => q4_or_q5,
        WeightType::Q6K => q6,
        // SAFETY: the tile contract, handed on.
        WeightType::F32 => return unsafe { floats::dots::<{ float::F32 }>(Isa::Scalar, group, y) },
        // SAFETY: the tile contract, handed on.
        WeightType::F16 => return unsafe { floats::dots::<{ float::F16 }>(Isa::Scalar, group, y) },
        // SAFETY: the tile contract, handed on.
        WeightType::BF16 => return unsafe { floats::dots::<{ float::BF16 }>(Isa::Scalar, group, y) },
    };
    let mut dots = Dots::default();
    for (dots, &w) in dots.iter_mut().zip(&group.rows) {
        for (dot, &column) in dots[..y.n].iter_mut().zip(&y.columns) {
            // SAFETY: row and column have `y.n_blocks` blocks of this type and its format (the tile contract).
            *dot = unsafe { one(ty, w, column, y) };
        }
    }
    dots
}

/// The `n` bytes at `p`.
///
/// # Safety
/// They can be read, for as long as the caller says.
unsafe fn bytes<'a>(p: *const u8, n: usize) -> &'a [u8] {
    // SAFETY: `n` bytes can be read at `p` (the caller).
    unsafe { std::slice::from_raw_parts(p, n) }
}

fn half(block: &[u8], at: usize) -> f32 {
    // SAFETY: no preconditions.
    unsafe { ggml_sys::ggml_fp16_to_fp32(u16::from_le_bytes([block[at], block[at + 1]])) }
}

/// # Safety
/// `w` and `column` have `y.n_blocks` blocks of this type and its format.
unsafe fn q_0(ty: WeightType, w: *const u8, column: *const u8, y: &ColumnTile) -> f32 {
    let n_bytes = ty.block_bytes();
    let mut lanes = [0f32; 8];
    for l in 0..y.n_blocks {
        // SAFETY: block `l` lies in row and column; scales are aligned.
        let (w, q, dy) = unsafe {
            let scale = *column.add(y.scales + 4 * l).cast::<f32>();
            (bytes(w.add(n_bytes * l), n_bytes), bytes(column.add(32 * l), 32), scale)
        };
        let d = half(w, 0) * dy;
        let weight = |i: usize| match ty {
            WeightType::Q8_0 => i32::from(w[2 + i] as i8),
            WeightType::IQ4NL => i32::from(iq4nl::VALUES[usize::from(w[2 + i % 16] >> (i / 16 * 4) & 15)]),
            _ => i32::from(w[2 + i % 16] >> (i / 16 * 4) & 15) - 8,
        };
        for (t, lane) in lanes.iter_mut().enumerate() {
            let value = |i: usize| weight(i) * i32::from((q[i] ^ BIAS) as i8);
            let dot: i32 = (4 * t..4 * t + 4).map(value).sum();
            *lane = d.mul_add(dot as f32, *lane);
        }
    }
    sum_array(lanes)
}

/// The parts of record `l`: quants, scale, sums.
///
/// # Safety
/// The column has a record `l`.
unsafe fn parts<'a>(column: *const u8, l: usize) -> (&'a [u8], f32, [i16; 8], [i16; 16]) {
    let record = column.wrapping_add(record::BYTES * l);
    // SAFETY: a record of the column, aligned to its line.
    unsafe {
        let (scale, sums_32, sums_16) =
            (record.add(record::SCALE), record.add(record::SUMS_32), record.add(record::SUMS_16));
        (bytes(record, 256), *scale.cast(), *sums_32.cast(), *sums_16.cast())
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

/// # Safety
/// As [`q_0`].
unsafe fn q4_or_q5(ty: WeightType, w: *const u8, column: *const u8, y: &ColumnTile) -> f32 {
    let five = ty == WeightType::Q5K;
    let (mut lanes, mut mins, mut all_mins) = ([0f32; 8], [0f32; 4], 0f32);
    for l in 0..y.n_blocks {
        // SAFETY: block `l` lies in row and column.
        let (w, (q, dy, sums, _)) = unsafe { (bytes(w.add(ty.block_bytes() * l), ty.block_bytes()), parts(column, l)) };
        let nibbles = &w[ty.block_bytes() - 128..];
        let weight = |s: usize, i: usize| {
            let low = nibbles[s / 2 * 32 + i] >> (s % 2 * 4) & 15;
            i32::from(low | if five { (w[q4k_q5k::HIGH + i] >> s & 1) << 4 } else { 0 })
        };
        let packed = &w[q4k_q5k::SCALES..];
        let (d, dmin) = (dy * half(w, q4k_q5k::SCALE), -dy * half(w, q4k_q5k::SCALE + 2));
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
    sum_array(lanes) + if five { all_mins } else { (mins[0] + mins[2]) + (mins[1] + mins[3]) }
}

/// # Safety
/// As [`q_0`].
unsafe fn q6(_: WeightType, w: *const u8, column: *const u8, y: &ColumnTile) -> f32 {
    let mut lanes = [0f32; 8];
    for l in 0..y.n_blocks {
        // SAFETY: block `l` lies in row and column.
        let (w, (q, dy, _, sums)) = unsafe { (bytes(w.add(210 * l), 210), parts(column, l)) };
        let weight = |s: usize, i: usize| {
            let (h, s) = (s / 4, s % 4);
            let low = w[64 * h + s % 2 * 32 + i] >> (s / 2 * 4) & 15;
            i32::from(low | (w[q6k::HIGH + 32 * h + i] >> (2 * s) & 3) << 4)
        };
        let scale = |i: usize| i32::from(w[q6k::SCALES + i] as i8);
        let d = dy * half(w, q6k::SCALE);
        for (t, lane) in lanes.iter_mut().enumerate() {
            let value = |s: usize, i: usize| weight(s, i) * i32::from(q[32 * s + i] as i8);
            let part = |s: usize| scale(2 * s + t / 4) * (4 * t..4 * t + 4).map(|i| value(s, i)).sum::<i32>();
            let offset: i32 = (2 * t..2 * t + 2).map(|i| scale(i) * i32::from(sums[i])).sum();
            *lane = d.mul_add(((0..8).map(part).sum::<i32>() - 32 * offset) as f32, *lane);
        }
    }
    sum_array(lanes)
}
