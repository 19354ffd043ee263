//! Whether two models speak in the same tokens, so that ids of one mean the same to the other.

use text::{TokenId, TokenKind, Vocab};

/// Vocabularies may differ in length by so many: the output matrices of one family are padded to different sizes.
const MAX_PADDING: usize = 128;

/// Ids below this may have other names: beginning, end and unknown, which families name otherwise in each size.
const FIRST_COMPARED: usize = 5;

/// Says what differs between the vocabulary of a draft model and the target's; `None` where drafts of the one are drafts for
/// the other.
pub(crate) fn difference(draft: &Vocab, target: &Vocab) -> Option<String> {
    let (n_draft, n_target) = (draft.len(), target.len());
    if n_draft.abs_diff(n_target) > MAX_PADDING {
        return Some(format!("it has {n_draft} tokens, the model has {n_target}"));
    }
    let is_used = |vocab: &Vocab, id| vocab.kind(id).is_some_and(|kind| kind != TokenKind::Unused);
    let ids = (FIRST_COMPARED..n_draft.min(n_target)).map(|id| TokenId(id as u32));
    let mut used = ids.filter(|&id| is_used(draft, id) && is_used(target, id));
    let id = used.find(|&id| draft.bytes(id) != target.bytes(id))?;
    let text = |vocab: &Vocab| String::from_utf8_lossy(vocab.bytes(id).unwrap_or_default()).escape_debug().to_string();
    Some(format!("its token {} is `{}`, the model's is `{}`", id.0, text(draft), text(target)))
}
