//! Which tensors a model of these sizes has, and of which shapes.
//! Owns the gate; it looks at names only where several ways of storing one thing are in use.

use super::extract::vocab_size;
use super::facts::{Content, Facts, Layout, block_of};
use crate::source::Source;

/// A tensor that belongs to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its name.
    pub name: String,
    /// Its shape, fastest dimension first, without trailing ones.
    pub ne: Vec<u64>,
    /// Whether a model cannot do without it.
    pub required: bool,
}

/// All tensors of a file with these keys.
///
/// # Errors
/// A size is not in the metadata; the message names the key.
pub fn all(source: &Source, facts: &Facts) -> Result<Vec<Expected>, String> {
    let has = |name: &str| source.tensor(name).is_some();
    let n_vocab = vocab_size(source).ok_or(
        "neither token_embd.weight nor tokenizer.ggml.tokens is there: the size of the vocabulary is not known",
    )?;
    let mut expected = Vec::new();
    let mut add = |name: &str, ne: &[u64], required| {
        expected.push(Expected { name: name.to_owned(), ne: ne.to_vec(), required });
    };
    let slim = facts.content == Content::Head(Layout::Slim);
    if !slim {
        add("token_embd.weight", &[facts.n_embd, n_vocab], true);
    }
    // A slim head uses it where it has no final norm of its own.
    add("output_norm.weight", &[facts.n_embd], !slim);
    if !slim {
        add("output.weight", &[facts.n_embd, cut_vocab(source).unwrap_or(n_vocab)], false);
    }
    if !matches!(facts.content, Content::Head(_)) {
        for il in 0..facts.n_layer {
            expected.extend(block(source, facts, il, &has)?);
        }
    }
    if matches!(facts.content, Content::Combined | Content::Head(_)) {
        for il in facts.n_layer..facts.n_block {
            expected.extend(block(source, facts, il, &has)?);
        }
    }
    Ok(expected)
}

/// The tensors of one block; of a NextN block with all that is of the head. `has` tells which way of storing is used.
///
/// # Errors
/// As for [`all`].
pub fn block(source: &Source, facts: &Facts, il: u64, has: &dyn Fn(&str) -> bool) -> Result<Vec<Expected>, String> {
    let is_head = il >= facts.n_layer;
    // A target that gets a head has lists that end with its trunk: the last block, also one of attention, is the model.
    let sizes = Sizes { source, facts, il: if is_head && il >= facts.n_block { facts.n_layer - 1 } else { il } };
    let d = facts.n_embd;
    let mut list = List { il, expected: Vec::new(), has };
    list.add("attn_norm", &[d]);
    list.add("post_attention_norm", &[d]);
    if !is_head && facts.is_recurrent(source, il) {
        let state = sizes.need("ssm.state_size")?;
        let (n_key, n_value) = (sizes.need("ssm.group_count")? * state, sizes.need("ssm.inner_size")?);
        let (n_heads, n_conv) = (sizes.need("ssm.time_step_rank")?, 2 * n_key + n_value);
        list.add("attn_qkv", &[d, n_conv]);
        list.add("attn_gate", &[d, n_value]);
        list.add("ssm_conv1d", &[sizes.need("ssm.conv_kernel")?, n_conv]);
        list.add_full("ssm_dt.bias", &[n_heads]);
        list.add_full("ssm_a", &[n_heads]);
        list.add("ssm_alpha", &[d, n_heads]);
        list.add("ssm_beta", &[d, n_heads]);
        list.add("ssm_norm", &[state]);
        list.add("ssm_out", &[n_value, d]);
    } else {
        let heads = sizes.need("attention.head_count")?;
        let heads_kv = sizes.find("attention.head_count_kv").unwrap_or(heads);
        let d_k = sizes.find("attention.key_length").or(d.checked_div(heads)).unwrap_or(0);
        let d_v = sizes.find("attention.value_length").unwrap_or(d_k);
        let (q, k, v) = (2 * d_k * heads, d_k * heads_kv, d_v * heads_kv);
        if list.has("attn_qkv") {
            list.add("attn_qkv", &[d, q + k + v]);
        } else {
            list.add("attn_q", &[d, q]);
            list.add("attn_k", &[d, k]);
            list.add("attn_v", &[d, v]);
        }
        list.add("attn_q_norm", &[d_k]);
        list.add("attn_k_norm", &[d_k]);
        list.add("attn_output", &[d_v * heads, d]);
    }
    feed_forward(&mut list, &sizes)?;
    if is_head {
        list.add("nextn.eh_proj", &[2 * d, d]);
        list.add("nextn.enorm", &[d]);
        list.add("nextn.hnorm", &[d]);
        list.optional("nextn.shared_head_norm", &[d]);
        if let Some(n_vocab) = vocab_size(source) {
            list.optional("nextn.embed_tokens", &[d, n_vocab]);
            list.optional("nextn.shared_head_head", &[d, cut_vocab(source).unwrap_or(n_vocab)]);
        }
    }
    Ok(list.expected)
}

