//! The tower of Qwen3-VL and Qwen3.5 (`qwen3vl_merger`): patches of any resolution, learned positions between which it
//! interpolates, rotary positions of row and column, and a merger that makes one row of 2 x 2 patches.
//! Source: Qwen3-VL (Bai et al. 2025) and the published reference.

use ggml::{Dtype, Graph, Name, Tensor, WeightId};
use vision::{Budget, Patches};

use super::file::ProjectorFile;
use super::parts::{BiasedNorm, FeedForward, attend_to_all, biased, patch_matrix};
use super::shape::TowerShape;
use super::tower::{Entry, Input, Seen, Tower, ids};
use crate::blocks::{Linear, vector};
use crate::error::LoadError;
use crate::keys::MAX_BLOCKS;

pub(crate) const ENTRY: Entry = Entry { name: "qwen3vl_merger", texts: "qwen3", open };

/// Of all layer norms. Files carry the epsilon of the text model, which is another one.
const EPS: f32 = 1e-6;
const ROPE_BASE: f32 = 10_000.0;
/// The published limits, in pixels.
const MIN_PIXELS: usize = 65_536;
const MAX_PIXELS: usize = 16_777_216;

struct Qwen3Vl {
    shape: TowerShape,
    /// One for each of the two frames that a patch has; a picture is both.
    patch: [WeightId; 2],
    patch_bias: WeightId,
    /// `[n_embd, side * side]`.
    positions: WeightId,
    side: usize,
    layers: Vec<Layer>,
    post_ln: BiasedNorm,
    merger: [Linear; 2],
}

struct Layer {
    ln1: BiasedNorm,
    qkv: Linear,
    out: Linear,
    feed_forward: FeedForward,
}

fn open(file: &mut ProjectorFile<'_, '_, '_>) -> Result<Box<dyn Tower>, LoadError> {
    let keys = &file.keys;
    let merge = keys.need("spatial_merge_size", 1..=16)?;
    let limit = |key: &str, published: usize| Ok::<_, LoadError>(keys.find(key, 1..=1 << 30)?.unwrap_or(published));
    let (min, max) = (limit("image_min_pixels", MIN_PIXELS)?, limit("image_max_pixels", MAX_PIXELS)?);
    let shape = file.shape(merge, Budget::Pixels { min, max }, 4)?;
    if let Some(il) = keys.flags("is_deepstack_layers", shape.n_layer)?.and_then(|flags| flags.iter().position(|&f| f))
    {
        let what = format!(
            "block {il} also feeds layers of the text model (deepstack): that is a projector of Qwen3-VL, whose text model \
             (qwen3vl, qwen3vlmoe) is not known here; use a model of Qwen3.5 or later with its own projector"
        );
        return Err(keys.error("is_deepstack_layers", what));
    }
    let patch = shape.processor.patch;
    let image_size = keys.need("image_size", 1..=MAX_BLOCKS * 256)?;
    if !image_size.is_multiple_of(patch) {
        return Err(
            keys.error("image_size", format!("{image_size} found, a multiple of patch_size ({patch}) expected"))
        );
    }
    let (n, n_ff, side) = (shape.n_embd, shape.n_ff, image_size / patch);
    let t = &mut file.tensors.under("v.");
    let kernel = [patch, patch, 3, n];
    let patch = [t.need("patch_embd.weight", &kernel)?, t.need("patch_embd.weight.1", &kernel)?];
    let patch_bias = t.need("patch_embd.bias", &[n])?;
    let positions = t.need("position_embd.weight", &[n, side * side])?;
    let post_ln = BiasedNorm::open(t, "post_ln", n, EPS)?;
    let layer = |il: usize| {
        let t = &mut file.tensors.under(&format!("v.blk.{il}."));
        Ok(Layer {
            ln1: BiasedNorm::open(t, "ln1", n, EPS)?,
            qkv: biased(t, "attn_qkv", n, 3 * n)?,
            out: biased(t, "attn_out", n, n)?,
            feed_forward: FeedForward::open(t, n, n_ff, EPS)?,
        })
    };
    let layers = (0..shape.n_layer).map(layer).collect::<Result<_, LoadError>>()?;
    let t = &mut file.tensors.under("mm.");
    let n_block = n * merge * merge;
    let merger = [biased(t, "0", n_block, n_block)?, biased(t, "2", n_block, shape.n_embd_text)?];
    Ok(Box::new(Qwen3Vl { shape, patch, patch_bias, positions, side, layers, post_ln, merger }))
}

impl Tower for Qwen3Vl {
    fn shape(&self) -> &TowerShape {
        &self.shape
    }

