//! From the tensors of a checkpoint to those of a GGUF file: which are there, what belongs together, in which order.
//! Owns the search for what is missing or has no place; how a tensor changes is `plan.rs`'s, and which words the rest
//! finds for it that of whoever asks.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use model::{Schema, TensorSchema, block_of};

use super::config::Config;
use super::keys;
use super::names::{Name, Part, is_bare_head, meaning, meaning_in};
use super::plan::{DeltaPart, LatentPart, Maker, Sources};
use super::words::{WORDS, words};
use crate::error::Error;
use crate::gguf_model::metadata;
use crate::safetensors::{Place, Shards, Tensor, quoted};
use crate::stream::TensorPlan;

/// All tensors of a model.
pub(crate) struct Gathered {
    /// In the order in which llama.cpp's converter writes them: file by file, by their names there.
    pub(crate) tensors: Vec<TensorPlan>,
    pub(crate) n_head_layers: u64,
    pub(crate) faults: Faults,
}

/// What keeps the tensors of a checkpoint from being a whole model.
#[derive(Debug, Default)]
pub struct Faults {
    /// Tensors that the configuration asks for, as they are called in a GGUF file.
    pub n_expected: usize,
    /// Of these, of the head.
    pub n_head_expected: usize,
    /// Of these, there and sound: of the head.
    pub n_head_present: usize,
    /// Not there.
    pub missing: Vec<String>,
    /// There, and without a place in the model; as they are called in the checkpoint.
    pub extra: Vec<String>,
    /// There, and of another shape or type.
    pub wrong: Vec<Error>,
}

impl Faults {
    /// The worst of them, for those who need the whole model.
    pub(crate) fn into_error(mut self, folder: &Path) -> Option<Error> {
        let list = |names: &[String]| {
            let more = if names.len() > SHOWN { ", .." } else { "" };
            names[..names.len().min(SHOWN)].join(", ") + more
        };
        if !self.wrong.is_empty() {
            return Some(self.wrong.swap_remove(0));
        }
        let what = match (self.extra.len(), self.missing.len()) {
            (0, 0) => return None,
            (0, n) => format!("{n} tensors are missing: those that become {}", list(&self.missing)),
            (n, _) => format!("{n} tensors have no place in this model: {}", list(&self.extra)),
        };
        Some(Error::input(folder, what))
    }
}

