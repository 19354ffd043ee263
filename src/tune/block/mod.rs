//! A NextN head as a function that can be differentiated: what [`model::HeadShape`] says, over whole texts and unrolled over the
//! draft depth with its own output fed back, as drafts use it. Knows no file and no loss.

mod attention;
mod ffn;
mod queries;
mod rotation;
mod router;
mod weights;

use candle_core::{Device, Result, Tensor};
use model::HeadShape;

use attention::{Seen, Sight, attend};
use queries::Cells;
use rotation::Positions;
pub use weights::{Layer, Numbers};

/// A head: one layer for all draft tokens, or one for each.
#[derive(Debug)]
pub struct Head {
    shape: HeadShape,
    layers: Vec<Layer>,
    positions: Positions,
    device: Device,
}

/// The norm at the end of a layer, and its other name.
const OWN_NORM: &str = "nextn.shared_head_norm.weight";
const OTHER_NORM: &str = "layer_output_norm.weight";

impl Head {
    /// `final_norm` is the target model's, for layers without one of their own; `factors` its factors on frequencies. Texts have
    /// at most `n_positions` tokens.
    pub fn new(
        shape: HeadShape,
        mut layers: Vec<Layer>,
        (final_norm, factors): (&[f32], Option<&[f32]>),
        n_positions: usize,
        device: &Device,
    ) -> Result<Self> {
        for layer in layers.iter_mut().filter(|layer| !layer.has(OWN_NORM) && !layer.has(OTHER_NORM)) {
            layer.fix(OWN_NORM, Tensor::from_slice(final_norm, final_norm.len(), device)?);
        }
        let positions = Positions::new(&shape.attention, factors, n_positions, device)?;
        Ok(Self { shape, layers, positions, device: device.clone() })
    }

    /// Where its numbers are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its layers.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Draft tokens `1..=depth` after every position of texts of `n` tokens. `embeddings: [n_texts, n, n_embd]` of their tokens,
    /// `hidden`, likewise, what the target model hands to the head. Result `k`, from 0: what the output matrix is multiplied with
    /// for the token `k + 2` places on, `[n_texts, n - 2 - k, n_embd]`: of the last positions nobody knows that token.
    pub fn unroll(&self, embeddings: &Tensor, hidden: &Tensor, depth: usize) -> Result<Vec<Tensor>> {
        let n = embeddings.dim(1)?;
        let (mut outs, mut chain): (Vec<Tensor>, Vec<Cells>) = (Vec::new(), Vec::new());
        let mut text: Option<Cells> = None;
        let mut handed = hidden.clone();
        let mut sight = Sight::new(n, self.shape.attention.window, embeddings)?;
        for k in 0..depth.min(n.saturating_sub(2)) {
            let n_rows = n - 2 - k;
            let tokens = embeddings.narrow(1, k + 1, n_rows)?;
            let by_layers = self.layers.len() > 1;
            let Some(layer) = (if by_layers { self.layers.get(k) } else { self.layers.first() }) else { break };
            let before = if by_layers && !self.shape.chained { hidden } else { &handed };
            let at = if by_layers { 0 } else { k };
            let seen = sight.of(at, text.as_ref().filter(|_| !by_layers), &chain)?;
            let (stream, cells) = self.layer(layer, (&tokens, &before.narrow(1, 0, n_rows)?), at, &seen)?;
            if text.is_none() {
                text = Some(cells);
            } else {
                chain.push(cells);
            }
            let out = self.end(layer, &stream)?;
            handed = if self.shape.pre_norm { stream } else { out.clone() };
            outs.push(out);
        }
        Ok(outs)
    }

    /// What the output matrix is multiplied with, of the stream after the layer.
    fn end(&self, layer: &Layer, stream: &Tensor) -> Result<Tensor> {
        let name = if layer.has(OWN_NORM) { OWN_NORM } else { OTHER_NORM };
        match self.shape.layer_norm {
            Some(eps) => layer.layer_norm(name, stream, eps),
            None => layer.norm(name, stream, self.shape.eps),
        }
    }

    /// `[n_texts, n_rows, n_embd]` each; gives the stream after the layer.
    fn layer(
        &self,
        layer: &Layer,
        (tokens, hidden): (&Tensor, &Tensor),
        first: usize,
        seen: &Seen<'_>,
    ) -> Result<(Tensor, Cells)> {
        let HeadShape { n_embd, eps, ffn_norm, attention, ffn, .. } = &self.shape;
        let e = layer.norm("nextn.enorm.weight", tokens, *eps)?;
        let h = layer.norm("nextn.hnorm.weight", hidden, *eps)?;
        let x = layer.linear("nextn.eh_proj", &Tensor::cat(&[e, h], 2)?)?;
        let normed = layer.norm("attn_norm.weight", &x, *eps)?;
        let (mixed, cells) = attend(attention, (layer, &self.positions), *eps, (&normed, first), seen)?;
        let x = (x + layer.linear("attn_output", &mixed)?)?;
        let (n_texts, n_rows, _) = x.dims3()?;
        let normed = layer.norm(&format!("{ffn_norm}.weight"), &x, *eps)?.reshape((n_texts * n_rows, *n_embd))?;
        let added = ffn::forward(ffn, layer, &normed)?.reshape((n_texts, n_rows, *n_embd))?;
        Ok(((x + added)?, cells))
    }
}

#[cfg(test)]
pub(crate) mod tests;
