//! What llama.cpp's converter and quantiser made of published checkpoints, and what is made of the same bytes here.
//! The inputs are held to the published checksums, so that nothing here is compared with itself.

use std::path::{Path, PathBuf};

use crate::support::published::{self, as_json, rounded};
use crate::support::unpacked;
use convert::Source;
use convert::checkpoint::{Checkpoint, Options};
use convert::quantize::{FileType, Recipe};
use convert::stream::{Control, OnFailure};
use gguf::Header;
use serde_json::json;

fn recipe(file_type: FileType, plain: bool) -> Recipe<'static> {
    Recipe { file_type, head: None, plain, imatrix: None, requantize: false }
}

/// The folder, converted.
fn converted(folder: &Path, recipe: &Recipe<'_>) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let mut model = Checkpoint::open(folder, Options::default()).unwrap().model;
    recipe.apply(&mut model).unwrap();
    model.into_job(String::new()).unwrap().run(&out, 2, &Control::default(), OnFailure::Remove).unwrap();
    std::fs::read(&out).unwrap()
}

/// Holds a file to that of llama.cpp: the same bytes, but for the last bit of decays, which are exponentials. Gives the number
/// of those that differ.
fn same_file(what: &str, ours: &[u8], theirs: &[u8]) -> u32 {
    let (a, b) = (Header::parse(ours).unwrap(), Header::parse(theirs).unwrap());
    for ((key, a), (their_key, b)) in a.metadata().iter().zip(b.metadata().iter()) {
        assert_eq!((key, a), (their_key, b), "{what}: {key}");
    }
    assert!(ours[..a.data_start() as usize] == theirs[..b.data_start() as usize], "{what}: the headers differ");
    let mut n_last_bits = 0;
    for (t, u) in a.tensors().iter().zip(b.tensors()) {
        if ours[t.range()] == theirs[u.range()] {
            continue;
        }
        assert!(t.name.ends_with("ssm_a"), "{what}: {} differs", t.name);
        let bits = |b: &[u8]| b.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect::<Vec<u32>>();
        for (x, y) in bits(&ours[t.range()]).into_iter().zip(bits(&theirs[u.range()])) {
            assert!(x.abs_diff(y) <= 1, "{what}: {}: {x:#x} and {y:#x}", t.name);
            n_last_bits += u32::from(x != y);
        }
    }
    n_last_bits
}

#[test]
fn published_checkpoints_become_the_files_of_llama_cpps_converter() {
    for name in ["dense-a", "moe-a"] {
        let dir = tempfile::tempdir().unwrap();
        // Its name is the model's.
        let folder = dir.path().join(format!("hf-{name}"));
        std::fs::create_dir(&folder).unwrap();
        let theirs = published::write(name, &folder);
        let n_last_bits = same_file(name, &converted(&folder, &recipe(FileType::BF16, false)), &theirs);
        println!("{name}: the same bytes, but for the last bit of {n_last_bits} values of ssm_a");
    }
}

#[test]
fn a_published_checkpoint_quantised_is_what_llama_quantize_makes_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("hf-moe-a");
    std::fs::create_dir(&folder).unwrap();
    published::write("moe-a", &folder);
    let ours = converted(&folder, &recipe(FileType::Q4_K_M, true));
    let theirs: serde_json::Value = serde_json::from_slice(&unpacked("moe-a.Q4_K_M.manifest.json.z")).unwrap();
    let header = Header::parse(&ours).unwrap();
    let keys: Vec<_> = header.metadata().iter().map(|(key, value)| json!([key, as_json(value)])).collect();
    for (a, b) in keys.iter().zip(theirs["keys"].as_array().unwrap()) {
        assert_eq!(a, &rounded(b));
    }
    let tensors = theirs["tensors"].as_array().unwrap();
    assert_eq!((keys.len(), header.tensors().len()), (theirs["keys"].as_array().unwrap().len(), tensors.len()));
    for (i, (t, theirs)) in header.tensors().iter().zip(tensors).enumerate() {
        let start = t.range().start;
        // With its padding, as it was hashed.
        let end = header.tensors().get(i + 1).map_or(ours.len(), |next| next.range().start);
        assert_eq!(json!([t.name, t.dtype.id(), t.dims()]), json!([theirs[0], theirs[1], theirs[2]]), "{}", t.name);
        // Blocks are rounded by sums that compilers for other processors order otherwise; decays differ in the last bit.
        if cfg!(target_arch = "x86_64") && !t.name.ends_with("ssm_a") {
            assert_eq!(
                published::sha256(&ours[start..end]),
                theirs[3].as_str().unwrap(),
                "{}: its data differ",
                t.name
            );
        }
    }
}

/// Compares with the files beside published folders: `NEXTN_CHECKPOINTS` has `oracle/public` and `models`. `.ci/run` calls it
/// where they are.
#[test]
#[ignore = "needs checkpoints that are too large for the repository"]
fn larger_checkpoints_become_the_files_beside_them() {
    let root = PathBuf::from(std::env::var_os("NEXTN_CHECKPOINTS").expect("NEXTN_CHECKPOINTS names the folder"));
    for (folder, file, file_type) in [
        ("oracle/public/hf-dense-a", "oracle/public/dense-a.bf16.gguf", FileType::BF16),
        ("oracle/public/hf-moe-a", "oracle/public/moe-a.bf16.gguf", FileType::BF16),
        ("models/hf/pocket", "models/pocket-q8_0.gguf", FileType::Q8_0),
        ("models/hf/pocket", "models/pocket-q4_k_m.gguf", FileType::Q4_K_M),
        ("models/hf/pocket-moe", "models/pocket-moe-q8_0.gguf", FileType::Q8_0),
    ] {
        let ours = converted(&root.join(folder), &recipe(file_type, false));
        let n_last_bits = same_file(file, &ours, &std::fs::read(root.join(file)).unwrap());
        println!("{folder} -> {file}: the same bytes, but for the last bit of {n_last_bits} values of ssm_a");
    }
    // The recipe without its exceptions is llama.cpp's.
    let mut model = Source::open(&root.join("oracle/public/moe-a.bf16.gguf")).unwrap().into_model().unwrap();
    recipe(FileType::Q4_K_M, true).apply(&mut model).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    model.into_job(String::new()).unwrap().run(&out, 2, &Control::default(), OnFailure::Remove).unwrap();
    let theirs = std::fs::read(root.join("oracle/public/moe-a.Q4_K_M.gguf")).unwrap();
    assert!(std::fs::read(&out).unwrap() == theirs, "moe-a.Q4_K_M differs");
}
