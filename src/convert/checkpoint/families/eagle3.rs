//! EAGLE-3: a head of one layer, over its token's embedding and three layers of the model that it drafts for.

use model::TensorSchema;
use serde_json::Value;

use super::super::fields::{Fields, MAX_DIM, MAX_VOCAB, short};
use super::super::table::{Row, Sizes};
use super::super::target::Target;
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &[
        (CLASS, "eagle3"),
        ("Eagle3LlamaForCausalLM", "eagle3"),
        ("Eagle3Speculator", "eagle3"),
        ("Eagle3DraftModel", "eagle3"),
    ],
    read: |c, s| {
        s.usual(c)?;
        s.llama(c)
    },
    head: Some(|c, target, s| s.eagle3(c, target)),
    layer: &[("hidden_norm.weight", "attn_norm_2.weight")],
    globals: &[("fc.weight", "fc.weight"), ("input_norm.weight", "enc.output_norm.weight"), ("d2t", "d2t")],
    renamed: &[("midlayer.", "layers.0.")],
    interleaves: true,
    left_out: &["t2d"],
    ..Row::PLAIN
};

/// What such a head's class is called where its configuration names Llama's.
pub(crate) const CLASS: &str = "LlamaForCausalLMEagle3";

/// Layers that it reads.
const N_LAYERS: u64 = 3;

impl Sizes {
    fn eagle3(&mut self, c: &Fields<'_>, target: &Target) -> Result<(), String> {
        if self.n_layer != 1 {
            return Err(format!("num_hidden_layers is {}, the one layer of an EAGLE-3 head expected", self.n_layer));
        }
        let n_vocab = c.need("vocab_size", MAX_VOCAB)?;
        let n_words = c.find("draft_vocab_size", MAX_VOCAB)?.unwrap_or(n_vocab);
        let n_embd_target = c.find("target_hidden_size", MAX_DIM)?.unwrap_or(target.n_embd);
        for (name, found, expected) in
            [("vocab_size", n_vocab, target.n_vocab), ("target_hidden_size", n_embd_target, target.n_embd)]
        {
            if found != expected {
                return Err(format!("{name} is {found}, that of the model that it drafts for is {expected}"));
            }
        }
        let layers = match c.get("eagle_aux_hidden_state_layer_ids") {
            Some(v) => layers(v, 0, target.n_layer).filter(|list| list.len() as u64 == N_LAYERS).ok_or_else(|| {
                let (found, n) = (short(v), target.n_layer);
                format!("eagle_aux_hidden_state_layer_ids is {found}, {N_LAYERS} layers of the model's {n} expected")
            })?,
            None if target.n_layer < 4 => {
                return Err(format!("the model has {} layers, of which none are told to be read", target.n_layer));
            }
            None => vec![2, target.n_layer as i32 / 2, target.n_layer as i32 - 3],
        };
        self.put("target_layers", Key::Array(layers.into_iter().collect()));
        self.number("target_hidden_size", n_embd_target);
        let flag = |name: &str| c.flag(name).unwrap_or(false);
        self.put("norm_before_residual", Key::Bool(flag("norm_before_residual")));
        self.put("norm_before_fc", Key::Bool(flag("norm_before_fc")));
        let (n_embd, n_ff) = (c.need("hidden_size", MAX_DIM)?, c.need("intermediate_size", MAX_DIM)?);
        let d_head = self.head_dim(c)?;
        let (n_q, n_kv) = (d_head * self.n_head, d_head * self.n_head_kv);
        let own_words = n_words != n_vocab;
        let mut list = Vec::new();
        let mut add = |name: &str, ne: &[u64], required: bool| {
            list.push(TensorSchema { name: name.to_owned(), ne: ne.to_vec(), required });
        };
        add("token_embd.weight", &[n_embd, n_vocab], n_embd != target.n_embd);
        add("d2t", &[n_words], own_words);
        add("output.weight", &[n_embd, n_words], own_words || n_embd != target.n_embd);
        add("output_norm.weight", &[n_embd], true);
        add("fc.weight", &[N_LAYERS * n_embd_target, n_embd], true);
        if flag("norm_before_fc") {
            add("enc.output_norm.weight", &[N_LAYERS * n_embd_target], true);
        }
        for (name, ne) in [
            ("attn_norm.weight", &[n_embd][..]),
            ("attn_norm_2.weight", &[n_embd]),
            ("attn_q.weight", &[2 * n_embd, n_q]),
            ("attn_k.weight", &[2 * n_embd, n_kv]),
            ("attn_v.weight", &[2 * n_embd, n_kv]),
            ("attn_output.weight", &[n_q, n_embd]),
            ("ffn_norm.weight", &[n_embd]),
            ("ffn_gate.weight", &[n_embd, n_ff]),
            ("ffn_up.weight", &[n_embd, n_ff]),
            ("ffn_down.weight", &[n_ff, n_embd]),
        ] {
            add(&format!("blk.0.{name}"), ne, true);
        }
        self.tensors = Some(list);
        Ok(())
    }
}

/// The numbers of layers in a list, each `more` greater; `None` where one is past the last.
pub(super) fn layers(v: &Value, more: u64, n_layer: u64) -> Option<Vec<i32>> {
    let one =
        |v: &Value| v.as_u64().and_then(|il| il.checked_add(more)).filter(|il| *il <= n_layer).map(|il| il as i32);
    v.as_array()?.iter().map(one).collect()
}
