//! Eight weight rows joined, so that kernels find them side by side: part for part of a block the bytes of all rows, one block
//! after the other. They have as many bytes as before.

use std::arch::x86_64::*;

use super::rows::{blocks, sixteen_bytes};
use crate::prefetch::prefetch;
use crate::tile::WIDE;
use crate::weight_type::WeightType;

/// The parts of a block, in bytes, in their order: as kernels read them. Of 16 bytes four of each row come first, then the next
/// four of each; others are whole, row after row.
const fn parts(ty: WeightType) -> &'static [usize] {
    match ty {
        WeightType::Q8_0 => &[2, 16, 16],
        WeightType::Q4_0 | WeightType::IQ4NL => &[2, 16],
        WeightType::Q5_0 => &[2, 4, 16],
        WeightType::Q4_1 => &[2, 2, 16],
        WeightType::Q5_1 => &[2, 2, 4, 16],
        WeightType::MXFP4 => &[1, 16],
        WeightType::Q4K => &[2, 2, 4, 4, 4, 16, 16, 16, 16, 16, 16, 16, 16],
        WeightType::Q5K => &[2, 2, 4, 4, 4, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16],
        WeightType::Q6K => &[16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 2],
        // Those of few bits are not joined.
        _ => &[],
    }
}

/// Joins eight rows of `n_blocks` blocks of quantised weights.
///
/// # Safety
/// They can be read, and `to` has room for as many bytes; the CPU has AVX2.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn join(ty: WeightType, rows: &[*const u8; WIDE], n_blocks: usize, to: *mut u8) {
    let bytes = ty.block_bytes();
    for l in 0..n_blocks {
        // The next eight rows.
        prefetch(rows[0].wrapping_add((n_blocks + l) * WIDE * bytes), WIDE * bytes);
        // SAFETY: `l` is below the number of blocks; parts add up to a block.
        unsafe {
            let blocks = blocks::<false>(rows, l, bytes);
            let mut at = 0;
            for &n in parts(ty) {
                let to = to.add(WIDE * (l * bytes + at));
                match n {
                    1 => each::<u8>(&blocks, at, to),
                    2 => each::<u16>(&blocks, at, to),
                    4 => each::<u32>(&blocks, at, to),
                    _ => {
                        for (c, four) in sixteen_bytes::<false>(&blocks, at).into_iter().enumerate() {
                            _mm256_storeu_si256(to.cast::<__m256i>().add(c), four);
                        }
                    }
                }
                at += n;
            }
        }
    }
}

/// A part that is a number of type `T`.
///
/// # Safety
/// It can be read of each block, and `to` has room for all.
#[inline(always)]
unsafe fn each<T>(blocks: &[*const u8; WIDE], at: usize, to: *mut u8) {
    for (r, block) in blocks.iter().enumerate() {
        // SAFETY: the caller's.
        unsafe { to.cast::<T>().add(r).write_unaligned(block.add(at).cast::<T>().read_unaligned()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_a_block() {
        use WeightType::*;
        for ty in [Q8_0, Q4_0, IQ4NL, Q5_0, Q4_1, Q5_1, MXFP4, Q4K, Q5K, Q6K] {
            assert_eq!(parts(ty).iter().sum::<usize>(), ty.block_bytes(), "{ty:?}");
        }
    }
}
