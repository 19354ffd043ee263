//! GGUF files put together byte by byte, right ones and wrong ones, without the crate's own writer.
//! Owns the shapes of known attacks; used by the tests here, the seeds of the fuzzer and the comparison with ggml.
#![allow(dead_code, missing_docs, unused_imports)]

mod mutate;
mod shapes;
mod walk;

pub use mutate::Damage;
pub use shapes::{attacks, good_files};
pub use walk::{rewrite, walk};

/// A file in parts; the counts are right unless overridden.
#[derive(Clone, Default)]
pub struct Raw {
    pub magic: Option<[u8; 4]>,
    pub version: Option<u32>,
    pub n_tensors: Option<u64>,
    pub n_keys: Option<u64>,
    pub alignment: Option<usize>,
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data_bytes: usize,
}

pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STR: u32 = 8;
pub const ARR: u32 = 9;
pub const U64: u32 = 10;

impl Raw {
    /// A key with the bytes of its value, whatever they are.
    pub fn key(mut self, key: impl AsRef<[u8]>, ty: u32, value: impl AsRef<[u8]>) -> Raw {
        let mut pair = string(key.as_ref());
        pair.extend(ty.to_le_bytes());
        pair.extend(value.as_ref());
        self.keys.push(pair);
        self
    }

    /// Bytes in place of a key.
    pub fn key_bytes(mut self, bytes: impl Into<Vec<u8>>) -> Raw {
        self.keys.push(bytes.into());
        self
    }

    /// A directory entry, whatever it says.
    pub fn tensor(mut self, name: impl AsRef<[u8]>, ne: &[u64], ty: u32, offset: u64) -> Raw {
        let mut entry = string(name.as_ref());
        entry.extend((ne.len() as u32).to_le_bytes());
        entry.extend(ne.iter().flat_map(|n| n.to_le_bytes()));
        entry.extend(ty.to_le_bytes());
        entry.extend(offset.to_le_bytes());
        self.tensors.push(entry);
        self
    }

    pub fn tensor_bytes(mut self, bytes: impl Into<Vec<u8>>) -> Raw {
        self.tensors.push(bytes.into());
        self
    }

    /// Bytes behind the padded header.
    pub fn data(mut self, n_bytes: usize) -> Raw {
        self.data_bytes = n_bytes;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.unwrap_or(*b"GGUF").to_vec();
        out.extend(self.version.unwrap_or(3).to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        out.extend(self.keys.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(self.alignment.unwrap_or(32)), 0);
        out.extend((0..self.data_bytes).map(|i| i as u8));
        out
    }
}

pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// An array's type and length, then its elements.
pub fn array(elem: u32, n: u64, elements: &[u8]) -> Vec<u8> {
    [&elem.to_le_bytes()[..], &n.to_le_bytes(), elements].concat()
}
