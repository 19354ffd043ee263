//! The tensors of a model: those of its schema, with their types and what is in each.
//! Writes nothing.
//!
//! Weights are small and random but for few: the embedding and the head hold the vectors of [`Successor`](super::successor::Successor); the head's
//! projection passes a vector on, and counts its depth; one neuron of the draft head turns it wrong for tokens that it is
//! not good at; and the last layer moves elements when the head is the embedding. Where a family norms what a layer adds,
//! the norm's weight says how much that is.

use gguf::TensorType;
use model::{TensorSchema, block_of};

use super::shapes::{Family, INTERVAL, Shape};
use super::successor::CONST;
use super::types::{Mix, Role};
use super::wiring::{MOVED, Part, Spoil, Wiring};

/// One tensor.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) ne: Vec<u64>,
    pub(crate) dtype: TensorType,
    pub(crate) fill: Fill,
}

/// What is in a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Fill {
    /// Around 0 with this spread.
    Random(f32),
    /// The same number everywhere.
    Same(f32),
    /// Zero but for one element.
    One(usize, f32),
    /// Minus `exp` of 0 to 2: decay rates.
    Decay,
    /// Divisors of frequencies: 1 for the first quarter of pairs; the others do not turn.
    Turning,
    /// Vectors of tokens, row by row, times this.
    Embedding(f32),
    /// Vectors of the tokens before, row by row.
    Head,
    /// Rows or columns that mean something, the rest as random as given.
    Wired(Wiring, f32),
}

/// How strongly an assistant's last layer adds what its feed-forward gives, which is a wrong vector or nothing that counts.
const SPOILED: f32 = 2.0;

/// The same of layers that add nothing that means something.
const HARDLY: f32 = 0.02;

/// Spread of most weights: so small that a layer hardly changes the hidden state.
const SMALL: f32 = 2e-3;

/// The largest logit, about.
const TOP_LOGIT: f32 = 32.0;

/// All tensors in the order of the file.
pub(crate) fn tensors(shape: &Shape, mix: &Mix) -> Vec<Tensor> {
    let one = |TensorSchema { name, ne, .. }: TensorSchema| {
        let (role, fill) = match block_of(&name) {
            Some((il, part)) if shape.is_gemma() => in_gemma(shape, il as usize, part),
            Some((il, part)) => in_block(shape, il as usize, part),
            None => outside(shape, &name),
        };
        let dtype = role.map_or(TensorType::F32, |role| mix.of(role, shape, ne[0]));
        Tensor { dtype, name, ne, fill }
    };
    shape.schema().tensors.into_iter().map(one).collect()
}

/// Weight of the last norm.
fn last_norm(s: &Shape) -> f32 {
    let n = s.n_embd as f32;
    match s.family {
        // Embeddings are multiplied with the root of the width, so that theirs are smaller, and the head is the embedding.
        Family::Gemma4 { .. } => TOP_LOGIT / n.sqrt(),
        // The stream is longer than a vector by what the last layer adds.
        Family::Gemma4Assistant { .. } => TOP_LOGIT / n * (1.0 + SPOILED * SPOILED).sqrt(),
        _ => TOP_LOGIT / n,
    }
}

/// What a tensor outside of blocks does, if a mix gives it a type, and what is in it.
fn outside(s: &Shape, name: &str) -> (Option<Role>, Fill) {
    let is_assistant = matches!(s.family, Family::Gemma4Assistant { .. });
    match name {
        // What it embeds are its target's.
        "token_embd.weight" if is_assistant => (Some(Role::Head), Fill::Head),
        "token_embd.weight" => {
            let scale = if s.is_gemma() { (s.n_embd as f32).powf(-0.5) } else { 1.0 };
            (Some(Role::Embedding), Fill::Embedding(scale))
        }
        "output.weight" => (Some(Role::Head), Fill::Head),
        "nextn.pre_projection.weight" => (Some(Role::Careful), Fill::Wired(Wiring::Before, 0.0)),
        "nextn.post_projection.weight" => {
            let back = s.n_embd as f32 / TOP_LOGIT;
            (Some(Role::Careful), Fill::Wired(Wiring::After { back }, 0.0))
        }
        "rope_freqs.weight" => (None, Fill::Turning),
        _ => (None, Fill::Same(last_norm(s))),
    }
}

