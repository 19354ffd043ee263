//! `config.json` of Qwen3.5 and 3.6, and of Qwen3-Next: the sizes, with ranges.
//! Owns the names of its fields; works on parsed JSON, whoever calls it adds the path.

use serde_json::Value;

/// What the file says of the language model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Whose layers it has.
    pub family: Family,
    /// Layers without the head.
    pub n_layer: u64,
    /// Layers of the head that are promised; None when the field is missing.
    pub n_head_layers: Option<u64>,
    /// Width of a hidden state.
    pub n_embd: u64,
    /// Width of the dense feed-forward part; None in models with experts.
    pub n_ff: Option<u64>,
    /// Experts, in models that have them.
    pub experts: Option<Experts>,
    /// Attention heads.
    pub n_head: u64,
    /// Key and value heads of attention.
    pub n_head_kv: u64,
    /// Width of an attention head.
    pub head_dim: u64,
    /// Tokens of context.
    pub n_ctx: Option<u64>,
    /// Rows of the embedding.
    pub n_vocab: u64,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// For each layer whether it is recurrent, if the file lists them.
    pub recurrent: Option<Vec<bool>>,
    /// Every how many layers one has attention.
    pub interval: u64,
    /// Taps of the convolution.
    pub n_conv: u64,
    /// Key heads of recurrent layers, and their width.
    pub key_heads: (u64, u64),
    /// Value heads of recurrent layers, and their width.
    pub value_heads: (u64, u64),
    /// Whether the embedding is the output matrix too; None when the file does not say.
    pub tied: Option<bool>,
    /// The way of quantisation, if the weights are quantised.
    pub quantized: Option<Quantized>,
}

/// Families of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Qwen3.5 and 3.6. Value heads stand by their key heads, and in GGUF files by turns.
    Qwen35,
    /// Qwen3-Next and Qwen3-Coder-Next. Queries, keys, values and gates stand together, key head by key head, and in GGUF
    /// files each for themselves; their order stays.
    Qwen3Next,
}

/// Sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// All.
    pub n: u64,
    /// Used for a row.
    pub n_used: u64,
    /// Width of one.
    pub n_ff: u64,
    /// Width of the one that is always used.
    pub n_ff_shared: u64,
}

/// Rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub base: f32,
    /// Share of a head's dimensions that turn.
    pub share: f64,
    /// Frequencies by channel of the position; None when not given.
    pub sections: Option<Vec<i32>>,
    /// YaRN or linear scaling: type, factor, and the context that the model was trained for.
    pub scaling: Option<(String, f32, Option<u64>)>,
}

/// Weights in 8-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantized {
    /// Rows and columns under one scale, if the file says so.
    pub block: Option<(u64, u64)>,
}

impl Config {
    /// Reads the fields, those of `text_config` first.
    ///
    /// # Errors
    /// In words without the path: another architecture, a field that is missing or out of range.
    pub fn of(root: &Value) -> Result<Config, String> {
        let c = Fields { root, text: root.get("text_config").filter(|t| t.is_object()) };
        let (family, with_experts) = c.family()?;
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
        let config = Config {
            family,
            n_layer,
            n_head_layers: match c.get("mtp_num_hidden_layers") {
                None => None,
                Some(v) => {
                    Some(v.as_u64().filter(|n| *n <= 64).ok_or("mtp_num_hidden_layers: a number up to 64 expected")?)
                }
            },
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
            n_vocab: c.need("vocab_size", MAX_VOCAB)?,
            eps: c.float("rms_norm_eps")?.ok_or("rms_norm_eps is missing")? as f32,
            rope: c.rope()?,
            recurrent: c.layer_types(n_layer)?,
            interval: c.find("full_attention_interval", 4096)?.unwrap_or(4),
            n_conv: c.need("linear_conv_kernel_dim", 64)?,
            key_heads: (c.need("linear_num_key_heads", 65536)?, c.need("linear_key_head_dim", 65536)?),
            value_heads: (c.need("linear_num_value_heads", 65536)?, c.need("linear_value_head_dim", 65536)?),
            tied: c.get("tie_word_embeddings").and_then(Value::as_bool),
            quantized: c.quantized()?,
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
    pub fn architecture(&self) -> &'static str {
        match (self.family, self.experts) {
            (Family::Qwen3Next, _) => "qwen3next",
            (Family::Qwen35, Some(_)) => "qwen35moe",
            (Family::Qwen35, None) => "qwen35",
        }
    }

    /// Whether value heads stand in another order in GGUF files.
    pub fn turns_value_heads(&self) -> bool {
        self.family == Family::Qwen35 && self.key_heads.0 != self.value_heads.0
    }

    /// Whether a layer of the main model is recurrent.
    pub fn is_recurrent(&self, il: u64) -> bool {
        match &self.recurrent {
            Some(list) => list[il as usize],
            None => !(il + 1).is_multiple_of(self.interval),
        }
    }

    /// Value rows of recurrent layers.
    pub fn n_value(&self) -> u64 {
        self.value_heads.0 * self.value_heads.1
    }

    /// Key rows of recurrent layers.
    pub fn n_key(&self) -> u64 {
        self.key_heads.0 * self.key_heads.1
    }
}

/// The fields, as one object.
struct Fields<'j> {
    root: &'j Value,
    text: Option<&'j Value>,
}

