//! The tower of Gemma 4 (`gemma4v`): learned positions for row and column, rotary positions of both, norms before and after
//! each part, linears that may clip, and a mean over 3 x 3 patches.
//! Source: the published reference of Gemma 4.

use ggml::{Graph, Rope, Tensor, WeightId};
use vision::{Budget, Patches};

use super::file::{Known, ProjectorFile};
use super::parts::{attend_to_all, by_parts, mean_of_blocks, patch_matrix};
use super::shape::TowerShape;
use super::tower::{Entry, Input, Seen, Tower, ids};
use crate::blocks::{Linear, RmsNorm, vector};
use crate::error::LoadError;
use crate::keys::WIDTH;
use crate::tensors::Scope;

pub(crate) const ENTRY: Entry = Entry { name: "gemma4v", texts: "gemma4", open };

/// Patches along a side of what becomes one token.
const POOL: usize = 3;
/// The published limit.
const MAX_TOKENS: usize = 280;
const ROPE_BASE: f32 = 100.0;
/// Of all norms, where the file says nothing.
const EPS: f32 = 1e-6;

struct Gemma4V {
    shape: TowerShape,
    eps: f32,
    patch: WeightId,
    /// `[n_embd, n, 2]`: columns, then rows.
    positions: WeightId,
    layers: Vec<Layer>,
    /// Bias and scale.
    standard: Option<[WeightId; 2]>,
    projection: Linear,
}

struct Layer {
    ln1: RmsNorm,
    qkv: [Clipped; 3],
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    out: Clipped,
    attn_post: RmsNorm,
    ln2: RmsNorm,
    gate: Clipped,
    up: Clipped,
    down: Clipped,
    ffn_post: RmsNorm,
}

/// A matrix whose inputs and outputs may be kept within limits.
struct Clipped {
    linear: Linear,
    /// Of inputs and of outputs: least, most.
    limits: Option<[(f32, f32); 2]>,
}

impl Clipped {
    /// Asks for `{prefix}{name}.weight`, and for its four limits where the first is there.
    fn open(
        t: &mut Scope<'_, '_>,
        known: Known<'_>,
        (prefix, name): (&str, &str),
        (n_in, n_out): (usize, usize),
    ) -> Result<Self, LoadError> {
        let linear = Linear::open(t, name, n_in, n_out)?;
        if !t.has(&format!("{name}.input_min")) {
            return Ok(Self { linear, limits: None });
        }
        let mut number = |part: &str| {
            t.need(&format!("{name}.{part}"), &[1])?;
            let full = format!("{prefix}{name}.{part}");
            Ok::<f32, LoadError>((known.number)(&full).unwrap_or(f32::NAN))
        };
        let limits = [(number("input_min")?, number("input_max")?), (number("output_min")?, number("output_max")?)];
        // A schema has no numbers.
        let is_bound = (known.number)(&format!("{prefix}{name}.input_min")).is_some();
        if let Some((low, high)) =
            limits.iter().find(|(low, high)| is_bound && (low.is_nan() || high.is_nan() || low > high))
        {
            let what = format!("limits from {low} to {high} found, F32 numbers in order expected");
            return Err(LoadError::Tensor { name: format!("{prefix}{name}"), what });
        }
        Ok(Self { linear, limits: Some(limits) })
    }

    fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        match self.limits {
            None => self.linear.forward_wide(g, x),
            Some([(low, high), (least, most)]) => {
                g.clamp(self.linear.forward_wide(g, g.clamp(x, low, high)), least, most)
            }
        }
    }
}

fn open(file: &mut ProjectorFile<'_, '_, '_>) -> Result<Box<dyn Tower>, LoadError> {
    let mut shape = file.shape(POOL, Budget::Tokens { max: MAX_TOKENS }, 4)?;
    let eps = file.keys.float("attention.layer_norm_epsilon", 1e-12..=0.1)?.unwrap_or(EPS);
    let table = "v.position_embd.weight";
    let side = (file.known.n_rows)(table).ok_or_else(|| LoadError::Missing(table.to_owned()))?;
    let side = usize::try_from(side).ok().filter(|&n| n > 0 && n <= *WIDTH.end() as usize).ok_or_else(|| {
        LoadError::Tensor {
            name: table.to_owned(),
            what: format!("{side} positions found, 1 to {} expected", WIDTH.end()),
        }
    })?;
    shape.max_side = Some(side);
    let (n, n_ff, patch) = (shape.n_embd, shape.n_ff, shape.processor.patch);
    let known = file.known;
    let t = &mut file.tensors.under("v.");
    let patch = t.need("patch_embd.weight", &[patch, patch, 3, n])?;
    let positions = t.need("position_embd.weight", &[n, side, 2])?;
    let standard = match t.find("std_bias", &[n])? {
        Some(bias) => Some([bias, t.need("std_scale", &[n])?]),
        None => None,
    };
    let layer = |il: usize| {
        let prefix = format!("v.blk.{il}.");
        let t = &mut file.tensors.under(&prefix);
        let norm = |t: &mut Scope<'_, '_>, name| RmsNorm::open(t, name, n, eps);
        let head_norm = |t: &mut Scope<'_, '_>, name| RmsNorm::open(t, name, n / shape.n_head, eps);
        let clipped = |t: &mut Scope<'_, '_>, name, ne| Clipped::open(t, known, (&prefix, name), ne);
        Ok(Layer {
            ln1: norm(t, "ln1")?,
            qkv: [clipped(t, "attn_q", (n, n))?, clipped(t, "attn_k", (n, n))?, clipped(t, "attn_v", (n, n))?],
            q_norm: head_norm(t, "attn_q_norm")?,
            k_norm: head_norm(t, "attn_k_norm")?,
            out: clipped(t, "attn_out", (n, n))?,
            attn_post: norm(t, "attn_post_norm")?,
            ln2: norm(t, "ln2")?,
            gate: clipped(t, "ffn_gate", (n, n_ff))?,
            up: clipped(t, "ffn_up", (n, n_ff))?,
            down: clipped(t, "ffn_down", (n_ff, n))?,
            ffn_post: norm(t, "ffn_post_norm")?,
        })
    };
    let layers = (0..shape.n_layer).map(layer).collect::<Result<_, LoadError>>()?;
    let projection = Linear::open(&mut file.tensors.under("mm."), "input_projection", n, shape.n_embd_text)?;
    Ok(Box::new(Gemma4V { shape, eps, patch, positions, layers, standard, projection }))
}

