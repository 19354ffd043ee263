//! LoRA adapters (Hu et al. 2021): files of low-rank updates of a model's matrices, `W + scale * B A`.
//! Owns what an adapter file must be like, and which of the model's weights its tensors belong to. The products are those of
//! `blocks/linear.rs`.
//!
//! For a matrix `[n_in, n_out]` a file holds `NAME.lora_a: [n_in, rank]` and `NAME.lora_b: [rank, n_out]`; for the embedding,
//! whose rows are looked up, `[rank, n_vocab]` and `[rank, n_embd]`. The factor is `adapter.lora.alpha / rank`, or 1 where
//! there is no alpha, times the one that is asked for.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ggml::{Dtype, Graph, LowRank, LowRanks, Mapping, WeightId, WeightsBuilder};
use gguf::{Header, TensorInfo};

use crate::adapter_set::AdapterSet;
use crate::error::LoadError;
use crate::fingerprint::{Fingerprint, digest};
use crate::rope_options::RopeOptions;
use crate::tensors::{Updatable, trimmed, weight_type};
use crate::zero_fill::ZeroFill;

/// An adapter that is loaded with its model.
#[derive(Debug)]
pub struct Adapter {
    path: PathBuf,
    mapping: Arc<Mapping>,
    task_name: String,
    prompt_prefix: String,
    updates: Vec<(WeightId, LowRank)>,
}

impl Adapter {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file says that it is for; may be empty.
    pub fn task_name(&self) -> &str {
        &self.task_name
    }

    /// What the file says that prompts should begin with; may be empty.
    pub fn prompt_prefix(&self) -> &str {
        &self.prompt_prefix
    }

    /// The bytes of the file.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Matrices that it updates.
    pub fn n_updates(&self) -> usize {
        self.updates.len()
    }

    /// As [`crate::Model::fingerprint`], over the adapter's file.
    ///
    /// # Errors
    /// [`LoadError`]: the file has changed since it was opened.
    pub fn fingerprint(&self) -> Result<Fingerprint, LoadError> {
        digest(std::slice::from_ref(&self.mapping), &RopeOptions::default())
    }
}

/// The adapters that passes are computed with.
#[derive(Default)]
pub(crate) struct InUse {
    /// Which, and with which factors.
    pub(crate) set: AdapterSet,
    low_ranks: Arc<LowRanks>,
}

impl InUse {
    /// Those of `set`; `None` where it has one that is not there.
    pub(crate) fn of(adapters: &[Adapter], set: &AdapterSet) -> Option<Self> {
        let mut all = LowRanks::new();
        for (id, scale) in set.scales() {
            for (weight, update) in &adapters.get(id)?.updates {
                all.entry(*weight).or_default().push(LowRank { scale: update.scale * scale, ..*update });
            }
        }
        Some(Self { set: set.clone(), low_ranks: Arc::new(all) })
    }

    /// The updates hold in `g`.
    pub(crate) fn begin(&self, g: &Graph<'_>) {
        g.set_low_ranks(Arc::clone(&self.low_ranks));
    }

    /// Nodes that they add at most to a graph that goes through the model's matrices so often.
    pub(crate) fn max_nodes(&self, n_times: usize) -> usize {
        MAX_NODES * n_times * self.low_ranks.values().map(Vec::len).sum::<usize>()
    }
}

/// Nodes of one update of a matrix at most: two products, a factor and a sum, with what keeps a row's bits (`blocks/linear.rs`).
const MAX_NODES: usize = 16;

/// Opens an adapter file as adapter number `id` of a model of architecture `arch`, and adds its tensors to the weights. What is
/// wrong with the file names it.
pub(crate) fn open(
    path: &Path,
    id: usize,
    arch: &str,
    updatable: &HashMap<String, Updatable>,
    weights: &mut WeightsBuilder,
) -> Result<Adapter, LoadError> {
    let opened = Mapping::open(path).map_err(LoadError::from).and_then(|mapping| {
        let mapping = Arc::new(mapping);
        let Content { alpha, pairs, task_name, prompt_prefix } = read(&mapping, arch, updatable)?;
        let updates = bind(id, alpha, &pairs, &mapping, weights)?;
        Ok(Adapter { path: path.to_owned(), mapping, task_name, prompt_prefix, updates })
    });
    let adapter = opened.map_err(|error| LoadError::Adapter(error.in_file(path)))?;
    tracing::info!(path = %path.display(), id, n_updates = adapter.n_updates(), "adapter opened");
    Ok(adapter)
}

/// One update as the file has it.
struct Pair {
    name: String,
    target: Updatable,
    rank: u64,
    a: Part,
    b: Part,
}

