//! What is in a file: sizes, types, where the bytes are, which head, what speculation would cost and gain.
//! Owns the figures; draws nothing and reads no data.

mod as_draft;
mod cost;
mod roles;
mod types;

use std::path::{Path, PathBuf};

use model::{ProjectorSchema, head_architectures, nextn_architectures};
use serde::Serialize;

use crate::checkpoint::{self, Checkpoint, Options, WORDS};
use crate::error::Error;
use crate::gguf_model::Key;
use crate::heads::{Content, Layout, ModelInfo, vocab_size};
use crate::kind::Kind;
use crate::source::{Source, SourceTensor};

pub use as_draft::AsDraft;
pub use cost::{Gain, Speculation};
pub use roles::Role;
pub use types::{Promise, TypeShare};

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// As it was asked for.
    pub path: PathBuf,
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// Files.
    pub n_files: usize,
    /// Bytes of all files.
    pub n_bytes: u64,
    /// `general.architecture`; of a checkpoint that which it becomes.
    pub architecture: Option<String>,
    /// `general.name`.
    pub name: Option<String>,
    /// Tensors.
    pub n_tensors: usize,
    /// Numbers in all tensors.
    pub n_parameters: u64,
    /// Sizes of the model, if the architecture is known.
    pub sizes: Option<Sizes>,
    /// Tokens of context that it was trained for.
    pub context_length: Option<u64>,
    /// How numbers are stored, largest share first.
    pub types: Vec<TypeShare>,
    /// What the products with all of its weights promise on this processor's cores; none without tensors.
    pub batch_invariant: Option<Promise>,
    /// Where the bytes are, largest share first.
    pub roles: Vec<Share>,
    /// The vocabulary.
    pub tokenizer: Option<Tokenizer>,
    /// Bytes of the chat template.
    pub template_bytes: Option<u64>,
    /// The tower, of a projector of a known kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projector: Option<Tower>,
    /// The NextN head.
    pub head: Head,
    /// What it is for a model that drafts with it.
    pub as_draft: Option<AsDraft>,
    /// What a draft costs and may gain; for files with main model and head.
    pub speculation: Option<Speculation>,
}

/// Sizes of a model.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Sizes {
    pub n_layer: u64,
    pub n_embd: u64,
    pub n_vocab: Option<u64>,
    pub n_head: Option<u64>,
    pub n_head_kv: Option<u64>,
    pub n_expert: Option<u64>,
    pub n_expert_used: Option<u64>,
}

/// The tower of a projector.
#[derive(Clone, Debug, Serialize)]
pub struct Tower {
    /// `clip.projector_type`.
    pub kind: &'static str,
    /// Blocks.
    pub n_layer: usize,
    /// Width.
    pub n_embd: usize,
    /// Width of the rows that it gives: that of the model of text.
    pub n_embd_text: usize,
    /// Pixels along a side of a patch.
    pub patch: usize,
    /// Patches along a side of what becomes one token.
    pub merge: usize,
}

/// A part of the tensors.
#[derive(Clone, Debug, Serialize)]
pub struct Share {
    /// What they have in common.
    pub name: String,
    /// Tensors.
    pub n_tensors: usize,
    /// Their bytes.
    pub n_bytes: u64,
}

/// The vocabulary.
#[derive(Clone, Debug, Serialize)]
pub struct Tokenizer {
    /// `tokenizer.ggml.model`.
    pub model: Option<String>,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// Entries.
    pub n_tokens: u64,
    /// What [`text::fingerprint`] gives.
    pub fingerprint: Option<String>,
}

/// The NextN head.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// Whether there is one.
    pub status: Status,
    /// Its first block.
    pub block: Option<u64>,
    /// Its blocks, of which each drafts one token where there are several.
    pub n_blocks: u64,
    /// The architecture that it drafts for, if it is an architecture of its own.
    pub target: Option<&'static str>,
    /// Its tensors.
    pub n_tensors: usize,
    /// Their bytes.
    pub n_bytes: u64,
    /// If it is in a file of its own: how it is laid out.
    pub layout: Option<&'static str>,
}

/// Whether there is a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its tensors are here.
    Present,
    /// The metadata promise one that is not here.
    Promised,
    /// Tensors are here that the metadata do not count.
    Unannounced,
    /// No word of one.
    Missing,
    /// Heads of this architecture are not known.
    Unknown,
}

