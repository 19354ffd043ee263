//! What engines have measured of drafts, kept from run to run: step costs and acceptance, by model and by what it was computed
//! with. An engine that begins with it drafts well from its first step.
//! Owns the files and what may stand in them. Knows nothing of how it is measured or used; what it says is a guess, which
//! measurements replace.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Files of this layout are read; others are written anew. Beside what is known of a source, this one has what steps take without
/// the time of drafting.
const VERSION: u32 = 2;

/// Ways to compute one model that are kept; the one unused for longest goes first.
const MAX_WAYS: usize = 16;

/// Models that are kept likewise.
const MAX_FILES: usize = 256;

/// A file has a few KiB.
const MAX_BYTES: u64 = 1 << 20;

/// Sequences and draft tokens of a step that a cost is kept of, at most.
const MAX_OF_STEP: usize = 256;

/// Fewer measured steps than this are not worth a file.
const ENOUGH_TO_KEEP: usize = 16;

/// While the engine goes on what was measured is kept so often at most, where a generation begins: a program may be killed.
const KEEP_AGAIN: Duration = Duration::from_secs(60);

/// When what an engine has measured is worth a file.
#[derive(Debug)]
pub(crate) struct Keeping {
    /// Steps that were measured since it was kept, or read.
    n_new: usize,
    /// When that was.
    at: Instant,
}

impl Keeping {
    pub(crate) fn new() -> Self {
        Self { n_new: 0, at: Instant::now() }
    }

    /// A step was measured.
    pub(crate) fn measured(&mut self) {
        self.n_new += 1;
    }

    /// It was long ago that something was kept.
    pub(crate) fn is_due(&self) -> bool {
        self.at.elapsed() >= KEEP_AGAIN
    }

    /// True where there is enough to keep; it counts as kept then.
    pub(crate) fn keeps(&mut self) -> bool {
        let is_enough = self.n_new >= ENOUGH_TO_KEEP;
        if is_enough {
            *self = Self::new();
        }
        is_enough
    }
}

/// What is known of one source of drafts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Known {
    /// Sequences, draft tokens of each, and the seconds of such a step.
    pub(crate) costs: Vec<(usize, usize, f64)>,
    /// By draft position: how many were accepted of how many verified, the newer the more.
    pub(crate) accepted: Vec<(f64, f64)>,
}

impl Known {
    /// Without what no measurement gives.
    fn sound(mut self) -> Self {
        let seconds = |s: f64| s > 0.0 && s < 1e4;
        self.costs.retain(|&(n, d, s)| (1..=MAX_OF_STEP).contains(&n) && d <= MAX_OF_STEP && seconds(s));
        self.accepted.truncate(MAX_OF_STEP);
        let counts = |&(accepted, n): &(f64, f64)| accepted >= 0.0 && accepted <= n && n < 1e6;
        let n_sound = self.accepted.iter().take_while(|of| counts(of)).count();
        self.accepted.truncate(n_sound);
        self
    }
}

/// Everything that is known of a model.
#[derive(Debug, Default, Serialize, Deserialize)]
struct OfModel {
    version: u32,
    /// By what it was computed with.
    ways: BTreeMap<String, Way>,
}

/// One way to compute a model.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Way {
    /// Seconds since 1970 at which it was written last.
    used: u64,
    /// By the name of the source.
    sources: BTreeMap<String, Known>,
}

/// Where the measurements of one model, computed in one way, are kept.
#[derive(Clone, Debug)]
pub struct Calibration {
    file: PathBuf,
    way: String,
}

impl Calibration {
    /// In `folder`, for the model of this name. `way`: whatever changes what a step costs, such as device, threads and types.
    pub fn new(folder: &Path, model: &str, way: String) -> Self {
        let sane = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let name: String = model.chars().map(sane).take(120).collect();
        Self { file: folder.join(format!("{name}.json")), way }
    }

    /// The part of the source of this name.
    pub(crate) fn of(&self, source: impl Into<String>) -> OfSource {
        OfSource { calibration: self.clone(), source: source.into() }
    }

    /// What is known of the source of this name; nothing where the file is missing or cannot be used, which the log says.
    pub(crate) fn known(&self, source: &str) -> Known {
        let read = self.read().unwrap_or_else(|error| {
            tracing::warn!(%error, path = %self.file.display(), "what was measured of drafts is not read: it is measured anew");
            OfModel::default()
        });
        let way = read.ways.get(&self.way);
        way.and_then(|way| way.sources.get(source)).cloned().unwrap_or_default().sound()
    }