/// A tensor of the file.
struct Part {
    dtype: Dtype,
    ne: [u64; 4],
    range: Range<usize>,
}

/// What a file holds.
struct Content {
    alpha: Option<f32>,
    /// In the order of their names.
    pairs: Vec<Pair>,
    task_name: String,
    prompt_prefix: String,
}

/// Reads a file and checks it against the model.
fn read(mapping: &Mapping, arch: &str, updatable: &HashMap<String, Updatable>) -> Result<Content, LoadError> {
    let header = Header::parse(mapping.bytes())?;
    let meta = header.metadata();
    let alpha = alpha(meta, arch)?;
    let mut pairs = Vec::new();
    for (name, [a, b]) in tensors(&header)? {
        let refused = |what: String| LoadError::Tensor { name: name.to_owned(), what };
        let Some(&target) = updatable.get(name) else {
            return Err(refused(
                "the model multiplies with no such matrix (was the adapter made for another one?)".into(),
            ));
        };
        let (Some(a), Some(b)) = (a, b) else {
            let (there, missing) = if a.is_some() { (A, B) } else { (B, A) };
            return Err(refused(format!("`{there}` is there, and `{missing}` is missing")));
        };
        let rank = rank(&target, a, b).map_err(refused)?;
        let part = |t: &TensorInfo<'_>| {
            let dtype = weight_type(t.dtype).map_err(|what| LoadError::Tensor { name: t.name.to_owned(), what })?;
            Ok::<_, LoadError>(Part { dtype, ne: t.ne, range: t.range() })
        };
        pairs.push(Pair { name: name.to_owned(), target, rank, a: part(a)?, b: part(b)? });
    }
    let text = |key: &str| Ok::<_, LoadError>(meta.str(key)?.unwrap_or_default().to_owned());
    let (task_name, prompt_prefix) = (text("adapter.lora.task_name")?, text("adapter.lora.prompt_prefix")?);
    Ok(Content { alpha, pairs, task_name, prompt_prefix })
}

/// Adds the tensors to the weights. The beginning of a name tells where the matrix lies, and so where its update shall lie.
fn bind(
    id: usize,
    alpha: Option<f32>,
    pairs: &[Pair],
    mapping: &Arc<Mapping>,
    weights: &mut WeightsBuilder,
) -> Result<Vec<(WeightId, LowRank)>, LoadError> {
    let mut fill = ZeroFill::default();
    let places = pairs.iter().map(|pair| pair.places(&mut fill)).collect::<Result<Vec<_>, _>>()?;
    let (copies, start) = fill.make(mapping.bytes()).ok_or_else(no_room)?;
    let (file, copies) = (weights.add_mapping(Arc::clone(mapping)), weights.add_mapping(Arc::new(copies)));
    let mut updates = Vec::with_capacity(pairs.len());
    for (pair, places) in pairs.iter().zip(places) {
        let mut add = |which: char, part: &Part, place: Place| {
            let name = format!("{}.{which}{id}", pair.name);
            let (ne, mapping, range) = match place {
                Place::File => (part.ne, file, part.range.clone()),
                Place::Copy(ne, range) => (ne, copies, start + range.start..start + range.end),
            };
            weights.add(&name, part.dtype, ne.map(|n| n as i64), mapping, range)
        };
        let [place_a, place_b] = places;
        let (a, b) = (add('a', &pair.a, place_a)?, add('b', &pair.b, place_b)?);
        let scale = alpha.map_or(1.0, |alpha| alpha / pair.rank as f32);
        updates.push((pair.target.id, LowRank { a, b, scale, of_rows: pair.target.of_rows }));
    }
    Ok(updates)
}

fn no_room() -> LoadError {
    LoadError::Tensor { name: "adapter".into(), what: "there is no memory for copies of its tensors".into() }
}

/// Where a tensor's bytes are taken from: the file, or a copy of this shape.
enum Place {
    File,
    Copy([u64; 4], Range<usize>),
}

