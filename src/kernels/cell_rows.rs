//! Rows of a KV cache as floats: of any type that unpacks, and of types of our own. Those that caches are usually kept in are
//! unpacked here, others by ggml. The same bits in every instruction set.

use ggml_sys as sys;

use crate::f32x16::F32x16;
use crate::matrix::LANES;
use crate::turbo::Turbo;

/// Keys or values. Strides are in bytes, from cell to cell, head to head, sequence to sequence.
#[derive(Clone, Copy)]
pub(crate) struct Cells {
    /// With what its codes stand for; `None` for rows of ggml's own types.
    pub(crate) turbo: Option<(Turbo, [f32; 16])>,
    pub(crate) dtype: sys::ggml_type,
    pub(crate) data: *const u8,
    pub(crate) strides: [usize; 3],
    /// Values of a row.
    pub(crate) d: usize,
}

impl Cells {
    /// Floats of an unpacked row, filled up to whole groups of lanes.
    pub(crate) fn padded(&self) -> usize {
        self.d.next_multiple_of(LANES)
    }

    /// Unpacks `n` rows from cell `first` on, filled up with zeros; as they were rotated, where they were.
    ///
    /// # Safety
    /// The cells are there, `to` has rows of [`Cells::padded`] floats for them, the CPU has what `V` needs.
    #[inline(always)]
    pub(crate) unsafe fn unpack<V: F32x16>(&self, [first, n]: [usize; 2], head: usize, seq: usize, to: &mut [f32]) {
        let [of_cell, of_head, of_seq] = self.strides;
        for (i, row) in to.chunks_exact_mut(self.padded()).enumerate().take(n) {
            let (row, rest) = row.split_at_mut(self.d);
            rest.fill(0.0);
            let from = self.data.wrapping_add((first + i) * of_cell + head * of_head + seq * of_seq);
            match &self.turbo {
                // SAFETY: the row's bytes.
                Some((turbo, table)) => unsafe { turbo.unpack::<V>(table, from, row) },
                // SAFETY: as many floats.
                None if self.dtype == sys::GGML_TYPE_F32 => unsafe {
                    std::ptr::copy_nonoverlapping(from, row.as_mut_ptr().cast(), 4 * self.d);
                },
                // SAFETY: as many halves, in whole groups of lanes.
                None if self.dtype == sys::GGML_TYPE_F16 && self.d.is_multiple_of(LANES) => unsafe {
                    for (e, to) in row.chunks_exact_mut(LANES).enumerate() {
                        V::load_f16(from.add(2 * LANES * e)).store(to.as_mut_ptr());
                    }
                },
                // SAFETY: whole blocks of the row's bytes.
                None if self.dtype == sys::GGML_TYPE_Q8_0 => unsafe { unpack_q8_0(from, row) },
                // SAFETY: likewise.
                None if self.dtype == sys::GGML_TYPE_Q4_0 => unsafe { unpack_four::<18, false, false>(from, row) },
                // SAFETY: likewise.
                None if self.dtype == sys::GGML_TYPE_Q4_1 => unsafe { unpack_four::<20, true, false>(from, row) },
                // SAFETY: likewise.
                None if self.dtype == sys::GGML_TYPE_Q5_0 => unsafe { unpack_four::<22, false, true>(from, row) },
                // SAFETY: likewise.
                None if self.dtype == sys::GGML_TYPE_Q5_1 => unsafe { unpack_four::<24, true, true>(from, row) },
                // SAFETY: the table has every type; the type unpacks (checked when the node was made), and the row has its
                // bytes.
                None => unsafe {
                    if let Some(to_float) = (*sys::ggml_get_type_traits(self.dtype)).to_float {
                        to_float(from.cast(), row.as_mut_ptr(), self.d as i64);
                    }
                },
            }
        }
    }
}

/// Blocks of a factor (F16) and 32 bytes with a sign.
///
/// # Safety
/// The bytes of all blocks can be read.
#[inline(always)]
unsafe fn unpack_q8_0(from: *const u8, to: &mut [f32]) {
    for (i, to) in to.chunks_exact_mut(32).enumerate() {
        // SAFETY: a block (the caller).
        let block = unsafe { from.add(34 * i).cast::<[u8; 34]>().read_unaligned() };
        let factor = half(block[0], block[1]);
        for (x, &q) in to.iter_mut().zip(&block[2..]) {
            *x = factor * f32::from(q as i8);
        }
    }
}

/// Blocks of `BYTES` bytes: a factor (F16), with `LEAST` the least value (F16), with `FIFTH` a fifth bit of each number in 32
/// bits, then 32 numbers of 4 bits, the first 16 in the lower halves of bytes. Without a least value numbers are half of
/// their range more than they stand for.
///
/// # Safety
/// The bytes of all blocks can be read.
#[inline(always)]
unsafe fn unpack_four<const BYTES: usize, const LEAST: bool, const FIFTH: bool>(from: *const u8, to: &mut [f32]) {
    for (i, to) in to.chunks_exact_mut(32).enumerate() {
        // SAFETY: a block (the caller).
        let block = unsafe { from.add(BYTES * i).cast::<[u8; BYTES]>().read_unaligned() };
        let factor = half(block[0], block[1]);
        let least = if LEAST { half(block[2], block[3]) } else { 0.0 };
        let (head, numbers) = block.split_at(BYTES - 16);
        let fifth = match head {
            [.., a, b, c, d] if FIFTH => u32::from_le_bytes([*a, *b, *c, *d]),
            _ => 0,
        };
        let value = |q: u32| match LEAST {
            true => factor * q as f32 + least,
            false => factor * (q as f32 - if FIFTH { 16.0 } else { 8.0 }),
        };
        let (low, high) = to.split_at_mut(16);
        for (j, ((low, high), &q)) in low.iter_mut().zip(high).zip(numbers).enumerate() {
            let of = |n: u32| if FIFTH { (fifth >> n & 1) << 4 } else { 0 };
            let (j, q) = (j as u32, u32::from(q));
            (*low, *high) = (value(q & 15 | of(j)), value(q >> 4 | of(j + 16)));
        }
    }
}

#[inline(always)]
fn half(low: u8, high: u8) -> f32 {
    // SAFETY: no preconditions.
    unsafe { sys::ggml_fp16_to_fp32(u16::from_le_bytes([low, high])) }
}
