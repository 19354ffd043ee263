//! Reading what was saved, front to back. Every length is compared with the bytes that remain before it is used.

use crate::error::Error;

/// Bytes that are taken apart from the front.
#[derive(Clone, Copy, Debug)]
pub struct ByteReader<'a> {
    rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
    /// Begins at the first of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// [`Error::Saved`]: there are fewer.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or_else(|| {
            Error::Saved(format!("it is cut off: {n} bytes more expected, {} found", self.rest.len()))
        })?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number, stored as u64, little endian.
    ///
    /// # Errors
    /// As [`ByteReader::take`]; a number that this machine cannot count to.
    pub fn number(&mut self) -> Result<usize, Error> {
        let bytes = self.take(8)?.try_into().map(u64::from_le_bytes).unwrap_or_default();
        usize::try_from(bytes).map_err(|_| Error::Saved(format!("{bytes} is no length")))
    }

    /// The next `n` words of 4 bytes.
    ///
    /// # Errors
    /// As [`ByteReader::take`].
    pub fn words(&mut self, n: usize) -> Result<&'a [[u8; 4]], Error> {
        let n_bytes = n.checked_mul(4).ok_or_else(|| Error::Saved(format!("{n} is no length")))?;
        Ok(self.take(n_bytes)?.as_chunks::<4>().0)
    }

    /// The next `n` floats, which must be finite. `what`: for the message.
    ///
    /// # Errors
    /// As [`ByteReader::take`]; [`Error::Saved`]: a value that is not finite.
    pub fn floats(&mut self, n: usize, what: &str) -> Result<Vec<f32>, Error> {
        let values: Vec<f32> = self.words(n)?.iter().map(|&word| f32::from_le_bytes(word)).collect();
        match values.iter().position(|v| !v.is_finite()) {
            Some(i) => Err(Error::Saved(format!("value {i} of {what} is {}, a finite number expected", values[i]))),
            None => Ok(values),
        }
    }

    /// Everything that was not taken yet.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }
}

/// Appends a number as [`ByteReader::number`] reads it.
pub fn put_number(out: &mut Vec<u8>, n: usize) {
    out.extend_from_slice(&(n as u64).to_le_bytes());
}
