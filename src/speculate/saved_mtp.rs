//! What MTP layers keep of one sequence, as bytes: their KV cells, and the inputs that they lack. Of two heads one after the other.
//! Owns the format and its checks. Knows nothing of slots.

use engine::SavedDraftError;
use memory::{ByteReader, SavedSequence, StateShape, put_number};
use model::{Model, RunError, WhichHead};
use text::TokenId;

use crate::mtp_inputs::MAX_WAITING;

/// The MTP layer's part of a saved sequence.
pub(crate) struct SavedMtp {
    /// Inputs that the cells lack: tokens, and the hidden state before each.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) hidden: Vec<f32>,
    pub(crate) state: SavedSequence,
}

impl SavedMtp {
    /// As bytes, marked with the MTP layers that computed them.
    pub(crate) fn write(
        (model, head): (&Model, WhichHead),
        n_layers: usize,
        (tokens, hidden): (&[TokenId], &[f32]),
        state: &SavedSequence,
    ) -> Result<Vec<u8>, RunError> {
        let mut out = Vec::with_capacity(state.n_bytes() + 4 * (tokens.len() + hidden.len()) + 1024);
        out.extend_from_slice(&kind(n_layers));
        out.extend_from_slice(&fingerprint(model, head)?);
        put_number(&mut out, tokens.len());
        tokens.iter().for_each(|id| out.extend_from_slice(&id.0.to_le_bytes()));
        hidden.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes()));
        state.write_to(&mut out);
        Ok(out)
    }

    /// Bytes at most, with cells of this shape.
    pub(crate) fn max_bytes(n_embd: usize, shape: &StateShape) -> usize {
        KIND.len() + 32 + 8 + (MAX_WAITING + 1) * 4 * (1 + n_embd) + shape.saved_bytes(shape.n_ctx())
    }

    /// Reads and checks what [`SavedMtp::write`] made of a sequence of `tokens`; `None` when nothing was kept, or
    /// other MTP layers or another kind of proposer kept it. Where several heads did ([`join`]), that of `head`.
    pub(crate) fn read(
        (model, head): (&Model, WhichHead),
        n_layers: usize,
        bytes: &[u8],
        tokens: &[TokenId],
        shape: &StateShape,
    ) -> Result<Option<Self>, SavedDraftError> {
        for part in parts(bytes)? {
            if let Some(saved) = Self::read_part((model, head), n_layers, part, tokens, shape)? {
                return Ok(Some(saved));
            }
        }
        Ok(None)
    }

    fn read_part(
        (model, head): (&Model, WhichHead),
        n_layers: usize,
        bytes: &[u8],
        tokens: &[TokenId],
        shape: &StateShape,
    ) -> Result<Option<Self>, SavedDraftError> {
        let Some(bytes) = bytes.strip_prefix(&kind(n_layers)) else { return Ok(None) };
        match bytes.split_at_checked(32) {
            Some((made_by, rest)) if made_by == fingerprint(model, head)? => {
                Self::read_inputs(rest, tokens, shape, (n_layers, model.n_embd_mtp())).map(Some)
            }
            Some(_) => Ok(None),
            None => Err(SavedDraftError::Refused("it is cut off".into())),
        }
    }

    fn read_inputs(
        bytes: &[u8],
        tokens: &[TokenId],
        shape: &StateShape,
        (n_layers, n_embd): (usize, usize),
    ) -> Result<Self, SavedDraftError> {
        let refused = |error: memory::Error| SavedDraftError::Refused(error.to_string());
        let mut bytes = ByteReader::new(bytes);
        let n_waiting = bytes.number().map_err(refused)?;
        let waiting: Vec<TokenId> = bytes.words(n_waiting).map_err(refused)?.iter().map(|&w| token(w)).collect();
        let hidden =
            bytes.floats(n_waiting.saturating_mul(n_embd), "the hidden state of an MTP input").map_err(refused)?;
        let state = SavedSequence::from_bytes(bytes.rest()).map_err(refused)?;
        shape.check(&state).map_err(refused)?;
        shape.check_values(&state).map_err(refused)?;
        // The input of each token but the first; those that wait come last. Of several layers' the last few may be missing:
        // they are made anew of hidden states that are kept elsewhere.
        let n_inputs = tokens.len().saturating_sub(1);
        let n_there = state.len().checked_add(n_waiting).filter(|&n| n <= n_inputs && n_inputs - n < n_layers);
        let Some(n_there) = n_there else {
            let n_cells = state.len();
            let what = format!("{n_cells} cells and {n_waiting} inputs found, {n_inputs} expected together");
            return Err(SavedDraftError::Refused(what));
        };
        if tokens.get(state.len() + 1..n_there + 1).unwrap_or_default() != waiting {
            return Err(SavedDraftError::Refused("its inputs are of other tokens".into()));
        }
        Ok(Self { tokens: waiting, hidden, state })
    }
}

fn token(word: [u8; 4]) -> TokenId {
    TokenId(u32::from_le_bytes(word))
}

/// What several heads kept, as one; of a single one its own bytes.
pub(crate) fn join(mut parts: Vec<Vec<u8>>) -> Vec<u8> {
    parts.retain(|part| !part.is_empty());
    if parts.len() < 2 {
        return parts.pop().unwrap_or_default();
    }
    let mut out = Vec::with_capacity(JOINED.len() + parts.iter().map(|part| 8 + part.len()).sum::<usize>());
    out.extend_from_slice(JOINED);
    for part in &parts {
        put_number(&mut out, part.len());
        out.extend_from_slice(part);
    }
    out
}

/// Bytes that [`join`] adds at most.
pub(crate) const JOIN_BYTES: usize = JOINED.len() + 8 * MAX_PARTS;

/// Heads that keep something of a sequence at most.
const MAX_PARTS: usize = 2;

const JOINED: &[u8; 8] = b"NEXTNS 1";

/// What [`join`] was made of; other bytes are one part.
fn parts(bytes: &[u8]) -> Result<Vec<&[u8]>, SavedDraftError> {
    let Some(mut rest) = bytes.strip_prefix(JOINED) else { return Ok(vec![bytes]) };
    let mut parts = Vec::new();
    while !rest.is_empty() && parts.len() < MAX_PARTS {
        let mut reader = ByteReader::new(rest);
        let n_bytes = reader.number().map_err(|error| SavedDraftError::Refused(error.to_string()))?;
        let cut_off = || SavedDraftError::Refused("it is cut off".into());
        let (part, behind) = reader.rest().split_at_checked(n_bytes).ok_or_else(cut_off)?;
        parts.push(part);
        rest = behind;
    }
    if rest.is_empty() { Ok(parts) } else { Err(SavedDraftError::Refused("it has more parts than heads".into())) }
}

fn fingerprint(model: &Model, head: WhichHead) -> Result<[u8; 32], RunError> {
    model.fingerprint_of_head(head).map_err(|error| RunError::Pass(error.to_string()))
}

/// How these bytes begin; proposers of other kinds begin otherwise, and so do those of another number of layers.
fn kind(n_layers: usize) -> [u8; 8] {
    let mut kind = *KIND;
    kind[7] = b'0'.saturating_add(u8::try_from(n_layers).unwrap_or(u8::MAX));
    kind
}

const KIND: &[u8; 8] = b"NEXTN  1";
