//! The flags that say which model of a hub, and the environment that says which hub and where its cache is.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::Hub;
use crate::choose::Parts;
use crate::error::{HubError, in_cache};
use crate::http::Retry;
use crate::name::ModelName;

/// Which model of a hub; the same flags in every program that opens one.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct HubOptions {
    /// Download a model from a hub (-hf): USER/REPO[:QUANT] or USER/REPO:FILE.gguf
    ///
    /// Uses HF_ENDPOINT, HF_HOME, HF_HUB_CACHE and HF_TOKEN
    #[arg(long, value_name = "NAME", env = "NEXTN_HF_REPO", hide_env_values = true)]
    pub hf_repo: Option<String>,

    /// Take this file of the --hf-repo, whatever QUANT says
    #[arg(long, value_name = "FILE", env = "NEXTN_HF_FILE", hide_env_values = true)]
    pub hf_file: Option<String>,

    /// Token for closed repositories [default: HF_TOKEN, else the one that the hub's own program saved]
    #[arg(long, value_name = "TOKEN", env = "NEXTN_HF_TOKEN", hide_env_values = true)]
    pub hf_token: Option<String>,

    /// Use cached hub models only
    #[arg(long, env = "NEXTN_OFFLINE", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub offline: bool,

    /// Neither download nor use the projector that lies beside a model
    #[arg(long, env = "NEXTN_NO_MMPROJ", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub no_mmproj: bool,
}

impl HubOptions {
    /// The model that the flags name, if they do.
    ///
    /// # Errors
    /// [`HubError::Name`]; a file without a repository.
    pub fn name(&self) -> Result<Option<ModelName>, HubError> {
        let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        match (set(&self.hf_repo), set(&self.hf_file)) {
            (Some(repo), Some(file)) => repo.parse::<ModelName>()?.with_file(&file).map(Some),
            (Some(repo), None) => repo.parse().map(Some),
            (None, Some(name)) => Err(HubError::Name { name, why: "--hf-file needs --hf-repo" }),
            (None, None) => Ok(None),
        }
    }

    /// The hub of these flags and this environment, as other programs of the hub find it: `MODEL_ENDPOINT` or `HF_ENDPOINT`;
    /// `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE` or `HF_HOME`; `HF_TOKEN`, else the file `HF_TOKEN_PATH` or `token` in `HF_HOME`;
    /// `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// A token of other characters than tokens have.
    pub fn hub(&self, env: impl Fn(&str) -> Option<String>) -> Result<Hub, HubError> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let home = path("HF_HOME").unwrap_or_else(|| {
            let user = || path("HOME").or_else(|| path("USERPROFILE")).unwrap_or_else(|| ".".into());
            path("XDG_CACHE_HOME").unwrap_or_else(|| user().join(".cache")).join("huggingface")
        });
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE")).unwrap_or_else(|| home.join("hub"));
        let given = self.hf_token.clone().filter(|token| !token.is_empty()).or_else(|| set("HF_TOKEN"));
        let token = match given {
            Some(token) => Some(token),
            None => saved_token(&path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token")))?,
        };
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            let what = "the token has characters that no token has: look at HF_TOKEN, --hf-token or the token file";
            return Err(HubError::Http { url: "the hub".into(), what: what.into() });
        }
        let is_on = |value: String| !matches!(value.to_ascii_lowercase().as_str(), "0" | "false" | "no" | "off");
        let endpoint = set("MODEL_ENDPOINT").or_else(|| set("HF_ENDPOINT"));
        Ok(Hub {
            endpoint: endpoint.unwrap_or_else(|| "https://huggingface.co".into()),
            cache,
            token,
            offline: self.offline || set("HF_HUB_OFFLINE").is_some_and(is_on),
            parts: Parts { head: true, projector: !self.no_mmproj },
            retry: Retry::default(),
        })
    }
}

/// The token that the hub's own program saved, if it did.
fn saved_token(path: &Path) -> Result<Option<String>, HubError> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        // One who may not read it has none.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(None),
        read => in_cache(path, read).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(env: &[(&str, &str)]) -> Hub {
        let env = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        HubOptions::default().hub(env).unwrap()
    }

    #[test]
    fn the_cache_is_where_other_programs_of_the_hub_have_it() {
        for (env, cache) in [
            (&[("HOME", "/h")][..], "/h/.cache/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/f")], "/f/hub"),
            (&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "")], "/f/hub"),
        ] {
            assert_eq!(hub(env).cache, Path::new(cache), "{env:?}");
        }
        assert_eq!(hub(&[]).endpoint, "https://huggingface.co");
        assert_eq!(hub(&[("HF_ENDPOINT", "http://a"), ("MODEL_ENDPOINT", "http://b")]).endpoint, "http://b");
        assert!(hub(&[("HF_HUB_OFFLINE", "1")]).offline && !hub(&[("HF_HUB_OFFLINE", "0")]).offline);
    }

    #[test]
    fn a_token_is_given_or_saved() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "saved\n").unwrap();
        let home = home.path().to_str().unwrap();
        assert_eq!(hub(&[("HF_HOME", home)]).token.as_deref(), Some("saved"));
        assert_eq!(hub(&[("HF_HOME", home), ("HF_TOKEN", "given")]).token.as_deref(), Some("given"));
        let options = HubOptions { hf_token: Some("a\r\nb: c".into()), ..HubOptions::default() };
        assert!(options.hub(|_| None).is_err(), "a token is no way to send other headers");
    }

    #[test]
    fn a_file_needs_its_repository() {
        let options = |repo: Option<&str>, file: Option<&str>| HubOptions {
            hf_repo: repo.map(Into::into),
            hf_file: file.map(Into::into),
            ..HubOptions::default()
        };
        let name = options(Some("u/r:Q8_0"), Some("x/m.gguf")).name().unwrap().unwrap();
        assert_eq!(name.to_string(), "u/r:x/m.gguf");
        assert!(options(None, Some("m.gguf")).name().is_err());
        assert!(options(Some(""), None).name().unwrap().is_none(), "an empty variable is none");
    }
}
