//! A slot's state as it is kept outside of the slot, and its byte form: what a slot file holds.
//! Owns the format and the checks of what comes in. Knows nothing of files, and nothing of the engine's thread: a file is
//! checked, value by value, where it was read.

use std::sync::Arc;

use memory::{ByteReader, Checkpoint, SavedSequence, StateShape, put_number};
use model::{AdapterSet, Fingerprint, Model};
use text::TokenId;

use crate::request::Limits;
use crate::slot_info::SlotError;

/// Checkpoints of one slot at most.
pub(crate) const MAX_CHECKPOINTS: usize = 32;

/// Hidden states that are kept at one position at most: one for each MTP layer.
const MAX_HIDDEN: usize = 16;

/// A checkpoint with the hidden states of the last tokens before it, which the MTP layers go on from.
#[derive(Debug, PartialEq)]
pub(crate) struct SlotCheckpoint {
    pub(crate) state: Checkpoint,
    /// Empty where it is not known.
    pub(crate) hidden: Vec<f32>,
}

impl SlotCheckpoint {
    pub(crate) fn n_bytes(&self) -> usize {
        self.state.n_bytes() + 4 * self.hidden.len()
    }
}

/// The whole state of a slot with the tokens behind it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SlotState {
    pub(crate) tokens: Vec<TokenId>,
    /// What they were computed with.
    pub(crate) adapters: AdapterSet,
    /// Ascending.
    pub(crate) checkpoints: Vec<Arc<SlotCheckpoint>>,
    /// The hidden states of the last tokens; empty where that of the last one is not known.
    pub(crate) hidden: Vec<f32>,
    pub(crate) state: SavedSequence,
    /// What the proposer keeps of the sequence.
    pub(crate) drafts: Vec<u8>,
}

impl SlotState {
    /// Bytes that it takes on the host.
    pub(crate) fn n_bytes(&self) -> usize {
        self.own_bytes() + self.parts().map(|(_, n_bytes)| n_bytes).sum::<usize>()
    }

    /// Bytes that it has in common with no other.
    pub(crate) fn own_bytes(&self) -> usize {
        self.state.own_bytes() + self.drafts.len() + 4 * (self.tokens.len() + self.hidden.len())
    }

    /// What others may have as well, cells and checkpoints: what tells each from others as long as one of them lives, and its
    /// bytes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        let checkpoints = self.checkpoints.iter().map(|kept| (Arc::as_ptr(kept).addr(), kept.n_bytes()));
        self.state.parts().chain(checkpoints)
    }

    /// Has checkpoints that are the same in `other` in common with it.
    pub(crate) fn share_checkpoints(&mut self, other: &SlotState) {
        for kept in &mut self.checkpoints {
            let same = other.checkpoints.iter().find(|theirs| theirs.state.position() == kept.state.position());
            if let Some(same) = same.filter(|theirs| *theirs == kept) {
                *kept = Arc::clone(same);
            }
        }
    }
}

/// The state of a slot, checked against its engine.
#[derive(Clone, Debug)]
pub struct SavedSlot {
    pub(crate) state: SlotState,
    pub(crate) format: Arc<SlotFormat>,
}

/// What a saved slot of one engine must be like.
#[derive(Debug)]
pub(crate) struct SlotFormat {
    pub(crate) model: Arc<Model>,
    pub(crate) limits: Limits,
    pub(crate) shape: StateShape,
    /// Bytes of checkpoints at most.
    pub(crate) checkpoint_bytes: usize,
    /// Bytes of the proposer's part at most.
    pub(crate) draft_bytes: usize,
}

impl SavedSlot {
    /// Tokens behind the state.
    pub fn n_tokens(&self) -> usize {
        self.state.tokens.len()
    }

    /// One run of bytes, to be read by [`crate::EngineHandle::read_slot`].
    ///
    /// # Errors
    /// [`SlotError::Format`]: the model's file has changed since it was opened.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SlotError> {
        self.format.write(&self.state)
    }
}

fn put_floats(out: &mut Vec<u8>, values: &[f32]) {
    put_number(out, values.len());
    values.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes()));
}

impl SlotFormat {
    /// What [`SavedSlot::to_bytes`] gives of this state.
    pub(crate) fn write(&self, slot: &SlotState) -> Result<Vec<u8>, SlotError> {
        let SlotState { tokens, adapters, checkpoints, hidden, state, drafts } = slot;
        let n_numbers = CHECKPOINT_BYTES * checkpoints.len() + self.shape.saved_bytes(0);
        let head = HEAD_BYTES + self.adapter_bytes();
        let mut out = Vec::with_capacity(head + slot.n_bytes() + n_numbers);
        out.extend_from_slice(if adapters.is_empty() { MAGIC } else { MAGIC_WITH_ADAPTERS });
        out.extend_from_slice(&self.fingerprint()?);
        self.put_adapters(&mut out, adapters)?;
        put_number(&mut out, tokens.len());
        tokens.iter().for_each(|id| out.extend_from_slice(&id.0.to_le_bytes()));
        put_floats(&mut out, hidden);
        put_number(&mut out, checkpoints.len());
        for kept in checkpoints {
            put_floats(&mut out, &kept.hidden);
            kept.state.write_to(&mut out);
        }
        put_number(&mut out, drafts.len());
        out.extend_from_slice(drafts);
        state.write_to(&mut out);
        Ok(out)
    }

