//! Groups of values in 3 or 4 bits each, as KV caches keep them: a group is rotated, so that its values spread like those of a
//! normal distribution whatever they were before, and each becomes the nearest of eight or sixteen places that are best for
//! that distribution; one number keeps the length.
//! Owns the format, and writing it from a graph. Everything gives the same bits on every processor.
//!
//! A block is a group's codes, the first in the lowest bits, and an F16 factor on its places. The rotation is one change of
//! signs and a Walsh-Hadamard transform; products of vectors that are both rotated stay what they were.
//!
//! Sources: Zandieh et al. 2025 (TurboQuant); Lloyd 1982 and Max 1960 (places).

use std::ffi::{c_int, c_void};

use ggml_sys as sys;

use crate::f32x16::F32x16;

/// Values of a group: the larger where it divides a head.
pub const GROUPS: [usize; 2] = [128, 64];

/// The upper half of the places that lose least of a standard normal distribution, by codes of 3 bits and of 4.
const PLACES_3: [f32; 4] = [0.245_094_18, 0.756_005_3, 1.343_909_3, 2.151_945_8];
const PLACES_4: [f32; 8] =
    [0.128_395_03, 0.388_048_3, 0.656_759_1, 0.942_340_46, 1.256_231_2, 1.618_046_4, 2.069_017_2, 2.732_589_6];

/// Which signs change, bit by bit; any that show no pattern.
const SIGNS: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834;

/// How rows of values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Turbo {
    bits: u8,
    group: u8,
}

impl Turbo {
    /// Of `bits` bits (3 or 4) for heads of `d` values; `None` where no group divides them.
    pub fn of(bits: usize, d: usize) -> Option<Self> {
        let group = GROUPS.into_iter().find(|&group| d > 0 && d.is_multiple_of(group))?;
        matches!(bits, 3 | 4).then_some(Self { bits: bits as u8, group: group as u8 })
    }

    /// Bits of a value.
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// Values of a group.
    pub fn group(self) -> usize {
        self.group.into()
    }

    /// Bytes of a group.
    pub fn block_bytes(self) -> usize {
        self.code_bytes() + 2
    }

    /// Bytes of `n` values; `None` where they are not whole groups.
    pub fn n_bytes(self, n: usize) -> Option<usize> {
        n.is_multiple_of(self.group()).then(|| n / self.group() * self.block_bytes())
    }

    fn code_bytes(self) -> usize {
        self.group() * usize::from(self.bits) / 8
    }

    /// As the parameter of a node; 0 is none.
    pub fn word(this: Option<Self>) -> i32 {
        this.map_or(0, |t| i32::from(t.bits) | i32::from(t.group) << 8)
    }

    /// What [`Turbo::word`] said.
    pub(crate) fn from_word(word: i32) -> Option<Self> {
        Self::of((word & 0xff) as usize, (word >> 8) as usize)
    }

    /// The places of all codes, in rising order; those of 3 bits twice.
    pub(crate) fn table(self) -> [f32; 16] {
        let scale = 1.0 / (f32::from(self.group)).sqrt();
        let half: &[f32] = if self.bits == 3 { &PLACES_3 } else { &PLACES_4 };
        std::array::from_fn(|code| {
            let code = code % (2 * half.len());
            let place = if code < half.len() { -half[half.len() - 1 - code] } else { half[code - half.len()] };
            place * scale
        })
    }

    /// Rotates each group of `x`.
    #[inline(always)]
    pub(crate) fn rotate(self, x: &mut [f32]) {
        for group in x.chunks_exact_mut(self.group()) {
            change_signs(group);
            transform(group);
        }
    }

    /// Undoes [`Turbo::rotate`].
    #[inline(always)]
    pub(crate) fn rotate_back(self, x: &mut [f32]) {
        for group in x.chunks_exact_mut(self.group()) {
            transform(group);
            change_signs(group);
        }
    }

