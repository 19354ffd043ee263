//! From the tensors of a checkpoint to those of a GGUF file: what belongs together, in which order, changed how.
//! Owns the conversions: norms, decay, convolution, order of value heads, experts, scales.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use gguf::TensorType;

use super::config::Config;
use super::names::{Name, Part, is_bare_head, meaning};
use super::shapes;
use crate::error::Error;
use crate::safetensors::{Dtype, Place, Shards, Tensor, quoted};
use crate::stream::{Map, Piece, Run, Scale, Stored, TensorPlan};

/// All tensors of a model.
pub(crate) struct Gathered {
    /// In the order in which llama.cpp's converter writes them: file by file, by their names there.
    pub(crate) tensors: Vec<TensorPlan>,
    pub(crate) n_head_layers: u64,
}

/// What a new tensor is made of.
#[derive(Debug)]
enum Sources {
    One(Place),
    /// One of two halves of each matrix: the gates, or what follows them.
    Half(Place, u64),
    Experts(BTreeMap<u64, Place>),
}

/// Everything that was found, by the block and the name within it.
struct Found {
    /// With the place in the order of the output.
    tensors: BTreeMap<(Block, String), ((usize, u64), Sources)>,
    scales: HashMap<String, Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Block {
    None,
    Trunk(u64),
    Head(u64),
}

/// The whole model.
pub(crate) fn trunk_and_head(
    shards: &Shards,
    c: &Config,
    folder: &Path,
    without_head: bool,
) -> Result<Gathered, Error> {
    let refused = |what: String| Error::input(folder, what);
    let mut found = Found::of(shards, folder, false)?;
    if without_head {
        found.tensors.retain(|(block, _), _| !matches!(block, Block::Head(_)));
    }
    let n_head_layers = found.n_head_layers();
    if let Some(n) = c.n_head_layers.filter(|n| n_head_layers > 0 && *n > 0 && *n != n_head_layers) {
        return Err(refused(format!("{n_head_layers} layers of the head found, mtp_num_hidden_layers is {n}")));
    }
    let mut expected: Vec<(Block, shapes::Expected, bool)> = Vec::new();
    for (name, ne) in shapes::global(c) {
        let optional = name == "output.weight" && c.tied != Some(false);
        expected.push((Block::None, (name, ne), optional));
    }
    for il in 0..c.n_layer {
        expected.extend(shapes::trunk_layer(c, il).into_iter().map(|e| (Block::Trunk(il), e, false)));
    }
    for k in 0..n_head_layers {
        expected.extend(shapes::head_layer(c, k).into_iter().map(|e| (Block::Head(k), e, false)));
    }
    if n_head_layers > 0 {
        expected.extend(shapes::head_extras(c).into_iter().map(|e| (Block::Head(0), e, true)));
    }
    let mut tensors = Vec::with_capacity(expected.len());
    let mut missing = Vec::new();
    for (block, (name, ne), optional) in expected {
        let full = match block {
            Block::None => name.to_owned(),
            Block::Trunk(il) => format!("blk.{il}.{name}"),
            Block::Head(k) => format!("blk.{}.{name}", c.n_layer + k),
        };
        match found.tensors.remove(&(block, name.to_owned())) {
            Some((order, sources)) => {
                let maker = Maker { shards, scales: &found.scales, config: Some(c), name: full };
                tensors.push((order, maker.plan(name, &sources, Some(&ne))?));
            }
            None if optional => {}
            None => missing.push(full),
        }
    }
    if let Some(((block, name), (_, sources))) = found.tensors.first_key_value() {
        let example = shards.tensor(sources.first()).name.clone();
        return Err(refused(format!(
            "tensor {} ({block:?}, {name}) has no place in this model of {} layers",
            quoted(&example),
            c.n_layer
        )));
    }
    if !missing.is_empty() {
        let some = missing.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
        return Err(refused(format!("{} tensors are missing, among them the sources of {some}", missing.len())));
    }
    tensors.sort_by_key(|(order, _)| *order);
    Ok(Gathered { tensors: tensors.into_iter().map(|(_, plan)| plan).collect(), n_head_layers })
}

/// The tensors of the head alone, without the block in their names, each with its layer of the head.
pub(crate) fn head(shards: &Shards, path: &Path) -> Result<Vec<(u64, TensorPlan)>, Error> {
    let found = Found::of(shards, path, true)?;
    let mut tensors = Vec::new();
    for ((block, name), (order, sources)) in &found.tensors {
        let Block::Head(k) = block else { continue };
        let maker = Maker { shards, scales: &found.scales, config: None, name: name.clone() };
        tensors.push((*order, *k, maker.plan(name, sources, None)?));
    }
    if tensors.is_empty() {
        return Err(Error::input(
            path,
            "no tensor of a NextN head here: names with mtp, or fc.weight and its norms, expected",
        ));
    }
    tensors.sort_by_key(|(order, k, _)| (*k, *order));
    Ok(tensors.into_iter().map(|(_, k, plan)| (k, plan)).collect())
}

impl Found {
    /// `only_head`: whatever is not of the head is passed over, known or not.
    fn of(shards: &Shards, path: &Path, only_head: bool) -> Result<Found, Error> {
        let bare = is_bare_head(shards.iter().map(|(_, t)| t.name.as_str()));
        let mut found = Found { tensors: BTreeMap::new(), scales: HashMap::new() };
        let mut last_of_experts: HashMap<Block, usize> = HashMap::new();
        let mut all: Vec<(Place, &Tensor)> = shards.iter().collect();
        all.sort_by(|(a, t), (b, u)| (a.file, &t.name).cmp(&(b.file, &u.name)));
        for (i, (place, t)) in all.into_iter().enumerate() {
            let (block, part) = match meaning(&t.name, bare) {
                Name::Skip => continue,
                Name::Scale(weight) => {
                    found.scales.insert(weight, place);
                    continue;
                }
                Name::Trunk(..) | Name::Unknown if only_head => continue,
                Name::Trunk(None, part) => (Block::None, part),
                Name::Trunk(Some(il), part) => (Block::Trunk(il), part),
                Name::Head(k, part) => (Block::Head(k), part),
                Name::Unknown => {
                    return Err(Error::input(
                        path,
                        format!("tensor {} ({}) has no place in this architecture", quoted(&t.name), t.dtype),
                    ));
                }
            };
            match part {
                Part::Whole(name) => found.add(block, name, (i, 0), Sources::One(place), t, path)?,
                Part::GateUp => {
                    found.add(block, "ffn_gate_exps.weight", (i, 0), Sources::Half(place, 0), t, path)?;
                    found.add(block, "ffn_up_exps.weight", (i, 1), Sources::Half(place, 1), t, path)?;
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

    fn n_head_layers(&self) -> u64 {
        let no = |block: &Block| if let Block::Head(k) = block { k + 1 } else { 0 };
        self.tensors.keys().map(|(block, _)| no(block)).max().unwrap_or(0)
    }
}

fn twice(t: &Tensor, path: &Path) -> Error {
    Error::input(path, format!("tensor {} stands for one that another name stands for too", quoted(&t.name)))
}

impl Sources {
    fn first(&self) -> Place {
        match self {
            Sources::One(place) | Sources::Half(place, _) => *place,
            Sources::Experts(list) => *list.first_key_value().expect("made with its first").1,
        }
    }
}

/// Makes the plan of one tensor.
struct Maker<'m> {
    shards: &'m Shards,
    scales: &'m HashMap<String, Place>,
    config: Option<&'m Config>,
    /// In the new file, for messages too.
    name: String,
}

impl Maker<'_> {
    /// `part`: the name without the block. `expected`: the shape, if it is known beforehand.
    fn plan(&self, part: &str, sources: &Sources, expected: Option<&[u64]>) -> Result<TensorPlan, Error> {
        let t = self.shards.tensor(sources.first());
        let mut ne: Vec<u64> = t.shape.iter().rev().copied().collect();
        if part == "ssm_conv1d.weight" && ne.len() == 3 && ne[1] == 1 {
            ne.remove(1);
        }
        let (mut pieces, mut runs) = (Vec::new(), Vec::new());
        // Single numbers are rows of their own where heads are put in order.
        let by_number = matches!(part, "ssm_a" | "ssm_dt.bias");
        let row_len = if by_number { 1 } else { ne.first().copied().unwrap_or(1) };
        match sources {
            Sources::One(place) => {
                let piece = self.piece(*place, row_len)?;
                runs = self.runs(part, piece.n_rows)?;
                pieces.push(piece);
            }
            Sources::Half(place, which) => {
                if ne.len() != 3 || !ne[1].is_multiple_of(2) {
                    return Err(self.refused(format!("{ne:?} found, gates and up matrices of all experts expected")));
                }
                ne[1] /= 2;
                let (half, n_expert) = (ne[1], ne[2]);
                runs.extend((0..n_expert).map(|e| Run { piece: 0, start: (2 * e + which) * half, n: half }));
                pieces.push(self.piece(*place, row_len)?);
            }
            Sources::Experts(list) => {
                if ne.len() != 2 {
                    return Err(self.refused(format!("an expert of shape {ne:?}, two dimensions expected")));
                }
                for (i, (no, place)) in list.iter().enumerate() {
                    let shape = &self.shards.tensor(*place).shape;
                    if i as u64 != *no {
                        return Err(self.refused(format!("expert {i} is missing")));
                    }
                    if *shape != t.shape {
                        return Err(self.refused(format!("expert {no} is {shape:?}, expert 0 is {:?}", t.shape)));
                    }
                    pieces.push(self.piece(*place, row_len)?);
                    runs.push(Run { piece: i, start: 0, n: ne[1] });
                }
                ne.push(list.len() as u64);
            }
        }
        if let Some(expected) =
            expected.filter(|expected| *expected != ne && [ne.as_slice(), &[1]].concat() != **expected)
        {
            return Err(self.refused(format!("{ne:?} found, {expected:?} expected from config.json")));
        }
        let map = match part {
            "ssm_a" => Map::NegExp,
            "nextn.enorm.weight" | "nextn.hnorm.weight" => Map::AddOne,
            _ if part.ends_with("norm.weight") && part != "ssm_norm.weight" => Map::AddOne,
            _ => Map::Keep,
        };
        let dtype =
            if stays_f32(part, &ne) { TensorType::F32 } else { natural(self.shards.tensor(sources.first()).dtype) };
        let columns = if part == "ssm_out.weight" { self.columns(row_len)? } else { None };
        Ok(TensorPlan { name: self.name.clone(), ne, dtype, row_len, pieces, runs, columns, map, importance: None })
    }

    fn piece(&self, place: Place, row_len: u64) -> Result<Piece, Error> {
        let t = self.shards.tensor(place);
        let stored = match t.dtype {
            Dtype::F64 => Stored::F64,
            Dtype::F8_E4M3 => Stored::F8E4M3,
            Dtype::F8_E5M2 => Stored::F8E5M2,
            other => match float(other) {
                Some(dtype) => Stored::Ggml(dtype),
                None => {
                    return Err(self.refused(format!(
                        "numbers of type {other} in {}, floats expected: a packed checkpoint? Convert the original",
                        quoted(&t.name)
                    )));
                }
            },
        };
        let n = t.n_elements();
        if n == 0 || !n.is_multiple_of(row_len) {
            return Err(self.refused(format!("shape {:?} in {}, rows of numbers expected", t.shape, quoted(&t.name))));
        }
        let scale = match (self.scales.get(&t.name), t.dtype.bits() == 8) {
            (None, false) => None,
            (Some(scale), true) => Some(self.scale(t, *scale)?),
            (None, true) => {
                return Err(self.refused(format!(
                    "{} is {}, its scales {}_scale_inv are missing",
                    quoted(&t.name),
                    t.dtype,
                    t.name
                )));
            }
            (Some(_), false) => {
                return Err(self.refused(format!("{} has scales, but is {}", quoted(&t.name), t.dtype)));
            }
        };
        Ok(Piece { file: place.file, at: t.start, stored, n_rows: n / row_len, scale })
    }

    /// What each number of a weight is multiplied with: one number for all, for a matrix, for a row, or for a block.
    fn scale(&self, weight: &Tensor, place: Place) -> Result<Scale, Error> {
        let t = self.shards.tensor(place);
        let stored = match t.dtype {
            Dtype::F8_E8M0 => Stored::F8E8M0,
            other => Stored::Ggml(
                float(other).ok_or_else(|| self.refused(format!("scales of type {other}, floats expected")))?,
            ),
        };
        let (matrices, rows, cols) = match weight.shape.as_slice() {
            [rows, cols] => (1, *rows, *cols),
            [n, rows, cols] => (*n, *rows, *cols),
            other => return Err(self.refused(format!("scales for a tensor of shape {other:?}"))),
        };
        let grid = |matrix_rows, n_rows, n_cols, cell_rows, cell_cols| {
            Ok(Scale { file: place.file, at: t.start, stored, matrix_rows, n_rows, n_cols, cell_rows, cell_cols })
        };
        let (block_rows, block_cols) = self.config.and_then(|c| c.quantized?.block).unwrap_or((128, 128));
        let blocks = [rows.div_ceil(block_rows), cols.div_ceil(block_cols)];
        let inner = if matrices > 1 && t.shape.first() == Some(&matrices) { &t.shape[1..] } else { &t.shape[..] };
        let for_each = inner.len() < t.shape.len() || matrices == 1;
        match inner {
            _ if t.n_elements() == 1 => grid(matrices * rows, 1, 1, matrices * rows, cols),
            [] | [1] | [1, 1] if for_each => grid(rows, 1, 1, rows, cols),
            found if for_each && found == blocks.as_slice() => grid(rows, blocks[0], blocks[1], block_rows, block_cols),
            [n] | [n, 1] if for_each && *n == rows => grid(rows, rows, 1, 1, cols),
            _ => Err(self.refused(format!(
                "scales of shape {:?} for {:?}: one for all, for each row, or for blocks of {block_rows} x {block_cols} expected",
                t.shape, weight.shape
            ))),
        }
    }

    /// Rows in the order of the new file.
    fn runs(&self, part: &str, n_rows: u64) -> Result<Vec<Run>, Error> {
        let whole = vec![Run { piece: 0, start: 0, n: n_rows }];
        let Some(c) = self.config.filter(|c| c.key_heads.0 != c.value_heads.0) else { return Ok(whole) };
        let (keys, head) = match part {
            "attn_qkv.weight" | "ssm_conv1d.weight" => (2 * c.n_key(), c.value_heads.1),
            "attn_gate.weight" => (0, c.value_heads.1),
            "ssm_alpha.weight" | "ssm_beta.weight" | "ssm_a" | "ssm_dt.bias" => (0, 1),
            _ => return Ok(whole),
        };
        if n_rows != keys + c.value_heads.0 * head {
            return Err(self.refused(format!("{n_rows} rows found, {} expected", keys + c.value_heads.0 * head)));
        }
        let mut runs = Vec::new();
        if keys > 0 {
            runs.push(Run { piece: 0, start: 0, n: keys });
        }
        runs.extend(tiled(c).map(|h| Run { piece: 0, start: keys + h * head, n: head }));
        Ok(runs)
    }

    /// Columns in the order of value heads of the new file.
    fn columns(&self, row_len: u64) -> Result<Option<Arc<Vec<u32>>>, Error> {
        let Some(c) = self.config.filter(|c| c.key_heads.0 != c.value_heads.0) else { return Ok(None) };
        if row_len != c.n_value() {
            return Err(self.refused(format!("{row_len} columns found, {} expected", c.n_value())));
        }
        let head = c.value_heads.1;
        Ok(Some(Arc::new(tiled(c).flat_map(|h| (h * head..(h + 1) * head).map(|i| i as u32)).collect())))
    }

    fn refused(&self, what: String) -> Error {
        Error::tensor(&self.name, what)
    }
}

/// Value heads in the order of GGUF files: the first of each key head, then the second of each. Checkpoints have all of
/// the first key head, then all of the second.
fn tiled(c: &Config) -> impl Iterator<Item = u64> + use<> {
    let n_key = c.key_heads.0;
    let each = c.value_heads.0 / n_key;
    (0..each).flat_map(move |j| (0..n_key).map(move |g| g * each + j))
}

/// Whether a tensor is F32 in every file: vectors, norms, the routers, the convolution and all that is no weight.
pub(crate) fn stays_f32(part: &str, ne: &[u64]) -> bool {
    let small = ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight"];
    ne.len() < 2 || small.contains(&part) || part.ends_with("_norm.weight") || !part.ends_with(".weight")
}

/// The type that loses nothing of numbers like these, or next to nothing.
fn natural(dtype: Dtype) -> TensorType {
    match dtype {
        Dtype::BF16 | Dtype::F8_E4M3 | Dtype::F8_E5M2 => TensorType::BF16,
        Dtype::F16 => TensorType::F16,
        _ => TensorType::F32,
    }
}

fn float(dtype: Dtype) -> Option<ggml::Dtype> {
    match dtype {
        Dtype::F32 => Some(ggml::Dtype::F32),
        Dtype::F16 => Some(ggml::Dtype::F16),
        Dtype::BF16 => Some(ggml::Dtype::BF16),
        _ => None,
    }
}

/// The order in which the stacks of a block's experts are written.
const EXPERT_ORDER: [&str; 3] = ["ffn_down_exps.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight"];
