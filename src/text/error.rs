//! What can be wrong with a tokenizer in a model file.
//! Owns the wording; never the path of the file, which only the caller knows.

/// Everything that loading a vocabulary reports. Texts out of the file are escaped and cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The metadata could not be read as the type that the key must have.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// A key without which there is no tokenizer.
    #[error("metadata key {key:?} is absent; the file carries no usable tokenizer, convert the model again")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// `tokenizer.ggml.model` names another kind of tokenizer.
    #[error(
        "tokenizer.ggml.model is {found:?}{what}; known are \"gpt2\" (byte-level BPE), \"llama\" (SentencePiece BPE) and \
         \"gemma4\""
    )]
    UnknownModel {
        /// The name in the file.
        found: String,
        /// What that is, in parentheses, if it is known.
        what: &'static str,
    },
    /// `tokenizer.ggml.pre` names a split rule that we do not have. Guessing one would give wrong ids silently.
    #[error("tokenizer.ggml.pre is {found:?}, known are {known}; the file needs a newer version of this program")]
    UnknownPre {
        /// The name in the file.
        found: String,
        /// The names that are known, with commas.
        known: String,
    },
    /// More tokens or merges than 31 bits can number.
    #[error("{key} has {found} entries, at most {max} can be numbered")]
    TooMany {
        /// The key of the list.
        key: &'static str,
        /// Entries in the file.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The texts of all tokens do not fit into our table.
    #[error("the texts of all tokens take {found} bytes, at most {max} are supported")]
    TooLong {
        /// Their size.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// `tokenizer.ggml.token_type` and `tokenizer.ggml.tokens` are of different length.
    #[error("tokenizer.ggml.token_type has {types} entries, tokenizer.ggml.tokens has {tokens}; they must agree")]
    TypesLength {
        /// Entries of the type list.
        types: usize,
        /// Entries of the token list.
        tokens: usize,
    },
    /// `tokenizer.ggml.scores` and `tokenizer.ggml.tokens` are of different length.
    #[error("tokenizer.ggml.scores has {scores} entries, tokenizer.ggml.tokens has {tokens}; they must agree")]
    ScoresLength {
        /// Entries of the list of scores.
        scores: usize,
        /// Entries of the token list.
        tokens: usize,
    },
    /// A token type that is no [`crate::TokenKind`].
    #[error("tokenizer.ggml.token_type: token {id} has type {found}, 1 to 6 are known")]
    TokenType {
        /// The token.
        id: usize,
        /// The number in the file.
        found: i32,
    },
    /// A token of type 6 must be spelled as a byte.
    #[error("token {id} is of type byte and reads {text}, \"<0x00>\" to \"<0xFF>\" expected")]
    ByteToken {
        /// The token.
        id: usize,
        /// Its text.
        text: String,
    },
    /// No token stands for a byte, so some text could not be encoded.
    #[error("no token stands for byte 0x{byte:02X}, and none for what is unknown; some text could not be encoded")]
    MissingByte {
        /// The first byte without a token.
        byte: u8,
    },
    /// A merge is not two parts with a space between them.
    #[error("tokenizer.ggml.merges: entry {index} is {text}, two parts with a space between them expected")]
    Merge {
        /// Position in the list, which is its rank.
        index: usize,
        /// The entry.
        text: String,
    },
    /// A special token id lies outside of the vocabulary.
    #[error("{key} is {id}, the vocabulary has {n_tokens} tokens")]
    IdRange {
        /// The metadata key.
        key: &'static str,
        /// The id in the file.
        id: u32,
        /// Tokens in the vocabulary.
        n_tokens: usize,
    },
    /// A prompt should start with a token that the file does not name.
    #[error("tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is absent")]
    NoBos,
    /// The search automaton over the special tokens could not be built.
    #[error("the special tokens do not fit into one search automaton ({0}); the token types are likely damaged")]
    SpecialTokens(#[from] aho_corasick::BuildError),
}

/// `text` for a message: escaped, in quotes, and cut after 60 characters.
pub(crate) fn quoted(text: &str) -> String {
    let head: String = text.chars().take(60).collect();
    let dots = if head.len() < text.len() { "..." } else { "" };
    format!("{head:?}{dots}")
}
