//! Putting a NextN block into a file that has a main model.
//! Owns where keys and tensors go, so that `strip` finds the way back; computes no numbers of its own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use model::{Schema, TensorSchema, block_of};

use super::expected::vocab_size;
use super::info::{Content, ModelInfo};
use super::keys;
use super::new_file::NewFile;
use super::retype::{WeightType, is_matrix};
use super::strip::restore_word;
use crate::checkpoint::Head;
use crate::error::Error;
use crate::gguf_model::{Key, Model, metadata};
use crate::io::Input;
use crate::kind::Kind;
use crate::safetensors::INDEX;
use crate::source::Source;
use crate::stream::TensorPlan;

/// Where a head comes from.
#[derive(Debug)]
pub enum HeadSource {
    /// A head in a file of its own, or a combined file.
    Gguf(Box<Source>),
    /// Safetensors: a whole checkpoint, those of its shards that hold the head, or a file with nothing else.
    Checkpoint {
        /// What was found in it.
        head: Box<Head>,
        /// As it was asked for.
        path: PathBuf,
    },
}

/// How a head is put in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Graft {
    /// What the matrices of the head become.
    pub dtype: WeightType,
    /// A head that was cut from a model with another vocabulary is taken too.
    pub other_tokenizer: bool,
}

impl HeadSource {
    /// Opens a GGUF file, a `.safetensors` file or a folder of them.
    ///
    /// # Errors
    /// Nothing of this kind is there, or it is damaged.
    pub fn open(path: &Path) -> Result<HeadSource, Error> {
        Ok(match Kind::of(path)? {
            Kind::Gguf => HeadSource::Gguf(Box::new(Source::open(path)?)),
            Kind::Checkpoint | Kind::Safetensors => {
                HeadSource::Checkpoint { head: Box::new(Head::open(path)?), path: path.to_owned() }
            }
        })
    }

    fn path(&self) -> &Path {
        match self {
            HeadSource::Gguf(source) => &source.path,
            HeadSource::Checkpoint { path, .. } => path,
        }
    }
}

/// Target and head as one combined file: the head's tensors in the places that they had in the file that the head was
/// cut from, or behind the last block of the main model; keys and per-layer arrays that count one block more;
/// everything else of the target as it is.
///
/// ```no_run
/// # fn main() -> Result<(), convert::Error> {
/// use convert::heads::{Graft, HeadSource, graft};
/// let head = HeadSource::open("Qwen3.6-27B/model-00015-of-00015.safetensors".as_ref())?;
/// let new = graft(convert::Source::open("Qwen3.6-27B-Q4_K_M.gguf".as_ref())?, head, Graft::default())?;
/// new.write("Qwen3.6-27B-Q4_K_M-nextn.gguf".as_ref(), 2, &Default::default())
/// # }
/// ```
///
/// # Errors
/// The target has a head or no main model; the head is of another architecture, size or place, is not complete, or was
/// cut from a model with another vocabulary.
pub fn graft(target: Source, head: HeadSource, how: Graft) -> Result<NewFile, Error> {
    let info = ModelInfo::with_blocks(&target)?;
    let refused = |what: String| Err(Error::input(&target.path, what));
    match info.content {
        Content::MainModel | Content::Promised => {}
        Content::Combined => return refused("has a NextN head; `extract-nextn strip` takes it out".into()),
        Content::Unannounced => {
            return refused("has some tensors of a NextN block; `extract-nextn strip` takes them out".into());
        }
        Content::Head(_) | Content::Assistant => {
            return refused("is a head without a main model: give the model first, then the head".into());
        }
    }
    let donor = match &head {
        HeadSource::Gguf(source) => Some(donor_facts(source, &target, &info, how.other_tokenizer)?),
        HeadSource::Checkpoint { .. } => None,
    };
    let head_path = head.path().to_owned();
    let Parts { mut plans, inputs: mut head_inputs, index, n_blocks, donor_keys } =
        Parts::of(head, donor, &info, &target)?;
    if info.n_nextn > 0 && info.n_nextn != n_blocks {
        let what = format!("the head has {n_blocks} NextN blocks, {} promises {}", target.path.display(), info.n_nextn);
        return Err(Error::input(&head_path, what));
    }
    let new_keys = new_keys(&target, &info, n_blocks, donor_keys.as_ref())?;
    check(&plans, &new_keys, &target, &info, &head_path)?;
    let mut notes = Vec::new();
    for plan in &mut plans {
        how.dtype.apply(plan)?;
    }
    if let Some(note) = kept_in_floats(&plans, &target) {
        notes.push(note);
    }
    let tensors = woven(&target, &info, plans, index)?;
    let mut inputs = target.inputs;
    inputs.append(&mut head_inputs);
    let side_inputs = vec![head_path.join(INDEX)];
    let model = Model { keys: new_keys, tensors, inputs, side_inputs, version: target.version };
    Ok(NewFile { model, notes })
}

