//! Everything before the tensor data, parsed and checked in one pass.
//! Owns the order of the parts and the limits; knows no key but `general.alignment`.

use std::collections::HashMap;

use crate::cursor::Cursor;
use crate::error::{Error, Place, quoted};
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

/// Caps on what a file may ask for; everything is compared with the bytes left besides.
/// The defaults are far above every published model and keep what parsing allocates within about 150 MB for any file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Metadata keys; 65,536.
    pub max_keys: u64,
    /// Tensors; 1,048,576.
    pub max_tensors: u64,
    /// Bytes of a key; 65,535, as the format's description says.
    pub max_key_bytes: u64,
    /// Bytes of a string; 1 GiB, as in ggml.
    pub max_string_bytes: u64,
    /// Elements of an array; 2^30, as in ggml.
    pub max_array_len: u64,
    /// Arrays within arrays, the outermost counted; 8. Walking them recurses this deep.
    pub max_depth: u32,
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

impl Limits {
    /// For bytes that were checked before.
    pub(crate) const NONE: Limits = Limits {
        max_keys: u64::MAX,
        max_tensors: u64::MAX,
        max_key_bytes: u64::MAX,
        max_string_bytes: u64::MAX,
        max_array_len: u64::MAX,
        max_depth: u32::MAX,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_keys: 1 << 16,
            max_tensors: 1 << 20,
            max_key_bytes: (1 << 16) - 1,
            max_string_bytes: 1 << 30,
            max_array_len: 1 << 30,
            max_depth: 8,
        }
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

/// Keys and tensor names: something, in UTF-8, without NUL (C would see another name than we do).
pub(crate) fn check_name<'a>(bytes: &'a [u8], place: Place<'_>) -> Result<&'a str, Error> {
    if bytes.is_empty() {
        return Err(place.rule("empty name", "at least one byte"));
    }
    if bytes.contains(&0) {
        return Err(place.rule(format!("name {} with a NUL byte", quoted(bytes)), "none"));
    }
    std::str::from_utf8(bytes).map_err(|_| place.rule(format!("name {}", quoted(bytes)), "UTF-8"))
}

pub(crate) const MAGIC: &[u8] = b"GGUF";
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