    /// Rounds a group, which is rotated meanwhile. What is not finite or too large is kept as the nearest number that is, NaN
    /// as zero: a masked cell is multiplied by zero.
    fn pack(self, x: &[f32], to: &mut [u8]) {
        let n = self.group();
        let mut memory = [0.0; GROUPS[0]];
        let group = &mut memory[..n];
        for (y, &x) in group.iter_mut().zip(x) {
            *y = if x.is_nan() { 0.0 } else { x.clamp(-MOST, MOST) };
        }
        self.rotate(group);
        let length = group.iter().fold(0.0f32, |sum, y| sum + y * y).sqrt();
        let table = self.table();
        let n_codes = 1 << self.bits;
        let of_unit = if length > 0.0 { 1.0 / length } else { 0.0 };
        let (codes, factor) = to.split_at_mut(self.code_bytes());
        let mut kept = 0.0f32;
        for (eight, codes) in group.chunks_exact(8).zip(codes.chunks_exact_mut(self.bits.into())) {
            let mut word = 0u32;
            for (i, y) in eight.iter().enumerate() {
                let y = y * of_unit;
                let code = (1..n_codes).filter(|&code| y > 0.5 * (table[code - 1] + table[code])).count();
                kept += table[code] * table[code];
                word |= (code as u32) << (usize::from(self.bits) * i);
            }
            codes.copy_from_slice(&word.to_le_bytes()[..codes.len()]);
        }
        // The places are shorter or longer than what they stand for.
        let scale = (length / kept.sqrt()).min(65504.0);
        // SAFETY: no preconditions.
        factor.copy_from_slice(&unsafe { sys::ggml_fp32_to_fp16(scale) }.to_le_bytes());
    }

    /// Reads whole groups as they were rotated; `table`: [`Turbo::table`].
    ///
    /// # Safety
    /// `from` has the bytes of as many values as `to` has, the CPU has what `V` needs.
    #[inline(always)]
    pub(crate) unsafe fn unpack<V: F32x16>(self, table: &[f32; 16], from: *const u8, to: &mut [f32]) {
        // SAFETY: handed on.
        unsafe {
            match self.bits {
                3 => self.unpack_of::<V, 3>(table, from, to),
                _ => self.unpack_of::<V, 4>(table, from, to),
            }
        }
    }

    /// # Safety
    /// As [`Turbo::unpack`].
    #[inline(always)]
    unsafe fn unpack_of<V: F32x16, const BITS: usize>(self, table: &[f32; 16], from: *const u8, to: &mut [f32]) {
        for (i, group) in to.chunks_exact_mut(self.group()).enumerate() {
            let block = from.wrapping_add(i * self.block_bytes());
            // SAFETY: the last two bytes of a block; converting has no preconditions.
            let factor = unsafe {
                let half = block.add(self.code_bytes()).cast::<u16>().read_unaligned();
                V::all(sys::ggml_fp16_to_fp32(u16::from_le(half)))
            };
            for (j, lanes) in group.chunks_exact_mut(16).enumerate() {
                // SAFETY: sixteen codes of the block, behind which its factor lies; the group has room for as many floats.
                unsafe { V::look_up::<BITS>(block.add(2 * BITS * j), table).mul(factor).store(lanes.as_mut_ptr()) };
            }
        }
    }
}

/// The largest number that a group may have: its length fits an F16.
const MOST: f32 = 5000.0;

#[inline(always)]
fn change_signs(x: &mut [f32]) {
    for (i, x) in x.iter_mut().enumerate() {
        let sign = ((SIGNS >> i) as u32 & 1) << 31;
        *x = f32::from_bits(x.to_bits() ^ sign);
    }
}

/// The normalised Walsh-Hadamard transform of a power of two of numbers.
#[inline(always)]
fn transform(x: &mut [f32]) {
    let mut half = 1;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (a, b) = pair.split_at_mut(half);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = 1.0 / (x.len() as f32).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}

/// Where a node's own parameters begin among those of ggml, behind its function.
pub const FIRST_PARAMETER: usize = 8;

/// The parameter that tells [`store_turbo`] from other nodes with functions, at [`FIRST_PARAMETER`]: a device that rounds rows by
/// itself (`vendor/ggml-sys/cuda/stores.cu`) follows this file.
pub const STORE_TURBO: i32 = 0x7374_6f72;

/// Writes rows `src[1]: [n, n_rows]` F32, whole ones, over rows `src[2]: [n_rows]` (I64) of `src[0]`, bytes. `dst` is left as it
/// is. Parameters: [`STORE_TURBO`], [`Turbo::word`].
///
/// # Safety
/// The node contract; ids are rows of `src[0]`, which has the bytes of `n` values in each.
pub unsafe extern "C" fn store_turbo(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has three operands.
    let [cache, rows, ids] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    let Some(turbo) = Turbo::from_word(dst.op_params[FIRST_PARAMETER + 1]) else { return };
    let (n, n_rows) = (turbo.group(), rows.ne[1] as usize);
    let n_groups = rows.ne[0] as usize / n;
    for part in (ith as usize..n_rows * n_groups).step_by(nth as usize) {
        let (row, group) = (part / n_groups, part % n_groups);
        // SAFETY: an id, a group of its row, and a block of the row that it names; nobody else writes that.
        unsafe {
            let id = ids.data.cast::<i64>().add(row).read() as usize;
            let x = rows.data.cast::<u8>().add(row * rows.nb[1]).cast::<f32>().add(group * n);
            let to = cache.data.cast::<u8>().add(id * cache.nb[1] + group * turbo.block_bytes());
            turbo.pack(std::slice::from_raw_parts(x, n), std::slice::from_raw_parts_mut(to, turbo.block_bytes()));
        }
    }
}

