//! Where measured step costs and acceptance of drafts are kept from run to run, and under which key.
//! Owns the folder's place. What stands there is the crate `speculate`'s.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use engine::EngineConfig;
use model::Model;
use speculate::Calibration;

/// Where what is measured of drafts is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CalibrationPlace {
    /// In the user's cache folder; a build for debugging, whose speeds tell nothing of others, keeps nothing.
    Auto,
    /// Nowhere.
    #[default]
    Off,
    /// Here.
    Folder(PathBuf),
}

impl FromStr for CalibrationPlace {
    type Err = Infallible;

    fn from_str(word: &str) -> Result<Self, Infallible> {
        Ok(match word {
            "auto" => Self::Auto,
            "off" | "" => Self::Off,
            folder => Self::Folder(folder.into()),
        })
    }
}

impl CalibrationPlace {
    /// The folder; `None` where nothing is kept.
    fn folder(&self) -> Option<PathBuf> {
        match self {
            Self::Auto if cfg!(debug_assertions) => None,
            Self::Auto => cache_folder(|name| std::env::var_os(name)),
            Self::Off => None,
            Self::Folder(folder) => Some(folder.clone()),
        }
    }
}

impl CalibrationPlace {
    /// What is kept for this model with an engine that drafts in this way; `None` where nothing is. Keys are cheap to make: what
    /// is kept under a key that two models share is a guess that measurements replace.
    pub(crate) fn of(
        &self,
        (model, draft): (&Model, Option<&Model>),
        engine: &EngineConfig,
        drafting: &str,
    ) -> Option<Calibration> {
        let key = |model: &Model| {
            let n_bytes: usize = model.weights().mappings().iter().map(|file| file.bytes().len()).sum();
            let of = model.hparams();
            format!("{}-layers-{}-wide-{n_bytes}-bytes", of.n_layer, of.n_embd)
        };
        let devices: Vec<String> = model.devices().iter().map(|device| device.description()).collect();
        let way = [
            format!("{}, kernels {}, threads {}", devices.join(" "), ggml::kernels_in_use(), engine.n_threads()),
            format!("cells {} {}, flash {:?}", engine.cache_type_k, engine.cache_type_v, engine.flash_attention),
            drafting.to_owned(),
            draft.map_or_else(String::new, |draft| format!("draft model {}", key(draft))),
        ];
        Some(Calibration::new(&self.folder()?, &key(model), way.join("; ")))
    }
}

/// The user's cache folder for this program; `None` where the environment names no home.
fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from).filter(|p| p.is_absolute());
    let of_home = |home: PathBuf, below: &str| home.join(below);
    let caches = if cfg!(windows) {
        path("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        path("HOME").map(|home| of_home(home, "Library/Caches"))
    } else {
        path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| of_home(home, ".cache")))
    };
    caches.map(|caches| caches.join("nextn").join("calibration"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_kept_in_the_users_cache_folder_or_where_it_is_said() {
        let of = |given: &'static [(&'static str, &'static str)]| {
            cache_folder(|name| given.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        };
        if cfg!(target_os = "linux") {
            assert_eq!(of(&[("HOME", "/h")]), Some("/h/.cache/nextn/calibration".into()));
            let xdg = of(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]);
            assert_eq!(xdg, Some("/x/nextn/calibration".into()));
            // A relative path counts as none there.
            assert_eq!(of(&[("XDG_CACHE_HOME", "x")]), None);
        }
        assert_eq!(of(&[]), None);
        let place = |word: &str| word.parse::<CalibrationPlace>().map(|place| place.folder());
        assert_eq!(place("off"), Ok(None));
        assert_eq!(place("a/folder"), Ok(Some("a/folder".into())));
        assert_eq!(CalibrationPlace::default().folder(), None, "a library keeps nothing unless it is told to");
    }
}
