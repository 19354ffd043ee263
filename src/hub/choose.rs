//! Which files of a repository a model is made of: its shards, its MTP layer, its projector. A function of names and sizes only.
//!
//! The choice is that of llama.cpp's `common/download.cpp`, so that one name means one file in both.

use crate::error::HubError;
use crate::file_name::{FileName, Role, bits};
use crate::name::{ModelName, Part, is_plain_path};

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoFile {
    /// Its path in the repository.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// The checksum of its bytes, in hexadecimal digits; a file without one is not fetched.
    pub sha256: Option<String>,
}

/// The files of a model, each with all its shards in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// The model; never empty.
    pub model: Vec<&'a RepoFile>,
    /// Its MTP layer, where that is in a file of its own.
    pub head: Vec<&'a RepoFile>,
    /// Its projector of images.
    pub projector: Vec<&'a RepoFile>,
}

/// What is fetched beside a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Its MTP layer.
    pub head: bool,
    /// Its projector.
    pub projector: bool,
}

impl<'a> Choice<'a> {
    /// All files, the model's first.
    pub fn files(&self) -> impl Iterator<Item = &'a RepoFile> {
        self.model.iter().chain(&self.head).chain(&self.projector).copied()
    }

    /// The bytes of all files.
    pub fn size(&self) -> u64 {
        self.files().fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// What is wanted of it.
    pub(crate) fn only(mut self, parts: Parts) -> Self {
        if !parts.head {
            self.head.clear();
        }
        if !parts.projector {
            self.projector.clear();
        }
        self
    }
}

/// A file whose name has been read.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    file: &'a RepoFile,
    folder: &'a str,
    stem: &'a str,
    shard: Option<(u32, u32)>,
    quant: Option<&'a str>,
    bits: u32,
    role: Role,
}

/// Chooses among the files of a repository. Paths that lead elsewhere are passed over.
///
/// # Errors
/// No model of that name, with those that there are; a part of a model that was named as one; missing shards.
pub fn choose<'a>(files: &'a [RepoFile], name: &ModelName) -> Result<Choice<'a>, HubError> {
    let all = candidates(files);
    let models: Vec<Candidate<'a>> = all.iter().copied().filter(|c| c.role == Role::Model).collect();
    let firsts = || models.iter().filter(|c| c.shard.is_none_or(|(i, _)| i == 1));
    let graded = |quant: &str| {
        let of = |grade: u32| firsts().find(|c| c.grade(quant) == Some(grade));
        (0..GRADES).find_map(of)
    };
    let chosen = match name.part() {
        Part::Any => graded("Q4_K_M").or_else(|| graded("Q8_0")).or_else(|| firsts().next()),
        Part::Quant(quant) => graded(quant),
        Part::File(path) => match all.iter().find(|c| c.file.path == *path) {
            Some(part) if part.role != Role::Model => {
                let (repo, file, role) = (name.repo().to_owned(), path.clone(), part.role.words());
                return Err(HubError::NoModel { repo, file, role, found: found(&models) });
            }
            file => file,
        },
    };
    let Some(&model) = chosen else {
        let wanted = match name.part() {
            Part::Any => "any quantization",
            Part::Quant(part) | Part::File(part) => part,
        };
        return Err(HubError::NoFile { repo: name.repo().into(), wanted: wanted.into(), found: found(&models) });
    };
    let shards = shards(&models, &model, name)?;
    let wanted = match name.part() {
        Part::Quant(quant) => Some(quant.as_str()),
        _ => None,
    };
    let beside = |role: Role, wanted: Option<&str>| {
        let parts: Vec<Candidate<'a>> = all.iter().copied().filter(|c| c.role == role).collect();
        let Some(best) = sibling(&parts, &model, wanted) else { return Vec::new() };
        // A part that is not whole is no reason to go without the model.
        self::shards(&parts, &best, name).unwrap_or_default()
    };
    Ok(Choice { model: shards, head: beside(Role::Head, wanted), projector: beside(Role::Projector, None) })
}

/// The GGUF files, by path; a path that comes twice counts once.
fn candidates(files: &[RepoFile]) -> Vec<Candidate<'_>> {
    let read = |file| -> Option<Candidate<'_>> {
        let file: &RepoFile = file;
        let name = FileName::read(&file.path).filter(|_| is_plain_path(&file.path))?;
        let FileName { folder, stem, shard } = name;
        Some(Candidate { file, folder, stem, shard, quant: name.quant(), bits: name.bits(), role: name.role() })
    };
    let mut all: Vec<Candidate<'_>> = files.iter().filter_map(read).collect();
    all.sort_by(|a, b| a.file.path.cmp(&b.file.path));
    all.dedup_by(|a, b| a.file.path == b.file.path);
    let is_head: Vec<bool> = all.iter().map(|c| c.is_layer_of_another(&all)).collect();
    for (candidate, _) in all.iter_mut().zip(is_head).filter(|(_, is_head)| *is_head) {
        candidate.role = Role::Head;
    }
    all
}

