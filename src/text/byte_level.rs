//! The byte-level alphabet: 256 printable characters that stand for the 256 bytes in token texts.
//! Owns that mapping only; which token is written in it is for the vocabulary to know.
//!
//! Bytes that are printable in Latin-1 stand for themselves; the other 68 are numbered from U+0100 in byte order
//! (so a space is U+0120). Source: the GPT-2 vocabulary, which every later byte-level BPE copies.

/// Whether all characters of `text` are of the alphabet.
pub(crate) fn is_spelled(text: &str) -> bool {
    text.chars().all(|c| byte_of(c).is_some())
}

/// Appends to `out` the bytes that `text` spells. A character outside of the alphabet spells its own UTF-8.
pub(crate) fn spell_into(text: &str, out: &mut Vec<u8>) {
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// The text that spells these bytes, as byte-level vocabularies write a token.
///
/// ```
/// assert_eq!(text::spelled(b" caf\xc3\xa9"), "\u{120}caf\u{c3}\u{a9}");
/// ```
#[must_use]
pub fn spelled(bytes: &[u8]) -> String {
    let code = |byte: u8| match UNPRINTABLE.binary_search(&byte) {
        Ok(no) => 0x100 + no as u32,
        Err(_) => u32::from(byte),
    };
    bytes.iter().filter_map(|&byte| char::from_u32(code(byte))).collect()
}

/// The byte that `c` stands for.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xFF => is_printable(code as u8).then_some(code as u8),
        code @ 0x100..0x144 => Some(UNPRINTABLE[code as usize - 0x100]),
        _ => None,
    }
}

const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The bytes that U+0100, U+0101, ... stand for.
const UNPRINTABLE: [u8; 68] = {
    let mut table = [0; 68];
    let mut n = 0;
    let mut byte = 0;
    while byte < 256 {
        if !is_printable(byte as u8) {
            table[n] = byte as u8;
            n += 1;
        }
        byte += 1;
    }
    assert!(n == 68);
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_exactly_one_character() {
        let mut seen = [0; 256];
        for c in (0..0x1000).filter_map(char::from_u32) {
            if let Some(byte) = byte_of(c) {
                seen[byte as usize] += 1;
            }
        }
        assert_eq!(seen, [1; 256]);
    }

    #[test]
    fn what_spells_bytes_gives_them_back() {
        let all: Vec<u8> = (0..=255).collect();
        let (text, mut bytes) = (spelled(&all), Vec::new());
        spell_into(&text, &mut bytes);
        assert_eq!(bytes, all);
        assert!(is_spelled(&text));
    }

    #[test]
    fn the_well_known_ones_stand_where_they_always_stand() {
        let mut bytes = Vec::new();
        spell_into("\u{120}a\u{10a}\u{e9}\u{2581}", &mut bytes);
        assert_eq!(bytes, b" a\n\xe9\xe2\x96\x81");
    }
}
