//! A checkpoint of 35B-A3B's shape, 256 experts one by one in 8-bit floats with scales, in shards whose data are holes:
//! the tensors are those of the published file, and memory stays small.

mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;

use convert::Error;
use convert::checkpoint::{Checkpoint, Head, Options};
use convert::quantize::{FileType, Recipe};
use convert::stream::{Control, OnFailure};
use gguf::TensorType;
use serde_json::{Value, json};
use support::write_folder;

const D: u64 = 2048;
const N_LAYER: u64 = 40;
const N_EXPERT: u64 = 256;
const N_SHARD: usize = 14;

fn config() -> Value {
    let kinds: Vec<_> = (1..=N_LAYER).map(|i| if i % 4 == 0 { "full_attention" } else { "linear_attention" }).collect();
    json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "tie_word_embeddings": false,
        "text_config": {
            "vocab_size": 248320, "hidden_size": D, "num_hidden_layers": N_LAYER, "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": N_EXPERT,
            "layer_types": kinds, "full_attention_interval": 4, "mtp_num_hidden_layers": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
        },
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    })
}

/// Names, types and shapes.
fn tensors() -> BTreeMap<String, (&'static str, Vec<u64>)> {
    let mut all = BTreeMap::new();
    let mut plain = |name: String, shape: &[u64]| drop(all.insert(name, ("BF16", shape.to_vec())));
    plain("lm_head.weight".into(), &[248320, D]);
    plain("model.language_model.embed_tokens.weight".into(), &[248320, D]);
    plain("model.language_model.norm.weight".into(), &[D]);
    plain("mtp.fc.weight".into(), &[D, 2 * D]);
    for norm in ["norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"] {
        plain(format!("mtp.{norm}.weight"), &[D]);
    }
    for il in 0..=N_LAYER {
        let at = if il < N_LAYER { format!("model.language_model.layers.{il}") } else { "mtp.layers.0".into() };
        plain(format!("{at}.input_layernorm.weight"), &[D]);
        plain(format!("{at}.post_attention_layernorm.weight"), &[D]);
        plain(format!("{at}.mlp.gate.weight"), &[N_EXPERT, D]);
        plain(format!("{at}.mlp.shared_expert_gate.weight"), &[1, D]);
        if il == N_LAYER || il % 4 == 3 {
            plain(format!("{at}.self_attn.q_norm.weight"), &[256]);
            plain(format!("{at}.self_attn.k_norm.weight"), &[256]);
        } else {
            plain(format!("{at}.linear_attn.A_log"), &[32]);
            plain(format!("{at}.linear_attn.dt_bias"), &[32]);
            plain(format!("{at}.linear_attn.conv1d.weight"), &[8192, 1, 4]);
            plain(format!("{at}.linear_attn.norm.weight"), &[128]);
            plain(format!("{at}.linear_attn.in_proj_a.weight"), &[32, D]);
            plain(format!("{at}.linear_attn.in_proj_b.weight"), &[32, D]);
        }
    }
    let mut scaled = |name: String, rows: u64, cols: u64| {
        all.insert(format!("{name}_scale_inv"), ("BF16", vec![rows.div_ceil(128), cols.div_ceil(128)]));
        all.insert(name, ("F8_E4M3", vec![rows, cols]));
    };
    for il in 0..=N_LAYER {
        let at = if il < N_LAYER { format!("model.language_model.layers.{il}") } else { "mtp.layers.0".into() };
        if il == N_LAYER || il % 4 == 3 {
            scaled(format!("{at}.self_attn.q_proj.weight"), 8192, D);
            scaled(format!("{at}.self_attn.k_proj.weight"), 512, D);
            scaled(format!("{at}.self_attn.v_proj.weight"), 512, D);
            scaled(format!("{at}.self_attn.o_proj.weight"), D, 4096);
        } else {
            scaled(format!("{at}.linear_attn.in_proj_qkv.weight"), 8192, D);
            scaled(format!("{at}.linear_attn.in_proj_z.weight"), 4096, D);
            scaled(format!("{at}.linear_attn.out_proj.weight"), D, 4096);
        }
        let single = (0..N_EXPERT).map(|e| format!("experts.{e}"));
        for expert in single.chain(["shared_expert".into()]) {
            scaled(format!("{at}.mlp.{expert}.gate_proj.weight"), 512, D);
            scaled(format!("{at}.mlp.{expert}.up_proj.weight"), 512, D);
            scaled(format!("{at}.mlp.{expert}.down_proj.weight"), D, 512);
        }
    }
    all
}

