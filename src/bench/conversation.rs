//! Conversations with pictures for `logits` and `generate`: a file of token ids and pictures, and what a projector makes of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Args;
use model::{Model, Pictures, Placed, Projector};
use serde_json::Value;
use session::options::ImageLimitOptions;
use session::{SeenPicture, Sight};
use text::TokenId;

/// The projector, and how large pictures are for it.
#[derive(Clone, Debug, Args)]
pub(super) struct Sees {
    /// Projector (GGUF) for the pictures of --conv-file
    #[arg(long, value_name = "FILE", requires = "conv_file")]
    mmproj: Option<PathBuf>,
    #[command(flatten)]
    limits: ImageLimitOptions,
}

/// A prompt: its tokens, the pictures among them, and how the tokens are told.
#[derive(Default)]
pub(super) struct Prompt {
    /// With ids of pictures where these stand.
    pub(super) tokens: Vec<TokenId>,
    pub(super) pictures: Pictures,
    /// With the model's token for pictures there.
    pub(super) shown: Vec<TokenId>,
}

impl Prompt {
    /// A prompt of words.
    pub(super) fn of_words(tokens: Vec<TokenId>) -> Self {
        Self { shown: tokens.clone(), tokens, pictures: Pictures::default() }
    }

    /// Position of each token in time, in height and in width, or the one that it has.
    pub(super) fn positions(&self) -> Vec<Vec<i32>> {
        let of = |i: usize| (0..self.tokens.len()).map(|token| self.pictures.position(token)[i]).collect();
        let has_one = (0..self.tokens.len()).all(|token| self.pictures.position(token) == [token as i32; 3]);
        (0..if has_one { 1 } else { 3 }).map(of).collect()
    }
}

/// A part of a conversation.
enum Part {
    Ids(Vec<TokenId>),
    Image(PathBuf),
}

impl Sees {
    /// The prompt of a file: `{"parts": [{"ids": [..]}, {"image": path}, ..]}`.
    /// `open` opens the projector where there are pictures.
    pub(super) fn prompt(
        &self,
        path: &Path,
        open: impl FnOnce(&Path) -> anyhow::Result<Projector>,
        model: &Arc<Model>,
    ) -> anyhow::Result<Prompt> {
        let parts = parts(path).with_context(|| path.display().to_string())?;
        if !parts.iter().any(|part| matches!(part, Part::Image(_))) {
            let words = parts.into_iter().flat_map(|part| if let Part::Ids(ids) = part { ids } else { vec![] });
            return Ok(Prompt::of_words(words.collect()));
        }
        let mmproj = self.mmproj.as_deref().context("the conversation has pictures: give the projector by --mmproj")?;
        let sight = Sight::new(open(mmproj)?, model, &self.limits.limits(), usize::MAX)?;
        let (mut shown, mut placed) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Part::Ids(ids) => shown.extend(ids),
                Part::Image(path) => {
                    let encoded = std::fs::read(&path).with_context(|| path.display().to_string())?;
                    let image = sight.image(encoded.into()).with_context(|| path.display().to_string())?;
                    let SeenPicture { embedded, hash } =
                        sight.see(&image, session::ALWAYS).with_context(|| path.display().to_string())?;
                    let first = shown.len();
                    shown.resize(first + embedded.n_tokens(), sight.marker());
                    placed.push(Placed { first, embedded, hash });
                }
            }
        }
        let pictures = Pictures::new(model.picture_kind(), model.hparams().n_embd, shown.len(), placed)?;
        let mut tokens = shown.clone();
        pictures.write_ids(&mut tokens);
        Ok(Prompt { tokens, pictures, shown })
    }
}

fn parts(path: &Path) -> anyhow::Result<Vec<Part>> {
    let file: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let listed = file["parts"].as_array().context("`parts` is no list: [{\"ids\": [..]}, {\"image\": path}, ..]")?;
    let part = |part: &Value| match (part.get("ids"), part.get("image").and_then(Value::as_str)) {
        (Some(ids), None) => {
            let ids: Vec<u32> = serde_json::from_value(ids.clone()).context("`ids` are no token ids")?;
            Ok(Part::Ids(ids.into_iter().map(TokenId).collect()))
        }
        (None, Some(image)) => Ok(Part::Image(PathBuf::from(image))),
        _ => bail!("a part has either `ids` or `image`, {part} found"),
    };
    let parts = listed.iter().map(part).collect::<anyhow::Result<Vec<_>>>()?;
    let is_empty = |part: &Part| matches!(part, Part::Ids(ids) if ids.is_empty());
    ensure!(!parts.iter().all(is_empty), "there are no tokens: give at least one");
    Ok(parts)
}
