//! `/copy`: text to the terminal's clipboard by OSC 52. Writes only to a terminal.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// The sequence that puts `text` on the clipboard of the terminal, also through SSH.
///
/// # Errors
/// Text longer than terminals take ([`MAX_BYTES`]).
pub fn osc52(text: &str) -> Result<String, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes are too many for the terminal's clipboard: at most {MAX_BYTES}", text.len()));
    }
    Ok(format!("\x1b]52;c;{}\x07", BASE64_STANDARD.encode(text)))
}

/// Terminals cut or ignore longer sequences: xterm stops near 100,000 characters of base64.
pub const MAX_BYTES: usize = 74_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_goes_out_in_base64_and_a_long_one_not_at_all() {
        assert_eq!(osc52("fo"), Ok("\x1b]52;c;Zm8=\x07".to_owned()));
        assert!(osc52(&"x".repeat(MAX_BYTES)).is_ok());
        assert!(osc52(&"x".repeat(MAX_BYTES + 1)).unwrap_err().contains("74001"));
    }
}
