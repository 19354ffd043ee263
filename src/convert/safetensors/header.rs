//! The header of one safetensors file, parsed as a stream and checked against the length of the file.
//! Owns the limits. Works on bytes; whoever calls it adds the path.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::dtype::Dtype;
use crate::json::json_error;

/// Bytes of JSON that a header may have, as in the format's own library.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Tensors that a file may have.
pub const MAX_TENSORS: usize = 1 << 20;

/// The tensors of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// In the order of the header.
    pub tensors: Vec<Tensor>,
}

/// One entry of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Unique within the file.
    pub name: String,
    /// How elements are stored.
    pub dtype: Dtype,
    /// Slowest dimension first: the other way round than in ggml.
    pub shape: Vec<u64>,
    /// Offset of the first byte in the file.
    pub start: u64,
    /// Bytes.
    pub n_bytes: u64,
}

impl Tensor {
    /// Elements in all; the product of the shape.
    pub fn n_elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

impl Header {
    /// The length of the JSON that follows the first eight bytes of a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// In words without the path: the file is shorter than eight bytes, or the length is over the cap or the file's.
    pub fn length(first: &[u8], file_bytes: u64) -> Result<u64, String> {
        let Some(first) = first.first_chunk::<8>() else {
            return Err(format!("{file_bytes} bytes found, at least 8 expected in a safetensors file"));
        };
        if first.starts_with(b"GGUF") {
            return Err("this is a GGUF file, a safetensors file expected".into());
        }
        let n = u64::from_le_bytes(*first);
        if n > MAX_HEADER_BYTES {
            return Err(format!(
                "a header of {n} bytes, at most {MAX_HEADER_BYTES} allowed: damaged, or not a safetensors file"
            ));
        }
        if n > file_bytes - 8 {
            return Err(format!(
                "a header of {n} bytes, the file has {} left: it is cut short, get it again",
                file_bytes - 8
            ));
        }
        Ok(n)
    }

    /// Parses the JSON of a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// In words without the path, with the tensor: whatever the module's first lines list.
    pub fn parse(json: &[u8], file_bytes: u64) -> Result<Header, String> {
        let data_start = 8 + json.len() as u64;
        let mut parser = serde_json::Deserializer::from_slice(json);
        let raw = parser.deserialize_map(Entries).map_err(|e| format!("header: {}", json_error(&e)))?;
        parser.end().map_err(|e| format!("header: {}", json_error(&e)))?;
        let tensors = raw.into_iter().map(|raw| raw.check(data_start, file_bytes)).collect::<Result<Vec<_>, _>>()?;
        let mut by_place: Vec<&Tensor> = tensors.iter().collect();
        by_place.sort_by_key(|t| (t.start, t.n_bytes));
        let mut end = data_start;
        for t in by_place {
            let at = |what: String| Err(format!("tensor {}: {what}", quoted(&t.name)));
            if t.start < end {
                return at(format!("its data overlaps that of the tensor before by {} bytes", end - t.start));
            }
            if t.start > end {
                return at(format!("a gap of {} bytes before its data", t.start - end));
            }
            end += t.n_bytes;
        }
        if end != file_bytes {
            return Err(format!("the tensors end at byte {end}, the file at byte {file_bytes}: damaged, get it again"));
        }
        Ok(Header { tensors })
    }
}

/// An entry as it stands in JSON.
struct Raw {
    name: String,
    dtype: Option<String>,
    shape: Option<Vec<u64>>,
    offsets: Option<(u64, u64)>,
}

impl Raw {
    fn check(self, data_start: u64, file_bytes: u64) -> Result<Tensor, String> {
        let Raw { name, dtype, shape, offsets } = self;
        let at = |what: String| format!("tensor {}: {what}", quoted(&name));
        let dtype = dtype.ok_or_else(|| at("no dtype".into()))?;
        let shape = shape.ok_or_else(|| at("no shape".into()))?;
        let (begin, end) = offsets.ok_or_else(|| at("no data_offsets".into()))?;
        let dtype = Dtype::from_name(&dtype).ok_or_else(|| at(format!("type {} is not known", quoted(&dtype))))?;
        let bits = shape.iter().try_fold(dtype.bits(), |n, dim| n.checked_mul(*dim));
        let Some(bits) = bits.filter(|bits| bits.is_multiple_of(8)) else {
            return Err(at(format!("shape {shape:?} of {dtype} is no number of bytes")));
        };
        let n_bytes = bits / 8;
        if end.checked_sub(begin) != Some(n_bytes) {
            return Err(at(format!(
                "data_offsets [{begin}, {end}] found, {n_bytes} bytes expected for {shape:?} of {dtype}"
            )));
        }
        match data_start.checked_add(end) {
            Some(last) if last <= file_bytes => {}
            _ => {
                let room = file_bytes - data_start;
                return Err(at(format!(
                    "its data ends at {end}, the file has {room} bytes of data: cut short, get it again"
                )));
            }
        }
        Ok(Tensor { name, dtype, shape, start: data_start + begin, n_bytes })
    }
}

/// Names from a file as they may stand in a message.
pub(crate) fn quoted(name: &str) -> String {
    let cut: String = name.chars().take(80).collect();
    let dots = if cut.len() < name.len() { "..." } else { "" };
    format!("\"{}\"{dots}", cut.escape_debug())
}

/// The outer object: sees every key, also one that comes twice.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<Raw>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Raw>, A::Error> {
        let (mut entries, mut seen) = (Vec::new(), HashSet::new());
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("tensor {} appears twice", quoted(&name))));
            }
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if entries.len() == MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            }
            let raw = map.next_value_seed(Entry)?;
            entries.push(Raw { name, ..raw });
        }
        Ok(entries)
    }
}

/// One tensor's object.
struct Entry;

impl<'de> serde::de::DeserializeSeed<'de> for Entry {
    type Value = Raw;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Raw, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entry {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut raw = Raw { name: String::new(), dtype: None, shape: None, offsets: None };
        while let Some(key) = map.next_key::<String>()? {
            let again = match key.as_str() {
                "dtype" => raw.dtype.replace(map.next_value()?).is_some(),
                "shape" => raw.shape.replace(map.next_value_seed(Shape)?).is_some(),
                "data_offsets" => raw.offsets.replace(map.next_value()?).is_some(),
                _ => map.next_value::<IgnoredAny>().map(|_| false)?,
            };
            if again {
                return Err(A::Error::custom(format!("{key} appears twice in one tensor")));
            }
        }
        Ok(raw)
    }
}

/// A list of at most [`MAX_DIMS`] sizes.
struct Shape;

impl<'de> serde::de::DeserializeSeed<'de> for Shape {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Vec<u64>, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Shape {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u64>, A::Error> {
        let mut shape = Vec::new();
        while let Some(dim) = seq.next_element()? {
            if shape.len() == MAX_DIMS {
                return Err(A::Error::custom(format!("a shape of more than {MAX_DIMS} dimensions")));
            }
            shape.push(dim);
        }
        Ok(shape)
    }
}

/// Vision towers have kernels of five.
const MAX_DIMS: usize = 8;
