//! Phi-3 with Llama's pieces, and Phi-4 with a byte-level vocabulary.

use super::super::fields::MAX_DIM;
use super::super::table::{Row, Sizes, Vocabulary};
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &[("Phi3ForCausalLM", "phi3")],
    read: |c, s| {
        let rope = Sizes::rope_fields(c);
        let n_ctx = c.need("max_position_embeddings", u32::MAX.into())?;
        let trained = rope.find("original_max_position_embeddings", u32::MAX.into())?.unwrap_or(n_ctx);
        let share = Sizes::turned_share(c, 1.0)?;
        let n_embd = c.need("hidden_size", MAX_DIM)?;
        let n_turned = (share * n_embd as f64) as u64 / s.n_head;
        s.number("context_length", n_ctx);
        s.number("rope.scaling.original_context_length", trained);
        s.number("embedding_length", n_embd);
        s.number("feed_forward_length", c.need("intermediate_size", MAX_DIM)?);
        let (n_head, n_head_kv) = (s.n_head, s.n_head_kv);
        s.number("attention.head_count", n_head);
        s.number("attention.head_count_kv", n_head_kv);
        s.float_of("attention.layer_norm_rms_epsilon", c, "rms_norm_eps")?;
        s.number("rope.dimension_count", n_turned);
        s.float_of("rope.freq_base", &rope, "rope_theta")?;
        // 0 tells Phi-4 from others.
        s.number("attention.sliding_window", c.count("sliding_window", u32::MAX.into())?.unwrap_or(0));
        let lists = [("long_factor", "rope_factors_long.weight"), ("short_factor", "rope_factors_short.weight")];
        if rope.get(lists[0].0).is_some() {
            let scale = n_ctx as f64 / trained as f64;
            let attention = if scale > 1.0 { (1.0 + scale.ln() / (trained as f64).ln()).sqrt() } else { 1.0 };
            s.put("rope.scaling.attn_factor", Key::F32(attention as f32));
            for (field, tensor) in lists {
                let list = rope.get(field).and_then(|v| v.as_array()).ok_or(format!("{field}: a list expected"))?;
                let numbers: Option<Vec<f32>> = list.iter().map(|v| v.as_f64().map(|x| x as f32)).collect();
                let numbers = numbers.filter(|list| list.len() as u64 == n_turned / 2);
                s.made.push((tensor, numbers.ok_or(format!("{field}: {} numbers expected", n_turned / 2))?));
            }
        }
        Ok(())
    },
    layer: &[("self_attn.qkv_proj.weight", "attn_qkv.weight"), ("mlp.gate_up_proj.weight", "ffn_up.weight")],
    vocabulary: Vocabulary::Phi,
    ..Row::PLAIN
};