impl<'j> Fields<'j> {
    /// A field that is there and not null.
    fn get(&self, name: &str) -> Option<&'j Value> {
        let of = |v: &'j Value| v.get(name).filter(|v| !v.is_null());
        self.text.and_then(of).or_else(|| of(self.root))
    }

    fn find(&self, name: &str, most: u64) -> Result<Option<u64>, String> {
        let Some(v) = self.get(name) else { return Ok(None) };
        match v.as_u64() {
            Some(n) if (1..=most).contains(&n) => Ok(Some(n)),
            _ => Err(format!("{name} is {}, a number from 1 to {most} expected", short(v))),
        }
    }

    fn need(&self, name: &str, most: u64) -> Result<u64, String> {
        self.find(name, most)?.ok_or_else(|| format!("{name} is missing"))
    }

    fn float(&self, name: &str) -> Result<Option<f64>, String> {
        let Some(v) = self.get(name) else { return Ok(None) };
        let finite = v.as_f64().filter(|x| (*x as f32).is_finite());
        finite.map(Some).ok_or_else(|| format!("{name} is {}, a number expected", short(v)))
    }

    /// The family, and whether it has experts.
    fn family(&self) -> Result<(Family, bool), String> {
        let list = self.root.get("architectures").and_then(Value::as_array);
        let named = list.and_then(|l| l.first()).and_then(Value::as_str);
        match named.or_else(|| self.get("model_type").and_then(Value::as_str)) {
            Some("Qwen3_5ForConditionalGeneration" | "Qwen3_5ForCausalLM" | "qwen3_5" | "qwen3_5_text") => {
                Ok((Family::Qwen35, false))
            }
            Some(
                "Qwen3_5MoeForConditionalGeneration" | "Qwen3_5MoeForCausalLM" | "qwen3_5_moe" | "qwen3_5_moe_text",
            ) => Ok((Family::Qwen35, true)),
            Some("Qwen3NextForCausalLM" | "qwen3_next") => {
                self.without_dense_layers().map(|()| (Family::Qwen3Next, true))
            }
            Some(other) => Err(format!(
                "architecture {}, one of Qwen3.5, 3.6 or Qwen3-Next expected (Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, \
                 Qwen3NextForCausalLM, ..)",
                crate::safetensors::quoted(other)
            )),
            None => Err("neither architectures nor model_type is there".into()),
        }
    }

    /// GGUF files have no word for layers without experts among those with some.
    fn without_dense_layers(&self) -> Result<(), String> {
        let some = |v: &Value| v.as_array().is_some_and(|list| !list.is_empty());
        if self.get("mlp_only_layers").is_some_and(some) || self.get("decoder_sparse_step").is_some_and(|v| *v != 1) {
            return Err(
                "mlp_only_layers or decoder_sparse_step names layers without experts, which are not supported".into()
            );
        }
        Ok(())
    }

    fn layer_types(&self, n_layer: u64) -> Result<Option<Vec<bool>>, String> {
        let Some(v) = self.get("layer_types") else { return Ok(None) };
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

    fn rope(&self) -> Result<Rope, String> {
        let inner = self.get("rope_parameters").or_else(|| self.get("rope_scaling")).filter(|v| v.is_object());
        let rope = Fields { root: self.text.unwrap_or(self.root), text: inner };
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

    fn quantized(&self) -> Result<Option<Quantized>, String> {
        if self.get("quantization").is_some() && self.get("quantization_config").is_none() {
            return Err("quantised for MLX: convert the original checkpoint".into());
        }
        let Some(q) = self.get("quantization_config") else { return Ok(None) };
        let text = |name: &str| q.get(name).and_then(Value::as_str);
        let known = matches!(
            (text("quant_method"), text("format")),
            (Some("fp8"), _) | (Some("compressed-tensors"), Some("float-quantized" | "naive-quantized"))
        );
        if !known {
            let method = text("quant_method").unwrap_or("?");
            let format = text("format").map_or(String::new(), |f| format!(", format {f:?}"));
            return Err(format!(
                "quantised by {method:?}{format}; plain floats or fp8 expected: convert the original checkpoint"
            ));
        }
        let groups = q.get("config_groups").and_then(|g| g.as_object()?.values().next()?.get("weights"));
        let block = q.get("weight_block_size").or_else(|| groups?.get("block_structure")).filter(|v| !v.is_null());
        let block = match block {
            None => None,
            Some(v) => {
                let sizes: Option<Vec<u64>> = v.as_array().and_then(|l| l.iter().map(Value::as_u64).collect());
                match sizes.as_deref() {
                    Some(&[rows, cols]) if (1..=MAX_DIM).contains(&rows) && (1..=MAX_DIM).contains(&cols) => {
                        Some((rows, cols))
                    }
                    _ => return Err(format!("weight_block_size is {}, two numbers expected", short(v))),
                }
            }
        };
        Ok(Some(Quantized { block }))
    }
}

/// A value as it may stand in a message.
fn short(v: &Value) -> String {
    let text = v.to_string();
    if text.chars().count() > 60 { text.chars().take(60).collect::<String>() + ".." } else { text }
}

/// Far above all models, and products of two stay far from 64 bits.
const MAX_DIM: u64 = 1 << 24;
/// Each token has a string in memory.
const MAX_VOCAB: u64 = 1 << 22;
