//! The smallest vocabulary: a token for each byte, in the alphabet of byte-level BPE.

/// The character that stands for a byte.
pub fn letter(byte: u8) -> char {
    let stands_for_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if stands_for_itself(byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|&other| !stands_for_itself(other)).count() as u32;
    char::from_u32(256 + n_before).expect("there are 68 of them")
}

/// All of them, by byte.
pub fn letters() -> Vec<String> {
    (0..=255).map(|byte| letter(byte).to_string()).collect()
}
