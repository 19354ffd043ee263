//! Copies of tensors with zeros between their rows: matrices that are made longer without changing a product.
//! Owns where the copies lie. Knows bytes; knows nothing of what they are.

use std::ops::Range;

use ggml::Mapping;

/// Devices read tensors that begin at multiples of this without another copy.
const ALIGNMENT: usize = 32;

/// Copies that are planned.
#[derive(Default)]
pub(crate) struct ZeroFill {
    copies: Vec<Copy>,
    n_bytes: usize,
}

struct Copy {
    source: Range<usize>,
    /// Bytes that stay together.
    group: usize,
    /// Zeros after each group.
    fill: usize,
    place: usize,
}

impl ZeroFill {
    /// Plans a copy of the bytes `source` of a file: `fill` zeros after each `group` bytes, which `source` holds a whole number
    /// of. Gives the copy's place among all, or `None` where their bytes cannot be counted.
    pub(crate) fn plan(&mut self, source: Range<usize>, group: usize, fill: usize) -> Option<Range<usize>> {
        let n_groups = source.len().checked_div(group)?;
        let place = self.n_bytes.checked_next_multiple_of(ALIGNMENT)?;
        let end = group.checked_add(fill)?.checked_mul(n_groups)?.checked_add(place)?;
        self.n_bytes = end;
        self.copies.push(Copy { source, group, fill, place });
        Some(place..end)
    }

    /// Makes the copies of a file's bytes; gives them, and the byte from which their places are counted. `None`: no room.
    pub(crate) fn make(&self, file: &[u8]) -> Option<(Mapping, usize)> {
        let mut bytes: Vec<u8> = Vec::new();
        bytes.try_reserve_exact(self.n_bytes.checked_add(ALIGNMENT)?).ok()?;
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        bytes.resize(start + self.n_bytes, 0);
        for copy in &self.copies {
            let groups = file.get(copy.source.clone())?.chunks_exact(copy.group);
            let places = bytes[start + copy.place..].chunks_mut(copy.group + copy.fill);
            places.zip(groups).for_each(|(place, group)| place[..copy.group].copy_from_slice(group));
        }
        Some((Mapping::Made(bytes), start))
    }
}

#[cfg(test)]
mod tests {
    use super::ZeroFill;

    #[test]
    fn groups_are_followed_by_zeros_and_copies_begin_aligned() {
        let file: Vec<u8> = (1..=12).collect();
        let mut fill = ZeroFill::default();
        let first = fill.plan(0..6, 3, 2).unwrap();
        let second = fill.plan(8..12, 4, 4).unwrap();
        let (mapping, start) = fill.make(&file).unwrap();
        let at = |place: std::ops::Range<usize>| &mapping.bytes()[start..][place];
        assert_eq!(at(first), [1, 2, 3, 0, 0, 4, 5, 6, 0, 0]);
        assert_eq!(at(second.clone()), [9, 10, 11, 12, 0, 0, 0, 0]);
        assert!((mapping.bytes().as_ptr() as usize + start + second.start).is_multiple_of(32));
    }

    #[test]
    fn what_cannot_be_counted_is_not_planned() {
        assert_eq!(ZeroFill::default().plan(0..8, 1, usize::MAX - 3), None);
        assert_eq!(ZeroFill::default().plan(0..8, 0, 1), None);
    }
}
