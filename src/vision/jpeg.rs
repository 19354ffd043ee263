//! Whether a JPEG file reaches its end: its decoder accepts one that is cut off.

/// Whether the marker of the end stands behind the first scan. Within a scan the byte before a marker, `ff`, is always
/// followed by 00 or a restart marker, so that the end marker cannot stand there by chance; before the first scan it can,
/// in a thumbnail.
pub(crate) fn is_whole(encoded: &[u8]) -> bool {
    const SCAN: u8 = 0xda;
    const END: u8 = 0xd9;
    let mut at = 2;
    // Segments: a marker, then two bytes of length that count themselves.
    while let Some(&[0xff, marker, high, low]) = encoded.get(at..at + 4).and_then(|b| b.first_chunk::<4>()) {
        if marker == 0xff {
            at += 1; // a fill byte
        } else if marker == SCAN {
            return encoded[at + 4..].windows(2).any(|pair| pair == [0xff, END]);
        } else {
            at += 2 + usize::from(u16::from_be_bytes([high, low]));
        }
    }
    // No scan is found this way: the decoder knows better what is wrong.
    true
}
