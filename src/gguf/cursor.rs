//! A reading position in the bytes of a file that knows where it is, for messages.
//! Owns the one comparison "are there that many bytes left"; knows nothing of what the bytes mean.

use crate::error::{Error, Place};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    pub(crate) place: Place<'a>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, pos: 0, place: Place::Header }
    }

    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    /// The bytes between an earlier position and this one.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.pos]
    }

    /// # Errors
    /// `count * size` bytes are not left; nothing is read then.
    pub(crate) fn room_for(&self, count: u64, size: u64, what: &'static str) -> Result<u64, Error> {
        match count.checked_mul(size) {
            Some(need) if need <= self.left() => Ok(need),
            need => Err(Error::Short {
                place: self.place.to_string(),
                what,
                need: need.unwrap_or(u64::MAX),
                at: self.pos as u64,
                left: self.left(),
            }),
        }
    }

    pub(crate) fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8], Error> {
        // room_for compared n with the length of a slice, so it fits a usize.
        let end = self.pos + self.room_for(n, 1, what)? as usize;
        let taken = &self.bytes[self.pos..end];
        self.pos = end;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Error> {
        Ok(self.take(N as u64, what)?.try_into().expect("take gives the length it was asked for"))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A length of at most `max` and that many bytes. `length` and `what` name the two.
    pub(crate) fn string(&mut self, length: &'static str, what: &'static str, max: u64) -> Result<&'a [u8], Error> {
        let n = self.u64(length)?;
        self.place.limit(length, n, max)?;
        self.take(n, what)
    }
}