    fn build<'g>(&self, g: &Graph<'g>, seen: &Seen<'g>) -> Tensor<'g> {
        let n_patches = seen.n_patches as i64;
        let [first, second] = self.patch.map(|id| patch_matrix(g, id));
        // [n_embd, n_patches]
        let x = match seen.later {
            // Both frames of a picture are the same, so their weights are added instead of their products.
            None => g.mul_mat(g.add(first, second), seen.pixels),
            Some(later) => g.add(g.mul_mat(first, seen.pixels), g.mul_mat(second, later)),
        };
        let mut x = g.add(x, vector(g, self.patch_bias));
        for corner in 0..4 {
            let rows = g.get_rows(g.weight(self.positions), ids(g, Name("corner", corner), seen.n_patches));
            let share = g.input(Name("share", corner), Dtype::F32, [1, n_patches, 1, 1]);
            x = g.add(x, g.mul(rows, share));
        }
        let positions = ids(g, "positions", 4 * seen.n_patches);
        for (il, layer) in self.layers.iter().enumerate() {
            g.layer(il);
            x = g.add(x, self.attention(g, seen, layer, x, positions));
            x = layer.feed_forward.forward(g, x);
        }
        g.no_layer();
        let n_in_block = (self.shape.processor.merge * self.shape.processor.merge) as i64;
        let x = self.post_ln.forward(g, x);
        let x = g.reshape(x, [self.shape.n_embd as i64 * n_in_block, n_patches / n_in_block]); // was [n_embd, n_patches]
        self.merger[1].forward_wide(g, g.gelu_erf(self.merger[0].forward_wide(g, x)))
    }

    fn takes_pairs(&self) -> bool {
        true
    }

    fn inputs(&self, patches: &Patches) -> Vec<Input> {
        let (mut rows, mut columns): (Vec<i32>, Vec<i32>) =
            patches.places().map(|(row, column)| (row as i32, column as i32)).unzip();
        let [_, height, width] = patches.grid;
        let mut corners: [(Vec<i32>, Vec<f32>); 4] = Default::default();
        for (&row, &column) in rows.iter().zip(&columns) {
            let ([y0, y1], [down_0, down_1]) = between(row as usize, height, self.side);
            let ([x0, x1], [across_0, across_1]) = between(column as usize, width, self.side);
            let of = [
                (y0, x0, down_0 * across_0),
                (y0, x1, down_0 * across_1),
                (y1, x0, down_1 * across_0),
                (y1, x1, down_1 * across_1),
            ];
            for ((ids, shares), (y, x, share)) in corners.iter_mut().zip(of) {
                ids.push((y * self.side + x) as i32);
                shares.push(share);
            }
        }
        let mut inputs = Vec::new();
        for ((ids, shares), corner) in corners.into_iter().zip(0..) {
            inputs.push(Input::I32(Name("corner", corner), ids));
            inputs.push(Input::F32(Name("share", corner), shares));
        }
        rows.append(&mut columns);
        rows.extend_from_within(..);
        inputs.push(Input::I32(Name("positions", 0), rows));
        inputs
    }
}

impl Qwen3Vl {
    fn attention<'g>(
        &self,
        g: &Graph<'g>,
        seen: &Seen<'g>,
        layer: &Layer,
        x: Tensor<'g>,
        positions: Tensor<'g>,
    ) -> Tensor<'g> {
        let n_head = self.shape.n_head as i64;
        let n_embd_head = self.shape.n_embd as i64 / n_head;
        let qkv = layer.qkv.forward_wide(g, layer.ln1.forward(g, x)); // [3 * n_embd, n_patches]
        let (nb, ne) = (qkv.nb(), [n_embd_head, n_head, seen.n_patches as i64, 1]);
        let head_bytes = n_embd_head as usize * nb[0];
        let part = |i: usize| g.view(qkv, ne, [head_bytes, nb[1], nb[2]], i * n_head as usize * head_bytes);
        let turned = |i| g.rope_in_two(part(i), positions, ROPE_BASE);
        let scale = 1.0 / (n_embd_head as f32).sqrt();
        layer.out.forward_wide(g, attend_to_all(g, seen, [turned(0), turned(1), part(2)], scale))
    }
}

/// The two entries of a table of `side` that entry `i` of `n` lies between, first on first and last on last, and the share of
/// each.
fn between(i: usize, n: usize, side: usize) -> ([usize; 2], [f32; 2]) {
    let at = if n > 1 { i as f32 * ((side - 1) as f32 / (n - 1) as f32) } else { 0.0 };
    let low = (at as usize).min(side - 1);
    let share = at - low as f32;
    ([low, (low + 1).min(side - 1)], [1.0 - share, share])
}
