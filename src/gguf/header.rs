//! Everything before the tensor data, parsed and checked in one pass.
//! Owns the order of the parts; knows no key but `general.alignment`.

use std::collections::HashMap;

use crate::cursor::Cursor;
use crate::error::{Error, Place, quoted};
use crate::limits::Limits;
use crate::metadata::Metadata;
use crate::tensors::{Directory, TensorInfo};
use crate::value::Value;

/// The header of one file; borrows names, strings and arrays from its bytes.
#[derive(Clone, Debug)]
pub struct Header<'a> {
    version: u32,
    alignment: u64,
    data_start: u64,
    metadata: Metadata<'a>,
    tensors: Vec<TensorInfo<'a>>,
    by_name: HashMap<&'a str, usize>,
}

impl<'a> Header<'a> {
    /// Parses a whole file of version 2 or 3, little endian, within the default limits.
    /// # Errors
    /// Whatever is not as the format says or as `Limits` allows, and tensor data beyond the end of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Header<'a>, Error> {
        Header::parse_with(bytes, &Limits::default())
    }

    /// [`Header::parse`] within other limits.
    /// # Errors
    /// As for `parse`.
    pub fn parse_with(bytes: &'a [u8], limits: &Limits) -> Result<Header<'a>, Error> {
        Header::parse_start(bytes, bytes.len() as u64, limits)
    }

    /// Parses a header of which only the first bytes are at hand: the writer checks its own before the data is there.
    pub(crate) fn parse_start(bytes: &'a [u8], file_bytes: u64, limits: &Limits) -> Result<Header<'a>, Error> {
        let mut c = Cursor::new(bytes);
        let magic = &bytes[..bytes.len().min(4)];
        if magic != MAGIC {
            return Err(Error::Magic { found: quoted(magic) });
        }
        c.take(4, "magic")?;
        let version = c.u32("version")?;
        check_version(version)?;
        let n_tensors = c.u64("number of tensors")?;
        let n_keys = c.u64("number of metadata keys")?;
        let metadata = Metadata::read(&mut c, n_keys, limits)?;
        let alignment = match metadata.get(ALIGNMENT_KEY) {
            None => DEFAULT_ALIGNMENT,
            Some(value) => check_alignment(value)?,
        };
        let mut directory = Directory::read(&mut c, n_tensors, alignment, limits)?;
        let mut data_start = c.pos() as u64;
        if n_tensors > 0 {
            data_start = data_start.next_multiple_of(alignment);
            directory.place_in_file(data_start, file_bytes)?;
        }
        let Directory { tensors, by_name } = directory;
        Ok(Header { version, alignment, data_start, metadata, tensors, by_name })
    }

    /// 2 or 3; the two differ in nothing that concerns little-endian files.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// `general.alignment`, a power of two; 32 when the file has none. Every tensor starts at a multiple of it.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Where the data of the first tensor starts; without tensors, where the header ends.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// The keys and values.
    pub fn metadata(&self) -> &Metadata<'a> {
        &self.metadata
    }

    /// The directory, in file order, which is also the order of the data.
    pub fn tensors(&self) -> &[TensorInfo<'a>] {
        &self.tensors
    }

    /// The tensor of this name, found by hash.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo<'a>> {
        self.by_name.get(name).map(|i| &self.tensors[*i])
    }
}

pub(crate) fn check_version(version: u32) -> Result<(), Error> {
    match version {
        2 | 3 => Ok(()),
        // Real versions are small: zeros in the low half mean swapped bytes.
        found if found & 0xffff == 0 && found != 0 => Err(Error::BigEndian { version: found.swap_bytes() }),
        found => Err(Error::Version { found }),
    }
}

/// `general.alignment` must be u32, as in ggml, which aborts on other types elsewhere.
pub(crate) fn check_alignment(value: &Value<'_>) -> Result<u64, Error> {
    match *value {
        Value::U32(n) if n.is_power_of_two() => Ok(n.into()),
        ref other => Err(Place::Key(ALIGNMENT_KEY).rule(other.to_string(), "u32 that is a power of two")),
    }
}

pub(crate) const MAGIC: &[u8] = b"GGUF";
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
