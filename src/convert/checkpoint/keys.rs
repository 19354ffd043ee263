//! The keys of a GGUF file that come from a checkpoint, in the order in which llama.cpp's converter writes them.
//! Owns their names and how a model is called by its folder and its size.

use std::path::Path;

use gguf::ArrayBuf;
use serde_json::Value;

use super::config::{Config, Layout};
use super::delta::{DeltaConfig, Family};
use super::table::Table;
use crate::gguf_model::Key;
use crate::stream::TensorPlan;

/// What keys are made of.
pub(crate) struct KeySources<'f> {
    pub(crate) config: &'f Config,
    pub(crate) n_head_layers: u64,
    pub(crate) name: &'f str,
    pub(crate) generation: Option<&'f Value>,
}

/// All of them. `general.file_type` stands in its place with a number that a recipe replaces.
pub(crate) fn all(
    sources: &KeySources<'_>,
    tensors: &[TensorPlan],
    tokenizer: Vec<(String, Key)>,
) -> Vec<(String, Key)> {
    let arch = sources.config.architecture();
    let mut keys = Keys { list: general((arch, "model"), sources.name, sources.generation, tensors), arch };
    keys.sizes(sources.config, sources.n_head_layers);
    keys.put("general.quantization_version", Key::U32(2));
    keys.list.extend(tokenizer);
    keys.list
}

/// Those of every file: its architecture, its type (a model, a projector), how it is called, how large it is and how to sample.
pub(crate) fn general(
    (arch, kind): (&str, &str),
    name: &str,
    generation: Option<&Value>,
    tensors: &[TensorPlan],
) -> Vec<(String, Key)> {
    let mut keys: Vec<(String, Key)> =
        vec![("general.architecture".to_owned(), arch.into()), ("general.type".to_owned(), kind.into())];
    keys.extend(generation.map(sampling).unwrap_or_default());
    keys.push(("general.name".to_owned(), name.into()));
    keys.push(("general.size_label".to_owned(), size_label(tensors).as_str().into()));
    keys
}

fn sampling(generation: &Value) -> Vec<(String, Key)> {
    let float = |name: &str| generation.get(name).and_then(Value::as_f64).map(|x| Key::F32(x as f32));
    let int = |name: &str| {
        let n = generation.get(name).and_then(Value::as_i64);
        n.and_then(|n| i32::try_from(n).ok()).map(Key::I32)
    };
    let text = |name: &str| generation.get(name).and_then(Value::as_str).map(Key::from);
    let all = [
        ("sequence", text("sequence")),
        ("top_k", int("top_k")),
        ("top_p", float("top_p")),
        ("min_p", float("min_p")),
        ("xtc_probability", float("xtc_probability")),
        ("xtc_threshold", float("xtc_threshold")),
        ("temp", float("temperature")),
        ("penalty_last_n", int("penalty_last_n")),
        ("penalty_repeat", float("penalty_repeat").or_else(|| float("repetition_penalty"))),
        ("mirostat", int("mirostat")),
        ("mirostat_tau", float("mirostat_tau")),
        ("mirostat_eta", float("mirostat_eta")),
    ];
    all.into_iter().filter_map(|(key, value)| Some((format!("general.sampling.{key}"), value?))).collect()
}

/// The keys that shapes follow from.
pub(crate) fn of_sizes(c: &Config, n_head_layers: u64) -> Vec<(String, Key)> {
    let mut keys = Keys { list: Vec::new(), arch: c.architecture() };
    keys.put("general.architecture", keys.arch.into());
    keys.sizes(c, n_head_layers);
    keys.list
}

