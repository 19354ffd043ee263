//! Projectors made of checkpoints are what llama.cpp's converter makes of them: `tests/golden/projectors/make.py` has the
//! checkpoints and what came out.

use std::path::{Path, PathBuf};

use convert::Error;
use convert::checkpoint::{Checkpoint, Options, Projector};
use convert::quantize::{FileType, Recipe};
use convert::stream::{Control, OnFailure};
use gguf::Header;
use serde_json::{Value, json};

use crate::support::published::{as_json, rounded, sha256};
use crate::support::{Tensor, Tensors, safetensors, unpacked};

const ALL: [FileType; 4] = [FileType::F32, FileType::F16, FileType::BF16, FileType::Q8_0];

fn recipe(file_type: FileType) -> Recipe<'static> {
    Recipe { file_type, head: None, plain: false, imatrix: None, requantize: false }
}

fn manifest() -> Vec<Value> {
    serde_json::from_slice(&unpacked("../projectors/manifest.json.z")).expect("JSON")
}

/// The checkpoint of this name.
fn checkpoint(name: &str) -> Value {
    manifest().into_iter().find(|entry| entry["name"] == name).expect("a checkpoint of the manifest")
}

/// As `make.py` has the numbers of a tensor, and every third one as BF16.
fn tensors(entry: &Value) -> Tensors {
    let mut all = Tensors::new();
    for (i, t) in entry["tensors"].as_array().expect("a list").iter().enumerate() {
        let (name, shape) = (t[0].as_str().expect("a name"), t[1].as_array().expect("a shape"));
        let shape: Vec<u64> = shape.iter().map(|n| n.as_u64().expect("a number")).collect();
        let seed = name.bytes().fold(7u64, |sum, b| (sum * 31 + u64::from(b)) % (1 << 32));
        let number = |i: u64| ((seed + i * 7919) % 131_071) as f32 / 131_072.0 - 0.5;
        let numbers = (0..shape.iter().product()).map(number);
        let tensor = if i % 3 == 2 {
            let half = |x: f32| {
                let bits = u64::from(x.to_bits());
                (((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16).to_le_bytes()
            };
            Tensor::bf16(&shape, &numbers.flat_map(half).collect::<Vec<u8>>())
        } else {
            Tensor::f32(&shape, numbers)
        };
        all.insert(name.to_owned(), tensor);
    }
    all
}

/// A folder with the checkpoint, called as it is.
fn write(dir: &Path, entry: &Value, tensors: &Tensors) -> PathBuf {
    let folder = dir.join(entry["name"].as_str().expect("a name"));
    std::fs::create_dir(&folder).expect("a new folder");
    for (name, content) in entry["files"].as_object().expect("files") {
        std::fs::write(folder.join(name), content.to_string()).expect("a file");
    }
    std::fs::write(folder.join("model.safetensors"), safetensors(tensors)).expect("a file");
    folder
}

fn convert(folder: &Path, file_type: FileType) -> Result<Vec<u8>, Error> {
    let mut model = Projector::open(folder, None)?.model;
    recipe(file_type).apply(&mut model)?;
    let out = folder.join("mmproj.gguf");
    model.into_job(String::new())?.run(&out, 2, &Control::default(), OnFailure::Remove)?;
    Ok(std::fs::read(&out).expect("it was written"))
}

#[test]
fn towers_of_checkpoints_become_the_files_of_llama_cpps_converter() {
    for entry in manifest() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = write(dir.path(), &entry, &tensors(&entry));
        for file_type in ALL {
            let file = convert(&folder, file_type).expect("a sound checkpoint");
            let header = Header::parse(&file).expect("a sound file");
            let keys: Vec<Value> = header.metadata().iter().map(|(key, value)| json!([key, as_json(value)])).collect();
            let of = |t: &gguf::TensorInfo<'_>| json!([t.name, t.dtype.id(), t.dims(), sha256(&file[t.range()])]);
            let found: Vec<Value> = header.tensors().iter().map(of).collect();
            let made = &entry["made"][file_type.to_string().to_lowercase()];
            assert_eq!(json!(keys), rounded(&made["keys"]), "{} {file_type}", entry["name"]);
            let expected = made["tensors"].as_array().expect("a list");
            for (found, expected) in found.iter().zip(expected) {
                assert_eq!(found, expected, "{} {file_type}", entry["name"]);
            }
            assert_eq!(found.len(), expected.len());
        }
    }
}

#[test]
fn patches_of_a_token_of_gemma_3_are_told_unless_they_are_the_published_towers() {
    let mut entry = checkpoint("gemma3");
    let mut all = tensors(&entry);
    // Two tokens along a side of eight patches; the processor's word is not the tower's.
    entry["files"]["config.json"]["vision_config"]["image_size"] = json!(32);
    entry["files"]["config.json"]["mm_tokens_per_image"] = json!(4);
    let positions = all.get_mut("vision_tower.vision_model.embeddings.position_embedding.weight").unwrap();
    *positions = Tensor::f32(&[64, 32], vec![1.0; 64 * 32]);
    let dir = tempfile::tempdir().expect("a folder");
    let file = convert(&write(dir.path(), &entry, &all), FileType::F32).expect("a sound checkpoint");
    let header = Header::parse(&file).expect("a sound file");
    let said = |key: &str| header.metadata().iter().find(|(name, _)| *name == key).map(|(_, value)| as_json(value));
    assert_eq!(said("clip.vision.image_size"), Some(json!(32)));
    assert_eq!(said("clip.vision.projector.scale_factor"), None);
}

#[test]
fn both_spellings_of_the_tower_of_gemma_3_are_the_same_file_and_its_head_stays_out() {
    let entry = checkpoint("gemma3");
    let all = tensors(&entry);
    let file = |all: &Tensors| {
        let dir = tempfile::tempdir().expect("a folder");
        let model = Projector::open(&write(dir.path(), &entry, all), None).expect("a sound checkpoint").model;
        let mut made: Vec<(String, Vec<u64>)> = model.tensors.into_iter().map(|plan| (plan.name, plan.ne)).collect();
        made.sort();
        made
    };
    let mut new = Tensors::new();
    for (name, tensor) in &all {
        new.insert(name.replace("vision_tower.vision_model.", "model.vision_tower."), tensor.clone());
    }
    for name in ["vision_tower.head.probe", "vision_tower.vision_model.head.layernorm.bias"] {
        new.insert(name.into(), Tensor::f32(&[1, 1, 32], [1.0; 32]));
    }
    assert_eq!(file(&new), file(&all));
}

#[test]
fn changing_the_type_of_a_projector_gives_the_file_that_convert_makes() {
    let entry = checkpoint("gemma4-clipped");
    let dir = tempfile::tempdir().expect("a folder");
    let folder = write(dir.path(), &entry, &tensors(&entry));
    let wide = dir.path().join("wide.gguf");
    std::fs::write(&wide, convert(&folder, FileType::F32).expect("a sound checkpoint")).expect("a file");
    for file_type in ALL {
        let mut model = convert::Source::open(&wide).expect("a sound file").into_model().expect("known types");
        recipe(file_type).apply(&mut model).expect("a projector's type");
        let out = dir.path().join("out.gguf");
        let job = model.into_job(String::new()).expect("a sound header");
        job.run(&out, 1, &Control::default(), OnFailure::Remove).expect("written");
        let at_once = convert(&folder, file_type).expect("a sound checkpoint");
        assert!(std::fs::read(&out).expect("it was written") == at_once, "{file_type}");
    }
    let mut model = convert::Source::open(&wide).expect("a sound file").into_model().expect("known types");
    let e = recipe(FileType::Q4_K_M).apply(&mut model).expect_err("no type of projectors").to_string();
    assert!(e.contains("Q4_K_M") && e.contains("q8_0"), "{e}");
}

#[test]
fn what_is_no_tower_stays_out_and_what_hears_is_told() {
    let mut entry = checkpoint("gemma4");
    let mut all = tensors(&entry);
    let plain = {
        let dir = tempfile::tempdir().expect("a folder");
        convert(&write(dir.path(), &entry, &all), FileType::F32).expect("a sound checkpoint")
    };
    for name in ["model.language_model.embed_tokens.weight", "model.audio_tower.x.weight", "model.embed_audio.y.weight"]
    {
        all.insert(name.into(), Tensor::f32(&[2, 3], [1.0; 6]));
    }
    entry["files"]["config.json"]["audio_config"] = json!({"hidden_size": 8});
    let dir = tempfile::tempdir().expect("a folder");
    let folder = write(dir.path(), &entry, &all);
    assert!(Projector::open(&folder, None).expect("a sound checkpoint").hears);
    assert!(convert(&folder, FileType::F32).expect("a sound checkpoint") == plain);
}

#[test]
fn what_does_not_fit_is_said_with_its_tensor() {
    let (qwen, gemma) = (checkpoint("qwen3_5"), checkpoint("gemma4"));
    let change = |entry: &Value, by: &dyn Fn(&mut Tensors, &mut Value)| {
        let (mut entry, mut all) = (entry.clone(), tensors(entry));
        by(&mut all, &mut entry["files"]);
        let dir = tempfile::tempdir().expect("a folder");
        let folder = write(dir.path(), &entry, &all);
        convert(&folder, FileType::BF16).expect_err("this was changed").to_string()
    };
    let qkv = "model.visual.blocks.1.attn.qkv.weight";
    let kernel = "model.visual.patch_embed.proj.weight";
    let pixels = "model.vision_tower.patch_embedder.input_proj.weight";
    for (message, words) in [
        (change(&qwen, &|t, _| drop(t.remove(qkv))), &["1 tensors are missing", "v.blk.1.attn_qkv.weight"][..]),
        (
            change(&qwen, &|t, _| t.get_mut(qkv).unwrap().shape = vec![60, 80]),
            &["attn_qkv.weight", "[40, 120] expected"],
        ),
        (
            change(&qwen, &|t, _| t.get_mut(kernel).unwrap().shape = vec![40, 6, 4, 4]),
            &["v.patch_embd.weight", "two frames"],
        ),
        (
            change(&gemma, &|t, _| t.get_mut(pixels).unwrap().shape = vec![48, 32]),
            &["v.patch_embd.weight", "square patches"],
        ),
        (
            change(&qwen, &|t, _| drop(t.insert("model.visual.odd".into(), t[qkv].clone()))),
            &["no place", "model.visual.odd"],
        ),
        (
            change(&qwen, &|t, _| drop(t.insert("visual.pos_embed.weight".into(), t[qkv].clone()))),
            &["two tensors become"],
        ),
        (change(&qwen, &|t, _| t.get_mut(qkv).unwrap().dtype = "I32"), &["v.blk.1.attn_qkv.weight", "I32"]),
        (change(&qwen, &|_, f| f["config.json"]["vision_config"] = Value::Null), &["config.json", "text alone"]),
        (
            change(&qwen, &|_, f| f["config.json"]["architectures"] = json!(["LlamaForCausalLM"])),
            &["LlamaForCausalLM", "Gemma4"],
        ),
        (
            change(&qwen, &|_, f| f["config.json"]["vision_config"]["depth"] = json!(0)),
            &["vision_config", "depth is 0"],
        ),
        (change(&qwen, &|_, f| f["preprocessor_config.json"] = json!({})), &["image_mean", "preprocessor_config.json"]),
        (
            change(&qwen, &|_, f| f["config.json"]["vision_config"]["deepstack_visual_indexes"] = json!([7])),
            &["deepstack_visual_indexes"],
        ),
    ] {
        for word in words {
            assert!(message.contains(word), "{message:?} does not say {word:?}");
        }
    }
}

#[test]
fn a_text_model_that_sees_says_so() {
    let oracle = crate::support::Oracle::open("dense-a");
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = oracle.config.clone();
    for (vision, sees) in [(json!({"depth": 1}), true), (Value::Null, false)] {
        config["vision_config"] = vision;
        let folder = dir.path().join(if sees { "sees" } else { "blind" });
        std::fs::create_dir(&folder).expect("a new folder");
        crate::support::write_folder(&folder, &config, std::slice::from_ref(&oracle.tensors));
        assert_eq!(Checkpoint::open(&folder, Options::default()).expect("a sound checkpoint").sees, sees);
    }
}