/// The head's tensors with the names and inputs of the new file.
struct Parts {
    plans: Vec<TensorPlan>,
    inputs: Vec<Input>,
    /// Places of the tensors in the file that the head was cut from, when that had as many tensors as the new file.
    index: Option<Vec<u64>>,
    /// NextN blocks.
    n_blocks: u64,
    donor_keys: Option<(Source, ModelInfo)>,
}

impl Parts {
    fn of(head: HeadSource, donor: Option<ModelInfo>, info: &ModelInfo, target: &Source) -> Result<Parts, Error> {
        let file_base = target.inputs.len();
        match (head, donor) {
            (HeadSource::Gguf(mut source), Some(donor)) => {
                let of_head: Vec<usize> =
                    (0..source.tensors.len()).filter(|i| donor.is_head(&source.tensors[*i].name)).collect();
                let plans = of_head.iter().map(|i| source.tensors[*i].plan(file_base)).collect::<Result<_, _>>()?;
                let (n_source, index) = match donor.content {
                    Content::Head(_) => {
                        let index = match source.key(keys::SOURCE_INDEX) {
                            Some(Key::Array(list)) => {
                                list.as_array().iter().map(|v| u64::try_from(v.as_int()?).ok()).collect()
                            }
                            _ => None,
                        };
                        (source.key(keys::SOURCE_TENSORS).and_then(Key::as_u64), index)
                    }
                    _ => (Some(source.tensors.len() as u64), Some(of_head.iter().map(|i| *i as u64).collect())),
                };
                let n_new = (target.tensors.len() + of_head.len()) as u64;
                let fits = |index: &Vec<u64>| {
                    index.len() == of_head.len()
                        && index.is_sorted_by(|a, b| a < b)
                        && index.last().is_none_or(|last| *last < n_new)
                };
                let index = index.filter(|index| n_source == Some(n_new) && fits(index));
                let inputs = std::mem::take(&mut source.inputs);
                Ok(Parts { plans, inputs, index, n_blocks: donor.n_nextn, donor_keys: Some((*source, donor)) })
            }
            (HeadSource::Checkpoint { head, path }, _) => {
                let layers: Vec<u64> = head.tensors().iter().map(|t| t.layer).collect();
                let n_blocks = 1 + layers.iter().max().copied().unwrap_or(0);
                if n_blocks > MAX_NEW_BLOCKS {
                    let what = format!("the head has a layer {}, at most {MAX_NEW_BLOCKS} expected", n_blocks - 1);
                    return Err(Error::input(&path, what));
                }
                let Model { tensors: mut plans, inputs, .. } = head.into_model();
                for (plan, layer) in plans.iter_mut().zip(layers) {
                    plan.name = format!("blk.{}.{}", info.n_layer + layer, plan.name);
                    plan.shift_files(file_base);
                }
                Ok(Parts { plans, inputs, index: None, n_blocks, donor_keys: None })
            }
            (HeadSource::Gguf(source), None) => Err(Error::input(&source.path, "was not looked at")),
        }
    }
}

/// Blocks of a head at most.
const MAX_NEW_BLOCKS: u64 = 16;

