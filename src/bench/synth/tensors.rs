//! The tensors of a model: those of its schema, with their types and what is in each.
//! Writes nothing.
//!
//! Weights are small and random but for few: the embedding and the head hold the vectors of [`Successor`]; the head's
//! projection passes a vector on, and counts its depth; one neuron of the draft head turns it wrong for tokens that it is
//! not good at; and the last layer moves elements when the head is the embedding.

use gguf::TensorType;
use model::{TensorSchema, block_of};

use super::shapes::{INTERVAL, Shape};
use super::successor::{CLASS, CONST, COUNTERS, MAX_RATES, MOST, N_RESERVED, Successor, UNIT};
use super::types::{Mix, Role};

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
    /// Vectors of tokens, row by row.
    Embedding,
    /// Vectors of the tokens before, row by row.
    Head,
    /// Rows or columns that mean something, the rest as random as given.
    Wired(Wiring, f32),
}

/// The parts that are not random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wiring {
    /// `eh_proj`: elements of the embedding, moved where they move; counters.
    Project,
    /// Rows of gate, up and down that move elements.
    MoveGate,
    MoveUp,
    MoveDown,
    /// One neuron that makes a draft wrong.
    SpoilGate,
    SpoilUp,
    SpoilDown,
}

/// How strongly the last layer adds moved elements to what was there.
const MOVED: f32 = 8.0;

/// Sharpness of the neuron that spoils drafts, for one unit.
const SHARP: f32 = 6.0;

/// Spread of most weights: so small that a layer hardly changes the hidden state.
const SMALL: f32 = 2e-3;

/// The largest logit, about.
const TOP_LOGIT: f32 = 32.0;

impl Wiring {
    /// Rows, from the first, that are not random at all.
    pub(crate) fn n_rows(self, n_embd: usize) -> usize {
        match self {
            Wiring::Project => n_embd,
            Wiring::MoveGate | Wiring::MoveUp => n_embd - N_RESERVED,
            Wiring::SpoilGate | Wiring::SpoilUp => 1,
            Wiring::MoveDown | Wiring::SpoilDown => 0,
        }
    }

    /// Columns, from the first, that are not random in any row.
    pub(crate) fn n_cols(self, n_embd: usize) -> usize {
        match self {
            Wiring::MoveDown => n_embd - N_RESERVED,
            Wiring::SpoilDown => 1,
            _ => 0,
        }
    }

    /// The elements of a row that are not zero, by column; `spoiled` is the vector that a wrong draft turns to.
    pub(crate) fn row(self, s: &Successor, spoiled: &[i8], r: usize, mut set: impl FnMut(usize, f32)) {
        let n_embd = spoiled.len();
        // Value of the constant element, and of a full counter.
        let full = f32::from(MOST) * UNIT;
        match self {
            Wiring::Project => {
                // Each counter is set one step after the one before it, the first at once; there are two of each.
                match r.checked_sub(COUNTERS).filter(|_| r < N_RESERVED) {
                    Some(c) if c % MAX_RATES == 0 => set(CONST, 1.0),
                    Some(_) => set(n_embd + r - 1, 1.0),
                    None => set(s.source(r), 1.0),
                }
            }
            Wiring::MoveGate => set(CONST, MOVED / full),
            Wiring::MoveUp => set(s.source(N_RESERVED + r), 1.0),
            // silu(8) is 8, so the gate and the strength cancel.
            Wiring::MoveDown => {
                if let Some(neuron) = r.checked_sub(N_RESERVED) {
                    set(neuron, 1.0);
                }
            }
            Wiring::SpoilGate => {
                let weight = |whole: i32| SHARP / UNIT * whole as f32 / f32::from(MOST);
                let (constant, counters) = s.classes().weights();
                set(CLASS, weight(MOST.into()));
                set(CONST, weight(constant));
                for (c, &step) in counters.iter().enumerate() {
                    // The first counter is set at the first depth already. Halves on two of each, so that no weight is above
                    // that of the class.
                    set(COUNTERS + 1 + c, weight(step / 2));
                    set(COUNTERS + MAX_RATES + 1 + c, weight(step - step / 2));
                }
            }
            Wiring::SpoilUp => set(CONST, 1.0 / full),
            Wiring::SpoilDown => set(0, 0.5 * UNIT * f32::from(spoiled[r])),
        }
    }
}

