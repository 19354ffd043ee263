//! Names of models: a repository, and which of its models. Nothing in a name can lead to another folder or another address.

use std::fmt;
use std::str::FromStr;

use crate::error::HubError;

/// `USER/REPO`, `USER/REPO:QUANT` or `USER/REPO:PATH/FILE.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    repo: String,
    part: Part,
}

/// Which model of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The usual one.
    Any,
    /// The one in this quantisation, or with these words in its file's name.
    Quant(String),
    /// The one in this file; of several shards any.
    File(String),
}

impl ModelName {
    /// `USER/REPO`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// Which model of the repository.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// The same repository with another part.
    #[must_use]
    pub fn with(&self, part: Part) -> Self {
        Self { repo: self.repo.clone(), part }
    }

    /// The same repository with this file, as `--hf-file` names it.
    ///
    /// # Errors
    /// [`HubError::Name`].
    pub fn with_file(&self, file: &str) -> Result<Self, HubError> {
        if !is_plain_path(file) || !file.ends_with(".gguf") {
            let why = "the file is to be a path in the repository that ends with .gguf";
            return Err(HubError::Name { name: format!("{}:{file}", self.repo), why });
        }
        Ok(self.with(Part::File(file.to_owned())))
    }
}

impl FromStr for ModelName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let wrong = |why| HubError::Name { name: shown(text), why };
        let (repo, part) = text.split_once(':').map_or((text, None), |(repo, part)| (repo, Some(part)));
        let (user, model) = repo.split_once('/').ok_or_else(|| wrong("there is no `/` in it"))?;
        if ![user, model].into_iter().all(is_word) || repo.len() > MAX_REPO {
            return Err(wrong("the repository has other characters than letters, digits, `-`, `_` and single `.`"));
        }
        let name = Self { repo: repo.to_owned(), part: Part::Any };
        match part {
            None => Ok(name),
            Some(file) if file.ends_with(".gguf") => name.with_file(file),
            Some(quant) if is_word(quant) && quant.len() <= MAX_REPO => Ok(name.with(Part::Quant(quant.to_owned()))),
            Some(_) => {
                Err(wrong("the quantization has other characters than letters, digits, `-`, `_` and single `.`"))
            }
        }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.part {
            Part::Any => f.write_str(&self.repo),
            Part::Quant(part) | Part::File(part) => write!(f, "{}:{part}", self.repo),
        }
    }
}

/// What may stand for a user, a repository or a quantisation. The hub allows neither `..` nor `--`; the cache's folders could
/// not be told apart with them.
fn is_word(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: char| matches!(c, '.' | '-');
    !word.is_empty()
        && word.chars().all(plain)
        && !word.starts_with(ends)
        && !word.ends_with(ends)
        && !word.contains("..")
        && !word.contains("--")
}

/// A path below the repository's folder, on every system: no empty part, nothing that leads up, no drive, no control characters.
pub(crate) fn is_plain_path(path: &str) -> bool {
    let plain = |c: char| !c.is_control() && !matches!(c, '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    let part = |part: &str| {
        !part.is_empty() && part.len() <= MAX_PART && !part.ends_with(['.', ' ']) && !part.starts_with(' ')
    };
    path.len() <= MAX_PATH && path.chars().all(plain) && path.split('/').all(part)
}

/// A name that somebody else wrote, for an error: not endless.
fn shown(text: &str) -> String {
    let start: String = text.chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect();
    if start.len() < text.len() && text.chars().count() > MAX_SHOWN { start + "..." } else { start }
}

/// The hub's own limit of a name is 96.
const MAX_REPO: usize = 200;
const MAX_PART: usize = 200;
const MAX_PATH: usize = 1024;
const MAX_SHOWN: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (text, part) in [
            ("u/r", Part::Any),
            ("unsloth/Qwen3.5-2B_x-GGUF:UD-Q4_K_XL", Part::Quant("UD-Q4_K_XL".into())),
            ("u/r:m-Q4_K_M.gguf", Part::File("m-Q4_K_M.gguf".into())),
            ("u/r:UD-Q4_K_XL/m 1-00001-of-00002.gguf", Part::File("UD-Q4_K_XL/m 1-00001-of-00002.gguf".into())),
        ] {
            let name: ModelName = text.parse().unwrap();
            assert_eq!((name.part(), name.to_string().as_str()), (&part, text));
        }
    }

    #[test]
    fn no_name_leads_elsewhere() {
        let long = format!("u/{}", "r".repeat(5000));
        for text in [
            "",
            "r",
            "u/",
            "/r",
            "u/r/s",
            "../r",
            "u/..",
            "u/../r",
            ".u/r",
            "u/r.",
            "u/a--b",
            "u/a..b",
            "u r/s",
            "u/r:",
            "u/r:../x",
            "u/r:../x.gguf",
            "u/r:/x.gguf",
            "u/r:a//b.gguf",
            "u/r:C:x.gguf",
            "u/r:a\\b.gguf",
            "u/r:.gguf/..",
            "u/r:x\n.gguf",
            "u/r?x=1",
            "u/r#x",
            "u/r@x",
            "u/r%2f",
            "http://h/u/r",
            "u/\u{e9}",
            "u/r\0",
            "u/r:a:b",
            &long,
        ] {
            let error = text.parse::<ModelName>().expect_err(text);
            assert!(matches!(error, HubError::Name { .. }) && error.to_string().len() < 500, "{text}: {error}");
        }
        assert!("u/r".parse::<ModelName>().unwrap().with_file("../x.gguf").is_err());
    }
}
