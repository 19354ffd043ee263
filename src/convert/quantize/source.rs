//! A GGUF file, or the shards of one, as a model to be typed anew.

use std::path::{Path, PathBuf};

use ggml::{Dtype, Mapping};
use gguf::{Header, SplitInfo, check_shards, shard_paths};

use crate::error::Error;
use crate::io::Input;
use crate::model::{Key, Model};
use crate::stream::{Piece, Stored, TensorPlan};

/// Reads the headers; data stays where it is.
///
/// # Errors
/// A file is missing or no sound GGUF file, shards do not belong together, or a type is not known.
pub fn open(path: &Path) -> Result<Model, Error> {
    let first = map(path)?;
    let header = parse(&first, path)?;
    let split = SplitInfo::of(&header).map_err(|e| Error::gguf(path, e))?;
    let paths = match split {
        None => vec![path.to_owned()],
        Some(info) => shard_paths(path, &info).map_err(|e| Error::gguf(path, e))?,
    };
    let others = paths[1..].iter().map(|p| map(p));
    let others = others.collect::<Result<Vec<_>, _>>()?;
    let mut headers = vec![header];
    for (map, path) in others.iter().zip(&paths[1..]) {
        headers.push(parse(map, path)?);
    }
    if split.is_some() {
        check_shards(&headers).map_err(|e| Error::gguf(path, e))?;
    }
    let of_split = |key: &str| key.starts_with("split.");
    let keys = headers[0].metadata().iter().filter(|(key, _)| !of_split(key));
    let keys = keys.map(|(key, value)| (key.to_owned(), Key::from(*value))).collect();
    let mut tensors = Vec::new();
    for (file, header) in headers.iter().enumerate() {
        tensors.extend(header.tensors().iter().map(|t| plan(t, file, &paths)).collect::<Result<Vec<_>, _>>()?);
    }
    let inputs = paths.iter().map(|p| Input::open(p)).collect::<Result<Vec<_>, _>>()?;
    Ok(Model { keys, tensors, inputs })
}

fn map(path: &Path) -> Result<Mapping, Error> {
    Mapping::open(path).map_err(|e| match e {
        ggml::Error::Map { what, .. } => Error::input(path, what),
        other => Error::input(path, other.to_string()),
    })
}

fn parse<'m>(map: &'m Mapping, path: &Path) -> Result<Header<'m>, Error> {
    Header::parse(map.bytes()).map_err(|e| Error::gguf(path, e))
}

fn plan(t: &gguf::TensorInfo<'_>, file: usize, paths: &[PathBuf]) -> Result<TensorPlan, Error> {
    let dtype = Dtype::from_id(t.dtype.id()).map_err(|e| Error::input(&paths[file], format!("{}: {e}", t.name)))?;
    let ne = t.dims().to_vec();
    let row_len = ne.first().copied().unwrap_or(1);
    // Without a zero among them the product was checked with the header.
    let n_rows = if ne.contains(&0) { 0 } else { ne.iter().skip(1).product() };
    let at = t.range().start as u64;
    let piece = Piece { file, at, stored: Stored::Ggml(dtype), n_rows, scale: None };
    Ok(TensorPlan::of(t.name.to_owned(), ne, t.dtype, piece, row_len))
}
