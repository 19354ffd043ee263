//! Opening a model: maps, headers, shards, the tensor look-up with its checks. The only bridge between `gguf` and `ggml`.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ggml::{Dtype, Mapping, WeightId, WeightsBuilder};
use gguf::{Header, SplitInfo, TensorType};

use crate::arch::{self, Opened};
use crate::describe::Description;
use crate::error::LoadError;
use crate::head_file::{HeadFile, refused};
use crate::keys::Keys;
use crate::model::Model;
use crate::placement::{Placement, Plan, block};
use crate::room::Facts;

/// How a model is opened.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Where the weights go.
    pub placement: Placement,
    /// A GGUF file whose NextN head is taken, and nothing else of it; `None` is the model's own head.
    pub head: Option<PathBuf>,
    /// Keep the pages of the files in memory. Where that is refused, a warning says so and the model is used all the same.
    pub lock: bool,
}

struct Place {
    dtype: TensorType,
    ne: [u64; 4],
    mapping: usize,
    range: Range<usize>,
}

/// The tensors of one model file, all its shards together.
#[derive(Default)]
struct Tensors<'a> {
    places: HashMap<&'a str, Place>,
    bound: HashMap<String, WeightId>,
}

impl<'a> Tensors<'a> {
    /// Those of `headers`, whose maps are counted from `first`.
    fn of(headers: &[Header<'a>], first: usize) -> Self {
        let mut places = HashMap::new();
        for (i, header) in headers.iter().enumerate() {
            for t in header.tensors() {
                let place = Place { dtype: t.dtype, ne: t.ne, mapping: first + i, range: t.range() };
                places.insert(t.name, place);
            }
        }
        Self { places, bound: HashMap::new() }
    }
}

/// Finds tensors by name, checks them, and binds them.
pub(crate) struct Loader<'a> {
    tensors: Tensors<'a>,
    /// Those of the file with the NextN head, and of the model while the head is bound.
    other: Tensors<'a>,
    weights: WeightsBuilder,
}

impl Loader<'_> {
    /// Binds from the file with the NextN head.
    pub(crate) fn in_head_file<R>(&mut self, bind: impl FnOnce(&mut Self) -> R) -> R {
        std::mem::swap(&mut self.tensors, &mut self.other);
        let bound = bind(self);
        std::mem::swap(&mut self.tensors, &mut self.other);
        bound
    }

    /// True when the file has a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.places.contains_key(name)
    }

    /// Binds a tensor of exactly this shape; `None` when there is no such tensor.
    pub(crate) fn find(&mut self, name: &str, dims: &[usize]) -> Result<Option<WeightId>, LoadError> {
        let refused = |what: String| LoadError::Tensor { name: name.to_owned(), what };
        let Some(place) = self.tensors.places.get(name) else { return Ok(None) };
        let mut wanted = [1u64; 4];
        wanted.iter_mut().zip(dims).for_each(|(w, &d)| *w = d as u64);
        if place.ne != wanted {
            let found = trimmed(&place.ne);
            return Err(refused(format!(
                "{dims:?} expected, {found:?} found (made for another size?); run `extract-nextn inspect`"
            )));
        }
        if let Some(&id) = self.tensors.bound.get(name) {
            return Ok(Some(id));
        }
        let dtype = Dtype::from_id(place.dtype.id())?;
        let for_compute = !matches!(place.dtype, TensorType::Q8_1 | TensorType::Q8_K)
            && (dtype.is_quantized() || matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16));
        if !for_compute {
            return Err(refused(format!("type {dtype} found, a float or quantised weight type expected")));
        }
        if dims.len() == 1 && dtype.is_quantized() {
            return Err(refused(format!("type {dtype} found, vectors are f32, f16 or bf16")));
        }
        let ne = place.ne.map(|n| n as i64);
        let id = self.weights.add(name, dtype, ne, place.mapping, place.range.clone())?;
        self.tensors.bound.insert(name.to_owned(), id);
        Ok(Some(id))
    }

    /// Binds a tensor of exactly this shape.
    pub(crate) fn need(&mut self, name: &str, dims: &[usize]) -> Result<WeightId, LoadError> {
        self.find(name, dims)?.ok_or_else(|| LoadError::Missing(name.to_owned()))
    }
}

/// Maps a file, with all shards when it is the first of several.
fn map(path: &Path) -> Result<Vec<Arc<Mapping>>, LoadError> {
    let first = Arc::new(Mapping::open(path)?);
    let split = SplitInfo::of(&Header::parse(first.bytes())?)?;
    let mut mappings = vec![first];
    if let Some(info) = split {
        let paths = gguf::shard_paths(path, &info)?;
        for path in &paths[1..] {
            mappings.push(Arc::new(Mapping::open(path)?));
        }
    }
    Ok(mappings)
}

