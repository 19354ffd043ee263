//! Families whose checkpoints become files by a table: names, keys, and the few changes of order and numbers.
//! Owns what a row may say, and the keys that most families have. Knows no family.

use model::TensorSchema;
use serde_json::Value;

use super::fields::{Fields, MAX_DIM};
use super::layer_list::LayerList;
use super::target::Target;
use crate::gguf_model::Key;

/// One family.
pub(crate) struct Row {
    /// Classes in checkpoints, each with the architecture in files.
    pub(crate) classes: &'static [(&'static str, &'static str)],
    /// Reads its sizes.
    pub(crate) read: fn(&Fields<'_>, &mut Sizes) -> Result<(), String>,
    /// Of a draft head in a file of its own: reads what depends on the model that it drafts for, and which tensors it has.
    pub(crate) head: Option<OfHead>,
    /// What names begin with, and what they are read as instead.
    pub(crate) renamed: &'static [(&'static str, &'static str)],
    /// Names within a layer beside those of most families, which they go before, and what they become.
    pub(crate) layer: &'static [(&'static str, &'static str)],
    /// Names outside of layers, likewise.
    pub(crate) globals: &'static [(&'static str, &'static str)],
    /// The elements of a head that turn together are half a head apart, and in files neighbours: rows of queries and keys are
    /// put in that order.
    pub(crate) interleaves: bool,
    /// Norms lack their one.
    pub(crate) norms_lack_one: bool,
    /// What layers after the last are.
    pub(crate) behind: Behind,
    /// Names within `mtp.layers`, which go before those within a layer: a list for each of the parts that a layer of the head
    /// is made of, one after another; none where nothing is read there.
    pub(crate) mtp: &'static [&'static [(&'static str, &'static str)]],
    /// Special tokens that the tokenizer's files do not tell: the key's name, and the token.
    pub(crate) special: &'static [(&'static str, &'static str)],
    /// How its vocabulary is stored.
    pub(crate) vocabulary: Vocabulary,
    /// Names outside of layers, up to a dot, of tensors that files lack.
    pub(crate) left_out: &'static [&'static str],
    /// Gates and up matrices of experts stand in turns.
    pub(crate) alternating: bool,
    /// Numbers that hold where the configuration does not tell them.
    pub(crate) defaults: &'static [(&'static str, u64)],
}

/// Reads of a draft head's configuration what depends on its target.
pub(crate) type OfHead = fn(&Fields<'_>, &Target, &mut Sizes) -> Result<(), String>;

/// Ways in which a vocabulary is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Vocabulary {
    /// Merges over bytes that are spelled as letters.
    #[default]
    ByteLevel,
    /// Merges over characters, with tokens for single bytes.
    Gemma,
    /// Pieces with scores, in `tokenizer.model`.
    SentencePiece,
    /// Byte-level merges, or pieces with a space before a text, as the folder has it.
    Llama,
    /// As Llama's, and added tokens of all files are taken as they are.
    Phi,
    /// As Llama's, in Mistral's own files.
    Mistral,
}

/// What files have in layers after the last that the configuration counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// Nothing: what stands there has no place in the model.
    Nothing,
    /// A NextN head.
    Head,
    /// What GGUF files of the family lack.
    LeftOut,
}

impl Row {
    /// A family that differs in nothing.
    pub(crate) const PLAIN: Self = Self {
        classes: &[],
        read: |c, s| s.usual(c),
        head: None,
        renamed: &[],
        layer: &[],
        globals: &[],
        interleaves: false,
        norms_lack_one: false,
        behind: Behind::Nothing,
        mtp: &[],
        special: &[],
        vocabulary: Vocabulary::ByteLevel,
        left_out: &[],
        alternating: false,
        defaults: &[],
    };
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row").field("classes", &self.classes).finish_non_exhaustive()
    }
}

/// A family's row, and what it read of a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) row: &'static Row,
    pub(crate) arch: &'static str,
    pub(crate) sizes: Sizes,
}

impl Table {
    /// `target`: what a draft head drafts for.
    pub(crate) fn of(
        row: &'static Row,
        arch: &'static str,
        c: &Fields<'_>,
        target: Option<&Target>,
    ) -> Result<Self, String> {
        let mut sizes =
            Sizes { n_layer: c.n_layer()?, n_head: c.need("num_attention_heads", 65536)?, ..Sizes::default() };
        sizes.n_head_kv = c.find("num_key_value_heads", 65536)?.unwrap_or(sizes.n_head);
        (row.read)(c, &mut sizes)?;
        if let (Some(read), Some(target)) = (row.head, target) {
            read(c, target, &mut sizes)?;
        }
        Ok(Self { row, arch: sizes.arch.unwrap_or(arch), sizes })
    }
}

/// Routing by sigmoids, as `expert_gating_func` counts.
pub(crate) const SIGMOID: u64 = 2;