/// The folder: real headers and an index, and holes.
fn write(folder: &Path) {
    write_folder(folder, &config(), &[]);
    let all = tensors();
    let (mut map, per_shard) = (serde_json::Map::new(), all.len().div_ceil(N_SHARD));
    let list: Vec<_> = all.iter().collect();
    for (i, part) in list.chunks(per_shard).enumerate() {
        let file = format!("model-{:05}-of-{N_SHARD:05}.safetensors", i + 1);
        let (mut header, mut at) = (serde_json::Map::new(), 0);
        for (name, (dtype, shape)) in part {
            let n = shape.iter().product::<u64>() * if *dtype == "BF16" { 2 } else { 1 };
            header.insert((*name).clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}));
            map.insert((*name).clone(), file.clone().into());
            at += n;
        }
        let header = serde_json::to_vec(&header).unwrap();
        let mut shard = File::create(folder.join(file)).unwrap();
        shard.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        shard.write_all(&header).unwrap();
        shard.set_len(8 + header.len() as u64 + at).unwrap();
    }
    std::fs::write(folder.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
}

#[test]
fn a_checkpoint_of_35b_a3b_has_its_tensors_and_needs_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    // Given a folder, the checkpoint stays there, for trying the program on it.
    let folder = match std::env::var_os("NEXTN_HOLLOW") {
        Some(folder) => folder.into(),
        None => dir.path().join("checkpoint"),
    };
    std::fs::create_dir_all(&folder).unwrap();
    write(&folder);
    let checkpoint = Checkpoint::open(&folder, Options::default()).unwrap();
    assert_eq!(checkpoint.n_head_layers, 1);
    let mut model = checkpoint.model;
    Recipe { file_type: FileType::Q4_K_M, head: None, plain: false, imatrix: None, requantize: false }
        .apply(&mut model)
        .unwrap();
    // What public listings say of the file: 753 tensors, 35.51 billion numbers, 19 tensors in a recurrent block, 16 in
    // one with attention, 20 in the head's.
    assert_eq!(model.tensors.len(), 753);
    let n: u64 = model.tensors.iter().map(|t| t.ne.iter().product::<u64>()).sum();
    assert_eq!(n / 10_000_000, 3550, "{n}");
    let in_block = |il: u64| model.tensors.iter().filter(|t| t.name.starts_with(&format!("blk.{il}."))).count();
    assert_eq!([in_block(0), in_block(3), in_block(40)], [19, 16, 20]);
    let find = |name: &str| model.tensors.iter().find(|t| t.name == name).unwrap();
    assert_eq!(find("blk.0.ffn_down_exps.weight").ne, [512, 2048, 256]);
    assert_eq!(find("blk.40.nextn.eh_proj.weight").ne, [4096, 2048]);
    assert_eq!(find("blk.40.ffn_up_exps.weight").dtype, TensorType::Q8_0);
    assert_eq!(find("blk.5.ffn_gate_inp.weight").dtype, TensorType::F32);
    assert_eq!(model.key("qwen35moe.block_count").unwrap().as_u64(), Some(41));

    let head = Head::open(&folder).unwrap();
    assert_eq!(head.tensors().len(), 20);

    // Some of the way through one stack of experts: it is the way that all take.
    model.tensors.retain(|t| t.name == "blk.7.ffn_up_exps.weight");
    let job = model.into_job(String::new()).unwrap();
    let enough = |control: &Control| {
        if control.done.load(Ordering::Relaxed) > 48 << 20 {
            control.stop.store(true, Ordering::Relaxed);
        }
    };
    let control = Control { watcher: Some(Box::new(enough)), ..Control::default() };
    let e = job.run(&dir.path().join("out.gguf"), 4, &control, OnFailure::Remove).unwrap_err();
    assert!(matches!(e, Error::Stopped { .. }), "{e}");
    if let Some(peak) = peak_kib() {
        assert!(peak < 1 << 20, "{peak} KiB at the most");
        println!("{peak} KiB at the most");
    }
}

/// The most memory that this process has had, where the system tells.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}