/// What the head's file says, compared with the target.
pub(super) fn donor_facts(
    source: &Source,
    target: &Source,
    info: &ModelInfo,
    other_tokenizer: bool,
) -> Result<ModelInfo, Error> {
    let donor = ModelInfo::with_blocks(source)?;
    let refused = |what: String| Err(Error::input(&source.path, what));
    if !matches!(donor.content, Content::Combined | Content::Head(_)) {
        return refused("has no NextN head to give".into());
    }
    if donor.arch != info.arch {
        return refused(format!("the head is for {}, the target is {}", donor.arch, info.arch));
    }
    if (donor.n_layer, donor.n_embd) != (info.n_layer, info.n_embd) {
        return refused(format!(
            "the head is for {} blocks of width {}, the target has {} of width {}: made for another model",
            donor.n_layer, donor.n_embd, info.n_layer, info.n_embd
        ));
    }
    let of_donor = match source.key(keys::TARGET_TOKENIZER) {
        Some(Key::Str(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => source.tokenizer.clone(),
    };
    if let (Some(a), Some(b), false) = (&of_donor, &target.tokenizer, other_tokenizer)
        && a != b
    {
        return refused(format!(
            "the head was cut from a model with another vocabulary ({}..., the target has {}...): its drafts would be \
             wrong; --other-tokenizer takes it all the same",
            a.chars().take(17).collect::<String>(),
            b.chars().take(17).collect::<String>()
        ));
    }
    let sizes = (vocab_size(source), vocab_size(target));
    if let ((Some(a), Some(b)), false) = (sizes, other_tokenizer)
        && a != b
    {
        return refused(format!(
            "the head was cut from a model of {a} tokens, the target has {b}; --other-tokenizer takes it all the same"
        ));
    }
    Ok(donor)
}

/// Whether the head is complete and of the sizes of the model that it makes: `keys` are those of the new file.
fn check(
    plans: &[TensorPlan],
    keys: &[(String, Key)],
    target: &Source,
    info: &ModelInfo,
    path: &Path,
) -> Result<(), Error> {
    let shapes: HashMap<&str, &[u64]> = plans.iter().map(|p| (p.name.as_str(), p.ne.as_slice())).collect();
    let n_vocab = vocab_size(target).unwrap_or(0) as usize;
    let schema = Schema::of(&metadata(keys), n_vocab, &|name| shapes.contains_key(name))
        .map_err(|e| Error::input(&target.path, e.to_string()))?;
    let expected: Vec<&TensorSchema> = schema.tensors.iter().filter(|t| info.is_head(&t.name)).collect();
    let mut wrong = Vec::new();
    for t in &expected {
        match shapes.get(t.name.as_str()) {
            None if t.required => wrong.push(format!("{} is missing", t.name)),
            None => {}
            Some(found) if t.has_shape(found) => {}
            Some(found) => wrong.push(format!("{}: {:?} expected, {found:?} found", t.name, t.ne)),
        }
    }
    let known = |name: &str| expected.iter().any(|t| t.name == name || is_companion(name, &t.name));
    wrong.extend(shapes.keys().filter(|name| !known(name)).map(|name| format!("{name} has no place in a head")));
    if wrong.is_empty() {
        return Ok(());
    }
    wrong.sort();
    let more = if wrong.len() > 3 { format!(", and {} more", wrong.len() - 3) } else { String::new() };
    let what =
        format!("the head does not fit {}: {}{more}", target.path.display(), wrong[..wrong.len().min(3)].join("; "));
    Err(Error::input(path, what))
}

/// Whether a tensor holds the scales of another (`x.scale` or `x.input_scale` of `x.weight`).
fn is_companion(name: &str, of: &str) -> bool {
    let rest = of.strip_suffix("weight").and_then(|stem| name.strip_prefix(stem));
    matches!(rest, Some("scale" | "input_scale"))
}

/// The keys of `target` with a head of `n_blocks` blocks: those of `donor`, where the head comes from a GGUF file.
pub(super) fn new_keys(
    target: &Source,
    info: &ModelInfo,
    n_blocks: u64,
    donor: Option<&(Source, ModelInfo)>,
) -> Result<Vec<(String, Key)>, Error> {
    let mut new = target.model_keys();
    let n_nextn = info.full("nextn_predict_layers");
    keys::set_number(&mut new, &info.full("block_count"), info.n_layer + n_blocks);
    if target.key(&n_nextn).is_some() {
        keys::set_number(&mut new, &n_nextn, n_blocks);
    } else {
        let value = donor.and_then(|(source, of)| source.key(&of.full("nextn_predict_layers")).cloned());
        new.insert(place_of_count(&new, info, donor), (n_nextn, value.unwrap_or(Key::U32(n_blocks as u32))));
    }
    keys::lengthen(&mut new, info, n_blocks, donor.map(|(source, of)| (source, of)))?;
    if let Some(word) = restore_word(info, target) {
        new.push((keys::RESTORE.to_owned(), word));
    }
    Ok(new)
}

/// Where `nextn_predict_layers` goes: behind the key that stands before it in the head's file; without such a file
/// where converters write it, before the keys of the delta nets.
fn place_of_count(new: &[(String, Key)], info: &ModelInfo, donor: Option<&(Source, ModelInfo)>) -> usize {
    let at = |key: &str| new.iter().position(|(k, _)| k == key);
    if let Some((source, of)) = donor {
        let own = of.full("nextn_predict_layers");
        let before: Vec<&str> = source.keys.iter().map(|(key, _)| key.as_str()).take_while(|key| *key != own).collect();
        let renamed = |key: &str| match key.strip_prefix(&of.prefix).and_then(|rest| rest.strip_prefix('.')) {
            Some(rest) => info.full(rest),
            None => key.to_owned(),
        };
        if let Some(i) = before.iter().rev().find_map(|key| at(&renamed(key))) {
            return i + 1;
        }
    }
    let of_arch = |(key, _): &(String, Key)| key.starts_with(&format!("{}.", info.prefix));
    at(&info.full("ssm.conv_kernel")).unwrap_or_else(|| new.iter().rposition(of_arch).map_or(new.len(), |i| i + 1))
}

/// The target's tensors with those of the head between them.
fn woven(
    target: &Source,
    info: &ModelInfo,
    plans: Vec<TensorPlan>,
    index: Option<Vec<u64>>,
) -> Result<Vec<TensorPlan>, Error> {
    let mut old = target.tensors.iter();
    let mut all = Vec::with_capacity(target.tensors.len() + plans.len());
    match index {
        Some(index) => {
            for (at, plan) in index.into_iter().zip(plans) {
                while (all.len() as u64) < at {
                    let Some(t) = old.next() else { break };
                    all.push(t.plan(0)?);
                }
                all.push(plan);
            }
        }
        None => {
            let last = target
                .tensors
                .iter()
                .rposition(|t| block_of(&t.name).is_some_and(|(block, _)| block + 1 == info.n_layer));
            for t in old.by_ref().take(last.map_or(target.tensors.len(), |i| i + 1)) {
                all.push(t.plan(0)?);
            }
            all.extend(plans);
        }
    }
    for t in old {
        all.push(t.plan(0)?);
    }
    Ok(all)
}

/// A head in floats beside a quantised main model reads more than it must for each draft.
fn kept_in_floats(plans: &[TensorPlan], target: &Source) -> Option<String> {
    use gguf::TensorType::{BF16, F16, F32};
    let is_float = |dtype| matches!(dtype, F32 | F16 | BF16);
    let matrices = plans.iter().filter(|plan| is_matrix(plan));
    let floats = matrices.filter(|plan| is_float(plan.dtype)).map(|plan| plan.n_rows() * plan.row_len).sum::<u64>();
    let quantised = target.tensors.iter().filter(|t| !is_float(t.dtype)).map(|t| t.n_elements()).sum::<u64>();
    let all = target.tensors.iter().map(|t| t.n_elements()).sum::<u64>();
    (floats > 0 && quantised * 2 > all).then(|| {
        "the head's matrices stay floats beside a quantized main model; with --type q8_0 a draft reads about half as much".into()
    })
}
