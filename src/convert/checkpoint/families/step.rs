//! Step 3.5 and 3.7: layers with a window among full ones, a gate for each head, experts, and a head of several layers.

use serde_json::Value;

use super::super::fields::{Fields, MAX_DIM, short};
use super::super::layer_list::LayerList;
use super::super::table::{Behind, Row, SIGMOID, Sizes, llama3_factors};
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &[("Step3p5ForCausalLM", "step35"), ("Step3p7ForConditionalGeneration", "step35")],
    read: |c, s| s.step(c),
    layer: &[
        ("self_attn.g_proj.weight", "attn_gate.weight"),
        ("moe.gate.weight", "ffn_gate_inp.weight"),
        ("moe.router_bias", "exp_probs_b.bias"),
        ("moe.gate_proj.weight", "ffn_gate_exps.weight"),
        ("moe.up_proj.weight", "ffn_up_exps.weight"),
        ("moe.down_proj.weight", "ffn_down_exps.weight"),
        ("share_expert.gate_proj.weight", "ffn_gate_shexp.weight"),
        ("share_expert.up_proj.weight", "ffn_up_shexp.weight"),
        ("share_expert.down_proj.weight", "ffn_down_shexp.weight"),
        ("transformer.shared_head.norm.weight", "nextn.shared_head_norm.weight"),
        ("transformer.shared_head.output.weight", "nextn.shared_head_head.weight"),
    ],
    norms_lack_one: true,
    behind: Behind::Head,
    ..Row::PLAIN
};

/// The share of a head that turns in full layers: files have no key for it.
const FULL_SHARE: f64 = 0.5;

impl Sizes {
    fn step(&mut self, c: &Fields<'_>) -> Result<(), String> {
        self.widths(c)?;
        let kinds = c.get("layer_types").and_then(Value::as_array).ok_or("layer_types: a list expected")?;
        if (kinds.len() as u64) < self.n_layer {
            return Err(format!("layer_types has {} entries, num_hidden_layers is {}", kinds.len(), self.n_layer));
        }
        let slides: Vec<bool> = kinds.iter().map(|kind| *kind == "sliding_attention").collect();
        self.step_rope(c, &slides)?;
        let (n_head, n_kv) = (self.n_head, c.need("num_attention_groups", 65536)?);
        let other = c.get("attention_other_setting").filter(|v| v.is_object());
        let other = Fields { root: other.unwrap_or(&Value::Null), text: None, defaults: &[] };
        let sliding = |name: &str, full: u64| Ok::<_, String>(other.find(name, 65536)?.unwrap_or(full));
        let heads = [n_head, sliding("num_attention_heads", n_head)?];
        let groups = [n_kv, sliding("num_attention_groups", n_kv)?];
        let by_kind =
            |n: [u64; 2]| LayerList::I32(slides.iter().map(|&s| n[usize::from(s)] as i32).collect(), n[0] as i32);
        self.list("attention.head_count", by_kind(heads));
        self.float_of("attention.layer_norm_rms_epsilon", c, "rms_norm_eps")?;
        self.number("expert_gating_func", SIGMOID);
        let head_dim = c.need("head_dim", 65536)?;
        self.number("attention.key_length", head_dim);
        self.number("attention.value_length", head_dim);
        self.list("attention.head_count_kv", by_kind(groups));
        self.number("attention.sliding_window", c.need("sliding_window", u32::MAX.into())?);
        self.list("attention.sliding_window_pattern", LayerList::Bool(slides, false));
        self.number("expert_count", c.need("moe_num_experts", 65536)?);
        self.number("expert_used_count", c.need("moe_top_k", 65536)?);
        self.number("expert_feed_forward_length", c.need("moe_intermediate_size", MAX_DIM)?);
        self.number("expert_shared_feed_forward_length", c.need("share_expert_dim", MAX_DIM)?);
        self.float_of("expert_weights_scale", c, "moe_router_scaling_factor")?;
        if let Some(yes) = c.flag("norm_expert_weight") {
            self.put("expert_weights_norm", Key::Bool(yes));
        }
        self.number("leading_dense_block_count", first_with_experts(c)?);
        self.number("moe_every_n_layers", c.find("moe_every_n_layer", 4096)?.unwrap_or(1));
        for (key, name) in [("swiglu_clamp_exp", "swiglu_limits"), ("swiglu_clamp_shexp", "swiglu_limits_shared")] {
            let Some(list) = c.get(name).and_then(Value::as_array) else { continue };
            // None is no limit.
            let limit = |v: &Value| if v.is_null() { Some(0.0) } else { v.as_f64().map(|x| x as f32) };
            let limits: Option<Vec<f32>> = list.iter().map(limit).collect();
            let limits = limits.ok_or_else(|| format!("{name}: a list of numbers expected"))?;
            self.list(key, LayerList::F32(limits, 0.0));
        }
        Ok(())
    }

    /// Bases of full layers and of those with a window, and what divides the frequencies of the former.
    fn step_rope(&mut self, c: &Fields<'_>, slides: &[bool]) -> Result<(), String> {
        let base = |slides_or_not: bool| -> Result<Option<f64>, String> {
            let Some(Value::Array(list)) = c.get("rope_theta") else { return c.float("rope_theta") };
            let Some(il) = slides.iter().position(|s| *s == slides_or_not) else { return Ok(None) };
            let number = list.get(il).and_then(Value::as_f64);
            number.map(Some).ok_or_else(|| format!("rope_theta has no number for layer {il}"))
        };
        let (full, sliding) = (base(false)?, base(true)?);
        for (key, base) in [("rope.freq_base", full), ("rope.freq_base_swa", sliding)] {
            if let Some(base) = base {
                self.put(key, Key::F32(base as f32));
            }
        }
        for (share, &slides) in
            c.get("partial_rotary_factors").and_then(Value::as_array).into_iter().flatten().zip(slides)
        {
            let expected = if slides { 1.0 } else { FULL_SHARE };
            if share.as_f64() != Some(expected) {
                return Err(format!(
                    "partial_rotary_factors: {} found for a layer {} a window, {expected} expected",
                    short(share),
                    if slides { "with" } else { "without" }
                ));
            }
        }
        let rope = Sizes::rope_fields(c);
        match rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default") {
            "default" => {}
            "llama3" => {
                let head_dim = c.need("head_dim", 65536)?;
                let n_turned = (head_dim as f64 * FULL_SHARE) as u64;
                let mut factors = llama3_factors(&rope, n_turned, full.unwrap_or(10000.0))?;
                // Layers with a window turn whole heads, and none of these.
                factors.resize((head_dim / 2) as usize, 1.0);
                self.made.push(("rope_freqs.weight", factors));
            }
            other => return Err(format!("rope_type {other:?} is not supported")),
        }
        Ok(())
    }
}

/// The first layer with experts, of a list like "3,4,5".
fn first_with_experts(c: &Fields<'_>) -> Result<u64, String> {
    let Some(list) = c.get("moe_layers_enum") else { return Ok(0) };
    let numbers = list.as_str().and_then(|list| list.split(',').map(|n| n.trim().parse::<u64>().ok()).collect());
    let numbers: Vec<u64> = numbers.ok_or_else(|| format!("moe_layers_enum is {}, numbers expected", short(list)))?;
    Ok(numbers.into_iter().min().unwrap_or(0).min(4096))
}