/// A model's name made from its folder's: words apart, those in small letters with a capital.
pub(crate) fn title(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name = whole.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
    let word = |word: &str| {
        let version = word.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let small = !word.chars().any(char::is_uppercase) && word.chars().any(char::is_lowercase);
        if !small || version || word.starts_with(|c: char| c.is_ascii_digit()) {
            return word.to_owned();
        }
        capitals(word)
    };
    name.replace('-', " ").split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// A capital after everything that is no letter.
fn capitals(word: &str) -> String {
    let mut after_letter = false;
    let one = |c: char| {
        let upper = c.is_alphabetic() && !after_letter;
        after_letter = c.is_alphabetic();
        if upper { c.to_uppercase().collect::<String>() } else { c.to_string() }
    };
    word.chars().map(one).collect()
}

struct Keys {
    list: Vec<(String, Key)>,
    arch: &'static str,
}

impl Keys {
    fn put(&mut self, key: &str, value: Key) {
        self.list.push((key.to_owned(), value));
    }

    /// A key of the architecture.
    fn arch(&mut self, key: &str, value: Key) {
        self.list.push((format!("{}.{key}", self.arch), value));
    }

    fn number(&mut self, key: &str, value: u64) {
        // All sizes were read with ranges below 2^32.
        self.arch(key, Key::U32(value as u32));
    }

    fn sizes(&mut self, c: &Config, n_head_layers: u64) {
        match &c.layout {
            Layout::Delta(delta) => self.of_delta(delta, n_head_layers),
            Layout::Table(table) => self.of_table(table, n_head_layers),
        }
    }

    fn of_table(&mut self, table: &Table, n_head_layers: u64) {
        for (key, value) in table.sizes.keys(n_head_layers) {
            self.arch(key, value);
        }
        self.put("general.file_type", Key::U32(0));
    }

    fn of_delta(&mut self, c: &DeltaConfig, n_head_layers: u64) {
        self.number("block_count", c.n_layer + n_head_layers);
        if let Some(n) = c.n_ctx {
            self.number("context_length", n);
        }
        self.number("embedding_length", c.n_embd);
        if let Some(n) = c.n_ff {
            self.number("feed_forward_length", n);
        }
        self.number("attention.head_count", c.n_head);
        self.number("attention.head_count_kv", c.n_head_kv);
        if let Some((kind, factor, trained)) = &c.rope.scaling {
            self.arch("rope.scaling.type", kind.as_str().into());
            self.arch("rope.scaling.factor", Key::F32(*factor));
            if let Some(n) = trained {
                self.number("rope.scaling.original_context_length", *n);
            }
        }
        let sections = |list: &[i32]| Key::Array(list.iter().copied().collect::<ArrayBuf>());
        if let Some(list) = &c.rope.sections {
            self.arch("rope.dimension_sections", sections(list));
        }
        self.arch("rope.freq_base", Key::F32(c.rope.base));
        self.arch("attention.layer_norm_rms_epsilon", Key::F32(c.eps));
        if let Some(e) = c.experts {
            self.number("expert_count", e.n);
            self.number("expert_used_count", e.n_used);
        }
        self.number("attention.key_length", c.head_dim);
        self.number("attention.value_length", c.head_dim);
        self.put("general.file_type", Key::U32(0));
        if let Some(e) = c.experts {
            self.number("expert_feed_forward_length", e.n_ff);
            self.number("expert_shared_feed_forward_length", e.n_ff_shared);
        }
        if n_head_layers > 0 {
            self.number("nextn_predict_layers", n_head_layers);
        }
        self.number("ssm.conv_kernel", c.n_conv);
        self.number("ssm.state_size", c.key_heads.1);
        self.number("ssm.group_count", c.key_heads.0);
        self.number("ssm.time_step_rank", c.value_heads.0);
        self.number("ssm.inner_size", c.n_value());
        if c.recurrent.is_some() || c.family == Family::Qwen3Next {
            let all = (0..c.n_layer).map(|il| c.is_recurrent(il)).chain((0..n_head_layers).map(|_| false));
            self.arch("attention.recurrent_layers", Key::Array(all.collect::<ArrayBuf>()));
        }
        self.number("full_attention_interval", c.interval);
        self.number("rope.dimension_count", (c.head_dim as f64 * c.rope.share) as u64);
        if c.rope.sections.is_none() && c.family == Family::Qwen35 {
            // What the family has when a checkpoint does not say.
            self.arch("rope.dimension_sections", sections(&[11, 11, 10, 0]));
        }
    }
}

/// The size of a model in two digits, `0.8B`; with experts, how many, and the size of a model with one of them: `16x2.2M`.
pub(crate) fn size_label(tensors: &[TensorPlan]) -> String {
    let (mut shared, mut expert, mut n_experts, mut n_stacks) = (0u64, 0u64, 0u64, 0u64);
    for t in tensors {
        let n: u64 = t.ne.iter().product();
        match t.ne.get(2) {
            Some(experts) if t.name.contains("_exps.") => {
                expert += n / experts;
                n_experts += experts;
                n_stacks += 1;
            }
            _ => shared += n,
        }
    }
    let size = rounded(shared + expert);
    match n_experts.checked_div(n_stacks) {
        Some(n) if n > 0 => format!("{n}x{size}"),
        _ => size,
    }
}

fn rounded(n: u64) -> String {
    let (unit, letter) = match n {
        n if n > 1_000_000_000_000 => (1e-12, 'T'),
        n if n > 1_000_000_000 => (1e-9, 'B'),
        n if n > 1_000_000 => (1e-6, 'M'),
        _ => (1e-3, 'K'),
    };
    let x = n as f64 * unit;
    // Two digits, of which the zero before the point is none.
    let decimals = match x.round_ties_even() {
        r if r < 1.0 => 2,
        r if r < 10.0 => 1,
        _ => 0,
    };
    format!("{x:.decimals$}{letter}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_digits() {
        for (n, label) in
            [(2_440_000, "2.4M"), (13_976_272, "14M"), (752_390_000, "752M"), (8_960_000_000, "9.0B"), (480, "0.48K")]
        {
            assert_eq!(rounded(n), label);
        }
    }

    #[test]
    fn folders_give_names() {
        for (folder, name) in [
            ("hf-dense-a", "Hf Dense A"),
            ("Qwen3.5-0.8B", "Qwen3.5 0.8B"),
            ("my-tune-v2-q4", "My Tune v2 Q4"),
            ("pocket", "Pocket"),
        ] {
            assert_eq!(title(Path::new(folder)), name);
        }
    }
}
