//! The safetensors files of one model: a single file, or a folder with or without an index.
//! Owns which files belong together. An index can only name files beside it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};

use super::file::File;
use super::header::{MAX_HEADER_BYTES, Tensor, quoted};
use crate::error::Error;
use crate::io::Input;
use crate::json::read_json;

/// Open files and where each tensor lies.
#[derive(Debug)]
pub struct Shards {
    files: Vec<File>,
    by_name: HashMap<String, Place>,
}

/// A tensor of [`Shards`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Which file.
    pub file: usize,
    /// Which of its tensors.
    pub tensor: usize,
}

impl Shards {
    /// Opens a file, or those files of a folder that have tensors for which `wanted` is true of the name (all files,
    /// when there is no index to tell). Shards that hold nothing wanted may be missing.
    ///
    /// # Errors
    /// A file is missing or refused, a tensor is in two files, the index names anything but plain file names, or a
    /// wanted tensor is not in the file that the index says.
    pub fn open(path: &Path, wanted: impl Fn(&str) -> bool) -> Result<Shards, Error> {
        if !std::fs::metadata(path).map_err(|e| Error::io(path, "open", e))?.is_dir() {
            return Shards::of(vec![path.to_owned()]);
        }
        let index = path.join(if are_consolidated(path)? { CONSOLIDATED_INDEX } else { INDEX });
        if !index.exists() {
            return Shards::of(loose(path)?);
        }
        let map = read_index(&index)?;
        let names: BTreeSet<&str> = map.iter().filter(|(t, _)| wanted(t)).map(|(_, file)| file.as_str()).collect();
        let mut files: Vec<PathBuf> = names.iter().map(|name| path.join(name)).collect();
        let missing: Vec<String> = files.iter().filter(|f| !f.exists()).map(|f| short(f)).collect();
        if !missing.is_empty() {
            let what = format!(
                "names {} that are not in the folder: {}; get them",
                n_of(missing.len(), "file"),
                some(&missing)
            );
            return Err(Error::input(&index, what));
        }
        // Heads are often added to a checkpoint as a file of their own, without a word in the index.
        if !map.iter().any(|(tensor, _)| is_head(tensor)) {
            let listed: BTreeSet<&str> = map.iter().map(|(_, file)| file.as_str()).collect();
            let extra = in_folder(path)?.into_iter().filter(|f| !listed.contains(short(f).as_str()));
            files.extend(extra.filter(|f| short(f).to_lowercase().contains("mtp")));
        }
        let shards = Shards::of(files)?;
        for (tensor, file) in map.iter().filter(|(t, _)| wanted(t)) {
            match shards.find(tensor) {
                Some((place, _)) if short(&shards.files[place.file].path()) == *file => {}
                Some((place, _)) => {
                    let found = short(&shards.files[place.file].path());
                    return Err(Error::input(
                        &index,
                        format!("tensor {} is said to be in {file}, found in {found}", quoted(tensor)),
                    ));
                }
                None => {
                    return Err(Error::input(
                        &index,
                        format!("tensor {} is said to be in {file}, which has no such", quoted(tensor)),
                    ));
                }
            }
        }
        Ok(shards)
    }

    fn of(paths: Vec<PathBuf>) -> Result<Shards, Error> {
        let files = paths.iter().map(|path| File::open(path)).collect::<Result<Vec<_>, _>>()?;
        let mut by_name = HashMap::new();
        for (file, f) in files.iter().enumerate() {
            for (tensor, t) in f.tensors().iter().enumerate() {
                if let Some(other) = by_name.insert(t.name.clone(), Place { file, tensor }) {
                    let other = short(&files[other.file].path());
                    return Err(Error::input(&f.path(), format!("tensor {} is also in {other}", quoted(&t.name))));
                }
            }
        }
        Ok(Shards { files, by_name })
    }

    /// All tensors, file by file in the order of their names, each in the order of its header.
    pub fn iter(&self) -> impl Iterator<Item = (Place, &Tensor)> {
        let of = |(file, f): (usize, &'_ File)| {
            let n = f.tensors().len();
            (0..n).map(move |tensor| Place { file, tensor })
        };
        self.files.iter().enumerate().flat_map(of).map(|place| (place, self.tensor(place)))
    }

    /// The tensor at a place that these shards have given.
    pub fn tensor(&self, place: Place) -> &Tensor {
        &self.files[place.file].tensors()[place.tensor]
    }

