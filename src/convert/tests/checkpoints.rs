//! Checkpoints become the same GGUF file whatever layout they have. That it is llama.cpp's: `converter_golden.rs`.

use std::path::{Path, PathBuf};

use crate::support::{Oracle, Tensor, Tensors, as_fp8, with_single_experts, write_folder};
use convert::checkpoint::{Checkpoint, Options};
use convert::quantize::{FileType, Recipe};
use convert::stream::{Control, OnFailure};
use convert::{Error, Source};
use gguf::{Header, TensorType};
use serde_json::{Value, json};

fn recipe(file_type: FileType) -> Recipe<'static> {
    Recipe { file_type, head: None, plain: false, imatrix: None, requantize: false }
}

fn convert(folder: &Path, out: &Path, file_type: FileType) -> Result<Vec<u8>, Error> {
    let mut model = Checkpoint::open(folder, Options { name: Some("test"), ..Options::default() })?.model;
    let recipe = recipe(file_type);
    recipe.apply(&mut model)?;
    model.into_job(recipe.stamp())?.run(out, 3, &Control::default(), OnFailure::Remove)?;
    Ok(std::fs::read(out).unwrap())
}

/// A new folder with these shards, converted.
fn converted(config: &Value, shards: &[Tensors], file_type: FileType) -> Result<Vec<u8>, Error> {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), config, shards);
    convert(dir.path(), &dir.path().join("out.gguf"), file_type)
}

fn folder_of(oracle: &Oracle, dir: &Path, name: &str) -> PathBuf {
    let folder = dir.join(name);
    std::fs::create_dir(&folder).unwrap();
    oracle.write(&folder);
    folder
}

#[test]
fn every_layout_of_the_field_gives_the_same_file() {
    let oracle = Oracle::open("moe-a");
    let whole = converted(&oracle.config, std::slice::from_ref(&oracle.tensors), FileType::BF16).unwrap();
    let renamed = |by: &dyn Fn(&str) -> String| -> Tensors {
        oracle.tensors.iter().map(|(name, t)| (by(name), t.clone())).collect()
    };
    let flat_config = {
        let mut config = oracle.config["text_config"].clone();
        config["architectures"] = json!(["Qwen3_5MoeForCausalLM"]);
        config
    };
    let mut with_vision = oracle.tensors.clone();
    with_vision.insert("model.visual.pos_embed.weight".into(), Tensor::f32(&[2, 3], [0.0; 6]));
    let shards = |tensors: &Tensors| -> Vec<Tensors> {
        let mut shards = vec![Tensors::new(); 3];
        for (i, (name, t)) in tensors.iter().enumerate() {
            shards[i * 3 / tensors.len()].insert(name.clone(), t.clone());
        }
        shards
    };
    let names_of = |bytes: &[u8]| -> Vec<String> {
        let header = Header::parse(bytes).unwrap();
        let mut names: Vec<_> = header.tensors().iter().map(|t| t.name.to_owned()).collect();
        names.sort();
        names
    };
    for (what, config, layout) in [
        ("flat names", &flat_config, vec![renamed(&|n| n.replace("model.language_model.", "model."))]),
        (
            "names of a wrapper",
            &oracle.config,
            vec![renamed(&|n| n.replace("model.language_model.", "language_model.model."))],
        ),
        (
            "the head under model",
            &oracle.config,
            vec![renamed(&|n| if n.starts_with("mtp") { format!("model.{n}") } else { n.into() })],
        ),
        ("single experts", &oracle.config, vec![with_single_experts(&oracle.tensors)]),
        ("shards", &oracle.config, shards(&oracle.tensors)),
        ("shards of single experts", &oracle.config, shards(&with_single_experts(&oracle.tensors))),
        ("F32", &oracle.config, vec![oracle.tensors.iter().map(|(n, t)| (n.clone(), t.widened())).collect()]),
        ("a vision tower", &oracle.config, vec![with_vision]),
    ] {
        let file = converted(config, &layout, FileType::BF16).unwrap_or_else(|e| panic!("{what}: {e}"));
        let (a, b) = (Header::parse(&file).unwrap(), Header::parse(&whole).unwrap());
        assert_eq!(names_of(&file), names_of(&whole), "{what}");
        for t in b.tensors() {
            let u = a.tensor(t.name).unwrap();
            assert!(u.dims() == t.dims() && file[u.range()] == whole[t.range()], "{what}: {}", t.name);
        }
        for (key, value) in b.metadata().iter() {
            assert_eq!(a.metadata().get(key), Some(value), "{what}: {key}");
        }
    }
}