    /// Bytes that a saved slot takes at most.
    pub(crate) fn max_bytes(&self) -> usize {
        let n_hidden = MAX_HIDDEN * self.model.n_embd_mtp();
        let checkpoints = MAX_CHECKPOINTS * (CHECKPOINT_BYTES + 4 * n_hidden) + self.checkpoint_bytes;
        let n_ctx = self.limits.n_ctx;
        let head = HEAD_BYTES + self.adapter_bytes();
        head + 4 * (n_ctx + n_hidden) + checkpoints + self.draft_bytes + self.shape.saved_bytes(n_ctx)
    }

    /// Bytes that name adapters at most.
    fn adapter_bytes(&self) -> usize {
        8 + ADAPTER_BYTES * self.limits.n_adapters
    }

    /// Writes adapters as fingerprints with their factors, and nothing where there are none.
    pub(crate) fn put_adapters(&self, out: &mut Vec<u8>, adapters: &AdapterSet) -> Result<(), SlotError> {
        if adapters.is_empty() {
            return Ok(());
        }
        put_number(out, adapters.scales().count());
        for (id, scale) in adapters.scales() {
            let adapter = self.model.adapters().get(id);
            let fingerprint = adapter.map(model::Adapter::fingerprint).transpose();
            let fingerprint = fingerprint.map_err(|error| SlotError::Format(error.to_string()))?;
            out.extend_from_slice(&fingerprint.unwrap_or_default());
            out.extend_from_slice(&scale.to_le_bytes());
        }
        Ok(())
    }

    /// Reads what [`SlotFormat::put_adapters`] wrote: adapters are found by what is in their files, whatever their numbers are.
    pub(crate) fn read_adapters(&self, bytes: &mut ByteReader<'_>) -> Result<AdapterSet, SlotError> {
        let refused = |what: String| SlotError::Format(what);
        let (n, n_adapters) = (bytes.number()?, self.limits.n_adapters);
        if n == 0 || n > n_adapters {
            return Err(refused(format!("it was made with {n} adapters, {n_adapters} are loaded here")));
        }
        let loaded = self.model.adapters().iter().map(model::Adapter::fingerprint).collect::<Result<Vec<_>, _>>();
        let loaded = loaded.map_err(|error| refused(error.to_string()))?;
        let mut scales = Vec::with_capacity(n);
        for _ in 0..n {
            let fingerprint = bytes.take(size_of::<Fingerprint>())?;
            let id = loaded.iter().position(|of| of == fingerprint);
            let id = id.ok_or_else(|| refused("it was made with an adapter that is not loaded here".into()))?;
            scales.push((id, f32::from_bits(bytes.words(1)?.first().map_or(0, |&word| u32::from_le_bytes(word)))));
        }
        AdapterSet::new(scales, n_adapters).map_err(|error| refused(error.to_string()))
    }

    pub(crate) fn fingerprint(&self) -> Result<Fingerprint, SlotError> {
        let fingerprint = self.model.fingerprint_in(self.limits.n_ctx);
        fingerprint.map_err(|error| SlotError::Format(error.to_string()))
    }

    /// Reads what [`SavedSlot::to_bytes`] wrote, and checks all of it: nothing that fits otherwise than by its length comes
    /// near the engine.
    pub(crate) fn read(self: &Arc<Self>, bytes: &[u8]) -> Result<SavedSlot, SlotError> {
        let refuse = |what: &str| Err(SlotError::Format(what.into()));
        let Some((magic, rest)) = bytes.split_first_chunk::<8>() else { return refuse("it is cut off") };
        if magic != MAGIC && magic != MAGIC_WITH_ADAPTERS {
            return refuse(match magic.strip_prefix(ANY_VERSION) {
                Some(_) => "it was saved by another version of this program: save the slot anew with this one",
                None => "it does not begin as one",
            });
        }
        let mut bytes = ByteReader::new(rest);
        let (made_with, own) = (bytes.take(size_of::<Fingerprint>())?, self.fingerprint()?);
        if made_with != own {
            let other_context = |n_ctx| self.model.fingerprint_in(n_ctx).is_ok_and(|of| of != own && of == made_with);
            return refuse(match other_context(0) || other_context(usize::MAX) {
                true => {
                    "it was made in a context in which this model rotates positions otherwise (its short and long \
                         factors): take a context size like that one, or save the slot anew"
                }
                false => "it was made with another model file: load that one, or save the slot anew",
            });
        }
        let adapters = if magic == MAGIC { AdapterSet::default() } else { self.read_adapters(&mut bytes)? };
        let n_tokens = bytes.number()?;
        let tokens = bytes.words(n_tokens)?.iter().map(|&word| TokenId(u32::from_le_bytes(word))).collect();
        let hidden = read_floats(&mut bytes, "the last token's hidden state")?;
        let checkpoints = read_checkpoints(&mut bytes)?;
        let n_drafts = bytes.number()?;
        let drafts = bytes.take(n_drafts)?.to_vec();
        let state = SavedSequence::from_bytes(bytes.rest())?;
        let state = SlotState { tokens, adapters, checkpoints, hidden, state, drafts };
        self.check(&state)?;
        self.shape.check_values(&state.state)?;
        state.checkpoints.iter().try_for_each(|kept| self.shape.check_checkpoint_values(&kept.state))?;
        Ok(SavedSlot { state, format: Arc::clone(self) })
    }

