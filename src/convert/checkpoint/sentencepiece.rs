//! `tokenizer.model`: the pieces of a SentencePiece vocabulary, with their scores and kinds.
//! Owns what of the file's protocol buffer is read: pieces, the kind of model, and whether a space goes before a text.
//! Source: SentencePiece's `ModelProto`.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::io::Input;

/// A piece.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: PieceKind,
}

/// What such a file says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Model {
    /// By their ids.
    pub(super) pieces: Vec<Piece>,
    /// A space goes before each text.
    pub(super) space_first: bool,
}

/// What a piece is for, as numbered in such a file and in GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// The file of a folder: `tokenizer.model`, else the newest of those that Mistral numbers.
pub(super) fn file(folder: &Path) -> PathBuf {
    let plain = folder.join("tokenizer.model");
    let numbered = VERSIONS.iter().map(|version| folder.join(format!("tokenizer.model.{version}")));
    std::iter::once(plain.clone()).chain(numbered).find(|path| path.exists()).unwrap_or(plain)
}

/// What a file says.
///
/// # Errors
/// The file is missing or too large, is no such file or a part of one, or its pieces are not merged by their scores.
pub(super) fn read(path: &Path) -> Result<Model, Error> {
    let bytes = Input::read_small(path, MAX_BYTES)?;
    parse(&bytes).map_err(|what| Error::input(path, what))
}

fn parse(bytes: &[u8]) -> Result<Model, &'static str> {
    const DAMAGED: &str = "is no SentencePiece model: a damaged download?";
    let mut model = Model { pieces: Vec::new(), space_first: true };
    let mut kind = None;
    let mut rest = Reader(bytes);
    while let Some(field) = rest.field().ok_or(DAMAGED)? {
        match field {
            (1, Value::Bytes(message)) => model.pieces.push(piece(message).ok_or(DAMAGED)?),
            (2, Value::Bytes(message)) => kind = Some(number(message, 3).ok_or(DAMAGED)?.unwrap_or(UNIGRAM)),
            (3, Value::Bytes(message)) => model.space_first = number(message, 3).ok_or(DAMAGED)? != Some(0),
            _ => {}
        }
    }
    match kind {
        _ if model.pieces.is_empty() => Err(DAMAGED),
        Some(BPE) => Ok(model),
        // It stands behind the pieces.
        None => Err("a SentencePiece model without its trainer's settings: a part of a download?"),
        Some(_) => Err("no BPE model: GGUF files can only have pieces that are merged by their scores"),
    }
}

/// The last field of this number in a message, where it is there; `None` for what is no message.
fn number(message: &[u8], of: u64) -> Option<Option<u64>> {
    let mut found = None;
    let mut rest = Reader(message);
    while let Some(field) = rest.field()? {
        if let (field, Value::Number(n)) = field
            && field == of
        {
            found = Some(n);
        }
    }
    Some(found)
}

fn piece(message: &[u8]) -> Option<Piece> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: PieceKind::Normal };
    let mut rest = Reader(message);
    while let Some(field) = rest.field()? {
        match field {
            (1, Value::Bytes(text)) => piece.text = String::from_utf8(text.to_vec()).ok()?,
            (2, Value::Bits32(bits)) => piece.score = f32::from_bits(bits),
            (3, Value::Number(kind)) => {
                use PieceKind as K;
                let kinds = [K::Normal, K::Unknown, K::Control, K::UserDefined, K::Unused, K::Byte];
                piece.kind = kinds.into_iter().find(|k| *k as u64 == kind)?;
            }
            _ => {}
        }
    }
    Some(piece)
}

/// A field's contents.
enum Value<'a> {
    Number(u64),
    Bits32(u32),
    Bytes(&'a [u8]),
    Other,
}

/// What is left of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The next field, `Some(None)` at the end, `None` where there is none such.
    fn field(&mut self) -> Option<Option<(u64, Value<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Other)?,
            2 => {
                let n = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(n)?)
            }
            5 => Value::Bits32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some(Some((tag >> 3, value)))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(n);
            }
        }
        None
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }
}

/// Of Mistral's files, the newest first.
const VERSIONS: [&str; 5] = ["v7m1", "v7", "v3", "v2", "v1"];
/// Kinds of models.
const UNIGRAM: u64 = 1;
const BPE: u64 = 2;
/// Gemma's has 4 MiB.
const MAX_BYTES: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of one piece in a file with other fields around it: the trainer's with its kind of model, the normalizer's
    /// with its space.
    fn file(text: &str, score: f32, kind: u8, model: u8, space: u8) -> Vec<u8> {
        let mut piece = vec![0x0a, text.len() as u8];
        piece.extend(text.as_bytes());
        piece.push(0x15);
        piece.extend(score.to_le_bytes());
        piece.extend([0x18, kind]);
        let mut all = vec![0x19, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, piece.len() as u8];
        all.extend(piece);
        all.extend([0x12, 5, 0x18, model, 0x20, 0x96, 0x01, 0x1a, 2, 0x18, space]);
        all
    }

    #[test]
    fn pieces_are_read_between_other_fields() {
        let found = parse(&file("\u{2581}the", -3.5, 1, 2, 1)).unwrap();
        let pieces = vec![Piece { text: "\u{2581}the".into(), score: -3.5, kind: PieceKind::Normal }];
        assert_eq!(found, Model { pieces, space_first: true });
        assert!(!parse(&file("a", 0.0, 1, 2, 0)).unwrap().space_first);
        assert_eq!(parse(&file("<0x0A>", 0.0, 6, 2, 1)).unwrap().pieces[0].kind, PieceKind::Byte);
    }

    #[test]
    fn what_is_no_such_file_is_refused_wherever_it_is_cut() {
        let whole = file("abc", 1.0, 4, 2, 1);
        // Between the trainer's settings and the normalizer's a cut loses neither piece nor kind.
        let after_trainer = whole.len() - 4;
        for n in (0..whole.len()).filter(|&n| n != after_trainer) {
            assert!(parse(&whole[..n]).is_err(), "{n} of {} bytes", whole.len());
        }
        assert!(parse(&file("abc", 1.0, 9, 2, 1)).is_err(), "a kind of piece that there is not");
        assert!(parse(&file("abc", 1.0, 1, 1, 1)).unwrap_err().contains("no BPE model"));
        assert!(parse(&whole[..whole.len() - 11]).unwrap_err().contains("part of a download"));
        assert!(parse(b"version https://git-lfs.github.com/spec/v1").is_err());
        assert!(parse(&[]).is_err());
    }
}
