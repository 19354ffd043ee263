//! The tower of Gemma 3 (`gemma3`): SigLIP over pictures of one size, learned positions, and a mean over blocks of patches.
//! Source: SigLIP (Zhai et al. 2023), Gemma Team 2025 and the published reference.

use ggml::{Graph, Tensor, WeightId};
use vision::{Budget, Filter, Patches};

use super::file::ProjectorFile;
use super::parts::{BiasedNorm, FeedForward, attend_to_all, biased, mean_of_blocks, patch_matrix};
use super::shape::TowerShape;
use super::tower::{Entry, Input, Seen, Tower, ids};
use crate::blocks::{Linear, RmsNorm, vector};
use crate::error::LoadError;
use crate::keys::MAX_BLOCKS;

pub(crate) const ENTRY: Entry = Entry { name: "gemma3", texts: "gemma3", open };

/// Patches along a side of what becomes one token, where the file says nothing.
const POOL: usize = 4;
/// Of all norms, where the file says nothing.
const EPS: f32 = 1e-6;

struct Gemma3 {
    shape: TowerShape,
    /// Patches along a side.
    side: usize,
    patch: WeightId,
    patch_bias: WeightId,
    /// `[n_embd, side * side]`.
    positions: WeightId,
    layers: Vec<Layer>,
    post_ln: BiasedNorm,
    soft_norm: RmsNorm,
    /// `[n_embd_text, n_embd]`: the other way round than other matrices.
    projection: WeightId,
}

struct Layer {
    ln1: BiasedNorm,
    qkv: [Linear; 3],
    out: Linear,
    feed_forward: FeedForward,
}

fn open(file: &mut ProjectorFile<'_, '_, '_>) -> Result<Box<dyn Tower>, LoadError> {
    let keys = &file.keys;
    let pool = keys.find("projector.scale_factor", 1..=16)?.unwrap_or(POOL);
    let size = keys.need("image_size", 1..=MAX_BLOCKS * 16)?;
    let mut shape = file.shape(pool, Budget::Square { side: size }, 1)?;
    shape.processor.filter = Filter::Bilinear;
    let patch = shape.processor.patch;
    let side = size / patch;
    if !size.is_multiple_of(patch * pool) {
        let what = format!("{size} found, a multiple of {pool} patches of {patch} expected");
        return Err(keys.error("image_size", what));
    }
    shape.max_side = Some(side);
    let eps = keys.float("attention.layer_norm_epsilon", 1e-12..=0.1)?.unwrap_or(EPS);
    let (n, n_ff, n_text) = (shape.n_embd, shape.n_ff, shape.n_embd_text);
    let t = &mut file.tensors.under("v.");
    let patch = t.need("patch_embd.weight", &[patch, patch, 3, n])?;
    let patch_bias = t.need("patch_embd.bias", &[n])?;
    let positions = t.need("position_embd.weight", &[n, side * side])?;
    let post_ln = BiasedNorm::open(t, "post_ln", n, eps)?;
    let layer = |il: usize| {
        let t = &mut file.tensors.under(&format!("v.blk.{il}."));
        Ok(Layer {
            ln1: BiasedNorm::open(t, "ln1", n, eps)?,
            qkv: [biased(t, "attn_q", n, n)?, biased(t, "attn_k", n, n)?, biased(t, "attn_v", n, n)?],
            out: biased(t, "attn_out", n, n)?,
            feed_forward: FeedForward::open(t, n, n_ff, eps)?,
        })
    };
    let layers = (0..shape.n_layer).map(layer).collect::<Result<_, LoadError>>()?;
    let t = &mut file.tensors.under("mm.");
    let soft_norm = RmsNorm::open(t, "soft_emb_norm", n, eps)?;
    let projection = t.need("input_projection.weight", &[n_text, n])?;
    Ok(Box::new(Gemma3 { shape, side, patch, patch_bias, positions, layers, post_ln, soft_norm, projection }))
}

impl Tower for Gemma3 {
    fn shape(&self) -> &TowerShape {
        &self.shape
    }

    fn build<'g>(&self, g: &Graph<'g>, seen: &Seen<'g>) -> Tensor<'g> {
        let x = g.mul_mat(patch_matrix(g, self.patch), seen.pixels); // [n_embd, n_patches]
        let x = g.add(x, vector(g, self.patch_bias));
        let mut x = g.add(x, g.get_rows(g.weight(self.positions), ids(g, "places", seen.n_patches)));
        for (il, layer) in self.layers.iter().enumerate() {
            g.layer(il);
            x = g.add(x, self.attention(g, seen, layer, x));
            x = layer.feed_forward.forward(g, x);
        }
        g.no_layer();
        let x = mean_of_blocks(g, self.post_ln.forward(g, x), self.shape.processor.merge); // [n_embd, n_tokens]
        let projection = g.cont(g.transpose(vector(g, self.projection))); // [n_embd, n_embd_text]
        g.mul_mat(projection, self.soft_norm.forward(g, x))
    }

    fn inputs(&self, patches: &Patches) -> Vec<Input> {
        let places = patches.places().map(|(row, column)| (row * self.side + column) as i32).collect();
        vec![Input::I32("places".into(), places)]
    }
}

impl Gemma3 {
    fn attention<'g>(&self, g: &Graph<'g>, seen: &Seen<'g>, layer: &Layer, x: Tensor<'g>) -> Tensor<'g> {
        let n_head = self.shape.n_head as i64;
        let n_embd_head = self.shape.n_embd as i64 / n_head;
        let x = layer.ln1.forward(g, x);
        let heads =
            |linear: &Linear| g.reshape(linear.forward_wide(g, x), [n_embd_head, n_head, seen.n_patches as i64]);
        let [q, k, v] = &layer.qkv;
        let scale = 1.0 / (n_embd_head as f32).sqrt();
        layer.out.forward_wide(g, attend_to_all(g, seen, [heads(q), heads(k), heads(v)], scale))
    }
}
