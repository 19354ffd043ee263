//! Prompts that ask for the text between two others, where the vocabulary has tokens for that.

use text::{Fim, Special, TokenId};

use crate::open::LoadedModel;
use crate::prepare::PrepareError;

/// A gap in a text.
#[derive(Clone, Debug, Default)]
pub struct Gap<'a> {
    /// The text before it.
    pub before: &'a str,
    /// The text after it.
    pub after: &'a str,
    /// What the gap begins with.
    pub begins: Option<&'a str>,
    /// Other files of the project: names, where they are known, and texts.
    pub files: Vec<(Option<&'a str>, &'a str)>,
}

impl LoadedModel {
    /// The prompt that asks for what fills `gap`.
    ///
    /// # Errors
    /// [`PrepareError::NoInfill`].
    pub fn infill(&self, gap: &Gap<'_>) -> Result<Vec<TokenId>, PrepareError> {
        let fim = self.fim()?;
        let plain = |text: &str| self.vocab().encode(text, Special::Plain);
        let mut tokens = Vec::new();
        let separator = self.vocab().id("<|file_sep|>");
        for (name, text) in &gap.files {
            // Without a token between files their names are all that parts them.
            tokens.extend(separator);
            tokens.extend(plain(&format!("{}\n{text}", name.unwrap_or("tmp"))));
        }
        if let (Some(separator), false) = (separator, tokens.is_empty()) {
            tokens.push(separator);
            tokens.extend(plain("filename\n"));
        }
        tokens.push(fim.prefix);
        tokens.extend(plain(gap.before));
        tokens.extend(gap.begins.iter().flat_map(|text| plain(text)));
        tokens.push(fim.suffix);
        tokens.extend(plain(gap.after));
        tokens.push(fim.middle);
        Ok(tokens)
    }

    /// The prompt that asks for what comes between the tokens `before` and the text `after`.
    ///
    /// # Errors
    /// [`PrepareError::NoInfill`].
    pub fn fill_in(&self, before: &[TokenId], after: &str) -> Result<Vec<TokenId>, PrepareError> {
        let fim = self.fim()?;
        let after = self.vocab().encode(after, Special::Plain);
        Ok([&[fim.prefix], before, &[fim.suffix], &after, &[fim.middle]].concat())
    }

    fn fim(&self) -> Result<Fim, PrepareError> {
        self.vocab().fim().ok_or(PrepareError::NoInfill)
    }

    /// The text of tokens, whole characters of it.
    pub fn text_of_tokens(&self, tokens: &[TokenId]) -> String {
        let vocab = self.vocab();
        let bytes: Vec<u8> = tokens.iter().flat_map(|&id| vocab.bytes(id).unwrap_or_default()).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
