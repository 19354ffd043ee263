//! The grids of the IQ types: what numbers in their blocks stand for, as sizes of four or eight values. They are what ggml's own
//! function makes of blocks that hold every number once.

use std::sync::LazyLock;

use crate::weight_type::WeightType;

/// What values of [`iq1`] have more.
pub(crate) const IQ1_BIAS: u8 = 16;

/// Factors, as halves, with which values of the least scale are those of the grid.
const EIGHT: [u8; 2] = 0x4800u16.to_le_bytes();
const FOUR: [u8; 2] = 0x4400u16.to_le_bytes();
const ONE: [u8; 2] = 0x3c00u16.to_le_bytes();

/// What ggml reads in a block of type `ty`.
fn values(ty: WeightType, block: &[u8]) -> [f32; 256] {
    assert_eq!(block.len(), ty.block_bytes());
    // SAFETY: the table is static and has every type.
    let traits = unsafe { ggml_sys::ggml_get_type_traits(ty.raw()) };
    // SAFETY: an entry of ggml's static table.
    let to_float = unsafe { &*traits }.to_float.expect("types of weights can be read");
    let mut values = [0.0; 256];
    // SAFETY: a block, and room for its values.
    unsafe { to_float(block.as_ptr().cast(), values.as_mut_ptr(), 256) };
    values
}

/// The bytes of `N` entries of `SIZE` values: `block` makes one of type `ty` with entries from a number on, without signs and with a
/// factor that lets values be whole, of which `to_byte` makes what is kept.
fn entries<const N: usize, const SIZE: usize>(
    ty: WeightType,
    block: impl Fn(usize) -> Vec<u8>,
    to_byte: impl Fn(f32) -> u8,
) -> Vec<[u8; SIZE]> {
    let blocks = (0..N).step_by(256 / SIZE).map(|first| values(ty, &block(first)).map(&to_byte));
    blocks.flat_map(|values| values.as_chunks().0.to_vec()).collect()
}

fn whole(x: f32) -> u8 {
    x as u8
}

/// That of `IQ3XXS`.
pub(crate) fn iq3xxs() -> &'static [u32] {
    static GRID: LazyLock<Box<[u32]>> = LazyLock::new(|| {
        let block = |first: usize| {
            let mut block = vec![0; WeightType::IQ3XXS.block_bytes()];
            block[..2].copy_from_slice(&FOUR);
            (0..64).for_each(|i| block[2 + i] = (first + i) as u8);
            block
        };
        entries::<256, 4>(WeightType::IQ3XXS, block, whole).into_iter().map(u32::from_le_bytes).collect()
    });
    &GRID
}

/// That of `IQ3S`.
pub(crate) fn iq3s() -> &'static [u32] {
    static GRID: LazyLock<Box<[u32]>> = LazyLock::new(|| {
        let block = |first: usize| {
            let mut block = vec![0; WeightType::IQ3S.block_bytes()];
            block[..2].copy_from_slice(&ONE);
            (0..64).for_each(|i| block[2 + i] = (first + i) as u8);
            block[66..74].fill(if first < 256 { 0 } else { 0xff });
            block
        };
        entries::<512, 4>(WeightType::IQ3S, block, whole).into_iter().map(u32::from_le_bytes).collect()
    });
    &GRID
}

/// That of `IQ2XXS`.
pub(crate) fn iq2xxs() -> &'static [u64] {
    static GRID: LazyLock<Box<[u64]>> = LazyLock::new(|| {
        let block = |first: usize| {
            let mut block = vec![0; WeightType::IQ2XXS.block_bytes()];
            block[..2].copy_from_slice(&EIGHT);
            (0..32).for_each(|i| block[2 + i / 4 * 8 + i % 4] = (first + i) as u8);
            block
        };
        entries::<256, 8>(WeightType::IQ2XXS, block, whole).into_iter().map(u64::from_le_bytes).collect()
    });
    &GRID
}

/// That of `IQ2XS`.
pub(crate) fn iq2xs() -> &'static [u64] {
    static GRID: LazyLock<Box<[u64]>> = LazyLock::new(|| {
        let block = |first: usize| {
            let mut block = vec![0; WeightType::IQ2XS.block_bytes()];
            block[..2].copy_from_slice(&EIGHT);
            (0..32).for_each(|i| block[2 + 2 * i..][..2].copy_from_slice(&((first + i) as u16).to_le_bytes()));
            block
        };
        entries::<512, 8>(WeightType::IQ2XS, block, whole).into_iter().map(u64::from_le_bytes).collect()
    });
    &GRID
}

/// That of `IQ2S`.
pub(crate) fn iq2s() -> &'static [u64] {
    static GRID: LazyLock<Box<[u64]>> = LazyLock::new(|| {
        let block = |first: usize| {
            let mut block = vec![0; WeightType::IQ2S.block_bytes()];
            block[..2].copy_from_slice(&EIGHT);
            (0..32).for_each(|i| block[2 + i] = (first + i) as u8);
            block[66..74].fill((first >> 8) as u8 * 0x55);
            block
        };
        entries::<1024, 8>(WeightType::IQ2S, block, whole).into_iter().map(u64::from_le_bytes).collect()
    });
    &GRID
}

/// That of `IQ1S` and `IQ1M`, eight times its values, and [`IQ1_BIAS`] more.
pub(crate) fn iq1() -> &'static [u64] {
    static GRID: LazyLock<Box<[u64]>> = LazyLock::new(|| {
        let block = |first: usize| {
            let mut block = vec![0; WeightType::IQ1S.block_bytes()];
            block[..2].copy_from_slice(&EIGHT);
            (0..32).for_each(|i| block[2 + i] = (first + i) as u8);
            let above = (first >> 8) as u16 * 0o1111;
            (0..8).for_each(|i| block[34 + 2 * i..][..2].copy_from_slice(&above.to_le_bytes()));
            block
        };
        // Eight times an eighth is added to each.
        let to_byte = |x: f32| (x - 1.0 + f32::from(IQ1_BIAS)) as u8;
        entries::<2048, 8>(WeightType::IQ1S, block, to_byte).into_iter().map(u64::from_le_bytes).collect()
    });
    &GRID
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grids hold the sizes that their types have, each entry once.
    #[test]
    fn grids_are_whole() {
        fn all<T: Copy + Ord, const SIZE: usize>(grid: &[T], bytes: impl Fn(T) -> [u8; SIZE]) -> (usize, Vec<u8>) {
            let (mut entries, mut all) = (grid.to_vec(), grid.iter().flat_map(|&e| bytes(e)).collect::<Vec<_>>());
            entries.sort_unstable();
            entries.dedup();
            all.sort_unstable();
            all.dedup();
            (entries.len(), all)
        }
        assert_eq!(all(iq3xxs(), u32::to_le_bytes), (256, vec![4, 12, 20, 28, 36, 44, 52, 62]));
        assert_eq!(all(iq3s(), u32::to_le_bytes), (512, vec![1, 3, 5, 7, 9, 11, 13, 15]));
        for (grid, n) in [(iq2xxs(), 256), (iq2xs(), 512), (iq2s(), 1024)] {
            assert_eq!(all(grid, u64::to_le_bytes), (n, vec![8, 25, 43]));
        }
        assert_eq!(all(iq1(), u64::to_le_bytes), (2048, vec![8, 16, 24]));
    }
}
