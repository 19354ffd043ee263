//! Eight weight rows side by side: lane `r` of a register belongs to row `r`. Rows lie one after the other or, if `JOINED`, joined
//! (`joined.rs`): then only the first of the addresses counts.
//!
//! All functions are inlined into kernels that are compiled for AVX2, FMA and F16C; nothing else calls them.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::tile::{Dots, WIDE};

/// Where block `l` of every row begins, of blocks of `bytes`.
///
/// # Safety
/// The rows have a block `l`.
#[inline(always)]
pub(crate) unsafe fn blocks<const JOINED: bool>(rows: &[*const u8; WIDE], l: usize, bytes: usize) -> [*const u8; WIDE] {
    let mut blocks = *rows;
    for block in &mut blocks {
        // SAFETY: within the row, or the joined rows (the caller).
        *block = unsafe { if JOINED { rows[0].add(l * WIDE * bytes) } else { block.add(l * bytes) } };
    }
    blocks
}

/// Bytes `4c` to `4c + 3` of every row in register `c`, of the 16 bytes from `at` on.
///
/// # Safety
/// They can be read; the CPU has AVX2.
#[inline(always)]
pub(crate) unsafe fn sixteen_bytes<const JOINED: bool>(rows: &[*const u8; WIDE], at: usize) -> [__m256i; 4] {
    // SAFETY: 16 bytes of each row (the caller).
    unsafe {
        if JOINED {
            let of_all = rows[0].add(WIDE * at).cast::<__m256i>();
            let four_bytes = |c: usize| _mm256_loadu_si256(of_all.add(c));
            return [four_bytes(0), four_bytes(1), four_bytes(2), four_bytes(3)];
        }
        let mut x = [_mm256_setzero_si256(); 4];
        for r in 0..4 {
            let low = _mm256_castsi128_si256(_mm_loadu_si128(rows[r].add(at).cast()));
            x[r] = _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(rows[r + 4].add(at).cast()));
        }
        let (low, high) = (_mm256_unpacklo_epi32(x[0], x[1]), _mm256_unpackhi_epi32(x[0], x[1]));
        let (low_2, high_2) = (_mm256_unpacklo_epi32(x[2], x[3]), _mm256_unpackhi_epi32(x[2], x[3]));
        [
            _mm256_unpacklo_epi64(low, low_2),
            _mm256_unpackhi_epi64(low, low_2),
            _mm256_unpacklo_epi64(high, high_2),
            _mm256_unpackhi_epi64(high, high_2),
        ]
    }
}

/// As [`sixteen_bytes`], of 32 bytes.
///
/// # Safety
/// As [`sixteen_bytes`].
#[inline(always)]
pub(crate) unsafe fn thirty_two_bytes<const JOINED: bool>(rows: &[*const u8; WIDE], at: usize) -> [__m256i; 8] {
    // SAFETY: the caller's.
    let [a, b, c, d] = unsafe { sixteen_bytes::<JOINED>(rows, at) };
    // SAFETY: the caller's.
    let [e, f, g, h] = unsafe { sixteen_bytes::<JOINED>(rows, at + 16) };
    [a, b, c, d, e, f, g, h]
}

/// The half at `at` of every row as a float.
///
/// # Safety
/// As [`sixteen_bytes`], of two bytes; the CPU has F16C.
#[inline(always)]
pub(crate) unsafe fn halves<const JOINED: bool>(rows: &[*const u8; WIDE], at: usize) -> __m256 {
    if JOINED {
        // SAFETY: two bytes of each row (the caller).
        return unsafe { _mm256_cvtph_ps(_mm_loadu_si128(rows[0].add(WIDE * at).cast())) };
    }
    let mut bits = [0i16; WIDE];
    for (bits, row) in bits.iter_mut().zip(rows) {
        // SAFETY: two bytes (the caller).
        *bits = unsafe { row.add(at).cast::<i16>().read_unaligned() };
    }
    let [a, b, c, d, e, f, g, h] = bits;
    // SAFETY: the CPU has the features (the caller).
    unsafe { _mm256_cvtph_ps(_mm_setr_epi16(a, b, c, d, e, f, g, h)) }
}

