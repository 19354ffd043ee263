//! One safetensors file: opened once, its header read, its data read at the places that are asked for.

use std::path::{Path, PathBuf};

use super::header::{Header, Tensor};
use crate::error::Error;
use crate::io::Input;

/// An open file with its header.
#[derive(Debug)]
pub struct File {
    input: Input,
    header: Header,
}

impl File {
    /// Reads the header.
    ///
    /// # Errors
    /// The file cannot be read or is not a regular one, or its header is refused ([`crate::safetensors`] lists why).
    pub fn open(path: &Path) -> Result<File, Error> {
        let input = Input::open(path)?;
        let refused = |what| Error::input(path, what);
        let n_bytes = input.n_bytes();
        let mut first = vec![0; n_bytes.min(8) as usize];
        input.read_at(&mut first, 0)?;
        let n_json = Header::length(&first, n_bytes).map_err(refused)?;
        let mut json = vec![0; n_json as usize];
        input.read_at(&mut json, 8)?;
        let header = Header::parse(&json, n_bytes).map_err(refused)?;
        Ok(File { input, header })
    }

    /// The tensors, in the order of the header.
    pub fn tensors(&self) -> &[Tensor] {
        &self.header.tensors
    }

    /// The bytes.
    pub fn input(&self) -> &Input {
        &self.input
    }

    /// For reading by others, when the header is no longer needed.
    pub fn into_input(self) -> Input {
        self.input
    }

    /// Where it lies.
    pub fn path(&self) -> PathBuf {
        self.input.path().to_owned()
    }
}
