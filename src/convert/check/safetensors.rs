//! Checkpoints and heads in safetensors as sources that the rules can judge, with what they lack.
//! Owns the sizes of a head alone, which are told from its own tensors; judges no number.

use std::path::Path;

use super::report::Report;
use super::tensors::Gate;
use crate::checkpoint::{Checkpoint, Head, Options};
use crate::error::Error;
use crate::gguf_model::Key;
use crate::heads::{ModelInfo, keys};
use crate::source::Source;

/// A whole checkpoint.
///
/// # Errors
/// It cannot be read as one: a file is missing or damaged, or it is of another kind.
pub(super) fn checkpoint(path: &Path, report: &mut Report) -> Result<Source, Error> {
    let (checkpoint, faults) = Checkpoint::survey(path, Options::default())?;
    if checkpoint.n_head_layers == 0 && checkpoint.config.n_head_layers.is_some_and(|n| n > 0) {
        report.notes.push("config.json promises a NextN head and its tensors are not here".into());
    }
    let gate = Gate::of_checkpoint(faults);
    report.damage.extend(gate.damage());
    // In a GGUF file more tensors do no harm; a checkpoint with some is another model than its config.json says.
    report.damage.extend(gate.list("have no place in this model", &gate.extra));
    report.gate = Some(gate);
    Ok(Source::of_model(path, checkpoint.model))
}

/// A head alone: one file, or the shards that hold it.
///
/// # Errors
/// As above; or there is no tensor of a head.
pub(super) fn head(path: &Path, report: &mut Report) -> Result<Source, Error> {
    let source = Source::of_model(path, Head::open(path)?.into_model());
    let named = in_a_block(&source);
    match ModelInfo::of(&named).map_err(|e| e.to_string()).and_then(|info| Gate::of(&named, &info)) {
        Ok(mut gate) => {
            gate.rename(|name| name.replace(BLOCK, ""));
            report.damage.extend(gate.damage());
            report.damage.extend(gate.list("have no place in a head", &gate.extra));
            report.gate = Some(gate);
        }
        Err(what) => report.damage.push(what),
    }
    report.notes.push("a head without config.json: its shapes are compared with each other only".into());
    Ok(source)
}

/// The head as block 1 of a model of one layer, with the sizes that its tensors tell.
fn in_a_block(source: &Source) -> Source {
    let dim = |name: &str, i: usize| source.tensor(&format!("{name}.weight")).and_then(|t| t.ne.get(i).copied());
    let any = |of: [Option<u64>; 2]| of.into_iter().flatten().next();
    let with_experts = dim("ffn_gate_inp", 1).or(dim("ffn_down_exps", 2));
    let d_head = any([dim("attn_q_norm", 0), dim("attn_k_norm", 0)]);
    let heads = |rows: Option<u64>| rows.zip(d_head).and_then(|(rows, d)| rows.checked_div(d));
    let arch = if with_experts.is_some() { "qwen35moe" } else { "qwen35" };
    // What is not told is of a tensor that is missing, which is said of that.
    let sizes = [
        ("block_count", Some(2)),
        ("nextn_predict_layers", Some(1)),
        ("embedding_length", any([dim("nextn.eh_proj", 1), dim("attn_norm", 0)])),
        ("attention.head_count", heads(dim("attn_output", 0))),
        ("attention.head_count_kv", heads(any([dim("attn_k", 1), dim("attn_v", 1)]))),
        ("attention.key_length", d_head.or(Some(2))),
        ("attention.value_length", d_head.or(Some(2))),
        ("rope.dimension_count", Some(2)),
        ("feed_forward_length", any([dim("ffn_gate", 1), dim("ffn_up", 1)])),
        ("expert_count", with_experts.or(Some(0))),
        ("expert_used_count", Some(1)),
        ("expert_feed_forward_length", any([dim("ffn_gate_exps", 1), dim("ffn_down_exps", 0)])),
        ("expert_shared_feed_forward_length", any([dim("ffn_gate_shexp", 1), dim("ffn_down_shexp", 0)])),
    ];
    // The layer before the head is a delta net, which nobody looks at.
    let delta_net = ["state_size", "group_count", "time_step_rank", "inner_size"].map(|key| (format!("ssm.{key}"), 1));
    let number = |n: Option<u64>| Key::U64(n.unwrap_or(1));
    let mut all: Vec<(String, Key)> = vec![("general.architecture".into(), arch.into())];
    all.extend(sizes.into_iter().map(|(key, n)| (format!("{arch}.{key}"), number(n))));
    all.extend(delta_net.into_iter().map(|(key, n)| (format!("{arch}.{key}"), Key::U64(n))));
    all.push((format!("{arch}.ssm.conv_kernel"), Key::U64(2)));
    all.push((format!("{arch}.attention.layer_norm_rms_epsilon"), Key::F32(1e-6)));
    all.push((
        keys::TARGET_VOCAB.into(),
        number(any([dim("nextn.embed_tokens", 1), dim("nextn.shared_head_head", 1)])),
    ));
    let mut tensors = source.tensors.clone();
    tensors.iter_mut().for_each(|t| t.name.insert_str(0, BLOCK));
    Source { keys: all, tensors, inputs: Vec::new(), path: source.path.clone(), tokenizer: None, ..*source }
}

const BLOCK: &str = "blk.1.";
