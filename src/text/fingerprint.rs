//! A short name for a vocabulary, by which a file can say for which models it was made.
//! Owns what counts: the tokens in the order of their ids, and nothing else.

use gguf::Metadata;
use sha2::{Digest, Sha256};

use crate::error::Error;

/// `sha256:` and 64 hexadecimal digits over the array `tokenizer.ggml.tokens` as it lies in the file: for each token its
/// length in bytes as u64, little endian, and its bytes. Files of different makers that number the same tokens in the
/// same way have the same fingerprint, whatever else they say. `None` without the array.
///
/// # Errors
/// The key is something else than an array.
pub fn fingerprint(meta: &Metadata<'_>) -> Result<Option<String>, Error> {
    let Some(tokens) = meta.array(TOKENS)? else { return Ok(None) };
    let digest = Sha256::digest(tokens.bytes());
    Ok(Some(format!("sha256:{}", hex(&digest))))
}

/// Two hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const TOKENS: &str = "tokenizer.ggml.tokens";

#[cfg(test)]
mod tests {
    use gguf::{ArrayBuf, Header, Writer};

    use super::*;

    fn of(tokens: Option<&[&str]>, model: &str) -> Option<String> {
        let mut w = Writer::in_memory();
        w.add("tokenizer.ggml.model", model).unwrap();
        if let Some(tokens) = tokens {
            w.add(TOKENS, &tokens.iter().copied().collect::<ArrayBuf>()).unwrap();
        }
        let bytes = w.begin().unwrap().finish().unwrap();
        fingerprint(Header::parse(&bytes).unwrap().metadata()).unwrap()
    }

    #[test]
    fn it_follows_tokens_and_their_order_only() {
        let ab = of(Some(&["a", "b"]), "gpt2");
        // echo -ne '\1\0\0\0\0\0\0\0a\1\0\0\0\0\0\0\0b' | sha256sum
        assert_eq!(ab.as_deref(), Some("sha256:cf6ab613e3942391f88ed698557e1680f160bd10e88c6b668c50360c10930e2b"));
        assert_eq!(ab, of(Some(&["a", "b"]), "other"));
        assert_ne!(ab, of(Some(&["b", "a"]), "gpt2"));
        assert_ne!(ab, of(Some(&["ab", ""]), "gpt2"), "where a token ends counts");
        assert_eq!(of(None, "gpt2"), None);
    }
}
