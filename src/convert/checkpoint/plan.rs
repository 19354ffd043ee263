//! The plan of one tensor: its shape, its rows, what is done to its numbers.
//! Owns the conversions: norms, decay, convolution, order of value heads, experts, scales.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gguf::TensorType;
use model::{TensorSchema, block_of};

use super::config::Config;
use super::delta::DeltaConfig;
use crate::error::Error;
use crate::safetensors::{Dtype, Place, Shards, Tensor, quoted};
use crate::stream::{MAX_ROW_ELEMENTS, Map, Piece, Run, Scale, Stored, TensorPlan, Turned};

/// What a new tensor is made of.
#[derive(Debug)]
pub(crate) enum Sources {
    One(Place),
    /// One of two halves of each matrix: the gates, or what follows them.
    Half(Place, u64),
    Experts(BTreeMap<u64, Place>),
    /// A part of a delta net's rows, which stand key head by key head.
    ByKeyHead(Place, DeltaPart),
    /// A part of the rows of latent attention, which stand head by head.
    Latent(Place, LatentPart),
    /// One of two kinds of rows, or of columns of matrices in floats, that stand in turns: gates (0) and what follows them (1).
    Alternate(Place, u64),
    /// Matrices of experts in floats, whose columns are the new rows.
    Columns(Place),
}

/// A part of what latent attention makes of a latent row: for each head rows of its key, then rows of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LatentPart {
    /// The matrix of each head's key, turned: queries are multiplied with it.
    Keys,
    /// That of each head's value.
    Values,
}

/// A part of what a delta net makes of its input: for each key head its query and key, the values and gates of its value heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeltaPart {
    /// All queries, then all keys, then all values.
    QueryKeyValue,
    /// All gates.
    Gate,
}

impl Sources {
    pub(crate) fn first(&self) -> Place {
        match self {
            Sources::One(place)
            | Sources::Half(place, _)
            | Sources::ByKeyHead(place, _)
            | Sources::Alternate(place, _)
            | Sources::Columns(place)
            | Sources::Latent(place, _) => *place,
            Sources::Experts(list) => *list.first_key_value().expect("made with its first").1,
        }
    }
}

/// Makes the plan of one tensor.
pub(crate) struct Maker<'m> {
    pub(crate) shards: &'m Shards,
    pub(crate) scales: &'m HashMap<String, Place>,
    pub(crate) config: Option<&'m Config>,
    /// In the new file, for messages too.
    pub(crate) name: String,
}

