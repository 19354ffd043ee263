//! What the name of a tensor in a checkpoint means.
//! Owns the spellings that are in use; knows no sizes.

use super::table::{Behind, Table};

/// The meaning of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// Of the main model: `layer`, if it is in one, and what it becomes.
    MainModel(Option<u64>, Part),
    /// Of the head: which of its layers, and what it becomes.
    Head(u64, Part),
    /// Numbers to multiply the tensor of that name with.
    Scale(String),
    /// Not used by text models at inference: the vision tower, tables that are computed.
    Skip,
    /// Has no place in such a model.
    Unknown,
}

/// What a tensor becomes in a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A tensor of its own; its name without the block.
    Whole(&'static str),
    /// The matrix of one expert.
    Expert(u64, &'static str),
    /// The gates of all experts, each followed by its up matrix.
    GateUp,
    /// Queries, keys, values and gates of a delta net, key head by key head.
    ByKeyHead,
    /// Of latent attention, for each head what makes keys of latent rows, and what makes values.
    Latent,
    /// The gates of all experts and their up matrices in turns, or the biases of both; what follows the dot in their names.
    Alternate(&'static str),
    /// Matrices of all experts, each turned.
    Columns(&'static str),
}

/// The name's meaning in a checkpoint of a family of the table. `n_layer`: layers from there on are the head's.
pub(crate) fn meaning_in(name: &str, table: &Table, n_layer: u64) -> Name {
    let row = table.row;
    let of = |list: &[(&'static str, &'static str)], rest: &str| {
        list.iter().find(|(spelling, _)| *spelling == rest).map(|(_, gguf)| Part::Whole(gguf))
    };
    let in_layer = |rest: &str| {
        of(row.layer, rest)
            .or_else(|| of(TABLE_LAYER, rest))
            .or_else(|| (rest == "self_attn.kv_b_proj.weight").then_some(Part::Latent))
            .or_else(|| row.alternating.then(|| alternating(rest)).flatten())
            .or_else(|| of_experts(rest))
    };
    let renamed = row.renamed.iter().find_map(|(from, to)| Some([*to, name.strip_prefix(from)?].concat()));
    let Ok((rest, of_head)) = within(renamed.as_deref().unwrap_or(name)) else { return Name::Skip };
    let first = rest.split_once('.').map_or(rest, |(first, _)| first);
    if of_head && row.mtp.is_empty() || row.left_out.contains(&first) {
        return Name::Skip;
    }
    let meaning = match rest.strip_prefix("layers.") {
        None if of_head => None,
        None => of(row.globals, rest).or_else(|| of(GLOBAL, rest)).map(|part| Name::MainModel(None, part)),
        Some(tail) => {
            let Some((no, tail)) = tail.split_once('.') else { return Name::Unknown };
            let Ok(no) = no.parse::<u64>() else { return Name::Unknown };
            match no.checked_sub(n_layer) {
                _ if of_head => {
                    let n_parts = row.mtp.len() as u64;
                    let part = of(row.mtp[(no % n_parts) as usize], tail).or_else(|| in_layer(tail));
                    part.map(|part| Name::Head(no / n_parts, part))
                }
                Some(_) if row.behind == Behind::Nothing => None,
                Some(_) if row.behind == Behind::LeftOut => Some(Name::Skip),
                Some(k) => of(APPENDED_HEAD, tail).or_else(|| in_layer(tail)).map(|part| Name::Head(k, part)),
                None => in_layer(tail).map(|part| Name::MainModel(Some(no), part)),
            }
        }
    };
    // Some families have scales that are weights of their own.
    meaning.or_else(|| scales(name)).unwrap_or(Name::Unknown)
}

/// The name's meaning. `bare`: names that look like the main model's are the head's, as in files that hold only a head.
pub(crate) fn meaning(name: &str, bare: bool) -> Name {
    let (rest, named) = match text_name(name) {
        Ok(name) => name,
        Err(known) => return known,
    };
    let head = bare || named;
    if let Some(tail) = rest.strip_prefix("layers.") {
        let Some((no, tail)) = tail.split_once('.') else { return Name::Unknown };
        let (Ok(no), Some(part)) = (no.parse(), in_layer(tail)) else { return Name::Unknown };
        return if head { Name::Head(no, part) } else { Name::MainModel(Some(no), part) };
    }
    let known = if head { HEAD } else { GLOBAL };
    match known.iter().find(|(spelling, _)| *spelling == rest) {
        Some((_, gguf)) if head => Name::Head(0, Part::Whole(gguf)),
        Some((_, gguf)) => Name::MainModel(None, Part::Whole(gguf)),
        None => Name::Unknown,
    }
}

/// The name within the text model, and whether it says that it is the head's; or what it is otherwise.
fn text_name(name: &str) -> Result<(&str, bool), Name> {
    scales(name).map_or_else(|| within(name), Err)
}

/// What the name means where it is that of scales.
fn scales(name: &str) -> Option<Name> {
    let last = name.rsplit_once('.').map_or(name, |(_, last)| last);
    // Of activations, or of cached keys and values.
    if matches!(last, "input_scale" | "k_scale" | "v_scale" | "qscale_act") || last.ends_with("activation_scale") {
        return Some(Name::Skip);
    }
    scales_of(name).map(Name::Scale)
}

/// The weight that the tensor of this name has scales for.
pub(crate) fn scales_of(name: &str) -> Option<String> {
    let of_blocks = || name.strip_suffix("_scales").map(|weight| format!("{weight}_blocks"));
    let of_mistral = || name.strip_suffix(".qscale_weight").map(|weight| format!("{weight}.weight"));
    let named = name.strip_suffix("_scale_inv").or_else(|| name.strip_suffix("_scale")).map(str::to_owned);
    named.or_else(of_blocks).or_else(of_mistral)
}

/// As [`text_name`], whether it is that of scales or not.
fn within(name: &str) -> Result<(&str, bool), Name> {
    let mut rest = name;
    let mut head = false;
    while let Some((first, tail)) = rest.split_once('.') {
        match first {
            "model" | "language_model" | "text_model" | "backbone" => rest = tail,
            "mtp" => (rest, head) = (tail, true),
            "visual"
            | "vision_tower"
            | "vision_model"
            | "multi_modal_projector"
            | "audio_tower"
            | "embed_vision"
            | "embed_audio" => {
                return Err(Name::Skip);
            }
            _ => break,
        }
    }
    if rest.ends_with("rotary_emb.inv_freq") {
        return Err(Name::Skip);
    }
    Ok((rest, head))
}

/// Whether these names are of a file that holds a head and nothing else, without a word for it in front.
pub(crate) fn is_bare_head<'n>(names: impl Iterator<Item = &'n str>) -> bool {
    names
        .filter(|name| !name.split('.').any(|part| part == "mtp"))
        .any(|name| name.ends_with("pre_fc_norm_hidden.weight"))
}

fn in_layer(rest: &str) -> Option<Part> {
    if let Some((_, gguf)) = LAYER.iter().find(|(spelling, _)| *spelling == rest) {
        return Some(Part::Whole(gguf));
    }
    if rest == "linear_attn.in_proj_qkvz.weight" {
        return Some(Part::ByKeyHead);
    }
    of_experts(rest)
}

/// Of all experts of a layer, in families where gates and up matrices stand in turns.
fn alternating(rest: &str) -> Option<Part> {
    match rest.strip_prefix("mlp.experts.")? {
        "gate_up_proj_blocks" | "gate_up_proj" => Some(Part::Alternate("weight")),
        "gate_up_proj_bias" => Some(Part::Alternate("bias")),
        "down_proj" => Some(Part::Columns("ffn_down_exps.weight")),
        _ => None,
    }
}

/// Of one expert, or of all of a layer.
fn of_experts(rest: &str) -> Option<Part> {
    let known = ["mlp.experts.", "mlp.switch_mlp.", "block_sparse_moe.experts.", "mixer.experts."];
    let experts = known.iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    let experts = experts.strip_suffix(".weight").unwrap_or(experts);
    if experts == "gate_up_proj" {
        return Some(Part::GateUp);
    }
    let stacked = |kind: &str| EXPERT.iter().find(|(spelling, _)| *spelling == kind).map(|(_, gguf)| *gguf);
    match experts.split_once('.') {
        None => stacked(experts).map(Part::Whole),
        Some((no, kind)) => Some(Part::Expert(no.parse().ok()?, stacked(kind)?)),
    }
}

const GLOBAL: &[(&str, &str)] = &[
    ("embed_tokens.weight", "token_embd.weight"),
    ("norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

const HEAD: &[(&str, &str)] = &[
    ("fc.weight", "nextn.eh_proj.weight"),
    ("pre_fc_norm_embedding.weight", "nextn.enorm.weight"),
    ("pre_fc_norm_hidden.weight", "nextn.hnorm.weight"),
    ("norm.weight", "nextn.shared_head_norm.weight"),
    ("embed_tokens.weight", "nextn.embed_tokens.weight"),
    ("lm_head.weight", "nextn.shared_head_head.weight"),
];

const LAYER: &[(&str, &str)] = &[
    ("input_layernorm.weight", "attn_norm.weight"),
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
    ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
    ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
    ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
    ("linear_attn.in_proj_ba.weight", "ssm_ba.weight"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.conv1d.weight", "ssm_conv1d.weight"),
    ("linear_attn.norm.weight", "ssm_norm.weight"),
    ("linear_attn.out_proj.weight", "ssm_out.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("mlp.gate.weight", "ffn_gate_inp.weight"),
    ("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"),
    ("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"),
    ("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"),
];

const EXPERT: &[(&str, &str)] = &[
    ("gate_proj", "ffn_gate_exps.weight"),
    ("up_proj", "ffn_up_exps.weight"),
    ("down_proj", "ffn_down_exps.weight"),
    ("w1", "ffn_gate_exps.weight"),
    ("w3", "ffn_up_exps.weight"),
    ("w2", "ffn_down_exps.weight"),
];

/// Within a layer of a NextN head that follows the main model's layers.
const APPENDED_HEAD: &[(&str, &str)] = &[
    ("eh_proj.weight", "nextn.eh_proj.weight"),
    ("enorm.weight", "nextn.enorm.weight"),
    ("hnorm.weight", "nextn.hnorm.weight"),
    ("embed_tokens.weight", "nextn.embed_tokens.weight"),
    ("shared_head.norm.weight", "nextn.shared_head_norm.weight"),
    ("shared_head.head.weight", "nextn.shared_head_head.weight"),
];

/// Within a layer, in most families of the table.
const TABLE_LAYER: &[(&str, &str)] = &[
    ("input_layernorm.weight", "attn_norm.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.q_proj.bias", "attn_q.bias"),
    ("self_attn.k_proj.bias", "attn_k.bias"),
    ("self_attn.v_proj.bias", "attn_v.bias"),
    ("self_attn.o_proj.bias", "attn_output.bias"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("mlp.gate_proj.bias", "ffn_gate.bias"),
    ("mlp.up_proj.bias", "ffn_up.bias"),
    ("mlp.down_proj.bias", "ffn_down.bias"),
    ("mlp.gate.weight", "ffn_gate_inp.weight"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
    ("mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
];

#[cfg(test)]
mod tests {
    use super::super::families;
    use super::super::table::Sizes;
    use super::*;

    #[test]
    fn spellings_of_the_field_are_read() {
        let whole = |gguf| Part::Whole(gguf);
        for (name, meaning_of) in [
            ("model.language_model.layers.3.self_attn.q_proj.weight", Name::MainModel(Some(3), whole("attn_q.weight"))),
            ("language_model.model.layers.3.mlp.gate.weight", Name::MainModel(Some(3), whole("ffn_gate_inp.weight"))),
            ("model.embed_tokens.weight", Name::MainModel(None, whole("token_embd.weight"))),
            ("lm_head.weight", Name::MainModel(None, whole("output.weight"))),
            ("mtp.fc.weight", Name::Head(0, whole("nextn.eh_proj.weight"))),
            ("model.language_model.mtp.norm.weight", Name::Head(0, whole("nextn.shared_head_norm.weight"))),
            ("mtp.layers.0.mlp.experts.17.up_proj.weight", Name::Head(0, Part::Expert(17, "ffn_up_exps.weight"))),
            ("model.mtp.layers.1.mlp.experts.gate_up_proj", Name::Head(1, Part::GateUp)),
            ("model.layers.0.mlp.experts.down_proj.weight", Name::MainModel(Some(0), whole("ffn_down_exps.weight"))),
            ("model.layers.0.linear_attn.A_log", Name::MainModel(Some(0), whole("ssm_a"))),
            ("model.layers.0.linear_attn.in_proj_qkvz.weight", Name::MainModel(Some(0), Part::ByKeyHead)),
            ("model.visual.blocks.0.norm1.bias", Name::Skip),
            ("model.layers.0.mlp.up_proj.input_scale", Name::Skip),
            ("model.layers.0.mlp.up_proj.weight_scale_inv", Name::Scale("model.layers.0.mlp.up_proj.weight".into())),
            (
                "model.layers.0.mlp.experts.down_proj_scale_inv",
                Name::Scale("model.layers.0.mlp.experts.down_proj".into()),
            ),
            ("model.layers.x.mlp.gate.weight", Name::Unknown),
            ("model.layers.0.mlp.up_proj.weight_packed", Name::Unknown),
        ] {
            assert_eq!(meaning(name, false), meaning_of, "{name}");
        }
        assert_eq!(meaning("norm.weight", true), Name::Head(0, whole("nextn.shared_head_norm.weight")));
        assert_eq!(meaning("layers.0.input_layernorm.weight", true), Name::Head(0, whole("attn_norm.weight")));
        assert!(is_bare_head(["fc.weight", "pre_fc_norm_hidden.weight"].into_iter()));
        assert!(!is_bare_head(["mtp.fc.weight", "mtp.pre_fc_norm_hidden.weight"].into_iter()));
    }

    #[test]
    fn centroids_of_an_assistant_are_left_out_and_those_of_another_family_are_unknown() {
        let of = |class, name| {
            let (row, arch) = families::find(class).expect("a family");
            meaning_in(name, &Table { row, arch, sizes: Sizes::default() }, 4)
        };
        for name in ["masked_embedding.centroids.weight", "model.masked_embedding.token_ordering"] {
            assert_eq!(of("Gemma4AssistantForCausalLM", name), Name::Skip, "{name}");
            assert_eq!(of("LlamaForCausalLM", name), Name::Unknown, "{name}");
        }
        let projection = Name::MainModel(None, Part::Whole("nextn.pre_projection.weight"));
        assert_eq!(of("Gemma4AssistantForCausalLM", "pre_projection.weight"), projection);
    }
}