impl Tower for Gemma4V {
    fn shape(&self) -> &TowerShape {
        &self.shape
    }

    fn build<'g>(&self, g: &Graph<'g>, seen: &Seen<'g>) -> Tensor<'g> {
        let n_embd = self.shape.n_embd as i64;
        let places = [ids(g, "columns", seen.n_patches), ids(g, "rows", seen.n_patches)];
        // The scaling of 0 to 1 to -1 to 1 is part of the model.
        let x = g.mul_mat(patch_matrix(g, self.patch), g.scale_and_add(seen.pixels, 2.0, -1.0)); // [n_embd, n_patches]
        let table = g.weight(self.positions);
        let plane = |i: usize| {
            let nb = table.nb();
            g.view(table, [n_embd, table.ne()[1], 1, 1], [nb[1], nb[2], nb[3]], i * nb[2])
        };
        let x = g.add(x, g.get_rows(plane(0), places[0]));
        let mut x = g.add(x, g.get_rows(plane(1), places[1]));
        for (il, layer) in self.layers.iter().enumerate() {
            g.layer(il);
            let attended = layer.out.forward(g, self.attention(g, seen, layer, x, places));
            x = g.add(x, layer.attn_post.forward(g, attended));
            let inner = |x| layer.down.forward(g, g.geglu(layer.gate.forward(g, x), layer.up.forward(g, x)));
            let inner = by_parts(g, layer.ln2.forward(g, x), self.shape.n_ff, inner);
            x = g.add(x, layer.ffn_post.forward(g, inner));
        }
        g.no_layer();
        let x = g.scale(mean_of_blocks(g, x, POOL), (n_embd as f32).sqrt()); // [n_embd, n_tokens]
        let x = match self.standard {
            Some([bias, scale]) => g.mul(g.add(x, g.scale(vector(g, bias), -1.0)), vector(g, scale)),
            None => x,
        };
        self.projection.forward_wide(g, g.rms_norm(x, self.eps))
    }

    fn inputs(&self, patches: &Patches) -> Vec<Input> {
        let (rows, columns) = patches.places().map(|(row, column)| (row as i32, column as i32)).unzip();
        vec![Input::I32("columns".into(), columns), Input::I32("rows".into(), rows)]
    }
}

impl Gemma4V {
    fn attention<'g>(
        &self,
        g: &Graph<'g>,
        seen: &Seen<'g>,
        layer: &Layer,
        x: Tensor<'g>,
        places: [Tensor<'g>; 2],
    ) -> Tensor<'g> {
        let n_head = self.shape.n_head as i64;
        let n_embd_head = self.shape.n_embd as i64 / n_head;
        let x = layer.ln1.forward(g, x);
        let heads = |linear: &Clipped| g.reshape(linear.forward(g, x), [n_embd_head, n_head, seen.n_patches as i64]);
        let [q, k, v] = &layer.qkv;
        let q = turned(g, layer.q_norm.forward(g, heads(q)), places);
        let k = turned(g, layer.k_norm.forward(g, heads(k)), places);
        let v = g.rms_norm(heads(v), self.eps);
        attend_to_all(g, seen, [q, k, v], 1.0)
    }
}

/// Heads `x: [n_embd_head, n_head, n_patches]` with their first half turned by the column and their second by the row.
fn turned<'g>(g: &Graph<'g>, x: Tensor<'g>, places: [Tensor<'g>; 2]) -> Tensor<'g> {
    let ([n_embd_head, n_head, n, _], nb) = (x.ne(), x.nb());
    let n_half = n_embd_head / 2;
    let half = |i: usize| {
        let half = g.view(x, [n_half, n_head, n, 1], [nb[1], nb[2], nb[3]], i * n_half as usize * nb[0]);
        g.rope(half, places[i], None, &Rope::neox(n_half as i32, ROPE_BASE))
    };
    g.concat(half(0), half(1), 0)
}
