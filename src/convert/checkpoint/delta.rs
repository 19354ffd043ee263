//! `config.json` of Qwen3.5 and 3.6, and of Qwen3-Next, whose layers are delta nets but for every fourth: the sizes, with ranges.
//! Owns the names of its fields; works on parsed JSON, whoever calls it adds the path.

use serde_json::Value;

use super::fields::{Fields, MAX_DIM, short};

/// What the file says of the language model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeltaConfig {
    /// Whose layers it has.
    pub(crate) family: Family,
    /// Layers without the head.
    pub(crate) n_layer: u64,
    /// Width of a hidden state.
    pub(crate) n_embd: u64,
    /// Width of the dense feed-forward part; None in models with experts.
    pub(crate) n_ff: Option<u64>,
    /// Experts, in models that have them.
    pub(crate) experts: Option<Experts>,
    /// Attention heads.
    pub(crate) n_head: u64,
    /// Key and value heads of attention.
    pub(crate) n_head_kv: u64,
    /// Width of an attention head.
    pub(crate) head_dim: u64,
    /// Tokens of context.
    pub(crate) n_ctx: Option<u64>,
    /// Epsilon of the norms.
    pub(crate) eps: f32,
    /// Rotary embedding.
    pub(crate) rope: Rope,
    /// For each layer whether it is recurrent, if the file lists them.
    pub(crate) recurrent: Option<Vec<bool>>,
    /// Every how many layers one has attention.
    pub(crate) interval: u64,
    /// Taps of the convolution.
    pub(crate) n_conv: u64,
    /// Key heads of recurrent layers, and their width.
    pub(crate) key_heads: (u64, u64),
    /// Value heads of recurrent layers, and their width.
    pub(crate) value_heads: (u64, u64),
}

/// Families of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Qwen3.5 and 3.6. Value heads stand by their key heads, and in GGUF files by turns.
    Qwen35,
    /// Qwen3-Next and Qwen3-Coder-Next. Queries, keys, values and gates stand together, key head by key head, and in GGUF
    /// files each for themselves; their order stays.
    Qwen3Next,
}

/// Sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Experts {
    /// All.
    pub(crate) n: u64,
    /// Used for a row.
    pub(crate) n_used: u64,
    /// Width of one.
    pub(crate) n_ff: u64,
    /// Width of the one that is always used.
    pub(crate) n_ff_shared: u64,
}

/// Rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rope {
    /// Base of the frequencies.
    pub(crate) base: f32,
    /// Share of a head's dimensions that turn.
    pub(crate) share: f64,
    /// Frequencies by channel of the position; None when not given.
    pub(crate) sections: Option<Vec<i32>>,
    /// YaRN or linear scaling: type, factor, and the context that the model was trained for.
    pub(crate) scaling: Option<(String, f32, Option<u64>)>,
}

impl DeltaConfig {
    /// Reads the fields, those of `text_config` first.
    ///
    /// # Errors
    /// In words without the path: another architecture, a field that is missing or out of range.
    pub(crate) fn of(c: &Fields<'_>, family: Family, with_experts: bool) -> Result<Self, String> {
        if family == Family::Qwen3Next {
            without_dense_layers(c)?;
        }
        let n_layer = c.need("num_hidden_layers", 4096)?;
        let (n_embd, n_head) = (c.need("hidden_size", MAX_DIM)?, c.need("num_attention_heads", 65536)?);
        let head_dim = c.find("head_dim", 65536)?.unwrap_or(n_embd / n_head);
        let experts = if with_experts {
            Some(Experts {
                n: c.need("num_experts", 65536)?,
                n_used: c.need("num_experts_per_tok", 65536)?,
                n_ff: c.need("moe_intermediate_size", MAX_DIM)?,
                n_ff_shared: c.need("shared_expert_intermediate_size", MAX_DIM)?,
            })
        } else {
            None
        };
        let config = Self {
            family,
            n_layer,
            n_embd,
            n_ff: if with_experts {
                c.find("intermediate_size", MAX_DIM)?
            } else {
                Some(c.need("intermediate_size", MAX_DIM)?)
            },
            experts,
            n_head,
            n_head_kv: c.find("num_key_value_heads", 65536)?.unwrap_or(n_head),
            head_dim,
            n_ctx: c.find("max_position_embeddings", u32::MAX.into())?,
            eps: c.float("rms_norm_eps")?.ok_or("rms_norm_eps is missing")? as f32,
            rope: rope(c)?,
            recurrent: layer_types(c, n_layer)?,
            interval: c.find("full_attention_interval", 4096)?.unwrap_or(4),
            n_conv: c.need("linear_conv_kernel_dim", 64)?,
            key_heads: (c.need("linear_num_key_heads", 65536)?, c.need("linear_key_head_dim", 65536)?),
            value_heads: (c.need("linear_num_value_heads", 65536)?, c.need("linear_value_head_dim", 65536)?),
        };
        let (n_k, n_v) = (config.key_heads.0, config.value_heads.0);
        if !n_v.is_multiple_of(n_k) {
            return Err(format!(
                "linear_num_value_heads is {n_v}, a multiple of linear_num_key_heads = {n_k} expected"
            ));
        }
        Ok(config)
    }