#[test]
fn quantising_at_once_and_in_two_steps_is_the_same() {
    for name in ["dense-a", "moe-a"] {
        let oracle = Oracle::open(name);
        let dir = tempfile::tempdir().unwrap();
        let folder = folder_of(&oracle, dir.path(), "checkpoint");
        let wide = dir.path().join("bf16.gguf");
        convert(&folder, &wide, FileType::BF16).unwrap();
        for file_type in [FileType::Q8_0, FileType::Q4_K_M, FileType::Q5_K_S, FileType::IQ4_NL, FileType::F16] {
            let at_once = convert(&folder, &dir.path().join("once.gguf"), file_type).unwrap();
            let mut model = Source::open(&wide).unwrap().into_model().unwrap();
            recipe(file_type).apply(&mut model).unwrap();
            let out = dir.path().join("twice.gguf");
            model.into_job(String::new()).unwrap().run(&out, 2, &Control::default(), OnFailure::Remove).unwrap();
            assert!(at_once == std::fs::read(&out).unwrap(), "{name} {file_type}");
        }
    }
}

#[test]
fn the_head_and_what_steers_stay_high() {
    let oracle = Oracle::open("moe-a");
    let file = converted(&oracle.config, std::slice::from_ref(&oracle.tensors), FileType::Q4_K_M).unwrap();
    let header = Header::parse(&file).unwrap();
    for t in header.tensors() {
        let expected: &[TensorType] = match t.name {
            n if n.contains("ffn_gate_inp")
                || n.contains("norm")
                || n.contains("ssm_conv1d")
                || n.ends_with("ssm_a")
                || n.ends_with("bias") =>
            {
                &[TensorType::F32]
            }
            n if n.starts_with("blk.8.") || n == "output.weight" || n == "token_embd.weight" => &[TensorType::Q8_0],
            // Rows of 128 and less are no whole blocks of 256.
            _ => &[TensorType::Q5_0, TensorType::Q8_0, TensorType::Q4_K],
        };
        assert!(expected.contains(&t.dtype), "{}: {}", t.name, t.dtype);
    }
    assert_eq!(header.metadata().u32("general.file_type").unwrap(), Some(15));
}

#[test]
fn weights_of_8_bits_are_multiplied_by_their_scales() {
    let oracle = Oracle::open("moe-a");
    let single = with_single_experts(&oracle.tensors);
    for (block, config_block) in [((128, 128), false), ((16, 32), true)] {
        let (mut packed, mut plain) = (Tensors::new(), Tensors::new());
        for (name, t) in &single {
            if t.dtype == "BF16" && name.contains("_proj") && t.shape.len() == 2 {
                let (weight, scales, wide) = as_fp8(t, block);
                packed.insert(format!("{name}_scale_inv"), scales);
                packed.insert(name.clone(), weight);
                plain.insert(name.clone(), wide);
            } else {
                packed.insert(name.clone(), t.clone());
                plain.insert(name.clone(), t.clone());
            }
        }
        let mut config = oracle.config.clone();
        config["quantization_config"] = json!({"quant_method": "fp8", "fmt": "e4m3"});
        if config_block {
            config["quantization_config"]["weight_block_size"] = json!([block.0, block.1]);
        }
        let a = converted(&config, &[packed.clone()], FileType::F32).unwrap();
        let b = converted(&oracle.config, &[plain], FileType::F32).unwrap();
        let (a_header, b_header) = (Header::parse(&a).unwrap(), Header::parse(&b).unwrap());
        for t in b_header.tensors() {
            let u = a_header.tensor(t.name).unwrap();
            assert!(a[u.range()] == b[t.range()], "{block:?}: {}", t.name);
        }
        let scale = packed.keys().find(|k| k.ends_with("_scale_inv")).unwrap().clone();
        packed.remove(&scale);
        let e = converted(&config, &[packed], FileType::F32).unwrap_err().to_string();
        assert!(e.contains("its scales") && e.contains("are missing"), "{e}");
    }
}

