//! `config.json` of a checkpoint: what all families say alike, and whose layers it has.
//! Owns which class belongs to which family. Works on parsed JSON, whoever calls it adds the path.

use serde_json::Value;

use super::delta::{DeltaConfig, Family};
use super::families;
use super::families::EAGLE3;
use super::fields::{Fields, MAX_VOCAB, Quantized};
use super::table::{Behind, Table};
use super::target::Target;
use crate::safetensors::quoted;

/// What the file says of the language model.
#[derive(Clone, Debug)]
pub struct Config {
    /// Layers without the head.
    pub n_layer: u64,
    /// Layers of the head that are promised; None when the field is missing.
    pub n_head_layers: Option<u64>,
    /// Rows of the embedding.
    pub n_vocab: u64,
    /// Whether the embedding is the output matrix too; None when the file does not say.
    pub tied: Option<bool>,
    /// The way of quantisation, if the weights are quantised.
    pub quantized: Option<Quantized>,
    pub(crate) layout: Layout,
}

/// Whose layers a checkpoint has.
#[derive(Clone, Debug)]
pub(crate) enum Layout {
    /// Qwen3.5 and Qwen3-Next.
    Delta(Box<DeltaConfig>),
    /// A family of the table.
    Table(Box<Table>),
}

impl Config {
    /// Reads the fields, those of `text_config` first.
    ///
    /// # Errors
    /// In words without the path: a class that is not known, a field that is missing or out of range.
    pub fn of(root: &Value) -> Result<Config, String> {
        Config::with_target(root, None)
    }

    /// As [`Config::of`], with the model that a draft head drafts for.
    pub(crate) fn with_target(root: &Value, target: Option<&Target>) -> Result<Config, String> {
        let c = Fields::of(root);
        let class = match c.class().ok_or("neither architectures nor model_type is there")? {
            "LlamaForCausalLM" if c.get("draft_vocab_size").is_some() => EAGLE3,
            class => class,
        };
        let of_table = families::find(class);
        let delta = match class {
            "Qwen3_5ForConditionalGeneration" | "Qwen3_5ForCausalLM" | "qwen3_5" | "qwen3_5_text" => {
                Some((Family::Qwen35, false))
            }
            "Qwen3_5MoeForConditionalGeneration" | "Qwen3_5MoeForCausalLM" | "qwen3_5_moe" | "qwen3_5_moe_text" => {
                Some((Family::Qwen35, true))
            }
            "Qwen3NextForCausalLM" | "qwen3_next" => Some((Family::Qwen3Next, true)),
            _ => None,
        };
        match (of_table.is_some_and(|(row, _)| row.head.is_some()), target) {
            (true, None) => {
                let what = "is a draft head's: `extract-nextn convert --target MODEL` names the model that it is for, a checkpoint \
                            folder or a GGUF file";
                return Err(what.into());
            }
            (false, Some(_)) if delta.is_some() || of_table.is_some() => {
                return Err("is no draft head's: --target is for EAGLE-3 and DFlash heads".into());
            }
            _ => {}
        }
        let c = c.with_defaults(of_table.map_or(&[], |(row, _)| row.defaults));
        let (layout, promised) = match (delta, of_table) {
            (Some((family, with_experts)), _) => {
                (Layout::Delta(Box::new(DeltaConfig::of(&c, family, with_experts)?)), "mtp_num_hidden_layers")
            }
            (None, Some((row, arch))) => {
                (Layout::Table(Box::new(Table::of(row, arch, &c, target)?)), "num_nextn_predict_layers")
            }
            (None, None) => {
                return Err(format!(
                    "class {} is not known; known are Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3NextForCausalLM, {}",
                    quoted(class),
                    families::classes().join(", ")
                ));
            }
        };
        let has_head = match &layout {
            Layout::Delta(_) => true,
            Layout::Table(table) => table.row.behind == Behind::Head,
        };
        Ok(Config {
            n_layer: c.n_layer()?,
            n_head_layers: if has_head { c.count(promised, 64)? } else { None },
            n_vocab: c.need("vocab_size", MAX_VOCAB)?,
            tied: c.flag("tie_word_embeddings"),
            quantized: c.quantized()?,
            layout,
        })
    }

    /// As GGUF files name it.
    pub fn architecture(&self) -> &'static str {
        match &self.layout {
            Layout::Delta(delta) => delta.architecture(),
            Layout::Table(table) => table.arch,
        }
    }

    /// The sizes of delta nets, where it has some.
    pub(crate) fn delta(&self) -> Option<&DeltaConfig> {
        match &self.layout {
            Layout::Delta(delta) => Some(delta),
            Layout::Table(_) => None,
        }
    }

    /// The family's row and what it read, where it is one of the table.
    pub(crate) fn table(&self) -> Option<&Table> {
        match &self.layout {
            Layout::Delta(_) => None,
            Layout::Table(table) => Some(table),
        }
    }
}
