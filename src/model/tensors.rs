//! The tensors of a model by name: what an architecture asks for is bound from a file, or written down as its schema.
//! Owns the check of shapes and types and the errors that name a tensor. Knows no architecture.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use ggml::{Dtype, Mapping, WeightId, WeightsBuilder};
use gguf::{Header, TensorType};

use crate::error::LoadError;
use crate::share::Cuts;

/// A tensor that an architecture asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSchema {
    /// Its name in GGUF files.
    pub name: String,
    /// Its shape, fastest dimension first, without trailing ones.
    pub ne: Vec<u64>,
    /// Whether a model cannot do without it.
    pub required: bool,
}

impl TensorSchema {
    /// Whether `ne` is its shape; dimensions of one at the end do not count.
    pub fn has_shape(&self, ne: &[u64]) -> bool {
        let at = |ne: &[u64], i: usize| ne.get(i).copied().unwrap_or(1);
        (0..self.ne.len().max(ne.len())).all(|i| at(&self.ne, i) == at(ne, i))
    }
}

/// The block of a tensor, and the rest of its name: `blk.17.attn_q.weight` is `attn_q.weight` of block 17.
pub fn block_of(name: &str) -> Option<(u64, &str)> {
    let (block, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((block.parse().ok()?, rest))
}

/// Where a tensor's data lies, and what the file says of it.
struct Location {
    dtype: TensorType,
    ne: [u64; 4],
    mapping: usize,
    range: Range<usize>,
}

/// The tensors of one model file, all its shards together.
#[derive(Default)]
pub(crate) struct FileTensors<'a> {
    locations: HashMap<&'a str, Location>,
    bound: HashMap<String, WeightId>,
}

impl<'a> FileTensors<'a> {
    /// Those of `headers`, whose maps are counted from `first`.
    pub(crate) fn of(headers: &[Header<'a>], first: usize) -> Self {
        let mut locations = HashMap::new();
        for (i, header) in headers.iter().enumerate() {
            for t in header.tensors() {
                let location = Location { dtype: t.dtype, ne: t.ne, mapping: first + i, range: t.range() };
                locations.insert(t.name, location);
            }
        }
        Self { locations, bound: HashMap::new() }
    }
}

/// A weight that adapters may update.
#[derive(Clone, Copy)]
pub(crate) struct Updatable {
    pub(crate) id: WeightId,
    /// `[n_in, n_out, n_matrices]`; where rows are looked up, `[n_embd, n_rows, 1]`.
    pub(crate) ne: [usize; 3],
    /// Its rows are looked up by ids.
    pub(crate) of_rows: bool,
}

/// What answers an architecture that asks for its tensors.
#[allow(clippy::large_enum_variant, reason = "there is one while a file is opened")]
pub(crate) enum Tensors<'a> {
    /// Binds those of a file.
    Bind {
        /// Those of the model; while the MTP layer of another file is bound, those of that file.
        file: FileTensors<'a>,
        /// Those of the file with the MTP layer, and of the model while that is bound.
        other: FileTensors<'a>,
        /// What is bound.
        weights: WeightsBuilder,
        /// Which of them adapters may update, by the names that adapters have for them.
        updatable: HashMap<String, Updatable>,
        /// What stands before the names of tensors that are bound: those of an assistant are named as the model's are.
        label: &'static str,
        /// Which parts of them are bound.
        cuts: Cuts,
    },
    /// Writes down which are asked for. Alternatives are chosen by `has`; the weights given back are none.
    List {
        /// Whether the file that the schema is for has a tensor of this name.
        has: &'a dyn Fn(&str) -> bool,
        /// In the order in which they were asked for.
        list: Vec<TensorSchema>,
        /// The names in the list.
        names: HashSet<String>,
    },
}

impl<'a> Tensors<'a> {
    /// Says of what segments a tensor is made, for parts of it.
    pub(crate) fn made_of(&mut self, name: String, segments: Vec<usize>) {
        if let Tensors::Bind { cuts, .. } = self {
            cuts.made_of(name, segments);
        }
    }

    /// Those outside of blocks.
    pub(crate) fn globals(&mut self) -> Scope<'_, 'a> {
        Scope { tensors: self, prefix: String::new() }
    }

    /// Those of block `il`.
    pub(crate) fn block(&mut self, il: usize) -> Scope<'_, 'a> {
        Scope { tensors: self, prefix: format!("blk.{il}.") }
    }

    /// Those whose names begin so.
    pub(crate) fn under(&mut self, prefix: &str) -> Scope<'_, 'a> {
        Scope { tensors: self, prefix: prefix.to_owned() }
    }