/// All tensors in the order of the file.
pub(crate) fn tensors(shape: &Shape, mix: &Mix) -> Vec<Tensor> {
    let one = |TensorSchema { name, ne, .. }: TensorSchema| {
        let (role, fill) = match block_of(&name) {
            Some((il, part)) => in_block(shape, il as usize, part),
            None => match name.as_str() {
                "token_embd.weight" => (Some(Role::Embedding), Fill::Embedding),
                "output.weight" => (Some(Role::Head), Fill::Head),
                _ => (None, Fill::Same(TOP_LOGIT / shape.n_embd as f32)),
            },
        };
        Tensor { dtype: role.map_or(TensorType::F32, |role| mix.of(role, shape)), name, ne, fill }
    };
    shape.schema().tensors.into_iter().map(one).collect()
}

/// What a tensor of block `il` does, if a mix gives it a type, and what is in it.
fn in_block(s: &Shape, il: usize, part: &str) -> (Option<Role>, Fill) {
    let is_mtp = il == s.n_layer;
    let fair = (s.n_embd as f32).powf(-0.5);
    let wired = |[spoil, moved]: [Wiring; 2]| match il {
        _ if is_mtp => Fill::Wired(spoil, SMALL),
        il if s.tied && il + 1 == s.n_layer => Fill::Wired(moved, SMALL),
        _ => Fill::Random(SMALL),
    };
    let down = Role::Favoured { i: il, n: s.n_layer + 1 };
    let values = Role::Favoured { i: il / INTERVAL, n: s.n_layer / INTERVAL + 1 };
    match part {
        "nextn.shared_head_norm.weight" => (None, Fill::Same(TOP_LOGIT / s.n_embd as f32)),
        "nextn.eh_proj.weight" => (Some(Role::Careful), Fill::Wired(Wiring::Project, 0.0)),
        _ if part.ends_with("norm.weight") => (None, Fill::Same(1.0)),
        "attn_qkv.weight" => (Some(Role::Qkv), Fill::Random(fair)),
        "attn_gate.weight" => (Some(Role::Plain), Fill::Random(fair)),
        "attn_v.weight" => (Some(values), Fill::Random(SMALL)),
        "ssm_conv1d.weight" => (None, Fill::Random(0.3)),
        "ssm_dt.bias" => (None, Fill::Random(0.5)),
        "ssm_a" => (None, Fill::Decay),
        _ if part.ends_with(".bias") => (None, Fill::Random(SMALL)),
        "ssm_beta.weight" | "ssm_alpha.weight" | "ssm_ba.weight" => (Some(Role::Careful), Fill::Random(0.5 * fair)),
        "ffn_gate_inp.weight" => (None, Fill::Random(0.05)),
        // The draft head's shared expert is on: its neuron counts.
        "ffn_gate_inp_shexp.weight" if is_mtp => (None, Fill::One(CONST, 4.0)),
        "ffn_gate_inp_shexp.weight" => (None, Fill::Random(0.01)),
        "ffn_gate.weight" | "ffn_gate_shexp.weight" => {
            (Some(Role::Plain), wired([Wiring::SpoilGate, Wiring::MoveGate]))
        }
        "ffn_up.weight" | "ffn_up_shexp.weight" => (Some(Role::Plain), wired([Wiring::SpoilUp, Wiring::MoveUp])),
        "ffn_down.weight" | "ffn_down_shexp.weight" => (Some(down), wired([Wiring::SpoilDown, Wiring::MoveDown])),
        "ffn_down_exps.weight" => (Some(down), Fill::Random(SMALL)),
        _ => (Some(Role::Plain), Fill::Random(SMALL)),
    }
}