impl Maker<'_> {
    /// `part`: the name without the block. `expected`: with its shape, if that is known beforehand.
    pub(crate) fn plan(
        &self,
        part: &str,
        sources: &Sources,
        expected: Option<&TensorSchema>,
    ) -> Result<TensorPlan, Error> {
        let t = self.shards.tensor(sources.first());
        if t.dtype == Dtype::U8 || matches!(sources, Sources::Alternate(..) | Sources::Columns(_)) {
            return self.plan_of_experts(sources, expected);
        }
        let mut ne: Vec<u64> = t.shape.iter().rev().copied().collect();
        if matches!(part, "ssm_conv1d.weight" | "shortconv.conv.weight") && ne.len() == 3 && ne[1] == 1 {
            ne.remove(1);
        }
        // Single numbers are rows of their own where heads are put in order.
        let by_number =
            matches!(part, "ssm_a" | "ssm_d" | "ssm_dt.bias") || self.interleaved(part).is_some() && ne.len() == 1;
        let row_len = if by_number { 1 } else { ne.first().copied().unwrap_or(1) };
        if row_len > MAX_ROW_ELEMENTS {
            return Err(self.refused(format!("rows of {row_len} elements, at most {MAX_ROW_ELEMENTS} allowed")));
        }
        match sources {
            Sources::Half(..) if ne.len() != 3 || !ne[1].is_multiple_of(2) => {
                return Err(self.refused(format!("{ne:?} found, gates and up matrices of all experts expected")));
            }
            Sources::Half(..) => ne[1] /= 2,
            Sources::Experts(_) if ne.len() != 2 => {
                return Err(self.refused(format!("an expert of shape {ne:?}, two dimensions expected")));
            }
            Sources::Experts(list) => ne.push(list.len() as u64),
            Sources::ByKeyHead(_, part) => {
                let c = self.config.and_then(Config::delta).filter(|_| ne.len() == 2);
                let c = c.ok_or_else(|| self.refused(format!("{ne:?} found, a delta net's rows expected")))?;
                let n_rows = 2 * (c.n_key() + c.n_value());
                if ne[1] != n_rows {
                    return Err(self.refused(format!("{} rows found, {n_rows} expected", ne[1])));
                }
                ne[1] = if *part == DeltaPart::Gate { c.n_value() } else { 2 * c.n_key() + c.n_value() };
            }
            Sources::Latent(_, part) => {
                let (n_rank, n_rows, each) = self.latent(&ne)?;
                let n_head = n_rows / (each.0 + each.1);
                ne = match part {
                    LatentPart::Keys => vec![each.0, n_rank, n_head],
                    LatentPart::Values => vec![n_rank, each.1, n_head],
                };
            }
            Sources::One(_) | Sources::Alternate(..) | Sources::Columns(_) => ne = as_expected(part, ne, expected),
        }
        let by_row = matches!(sources, Sources::Latent(..)) || part == "ssm_norm.weight";
        let row_len = if by_row { ne[0] } else { row_len };
        if let Some(expected) = expected.filter(|expected| !expected.has_shape(&ne)) {
            return Err(Error::Shape { name: self.name.clone(), found: ne, expected: expected.ne.clone() });
        }
        let (pieces, runs) = self.rows(part, sources, &ne, row_len)?;
        let turned = match sources {
            Sources::Latent(_, LatentPart::Keys) => Some(Turned { n_cols: ne[1], first: 0, every: 1 }),
            _ => None,
        };
        let lacks_one = self.config.and_then(Config::table).is_none_or(|table| table.row.norms_lack_one);
        let map = match part {
            "ssm_a" => Map::NegExp,
            _ if !lacks_one => Map::Keep,
            "nextn.enorm.weight" | "nextn.hnorm.weight" => Map::AddOne,
            _ if part.ends_with("norm.weight") && part != "ssm_norm.weight" => Map::AddOne,
            _ => Map::Keep,
        };
        let dtype =
            if stays_f32(part, &ne) { TensorType::F32 } else { natural(self.shards.tensor(sources.first()).dtype) };
        let columns = if part == "ssm_out.weight" { self.columns(row_len)? } else { None };
        Ok(TensorPlan {
            columns,
            map,
            turned,
            ..TensorPlan::of_rows(self.name.clone(), ne, dtype, (row_len, pieces, runs))
        })
    }

    /// The matrices of a tensor of shape `ne`, and the order of their rows.
    fn rows(&self, part: &str, sources: &Sources, ne: &[u64], row_len: u64) -> Result<(Vec<Piece>, Vec<Run>), Error> {
        match sources {
            Sources::One(place) => {
                let piece = self.piece(*place, row_len)?;
                let runs = match self.ranks(self.shards.tensor(*place)) {
                    Some(ranks) => ranks.together(),
                    None => self.runs(part, piece.n_rows)?,
                };
                Ok((vec![piece], runs))
            }
            Sources::Latent(place, part) => {
                let t = self.shards.tensor(*place);
                let n_rank = t.shape.last().copied().unwrap_or(1);
                let (n_k, n_v) =
                    self.config.and_then(Config::table).and_then(|table| table.sizes.latent).unwrap_or((1, 1));
                let piece = self.piece(*place, n_rank)?;
                let n_head = piece.n_rows / (n_k + n_v);
                let (first, n) = match part {
                    LatentPart::Keys => (0, n_k),
                    LatentPart::Values => (n_k, n_v),
                };
                // Of keys, a run is a matrix that is turned.
                let runs = (0..n_head).map(|head| Run { piece: 0, start: head * (n_k + n_v) + first, n });
                Ok((vec![piece], runs.collect()))
            }
            Sources::ByKeyHead(place, part) => {
                let piece = self.piece(*place, row_len)?;
                let c = self
                    .config
                    .and_then(Config::delta)
                    .ok_or_else(|| self.refused("a delta net without its sizes".into()))?;
                Ok((vec![piece], by_key_head(c, *part)))
            }
            Sources::Alternate(..) | Sources::Columns(_) => Err(self.refused("rows of experts in turns".into())),
            Sources::Half(place, which) => {
                let (half, n_expert) = (ne[1], ne[2]);
                if n_expert > MAX_EXPERTS {
                    return Err(self.refused(format!("{n_expert} experts found, at most {MAX_EXPERTS} allowed")));
                }
                let piece = self.piece(*place, row_len)?;
                let runs = (0..n_expert).map(|e| Run { piece: 0, start: (2 * e + which) * half, n: half });
                Ok((vec![piece], runs.collect()))
            }
            Sources::Experts(list) => {
                let first = &self.shards.tensor(sources.first()).shape;
                let (mut pieces, mut runs) = (Vec::with_capacity(list.len()), Vec::with_capacity(list.len()));
                for (i, (no, place)) in list.iter().enumerate() {
                    let shape = &self.shards.tensor(*place).shape;
                    if i as u64 != *no {
                        return Err(self.refused(format!("expert {i} is missing")));
                    }
                    if shape != first {
                        return Err(self.refused(format!("expert {no} is {shape:?}, expert 0 is {first:?}")));
                    }
                    pieces.push(self.piece(*place, row_len)?);
                    runs.push(Run { piece: i, start: 0, n: ne[1] });
                }
                Ok((pieces, runs))
            }
        }
    }

    /// The matrix of a tensor of the checkpoint, with its scales.
    pub(crate) fn piece(&self, place: Place, row_len: u64) -> Result<Piece, Error> {
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
        Ok(Piece { file: place.file, at: t.start, stored, n_rows: n / row_len, every: 1, scale })
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
        if let Some(Ranks { n_rows, n_blocks, .. }) = self.ranks(weight) {
            return grid(n_rows, n_blocks, blocks[1], block_rows, block_cols);
        }
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

    /// How a matrix of queries, keys and values was split among the devices that its 8-bit floats were made on; `None` where it
    /// was not.
    fn ranks(&self, weight: &Tensor) -> Option<Ranks> {
        let (il, "attn_qkv.weight") = block_of(&self.name)? else { return None };
        let fused = &self.config.and_then(Config::table)?.sizes.fused;
        let &(queries, keys, values) = fused.get(il as usize).or(fused.last())?;
        let scales = self.shards.tensor(*self.scales.get(&weight.name)?);
        let all = queries + keys + values;
        let (block_rows, _) = self.config.and_then(|c| c.quantized?.block).unwrap_or((128, 128));
        let n_blocks =
            *scales.shape.first().filter(|_| weight.shape.first() == Some(&all) && scales.shape.len() == 2)?;
        // Blocks of scales begin anew on each device.
        let of = |n: u64| (all.is_multiple_of(n) && n_blocks == n * (all / n).div_ceil(block_rows)).then_some(n);
        let n = [8, 4].into_iter().find_map(of)?;
        let parts = [queries / n, keys / n, values / n];
        Some(Ranks { n, n_rows: all / n, n_blocks: n_blocks / n, parts })
    }

    /// Rows in the order of the new file.
    fn runs(&self, part: &str, n_rows: u64) -> Result<Vec<Run>, Error> {
        let whole = vec![Run { piece: 0, start: 0, n: n_rows }];
        if let Some(n_head) = self.interleaved(part) {
            return self.pairs_together(n_rows, n_head);
        }
        let Some(c) = self.config.and_then(Config::delta).filter(|c| c.turns_value_heads()) else { return Ok(whole) };
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

    /// Heads of a part whose rows are put in another order, pair by pair.
    fn interleaved(&self, part: &str) -> Option<u64> {
        let table = self.config.and_then(Config::table).filter(|table| table.row.interleaves)?;
        match part {
            "attn_q.weight" | "attn_q.bias" => Some(table.sizes.n_head),
            "attn_k.weight" | "attn_k.bias" => Some(table.sizes.n_head_kv),
            _ => None,
        }
    }

    /// Rows of heads whose pairs stand half a head apart, in the order in which pairs stand together.
    fn pairs_together(&self, n_rows: u64, n_head: u64) -> Result<Vec<Run>, Error> {
        if n_head == 0 || !n_rows.is_multiple_of(2 * n_head) {
            return Err(self.refused(format!("{n_rows} rows found, {n_head} heads of pairs expected")));
        }
        let d = n_rows / n_head;
        let row = |head: u64, i: u64| head * d + i % 2 * (d / 2) + i / 2;
        Ok((0..n_head).flat_map(|head| (0..d).map(move |i| Run { piece: 0, start: row(head, i), n: 1 })).collect())
    }

    /// Rank, rows, and rows of a head's key and value, of latent attention of shape `ne`.
    fn latent(&self, ne: &[u64]) -> Result<(u64, u64, (u64, u64)), Error> {
        let each = self.config.and_then(Config::table).and_then(|table| table.sizes.latent);
        match (ne, each) {
            (&[n_rank, n_rows], Some((n_k, n_v))) if n_rows.is_multiple_of(n_k + n_v) => {
                Ok((n_rank, n_rows, (n_k, n_v)))
            }
            _ => Err(self.refused(format!("{ne:?} found, rows of keys and values of all heads expected"))),
        }
    }

    /// Columns in the order of value heads of the new file.
    fn columns(&self, row_len: u64) -> Result<Option<Arc<Vec<u32>>>, Error> {
        let Some(c) = self.config.and_then(Config::delta).filter(|c| c.turns_value_heads()) else { return Ok(None) };
        if row_len != c.n_value() {
            return Err(self.refused(format!("{row_len} columns found, {} expected", c.n_value())));
        }
        let head = c.value_heads.1;
        Ok(Some(Arc::new(tiled(c).flat_map(|h| (h * head..(h + 1) * head).map(|i| i as u32)).collect())))
    }

    pub(super) fn refused(&self, what: String) -> Error {
        Error::tensor(&self.name, what)
    }
}

/// Queries, keys and values of one device after those of another.
struct Ranks {
    /// Devices.
    n: u64,
    /// Rows of one.
    n_rows: u64,
    /// Rows of scales of one.
    n_blocks: u64,
    /// Of one, rows of queries, of keys, of values.
    parts: [u64; 3],
}

impl Ranks {
    /// All queries, then all keys, then all values.
    fn together(&self) -> Vec<Run> {
        let of = |(i, &n): (usize, &u64)| {
            let first: u64 = self.parts[..i].iter().sum();
            (0..self.n).map(move |rank| (rank, first, n))
        };
        let all = self.parts.iter().enumerate().flat_map(of);
        all.map(|(rank, first, n)| Run { piece: 0, start: rank * self.n_rows + first, n }).collect()
    }
}

/// The shape of a part that checkpoints have as a row of numbers, and files as a matrix.
fn as_expected(part: &str, ne: Vec<u64>, expected: Option<&TensorSchema>) -> Vec<u64> {
    let is_row = matches!(part, "ssm_a" | "ssm_d" | "ssm_norm.weight") && ne.len() == 1;
    match expected.filter(|t| is_row && t.ne.iter().product::<u64>() == ne[0]) {
        Some(t) => t.ne.clone(),
        None => ne,
    }
}

/// The rows of a part, of rows that stand key head by key head.
fn by_key_head(c: &DeltaConfig, part: DeltaPart) -> Vec<Run> {
    let (n_key_heads, d_key) = c.key_heads;
    // Rows of values, and as many of gates, that stand by one key head.
    let values = c.n_value() / n_key_heads.max(1);
    let each = 2 * (d_key + values);
    let all = |first: u64, n: u64| (0..n_key_heads).map(move |head| Run { piece: 0, start: head * each + first, n });
    match part {
        DeltaPart::QueryKeyValue => all(0, d_key).chain(all(d_key, d_key)).chain(all(2 * d_key, values)).collect(),
        DeltaPart::Gate => all(2 * d_key + values, values).collect(),
    }
}

/// Value heads in the order of GGUF files: the first of each key head, then the second of each. Checkpoints have all of
/// the first key head, then all of the second.
fn tiled(c: &DeltaConfig) -> impl Iterator<Item = u64> + use<> {
    let n_key = c.key_heads.0;
    let each = c.value_heads.0 / n_key;
    (0..each).flat_map(move |j| (0..n_key).map(move |g| g * each + j))
}

/// Whether a tensor is F32 in every file: vectors, norms, the routers, the convolution and all that is no weight.
pub(crate) fn stays_f32(part: &str, ne: &[u64]) -> bool {
    let small = ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "shortconv.conv.weight"];
    ne.len() < 2 || small.contains(&part) || part.ends_with("_norm.weight") || !part.ends_with(".weight")
}

/// The type that loses nothing of numbers like these, or next to nothing.
pub(crate) fn natural(dtype: Dtype) -> TensorType {
    match dtype {
        Dtype::BF16 | Dtype::F8_E4M3 | Dtype::F8_E5M2 => TensorType::BF16,
        Dtype::F16 => TensorType::F16,
        _ => TensorType::F32,
    }
}

pub(super) fn float(dtype: Dtype) -> Option<ggml::Dtype> {
    match dtype {
        Dtype::F32 => Some(ggml::Dtype::F32),
        Dtype::F16 => Some(ggml::Dtype::F16),
        Dtype::BF16 => Some(ggml::Dtype::BF16),
        _ => None,
    }
}

/// As in config.json.
pub(super) const MAX_EXPERTS: u64 = 65536;
