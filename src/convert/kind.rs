//! What kind of input a path is: a GGUF file, a checkpoint folder, safetensors without the rest of a checkpoint.
//! Owns the words for what is none of them; reads a few bytes and checks no format.

use std::path::Path;

use crate::error::Error;
use crate::io::Input;
use crate::safetensors::{EXTENSION, MAX_HEADER_BYTES};

/// A kind of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file that starts as one, or is called so.
    Gguf,
    /// A folder with a `config.json`, or with Mistral's own `params.json`.
    Checkpoint,
    /// A file that starts as one or is called so, or a folder of such files: some shards of a checkpoint, or a head alone.
    Safetensors,
}

impl Kind {
    /// Looks at the first bytes, at the name where they tell nothing, and at what a folder holds.
    ///
    /// ```
    /// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pocket-q4_k_m.gguf");
    /// assert_eq!(convert::Kind::of(file.as_ref())?, convert::Kind::Gguf);
    /// # Ok::<(), convert::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is nothing, it cannot be read, or it is something else; the message says what it looks like.
    pub fn of(path: &Path) -> Result<Kind, Error> {
        if std::fs::metadata(path).map_err(|e| Error::io(path, "open", e))?.is_dir() {
            return of_folder(path);
        }
        let input = Input::open(path)?;
        let mut first = vec![0; input.n_bytes().min(N_FIRST) as usize];
        input.read_at(&mut first, 0)?;
        let is_called = |extension: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension));
        if first.starts_with(b"GGUF") || is_called("gguf") {
            return Ok(Kind::Gguf);
        }
        let n_json = first.first_chunk().map(|n| u64::from_le_bytes(*n));
        let fits = n_json.is_some_and(|n| (2..=MAX_HEADER_BYTES.min(input.n_bytes().saturating_sub(8))).contains(&n));
        if fits && first.get(8) == Some(&b'{') || is_called(EXTENSION) {
            return Ok(Kind::Safetensors);
        }
        Err(Error::input(
            path,
            format!("{}: a GGUF file, a .safetensors file or a checkpoint folder expected", like(&first)),
        ))
    }

    /// As [`Kind::of`], for those who look at whole models: a file of a checkpoint is told apart from a head alone.
    ///
    /// # Errors
    /// Those of [`Kind::of`]; or a file of safetensors stands in a checkpoint's folder.
    pub fn of_whole(path: &Path) -> Result<Kind, Error> {
        let kind = Kind::of(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let is_whole = folder.join(CONFIG).exists() || folder.join(PARAMS).exists();
        if kind == Kind::Safetensors && !path.is_dir() && is_whole {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            let what = format!("is one file of the checkpoint in {}: give the folder", folder.display());
            return Err(Error::input(path, what));
        }
        Ok(kind)
    }
}

fn of_folder(path: &Path) -> Result<Kind, Error> {
    if path.join(CONFIG).exists() || path.join(PARAMS).exists() {
        return Ok(Kind::Checkpoint);
    }
    let (mut safetensors, mut gguf) = (false, false);
    for entry in path.read_dir().map_err(|e| Error::io(path, "list", e))? {
        let name = entry.map_err(|e| Error::io(path, "list", e))?.path();
        safetensors |= name.extension().is_some_and(|e| e == EXTENSION);
        gguf |= name.extension().is_some_and(|e| e == "gguf");
    }
    match (safetensors, gguf) {
        (true, _) => Ok(Kind::Safetensors),
        (false, true) => Err(Error::input(path, "is a folder with GGUF files: give one of them (of shards the first)")),
        (false, false) => {
            Err(Error::input(path, "is a folder without a checkpoint: config.json and .safetensors files expected"))
        }
    }
}

/// What people give by mistake, by its first bytes.
fn like(first: &[u8]) -> &'static str {
    match first {
        [] => "is empty",
        [b'P', b'K', 3, 4, ..] => "is a ZIP archive (a PyTorch file?)",
        [b'{' | b'[', ..] => "is JSON",
        [0x80, 2..=5, ..] => "is a pickle (a PyTorch file?)",
        [0x1f, 0x8b, ..] => "is packed by gzip",
        b"version https://git-lfs" => "is a Git LFS pointer, the file itself was not fetched",
        _ if first.iter().all(|b| *b == 0) => "starts with zeros",
        _ if first.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()) => "is text",
        _ => "is no model file",
    }
}

/// Enough for the words that a Git LFS pointer starts with.
const N_FIRST: u64 = 23;
/// What a checkpoint says of its model.
pub(crate) const CONFIG: &str = "config.json";
/// The same of Mistral's own.
pub(crate) const PARAMS: &str = "params.json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_told_by_their_bytes_and_mistakes_by_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let kind = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            Kind::of(&path).map_err(|e| e.to_string())
        };
        assert_eq!(kind("a", b"GGUF\x03\0\0\0"), Ok(Kind::Gguf));
        assert_eq!(kind("cut.gguf", b""), Ok(Kind::Gguf));
        assert_eq!(kind("b", b"\x02\0\0\0\0\0\0\0{}"), Ok(Kind::Safetensors));
        assert_eq!(kind("c.safetensors", b"{}"), Ok(Kind::Safetensors));
        for (bytes, words) in [
            (&b""[..], "is empty"),
            (b"{\"version\": \"1.0\", \"model\": {}}", "is JSON"),
            (b"PK\x03\x04and so on, for a while longer", "ZIP"),
            (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
            (&[0; 100], "zeros"),
            (b"a letter to a friend, of some length", "is text"),
            (&[0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5], "no model file"),
        ] {
            let e = kind("file", bytes).unwrap_err();
            assert!(e.contains(words) && e.contains("expected"), "{e:?} does not say {words:?}");
        }
        let e = Kind::of(dir.path()).map(drop);
        assert!(e.is_ok(), "a folder with safetensors");
        assert!(Kind::of(&dir.path().join("nothing")).is_err());
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        assert_eq!(Kind::of(dir.path()).unwrap(), Kind::Checkpoint);
        let e = Kind::of_whole(&dir.path().join("c.safetensors")).unwrap_err().to_string();
        assert!(e.contains("give the folder"), "{e}");
    }
}