impl Pair {
    /// Where the bytes of both tensors are taken from: of ranks that are no multiple of [`RANK_STEP`] from copies with zeros up
    /// to the next one, which add nothing to a product. Blocks of quantised numbers are longer than a step.
    fn places(&self, fill: &mut ZeroFill) -> Result<[Place; 2], LoadError> {
        let full = self.rank.next_multiple_of(RANK_STEP);
        if full == self.rank || self.b.dtype.is_quantized() {
            return Ok([Place::File, Place::File]);
        }
        // The rank is dimension 1 of `a`, so whole rows are added to it, but where rows are looked up.
        let dim_a = usize::from(!self.target.of_rows);
        let mut copy = |part: &Part, dim: usize| {
            let each = part.dtype.row_bytes(if dim == 0 { 1 } else { part.ne[0] as i64 })?;
            let mut ne = part.ne;
            ne[dim] = full;
            let place = fill.plan(part.range.clone(), self.rank as usize * each, (full - self.rank) as usize * each);
            Ok::<_, LoadError>(Place::Copy(ne, place.ok_or_else(no_room)?))
        };
        Ok([copy(&self.a, dim_a)?, copy(&self.b, 0)?])
    }
}

/// Checks what the file says of itself; gives its alpha.
fn alpha(meta: &gguf::Metadata<'_>, arch: &str) -> Result<Option<f32>, LoadError> {
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", arch)] {
        let found = meta.str(key)?.unwrap_or("nothing");
        if found != expected {
            let what = format!("`{found}` found, `{expected}` expected for an adapter of this model");
            return Err(LoadError::Key { key: key.to_owned(), what });
        }
    }
    let invocation = "adapter.alora.invocation_tokens";
    if meta.get(invocation).is_some() {
        let what =
            "this is an activated LoRA (aLoRA), which begins within a prompt; only plain LoRA adapters are supported";
        return Err(LoadError::Key { key: invocation.to_owned(), what: what.to_owned() });
    }
    let key = "adapter.lora.alpha";
    match meta.f32(key)? {
        Some(alpha) if !alpha.is_finite() => {
            Err(LoadError::Key { key: key.to_owned(), what: format!("{alpha} found, a finite number expected") })
        }
        // As in llama.cpp, whose files without an alpha read as 0.
        alpha => Ok(alpha.filter(|&alpha| alpha != 0.0)),
    }
}

const A: &str = ".lora_a";
const B: &str = ".lora_b";

/// The file's tensors, `lora_a` and `lora_b`, by the matrix that they belong to, in the order of names.
fn tensors<'h, 'a>(header: &'h Header<'a>) -> Result<BTreeMap<&'a str, [Option<&'h TensorInfo<'a>>; 2]>, LoadError> {
    let mut pairs: BTreeMap<&str, [Option<&TensorInfo<'_>>; 2]> = BTreeMap::new();
    let mut n_norms = 0;
    for tensor in header.tensors() {
        if let Some(base) = tensor.name.strip_suffix(A) {
            pairs.entry(base).or_default()[0] = Some(tensor);
        } else if let Some(base) = tensor.name.strip_suffix(B) {
            pairs.entry(base).or_default()[1] = Some(tensor);
        } else if tensor.name.ends_with("_norm.weight") {
            n_norms += 1;
        } else {
            let what = format!("a name that ends in `{A}` or `{B}` expected");
            return Err(LoadError::Tensor { name: tensor.name.to_owned(), what });
        }
    }
    if n_norms > 0 {
        tracing::warn!(n_norms, "the adapter brings norms of its own, which are not used: those of the model stay");
    }
    if pairs.is_empty() {
        return Err(LoadError::Missing(format!("NAME{A} of any matrix")));
    }
    Ok(pairs)
}

/// The rank of a pair of tensors of the shapes that its matrix asks for.
fn rank(target: &Updatable, a: &TensorInfo<'_>, b: &TensorInfo<'_>) -> Result<u64, String> {
    let [n_in, n_out, n_matrices] = target.ne.map(|n| n as u64);
    let rank = b.ne[0];
    let (wanted_a, wanted_b) = match target.of_rows {
        // Dimension 0 of the embedding is what its rows are added to.
        true => ([rank, n_out, 1, 1], [rank, n_in, 1, 1]),
        false => ([n_in, rank, n_matrices, 1], [rank, n_out, n_matrices, 1]),
    };
    if rank == 0 || rank > MAX_RANK {
        return Err(format!("a rank of {rank} found, 1 to {MAX_RANK} expected"));
    }
    for (which, found, wanted) in [(A, a.ne, wanted_a), (B, b.ne, wanted_b)] {
        if found != wanted {
            let (wanted, found) = (trimmed(&wanted), trimmed(&found));
            return Err(format!("`{which}`: {wanted:?} expected, {found:?} found (made for another model?)"));
        }
    }
    Ok(rank)
}

/// A rank that no adapter comes near; keeps its products far from overflow.
const MAX_RANK: u64 = 1 << 22;

/// Ranks are filled up to a multiple of this: our kernels, which give a token the same bits in any batch, read so many floats
/// at a time.
const RANK_STEP: u64 = 16;
