//! LFM2: short convolutions, and some layers of attention.

use gguf::ArrayBuf;
use serde_json::Value;

use super::super::fields::MAX_DIM;
use super::super::table::Row;
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &[("Lfm2ForCausalLM", "lfm2"), ("LFM2ForCausalLM", "lfm2")],
    read: |c, s| {
        s.usual(c)?;
        let list = c.get("layer_types").and_then(Value::as_array).ok_or("layer_types: a list expected")?;
        if list.len() as u64 != s.n_layer {
            return Err(format!("layer_types has {} entries, num_hidden_layers is {}", list.len(), s.n_layer));
        }
        let heads = list.iter().map(|kind| if *kind == "conv" { 0 } else { s.n_head_kv as i32 });
        s.put("attention.head_count_kv", Key::Array(heads.collect::<ArrayBuf>()));
        s.number("vocab_size", c.need("vocab_size", super::super::fields::MAX_VOCAB)?);
        s.number("shortconv.l_cache", c.need("conv_L_cache", 64)?);
        let n_ff = match c.find("block_ff_dim", MAX_DIM)? {
            Some(n) => n,
            None => c.need("intermediate_size", MAX_DIM)?,
        };
        let n_ff = if c.flag("block_auto_adjust_ff_dim") == Some(true) {
            let multiple = c.find("block_multiple_of", MAX_DIM)?.unwrap_or(256);
            let share = c.float("block_ffn_dim_multiplier")?.filter(|x| (0.0..=64.0).contains(x)).unwrap_or(1.0);
            ((share * (2 * n_ff / 3) as f64) as u64).next_multiple_of(multiple)
        } else {
            n_ff
        };
        s.number("feed_forward_length", n_ff);
        Ok(())
    },
    layer: &[
        ("operator_norm.weight", "attn_norm.weight"),
        ("ffn_norm.weight", "ffn_norm.weight"),
        ("conv.conv.weight", "shortconv.conv.weight"),
        ("conv.in_proj.weight", "shortconv.in_proj.weight"),
        ("conv.out_proj.weight", "shortconv.out_proj.weight"),
        ("self_attn.out_proj.weight", "attn_output.weight"),
        ("self_attn.q_layernorm.weight", "attn_q_norm.weight"),
        ("self_attn.k_layernorm.weight", "attn_k_norm.weight"),
        ("feed_forward.w1.weight", "ffn_gate.weight"),
        ("feed_forward.w2.weight", "ffn_down.weight"),
        ("feed_forward.w3.weight", "ffn_up.weight"),
    ],
    globals: &[("embedding_norm.weight", "token_embd_norm.weight")],
    ..Row::PLAIN
};