/// What a family reads of `config.json`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    /// The architecture in files, where it is another than the class's.
    pub(crate) arch: Option<&'static str>,
    pub(crate) n_layer: u64,
    pub(crate) n_head: u64,
    pub(crate) n_head_kv: u64,
    /// Keys of the architecture, without its name and without `block_count`, in the order of llama.cpp's converter.
    pub(crate) keys: Vec<(&'static str, Key)>,
    /// What these keys hold, where it is a list with an entry for each layer.
    pub(crate) lists: Vec<(&'static str, LayerList)>,
    /// Tensors that no file of the checkpoint has: names and numbers.
    pub(crate) made: Vec<(&'static str, Vec<f32>)>,
    /// All tensors, of a draft head.
    pub(crate) tensors: Option<Vec<TensorSchema>>,
    /// The token that stands for those that are drafted.
    pub(crate) mask: Option<u64>,
    /// Of latent attention: elements of a head's key that are not turned, and of its value.
    pub(crate) latent: Option<(u64, u64)>,
    /// Of queries, keys and values in one matrix, their rows in each layer; further layers are as the last.
    pub(crate) fused: Vec<(u64, u64, u64)>,
}

impl Sizes {
    pub(crate) fn put(&mut self, key: &'static str, value: Key) {
        match self.keys.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key, value)),
        }
    }

    /// A key with an entry for each layer.
    pub(crate) fn list(&mut self, key: &'static str, list: LayerList) {
        self.put(key, list.key(0));
        self.lists.push((key, list));
    }

    pub(crate) fn number(&mut self, key: &'static str, value: u64) {
        // All sizes are read with ranges below 2^32.
        self.put(key, Key::U32(value as u32));
    }

    /// The first of these fields that is there.
    fn first(c: &Fields<'_>, names: &[&str], most: u64) -> Result<Option<u64>, String> {
        for name in names {
            if let Some(n) = c.count(name, most)? {
                return Ok(Some(n));
            }
        }
        Ok(None)
    }

    /// Puts a field, as a number, where it is there.
    pub(crate) fn number_of(&mut self, key: &'static str, c: &Fields<'_>, name: &str) -> Result<(), String> {
        if let Some(n) = c.count(name, MAX_DIM)? {
            self.number(key, n);
        }
        Ok(())
    }

    /// Puts a field, as a float, where it is there.
    pub(crate) fn float_of(&mut self, key: &'static str, c: &Fields<'_>, name: &str) -> Result<(), String> {
        if let Some(x) = c.float(name)? {
            self.put(key, Key::F32(x as f32));
        }
        Ok(())
    }

    /// The width of a head: told, or a part of the hidden state.
    pub(crate) fn head_dim(&self, c: &Fields<'_>) -> Result<u64, String> {
        let n_embd = c.need("hidden_size", MAX_DIM)?;
        Ok(c.find("head_dim", 65536)?.unwrap_or(n_embd / self.n_head))
    }

    /// The keys of nearly all families.
    pub(crate) fn usual(&mut self, c: &Fields<'_>) -> Result<(), String> {
        self.widths(c)?;
        self.rope(c)?;
        self.others(c)
    }

    /// Context, widths and heads.
    pub(crate) fn widths(&mut self, c: &Fields<'_>) -> Result<(), String> {
        if let Some(n) = c.find("max_position_embeddings", u32::MAX.into())? {
            self.number("context_length", n);
        }
        self.number("embedding_length", c.need("hidden_size", MAX_DIM)?);
        if let Some(n) = c.find("intermediate_size", MAX_DIM)? {
            self.number("feed_forward_length", n);
        }
        self.number("attention.head_count", self.n_head);
        if c.get("num_key_value_heads").is_some() {
            self.number("attention.head_count_kv", self.n_head_kv);
        }
        Ok(())
    }

    /// Norms, experts, and the width of heads.
    pub(crate) fn others(&mut self, c: &Fields<'_>) -> Result<(), String> {
        for (key, names) in [
            ("attention.layer_norm_rms_epsilon", &["rms_norm_eps", "norm_eps"]),
            ("attention.layer_norm_epsilon", &["layer_norm_eps", "layer_norm_epsilon"]),
        ] {
            if let Some(name) = names.iter().find(|name| c.get(name).is_some()) {
                self.float_of(key, c, name)?;
            }
        }
        if let Some(n) = Self::first(c, &["num_local_experts", "num_experts", "n_routed_experts"], 65536)? {
            self.number("expert_count", n);
        }
        self.number_of("expert_used_count", c, "num_experts_per_tok")?;
        self.number_of("expert_group_count", c, "n_group")?;
        self.number_of("expert_group_used_count", c, "topk_group")?;
        if let Some(n) = c.find("head_dim", 65536)? {
            self.number("attention.key_length", n);
            self.number("attention.value_length", n);
        }
        Ok(())
    }

    /// What is said of rotation.
    fn rope(&mut self, c: &Fields<'_>) -> Result<(), String> {
        let rope = Self::rope_fields(c);
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
        let factor = rope.float("factor")?;
        match (kind, factor) {
            ("default" | "llama3" | "mrope" | "proportional", _) => {}
            ("linear", Some(factor)) => {
                self.put("rope.scaling.type", "linear".into());
                self.put("rope.scaling.factor", Key::F32(factor as f32));
            }
            ("yarn", Some(factor)) => {
                let trained = rope.find("original_max_position_embeddings", u32::MAX.into())?;
                let trained = trained.ok_or("rope_type is yarn, but original_max_position_embeddings is missing")?;
                self.put("rope.scaling.type", "yarn".into());
                self.put("rope.scaling.factor", Key::F32(factor as f32));
                self.number("rope.scaling.original_context_length", trained);
                for (key, name) in [
                    ("rope.scaling.yarn_ext_factor", "extrapolation_factor"),
                    ("rope.scaling.yarn_attn_factor", "attention_factor"),
                    ("rope.scaling.yarn_beta_fast", "beta_fast"),
                    ("rope.scaling.yarn_beta_slow", "beta_slow"),
                ] {
                    self.float_of(key, &rope, name)?;
                }
            }
            ("longrope" | "su", _) => self.put("rope.scaling.type", "longrope".into()),
            (other, _) => return Err(format!("rope_type {other:?} is not supported")),
        }
        let base = rope.float("rope_theta")?;
        if let Some(base) = base {
            self.put("rope.freq_base", Key::F32(base as f32));
        }
        if kind == "llama3" {
            let numbers = llama3_factors(&rope, self.head_dim(c)?, base.unwrap_or(10000.0))?;
            self.made.push(("rope_freqs.weight", numbers));
        }
        Ok(())
    }

    /// The share of a head that turns; `otherwise` where none is told.
    pub(crate) fn turned_share(c: &Fields<'_>, otherwise: f64) -> Result<f64, String> {
        let share = Self::rope_fields(c).float("partial_rotary_factor")?.unwrap_or(otherwise);
        match share > 0.0 && share <= 1.0 {
            true => Ok(share),
            false => Err(format!("partial_rotary_factor is {share}, a share of 1 expected")),
        }
    }

    /// The fields of the rotation, those of full attention where layers differ; the base may stand outside.
    pub(crate) fn rope_fields<'j>(c: &Fields<'j>) -> Fields<'j> {
        let inner = c.get("rope_parameters").or_else(|| c.get("rope_scaling")).filter(|v| v.is_object());
        let inner = inner.map(|v| v.get("full_attention").filter(|v| v.is_object()).unwrap_or(v));
        Fields { root: c.text.unwrap_or(c.root), text: inner, defaults: &[] }
    }

    /// The keys with `block_count` in front, for a file with so many layers of a head.
    pub(crate) fn keys(&self, n_head_layers: u64) -> Vec<(&'static str, Key)> {
        let count = ("block_count", Key::U32((self.n_layer + n_head_layers) as u32));
        let n_layers = self.n_layer + n_head_layers;
        let of_layers = |key: &str| self.lists.iter().find(|(k, _)| *k == key).map(|(_, list)| list.key(n_layers));
        let list = self.keys.iter().map(|(key, value)| (*key, of_layers(key).unwrap_or_else(|| value.clone())));
        let head = (n_head_layers > 0).then_some(("nextn_predict_layers", Key::U32(n_head_layers as u32)));
        std::iter::once(count).chain(list).chain(head).collect()
    }
}

