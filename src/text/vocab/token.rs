//! What a token is to those who use one: its id, its kind, and those that stand around a gap.

/// A row of the model's embedding table and of its head.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct TokenId(pub u32);

impl TokenId {
    /// The first id that stands for a position of a picture. Such ids are made of the picture's content, so that sequences
    /// are compared by their ids alone; no vocabulary has them.
    pub const FIRST_OF_PICTURES: u32 = 1 << 31;

    /// True for a position of a picture: it has no row in any table and no text.
    pub fn is_of_picture(self) -> bool {
        self.0 >= Self::FIRST_OF_PICTURES
    }
}

/// What a token is, by `tokenizer.ggml.token_type`.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum TokenKind {
    /// A piece of text (1).
    Normal,
    /// Stands for what has no token (2); byte-level vocabularies need none.
    Unknown,
    /// Carries a meaning, not text: `<|im_end|>` (3).
    Control,
    /// Text that is always one token: `<think>` (4).
    UserDefined,
    /// A row that only rounds up the size of the matrices (5).
    Unused,
    /// One byte, spelled `<0x0A>` (6).
    Byte,
}

/// The tokens around the parts of a fill-in-the-middle prompt.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct Fim {
    /// Before the text that precedes the gap.
    pub prefix: TokenId,
    /// Where the model starts to write.
    pub middle: TokenId,
    /// Before the text that follows the gap.
    pub suffix: TokenId,
}
