//! `/copy`: text to the terminal's clipboard by OSC 52. Owns the base64 that it needs; writes only to a terminal.

/// The sequence that puts `text` on the clipboard of the terminal, also through SSH.
///
/// # Errors
/// Text longer than terminals take ([`MAX_BYTES`]).
pub fn osc52(text: &str) -> Result<String, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes are too many for the terminal's clipboard: at most {MAX_BYTES}", text.len()));
    }
    Ok(format!("\x1b]52;c;{}\x07", base64(text.as_bytes())))
}

/// Terminals cut or ignore longer sequences: xterm stops near 100,000 characters of base64.
pub const MAX_BYTES: usize = 74_000;

fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let n = chunk.iter().fold(0u32, |n, &b| n << 8 | u32::from(b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let sextet = (n >> (18 - 6 * i)) & 63;
            out.push(if i <= chunk.len() { ALPHABET[sextet as usize] as char } else { '=' });
        }
    }
    out
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_the_rfc() {
        for (text, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.as_bytes()), coded, "{text}");
        }
        assert_eq!(base64(&[0xff, 0xef, 0xbe]), "/+++");
    }

    #[test]
    fn long_text_is_refused() {
        assert!(osc52(&"x".repeat(MAX_BYTES)).is_ok());
        assert!(osc52(&"x".repeat(MAX_BYTES + 1)).unwrap_err().contains("74001"));
    }
}
