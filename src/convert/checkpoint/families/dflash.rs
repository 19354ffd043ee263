//! DFlash: a head that drafts a block at once, over some layers of the model that it drafts for.

use model::TensorSchema;
use serde_json::Value;

use super::super::fields::{Fields, MAX_DIM, MAX_VOCAB, short};
use super::super::layer_list::LayerList;
use super::super::table::{Row, Sizes};
use super::super::target::Target;
use super::eagle3::layers;
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &[("DFlashDraftModel", "dflash")],
    head: Some(|c, target, s| s.dflash(c, target)),
    layer: &[("self_attn.sinks", "attn_sinks.weight"), ("self_attn.attention_sink_bias", "attn_sinks.weight")],
    globals: &[("fc.weight", "fc.weight"), ("hidden_norm.weight", "enc.output_norm.weight")],
    ..Row::PLAIN
};

/// Rows of a block where the configuration does not say.
const BLOCK: u64 = 16;

impl Sizes {
    fn dflash(&mut self, c: &Fields<'_>, target: &Target) -> Result<(), String> {
        let own = c.get("dflash_config").filter(|v| v.is_object());
        // What stands within goes before what stands outside.
        let both = Fields { root: c.text.unwrap_or(c.root), text: own, defaults: &[] };
        let (n_vocab, n_embd) = (c.need("vocab_size", MAX_VOCAB)?, c.need("hidden_size", MAX_DIM)?);
        for (name, found, expected) in [("vocab_size", n_vocab, target.n_vocab), ("hidden_size", n_embd, target.n_embd)]
        {
            if found != expected {
                return Err(format!("{name} is {found}, that of the model that it drafts for is {expected}"));
            }
        }
        for name in ["conv_kernel_size", "markov_rank", "output_multiplier"] {
            if both.get(name).is_some() {
                return Err(format!("{name} is set, which a plain DFlash head does not have"));
            }
        }
        if both.float("final_logit_softcapping")?.is_some_and(|cap| cap > 0.0) || both.flag("is_causal") == Some(true) {
            return Err("final_logit_softcapping or is_causal is set, which is not supported".into());
        }
        if c.flag("rope_is_neox_style") == Some(false) {
            return Err("rope_is_neox_style is false, which is not supported".into());
        }
        let d_head = self.head_dim(c)?;
        let share = Sizes::turned_share(c, 1.0)?;
        if share < 1.0 {
            self.number("rope.dimension_count", (d_head as f64 * share) as u64);
        }
        if let Some(scale) = both.float("attention_value_scale")? {
            self.put("attention.value_scale", Key::F32(scale as f32));
        }
        self.number("block_size", both.find("block_size", 256)?.unwrap_or(BLOCK));
        if let Some(scale) = both.float("input_embedding_scale")? {
            self.put("embedding_scale", Key::F32(scale as f32));
        }
        let of = both.get("target_layer_ids").ok_or("target_layer_ids is missing")?;
        // Files count what goes into a layer, checkpoints what comes out of one.
        let read = layers(of, 1, target.n_layer).filter(|list| !list.is_empty());
        let read = read.ok_or_else(|| {
            format!("target_layer_ids is {}, layers of the model's {} expected", short(of), target.n_layer)
        })?;
        let n_read = read.len() as u64;
        self.put("target_layers", Key::Array(read.into_iter().collect()));
        self.window(c, &both)?;
        if let Some(causal) = both.flag("causal") {
            self.put("attention.causal", Key::Bool(causal));
        }
        if target.has_sections {
            let sections = [d_head as i32 / 2, 0, 0, 0];
            self.put("rope.dimension_sections", Key::Array(sections.into_iter().collect()));
        }
        self.mask = both.count("mask_token_id", n_vocab - 1)?;
        let n_ff = c.need("intermediate_size", MAX_DIM)?;
        let (n_q, n_kv) = (d_head * self.n_head, d_head * self.n_head_kv);
        let mut list = Vec::new();
        let mut add = |name: &str, ne: &[u64], required: bool| {
            list.push(TensorSchema { name: name.to_owned(), ne: ne.to_vec(), required });
        };
        add("token_embd.weight", &[n_embd, n_vocab], false);
        add("output.weight", &[n_embd, n_vocab], false);
        add("fc.weight", &[n_read * n_embd, n_embd], true);
        add("enc.output_norm.weight", &[n_embd], true);
        add("output_norm.weight", &[n_embd], true);
        for il in 0..self.n_layer {
            for (name, ne) in [
                ("attn_norm.weight", &[n_embd][..]),
                ("attn_q.weight", &[n_embd, n_q]),
                ("attn_k.weight", &[n_embd, n_kv]),
                ("attn_v.weight", &[n_embd, n_kv]),
                ("attn_output.weight", &[n_q, n_embd]),
                ("attn_q_norm.weight", &[d_head]),
                ("attn_k_norm.weight", &[d_head]),
                ("ffn_norm.weight", &[n_embd]),
                ("ffn_gate.weight", &[n_embd, n_ff]),
                ("ffn_up.weight", &[n_embd, n_ff]),
                ("ffn_down.weight", &[n_ff, n_embd]),
            ] {
                add(&format!("blk.{il}.{name}"), ne, true);
            }
            add(&format!("blk.{il}.attn_sinks.weight"), &[self.n_head], false);
        }
        self.tensors = Some(list);
        Ok(())
    }

    /// Which layers see a few tokens only.
    fn window(&mut self, c: &Fields<'_>, both: &Fields<'_>) -> Result<(), String> {
        let all = both.flag("use_swa") == Some(true);
        if !all && c.flag("use_sliding_window") != Some(true) {
            return Ok(());
        }
        let window = match both.find("swa_window_size", u32::MAX.into())? {
            Some(n) => Some(n),
            None => c.find("sliding_window", u32::MAX.into())?,
        };
        let Some(window) = window else { return Ok(()) };
        let kinds = c.get("layer_types").and_then(Value::as_array);
        if let Some(kinds) = kinds.filter(|kinds| kinds.len() as u64 != self.n_layer) {
            return Err(format!("layer_types has {} entries, num_hidden_layers is {}", kinds.len(), self.n_layer));
        }
        let slides = |il: u64| all || kinds.is_some_and(|kinds| kinds[il as usize] == "sliding_attention");
        self.number("attention.sliding_window", window);
        let pattern = LayerList::Bool((0..self.n_layer).map(slides).collect(), false);
        self.list("attention.sliding_window_pattern", pattern);
        Ok(())
    }
}