    /// As GGUF files name it.
    pub(crate) fn architecture(&self) -> &'static str {
        match (self.family, self.experts) {
            (Family::Qwen3Next, _) => "qwen3next",
            (Family::Qwen35, Some(_)) => "qwen35moe",
            (Family::Qwen35, None) => "qwen35",
        }
    }

    /// Whether value heads stand in another order in GGUF files.
    pub(crate) fn turns_value_heads(&self) -> bool {
        self.family == Family::Qwen35 && self.key_heads.0 != self.value_heads.0
    }

    /// Whether a layer of the main model is recurrent.
    pub(crate) fn is_recurrent(&self, il: u64) -> bool {
        match &self.recurrent {
            Some(list) => list[il as usize],
            None => !(il + 1).is_multiple_of(self.interval),
        }
    }

    /// Value rows of recurrent layers.
    pub(crate) fn n_value(&self) -> u64 {
        self.value_heads.0 * self.value_heads.1
    }

    /// Key rows of recurrent layers.
    pub(crate) fn n_key(&self) -> u64 {
        self.key_heads.0 * self.key_heads.1
    }
}

/// GGUF files have no word for layers without experts among those with some.
fn without_dense_layers(c: &Fields<'_>) -> Result<(), String> {
    let some = |v: &Value| v.as_array().is_some_and(|list| !list.is_empty());
    if c.get("mlp_only_layers").is_some_and(some) || c.get("decoder_sparse_step").is_some_and(|v| *v != 1) {
        return Err(
            "mlp_only_layers or decoder_sparse_step names layers without experts, which are not supported".into()
        );
    }
    Ok(())
}

fn layer_types(c: &Fields<'_>, n_layer: u64) -> Result<Option<Vec<bool>>, String> {
    let Some(v) = c.get("layer_types") else { return Ok(None) };
    let list = v.as_array().ok_or("layer_types: a list expected")?;
    if list.len() as u64 != n_layer {
        return Err(format!("layer_types has {} entries, num_hidden_layers is {n_layer}", list.len()));
    }
    let one = |v: &Value| match v.as_str() {
        Some("linear_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(format!("layer_types has {}, linear_attention or full_attention expected", short(v))),
    };
    list.iter().map(one).collect::<Result<_, String>>().map(Some)
}

fn rope(c: &Fields<'_>) -> Result<Rope, String> {
    let inner = c.get("rope_parameters").or_else(|| c.get("rope_scaling")).filter(|v| v.is_object());
    let rope = Fields { root: c.text.unwrap_or(c.root), text: inner, defaults: &[] };
    let base = rope.float("rope_theta")?.unwrap_or(10000.0) as f32;
    let share = rope.float("partial_rotary_factor")?.unwrap_or(0.25);
    if !(share > 0.0 && share <= 1.0) {
        return Err(format!("partial_rotary_factor is {share}, a share of 1 expected"));
    }
    let sections = match rope.get("mrope_section") {
        None => None,
        Some(v) => {
            let list = v.as_array().filter(|l| l.len() <= 4).ok_or("mrope_section: up to four numbers expected")?;
            let one = |v: &Value| v.as_u64().and_then(|n| i32::try_from(n).ok());
            let list: Option<Vec<i32>> = list.iter().map(one).collect();
            let mut list = list.ok_or("mrope_section: numbers expected")?;
            list.resize(4, 0);
            Some(list)
        }
    };
    let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
    let scaling = match (kind, rope.float("factor")?) {
        ("default" | "mrope", _) => None,
        (kind @ ("yarn" | "linear"), Some(factor)) => {
            let trained = rope.find("original_max_position_embeddings", u32::MAX.into())?;
            if kind == "yarn" && trained.is_none() {
                return Err("rope_type is yarn, but original_max_position_embeddings is missing".into());
            }
            Some((kind.to_owned(), factor as f32, trained))
        }
        (other, _) => {
            return Err(format!("rope_type {other:?} is not supported; default, yarn or linear expected"));
        }
    };
    Ok(Rope { base, share, sections, scaling })
}
