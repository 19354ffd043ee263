//! The fields of a `config.json`, with ranges; those of `text_config` go first.
//! Owns what a field may be; whoever reads one knows what it means.

use serde_json::Value;

/// Weights in 8-bit floats, or experts in blocks of MXFP4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantized {
    /// Rows and columns under one scale, if the file says so.
    pub block: Option<(u64, u64)>,
}

/// The fields, as one object.
pub(crate) struct Fields<'j> {
    pub(crate) root: &'j Value,
    pub(crate) text: Option<&'j Value>,
    /// Numbers of those that are in neither.
    pub(crate) defaults: &'static [(&'static str, u64)],
}

impl<'j> Fields<'j> {
    pub(crate) fn of(root: &'j Value) -> Self {
        let inner = ["text_config", "transformer_layer_config"];
        let text = inner.iter().find_map(|name| root.get(name).filter(|t| t.is_object()));
        Self { root, text, defaults: &[] }
    }

    /// The same with numbers for fields that are not there.
    pub(crate) fn with_defaults(self, defaults: &'static [(&'static str, u64)]) -> Self {
        Self { defaults, ..self }
    }

    fn default(&self, name: &str) -> Option<u64> {
        self.defaults.iter().find(|(field, _)| *field == name).map(|(_, n)| *n)
    }

    /// The model's class, or its type where no class is named.
    pub(crate) fn class(&self) -> Option<&'j str> {
        let list = self.root.get("architectures").and_then(Value::as_array);
        let named = list.and_then(|l| l.first()).and_then(Value::as_str);
        named.or_else(|| self.get("model_type").and_then(Value::as_str))
    }

    /// A flag; `None` when it is not there.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.get(name).and_then(Value::as_bool)
    }

    /// A number from 0 on.
    pub(crate) fn count(&self, name: &str, most: u64) -> Result<Option<u64>, String> {
        let Some(v) = self.get(name) else { return Ok(None) };
        match v.as_u64() {
            Some(n) if n <= most => Ok(Some(n)),
            _ => Err(format!("{name} is {}, a number up to {most} expected", short(v))),
        }
    }

    /// A field that is there and not null.
    pub(crate) fn get(&self, name: &str) -> Option<&'j Value> {
        let of = |v: &'j Value| v.get(name).filter(|v| !v.is_null());
        self.text.and_then(of).or_else(|| of(self.root))
    }

    pub(crate) fn find(&self, name: &str, most: u64) -> Result<Option<u64>, String> {
        let Some(v) = self.get(name) else { return Ok(self.default(name)) };
        match v.as_u64() {
            Some(n) if (1..=most).contains(&n) => Ok(Some(n)),
            _ => Err(format!("{name} is {}, a number from 1 to {most} expected", short(v))),
        }
    }

    /// Layers without the head; newer files have only the list of what they are.
    pub(crate) fn n_layer(&self) -> Result<u64, String> {
        let kinds = self.get("layers_block_type").and_then(Value::as_array);
        match (self.find("num_hidden_layers", MAX_LAYERS)?, kinds.map(|list| list.len() as u64)) {
            (None, Some(n @ 1..=MAX_LAYERS)) => Ok(n),
            (None, _) => self.need("num_hidden_layers", MAX_LAYERS),
            (Some(n), _) => Ok(n),
        }
    }

    pub(crate) fn need(&self, name: &str, most: u64) -> Result<u64, String> {
        self.find(name, most)?.ok_or_else(|| format!("{name} is missing"))
    }

    pub(crate) fn float(&self, name: &str) -> Result<Option<f64>, String> {
        let Some(v) = self.get(name) else { return Ok(None) };
        let finite = v.as_f64().filter(|x| (*x as f32).is_finite());
        finite.map(Some).ok_or_else(|| format!("{name} is {}, a number expected", short(v)))
    }

    pub(crate) fn quantized(&self) -> Result<Option<Quantized>, String> {
        if self.get("quantization").is_some() && self.get("quantization_config").is_none() {
            return Err("quantized for MLX: convert the original checkpoint".into());
        }
        let Some(q) = self.get("quantization_config") else { return Ok(None) };
        let text = |name: &str| q.get(name).and_then(Value::as_str);
        let known = matches!(
            (text("quant_method"), text("format")),
            (Some("fp8" | "mxfp4"), _) | (Some("compressed-tensors"), Some("float-quantized" | "naive-quantized"))
        );
        if !known {
            let method = text("quant_method").unwrap_or("?");
            let format = text("format").map_or(String::new(), |f| format!(", format {f:?}"));
            return Err(format!(
                "quantized by {method:?}{format}; plain floats, fp8 or mxfp4 expected: convert the original checkpoint"
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
pub(crate) fn short(v: &Value) -> String {
    let text = v.to_string();
    if text.chars().count() > 60 { text.chars().take(60).collect::<String>() + ".." } else { text }
}

/// Far above all models.
const MAX_LAYERS: u64 = 4096;
/// Far above all models, and products of two stay far from 64 bits.
pub(crate) const MAX_DIM: u64 = 1 << 24;
/// Each token has a string in memory.
pub(crate) const MAX_VOCAB: u64 = 1 << 22;
