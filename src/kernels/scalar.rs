//! Products in plain Rust, one value at a time: what every other instruction set is held to, bit for bit.
//!
//! Integers are added within a block, exactly. Floats are added over the blocks, one after the other, each by a fused
//! multiply-add; minima of the K types likewise, apart. So one conversion and one fused multiply-add for each block serve as many
//! weight rows as a register has lanes. Plain values: `floats.rs`.

use crate::activations::{ColumnTile, record};
use crate::floats;
use crate::isa::Isa;
use crate::low_bits::scalar::Block;
use crate::tile::{Dots, RowGroup};
use crate::weight_type::{ActivationFormat, WeightType, iq4nl, mxfp4, q4k_q5k, q6k};

/// # Safety
/// The tile contract.
pub(crate) unsafe fn dots(isa: Isa, ty: WeightType, group: &RowGroup, y: &ColumnTile) -> Dots {
    let one: unsafe fn(WeightType, *const u8, *const u8, &ColumnTile) -> f32 = match ty {
        WeightType::F32 | WeightType::F16 | WeightType::BF16 => {
            // SAFETY: the tile contract, handed on.
            return unsafe { floats::dots(isa, ty, group, y) };
        }
        _ if ty.format() == ActivationFormat::Q8_0 => q_0,
        WeightType::Q4K | WeightType::Q5K => q4_or_q5,
        WeightType::Q6K => q6,
        // SAFETY: the tile contract, handed on.
        _ => return unsafe { low_bits(ty, group, y) },
    };
    let mut dots = Dots::default();
    for (dots, &column) in dots[..y.n].iter_mut().zip(&y.columns) {
        for (dot, &w) in dots.iter_mut().zip(&group.rows) {
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
    let mut sum = 0f32;
    for l in 0..y.n_blocks {
        // SAFETY: block `l` lies in row and column; scales are aligned.
        let (w, q, dy) = unsafe {
            let scale = *column.add(y.scales + 4 * l).cast::<f32>();
            (bytes(w.add(n_bytes * l), n_bytes), bytes(column.add(32 * l), 32), scale)
        };
        let dx = if ty == WeightType::MXFP4 { mxfp4::scale(w[0]) } else { half(w, 0) };
        let nibble = |i: usize| w[n_bytes - 16 + i % 16] >> (i / 16 * 4) & 15;
        let weight = |i: usize| match ty {
            WeightType::Q8_0 => i32::from(w[2 + i] as i8),
            WeightType::IQ4NL => i32::from(iq4nl::VALUES[usize::from(nibble(i))]),
            WeightType::MXFP4 => i32::from(mxfp4::VALUES[usize::from(nibble(i))]),
            WeightType::Q5_0 | WeightType::Q5_1 => {
                i32::from(nibble(i) | (w[n_bytes - 20 + i / 8] >> (i % 8) & 1) << 4) - 16
            }
            _ => i32::from(nibble(i)) - 8,
        };
        let quant = |i: usize| i32::from(q[i] as i8);
        sum = (dx * dy).mul_add((0..32).map(|i| weight(i) * quant(i)).sum::<i32>() as f32, sum);
        let less = match ty {
            WeightType::Q4_1 => 8.0,
            WeightType::Q5_1 => 16.0,
            _ => continue,
        };
        let min = dx.mul_add(less, half(w, 2));
        sum = (min * dy).mul_add((0..32).map(quant).sum::<i32>() as f32, sum);
    }
    sum
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
    let (mut sum, mut mins) = (0f32, 0f32);
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
        let value = |s: usize, i: usize| weight(s, i) * i32::from(q[32 * s + i] as i8);
        let part = |s: usize| scale_and_min(packed, s).0 * (0..32).map(|i| value(s, i)).sum::<i32>();
        let min = |s: usize| scale_and_min(packed, s).1 * i32::from(sums[s]);
        sum = d.mul_add((0..8).map(part).sum::<i32>() as f32, sum);
        mins = dmin.mul_add((0..8).map(min).sum::<i32>() as f32, mins);
    }
    sum + mins
}

/// # Safety
/// As [`q_0`].
unsafe fn q6(_: WeightType, w: *const u8, column: *const u8, y: &ColumnTile) -> f32 {
    let mut sum = 0f32;
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
        let value = |s: usize, i: usize| weight(s, i) * i32::from(q[32 * s + i] as i8);
        let part = |i: usize| scale(i) * (0..16).map(|t| value(i / 2, i % 2 * 16 + t)).sum::<i32>();
        let offset = |i: usize| 32 * scale(i) * i32::from(sums[i]);
        sum = d.mul_add((0..16).map(|i| part(i) - offset(i)).sum::<i32>() as f32, sum);
    }
    sum
}

/// Types of few bits: a block is read once for all columns.
///
/// # Safety
/// The tile contract.
unsafe fn low_bits(ty: WeightType, group: &RowGroup, y: &ColumnTile) -> Dots {
    let n_bytes = ty.block_bytes();
    let (mut sums, mut minima): (Dots, Dots) = Default::default();
    for (r, &row) in group.rows.iter().enumerate() {
        for l in 0..y.n_blocks {
            // SAFETY: block `l` lies in the row (the tile contract).
            let block = Block::read(ty, unsafe { bytes(row.add(n_bytes * l), n_bytes) });
            for (j, &column) in y.columns[..y.n].iter().enumerate() {
                // SAFETY: the column has a record `l` (the tile contract).
                let (q, dy, _, sums_16) = unsafe { parts(column, l) };
                let product = |i: usize| block.values[i] * i32::from(q[i] as i8);
                let part = |s: usize| block.scales[s] * (16 * s..16 * s + 16).map(product).sum::<i32>();
                sums[j][r] = (dy * block.d).mul_add((0..16).map(part).sum::<i32>() as f32, sums[j][r]);
                if let Some((d, mins)) = block.mins {
                    let min = mins.iter().zip(sums_16).map(|(min, sum)| min * i32::from(sum)).sum::<i32>();
                    minima[j][r] = (-dy * d).mul_add(min as f32, minima[j][r]);
                }
            }
        }
        // Elsewhere nothing is added: a sum of -0 would become 0.
        if ty == WeightType::Q2K {
            sums.iter_mut().zip(&minima).for_each(|(sum, minima)| sum[r] += minima[r]);
        }
    }
    sums
}