/// Everything that was found, by the block and the name within it.
struct Found {
    /// With the place in the order of the output.
    tensors: BTreeMap<(Block, String), ((usize, u64), Sources)>,
    scales: HashMap<String, Place>,
    /// With their types.
    unknown: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Block {
    None,
    MainModel(u64),
    Head(u64),
}

/// The whole model, as far as it is there.
pub(crate) fn model_and_head(
    shards: &Shards,
    c: &Config,
    folder: &Path,
    without_head: bool,
) -> Result<Gathered, Error> {
    let refused = |what: String| Error::input(folder, what);
    let mut found = Found::of(shards, folder, Some(c))?;
    if without_head {
        found.tensors.retain(|(block, _), _| !matches!(block, Block::Head(_)));
    }
    let n_head_layers = found.n_head_layers();
    if let Some(n) = c.n_head_layers.filter(|n| n_head_layers > 0 && *n > 0 && *n != n_head_layers) {
        return Err(refused(format!("{n_head_layers} layers of the head found, the configuration promises {n}")));
    }
    let expected = expected(c, n_head_layers, folder, &found)?;
    let mut tensors = Vec::with_capacity(expected.len());
    let mut faults = Faults { extra: std::mem::take(&mut found.unknown), ..Faults::default() };
    let made = c.table().map_or(&[][..], |table| &table.sizes.made);
    for schema in expected {
        if made.iter().any(|(name, _)| *name == schema.name) {
            continue;
        }
        let (block, name) = match block_of(&schema.name) {
            None => (Block::None, schema.name.as_str()),
            Some((il, name)) => (il.checked_sub(c.n_layer).map_or(Block::MainModel(il), Block::Head), name),
        };
        let sources = found.tensors.remove(&(block, name.to_owned()));
        if sources.is_none() && !schema.required {
            continue;
        }
        let of_head = usize::from(matches!(block, Block::Head(_)));
        faults.n_expected += 1;
        faults.n_head_expected += of_head;
        let Some((order, sources)) = sources else {
            faults.missing.push(schema.name);
            continue;
        };
        let maker = Maker { shards, scales: &found.scales, config: Some(c), name: schema.name.clone() };
        let plan = match name {
            WORDS => words(shards, sources.first(), c.n_vocab, &schema),
            _ => maker.plan(name, &sources, Some(&schema)),
        };
        match plan {
            Ok(plan) => {
                tensors.push((order, plan));
                faults.n_head_present += of_head;
            }
            Err(e) => faults.wrong.push(e),
        }
    }
    for (name, numbers) in made {
        let order = ((usize::MAX, 0), TensorPlan::made((*name).to_owned(), numbers.clone()));
        tensors.push(order);
    }
    faults.extra.extend(found.tensors.values().map(|(_, sources)| quoted(&shards.tensor(sources.first()).name)));
    tensors.sort_by_key(|(order, _)| *order);
    Ok(Gathered { tensors: tensors.into_iter().map(|(_, plan)| plan).collect(), n_head_layers, faults })
}

/// Every tensor that the configuration asks for.
fn expected(c: &Config, n_head_layers: u64, folder: &Path, found: &Found) -> Result<Vec<TensorSchema>, Error> {
    if let Some(list) = c.table().and_then(|table| table.sizes.tensors.as_ref()) {
        return Ok(list.clone());
    }
    let keys = keys::of_sizes(c, n_head_layers);
    // Families of the table store some things in one of several ways.
    let has = |name: &str| c.table().is_some() && found.has(name, c.n_layer);
    let schema = Schema::of(&metadata(&keys), c.n_vocab as usize, &has);
    let mut expected = schema.map_err(|e| Error::input(folder, e.to_string()))?.tensors;
    for t in &mut expected {
        // In a file of its own making nothing stands in for it.
        let of_delta = c.delta().is_some() && t.name.ends_with("shared_head_norm.weight");
        t.required |= t.name == "output.weight" && c.tied == Some(false) || of_delta;
    }
    Ok(expected)
}

/// The tensors of the head alone, without the block in their names, each with its layer of the head.
pub(crate) fn head(shards: &Shards, path: &Path) -> Result<Vec<(u64, TensorPlan)>, Error> {
    let found = Found::of(shards, path, None)?;
    let mut tensors = Vec::new();
    for ((block, name), (order, sources)) in &found.tensors {
        let Block::Head(k) = block else { continue };
        let maker = Maker { shards, scales: &found.scales, config: None, name: name.clone() };
        tensors.push((*order, *k, maker.plan(name, sources, None)?));
    }
    if tensors.is_empty() {
        return Err(Error::NoHead(path.to_owned()));
    }
    tensors.sort_by_key(|(order, k, _)| (*k, *order));
    Ok(tensors.into_iter().map(|(_, k, plan)| (k, plan)).collect())
}

impl Found {
    /// Of a checkpoint of a model of `config`; without one of the head alone: whatever else is there is passed over, known or
    /// not.
    fn of(shards: &Shards, path: &Path, config: Option<&Config>) -> Result<Found, Error> {
        let only_head = config.is_none();
        let table = config.and_then(|c| Some((c.table()?, c.n_layer)));
        let bare = is_bare_head(shards.iter().map(|(_, t)| t.name.as_str()));
        let mut found = Found { tensors: BTreeMap::new(), scales: HashMap::new(), unknown: Vec::new() };
        let mut last_of_experts: HashMap<Block, usize> = HashMap::new();
        let mut all: Vec<(Place, &Tensor)> = shards.iter().collect();
        all.sort_by(|(a, t), (b, u)| (a.file, &t.name).cmp(&(b.file, &u.name)));
        for (i, (place, t)) in all.into_iter().enumerate() {
            let meaning = match table {
                Some((table, n_layer)) => meaning_in(&t.name, table, n_layer),
                None => meaning(&t.name, bare),
            };
            let (block, part) = match meaning {
                Name::Skip => continue,
                Name::Scale(weight) => {
                    found.scales.insert(weight, place);
                    continue;
                }
                Name::MainModel(..) | Name::Unknown if only_head => continue,
                Name::MainModel(None, part) => (Block::None, part),
                Name::MainModel(Some(il), part) => (Block::MainModel(il), part),
                Name::Head(k, part) => (Block::Head(k), part),
                Name::Unknown => {
                    found.unknown.push(format!("{} ({})", quoted(&t.name), t.dtype));
                    continue;
                }
            };
            match part {
                Part::Whole(name) => found.add(block, name, (i, 0), Sources::One(place), t, path)?,
                Part::GateUp => {
                    found.add(block, "ffn_gate_exps.weight", (i, 0), Sources::Half(place, 0), t, path)?;
                    found.add(block, "ffn_up_exps.weight", (i, 1), Sources::Half(place, 1), t, path)?;
                }
                Part::Alternate(kind) => {
                    let names = [format!("ffn_gate_exps.{kind}"), format!("ffn_up_exps.{kind}")];
                    for (name, which) in names.iter().zip(0..) {
                        found.add(block, name, (i, which), Sources::Alternate(place, which), t, path)?;
                    }
                }
                Part::Columns(name) => found.add(block, name, (i, 0), Sources::Columns(place), t, path)?,
                Part::Latent => {
                    found.add(block, "attn_k_b.weight", (i, 0), Sources::Latent(place, LatentPart::Keys), t, path)?;
                    found.add(block, "attn_v_b.weight", (i, 1), Sources::Latent(place, LatentPart::Values), t, path)?;
                }
                Part::ByKeyHead => {
                    let of = |part| Sources::ByKeyHead(place, part);
                    found.add(block, "attn_qkv.weight", (i, 0), of(DeltaPart::QueryKeyValue), t, path)?;
                    found.add(block, "attn_gate.weight", (i, 1), of(DeltaPart::Gate), t, path)?;
                }
                Part::Expert(no, name) => {
                    last_of_experts.insert(block, i);
                    let sub = EXPERT_ORDER.iter().position(|n| *n == name).unwrap_or(0) as u64;
                    let entry = found.tensors.entry((block, name.to_owned()));
                    let entry = entry.or_insert_with(|| ((i, sub), Sources::Experts(BTreeMap::new())));
                    let before = match &mut entry.1 {
                        Sources::Experts(list) => list.insert(no, place),
                        _ => Some(place),
                    };
                    if before.is_some() {
                        return Err(twice(t, path));
                    }
                }
            }
        }
        // Experts that come one by one are complete with the last of their block.
        for ((block, _), (order, sources)) in &mut found.tensors {
            if matches!(sources, Sources::Experts(_)) {
                order.0 = last_of_experts[block];
            }
        }
        Ok(found)
    }