    /// Keeps what is known of the source of this name, beside what others have kept.
    ///
    /// # Errors
    /// The system's; the file is then what it was.
    pub(crate) fn keep(&self, source: &str, known: Known) -> io::Result<()> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let is_new = !self.file.exists();
        let mut all = self.read().unwrap_or_default();
        all.version = VERSION;
        let way = all.ways.entry(self.way.clone()).or_default();
        way.used = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        way.sources.insert(source.to_owned(), known);
        while all.ways.len() > MAX_WAYS {
            let oldest = all.ways.iter().min_by_key(|(_, way)| way.used).map(|(name, _)| name.clone());
            oldest.iter().for_each(|name| drop(all.ways.remove(name)));
        }
        // Under another name first: a program that ends meanwhile leaves the old file, and no part of a new one.
        let new = self.file.with_extension(format!("{}.new", std::process::id()));
        let mut file = fs::File::create(&new)?;
        let written = file.write_all(&serde_json::to_vec(&all)?).and_then(|()| fs::rename(&new, &self.file));
        written.inspect_err(|_| drop(fs::remove_file(&new)))?;
        if is_new {
            drop_oldest(folder);
        }
        Ok(())
    }

    /// The file; empty where there is none, or one of another version.
    fn read(&self) -> io::Result<OfModel> {
        let n_bytes = match fs::metadata(&self.file) {
            Ok(about) => about.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(OfModel::default()),
            Err(error) => return Err(error),
        };
        if n_bytes > MAX_BYTES {
            return Err(io::Error::other(format!("{n_bytes} bytes, at most {MAX_BYTES} expected")));
        }
        let all: OfModel = serde_json::from_slice(&fs::read(&self.file)?)?;
        Ok(if all.version == VERSION { all } else { OfModel::default() })
    }
}

/// Keeps the folder's size in bounds.
fn drop_oldest(folder: &Path) {
    let Ok(files) = fs::read_dir(folder) else { return };
    let age = |file: fs::DirEntry| Some((file.metadata().ok()?.modified().ok()?, file.path()));
    let mut files: Vec<_> = files.flatten().filter_map(age).collect();
    files.sort();
    let n_over = files.len().saturating_sub(MAX_FILES);
    files.iter().take(n_over).for_each(|(_, path)| drop(fs::remove_file(path)));
}

/// The part of a calibration that one source reads at its start and keeps at its end.
#[derive(Debug)]
pub(crate) struct OfSource {
    pub(crate) calibration: Calibration,
    pub(crate) source: String,
}

impl OfSource {
    pub(crate) fn known(&self) -> Known {
        self.calibration.known(&self.source)
    }

    /// Keeps what was measured; the log says where that fails.
    pub(crate) fn keep(&self, known: Known) {
        if let Err(error) = self.calibration.keep(&self.source, known) {
            let path = self.calibration.file.display();
            tracing::warn!(%error, %path, "what was measured of drafts is not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(seconds: f64) -> Known {
        Known { costs: vec![(1, 0, seconds), (1, 2, 1.5 * seconds)], accepted: vec![(8.0, 10.0)] }
    }

    #[test]
    fn what_is_kept_is_read_again_by_model_way_and_source() {
        let folder = tempfile::tempdir().unwrap();
        let of = |model: &str, way: &str| Calibration::new(&folder.path().join("new"), model, way.to_owned());
        of("a model/b", "cpu 2").keep("nextn", known(0.01)).unwrap();
        of("a model/b", "cpu 2").keep("draft", known(0.02)).unwrap();
        of("a model/b", "cpu 4").keep("nextn", known(0.03)).unwrap();
        assert_eq!(of("a model/b", "cpu 2").known("nextn"), known(0.01));
        assert_eq!(of("a model/b", "cpu 2").known("draft"), known(0.02));
        assert_eq!(of("a model/b", "cpu 4").known("nextn"), known(0.03));
        assert_eq!(of("a model/b", "cpu 4").known("draft"), Known::default());
        assert_eq!(of("a model/c", "cpu 2").known("nextn"), Known::default());
    }

    #[test]
    fn a_file_that_is_damaged_or_lies_is_measured_anew() {
        let folder = tempfile::tempdir().unwrap();
        let of = Calibration::new(folder.path(), "model", "way".to_owned());
        let lies = r#"{"version":2,"ways":{"way":{"used":1,"sources":{"nextn":{
            "costs":[[1,0,0.01],[0,1,0.01],[1,1,-1.0],[1,2,1e300],[1,900000000,0.02]],
            "accepted":[[1.0,2.0],[5.0,2.0],[1.0,1.0]]}}}}}"#;
        fs::write(folder.path().join("model.json"), lies).unwrap();
        assert_eq!(of.known("nextn"), Known { costs: vec![(1, 0, 0.01)], accepted: vec![(1.0, 2.0)] });
        for bytes in ["", "{", "[]", r#"{"version":2,"ways":{"way":7}}"#, r#"{"version":1,"ways":{}}"#] {
            fs::write(folder.path().join("model.json"), bytes).unwrap();
            assert_eq!(of.known("nextn"), Known::default(), "{bytes}");
            of.keep("nextn", known(0.01)).unwrap();
            assert_eq!(of.known("nextn"), known(0.01), "{bytes}");
        }
        fs::write(folder.path().join("model.json"), vec![b' '; MAX_BYTES as usize + 1]).unwrap();
        assert_eq!(of.known("nextn"), Known::default());
    }

    #[test]
    fn files_and_ways_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        for i in 0..MAX_WAYS + 5 {
            Calibration::new(folder.path(), "model", format!("way {i}")).keep("nextn", known(0.01)).unwrap();
        }
        let of = Calibration::new(folder.path(), "model", String::new());
        assert_eq!(of.read().unwrap().ways.len(), MAX_WAYS);
        for i in 0..MAX_FILES + 5 {
            Calibration::new(folder.path(), &format!("model {i}"), String::new()).keep("nextn", known(0.01)).unwrap();
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), MAX_FILES);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let of = Calibration::new(&file, "model", String::new());
        assert!(of.keep("nextn", known(0.01)).is_err());
        assert_eq!(of.known("nextn"), Known::default());
    }
}