    /// Binds from the file with the MTP layer. `of_head`: what stands before the names there, if anything.
    pub(crate) fn in_head_file<R>(&mut self, of_head: &'static str, bind: impl FnOnce(&mut Self) -> R) -> R {
        self.swap_files(of_head);
        let bound = bind(self);
        self.swap_files("");
        bound
    }

    fn swap_files(&mut self, before: &'static str) {
        if let Tensors::Bind { file, other, label, .. } = self {
            std::mem::swap(file, other);
            *label = before;
        }
    }

    /// True when the file has a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Tensors::Bind { file, .. } => file.locations.contains_key(name),
            Tensors::List { has, .. } => has(name),
        }
    }

    /// A vector of token ids of a vocabulary of `n_vocab` tokens, none of them twice; `None` when there is no such tensor.
    pub(crate) fn ids(&mut self, name: &str, n_vocab: usize) -> Result<Option<Vec<u32>>, LoadError> {
        let Tensors::Bind { file, weights, .. } = self else { return Ok(None) };
        let Some(location) = file.locations.get(name) else { return Ok(None) };
        let refused = |what: String| LoadError::Tensor { name: name.to_owned(), what };
        let size = match location.dtype {
            TensorType::I64 => 8,
            TensorType::I32 => 4,
            other => return Err(refused(format!("type {other} found, i64 or i32 expected"))),
        };
        let bytes = weights.bytes(location.mapping, location.range.clone()).unwrap_or_default();
        let n = bytes.len() / size;
        if n == 0 || n > n_vocab || location.ne[0] != n as u64 {
            let found = trimmed(&location.ne);
            return Err(refused(format!("{found:?} found, a list of 1 to {n_vocab} tokens expected")));
        }
        let id = |bytes: &[u8]| match *bytes {
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => -1,
        };
        let mut seen = vec![false; n_vocab];
        let mut ids = Vec::with_capacity(n);
        for id in bytes.chunks_exact(size).map(id) {
            let place = usize::try_from(id).ok().and_then(|at| seen.get_mut(at));
            match place.map(|seen| std::mem::replace(seen, true)) {
                Some(false) => ids.push(id as u32),
                Some(true) => return Err(refused(format!("token {id} stands there twice"))),
                None => return Err(refused(format!("token {id} is outside the vocabulary of {n_vocab}"))),
            }
        }
        Ok(Some(ids))
    }

    fn find(&mut self, name: &str, dims: &[usize], required: bool) -> Result<Option<WeightId>, LoadError> {
        match self {
            Tensors::Bind { file, weights, label, cuts, .. } => bind(file, weights, (label, cuts), name, dims),
            Tensors::List { has, list, names } => {
                if names.insert(name.to_owned()) {
                    let ne = dims.iter().map(|&n| n as u64).collect();
                    list.push(TensorSchema { name: name.to_owned(), ne, required });
                }
                Ok((required || has(name)).then(WeightId::default))
            }
        }
    }
}

/// The tensors under a prefix, such as `blk.3.`.
pub(crate) struct Scope<'s, 'a> {
    tensors: &'s mut Tensors<'a>,
    prefix: String,
}

impl Scope<'_, '_> {
    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// A tensor of exactly this shape.
    pub(crate) fn need(&mut self, name: &str, dims: &[usize]) -> Result<WeightId, LoadError> {
        let name = self.full(name);
        self.tensors.find(&name, dims, true)?.ok_or(LoadError::Missing(name))
    }

    /// A tensor of exactly this shape; `None` when there is no such tensor.
    pub(crate) fn find(&mut self, name: &str, dims: &[usize]) -> Result<Option<WeightId>, LoadError> {
        self.tensors.find(&self.full(name), dims, false)
    }

    /// As [`Scope::find`], of numbers that belong to another tensor's format and to no schema.
    pub(crate) fn companion(&mut self, name: &str, dims: &[usize]) -> Result<Option<WeightId>, LoadError> {
        match self.tensors {
            Tensors::Bind { .. } => self.find(name, dims),
            Tensors::List { .. } => Ok(None),
        }
    }

    /// As [`Scope::find`], outside of blocks.
    pub(crate) fn find_global(&mut self, name: &str, dims: &[usize]) -> Result<Option<WeightId>, LoadError> {
        self.tensors.find(name, dims, false)
    }

    /// A vector that no file has: these numbers, which are the same for all that ask by this name.
    pub(crate) fn made(&mut self, name: &str, values: &[f32]) -> Result<WeightId, LoadError> {
        let name = self.full(name);
        let Tensors::Bind { file, weights, .. } = self.tensors else { return Ok(WeightId::default()) };
        if let Some(&id) = file.bound.get(&name) {
            return Ok(id);
        }
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (n, n_bytes) = (values.len() as i64, bytes.len());
        let mapping = weights.add_mapping(Arc::new(Mapping::Made(bytes)));
        let id = weights.add(&name, Dtype::F32, [n, 1, 1, 1], mapping, 0..n_bytes)?;
        file.bound.insert(name, id);
        Ok(id)
    }