/// The headers of all shards, which must belong together.
fn parse(mappings: &[Arc<Mapping>]) -> Result<Vec<Header<'_>>, LoadError> {
    let headers = mappings.iter().map(|m| Header::parse(m.bytes())).collect::<Result<Vec<_>, _>>()?;
    if headers.len() > 1 {
        gguf::check_shards(&headers)?;
    } else if let Some(header) = headers.first()
        && let Some(info) = SplitInfo::of(header)?.filter(|info| info.count > 1)
    {
        return Err(LoadError::Shard(format!("the file is one of {} shards, the others are not here", info.count)));
    }
    Ok(headers)
}

fn trimmed(ne: &[u64; 4]) -> &[u64] {
    let n = ne.iter().rposition(|&n| n != 1).map_or(1, |i| i + 1);
    &ne[..n]
}

impl Model {
    /// Opens a GGUF file, with all shards when it is the first of several.
    ///
    /// # Errors
    /// [`LoadError`] names what does not fit; the file is mapped, and nothing of it is believed unchecked.
    pub fn open(path: &Path, options: &LoadOptions) -> Result<Arc<Model>, LoadError> {
        Self::from_mappings(map(path)?, options)
    }

    /// A model that is part of the program.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn from_static(bytes: &'static [u8], options: &LoadOptions) -> Result<Arc<Model>, LoadError> {
        Self::from_mappings(vec![Arc::new(Mapping::Static(bytes))], options)
    }

    fn from_mappings(mappings: Vec<Arc<Mapping>>, options: &LoadOptions) -> Result<Arc<Model>, LoadError> {
        let of_head = options.head.as_deref().map(map).transpose()?.unwrap_or_default();
        let headers = parse(&mappings)?;
        let head_headers = parse(&of_head)?;
        let n_model = mappings.len();
        let mut all = mappings.clone();
        all.extend(of_head.iter().cloned());
        for error in all.iter().filter(|_| options.lock).filter_map(|m| m.lock().err()) {
            tracing::warn!(%error, "going on without --mlock: raise the limit (ulimit -l), or use a smaller model");
        }
        let meta = headers[0].metadata();
        let name = meta.require_str("general.architecture")?;
        let entry = arch::find(name)?;
        let vocab = Arc::new(text::Vocab::from_metadata(meta)?);
        let head = match head_headers.first() {
            Some(header) if entry.nextn => Some(HeadFile::read(header.metadata(), meta, name)?),
            Some(_) => return Err(refused(format!("architecture `{name}` takes none"))),
            None => None,
        };
        let mut loader = Loader {
            tensors: Tensors::of(&headers, 0),
            other: Tensors::of(&head_headers, n_model),
            weights: WeightsBuilder::new(all),
        };
        let keys = Keys::new(meta, name);
        let opened = (entry.open)(&keys, &mut loader, vocab.len(), head.as_ref())?;
        let facts = facts(&opened, &loader.weights);
        let plan = Plan::new(&options.placement, loader.weights.sizes(), &facts)?;
        let tied = !loader.weights.sizes().any(|(name, _)| name == "output.weight");
        let weights = loader.weights.build_on(plan.output(), |name| plan.device(name, tied))?;
        let template = meta.str("tokenizer.chat_template")?.map(str::to_owned);
        let description = Description::of(&headers, name, opened.nextn.is_bound());
        let sampling = sampling_defaults(meta)?;
        if let crate::model::NextNHead::Missing(names) = &opened.nextn {
            tracing::warn!(
                missing = names.join(", "),
                "the file promises a NextN head and lacks its tensors: running without speculation; `extract-nextn graft` adds a head"
            );
        }
        Ok(Arc::new(Model::new(opened, facts, (weights, plan), vocab, template, description, sampling, n_model)))
    }
}

/// What is known of a model whose tensors are bound.
fn facts(opened: &Opened, weights: &WeightsBuilder) -> Facts {
    let (arch, hparams) = (&opened.arch, opened.hparams.clone());
    let mut widths: HashMap<usize, usize> = HashMap::new();
    for (name, [_, n_out, n_matrices, _]) in weights.shapes() {
        if let Some(il) = block(name) {
            let n_used = if n_matrices > 1 { hparams.n_expert_used.max(1) } else { 1 };
            let n_out = usize::try_from(n_out).unwrap_or(0);
            *widths.entry(il).or_default() += n_out * n_used;
        }
    }
    Facts {
        layout: arch.state(),
        head: arch.head_state(),
        head_row_bytes: arch.draft_head().and_then(|id| weights.row_bytes(id)).unwrap_or(0),
        on_cpu: false,
        rows_alike: None,
        layer_width: widths.into_values().max().unwrap_or(0),
        hparams,
    }
}

/// `general.sampling.*`: what the model's makers recommend, by the key's last words.
fn sampling_defaults(meta: &gguf::Metadata<'_>) -> Result<HashMap<String, f32>, LoadError> {
    let mut found = HashMap::new();
    for (key, value) in meta.iter() {
        let Some(name) = key.strip_prefix("general.sampling.") else { continue };
        let number = match value.as_int() {
            Some(n) => Some(n as f32),
            None => match value {
                gguf::Value::F32(_) | gguf::Value::F64(_) => meta.f32(key)?,
                _ => None,
            },
        };
        if let Some(number) = number {
            found.insert(name.to_owned(), number);
        }
    }
    Ok(found)
}