impl Candidate<'_> {
    /// How well it fits a quantisation: 0 is that very one, then one that ends so, then one with these letters anywhere.
    fn grade(&self, wanted: &str) -> Option<u32> {
        let (wanted, path) = (wanted.to_ascii_lowercase(), self.file.path.to_ascii_lowercase());
        if self.quant.is_some_and(|quant| quant.eq_ignore_ascii_case(&wanted)) {
            return Some(0);
        }
        let ends = |(at, part): (usize, &str)| path[at + part.len()..].starts_with(['.', '-', '/']);
        if path.match_indices(&wanted).any(ends) {
            return Some(1);
        }
        path.contains(&wanted).then_some(2)
    }

    /// `NAME-mtp` beside a model `NAME` that is more than twice as large.
    fn is_layer_of_another(&self, all: &[Self]) -> bool {
        let name = FileName { folder: self.folder, stem: self.stem, shard: self.shard };
        let Some(twin) = name.twin().filter(|_| self.role == Role::Model) else { return false };
        let size: u64 = all.iter().filter(|c| c.folder == self.folder && c.stem == twin).map(|c| c.file.size).sum();
        size / 2 > self.file.size
    }
}

/// All shards of a file, in order.
fn shards<'a>(all: &[Candidate<'a>], first: &Candidate<'a>, name: &ModelName) -> Result<Vec<&'a RepoFile>, HubError> {
    let Some((_, count)) = first.shard else { return Ok(vec![first.file]) };
    let is_one = |c: &&Candidate<'a>| c.folder == first.folder && c.stem == first.stem;
    let mut found: Vec<(u32, &RepoFile)> =
        all.iter().filter(is_one).filter_map(|c| Some((c.shard.filter(|s| s.1 == count)?.0, c.file))).collect();
    found.sort_by_key(|(i, _)| *i);
    let is_missing = |i: &u32| found.get(*i as usize - 1).is_none_or(|(found, _)| found != i);
    if let Some(missing) = (1..=count).find(is_missing) {
        return Err(HubError::Shards { repo: name.repo().into(), file: first.file.path.clone(), count, missing });
    }
    Ok(found.into_iter().map(|(_, file)| file).collect())
}

/// What lies beside the model, in its folder or above it: the nearest first, then the quantisation that was asked for, then the
/// one with the nearest number of bits. F16 goes before BF16, which fewer devices compute with.
fn sibling<'a>(parts: &[Candidate<'a>], model: &Candidate<'a>, wanted: Option<&str>) -> Option<Candidate<'a>> {
    let target = wanted.map_or(model.bits, bits);
    let above = |folder: &str| {
        folder.is_empty()
            || model.folder == folder
            || model.folder.strip_prefix(folder).is_some_and(|r| r.starts_with('/'))
    };
    let key = |c: &&Candidate<'a>| {
        let is_wanted = wanted.is_some_and(|wanted| c.quant.is_some_and(|quant| quant.eq_ignore_ascii_case(wanted)));
        let is_bf16 = c.quant.is_some_and(|quant| quant.eq_ignore_ascii_case("bf16"));
        (std::cmp::Reverse(c.folder.len()), !is_wanted, c.bits.abs_diff(target), is_bf16)
    };
    let parts = parts.iter().filter(|c| above(c.folder) && c.shard.is_none_or(|(i, _)| i == 1));
    parts.min_by_key(key).copied()
}

/// The models that there are, for an error.
fn found(models: &[Candidate<'_>]) -> String {
    let paths: Vec<&str> =
        models.iter().filter(|c| c.shard.is_none_or(|(i, _)| i == 1)).map(|c| c.file.path.as_str()).collect();
    match paths.len() {
        0 => "none".to_owned(),
        n if n > MAX_FOUND => format!("{} and {} more", paths[..MAX_FOUND].join(", "), n - MAX_FOUND),
        _ => paths.join(", "),
    }
}

/// Grades of [`Candidate::grade`].
const GRADES: u32 = 3;

/// Files that an error names.
const MAX_FOUND: usize = 40;
