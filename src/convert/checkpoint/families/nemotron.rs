//! Nemotron-H and Nemotron 3: layers of Mamba-2, of attention, and feed-forwards, all dense or all of experts; beside experts a
//! head of one layer in two parts, attention and experts.

use serde_json::Value;

use super::super::fields::{Fields, MAX_DIM, MAX_VOCAB};
use super::super::layer_list::LayerList;
use super::super::table::{Behind, Row, Sizes};
use crate::gguf_model::Key;

pub(super) const ROW: Row = Row {
    classes: &[("NemotronHForCausalLM", "nemotron_h_moe")],
    read: |c, s| s.nemotron(c),
    layer: &[
        ("norm.weight", "attn_norm.weight"),
        ("mixer.A_log", "ssm_a"),
        ("mixer.D", "ssm_d"),
        ("mixer.conv1d.weight", "ssm_conv1d.weight"),
        ("mixer.conv1d.bias", "ssm_conv1d.bias"),
        ("mixer.dt_bias", "ssm_dt.bias"),
        ("mixer.norm.weight", "ssm_norm.weight"),
        ("mixer.in_proj.weight", "ssm_in.weight"),
        ("mixer.out_proj.weight", "ssm_out.weight"),
        ("mixer.q_proj.weight", "attn_q.weight"),
        ("mixer.k_proj.weight", "attn_k.weight"),
        ("mixer.v_proj.weight", "attn_v.weight"),
        ("mixer.o_proj.weight", "attn_output.weight"),
        ("mixer.q_proj.bias", "attn_q.bias"),
        ("mixer.k_proj.bias", "attn_k.bias"),
        ("mixer.v_proj.bias", "attn_v.bias"),
        ("mixer.o_proj.bias", "attn_output.bias"),
        ("mixer.up_proj.weight", "ffn_up.weight"),
        ("mixer.down_proj.weight", "ffn_down.weight"),
        ("mixer.gate.weight", "ffn_gate_inp.weight"),
        ("mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ("mixer.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
        ("mixer.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
        ("mixer.fc1_latent_proj.weight", "ffn_latent_down.weight"),
        ("mixer.fc2_latent_proj.weight", "ffn_latent_up.weight"),
    ],
    globals: &[("embeddings.weight", "token_embd.weight"), ("norm_f.weight", "output_norm.weight")],
    interleaves: true,
    behind: Behind::Head,
    mtp: &[
        &[
            ("eh_proj.weight", "nextn.eh_proj.weight"),
            ("enorm.weight", "nextn.enorm.weight"),
            ("hnorm.weight", "nextn.hnorm.weight"),
        ],
        &[("norm.weight", "post_attention_norm.weight"), ("final_layernorm.weight", "nextn.shared_head_norm.weight")],
    ],
    ..Row::PLAIN
};

/// What a layer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mamba,
    Attention,
    Dense,
    Experts,
}

impl Kind {
    /// A letter of `hybrid_override_pattern`, or a word of `layers_block_type`.
    fn of(name: &str) -> Option<Self> {
        match name {
            "M" | "mamba" | "linear_attention" => Some(Self::Mamba),
            "*" | "attention" | "full_attention" => Some(Self::Attention),
            "-" | "mlp" => Some(Self::Dense),
            "E" | "moe" => Some(Self::Experts),
            _ => None,
        }
    }
}

impl Sizes {
    fn nemotron(&mut self, c: &Fields<'_>) -> Result<(), String> {
        let kinds = kinds(c, self.n_layer)?;
        let experts = kinds.contains(&Kind::Experts);
        if let Some(il) = kinds.iter().position(|kind| *kind == Kind::Dense && experts) {
            return Err(format!("layer {il} is dense and others have experts, of which files have one kind"));
        }
        let (feed_forward, width) =
            if experts { (Kind::Experts, "moe_intermediate_size") } else { (Kind::Dense, "intermediate_size") };
        let n_ff = c.need(width, MAX_DIM)?;
        self.arch = (!experts).then_some("nemotron_h");
        let by_kind = |kind: Kind, n: u64| {
            let of = |k: &Kind| if *k == kind { n as i32 } else { 0 };
            LayerList::I32(kinds.iter().map(of).collect(), n as i32)
        };
        if let Some(n) = c.find("max_position_embeddings", u32::MAX.into())? {
            self.number("context_length", n);
        }
        let n_embd = c.need("hidden_size", MAX_DIM)?;
        self.number("embedding_length", n_embd);
        // The head's layer, behind these, has both.
        self.list("feed_forward_length", by_kind(feed_forward, n_ff));
        self.number("attention.head_count", self.n_head);
        self.list("attention.head_count_kv", by_kind(Kind::Attention, self.n_head_kv));
        let eps = c.float("layer_norm_epsilon")?.or(c.float("norm_eps")?);
        let eps = eps.ok_or("layer_norm_epsilon is missing")? as f32;
        self.put("attention.layer_norm_rms_epsilon", Key::F32(eps));
        self.put("attention.layer_norm_epsilon", Key::F32(eps));
        if experts {
            self.number("expert_count", c.need("n_routed_experts", 65536)?);
            self.number("expert_used_count", c.need("num_experts_per_tok", 65536)?);
            self.number_of("expert_group_count", c, "n_group")?;
            self.number_of("expert_group_used_count", c, "topk_group")?;
        }
        self.number("vocab_size", c.need("vocab_size", MAX_VOCAB)?);
        let head_dim = match c.find("attention_head_dim", 65536)? {
            Some(n) => n,
            None => self.head_dim(c)?,
        };
        // Attention of this family does not turn: the number is llama.cpp's converter's.
        self.number("rope.dimension_count", n_embd / self.n_head);
        let n_heads = c.need("mamba_num_heads", 65536)?;
        self.number("ssm.conv_kernel", c.need("conv_kernel", 64)?);
        self.number("ssm.state_size", c.need("ssm_state_size", 65536)?);
        self.number("ssm.group_count", c.need("n_groups", 65536)?);
        self.number("ssm.inner_size", n_heads * c.need("mamba_head_dim", 65536)?);
        self.number("ssm.time_step_rank", n_heads);
        self.put("rope.scaling.finetuned", Key::Bool(false));
        self.number("attention.key_length", head_dim);
        self.number("attention.value_length", head_dim);
        if !experts {
            return Ok(());
        }
        self.number("expert_feed_forward_length", n_ff);
        self.number_of("expert_shared_feed_forward_length", c, "moe_shared_expert_intermediate_size")?;
        self.number_of("expert_shared_count", c, "n_shared_experts")?;
        if let Some(yes) = c.flag("norm_topk_prob") {
            self.put("expert_weights_norm", Key::Bool(yes));
        }
        self.float_of("expert_weights_scale", c, "routed_scaling_factor")?;
        self.number_of("moe_latent_size", c, "moe_latent_size")
    }
}

/// What each layer is.
fn kinds(c: &Fields<'_>, n_layer: u64) -> Result<Vec<Kind>, String> {
    let letters = |text: &str| text.chars().map(|letter| letter.to_string()).collect::<Vec<_>>();
    let names = match (c.get("hybrid_override_pattern"), c.get("layers_block_type")) {
        (Some(Value::String(pattern)), _) => letters(pattern),
        (_, Some(Value::Array(list))) => list.iter().map(|v| v.as_str().unwrap_or("").to_owned()).collect(),
        _ => return Err("neither hybrid_override_pattern nor layers_block_type tells what each layer is".into()),
    };
    if names.len() as u64 != n_layer {
        return Err(format!("a pattern of {} layers found, num_hidden_layers is {n_layer}", names.len()));
    }
    let kind = |(il, name): (usize, &String)| {
        Kind::of(name).ok_or_else(|| {
            format!("layer {il} is {name:?}; Mamba (M), attention (*), dense (-) or experts (E) expected")
        })
    };
    names.iter().enumerate().map(kind).collect()
}
