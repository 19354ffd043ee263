//! The models of a folder: `--models-dir`.
//! Knows names of files and reads none of them.

use std::io;
use std::path::{Path, PathBuf};

/// A model file, and its name for clients.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    pub(super) name: String,
    pub(super) file: PathBuf,
}

/// The models of a folder, by name: each GGUF file, and each folder in it that holds one. Of a model in shards it is the first, of
/// which the name leaves out the count.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn models(folder: &Path) -> io::Result<Vec<Found>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            let inside = files(&path)?;
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            match (inside.len(), name) {
                (1, Some(name)) => all.extend(inside.into_iter().map(|found| Found { name: name.clone(), ..found })),
                _ => all.extend(inside),
            }
        } else {
            all.extend(found(path));
        }
    }
    all.sort_by(|a, b| (&a.name, &a.file).cmp(&(&b.name, &b.file)));
    all.dedup_by(|a, b| a.name == b.name);
    Ok(all)
}

fn files(folder: &Path) -> io::Result<Vec<Found>> {
    let paths =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.is_file()).filter_map(found).collect())
}

/// A model, if this is one: no further shard, and no file for pictures.
fn found(file: PathBuf) -> Option<Found> {
    let name = file.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let is_count = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let shard = name.rsplit_once("-of-").filter(|(_, of)| is_count(of)).and_then(|(rest, _)| rest.rsplit_once('-'));
    let name = match shard {
        Some((name, "00001")) => name,
        Some((_, number)) if is_count(number) => return None,
        _ => name,
    };
    let name = (!name.is_empty() && !session::is_projector(&file)).then(|| name.to_owned())?;
    Some(Found { name, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_of_a_folder_is_found_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("one")).unwrap();
        std::fs::create_dir(at("two")).unwrap();
        std::fs::create_dir(at("none")).unwrap();
        for name in [
            "b.gguf",
            "a-00001-of-00002.gguf",
            "a-00002-of-00002.gguf",
            "mmproj-b.gguf",
            "b.mmproj-f16.gguf",
            "notes.txt",
            ".gguf",
            "one/x.gguf",
            "one/mmproj-x.gguf",
            "two/y.gguf",
            "two/z.gguf",
            "none/readme",
        ] {
            std::fs::write(at(name), "").unwrap();
        }
        let all: Vec<(String, PathBuf)> =
            models(folder.path()).unwrap().into_iter().map(|f| (f.name, f.file)).collect();
        let expected = [
            ("a", "a-00001-of-00002.gguf"),
            ("b", "b.gguf"),
            ("one", "one/x.gguf"),
            ("y", "two/y.gguf"),
            ("z", "two/z.gguf"),
        ];
        assert_eq!(all, expected.map(|(name, file)| (name.to_owned(), at(file))));
        assert!(models(&at("nothing")).is_err());
    }
}