    /// A tensor of exactly this shape that files may have and no graph reads.
    pub(crate) fn unread(&mut self, name: &str, dims: &[usize]) {
        if let Tensors::List { list, names, .. } = self.tensors {
            let name = format!("{}{name}", self.prefix);
            if names.insert(name.clone()) {
                list.push(TensorSchema { name, ne: dims.iter().map(|&n| n as u64).collect(), required: false });
            }
        }
    }

    /// Declares that the graphs multiply with the matrix (or matrices) `id`, and that adapters may update it by `name`.
    pub(crate) fn updatable(&mut self, name: &str, id: WeightId, dims: &[usize]) {
        self.declare(name, id, dims, false);
    }

    /// Declares that the graphs look up rows of `id`, and that adapters may update it by `name`.
    pub(crate) fn updatable_rows(&mut self, name: &str, id: WeightId, dims: &[usize]) {
        self.declare(name, id, dims, true);
    }

    fn declare(&mut self, name: &str, id: WeightId, dims: &[usize], of_rows: bool) {
        let name = self.full(name);
        if let Tensors::Bind { updatable, label, .. } = self.tensors {
            let name = format!("{label}{name}");
            let mut ne = [1; 3];
            ne.iter_mut().zip(dims).for_each(|(n, &d)| *n = d);
            updatable.insert(name, Updatable { id, ne, of_rows });
        }
    }

    /// True when the file has a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.has(&self.full(name))
    }

    /// Those of `names` that a file which shall be bound has not.
    pub(crate) fn missing(&self, names: &[&str]) -> Vec<String> {
        match self.tensors {
            Tensors::Bind { .. } => names.iter().filter(|name| !self.has(name)).map(|name| self.full(name)).collect(),
            Tensors::List { .. } => Vec::new(),
        }
    }

    /// A tensor that would change the results and that the graph does not read: a file that has it is not bound.
    pub(crate) fn refuse(&self, name: &str, what: &str) -> Result<(), LoadError> {
        match self.tensors {
            Tensors::Bind { .. } if self.has(name) => {
                Err(LoadError::Tensor { name: self.full(name), what: what.to_owned() })
            }
            _ => Ok(()),
        }
    }
}

/// Binds a tensor of exactly this shape; `None` when there is no such tensor.
fn bind(
    file: &mut FileTensors<'_>,
    weights: &mut WeightsBuilder,
    (label, cuts): (&str, &Cuts),
    name: &str,
    dims: &[usize],
) -> Result<Option<WeightId>, LoadError> {
    let refused = |what: String| LoadError::Tensor { name: name.to_owned(), what };
    let Some(location) = file.locations.get(name) else { return Ok(None) };
    let mut wanted = [1u64; 4];
    wanted.iter_mut().zip(dims).for_each(|(w, &d)| *w = d as u64);
    if cuts.leaves_out(name) {
        return Ok(None);
    }
    let part = cuts.part(name, location.ne, wanted);
    if location.ne != wanted && part.is_none() {
        let found = trimmed(&location.ne);
        return Err(refused(format!(
            "{dims:?} expected, {found:?} found (made for another size?); run `extract-nextn inspect`"
        )));
    }
    if let Some(&id) = file.bound.get(name) {
        return Ok(Some(id));
    }
    let dtype = weight_type(location.dtype).map_err(refused)?;
    if dims.len() == 1 && dtype.is_quantized() {
        return Err(refused(format!("type {dtype} found, vectors are f32, f16 or bf16")));
    }
    let ne = location.ne.map(|n| n as i64);
    let (name_there, range) = (format!("{label}{name}"), location.range.clone());
    let id = match part {
        None => weights.add(&name_there, dtype, ne, location.mapping, range)?,
        Some(part) => weights.add_part(&name_there, dtype, ne, &part, (location.mapping, range))?,
    };
    file.bound.insert(name.to_owned(), id);
    Ok(Some(id))
}

/// The type of a tensor that graphs multiply with; the error says what was found.
pub(crate) fn weight_type(of_file: TensorType) -> Result<Dtype, String> {
    let dtype = Dtype::from_id(of_file.id()).map_err(|error| error.to_string())?;
    match dtype.is_for_weights() {
        true => Ok(dtype),
        false => Err(format!("type {dtype} found, which has no products; a float or quantized type expected")),
    }
}

pub(crate) fn trimmed(ne: &[u64; 4]) -> &[u64] {
    let n = ne.iter().rposition(|&n| n != 1).map_or(1, |i| i + 1);
    &ne[..n]
}
