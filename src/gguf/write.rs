//! Writing a GGUF file: header first, then the data of each tensor in turn, then all of it at once under its name.
//! Owns the order of the calls and the layout; holds the header, never tensor data.

use std::io::Write;
use std::path::Path;

use crate::error::{Error, Place};
use crate::header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, Header, MAGIC, check_alignment, check_version};
use crate::limits::Limits;
use crate::metadata::Metadata;
use crate::output::{FileOutput, Output};
use crate::tensors::{MAX_DIMS, checked_bytes, padded};
use crate::types::TensorType;
use crate::value::Value;

/// First stage: keys and tensors are declared, in the order they shall have in the file.
///
/// A file is written under a temporary name beside the target; [`DataWriter::finish`] renames it. Dropping a writer at
/// any stage removes the temporary file and leaves the target as it was.
///
/// Parsing a file and writing it again gives the same bytes, if its padding is of zeros and reaches behind the last
/// tensor (and behind the header when there are no tensors), as ggml and gguf-py write it.
#[derive(Debug)]
pub struct Writer<W: Output = FileOutput> {
    out: W,
    version: u32,
    alignment: u64,
    n_keys: u64,
    keys: Vec<u8>,
    tensors: Vec<Declared>,
}

/// Second stage: data of every tensor, in the order of declaration.
#[derive(Debug)]
pub struct DataWriter<W: Output = FileOutput> {
    out: W,
    alignment: u64,
    tensors: Vec<Declared>,
    /// Tensors begun; the last of them is open.
    n_begun: usize,
    /// Bytes of the open tensor so far.
    written: u64,
    /// Bytes of the file so far.
    pos: u64,
}

/// The bytes of one tensor go in here, in pieces of any size.
#[derive(Debug)]
pub struct TensorWriter<'w, W: Output = FileOutput> {
    data: &'w mut DataWriter<W>,
}

/// The header of a file and where the data goes, for callers that write it by themselves: in another order, by several
/// threads, or over several runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Everything before the padding in front of the first tensor's data.
    pub header: Vec<u8>,
    /// Name, offset in the file and bytes of each tensor, in order of declaration. Between them is padding: zeros.
    pub tensors: Vec<(String, u64, u64)>,
    /// Length of the file, the padding behind the last tensor included.
    pub n_bytes: u64,
}

#[derive(Debug)]
struct Declared {
    name: String,
    n_dims: usize,
    ne: [u64; 4],
    dtype: TensorType,
    n_bytes: u64,
}

impl Writer {
    /// Creates the temporary file.
    /// # Errors
    /// The directory is missing or not writable, or `path` names a directory.
    pub fn create(path: impl AsRef<Path>) -> Result<Writer, Error> {
        Ok(Writer::new(FileOutput::create(path.as_ref())?))
    }
}

impl Writer<Vec<u8>> {
    /// Writes into memory; `finish` gives the bytes.
    pub fn in_memory() -> Writer<Vec<u8>> {
        Writer::new(Vec::new())
    }
}

impl<W: Output> Writer<W> {
    fn new(out: W) -> Writer<W> {
        let (keys, tensors) = (Vec::new(), Vec::new());
        Writer { out, version: 3, alignment: DEFAULT_ALIGNMENT, n_keys: 0, keys, tensors }
    }

    /// 3 unless set: for rewriting a file of version 2 as it was.
    /// # Errors
    /// Neither 2 nor 3.
    pub fn set_version(&mut self, version: u32) -> Result<(), Error> {
        check_version(version)?;
        self.version = version;
        Ok(())
    }

    /// Adds a key. A value of a parsed file is written byte for byte as it was there. `general.alignment` sets the
    /// alignment of this file too.
    /// # Errors
    /// `general.alignment` is not a u32 that is a power of two. Other faults (a key twice, an empty key) are found by
    /// [`Writer::begin`], which reads the header back.
    pub fn add<'v>(&mut self, key: &str, value: impl Into<Value<'v>>) -> Result<(), Error> {
        let value = value.into();
        if key == ALIGNMENT_KEY {
            self.alignment = check_alignment(&value)?;
        }
        put_string(&mut self.keys, key);
        self.keys.extend(value.value_type().id().to_le_bytes());
        value.encode(&mut self.keys);
        self.n_keys += 1;
        Ok(())
    }

    /// [`Writer::add`] for every key of a parsed file.
    /// # Errors
    /// As for `add`.
    pub fn add_all(&mut self, metadata: &Metadata<'_>) -> Result<(), Error> {
        metadata.iter().try_for_each(|(key, value)| self.add(key, *value))
    }

    /// Declares the next tensor; `ne` has up to four dimensions, fastest first.
    /// # Errors
    /// More than four dimensions, a row that is not a multiple of the block, or a size over 64 bits.
    pub fn tensor(&mut self, name: &str, ne: &[u64], dtype: TensorType) -> Result<(), Error> {
        let place = Place::Tensor(name);
        place.limit("number of dimensions", ne.len() as u64, MAX_DIMS)?;
        let mut shape = [1; 4];
        shape[..ne.len()].copy_from_slice(ne);
        let n_bytes = checked_bytes(place, dtype, &shape)?;
        self.tensors.push(Declared { name: name.to_owned(), n_dims: ne.len(), ne: shape, dtype, n_bytes });
        Ok(())
    }

    /// Writes the header.
    /// # Errors
    /// The header would not be readable: it is parsed before it is written. Or the disk refuses.
    pub fn begin(self) -> Result<DataWriter<W>, Error> {
        let (header, file_bytes) = self.header()?;
        Header::parse_start(&header, file_bytes, &Limits::default())?;
        let Writer { out, alignment, tensors, .. } = self;
        let mut data = DataWriter { out, alignment, tensors, n_begun: 0, written: 0, pos: 0 };
        data.put(&header)?;
        data.pad()?;
        Ok(data)
    }

    /// What [`Writer::begin`] would write, and where; nothing is written.
    /// # Errors
    /// The header would not be readable: it is parsed here.
    pub fn layout(&self) -> Result<Layout, Error> {
        let (header, n_bytes) = self.header()?;
        Header::parse_start(&header, n_bytes, &Limits::default())?;
        let mut at = (header.len() as u64).next_multiple_of(self.alignment);
        let mut place = |tensor: &Declared| {
            let start = at;
            // `header` has added the same numbers without an overflow.
            at = (at + tensor.n_bytes).next_multiple_of(self.alignment);
            (tensor.name.clone(), start, tensor.n_bytes)
        };
        let tensors = self.tensors.iter().map(&mut place).collect();
        Ok(Layout { header, tensors, n_bytes })
    }

    /// The header without padding, and the length of the whole file.
    fn header(&self) -> Result<(Vec<u8>, u64), Error> {
        let mut out = Vec::with_capacity(self.keys.len() + 128 * self.tensors.len() + 64);
        out.extend(MAGIC);
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_keys.to_le_bytes());
        out.extend(&self.keys);
        let mut offset = 0;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.n_dims as u32).to_le_bytes());
            for dim in &tensor.ne[..tensor.n_dims] {
                out.extend(dim.to_le_bytes());
            }
            out.extend(tensor.dtype.id().to_le_bytes());
            out.extend(u64::to_le_bytes(offset));
            offset = padded(offset, tensor.n_bytes, self.alignment).ok_or_else(too_long)?;
        }
        let data_start = (out.len() as u64).next_multiple_of(self.alignment);
        Ok((out, data_start.checked_add(offset).ok_or_else(too_long)?))
    }
}