    fn add(
        &mut self,
        block: Block,
        name: &str,
        order: (usize, u64),
        sources: Sources,
        t: &Tensor,
        path: &Path,
    ) -> Result<(), Error> {
        match self.tensors.insert((block, name.to_owned()), (order, sources)) {
            None => Ok(()),
            Some(_) => Err(twice(t, path)),
        }
    }

    /// Whether there is something for the tensor of this name.
    fn has(&self, name: &str, n_layer: u64) -> bool {
        let (block, name) = match block_of(name) {
            None => (Block::None, name),
            Some((il, name)) => (il.checked_sub(n_layer).map_or(Block::MainModel(il), Block::Head), name),
        };
        self.tensors.contains_key(&(block, name.to_owned()))
    }

    fn n_head_layers(&self) -> u64 {
        let no = |block: &Block| if let Block::Head(k) = block { k + 1 } else { 0 };
        self.tensors.keys().map(|(block, _)| no(block)).max().unwrap_or(0)
    }
}

fn twice(t: &Tensor, path: &Path) -> Error {
    Error::input(path, format!("tensor {} stands for one that another name stands for too", quoted(&t.name)))
}

/// Names in one sentence.
const SHOWN: usize = 4;
/// The order in which the stacks of a block's experts are written.
const EXPERT_ORDER: [&str; 3] = ["ffn_down_exps.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight"];