/// What divides each frequency of Llama 3.1's rotation. Source: the reference model's `llama3` rotation.
pub(crate) fn llama3_factors(rope: &Fields<'_>, head_dim: u64, base: f64) -> Result<Vec<f32>, String> {
    let number = |name: &str, default: f64| -> Result<f64, String> { Ok(rope.float(name)?.unwrap_or(default)) };
    let (factor, low, high) =
        (number("factor", 8.0)?, number("low_freq_factor", 1.0)?, number("high_freq_factor", 4.0)?);
    let trained = number("original_max_position_embeddings", 8192.0)?;
    if !(factor > 0.0 && low > 0.0 && high > low) {
        return Err(format!("rope factors {factor}, {low} and {high} are not those of llama3"));
    }
    let (longest, shortest) = (trained / low, trained / high);
    let one = |i: u64| {
        // In the precision of the reference: frequencies are floats of 32 bits.
        let frequency = 1.0f32 / (base as f32).powf(i as f32 / head_dim as f32);
        let wave = (2.0 * std::f64::consts::PI) as f32 / frequency;
        let wave = f64::from(wave);
        if wave < shortest {
            1.0
        } else if wave > longest {
            factor as f32
        } else {
            let smooth = ((trained as f32) / (wave as f32) - low as f32) / (high - low) as f32;
            1.0 / ((1.0 - smooth) / factor as f32 + smooth)
        }
    };
    Ok((0..head_dim).step_by(2).map(one).collect())
}
