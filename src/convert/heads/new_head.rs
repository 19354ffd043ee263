//! The place of a NextN head beside a model: what its tensors are, what the model has of them, and the file that a program
//! makes of other numbers for them.
//! Owns keys and shapes; computes no numbers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use gguf::TensorType;
use model::{HeadShape, Schema, TensorSchema, block_of};

use super::expected::vocab_size;
use super::extract::{Extract, extract};
use super::graft::{donor_facts, new_keys};
use super::info::{Content, ModelInfo};
use super::new_file::NewFile;
use super::retype::{WeightType, can_be_made};
use super::strip::strip;
use crate::error::Error;
use crate::gguf_model::{Key, Model, metadata};
use crate::source::Source;
use crate::stream::{TensorPlan, Worker};

/// A model, and the head that it has or may get.
///
/// ```
/// use convert::heads::NewHead;
/// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pocket-q4_k_m.gguf");
/// let head = NewHead::of(convert::Source::open(file.as_ref())?, None)?;
/// assert_eq!((head.n_layer(), head.n_layers(), head.shape().n_embd), (12, 1, 256));
/// assert!(head.floats("blk.12.nextn.eh_proj.weight")?.is_some(), "the model has a head");
/// # Ok::<(), convert::Error>(())
/// ```
#[derive(Debug)]
pub struct NewHead {
    /// The model without a head.
    main: Source,
    info: ModelInfo,
    /// With those of the head.
    keys: Vec<(String, Key)>,
    shape: HeadShape,
    wanted: Vec<TensorSchema>,
    /// Tensors of the head that the model has.
    own: HashMap<String, TensorPlan>,
    n_layers: u64,
    n_vocab: u64,
}

impl NewHead {
    /// That of `source`, a whole model. `n_layers`: layers of a new head; `None` for the model's own, or a new one of one layer
    /// where it has none.
    ///
    /// # Errors
    /// A file without a main model; an architecture that takes no head, or one of a kind that cannot be said in [`HeadShape`].
    pub fn of(source: Source, n_layers: Option<u64>) -> Result<Self, Error> {
        let info = Self::info_of(&source)?;
        let is_new = n_layers.is_some() || info.content != Content::Combined;
        let mut own = HashMap::new();
        for t in source.tensors.iter().filter(|t| !is_new && info.is_head(&t.name)) {
            own.insert(t.name.clone(), t.plan(0)?);
        }
        let n_layers = n_layers.unwrap_or(info.n_nextn.max(1));
        // Lists of blocks say of the model's own head what its last layer does not.
        let whole = (!own.is_empty()).then(|| source.model_keys());
        let keys = |main: &Source, of_main: &ModelInfo| match whole {
            Some(keys) => Ok(keys),
            None => new_keys(main, of_main, n_layers, None),
        };
        Self::beside(source, info.content, own, (n_layers, is_new), keys)
    }

    /// The head of the file `head` beside `source`, a whole model, whose own head does not count.
    ///
    /// # Errors
    /// As [`NewHead::of`]; a file without a head, or with one for another model.
    pub fn of_file(source: Source, head: Source) -> Result<Self, Error> {
        let info = Self::info_of(&source)?;
        let donor = donor_facts(&head, &source, &info, false)?;
        let mut own = HashMap::new();
        for t in head.tensors.iter().filter(|t| donor.is_head(&t.name)) {
            // Their files come after those of the model.
            own.insert(t.name.clone(), t.plan(source.inputs.len())?);
        }
        let (n_layers, donor) = (donor.n_nextn, (head, donor));
        let keys = |main: &Source, of_main: &ModelInfo| new_keys(main, of_main, n_layers, Some(&donor));
        let mut new = Self::beside(source, info.content, own, (n_layers, false), keys)?;
        new.main.inputs.extend(donor.0.inputs);
        Ok(new)
    }

    fn info_of(source: &Source) -> Result<ModelInfo, Error> {
        let info = ModelInfo::with_blocks(source)?;
        match info.content {
            Content::Head(_) | Content::Assistant => {
                Err(Error::input(&source.path, "is a head without its model, a whole model expected".to_owned()))
            }
            _ => Ok(info),
        }
    }

