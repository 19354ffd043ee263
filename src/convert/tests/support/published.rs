//! The oracle's published checkpoints, made again byte for byte: what llama.cpp's converter was given.
//!
//! Most weights lie in its GGUF files as they were, in another order; those that the converter computes with (norms, decays)
//! are small, and packed beside. The checksums of the published files say that the whole is what it was: a fault of the
//! conversion backwards cannot make up for one of the conversion.

use std::collections::BTreeMap;
use std::path::Path;

use gguf::Value;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{Oracle, unpacked};

/// What `pack.py` says of one checkpoint.
#[derive(Deserialize)]
struct Published {
    weights: Vec<Weights>,
    index: Option<String>,
    /// Of its other files, and of the GGUF file that was made of it, as `../NAME`.
    sha256: BTreeMap<String, String>,
}

/// One file of safetensors.
#[derive(Deserialize)]
struct Weights {
    file: String,
    sha256: String,
    /// JSON, as it stands there.
    header: String,
}

#[derive(Deserialize)]
struct Entry {
    data_offsets: (usize, usize),
}

/// Weights of so many bytes are packed, and those of the pictures' tower, which GGUF files do not have.
const SMALL: usize = 4096;
const TOWER: &str = ".visual.";

/// The checksum, as such lists have it.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Writes the checkpoint `name` into a folder, and gives the GGUF file that llama.cpp's converter made of it.
///
/// # Panics
/// A file is not the published one.
pub fn write(name: &str, folder: &Path) -> Vec<u8> {
    let lists: BTreeMap<String, Published> = serde_json::from_slice(&unpacked("hf-weights.json.z")).unwrap();
    let small = unpacked("hf-small.z2");
    let mut small = &small[..];
    let oracle = Oracle::open(name);
    // The packed weights of one checkpoint follow those of the other.
    for (other, published) in &lists {
        for Weights { file, sha256: expected, header } in &published.weights {
            let bytes = weights(header, &mut small, (other == name).then_some(&oracle));
            if other == name {
                assert_eq!(sha256(&bytes), *expected, "{name}/{file} is not the published file");
                std::fs::write(folder.join(file), bytes).unwrap();
            }
        }
    }
    let published = &lists[name];
    if let Some(index) = &published.index {
        std::fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    }
    let text: BTreeMap<String, String> = serde_json::from_slice(&unpacked("hf.json.z")).unwrap();
    for (file, expected) in &published.sha256 {
        if file.starts_with("..") {
            assert_eq!(sha256(&oracle.gguf), *expected, "{file} is not the file that llama.cpp's converter made");
            continue;
        }
        let text = text.get(file).unwrap_or_else(|| &text[&format!("{name}/{file}")]);
        assert_eq!(sha256(text.as_bytes()), *expected, "{name}/{file} is not the published file");
        std::fs::write(folder.join(file), text).unwrap();
    }
    oracle.gguf
}

/// A file of this header, with packed weights from `small` and the others of `oracle`; nothing but the former without one.
fn weights(header: &str, small: &mut &[u8], oracle: Option<&Oracle>) -> Vec<u8> {
    let entries: BTreeMap<String, serde_json::Value> = serde_json::from_str(header).unwrap();
    let entries = entries.into_iter().filter(|(name, _)| name != "__metadata__");
    let place = |(name, entry)| (serde_json::from_value::<Entry>(entry).unwrap().data_offsets, name);
    let mut places: Vec<((usize, usize), String)> = entries.map(place).collect();
    places.sort();
    let mut out = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    for ((start, end), name) in places {
        if name.contains(TOWER) || end - start <= SMALL {
            let (bytes, others) = small.split_at(end - start);
            *small = others;
            out.extend(bytes);
        } else if let Some(oracle) = oracle {
            out.extend(&oracle.tensors[&name].bytes);
        }
    }
    out
}

/// As `pack.py` writes it: long arrays by the checksum of their JSON.
pub fn as_json(value: &Value<'_>) -> serde_json::Value {
    match value {
        Value::Array(array) => {
            let all: Vec<_> = array.iter().map(|v| as_json(&v)).collect();
            match all.len() {
                0..=64 => all.into(),
                _ => format!("sha256 {}", sha256(&serde_json::to_vec(&all).unwrap())).into(),
            }
        }
        Value::Str(text) => text.as_str().unwrap().into(),
        Value::Bool(x) => (*x).into(),
        Value::U8(x) => (*x).into(),
        Value::I8(x) => (*x).into(),
        Value::U16(x) => (*x).into(),
        Value::I16(x) => (*x).into(),
        Value::U32(x) => (*x).into(),
        Value::I32(x) => (*x).into(),
        Value::U64(x) => (*x).into(),
        Value::I64(x) => (*x).into(),
        Value::F32(x) => f64::from(*x).into(),
        Value::F64(x) => (*x).into(),
    }
}

/// With floating-point numbers as Rust writes them: where another crate asks for it, serde_json keeps their digits as they
/// came, and compares these.
pub fn rounded(value: &serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Number(n) if n.as_i64().is_none() && n.as_u64().is_none() => json!(n.as_f64()),
        serde_json::Value::Array(list) => list.iter().map(rounded).collect(),
        other => other.clone(),
    }
}
