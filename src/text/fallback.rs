//! What stands for a character that is no token: a token for each of its bytes, else the token for what is unknown.
//! Owns that choice; knows nothing of merges.

use crate::error::Error;
use crate::vocab::{TokenKind, Tokens};

/// The byte tokens of a vocabulary whose other tokens are characters.
pub(crate) struct Fallback {
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
}

impl Fallback {
    /// `unknown` lies in the vocabulary.
    ///
    /// # Errors
    /// There is neither a token for a byte that occurs in text, nor `unknown`.
    pub(crate) fn new(tokens: &Tokens, unknown: Option<u32>) -> Result<Self, Error> {
        let mut bytes = Box::new([None; 256]);
        for (kind, id) in tokens.kinds().iter().zip(0..) {
            if let (TokenKind::Byte, Some(&[byte])) = (kind, tokens.bytes(id)) {
                bytes[usize::from(byte)].get_or_insert(id);
            }
        }
        for byte in 0..=u8::MAX {
            // Files without token types have them as normal tokens.
            let text = format!("<0x{byte:02X}>");
            let slot = &mut bytes[usize::from(byte)];
            *slot = slot.or_else(|| tokens.find_plain(text.as_bytes())).or_else(|| tokens.find_other(text.as_bytes()));
            let may_stay_away = !occurs(byte) || (byte < 0x80 && tokens.find_plain(&[byte]).is_some());
            if slot.is_none() && unknown.is_none() && !may_stay_away {
                return Err(Error::MissingByte { byte });
            }
        }
        Ok(Self { bytes, unknown })
    }

    /// Appends the tokens of a character that is none itself.
    pub(crate) fn push(&self, character: &[u8], out: &mut Vec<u32>) {
        let n_before = out.len();
        out.extend(character.iter().filter_map(|&byte| self.bytes[usize::from(byte)]));
        if out.len() - n_before < character.len() {
            out.truncate(n_before);
            out.extend(self.unknown);
        }
    }
}

/// Whether UTF-8 has this byte.
pub(crate) fn occurs(byte: u8) -> bool {
    !matches!(byte, 0xC0 | 0xC1 | 0xF5..)
}