    /// Beside `source`, which holds `content`: a head of these tensors and so many layers, or a new one. `keys` makes those of both
    /// of the model without a head.
    fn beside(
        source: Source,
        content: Content,
        own: HashMap<String, TensorPlan>,
        (n_layers, is_new): (u64, bool),
        keys: impl FnOnce(&Source, &ModelInfo) -> Result<Vec<(String, Key)>, Error>,
    ) -> Result<Self, Error> {
        let path = source.path.clone();
        let refused = |what: String| Error::input(&path, what);
        if n_layers == 0 || n_layers > MAX_LAYERS {
            return Err(refused(format!("a head of {n_layers} layers was asked for, 1 to {MAX_LAYERS} expected")));
        }
        let n_vocab = vocab_size(&source).ok_or_else(|| refused("does not tell the size of its vocabulary".into()))?;
        let tokenizer = source.tokenizer.clone();
        let mut main = match content {
            Content::MainModel => source,
            _ => Source::of_model(&path, strip(source)?.model),
        };
        main.tokenizer = tokenizer;
        let info = ModelInfo::with_blocks(&main)?;
        let keys = keys(&main, &info)?;
        let of_new = |name: &str| is_new && info.is_head(name) && is_as_in(name, &main);
        let has = |name: &str| own.contains_key(name) || main.tensor(name).is_some() || of_new(name);
        let schema = Schema::of(&metadata(&keys), n_vocab as usize, &has).map_err(|e| refused(e.to_string()))?;
        let shape = schema.head.map_err(|what| refused(format!("its head cannot be trained: {what}")))?;
        let is_wanted = |t: &TensorSchema| {
            let may = own.contains_key(&t.name) || of_new(&t.name) || is_new && t.name.ends_with(HEAD_NORM);
            info.is_head(&t.name) && (t.required || may)
        };
        let wanted = schema.tensors.into_iter().filter(is_wanted).collect();
        Ok(Self { main, info, keys, shape, wanted, own, n_layers, n_vocab })
    }

    /// What a layer computes.
    pub fn shape(&self) -> &HeadShape {
        &self.shape
    }

    /// Blocks of the main model: those of the head are numbered from here on.
    pub fn n_layer(&self) -> usize {
        self.info.n_layer as usize
    }

    /// Layers of the head.
    pub fn n_layers(&self) -> usize {
        self.n_layers as usize
    }

