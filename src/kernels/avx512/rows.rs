//! Sixteen weight rows side by side: lane `r` of a register belongs to row `r`. Rows lie one after the other or, if `JOINED`, are
//! two groups of joined ones (`joined.rs`): then only the addresses of rows 0 and 8 count.
//!
//! All functions are inlined into kernels that are compiled for AVX-512 F, BW, DQ, VL and VNNI; nothing else calls them.

use std::arch::x86_64::*;

use crate::tile::{Dots, WIDE, WIDEST};

/// Where block `l` of every row begins, of blocks of `bytes`.
///
/// # Safety
/// The rows have a block `l`.
#[inline(always)]
pub(crate) unsafe fn blocks<const JOINED: bool>(
    rows: &[*const u8; WIDEST],
    l: usize,
    bytes: usize,
) -> [*const u8; WIDEST] {
    let mut blocks = *rows;
    for block in &mut blocks {
        // SAFETY: within the row, or the joined rows (the caller).
        *block = unsafe { block.add(l * bytes * if JOINED { WIDE } else { 1 }) };
    }
    blocks
}

/// 32 bytes at either address.
///
/// # Safety
/// They can be read; the CPU has AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn both(low: *const u8, high: *const u8) -> __m512i {
    // SAFETY: 32 bytes each (the caller).
    unsafe {
        let low = _mm512_castsi256_si512(_mm256_loadu_si256(low.cast()));
        _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(high.cast()))
    }
}

/// 32 bytes, twice.
///
/// # Safety
/// They can be read; the CPU has AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn twice(p: *const u8) -> __m512i {
    // SAFETY: 32 bytes (the caller).
    unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast())) }
}

/// 16 bytes at each of four addresses.
///
/// # Safety
/// They can be read; the CPU has AVX-512 F.
#[inline(always)]
unsafe fn all_four(rows: [*const u8; 4]) -> __m512i {
    // SAFETY: 16 bytes each (the caller).
    unsafe {
        let [a, b, c, d] = rows.map(|row| _mm_loadu_si128(row.cast()));
        let x = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
        _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(x, c), d)
    }
}