fn feed_forward(list: &mut List<'_>, sizes: &Sizes<'_>) -> Result<(), String> {
    let d = sizes.facts.n_embd;
    let n_expert = sizes.find("expert_count").unwrap_or(0);
    if n_expert == 0 {
        let n_ff = sizes.need("feed_forward_length")?;
        list.add("ffn_gate", &[d, n_ff]);
        list.add("ffn_up", &[d, n_ff]);
        list.add("ffn_down", &[n_ff, d]);
        return Ok(());
    }
    let all = sizes.find("feed_forward_length");
    let n_used = sizes.need("expert_used_count")?;
    let n_ff = sizes.find("expert_feed_forward_length").or(all.and_then(|n| n.checked_div(n_used)));
    let n_ff = n_ff.ok_or_else(|| sizes.missing("expert_feed_forward_length"))?;
    let shared = sizes.find("expert_shared_feed_forward_length").or(all);
    let shared = shared.ok_or_else(|| sizes.missing("expert_shared_feed_forward_length"))?;
    list.add("ffn_gate_inp", &[d, n_expert]);
    if list.has("ffn_gate_up_exps") {
        list.add("ffn_gate_up_exps", &[d, 2 * n_ff, n_expert]);
    } else if list.has_full("ffn_gate.0.weight") && n_expert <= MAX_SINGLE {
        // One by one, as very old tools wrote them; the runtime wants them stacked.
        for e in 0..n_expert {
            list.add_full(&format!("ffn_gate.{e}.weight"), &[d, n_ff]);
            list.add_full(&format!("ffn_up.{e}.weight"), &[d, n_ff]);
            list.add_full(&format!("ffn_down.{e}.weight"), &[n_ff, d]);
        }
    } else {
        list.add("ffn_gate_exps", &[d, n_ff, n_expert]);
        list.add("ffn_up_exps", &[d, n_ff, n_expert]);
    }
    if !list.has_full("ffn_down.0.weight") || n_expert > MAX_SINGLE {
        list.add("ffn_down_exps", &[n_ff, d, n_expert]);
    }
    list.add("ffn_gate_inp_shexp", &[d]);
    list.add("ffn_gate_shexp", &[d, shared]);
    list.add("ffn_up_shexp", &[d, shared]);
    list.add("ffn_down_shexp", &[shared, d]);
    Ok(())
}

/// Rows of an output matrix that is cut to a part of the vocabulary: as many as there are in the list of its tokens.
pub(crate) fn cut_vocab(source: &Source) -> Option<u64> {
    source.tensor("d2t").and_then(|t| t.ne.first().copied())
}

/// Whether two shapes are the same but for trailing ones.
pub fn same_shape(a: &[u64], b: &[u64]) -> bool {
    let at = |ne: &[u64], i: usize| ne.get(i).copied().unwrap_or(1);
    (0..a.len().max(b.len())).all(|i| at(a, i) == at(b, i))
}

/// Whether a tensor holds the scales of another (`x.scale` or `x.input_scale` of `x.weight`).
pub fn is_companion(name: &str, of: &str) -> bool {
    let rest = of.strip_suffix("weight").and_then(|stem| name.strip_prefix(stem));
    matches!(rest, Some("scale" | "input_scale"))
}

struct Sizes<'s> {
    source: &'s Source,
    facts: &'s Facts,
    il: u64,
}

impl Sizes<'_> {
    fn find(&self, key: &str) -> Option<u64> {
        self.facts.number(self.source, key, self.il).filter(|n| *n < 1 << 24)
    }

    fn need(&self, key: &str) -> Result<u64, String> {
        self.find(key).ok_or_else(|| self.missing(key))
    }

    fn missing(&self, key: &str) -> String {
        format!("{} is missing or out of range: the shapes of block {} are not known", self.facts.full(key), self.il)
    }
}

struct List<'l> {
    il: u64,
    expected: Vec<Expected>,
    has: &'l dyn Fn(&str) -> bool,
}

impl List<'_> {
    fn has(&self, stem: &str) -> bool {
        self.has_full(&format!("{stem}.weight"))
    }

    fn has_full(&self, rest: &str) -> bool {
        (self.has)(&format!("blk.{}.{rest}", self.il))
    }

    fn add(&mut self, stem: &str, ne: &[u64]) {
        self.add_full(&format!("{stem}.weight"), ne);
    }

    fn add_full(&mut self, rest: &str, ne: &[u64]) {
        let name = format!("blk.{}.{rest}", self.il);
        self.expected.push(Expected { name, ne: ne.to_vec(), required: true });
    }

    fn optional(&mut self, stem: &str, ne: &[u64]) {
        self.add(stem, ne);
        if let Some(last) = self.expected.last_mut() {
            last.required = false;
        }
    }
}

/// Which block a tensor is of, for lists that are told by block.
pub fn block_number(name: &str) -> Option<u64> {
    block_of(name).map(|(block, _)| block)
}

/// Experts that are listed one by one; the widest model has 512.
const MAX_SINGLE: u64 = 4096;
