//! The tokens themselves: bytes and kind by id, id by bytes.
//! Owns one arena of bytes for all of them; knows nothing of merges or of what a special token is for.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::TokenKind;
use crate::byte_level::{is_spelled, spell_into};
use crate::error::{Error, quoted};
use crate::pretokenize::Spelling;

/// All tokens of a vocabulary. Without duplicates: of two tokens with the same bytes the first is found.
pub(crate) struct Tokens {
    arena: Vec<u8>,
    /// Token `i` lies at `ends[i]..ends[i + 1]` of the arena.
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    /// What text is made of: normal and user-defined tokens, the only ones that merges may produce.
    plain: HashTable<u32>,
    /// Control and unknown tokens and unused rows.
    other: HashTable<u32>,
    /// Keyed at random, so that a file cannot choose its collisions.
    hasher: DefaultHashBuilder,
    spelling: Spelling,
}

impl Tokens {
    /// `kinds` is as long as `texts`.
    pub(crate) fn new(texts: &[&str], kinds: Vec<TokenKind>, spelling: Spelling) -> Result<Self, Error> {
        let total: usize = texts.iter().map(|text| text.len()).sum();
        if u32::try_from(total).is_err() {
            return Err(Error::TooLong { found: total, max: u32::MAX as usize });
        }
        let mut tokens = Self {
            arena: Vec::with_capacity(total),
            ends: Vec::with_capacity(texts.len() + 1),
            kinds,
            plain: HashTable::with_capacity(texts.len()),
            other: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            spelling,
        };
        tokens.ends.push(0);
        for (id, text) in texts.iter().enumerate() {
            match tokens.kinds[id] {
                TokenKind::Normal => spelling.spell_into(text, &mut tokens.arena),
                TokenKind::Byte => {
                    let byte = byte_token(text).ok_or_else(|| Error::ByteToken { id, text: quoted(text) })?;
                    tokens.arena.push(byte);
                }
                _ => tokens.arena.extend_from_slice(text.as_bytes()),
            }
            // The arena never outgrows `total`: spelled bytes are at most as long as their spelling.
            tokens.ends.push(tokens.arena.len() as u32);
            // An empty token stands for no text, so nothing may find it.
            if !text.is_empty() && tokens.may_be_found(id, text) {
                tokens.enter(id as u32);
            }
        }
        Ok(tokens)
    }

    /// Text is searched with its spaces as they are. Where tokens write U+2581 for them, one with a space of its own is
    /// never part of a text, and a user-defined one with U+2581 is found as it is written, before any merge.
    fn may_be_found(&self, id: usize, text: &str) -> bool {
        match (self.spelling, self.kinds[id]) {
            // Command R has some characters twice, spelled and as they are; merges make the spelled ones.
            (Spelling::ByteLevel, TokenKind::Normal) => is_spelled(text),
            (Spelling::Spaces, TokenKind::Normal) => !text.contains(' '),
            (Spelling::Spaces, TokenKind::UserDefined) => !text.contains([' ', SPACE]),
            _ => true,
        }
    }

    /// Appends the bytes for which a part of a normal token stands.
    pub(crate) fn spell_into(&self, text: &str, out: &mut Vec<u8>) {
        self.spelling.spell_into(text, out);
    }

    /// Makes `id` findable, unless a token of the same group has its bytes already.
    fn enter(&mut self, id: u32) {
        let Self { arena, ends, kinds, plain, other, hasher, .. } = self;
        let bytes = |id: u32| &arena[ends[id as usize] as usize..ends[id as usize + 1] as usize];
        let table = match kinds[id as usize] {
            TokenKind::Normal | TokenKind::UserDefined => plain,
            TokenKind::Control | TokenKind::Unknown | TokenKind::Unused => other,
            TokenKind::Byte => return,
        };
        let hash = hasher.hash_one(bytes(id));
        table.entry(hash, |&known| bytes(known) == bytes(id), |&known| hasher.hash_one(bytes(known))).or_insert(id);
    }

    pub(crate) fn spelling(&self) -> Spelling {
        self.spelling
    }

    /// Whether no token that text is made of has a space after another character.
    pub(crate) fn spaces_come_first(&self) -> bool {
        self.plain.iter().all(|&id| {
            let bytes = self.bytes(id).unwrap_or_default();
            !bytes.windows(2).any(|pair| pair[0] != b' ' && pair[1] == b' ')
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    pub(crate) fn kinds(&self) -> &[TokenKind] {
        &self.kinds
    }

    /// Text as the file has it for special and unused tokens, the meaning of the byte-level spelling for others.
    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let start = *self.ends.get(id as usize)?;
        let end = *self.ends.get(id as usize + 1)?;
        Some(&self.arena[start as usize..end as usize])
    }

    /// Bytes of token `id`, which must exist.
    pub(crate) fn n_bytes(&self, id: u32) -> usize {
        (self.ends[id as usize + 1] - self.ends[id as usize]) as usize
    }

    /// The normal or user-defined token with exactly these bytes.
    pub(crate) fn find_plain(&self, bytes: &[u8]) -> Option<u32> {
        self.find(&self.plain, bytes)
    }

    /// The control, unknown or unused token with exactly this text.
    pub(crate) fn find_other(&self, text: &[u8]) -> Option<u32> {
        self.find(&self.other, text)
    }

    fn find(&self, table: &HashTable<u32>, bytes: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(bytes);
        table.find(hash, |&id| self.bytes(id) == Some(bytes)).copied()
    }
}

impl Spelling {
    fn spell_into(self, text: &str, out: &mut Vec<u8>) {
        match self {
            Self::ByteLevel => spell_into(text, out),
            Self::Plain => out.extend_from_slice(text.as_bytes()),
            Self::Spaces => {
                let mut parts = text.split(SPACE);
                out.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
                for part in parts {
                    out.push(b' ');
                    out.extend_from_slice(part.as_bytes());
                }
            }
        }
    }
}

/// How SentencePiece writes a space.
pub(crate) const SPACE: char = '\u{2581}';

/// The byte of `<0x41>`.
fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hex { u8::from_str_radix(digits, 16).ok() } else { None }
}