    /// The tensor of this name.
    pub fn find(&self, name: &str) -> Option<(Place, &Tensor)> {
        self.by_name.get(name).map(|place| (*place, self.tensor(*place)))
    }

    /// The file that a place is in.
    pub fn path(&self, place: Place) -> PathBuf {
        self.files[place.file].path()
    }

    /// The open files, in the order of [`Place::file`].
    pub fn into_inputs(self) -> Vec<Input> {
        self.files.into_iter().map(File::into_input).collect()
    }
}

/// Whether a tensor is of the head, by the names that are in use.
fn is_head(tensor: &str) -> bool {
    tensor.split('.').any(|part| part == "mtp")
}

/// Tensor names and file names of an index.
fn read_index(path: &Path) -> Result<Vec<(String, String)>, Error> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Pairs,
    }
    let map = read_json::<Index>(path, MAX_HEADER_BYTES)?.weight_map.0;
    for (tensor, file) in &map {
        let mut parts = Path::new(file).components();
        let plain = matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(name)), None) if name == file.as_str());
        if !plain || file.contains(['/', '\\', '\0', ':']) {
            let what = format!("tensor {} in file {}: a name without a path expected", quoted(tensor), quoted(file));
            return Err(Error::input(path, what));
        }
    }
    Ok(map)
}

/// A JSON object of strings in its order, each key once.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Pairs, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let (mut pairs, mut seen) = (Vec::new(), std::collections::HashSet::new());
                while let Some((tensor, file)) = map.next_entry::<String, String>()? {
                    if !seen.insert(tensor.clone()) {
                        return Err(serde::de::Error::custom(format!("tensor {} appears twice", quoted(&tensor))));
                    }
                    pairs.push((tensor, file));
                }
                Ok(Pairs(pairs))
            }
        }
        d.deserialize_map(V)
    }
}

/// Whether all safetensors files of a folder are Mistral's own; where others stand beside them, both have all weights.
pub(crate) fn are_consolidated(folder: &Path) -> Result<bool, Error> {
    let files = in_folder(folder)?;
    Ok(!files.is_empty() && files.iter().all(|file| is_consolidated(file)))
}

fn is_consolidated(file: &Path) -> bool {
    short(file).starts_with("consolidated")
}

/// The safetensors files of a folder without an index.
fn loose(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let (own, theirs): (Vec<_>, Vec<_>) = in_folder(folder)?.into_iter().partition(|file| is_consolidated(file));
    let files = if theirs.is_empty() { own } else { theirs };
    if files.is_empty() {
        return Err(Error::input(folder, "no .safetensors files in this folder; other formats are not read"));
    }
    let mut of_n: BTreeMap<(String, u32), BTreeSet<u32>> = BTreeMap::new();
    for file in &files {
        if let Some((stem, no, n)) = numbered(&short(file)) {
            of_n.entry((stem, n)).or_default().insert(no);
        }
    }
    for ((stem, n), there) in of_n {
        // A name can claim any number: the first one that is missing is told, not a list of all.
        if let Some(no) = (1..=n).find(|no| !there.contains(no)) {
            let what =
                format!("{} of {n} shards are there, {stem}-{no:05}-of-{n:05}.safetensors is not; get it", there.len());
            return Err(Error::input(folder, what));
        }
    }
    Ok(files)
}

/// `model-00002-of-00005.safetensors` as `("model", 2, 5)`.
fn numbered(name: &str) -> Option<(String, u32, u32)> {
    let (rest, n) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, no) = rest.rsplit_once('-')?;
    Some((stem.to_owned(), no.parse().ok()?, n.parse().ok()?))
}

/// The paths of all `.safetensors` files in a folder, by name.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for entry in folder.read_dir().map_err(|e| Error::io(folder, "list", e))? {
        let path = entry.map_err(|e| Error::io(folder, "list", e))?.path();
        if path.extension().is_some_and(|e| e == EXTENSION) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn short(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn some(names: &[String]) -> String {
    let dots = if names.len() > 5 { ", ..." } else { "" };
    format!("{}{dots}", names[..names.len().min(5)].join(", "))
}

fn n_of(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Of safetensors files.
pub(crate) const EXTENSION: &str = "safetensors";
/// Which shard of a folder has which tensor.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// The same of Mistral's own files.
const CONSOLIDATED_INDEX: &str = "consolidated.safetensors.index.json";
