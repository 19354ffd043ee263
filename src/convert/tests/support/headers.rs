//! Everything that a parsed safetensors header promises, asked once. Used by the mutation test and by the fuzzer.

use std::collections::HashSet;

use super::Header;

/// Parses the header of a whole file and holds it to what its types say.
///
/// # Errors
/// The header is refused. Everything after that must go well or panics.
pub fn walk(file: &[u8]) -> Result<(), String> {
    let n_bytes = file.len() as u64;
    let said = |message: String| {
        assert!(message.len() < 2000, "{} bytes of message: {message:.300}", message.len());
        assert!(!message.chars().any(char::is_control), "control characters: {message:?}");
        message
    };
    let n_json = Header::length(&file[..file.len().min(8)], n_bytes).map_err(said)?;
    let data_start = 8 + n_json;
    let header = Header::parse(&file[8..data_start as usize], n_bytes).map_err(said)?;
    let mut names = HashSet::new();
    for t in &header.tensors {
        assert!(names.insert(&t.name), "{:?} twice", t.name);
        assert_eq!(u128::from(t.n_elements()) * u128::from(t.dtype.bits()), 8 * u128::from(t.n_bytes), "{t:?}");
    }
    // Side by side from the header to the end, without gap or overlap: every byte that is read lies in the file, once.
    let mut places: Vec<(u64, u64)> = header.tensors.iter().map(|t| (t.start, t.n_bytes)).collect();
    places.sort_unstable();
    let end = places.iter().fold(data_start, |end, (start, n)| {
        assert_eq!(*start, end, "{places:?}");
        end + n
    });
    assert_eq!(end, n_bytes);
    Ok(())
}
