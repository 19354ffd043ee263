//! The heads of one model on disk: the one in use, the one before, and what a round makes. Owns names of files and the order of
//! their changes: whatever moment the process ends in, what is there is a whole head or none.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use engine::private_files::{make_folder, remove};
use serde::{Deserialize, Serialize};

use crate::learning::kept::stem;

/// Whose head it is, beside it.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
struct Owner {
    format: String,
    version: u32,
    /// Fingerprints of the model, and of the file of the head that it started from.
    model: String,
    head: String,
}

const FORMAT: &str = "nextn-live";
const VERSION: u32 = 1;

/// A folder for the heads of one model.
pub(super) struct Place {
    folder: PathBuf,
    owner: Owner,
}

impl Place {
    /// The folder `live/MODEL` in that of `--learn`. What another model or another head left there goes.
    pub(super) fn new(learn: &Path, model: String, head: String) -> io::Result<Self> {
        let folder = learn.join("live").join(stem(&model));
        make_folder(&folder)?;
        let place = Self { folder, owner: Owner { format: FORMAT.into(), version: VERSION, model, head } };
        place.forget_round();
        let is_ours = fs::read(place.owner_file()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if is_ours.as_ref() != Some(&place.owner) {
            [place.head(), place.previous_file()].iter().for_each(|path| remove(path));
            fs::write(place.owner_file(), serde_json::to_vec(&place.owner)?)?;
        }
        Ok(place)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The head in use, where that is a learned one.
    pub(super) fn head(&self) -> PathBuf {
        self.folder.join("head.gguf")
    }

    /// The head in use when the process ended last.
    pub(super) fn kept_before(&self) -> Option<PathBuf> {
        Some(self.head()).filter(|path| path.is_file())
    }

    /// The learned head that was in use before.
    pub(super) fn previous(&self) -> Option<PathBuf> {
        Some(self.previous_file()).filter(|path| path.is_file())
    }

    fn previous_file(&self) -> PathBuf {
        self.folder.join("previous.gguf")
    }

    fn owner_file(&self) -> PathBuf {
        self.folder.join("owner.json")
    }

    fn round(&self) -> PathBuf {
        self.folder.join("round")
    }

    /// The head of a round.
    pub(super) fn of_round(&self) -> PathBuf {
        self.round().join(HEAD)
    }

    /// An empty folder for a round.
    pub(super) fn begin_round(&self) -> io::Result<PathBuf> {
        self.forget_round();
        make_folder(&self.round())?;
        Ok(self.round())
    }

    /// Removes what a round left.
    pub(super) fn forget_round(&self) {
        match fs::remove_dir_all(self.round()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, folder = %self.round().display(), "a folder was not removed");
            }
            _ => {}
        }
    }

    /// The head of the round becomes the one in use, which becomes the one before unless it is the model's own.
    pub(super) fn keep(&self, was_own: bool) -> io::Result<()> {
        match was_own {
            true => remove(&self.previous_file()),
            false => fs::rename(self.head(), self.previous_file())?,
        }
        fs::rename(self.of_round(), self.head())
    }

    /// The one before becomes the one in use; without one, none is.
    pub(super) fn undo(&self) -> io::Result<()> {
        match self.previous() {
            Some(previous) => fs::rename(previous, self.head()),
            None => fs::remove_file(self.head()),
        }
    }
}

/// The head's file in a round's folder.
pub(super) const HEAD: &str = "head.gguf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_take_each_others_place_and_those_of_others_go() {
        let learn = std::env::temp_dir().join(format!("nextn-live-{}", std::process::id()));
        let open = |head: &str| Place::new(&learn, "0123456789abcdef01".into(), head.into()).unwrap();
        let place = open("a");
        let round = |text: &str| fs::write(place.begin_round().unwrap().join(HEAD), text).unwrap();
        let read = |path: Option<PathBuf>| path.map(|path| fs::read_to_string(path).unwrap());
        let there = || (read(place.kept_before()), read(place.previous()));
        assert_eq!(there(), (None, None));
        round("1");
        place.keep(true).unwrap();
        round("2");
        place.keep(false).unwrap();
        assert_eq!(there(), (Some("2".into()), Some("1".into())));
        place.undo().unwrap();
        assert_eq!(there(), (Some("1".into()), None));
        assert!(open("a").kept_before().is_some(), "after a restart");
        place.undo().unwrap();
        assert_eq!(there(), (None, None));
        round("3");
        place.keep(true).unwrap();
        assert!(open("b").kept_before().is_none(), "the model was given another head");
        fs::remove_dir_all(&learn).unwrap();
    }
}