impl<W: Output> DataWriter<W> {
    /// Opens the next tensor for writing; the one before must be complete.
    /// # Errors
    /// `name` is not the next declared tensor, or the one before has too few bytes.
    pub fn tensor(&mut self, name: &str) -> Result<TensorWriter<'_, W>, Error> {
        self.close_tensor()?;
        match self.tensors.get(self.n_begun) {
            Some(next) if next.name == name => {}
            next => {
                let place = Place::Tensor(name).to_string();
                let expected = next.map_or("no more tensors".into(), |next| Place::Tensor(&next.name).to_string());
                return Err(Error::Write { place, found: "data of this tensor".into(), expected });
            }
        }
        self.n_begun += 1;
        self.written = 0;
        Ok(TensorWriter { data: self })
    }

    /// All bytes of the next tensor.
    /// # Errors
    /// As for [`DataWriter::tensor`]; or `bytes` is not the size of the tensor.
    pub fn write_tensor(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.tensor(name)?.put(bytes)?;
        self.close_tensor()
    }

    /// Puts the file under its name: flush, fsync, rename over the target, fsync of the directory. In memory: gives the
    /// bytes.
    /// # Errors
    /// A tensor has no or too few bytes, or the disk refuses; the target is as it was, then.
    pub fn finish(mut self) -> Result<W::Done, Error> {
        self.close_tensor()?;
        match self.tensors.get(self.n_begun) {
            Some(next) => Err(length(next, 0)),
            None => self.out.done(),
        }
    }

    /// Checks the length of the open tensor and pads it; harmless when repeated.
    fn close_tensor(&mut self) -> Result<(), Error> {
        if let Some(i) = self.n_begun.checked_sub(1)
            && self.written < self.tensors[i].n_bytes
        {
            return Err(length(&self.tensors[i], self.written));
        }
        self.pad()
    }

    fn pad(&mut self) -> Result<(), Error> {
        let mut left = self.pos.next_multiple_of(self.alignment) - self.pos;
        while left > 0 {
            let n = left.min(ZEROS.len() as u64);
            self.put(&ZEROS[..n as usize])?;
            left -= n;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(|e| self.out.error("write", e))?;
        self.pos += bytes.len() as u64;
        Ok(())
    }
}

impl<W: Output> TensorWriter<'_, W> {
    /// Appends to the tensor.
    /// # Errors
    /// More bytes than the tensor has room for (none are written then), or the disk refuses.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // Two slices in memory and 2^63 bytes on disk do not add up to 2^64.
        let total = self.data.written + bytes.len() as u64;
        let open = &self.data.tensors[self.data.n_begun - 1];
        if total > open.n_bytes {
            return Err(length(open, total));
        }
        self.data.put(bytes)?;
        self.data.written = total;
        Ok(())
    }
}

/// As [`TensorWriter::put`], for `std::io::copy` and the like.
impl<W: Output> Write for TensorWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.put(bytes).map(|()| bytes.len()).map_err(|e| match e {
            Error::Io { source, .. } => source,
            other => std::io::Error::new(std::io::ErrorKind::InvalidInput, other),
        })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.data.out.flush()
    }
}

fn length(tensor: &Declared, found: u64) -> Error {
    let place = Place::Tensor(&tensor.name).to_string();
    Error::Write { place, found: format!("{found} bytes"), expected: format!("{} bytes", tensor.n_bytes) }
}

fn too_long() -> Error {
    Place::Header.rule("tensor data over 2^64 bytes", "less")
}

fn put_string(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

const ZEROS: [u8; 4096] = [0; 4096];