    /// Tokens of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab as usize
    }

    /// The model's file, of several the first.
    pub fn path(&self) -> PathBuf {
        self.main.path.clone()
    }

    /// The tensors of the head: those that it needs, those that the model's own has, and a norm at its end.
    pub fn tensors(&self) -> &[TensorSchema] {
        &self.wanted
    }

    /// Whether the model has a head, and it is the one that is meant.
    pub fn is_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// Whether the model or its own head has a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.own.contains_key(name) || self.main.tensor(name).is_some()
    }

    /// The numbers of a tensor of the model or of its own head, row by row; `None` where there is none of this name.
    ///
    /// # Errors
    /// The file cannot be read, or the type not be turned to floats.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f32>>, Error> {
        let Some(plan) = self.plan(name)? else { return Ok(None) };
        let all = (0, plan.n_rows());
        Ok(Some(Worker::default().floats(&plan, &self.main.inputs, all.0, all.1)?.to_vec()))
    }

    /// The numbers of some rows of such a tensor, in this order.
    ///
    /// # Errors
    /// As [`NewHead::floats`]; a row that the tensor does not have.
    pub fn rows(&self, name: &str, rows: &[u32]) -> Result<Option<Vec<f32>>, Error> {
        let Some(plan) = self.plan(name)? else { return Ok(None) };
        let (mut worker, mut all) = (Worker::default(), Vec::with_capacity(rows.len() * plan.row_len as usize));
        for &row in rows {
            if u64::from(row) >= plan.n_rows() {
                return Err(Error::tensor(name, format!("row {row} of {} was asked for", plan.n_rows())));
            }
            all.extend_from_slice(worker.floats(&plan, &self.main.inputs, row.into(), 1)?);
        }
        Ok(Some(all))
    }

    fn plan(&self, name: &str) -> Result<Option<TensorPlan>, Error> {
        Ok(match (self.own.get(name), self.main.tensor(name)) {
            (Some(plan), _) => Some(plan.clone()),
            (None, Some(tensor)) => Some(tensor.plan(0)?),
            (None, None) => None,
        })
    }

    /// The head as a file of its own: `values` are the numbers of its tensors by name, the others stay those of the model's own
    /// head. `said` are keys to add. Where types are kept, those of the model's own head are; of a new one all are F32.
    ///
    /// # Errors
    /// A tensor is left without numbers, or has too few or too many.
    pub fn into_file(
        self,
        mut values: HashMap<String, Vec<f32>>,
        said: Vec<(String, Key)>,
        how: Extract,
    ) -> Result<NewFile, Error> {
        let mut main = self.main;
        let mut tensors = main.tensors.iter().map(|t| t.plan(0)).collect::<Result<Vec<_>, _>>()?;
        for t in &self.wanted {
            let plan = match (values.remove(&t.name), self.own.get(&t.name)) {
                (Some(numbers), own) if numbers.len() as u64 == t.ne.iter().product::<u64>() => {
                    let own = own.filter(|_| how.dtype == WeightType::Keep);
                    TensorPlan { dtype: own.map_or(Ok(TensorType::F32), type_of)?, ..made(t, numbers) }
                }
                (None, Some(own)) => own.clone(),
                (Some(numbers), _) => {
                    return Err(Error::tensor(&t.name, format!("{} numbers for {:?}", numbers.len(), t.ne)));
                }
                (None, None) => return Err(Error::tensor(&t.name, "no numbers were given for it".to_owned())),
            };
            tensors.push(plan);
        }
        let (version, inputs) = (main.version, std::mem::take(&mut main.inputs));
        let model = Model { keys: self.keys, tensors, inputs, side_inputs: Vec::new(), version };
        let mut whole = Source::of_model(&main.path, model);
        whole.tokenizer = main.tokenizer;
        let mut new = extract(whole, how)?;
        new.model.keys.extend(said);
        Ok(new)
    }
}

/// Whether a new head gets a tensor of this name that it could do without: blocks of the model have it.
fn is_as_in(name: &str, main: &Source) -> bool {
    let Some((_, part)) = block_of(name).filter(|(_, part)| AS_IN_BLOCKS.contains(part)) else { return false };
    main.tensors.iter().any(|t| block_of(&t.name).is_some_and(|(_, of_model)| of_model == part))
}

/// The type of a tensor whose numbers are made anew.
fn type_of(own: &TensorPlan) -> Result<TensorType, Error> {
    let other =
        || format!("{} is a type that numbers are not turned to; give the head another one (--type)", own.dtype);
    if can_be_made(own.dtype) { Ok(own.dtype) } else { Err(Error::tensor(&own.name, other())) }
}

/// A tensor of these numbers, in the floats that quantising starts from.
fn made(t: &TensorSchema, numbers: Vec<f32>) -> TensorPlan {
    let row_len = t.ne.first().copied().unwrap_or(1);
    let plan = TensorPlan::of_rows(t.name.clone(), t.ne.clone(), TensorType::F32, (row_len, Vec::new(), Vec::new()));
    TensorPlan { made: Some(Arc::new(numbers)), ..plan }
}

/// Layers of a head at most.
const MAX_LAYERS: u64 = 16;

/// A new head ends in a norm of its own: the model's is made for other hidden states.
const HEAD_NORM: &str = "nextn.shared_head_norm.weight";

/// What attention may have or not; a new head has it where the model's blocks do.
const AS_IN_BLOCKS: [&str; 9] = [
    "attn_qkv.weight",
    "attn_qkv.bias",
    "attn_q.bias",
    "attn_k.bias",
    "attn_v.bias",
    "attn_q_norm.weight",
    "attn_k_norm.weight",
    "attn_gate.weight",
    "attn_sinks.weight",
];
