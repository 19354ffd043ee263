//! Token stream to text: UTF-8 that arrives in pieces.
//! Owns the bytes of one unfinished character; knows nothing of tokens, stop strings or replies.

/// Turns the bytes of successive tokens into text, never cutting a character.
///
/// All strings given out, one after the other, equal `String::from_utf8_lossy` of all bytes put in: ill-formed bytes
/// become U+FFFD, and the beginning of a character waits for its rest.
#[derive(Debug, Default, Clone)]
pub struct Decoder {
    /// The well-formed beginning of one character: at most 3 bytes between calls.
    pending: Vec<u8>,
}

impl Decoder {
    /// A decoder at the start of a text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The text that `bytes` complete. Empty while a character is unfinished.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.pending.len());
        let mut rest = self.pending.as_slice();
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(all) => {
                    text.push_str(all);
                    rest = &[];
                    break;
                }
                Err(error) => error,
            };
            let (good, bad) = rest.split_at(error.valid_up_to());
            text.push_str(std::str::from_utf8(good).expect("`valid_up_to` says that this much is UTF-8"));
            rest = bad;
            match error.error_len() {
                Some(n) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[n..];
                }
                // Cut short, not ill-formed: the next token may bring the rest.
                None => break,
            }
        }
        let kept = rest.len();
        self.pending.drain(..self.pending.len() - kept);
        text
    }

    /// Ends the text: U+FFFD if a character is still unfinished, else nothing. The decoder can be used again.
    #[must_use]
    pub fn finish(&mut self) -> String {
        let unfinished = !self.pending.is_empty();
        self.pending.clear();
        if unfinished { char::REPLACEMENT_CHARACTER.to_string() } else { String::new() }
    }

    /// True while bytes are held back.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}
