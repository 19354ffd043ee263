//! The tensors of a model: names, shapes, types, and what is in each.
//! Owns the list; writes nothing.
//!
//! Weights are small and random but for few: the embedding and the head hold the vectors of [`Successor`]; the head's
//! projection passes a vector on, and counts its depth; one neuron of the draft head turns it wrong for tokens that it is
//! not good at; and the last layer moves elements when the head is the embedding.

use gguf::TensorType;

use super::shapes::{Ffn, N_TAPS, Shape};
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

/// Spread of most weights: so small that a layer hardly changes the hidden row.
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
    let mut list = List { shape, mix, tensors: Vec::new() };
    let d = shape.n_embd;
    let norm = TOP_LOGIT / d as f32;
    list.matrix("token_embd.weight", d, shape.n_vocab, Role::Embedding, Fill::Embedding);
    if !shape.tied {
        list.matrix("output.weight", d, shape.n_vocab, Role::Head, Fill::Head);
    }
    list.vector("output_norm.weight", d, Fill::Same(norm));
    for il in 0..=shape.n_layer {
        list.block(il);
    }
    let name = |what: &str| format!("blk.{}.nextn.{what}.weight", shape.n_layer);
    list.matrix(&name("eh_proj"), 2 * d, d, Role::Careful, Fill::Wired(Wiring::Project, 0.0));
    list.vector(&name("enorm"), d, Fill::Same(1.0));
    list.vector(&name("hnorm"), d, Fill::Same(1.0));
    list.vector(&name("shared_head_norm"), d, Fill::Same(norm));
    list.tensors
}

struct List<'a> {
    shape: &'a Shape,
    mix: &'a Mix,
    tensors: Vec<Tensor>,
}

impl List<'_> {
    fn push(&mut self, name: &str, ne: &[usize], dtype: TensorType, fill: Fill) {
        let ne = ne.iter().map(|&n| n as u64).collect();
        self.tensors.push(Tensor { name: name.to_owned(), ne, dtype, fill });
    }

    fn vector(&mut self, name: &str, n: usize, fill: Fill) {
        self.push(name, &[n], TensorType::F32, fill);
    }

    fn matrix(&mut self, name: &str, n_in: usize, n_out: usize, role: Role, fill: Fill) {
        self.push(name, &[n_in, n_out], self.mix.of(role, self.shape), fill);
    }

    fn block(&mut self, il: usize) {
        let (s, d) = (self.shape, self.shape.n_embd);
        let name = |what: &str| format!("blk.{il}.{what}");
        self.vector(&name("attn_norm.weight"), d, Fill::Same(1.0));
        self.vector(&name("post_attention_norm.weight"), d, Fill::Same(1.0));
        if s.is_recurrent(il) {
            let (d_value, n_channels) = (s.d_value(), 2 * s.d_key() + s.d_value());
            let fair = (d as f32).powf(-0.5);
            self.matrix(&name("attn_qkv.weight"), d, n_channels, Role::Qkv, Fill::Random(fair));
            self.matrix(&name("attn_gate.weight"), d, d_value, Role::Plain, Fill::Random(fair));
            self.push(&name("ssm_conv1d.weight"), &[N_TAPS, n_channels], TensorType::F32, Fill::Random(0.3));
            self.vector(&name("ssm_dt.bias"), s.n_v_heads, Fill::Random(0.5));
            self.vector(&name("ssm_a"), s.n_v_heads, Fill::Decay);
            self.matrix(&name("ssm_beta.weight"), d, s.n_v_heads, Role::Careful, Fill::Random(0.5 * fair));
            self.matrix(&name("ssm_alpha.weight"), d, s.n_v_heads, Role::Careful, Fill::Random(0.5 * fair));
            self.vector(&name("ssm_norm.weight"), s.d_state, Fill::Same(1.0));
            self.matrix(&name("ssm_out.weight"), d_value, d, Role::Plain, Fill::Random(SMALL));
        } else {
            let (n_q, n_kv) = (s.d_head * s.n_head, s.d_head * s.n_head_kv);
            let n_blocks = s.n_layer / super::shapes::INTERVAL + 1;
            let values = Role::Favoured { i: il / super::shapes::INTERVAL, n: n_blocks };
            self.matrix(&name("attn_q.weight"), d, 2 * n_q, Role::Plain, Fill::Random(SMALL));
            self.matrix(&name("attn_k.weight"), d, n_kv, Role::Plain, Fill::Random(SMALL));
            self.matrix(&name("attn_v.weight"), d, n_kv, values, Fill::Random(SMALL));
            self.matrix(&name("attn_output.weight"), n_q, d, Role::Plain, Fill::Random(SMALL));
            self.vector(&name("attn_q_norm.weight"), s.d_head, Fill::Same(1.0));
            self.vector(&name("attn_k_norm.weight"), s.d_head, Fill::Same(1.0));
        }
        self.ffn(il);
    }

    fn ffn(&mut self, il: usize) {
        let (s, d) = (self.shape, self.shape.n_embd);
        let name = |what: &str| format!("blk.{il}.{what}");
        let down = Role::Favoured { i: il, n: s.n_layer + 1 };
        let wired = |wiring| Fill::Wired(wiring, SMALL);
        let [gate, up, out] = match il {
            il if il == s.n_layer => [Wiring::SpoilGate, Wiring::SpoilUp, Wiring::SpoilDown].map(wired),
            il if s.tied && il + 1 == s.n_layer => [Wiring::MoveGate, Wiring::MoveUp, Wiring::MoveDown].map(wired),
            _ => [const { Fill::Random(SMALL) }; 3],
        };
        let (suffix, n_ff) = match s.ffn {
            Ffn::Dense { n_ff } => ("", n_ff),
            Ffn::Moe { n_expert, n_ff, n_ff_shared, .. } => {
                let dtype = |role| self.mix.of(role, s);
                let (plain, down) = (dtype(Role::Plain), dtype(down));
                self.push(&name("ffn_gate_inp.weight"), &[d, n_expert], TensorType::F32, Fill::Random(0.05));
                self.push(&name("ffn_gate_exps.weight"), &[d, n_ff, n_expert], plain, Fill::Random(SMALL));
                self.push(&name("ffn_up_exps.weight"), &[d, n_ff, n_expert], plain, Fill::Random(SMALL));
                self.push(&name("ffn_down_exps.weight"), &[n_ff, d, n_expert], down, Fill::Random(SMALL));
                // The draft head's shared expert is on: its neuron counts.
                let on = if il == s.n_layer { Fill::One(CONST, 4.0) } else { Fill::Random(0.01) };
                self.vector(&name("ffn_gate_inp_shexp.weight"), d, on);
                ("_shexp", n_ff_shared)
            }
        };
        self.matrix(&name(&format!("ffn_gate{suffix}.weight")), d, n_ff, Role::Plain, gate);
        self.matrix(&name(&format!("ffn_up{suffix}.weight")), d, n_ff, Role::Plain, up);
        self.matrix(&name(&format!("ffn_down{suffix}.weight")), n_ff, d, down, out);
    }
}
