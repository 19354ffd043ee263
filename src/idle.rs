//! Options that change nothing beside the others that were given: how all programs tell of them.
//! Which options these are, those say that own them.

/// Warns of each, in the words of its owner.
pub(crate) fn warn(words: impl IntoIterator<Item = String>) {
    for words in words {
        tracing::warn!("{words}");
    }
}