    /// A saved slot of this engine: as it is if it was made here, else checked as if it came from a file.
    pub(crate) fn own(self: &Arc<Self>, saved: SavedSlot) -> Result<SavedSlot, SlotError> {
        if Arc::ptr_eq(self, &saved.format) { Ok(saved) } else { self.read(&saved.to_bytes()?) }
    }

    /// Checks token ids, positions and the lengths of all parts; of drafts only the proposer knows what they are.
    fn check(&self, saved: &SlotState) -> Result<(), SlotError> {
        let refuse = |what: String| Err(SlotError::Format(what));
        let SlotState { tokens, checkpoints, hidden, state, .. } = saved;
        let (n_tokens, Limits { n_ctx, n_vocab, .. }) = (tokens.len(), self.limits);
        if n_tokens > n_ctx {
            return refuse(format!("it has {n_tokens} tokens, the context {n_ctx}: raise the context size"));
        }
        // Only requests with the same pictures take up what was computed with pictures.
        let is_known =
            |id: TokenId| (id.0 as usize) < n_vocab || id.is_of_picture() && self.model.picture_kind().is_some();
        if let Some((i, id)) = tokens.iter().enumerate().find(|(_, id)| !is_known(**id)) {
            return refuse(format!("its token {i} has the id {}, outside the vocabulary of {n_vocab}", id.0));
        }
        if state.len() != n_tokens {
            return refuse(format!("it has {n_tokens} tokens and a state of {} positions", state.len()));
        }
        self.check_hidden(hidden)?;
        let mut before = 0;
        for kept in checkpoints {
            let position = kept.state.position();
            if position <= before {
                return refuse(format!("a checkpoint at position {position} follows one at {before}"));
            }
            before = position;
            self.check_hidden(&kept.hidden)?;
            self.shape.check_checkpoint(&kept.state, n_tokens)?;
        }
        Ok(self.shape.check(state)?)
    }

    fn check_hidden(&self, hidden: &[f32]) -> Result<(), SlotError> {
        let n_embd = self.model.n_embd_mtp();
        match hidden.len() {
            n if n.is_multiple_of(n_embd) && n / n_embd <= MAX_HIDDEN => Ok(()),
            n => {
                let what = format!("hidden states have {n} values, {n_embd} each and at most {MAX_HIDDEN} expected");
                Err(SlotError::Format(what))
            }
        }
    }
}

fn read_checkpoints(bytes: &mut ByteReader<'_>) -> Result<Vec<Arc<SlotCheckpoint>>, SlotError> {
    let n = bytes.number()?;
    if n > MAX_CHECKPOINTS {
        return Err(SlotError::Format(format!("it has {n} checkpoints, at most {MAX_CHECKPOINTS} expected")));
    }
    let one = |_| {
        let hidden = read_floats(bytes, "a checkpoint's hidden state")?;
        Ok(Arc::new(SlotCheckpoint { state: Checkpoint::read_from(bytes)?, hidden }))
    };
    (0..n).map(one).collect()
}

fn read_floats(bytes: &mut ByteReader<'_>, what: &str) -> Result<Vec<f32>, SlotError> {
    let n = bytes.number()?;
    Ok(bytes.floats(n, what)?)
}

/// How slot files of all versions begin, and those of this one.
const ANY_VERSION: &[u8] = b"NXTSLOT";
const MAGIC: &[u8; 8] = b"NXTSLOT2";

/// How those begin whose state was made with adapters: they are named after the model.
const MAGIC_WITH_ADAPTERS: &[u8; 8] = b"NXTSLOT3";

/// An adapter's fingerprint and factor.
const ADAPTER_BYTES: usize = size_of::<Fingerprint>() + size_of::<f32>();

/// Magic, fingerprint and the lengths of tokens, hidden state, checkpoints and drafts.
const HEAD_BYTES: usize = 8 + size_of::<Fingerprint>() + 4 * 8;

/// Numbers of a checkpoint: the length of its hidden state, position and length.
const CHECKPOINT_BYTES: usize = 3 * 8;