/// Looks at a GGUF file, with all shards when it is the first of several, at a folder of a Hugging Face checkpoint, or
/// at a head alone in safetensors.
///
/// ```
/// use convert::inspect::{Status, inspect};
/// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pocket-q4_k_m.gguf");
/// let found = inspect(file.as_ref())?;
/// for role in &found.roles {
///     println!("{:>12} {}", role.n_bytes, role.name);
/// }
/// assert_eq!((found.head.status, found.head.n_tensors), (Status::Present, 15));
/// # Ok::<(), convert::Error>(())
/// ```
///
/// # Errors
/// The file cannot be read, or is not as its format says.
pub fn inspect(path: &Path) -> Result<Inspection, Error> {
    let (source, format) = match Kind::of_whole(path)? {
        Kind::Gguf => (Source::open(path)?, "gguf"),
        Kind::Checkpoint => {
            let checkpoint = Checkpoint::open(path, Options::default())?;
            (Source::of_model(path, checkpoint.model), "safetensors")
        }
        Kind::Safetensors => (Source::of_model(path, checkpoint::Head::open(path)?.into_model()), "safetensors"),
    };
    let known = source.text("general.architecture").is_some_and(crate::heads::is_known);
    // A file of a known architecture whose keys disagree is worth an error; others are shown as far as that goes.
    let info = if known { Some(ModelInfo::of(&source)?) } else { None };
    let n_vocab = vocab_size(&source);
    let sizes = info.as_ref().map(|f| Sizes {
        n_layer: f.n_layer,
        n_embd: f.n_embd,
        n_vocab,
        n_head: f.number(&source, "attention.head_count", f.n_layer - 1),
        n_head_kv: f.number(&source, "attention.head_count_kv", f.n_layer - 1),
        n_expert: f.number(&source, "expert_count", 0),
        n_expert_used: f.number(&source, "expert_used_count", 0),
    });
    let prefix = source.text("general.architecture").unwrap_or_default();
    let context_length = source.key(&format!("{prefix}.context_length")).and_then(Key::as_u64);
    let tokenizer = match source.key("tokenizer.ggml.tokens") {
        Some(Key::Array(tokens)) => Some(Tokenizer {
            model: source.text("tokenizer.ggml.model").map(str::to_owned),
            pre: source.text("tokenizer.ggml.pre").map(str::to_owned),
            n_tokens: tokens.as_array().len() as u64,
            fingerprint: source.tokenizer.clone(),
        }),
        _ => None,
    };
    let template_bytes = match source.key("tokenizer.chat_template") {
        Some(Key::Str(bytes)) => Some(bytes.len() as u64),
        _ => None,
    };
    let types = types::of(&source.tensors);
    Ok(Inspection {
        path: path.to_owned(),
        format,
        n_files: source.inputs.len(),
        n_bytes: source.n_bytes(),
        architecture: source.text("general.architecture").map(str::to_owned),
        name: source.text("general.name").map(str::to_owned),
        n_tensors: source.tensors.len(),
        n_parameters: source.tensors.iter().map(SourceTensor::n_elements).fold(0, u64::saturating_add),
        sizes,
        context_length,
        // A list of tokens is multiplied with nothing.
        batch_invariant: types::together(&types::of(source.tensors.iter().filter(|t| t.name != WORDS))),
        types,
        roles: shares(&source.tensors, |t| {
            let role = if source.keys.is_empty() { Role::NextN } else { Role::of(&t.name, info.as_ref()) };
            role.name().to_owned()
        }),
        tokenizer,
        template_bytes,
        projector: tower(&source)?,
        head: head(&source, info.as_ref()),
        as_draft: AsDraft::of(&source, info.as_ref(), format == "gguf"),
        speculation: info.as_ref().and_then(|f| cost::of(&source, f, n_vocab)),
    })
}

/// # Errors
/// A projector of a known kind whose keys disagree.
fn tower(source: &Source) -> Result<Option<Tower>, Error> {
    let meta = source.metadata();
    let kind = ProjectorSchema::kind_of(&meta).ok().flatten().unwrap_or_default();
    if !ProjectorSchema::is_for(&meta) || !ProjectorSchema::kinds().contains(&kind) {
        return Ok(None);
    }
    let n_rows = |name: &str| source.tensor(name).map(|t| t.ne.get(1).copied().unwrap_or(1));
    let schema = ProjectorSchema::of_meta(&meta, &|name| source.tensor(name).is_some(), &n_rows)
        .map_err(|error| Error::input(&source.path, error.to_string()))?;
    let ProjectorSchema { n_layer, n_embd, n_embd_text, patch, merge, .. } = schema;
    Ok(Some(Tower { kind: schema.kind(), n_layer, n_embd, n_embd_text, patch, merge }))
}

fn head(source: &Source, info: Option<&ModelInfo>) -> Head {
    let Some(info) = info else {
        // Without keys there is nothing but a head in safetensors.
        let alone = source.keys.is_empty();
        let n_bytes = if alone { source.tensors.iter().map(|t| t.n_bytes).sum() } else { 0 };
        let (status, n_tensors) = if alone { (Status::Present, source.tensors.len()) } else { (Status::Unknown, 0) };
        return Head { status, block: None, n_blocks: 0, target: None, n_tensors, n_bytes, layout: None };
    };
    let of_head = || source.tensors.iter().filter(|t| info.is_head(&t.name));
    let n_tensors = of_head().count();
    let (status, layout) = match info.content {
        Content::Combined => (Status::Present, None),
        Content::Head(layout) => (Status::Present, Some(Layout::name(layout))),
        Content::Promised => (Status::Promised, None),
        Content::Unannounced => (Status::Unannounced, None),
        Content::Assistant => (Status::Present, None),
        Content::MainModel if nextn_architectures().contains(&info.arch.as_str()) => (Status::Missing, None),
        Content::MainModel => (Status::Unknown, None),
    };
    let target = head_architectures().into_iter().find(|(head, _)| *head == info.arch).map(|(_, target)| target);
    let block = (n_tensors > 0 && target.is_none()).then_some(info.n_layer);
    Head {
        status,
        block,
        n_blocks: info.n_nextn,
        target,
        n_tensors,
        n_bytes: of_head().map(|t| t.n_bytes).sum(),
        layout,
    }
}

fn shares(tensors: &[SourceTensor], name: impl Fn(&SourceTensor) -> String) -> Vec<Share> {
    let mut all: Vec<Share> = Vec::new();
    for t in tensors {
        let name = name(t);
        match all.iter_mut().find(|share| share.name == name) {
            Some(share) => {
                share.n_tensors += 1;
                share.n_bytes += t.n_bytes;
            }
            None => all.push(Share { name, n_tensors: 1, n_bytes: t.n_bytes }),
        }
    }
    all.sort_by_key(|share| std::cmp::Reverse(share.n_bytes));
    all
}