/// The four bytes at `at` of every row.
///
/// # Safety
/// As [`sixteen_bytes`], of four bytes.
#[inline(always)]
pub(crate) unsafe fn words<const JOINED: bool>(rows: &[*const u8; WIDE], at: usize) -> __m256i {
    if JOINED {
        // SAFETY: four bytes of each row (the caller).
        return unsafe { _mm256_loadu_si256(rows[0].add(WIDE * at).cast()) };
    }
    let mut words = [0i32; WIDE];
    for (word, row) in words.iter_mut().zip(rows) {
        // SAFETY: four bytes (the caller).
        *word = unsafe { row.add(at).cast::<i32>().read_unaligned() };
    }
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// Four bytes at `p` in every lane.
///
/// # Safety
/// They can be read; the CPU has AVX2.
#[inline(always)]
pub(crate) unsafe fn everywhere(p: *const u8) -> __m256i {
    // SAFETY: four bytes (the caller).
    unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
}

/// What is handed back of one register of sums for each column.
///
/// # Safety
/// The CPU has AVX.
#[inline(always)]
pub(crate) unsafe fn by_column<const N: usize>(sums: &[__m256; N]) -> Dots<WIDE> {
    let mut dots = Dots::<WIDE>::default();
    for (dots, sum) in dots.iter_mut().zip(sums) {
        // SAFETY: room for eight floats.
        unsafe { _mm256_storeu_ps(dots.as_mut_ptr(), *sum) };
    }
    dots
}

/// `sum`, words, and the products of the four bytes of each row in `w`, which have no sign, with the four of a column at `q + AT`.
/// Its instructions stay together: of many columns the compiler fetches all of a block first, and spills what registers cannot hold.
///
/// # Safety
/// The four bytes can be read.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn add_unsigned<const AT: usize>(mut sum: __m256i, w: __m256i, q: *const u8) -> __m256i {
    // SAFETY: four bytes are read (the caller), and registers written.
    unsafe {
        asm!(
            "vpbroadcastd {t}, dword ptr [{q} + {at}]",
            "vpmaddubsw {t}, {w}, {t}",
            "vpaddw {sum}, {sum}, {t}",
            t = out(ymm_reg) _,
            q = in(reg) q,
            at = const AT,
            w = in(ymm_reg) w,
            sum = inout(ymm_reg) sum,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    sum
}

/// As [`add_unsigned`], of weights with signs, which the column's bytes get, and without them; `ones` are words, `sum` is of 32 bits.
///
/// # Safety
/// As [`add_unsigned`].
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn add_signed<const AT: usize>(
    mut sum: __m256i,
    (w, size, ones): (__m256i, __m256i, __m256i),
    q: *const u8,
) -> __m256i {
    // SAFETY: four bytes are read (the caller), and registers written.
    unsafe {
        asm!(
            "vpbroadcastd {t}, dword ptr [{q} + {at}]",
            "vpsignb {t}, {t}, {w}",
            "vpmaddubsw {t}, {size}, {t}",
            "vpmaddwd {t}, {t}, {ones}",
            "vpaddd {sum}, {sum}, {t}",
            t = out(ymm_reg) _,
            q = in(reg) q,
            at = const AT,
            w = in(ymm_reg) w,
            size = in(ymm_reg) size,
            ones = in(ymm_reg) ones,
            sum = inout(ymm_reg) sum,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    sum
}

/// Instructions that stay together, with the registers `w0` to `w7` of eight of weights, an address `q` and one register `t` to work with.
macro_rules! of_eight {
    (($w:ident, $q:ident), $($line:literal,)* $($name:ident = $kind:tt (ymm_reg) $value:tt $([$i:literal])?,)*) => {
        asm!(
            $($line,)*
            $($name = $kind(ymm_reg) $value $([$i])?,)*
            t = out(ymm_reg) _,
            q = in(reg) $q,
            w0 = in(ymm_reg) $w[0],
            w1 = in(ymm_reg) $w[1],
            w2 = in(ymm_reg) $w[2],
            w3 = in(ymm_reg) $w[3],
            w4 = in(ymm_reg) $w[4],
            w5 = in(ymm_reg) $w[5],
            w6 = in(ymm_reg) $w[6],
            w7 = in(ymm_reg) $w[7],
            options(pure, readonly, nostack, preserves_flags)
        )
    };
}

/// 32 weights of every row, which have no sign, times those of a column at `q`, as pairs of products in words: the sums of the first,
/// third, fifth and seventh register of `w`, and of the others; words must hold these. Its instructions stay together, as those of
/// [`add_unsigned`].
///
/// # Safety
/// 32 bytes can be read.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn sum_unsigned(w: &[__m256i; 8], q: *const u8) -> [__m256i; 2] {
    let (a, b);
    // SAFETY: 32 bytes are read (the caller), and registers written.
    unsafe {
        of_eight!(
            (w, q),
            "vpbroadcastd {a}, dword ptr [{q}]",
            "vpmaddubsw {a}, {w0}, {a}",
            "vpbroadcastd {b}, dword ptr [{q} + 4]",
            "vpmaddubsw {b}, {w1}, {b}",
            "vpbroadcastd {t}, dword ptr [{q} + 8]",
            "vpmaddubsw {t}, {w2}, {t}",
            "vpaddw {a}, {a}, {t}",
            "vpbroadcastd {t}, dword ptr [{q} + 12]",
            "vpmaddubsw {t}, {w3}, {t}",
            "vpaddw {b}, {b}, {t}",
            "vpbroadcastd {t}, dword ptr [{q} + 16]",
            "vpmaddubsw {t}, {w4}, {t}",
            "vpaddw {a}, {a}, {t}",
            "vpbroadcastd {t}, dword ptr [{q} + 20]",
            "vpmaddubsw {t}, {w5}, {t}",
            "vpaddw {b}, {b}, {t}",
            "vpbroadcastd {t}, dword ptr [{q} + 24]",
            "vpmaddubsw {t}, {w6}, {t}",
            "vpaddw {a}, {a}, {t}",
            "vpbroadcastd {t}, dword ptr [{q} + 28]",
            "vpmaddubsw {t}, {w7}, {t}",
            "vpaddw {b}, {b}, {t}",
            a = out(ymm_reg) a,
            b = out(ymm_reg) b,
        );
    }
    [a, b]
}

/// As [`sum_unsigned`], of weights of which words hold the products of two registers alone, times scales, which are words: one for the
/// first 16, one for the others.
///
/// # Safety
/// As [`sum_unsigned`].
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn sum_scaled(w: &[__m256i; 8], q: *const u8, scale: [__m256i; 2]) -> __m256i {
    let sum;
    // SAFETY: 32 bytes are read (the caller), and registers written.
    unsafe {
        of_eight!(
            (w, q),
            "vpbroadcastd {a}, dword ptr [{q}]",
            "vpmaddubsw {a}, {w0}, {a}",
            "vpbroadcastd {t}, dword ptr [{q} + 4]",
            "vpmaddubsw {t}, {w1}, {t}",
            "vpaddw {a}, {a}, {t}",
            "vpmaddwd {a}, {a}, {s}",
            "vpbroadcastd {b}, dword ptr [{q} + 8]",
            "vpmaddubsw {b}, {w2}, {b}",
            "vpbroadcastd {t}, dword ptr [{q} + 12]",
            "vpmaddubsw {t}, {w3}, {t}",
            "vpaddw {b}, {b}, {t}",
            "vpmaddwd {b}, {b}, {s}",
            "vpaddd {a}, {a}, {b}",
            "vpbroadcastd {b}, dword ptr [{q} + 16]",
            "vpmaddubsw {b}, {w4}, {b}",
            "vpbroadcastd {t}, dword ptr [{q} + 20]",
            "vpmaddubsw {t}, {w5}, {t}",
            "vpaddw {b}, {b}, {t}",
            "vpmaddwd {b}, {b}, {z}",
            "vpaddd {a}, {a}, {b}",
            "vpbroadcastd {b}, dword ptr [{q} + 24]",
            "vpmaddubsw {b}, {w6}, {b}",
            "vpbroadcastd {t}, dword ptr [{q} + 28]",
            "vpmaddubsw {t}, {w7}, {t}",
            "vpaddw {b}, {b}, {t}",
            "vpmaddwd {b}, {b}, {z}",
            "vpaddd {a}, {a}, {b}",
            a = out(ymm_reg) sum,
            b = out(ymm_reg) _,
            s = in(ymm_reg) scale[0],
            z = in(ymm_reg) scale[1],
        );
    }
    sum
}