#[test]
fn a_head_is_optional_and_what_is_promised_and_missing_is_left_out() {
    let oracle = Oracle::open("dense-a");
    let dir = tempfile::tempdir().unwrap();
    let folder = folder_of(&oracle, dir.path(), "with");
    let options = Options { without_head: true, ..Options::default() };
    let left_out = Checkpoint::open(&folder, options).unwrap();
    let without: Tensors = oracle.tensors.into_iter().filter(|(name, _)| !name.starts_with("mtp")).collect();
    let bare = dir.path().join("without");
    std::fs::create_dir(&bare).unwrap();
    write_folder(&bare, &oracle.config, &[without]);
    let promised = Checkpoint::open(&bare, Options::default()).unwrap();
    assert_eq!(promised.config.n_head_layers, Some(1));
    for checkpoint in [left_out, promised] {
        assert_eq!(checkpoint.n_head_layers, 0);
        let model = checkpoint.model;
        assert_eq!(model.key("qwen35.block_count").unwrap().as_u64(), Some(8));
        assert!(model.key("qwen35.nextn_predict_layers").is_none());
        assert!(!model.tensors.iter().any(|t| t.name.starts_with("blk.8.")));
    }
}

#[test]
fn what_does_not_fit_is_said_with_its_tensor() {
    let oracle = Oracle::open("dense-a");
    let a = "model.language_model.layers.0.linear_attn.A_log";
    let q = "model.language_model.layers.3.self_attn.q_proj.weight";
    let change = |by: &dyn Fn(&mut Tensors, &mut Value)| {
        let (mut tensors, mut config) = (oracle.tensors.clone(), oracle.config.clone());
        by(&mut tensors, &mut config);
        converted(&config, &[tensors], FileType::Q8_0).expect_err("this was changed").to_string()
    };
    for (message, words) in [
        (change(&|t, _| drop(t.remove(a))), &["1 tensors are missing", "blk.0.ssm_a"][..]),
        (change(&|t, _| drop(t.remove("mtp.fc.weight"))), &["missing", "blk.8.nextn.eh_proj"]),
        (
            change(&|t, _| t.get_mut(q).unwrap().shape = vec![256, 256]),
            &["blk.3.attn_q.weight", "[256, 256] found", "[128, 512] expected"],
        ),
        (change(&|t, _| t.get_mut(q).unwrap().dtype = "I16"), &["blk.3.attn_q.weight", "I16"]),
        (
            change(&|t, _| drop(t.insert("model.layers.9.mlp.gate_proj.weight".into(), t[q].clone()))),
            &["no place", "layers.9"],
        ),
        (change(&|t, _| drop(t.insert("model.odd.weight".into(), t[q].clone()))), &["no place", "model.odd.weight"]),
        (
            change(&|t, _| t.get_mut(q).unwrap().bytes[..2].copy_from_slice(&[0xc0, 0x7f])),
            &["blk.3.attn_q.weight", "NaN", "row 0"],
        ),
        (change(&|_, c| c["text_config"]["num_hidden_layers"] = json!(0)), &["config.json", "num_hidden_layers is 0"]),
        (change(&|_, c| c["text_config"]["layer_types"] = json!(["full_attention"])), &["layer_types has 1 entries"]),
        (change(&|_, c| c["architectures"] = json!(["OddForCausalLM"])), &["OddForCausalLM", "Qwen3_5"]),
        (change(&|_, c| c["quantization_config"] = json!({"quant_method": "gptq"})), &["gptq", "original checkpoint"]),
        (change(&|_, c| c["text_config"]["vocab_size"] = json!(100)), &["token_embd.weight", "[128, 100] expected"]),
    ] {
        for word in words {
            assert!(message.contains(word), "{message:?} does not say {word:?}");
        }
    }
}