/// [`Turbo`] over slices, for tests and benches.
pub mod slices {
    use super::Turbo;

    /// Whole groups as bytes.
    pub fn pack(turbo: Turbo, x: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; turbo.n_bytes(x.len()).expect("whole groups")];
        let blocks = bytes.chunks_exact_mut(turbo.block_bytes());
        x.chunks_exact(turbo.group()).zip(blocks).for_each(|(x, to)| turbo.pack(x, to));
        bytes
    }

    /// The values that the bytes of whole groups stand for, code by code.
    pub fn unpack(turbo: Turbo, bytes: &[u8]) -> Vec<f32> {
        let mut out = Vec::new();
        let table = turbo.table();
        for block in bytes.chunks_exact(turbo.block_bytes()) {
            let (codes, factor) = block.split_at(turbo.code_bytes());
            let bits = usize::from(turbo.bits);
            let bit = |i: usize| usize::from(codes[i / 8] >> (i % 8) & 1);
            let code = |i: usize| (0..bits).map(|b| bit(bits * i + b) << b).sum::<usize>();
            // SAFETY: no preconditions.
            let factor = unsafe { ggml_sys::ggml_fp16_to_fp32(u16::from_le_bytes([factor[0], factor[1]])) };
            let mut group: Vec<f32> = (0..turbo.group()).map(|i| table[code(i)] * factor).collect();
            turbo.rotate_back(&mut group);
            out.append(&mut group);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::f32x16::by_isa;
    use crate::isa::Isa;

    /// Numbers of a normal distribution, nearly.
    fn normal(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        (0..n).map(|_| (0..12).map(|_| next()).sum()).collect()
    }

    fn all() -> [Turbo; 4] {
        [(3, 64), (3, 128), (4, 64), (4, 128)].map(|(bits, d)| Turbo::of(bits, d).expect("a group"))
    }

    /// The share of the energy that is lost.
    fn loss(x: &[f32], y: &[f32]) -> f64 {
        let square = |x: f32| f64::from(x) * f64::from(x);
        x.iter().zip(y).map(|(x, y)| square(x - y)).sum::<f64>() / x.iter().map(|&x| square(x)).sum::<f64>()
    }

    #[test]
    fn sizes_are_what_the_bits_say_and_other_heads_have_none() {
        let bits = |bits, d| {
            let turbo = Turbo::of(bits, d)?;
            Some(turbo.n_bytes(d)? as f64 * 8.0 / d as f64)
        };
        assert_eq!([bits(3, 128), bits(3, 256), bits(4, 128)], [Some(3.125), Some(3.125), Some(4.125)]);
        assert_eq!([bits(3, 64), bits(4, 192)], [Some(3.25), Some(4.25)]);
        assert_eq!([bits(3, 80), bits(3, 0), bits(2, 128)], [None; 3]);
        for turbo in all() {
            assert_eq!(Turbo::from_word(Turbo::word(Some(turbo))), Some(turbo));
        }
        assert_eq!(Turbo::from_word(Turbo::word(None)), None);
    }

    #[test]
    fn a_rotation_keeps_products_and_can_be_undone() {
        for turbo in all() {
            let (x, y) = (normal(256, 1), normal(256, 2));
            let product = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(x * y)).sum::<f64>();
            let (mut u, mut v) = (x.clone(), y.clone());
            turbo.rotate(&mut u);
            turbo.rotate(&mut v);
            assert!((product(&x, &y) - product(&u, &v)).abs() < 1e-4, "{turbo:?}");
            assert_ne!(u, x);
            turbo.rotate_back(&mut u);
            assert!(x.iter().zip(&u).all(|(x, u)| (x - u).abs() < 1e-5), "{turbo:?}");
        }
    }

    #[test]
    fn what_is_lost_is_what_the_places_lose_of_a_normal_distribution_even_of_outliers() {
        for turbo in all() {
            // Lloyd-Max: 0.0345 and 0.0095, less what is known of a group by its length, more by what keeping that costs.
            let least = if turbo.bits == 3 { 0.0345 } else { 0.0095 };
            let mut x = normal(128 * 64, 3);
            let of_normal = loss(&x, &slices::unpack(turbo, &slices::pack(turbo, &x)));
            assert!((0.9 * least..1.08 * least).contains(&of_normal), "{turbo:?}: {of_normal}");
            x.iter_mut().step_by(37).for_each(|x| *x *= 40.0);
            let of_outliers = loss(&x, &slices::unpack(turbo, &slices::pack(turbo, &x)));
            assert!(of_outliers < 1.15 * least, "{turbo:?}: {of_outliers}");
            // The length stays, to the precision of its number.
            let length = |x: &[f32]| x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
            let x = &x[..turbo.group()];
            let kept = length(&slices::unpack(turbo, &slices::pack(turbo, x)));
            assert!((kept / length(x) - 1.0).abs() < 1e-3, "{turbo:?}: {kept}");
        }
    }

    #[test]
    fn each_value_gets_the_nearest_place() {
        for turbo in all() {
            let x = normal(turbo.group(), 4);
            let mut rotated = x.clone();
            turbo.rotate(&mut rotated);
            let mut kept = slices::unpack(turbo, &slices::pack(turbo, &x));
            turbo.rotate(&mut kept);
            let length = rotated.iter().map(|x| x * x).sum::<f32>().sqrt();
            let n_codes = 1 << turbo.bits;
            let places: Vec<f32> = turbo.table()[..n_codes].iter().map(|p| p * length).collect();
            let distance = |x: f32, p: &f32| (x - p).abs();
            for (x, kept) in rotated.iter().zip(kept) {
                let nearest = places.iter().copied().min_by(|a, b| distance(*x, a).total_cmp(&distance(*x, b)));
                let nearest = nearest.expect("there are places");
                // The factor on places differs from the length by what the places are too short or long.
                assert!(
                    (kept - nearest).abs() < 0.12 * nearest.abs(),
                    "{turbo:?}: {x} is kept as {kept}, not {nearest}"
                );
            }
        }
    }

    #[test]
    fn zeros_stay_and_numbers_out_of_range_are_kept_as_finite_ones() {
        for turbo in all() {
            let n = turbo.group();
            assert!(slices::unpack(turbo, &slices::pack(turbo, &vec![0.0; n])).iter().all(|&x| x == 0.0), "{turbo:?}");
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-30] {
                let mut x = vec![bad; n];
                assert!(
                    slices::unpack(turbo, &slices::pack(turbo, &x)).iter().all(|x| x.is_finite()),
                    "{turbo:?} {bad}"
                );
                x[1..].fill(1.0);
                assert!(
                    slices::unpack(turbo, &slices::pack(turbo, &x)).iter().all(|x| x.is_finite()),
                    "{turbo:?} {bad}"
                );
            }
        }
    }

    #[inline(always)]
    unsafe fn unpacked<V: F32x16>(turbo: Turbo, from: &[u8], to: &mut [f32]) {
        // SAFETY: the test's bytes are those of as many values; the instruction set is available.
        unsafe { turbo.unpack::<V>(&turbo.table(), from.as_ptr(), to) };
    }

    by_isa!(unpack_on, unpacked, (turbo: Turbo, from: &[u8], to: &mut [f32]));

    #[test]
    fn every_instruction_set_reads_the_same_values_of_any_bytes() {
        for turbo in all() {
            let x = normal(512, 5);
            let bytes = slices::pack(turbo, &x);
            let mut expected = slices::unpack(turbo, &bytes);
            turbo.rotate(&mut expected);
            let mut first = vec![0.0; 512];
            // SAFETY: every CPU has it.
            unsafe { unpack_on(Isa::Scalar, turbo, &bytes, &mut first) };
            assert!(first.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{turbo:?}");
            // Any codes with factors that are numbers.
            let mut state = 7u32;
            let mut any: Vec<u8> = bytes
                .iter()
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            any.chunks_exact_mut(turbo.block_bytes()).for_each(|block| block[turbo.code_bytes() + 1] &= 0x3b);
            for bytes in [&bytes, &any] {
                // SAFETY: every CPU has it.
                unsafe { unpack_on(Isa::Scalar, turbo, bytes, &mut first) };
                for isa in Isa::available() {
                    let mut found = vec![f32::NAN; 512];
                    // SAFETY: the instruction set is available.
                    unsafe { unpack_on(isa, turbo, bytes, &mut found) };
                    let same = first.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{isa:?}, {turbo:?}");
                }
            }
        }
    }
}