/// Of every 128 bits of four registers the first four bytes of each, then the next, and so on.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
unsafe fn turned(x: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the caller's.
    unsafe {
        let (low, high) = (_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
        let (low_2, high_2) = (_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
        [
            _mm512_unpacklo_epi64(low, low_2),
            _mm512_unpackhi_epi64(low, low_2),
            _mm512_unpacklo_epi64(high, high_2),
            _mm512_unpackhi_epi64(high, high_2),
        ]
    }
}

/// Bytes `4c` to `4c + 3` of every row in register `c`, of the 16 bytes from `at` on.
///
/// # Safety
/// They can be read; the CPU has AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn sixteen_bytes<const JOINED: bool>(rows: &[*const u8; WIDEST], at: usize) -> [__m512i; 4] {
    // SAFETY: 16 bytes of each row (the caller).
    unsafe {
        let mut x = [_mm512_setzero_si512(); 4];
        for (c, x) in x.iter_mut().enumerate() {
            *x = match JOINED {
                true => both(rows[0].add(WIDE * at + 32 * c), rows[WIDE].add(WIDE * at + 32 * c)),
                false => all_four([0, 4, 8, 12].map(|four| rows[four + c].add(at))),
            };
        }
        if JOINED { x } else { turned(x) }
    }
}

/// As [`sixteen_bytes`], of 32 bytes.
///
/// # Safety
/// As [`sixteen_bytes`].
#[inline(always)]
pub(crate) unsafe fn thirty_two_bytes<const JOINED: bool>(rows: &[*const u8; WIDEST], at: usize) -> [__m512i; 8] {
    // SAFETY: the caller's.
    unsafe {
        if JOINED {
            let [a, b, c, d] = sixteen_bytes::<true>(rows, at);
            let [e, f, g, h] = sixteen_bytes::<true>(rows, at + 16);
            return [a, b, c, d, e, f, g, h];
        }
        // Of either half of the rows: the first 16 bytes of four of them, the other 16, and the same of the other four.
        let mut halves = [[_mm512_setzero_si512(); 4]; 2];
        for (half, x) in halves.iter_mut().enumerate() {
            for (r, x) in x.iter_mut().enumerate() {
                *x = both(rows[WIDE * half + r].add(at), rows[WIDE * half + r + 4].add(at));
            }
            *x = turned(*x);
        }
        let mut bytes = [_mm512_setzero_si512(); 8];
        for c in 0..4 {
            bytes[c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(halves[0][c], halves[1][c]);
            bytes[4 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(halves[0][c], halves[1][c]);
        }
        bytes
    }
}

/// The half at `at` of every row as a float.
///
/// # Safety
/// As [`sixteen_bytes`], of two bytes.
#[inline(always)]
pub(crate) unsafe fn halves<const JOINED: bool>(rows: &[*const u8; WIDEST], at: usize) -> __m512 {
    // SAFETY: two bytes of each row (the caller).
    unsafe {
        let of_eight = |first: usize| {
            if JOINED {
                return _mm_loadu_si128(rows[first].add(WIDE * at).cast());
            }
            let half = |r: usize| rows[first + r].add(at).cast::<i16>().read_unaligned();
            _mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7))
        };
        let low = _mm256_castsi128_si256(of_eight(0));
        _mm512_cvtph_ps(_mm256_inserti128_si256::<1>(low, of_eight(WIDE)))
    }
}

/// The four bytes at `at` of every row.
///
/// # Safety
/// As [`sixteen_bytes`], of four bytes.
#[inline(always)]
pub(crate) unsafe fn words<const JOINED: bool>(rows: &[*const u8; WIDEST], at: usize) -> __m512i {
    // SAFETY: four bytes of each row (the caller).
    unsafe {
        if JOINED {
            return both(rows[0].add(WIDE * at), rows[WIDE].add(WIDE * at));
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] =
            rows.map(|row| row.add(at).cast::<i32>().read_unaligned());
        _mm512_setr_epi32(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
    }
}

/// The byte at `at` of every row, in 32 bits.
///
/// # Safety
/// As [`sixteen_bytes`], of one byte.
#[inline(always)]
pub(crate) unsafe fn single_bytes<const JOINED: bool>(rows: &[*const u8; WIDEST], at: usize) -> __m512i {
    // SAFETY: a byte of each row (the caller).
    unsafe {
        if JOINED {
            let eight = |first: usize| rows[first].add(WIDE * at).cast::<i64>().read_unaligned();
            return _mm512_cvtepu8_epi32(_mm_set_epi64x(eight(WIDE), eight(0)));
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = rows.map(|row| row.add(at).cast::<i8>().read());
        _mm512_cvtepu8_epi32(_mm_setr_epi8(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p))
    }
}

/// Four bytes at `p` in every lane.
///
/// # Safety
/// They can be read; the CPU has AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn everywhere(p: *const u8) -> __m512i {
    // SAFETY: four bytes (the caller).
    unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
}

/// The float at `p` in every lane.
///
/// # Safety
/// Four bytes can be read; the CPU has AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn float(p: *const u8) -> __m512 {
    // SAFETY: four bytes (the caller).
    unsafe { _mm512_set1_ps(p.cast::<f32>().read_unaligned()) }
}

/// Bytes `a` and `b` of every lane as its words.
///
/// # Safety
/// The CPU has AVX-512 F and BW.
#[inline(always)]
pub(crate) unsafe fn bytes_as_words(x: __m512i, a: i32, b: i32) -> __m512i {
    let of_lane = 0x8000_8000u32 as i32 | b << 16 | a;
    // SAFETY: the caller's.
    unsafe { _mm512_shuffle_epi8(x, by_lane(of_lane, 0x0004_0004)) }
}

/// Byte `a` of every lane.
///
/// # Safety
/// The CPU has AVX-512 F and BW.
#[inline(always)]
pub(crate) unsafe fn byte_of_lane(x: __m512i, a: i32) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_shuffle_epi8(x, by_lane(0x8080_8000u32 as i32 | a, 4)) }
}

/// As [`byte_of_lane`], with its sign.
///
/// # Safety
/// The CPU has AVX-512 F and BW.
#[inline(always)]
pub(crate) unsafe fn signed_byte_of_lane(x: __m512i, a: i32) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_srai_epi32::<24>(_mm512_shuffle_epi8(x, by_lane(0x0080_8080 | a << 24, 4 << 24))) }
}

/// A pattern of bytes for each lane of 128 bits: `first`, and `step` more for each of the next three.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn by_lane(first: i32, step: i32) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_set4_epi32(first + 3 * step, first + 2 * step, first + step, first) }
}

/// `sum` and the products of weights of every row, without signs and four in each of `w`, with as many of a column at `q`.
///
/// # Safety
/// Four bytes can be read for each of `w`; the CPU has AVX-512 F and VNNI.
#[inline(always)]
pub(crate) unsafe fn add_products(mut sum: __m512i, w: &[__m512i], q: *const u8) -> __m512i {
    for (i, &w) in w.iter().enumerate() {
        // SAFETY: the caller's.
        sum = unsafe { _mm512_dpbusd_epi32(sum, w, everywhere(q.add(4 * i))) };
    }
    sum
}

/// What is handed back of one register of sums for each column.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn by_column<const N: usize>(sums: &[__m512; N]) -> Dots<WIDEST> {
    let mut dots = Dots::<WIDEST>::default();
    for (dots, sum) in dots.iter_mut().zip(sums) {
        // SAFETY: room for sixteen floats.
        unsafe { _mm512_storeu_ps(dots.as_mut_ptr(), *sum) };
    }
    dots
}
