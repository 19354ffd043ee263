//! Models cut into several files: which files belong together, and whether they do.
//! Owns the naming `-00001-of-0000N.gguf` and the `split.*` keys; opens nothing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, quoted};
use crate::header::Header;

/// What a file says about its place among shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitInfo {
    /// From 0; below `count`.
    pub no: u32,
    /// Files in all; at least 1.
    pub count: u32,
    /// Tensors in all files together.
    pub n_tensors: u64,
}

impl SplitInfo {
    /// None for a whole file: `split.count` is absent, or 0 as in files merged from shards.
    /// # Errors
    /// `split.no` or `split.tensors.count` is absent or of the wrong type; `split.no` is not below `split.count`;
    /// the count has more than five digits.
    pub fn of(header: &Header<'_>) -> Result<Option<SplitInfo>, Error> {
        let meta = header.metadata();
        let count = match meta.u32(COUNT_KEY)? {
            None | Some(0) => return Ok(None),
            Some(count) => count,
        };
        let no = meta.require_u32(NO_KEY)?;
        let n_tensors = meta.require_u64(TENSORS_KEY)?;
        if count > MAX_COUNT {
            return Err(split(format!("{COUNT_KEY} is {count}, at most {MAX_COUNT} allowed"), "get the file again"));
        }
        if no >= count {
            return Err(split(format!("{NO_KEY} is {no}, below {COUNT_KEY} = {count} expected"), "get the file again"));
        }
        Ok(Some(SplitInfo { no, count, n_tensors }))
    }
}

/// The paths of all shards in order, `path` being the first.
/// # Errors
/// `info` is not of the first shard (the message names the file to open), or the file name does not end in
/// `-00001-of-0000N.gguf`.
pub fn shard_paths(path: &Path, info: &SplitInfo) -> Result<Vec<PathBuf>, Error> {
    let suffix = shard_suffix(info.no, info.count);
    let name = path.file_name().unwrap_or_default();
    let prefix = name.to_str().and_then(|name| name.strip_suffix(&suffix));
    if info.no != 0 {
        let first = format!("{}{}", prefix.unwrap_or("..."), shard_suffix(0, info.count));
        let what = format!("this is shard {} of {}, the first shard expected", info.no + 1, info.count);
        return Err(split(what, format!("open {first:?}")));
    }
    let Some(prefix) = prefix else {
        let what = format!("the file name is {name:?}, a name in UTF-8 that ends in {suffix:?} expected");
        return Err(split(what, "name the shards as they were published"));
    };
    Ok((0..info.count).map(|no| path.with_file_name(format!("{prefix}{}", shard_suffix(no, info.count)))).collect())
}

/// Whether `headers` are all the shards of one model, in order.
/// # Errors
/// Their number, a `split.*` key or the number of tensors disagrees, or a tensor is in two shards.
pub fn check_shards(headers: &[Header<'_>]) -> Result<(), Error> {
    let Some(first) = headers.first().map(SplitInfo::of).transpose()?.flatten() else {
        return Err(split(format!("{COUNT_KEY} is not in the first of the shards"), "give all shards in order"));
    };
    if headers.len() as u64 != u64::from(first.count) {
        let what = format!("{} shards given, {COUNT_KEY} is {}", headers.len(), first.count);
        return Err(split(what, "give all shards in order"));
    }
    let mut shard_of = HashMap::new();
    for (no, header) in (0..).zip(headers) {
        // Only the first shard must state the number of tensors; what the others do state has to agree.
        let meta = header.metadata();
        agrees(no, NO_KEY, meta.require_u32(NO_KEY)?.into(), no.into())?;
        agrees(no, COUNT_KEY, meta.require_u32(COUNT_KEY)?.into(), first.count.into())?;
        agrees(no, TENSORS_KEY, meta.u64(TENSORS_KEY)?.unwrap_or(first.n_tensors), first.n_tensors)?;
        for tensor in header.tensors() {
            if let Some(other) = shard_of.insert(tensor.name, no) {
                let name = quoted(tensor.name.as_bytes());
                let what = format!("tensor {name} is in shard {} and in shard {}", other + 1, no + 1);
                return Err(split(what, CURE_MIXED));
            }
        }
    }
    if shard_of.len() as u64 != first.n_tensors {
        let what = format!("{} tensors in all shards, {TENSORS_KEY} is {}", shard_of.len(), first.n_tensors);
        return Err(split(what, CURE_MIXED));
    }
    Ok(())
}

fn agrees(no: u32, key: &str, found: u64, expected: u64) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(split(format!("shard {}: {key} is {found}, {expected} expected", no + 1), CURE_MIXED))
}

fn shard_suffix(no: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

fn split(what: impl Into<String>, cure: impl Into<String>) -> Error {
    Error::Split { what: what.into(), cure: cure.into() }
}

const COUNT_KEY: &str = "split.count";
const NO_KEY: &str = "split.no";
const TENSORS_KEY: &str = "split.tensors.count";
const MAX_COUNT: u32 = 99_999;
const CURE_MIXED: &str = "the files are of different models or renamed; get all shards again";
