//! Cutting the NextN block out into a file of its own.
//! Owns what each layout takes along and the keys that say where it came from; computes no numbers.

use gguf::ArrayBuf;
use model::block_of;

use super::expected::{cut_vocab, vocab_size};
use super::info::{Content, Layout, ModelInfo};
use super::keys;
use super::new_file::NewFile;
use super::retype::WeightType;
use crate::error::Error;
use crate::gguf_model::{Key, Model};
use crate::source::Source;

/// How a head is cut out.
#[derive(Clone, Copy, Debug)]
pub struct Extract {
    /// What the new file holds.
    pub layout: Layout,
    /// What its matrices become, embedding and head matrix included.
    pub dtype: WeightType,
}

/// The NextN block of a combined file, or of a head in another layout, as a file of its own.
///
/// ```no_run
/// # fn main() -> Result<(), convert::Error> {
/// use convert::heads::{Extract, Layout, WeightType, extract};
/// let how = Extract { layout: Layout::Slim, dtype: WeightType::Keep };
/// let new = extract(convert::Source::open("model.gguf".as_ref())?, how)?;
/// println!("{} tensors", new.model.tensors.len());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no head; or one without embedding (`slim`) shall become one with it.
pub fn extract(source: Source, how: Extract) -> Result<NewFile, Error> {
    let info = ModelInfo::with_blocks(&source)?;
    let refused = |what: &str| Err(Error::input(&source.path, what));
    match info.content {
        Content::Combined | Content::Head(Layout::Upstream | Layout::Legacy) => {}
        Content::Head(Layout::Slim) if how.layout == Layout::Slim => {}
        Content::Head(Layout::Slim) => {
            return refused(
                "is a slim head: the other layouts need the embedding of its model; graft it, then extract",
            );
        }
        Content::MainModel | Content::Assistant => {
            return refused("has no NextN head; get the file that has one, or the original checkpoint");
        }
        Content::Promised => return refused("promises a NextN head and has none; get the original checkpoint"),
        Content::Unannounced => {
            return refused("has tensors of a NextN head but no nextn_predict_layers; strip it, then graft the head");
        }
    }
    if let Some(n) = cut_vocab(&source) {
        return refused(&format!("its output matrix is cut to {n} tokens (d2t): take the file with the whole head"));
    }
    let slim = how.layout == Layout::Slim;
    let globals: &[&str] = match how.layout {
        Layout::Slim => &["output_norm.weight"],
        Layout::Upstream | Layout::Legacy => &["token_embd.weight", "output_norm.weight", "output.weight"],
    };
    let (mut tensors, mut index) = (Vec::new(), Vec::new());
    for (i, t) in source.tensors.iter().enumerate() {
        let of_head = info.is_head(&t.name);
        // Companions such as output.scale go with their matrix.
        let global = globals
            .iter()
            .any(|name| *name == t.name || name.strip_suffix("weight").is_some_and(|stem| t.name.starts_with(stem)));
        if of_head {
            index.push(i as u32);
        }
        if of_head || global {
            let mut plan = t.plan(0)?;
            how.dtype.apply(&mut plan)?;
            tensors.push(plan);
        }
    }
    if how.dtype != WeightType::Keep && tensors.iter().any(|t| t.name.ends_with("scale")) {
        return refused("has scales beside its weights (NVFP4): its types must be kept");
    }
    let mut new_keys: Vec<(String, Key)> = source.model_keys();
    new_keys.retain(|(key, _)| !(keys::is_ours(key) || slim && key.starts_with("tokenizer.")));
    let prefix = if how.layout == Layout::Legacy { format!("{}_mtp", info.arch) } else { info.arch.clone() };
    for (key, value) in &mut new_keys {
        if let Some(rest) = key.strip_prefix(&info.prefix).and_then(|rest| rest.strip_prefix('.')) {
            *key = format!("{prefix}.{rest}");
        } else if key == "general.architecture" {
            *value = Key::from(prefix.as_str());
        } else if let ("general.file_type", Some(n)) = (key.as_str(), how.dtype.file_type()) {
            *value = Key::U32(n);
        }
    }
    new_keys.extend(own_keys(&source, &info, how.layout, index));
    let model =
        Model { keys: new_keys, tensors, inputs: source.inputs, side_inputs: Vec::new(), version: source.version };
    Ok(NewFile { model, notes: Vec::new() })
}

fn own_keys(source: &Source, info: &ModelInfo, layout: Layout, index: Vec<u32>) -> Vec<(String, Key)> {
    let in_block = |il: u64, part: &str| source.tensors.iter().any(|t| block_of(&t.name) == Some((il, part)));
    let has = |part: &str| (info.n_layer..info.n_block).all(|il| in_block(il, part));
    let mut from_target: Vec<&str> = Vec::new();
    if layout == Layout::Slim && !has("nextn.embed_tokens.weight") {
        from_target.push("token_embd");
    }
    if layout == Layout::Slim && !has("nextn.shared_head_head.weight") {
        from_target.push("output");
    }
    // A head that was cut out before tells of the model that it came from.
    let was_head = matches!(info.content, Content::Head(_));
    let earlier = |key: &str| if was_head { source.key(key).cloned() } else { None };
    let mut all: Vec<(String, Key)> = Vec::new();
    let mut add = |key: &str, value: Option<Key>| {
        if let Some(value) = value {
            all.push((key.to_owned(), value));
        }
    };
    add(keys::LAYOUT, Some(Key::from(layout.name())));
    add(keys::LAYOUT_VERSION, Some(Key::U32(1)));
    add(keys::BLOCK, Some(Key::U32(info.n_layer as u32)));
    add(keys::FROM_TARGET, Some(Key::Array(from_target.into_iter().collect::<ArrayBuf>())));
    add(keys::TARGET_EMBD, earlier(keys::TARGET_EMBD).or(Some(Key::U32(info.n_embd as u32))));
    add(keys::TARGET_VOCAB, earlier(keys::TARGET_VOCAB).or_else(|| vocab_size(source).map(|n| Key::U32(n as u32))));
    let tokenizer = source.tokenizer.as_deref().map(Key::from);
    add(keys::TARGET_TOKENIZER, earlier(keys::TARGET_TOKENIZER).or(tokenizer));
    if was_head {
        add(keys::SOURCE_TENSORS, earlier(keys::SOURCE_TENSORS));
        add(keys::SOURCE_INDEX, earlier(keys::SOURCE_INDEX));
    } else {
        add(keys::SOURCE_TENSORS, Some(Key::U32(source.tensors.len() as u32)));
        add(keys::SOURCE_INDEX, Some(Key::Array(index.into_iter().collect::<ArrayBuf>())));
    }
    all
}
