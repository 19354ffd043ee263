//! The directory of tensors: names, shapes, types, and where the data lies.
//! Owns the layout rule (file order, padded to the alignment, no gaps); reads no tensor data.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use crate::cursor::Cursor;
use crate::error::{Error, Place};
use crate::limits::{Limits, check_name};
use crate::types::{TensorType, n_elements};

/// One tensor of the directory. Shape and type were checked against each other and the data against the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Unique in the file, 1 to 63 bytes.
    pub name: &'a str,
    /// Dimensions that the file states, 0 to 4.
    pub n_dims: u32,
    /// Fastest dimension first, filled up with 1. A dimension may be 0: no data then.
    pub ne: [u64; 4],
    /// How the elements are stored.
    pub dtype: TensorType,
    /// From the start of the file.
    pub offset: u64,
    /// Without padding.
    pub n_bytes: u64,
}

impl TensorInfo<'_> {
    /// Where the data lies in the bytes of the file.
    pub fn range(&self) -> Range<usize> {
        // Parsing compared both ends with the length of a slice.
        self.offset as usize..(self.offset + self.n_bytes) as usize
    }

    /// The dimensions that the file states.
    pub fn dims(&self) -> &[u64] {
        &self.ne[..self.n_dims as usize]
    }
}

/// The tensors in file order and by name; offsets are still counted from the start of the data.
pub(crate) struct Directory<'a> {
    pub(crate) tensors: Vec<TensorInfo<'a>>,
    pub(crate) by_name: HashMap<&'a str, usize>,
}

impl<'a> Directory<'a> {
    /// Reads `n` entries at the cursor.
    pub(crate) fn read(c: &mut Cursor<'a>, n: u64, alignment: u64, limits: &Limits) -> Result<Directory<'a>, Error> {
        c.place.limit("number of tensors", n, limits.max_tensors)?;
        c.room_for(n, MIN_ENTRY_BYTES, "tensor directory")?;
        let mut tensors = Vec::with_capacity(n as usize);
        let mut by_name = HashMap::with_capacity(n as usize);
        let mut offset = 0;
        for i in 0..n {
            c.place = Place::TensorNo(i);
            let name = check_name(c.string("name length", "name", MAX_NAME_BYTES)?, c.place)?;
            c.place = Place::Tensor(name);
            match by_name.entry(name) {
                Entry::Occupied(_) => return Err(c.place.duplicate()),
                Entry::Vacant(slot) => slot.insert(tensors.len()),
            };
            let tensor = read_entry(c, name, offset)?;
            offset = padded(tensor.offset, tensor.n_bytes, alignment).ok_or_else(|| {
                c.place.rule(format!("{} bytes at offset {offset}", tensor.n_bytes), "an end that 64 bits can count")
            })?;
            tensors.push(tensor);
        }
        c.place = Place::Header;
        Ok(Directory { tensors, by_name })
    }

    /// Counts the offsets from the start of the file and compares the ends with its length.
    pub(crate) fn place_in_file(&mut self, data_start: u64, file_bytes: u64) -> Result<(), Error> {
        let mut cut = None;
        let mut end = data_start;
        for (i, tensor) in self.tensors.iter_mut().enumerate() {
            let place = Place::Tensor(tensor.name);
            let past_64_bits = || place.rule(format!("data start {data_start}"), "an end that 64 bits can count");
            tensor.offset = tensor.offset.checked_add(data_start).ok_or_else(past_64_bits)?;
            end = tensor.offset.checked_add(tensor.n_bytes).ok_or_else(past_64_bits)?;
            if end > file_bytes {
                cut.get_or_insert((i, end));
            }
        }
        match cut {
            None => Ok(()),
            Some((i, cut_end)) => Err(Error::DataMissing {
                place: Place::Tensor(self.tensors[i].name).to_string(),
                end: cut_end,
                file_bytes,
                missing: end - file_bytes,
            }),
        }
    }
}

fn read_entry<'a>(c: &mut Cursor<'a>, name: &'a str, expected_offset: u64) -> Result<TensorInfo<'a>, Error> {
    let n_dims = c.u32("number of dimensions")?;
    c.place.limit("number of dimensions", n_dims.into(), MAX_DIMS)?;
    let mut ne = [1; 4];
    for dim in &mut ne[..n_dims as usize] {
        *dim = c.u64("dimension")?;
    }
    let id = c.u32("tensor type")?;
    let dtype = TensorType::from_id(id).ok_or_else(|| {
        c.place.rule(format!("tensor type {id}"), "a type of ggml 0.28 (0 to 43, removed ones aside)")
    })?;
    let n_bytes = checked_bytes(c.place, dtype, &ne)?;
    let offset = c.u64("data offset")?;
    if offset != expected_offset {
        let expected = format!("{expected_offset}: data in file order, padded to the alignment, without gaps");
        return Err(c.place.rule(format!("data offset {offset}"), expected));
    }
    Ok(TensorInfo { name, n_dims, ne, dtype, offset, n_bytes })
}

/// [`TensorType::tensor_bytes`], with the reason when there is no answer.
pub(crate) fn checked_bytes(place: Place<'_>, dtype: TensorType, ne: &[u64; 4]) -> Result<u64, Error> {
    dtype.tensor_bytes(ne).ok_or_else(|| {
        if n_elements(ne).is_none() {
            place.rule(format!("shape {ne:?}"), "at most i64::MAX elements")
        } else if !ne[0].is_multiple_of(dtype.block_size()) {
            let multiple = format!("a multiple of {}, the block of {dtype}", dtype.block_size());
            place.rule(format!("{} elements per row", ne[0]), multiple)
        } else {
            place.rule(format!("shape {ne:?} of {dtype}"), "a size that 64 bits can count")
        }
    })
}

/// Where the next tensor starts.
pub(crate) fn padded(offset: u64, n_bytes: u64, alignment: u64) -> Option<u64> {
    offset.checked_add(n_bytes)?.checked_next_multiple_of(alignment)
}

/// ggml keeps 64 bytes with the closing zero.
const MAX_NAME_BYTES: u64 = 63;
pub(crate) const MAX_DIMS: u64 = 4;
/// A length, the number of dimensions, a type and an offset; a name of no bytes is told by its own message.
const MIN_ENTRY_BYTES: u64 = 8 + 4 + 4 + 8;