/// What a tensor of block `il` does, if a mix gives it a type, and what is in it.
fn in_block(s: &Shape, il: usize, part: &str) -> (Option<Role>, Fill) {
    let is_mtp = il >= s.n_layer;
    let fair = (s.n_embd as f32).powf(-0.5);
    // Of several MTP layers each drafts at its own depth.
    let spoil = Spoil { depth: (s.n_nextn > 1).then(|| il.saturating_sub(s.n_layer)), steady: false };
    let wired = |part: Part| match il {
        _ if is_mtp => Fill::Wired(Wiring::Spoil(part, spoil), SMALL),
        il if s.tied && il + 1 == s.n_layer => Fill::Wired(Wiring::Move(part), SMALL),
        _ => Fill::Random(SMALL),
    };
    let down = Role::Favoured { i: il, n: s.n_layer + s.n_nextn };
    let values = match s.is_hybrid() {
        true => Role::Favoured { i: il / INTERVAL, n: s.n_layer / INTERVAL + 1 },
        false => down,
    };
    match part {
        "nextn.shared_head_norm.weight" | "layer_output_norm.weight" => (None, Fill::Same(last_norm(s))),
        "nextn.shared_head_head.weight" => (Some(Role::Head), Fill::Head),
        "nextn.eh_proj.weight" => (Some(Role::Careful), Fill::Wired(Wiring::Project, 0.0)),
        _ if part.ends_with("norm.weight") => (None, Fill::Same(1.0)),
        "attn_qkv.weight" if s.is_hybrid() => (Some(Role::Qkv), Fill::Random(fair)),
        "attn_gate.weight" => (Some(Role::Plain), Fill::Random(fair)),
        "attn_v.weight" => (Some(values), Fill::Random(SMALL)),
        "attn_k_b.weight" | "attn_v_b.weight" => (Some(Role::Careful), Fill::Random(SMALL)),
        "attn_sinks.weight" => (None, Fill::Random(0.5)),
        "ssm_conv1d.weight" => (None, Fill::Random(0.3)),
        "ssm_dt.bias" => (None, Fill::Random(0.5)),
        "ssm_a" => (None, Fill::Decay),
        _ if part.ends_with(".bias") => (None, Fill::Random(SMALL)),
        "ssm_beta.weight" | "ssm_alpha.weight" | "ssm_ba.weight" => (Some(Role::Careful), Fill::Random(0.5 * fair)),
        "ffn_gate_inp.weight" => (None, Fill::Random(0.05)),
        // The draft head's shared expert is on: its neuron counts.
        "ffn_gate_inp_shexp.weight" if is_mtp => (None, Fill::One(CONST, 4.0)),
        "ffn_gate_inp_shexp.weight" => (None, Fill::Random(0.01)),
        "ffn_gate.weight" | "ffn_gate_shexp.weight" => (Some(Role::Plain), wired(Part::Gate)),
        "ffn_up.weight" | "ffn_up_shexp.weight" => (Some(Role::Plain), wired(Part::Up)),
        "ffn_down.weight" | "ffn_down_shexp.weight" => (Some(down), wired(Part::Down)),
        "ffn_down_exps.weight" => (Some(down), Fill::Random(SMALL)),
        _ => (Some(Role::Plain), Fill::Random(SMALL)),
    }
}

/// The same of Gemma 4 and its assistants, where only the last layer adds something that means something.
fn in_gemma(s: &Shape, il: usize, part: &str) -> (Option<Role>, Fill) {
    let is_last = il + 1 == s.n_layer;
    let (wiring, strength): (fn(Part) -> Wiring, f32) = match s.family {
        Family::Gemma4Assistant { .. } => (|part| Wiring::Spoil(part, Spoil { depth: None, steady: true }), SPOILED),
        _ => (Wiring::Move, MOVED),
    };
    let wired = |part: Part| if is_last { Fill::Wired(wiring(part), SMALL) } else { Fill::Random(SMALL) };
    let favoured = Some(Role::Favoured { i: il, n: s.n_layer });
    match part {
        "post_ffw_norm.weight" => (None, Fill::Same(if is_last { strength } else { HARDLY })),
        // Beside the dense part experts hardly count.
        "post_attention_norm.weight" | "post_ffw_norm_2.weight" => (None, Fill::Same(HARDLY)),
        _ if part.ends_with("norm.weight") || part.contains("_norm_") => (None, Fill::Same(1.0)),
        "layer_output_scale.weight" | "ffn_down_exps.scale" => (None, Fill::Same(1.0)),
        // The router's input is divided by the root of the width.
        "ffn_gate_inp.scale" => (None, Fill::Same((s.n_embd as f32).sqrt())),
        "ffn_gate_inp.weight" => (None, Fill::Random(0.05)),
        "attn_v.weight" | "ffn_down_exps.weight" => (favoured, Fill::Random(SMALL)),
        "ffn_gate.weight" => (Some(Role::Plain), wired(Part::Gate)),
        "ffn_up.weight" => (Some(Role::Plain), wired(Part::Up)),
        "ffn_down.weight" => (favoured, wired(Part::Down)),
        _ => (Some(Role::Plain), Fill::Random(SMALL)),
    }
}
