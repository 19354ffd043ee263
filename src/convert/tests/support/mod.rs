//! Checkpoints for tests: safetensors files written by hand, and the oracle's, made again from its GGUF files.

#![allow(dead_code)]

pub mod published;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gguf::{Header, TensorType};
use serde_json::{Value, json};

/// A tensor of a checkpoint: type, shape (slowest first), bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

pub type Tensors = BTreeMap<String, Tensor>;

impl Tensor {
    pub fn f32(shape: &[u64], values: impl IntoIterator<Item = f32>) -> Tensor {
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(bytes.len() as u64, 4 * shape.iter().product::<u64>());
        Tensor { dtype: "F32", shape: shape.to_vec(), bytes }
    }

    pub fn bf16(shape: &[u64], bytes: &[u8]) -> Tensor {
        assert_eq!(bytes.len() as u64, 2 * shape.iter().product::<u64>());
        Tensor { dtype: "BF16", shape: shape.to_vec(), bytes: bytes.to_vec() }
    }

    /// All numbers, exact.
    pub fn floats(&self) -> Vec<f32> {
        match self.dtype {
            "F32" => self.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            "BF16" => {
                self.bytes.as_chunks().0.iter().map(|b: &[u8; 2]| f32::from_le_bytes([0, 0, b[0], b[1]])).collect()
            }
            other => panic!("{other}"),
        }
    }

    /// The same numbers in a wider type.
    pub fn widened(&self) -> Tensor {
        Tensor::f32(&self.shape, self.floats())
    }
}

/// The bytes of a safetensors file.
pub fn safetensors(tensors: &Tensors) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    for (name, t) in tensors {
        let start = data.len();
        data.extend(&t.bytes);
        header.insert(name.clone(), json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [start, data.len()]}));
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// A checkpoint folder, with one file for each entry of `shards`, and an index when there are several.
pub fn write_folder(folder: &Path, config: &Value, shards: &[Tensors]) {
    let packed: BTreeMap<String, String> = serde_json::from_slice(&unpacked("hf.json.z")).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"] {
        std::fs::write(folder.join(name), &packed[name]).unwrap();
    }
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut map = serde_json::Map::new();
    for (i, tensors) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
        };
        std::fs::write(folder.join(&name), safetensors(tensors)).unwrap();
        map.extend(tensors.keys().map(|t| (t.clone(), Value::from(name.clone()))));
    }
    if shards.len() > 1 {
        std::fs::write(folder.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    }
}

/// `dense-a` or `moe-a` of the oracle: its configuration, its checkpoint, and the GGUF file that llama.cpp made of it.
pub struct Oracle {
    pub config: Value,
    pub tensors: Tensors,
    pub gguf: Vec<u8>,
}

impl Oracle {
    /// The checkpoint's numbers, made from the GGUF file by the conversions backwards. Norms and decays are F32: they
    /// come out as they went in, but for the last bit of the decay's logarithm.
    pub fn open(name: &str) -> Oracle {
        let packed: BTreeMap<String, String> = serde_json::from_slice(&unpacked("hf.json.z")).unwrap();
        let config: Value = serde_json::from_str(&packed[&format!("{name}/config.json")]).unwrap();
        let gguf = unpacked(&format!("{name}.bf16.gguf.z2"));
        let header = Header::parse(&gguf).unwrap();
        let text = &config["text_config"];
        let n = |key: &str| text[key].as_u64().unwrap();
        let heads = Heads {
            n_key: n("linear_num_key_heads"),
            n_value: n("linear_num_value_heads"),
            width: n("linear_value_head_dim"),
            keys: 2 * n("linear_num_key_heads") * n("linear_key_head_dim"),
        };
        let n_layer = n("num_hidden_layers");
        let mut tensors = Tensors::new();
        for t in header.tensors() {
            let (dtype, bytes) = match t.dtype {
                TensorType::BF16 => ("BF16", &gguf[t.range()]),
                TensorType::F32 => ("F32", &gguf[t.range()]),
                other => panic!("{other}"),
            };
            let shape: Vec<u64> = t.dims().iter().rev().copied().collect();
            let tensor = Tensor { dtype, shape, bytes: bytes.to_vec() };
            put(&mut tensors, t.name, n_layer, tensor, &heads);
        }
        // Its experts are in one tensor, gates first.
        let gates: Vec<String> = tensors.keys().filter(|k| k.ends_with("experts.gate_proj")).cloned().collect();
        for gate in gates {
            let base = gate.strip_suffix("gate_proj").unwrap().to_owned();
            let (gate, up) = (tensors.remove(&gate).unwrap(), tensors.remove(&format!("{base}up_proj")).unwrap());
            let n_expert = gate.shape[0] as usize;
            let each = gate.bytes.len() / n_expert;
            let both = (0..n_expert).flat_map(|e| [&gate.bytes[e * each..][..each], &up.bytes[e * each..][..each]]);
            let shape = vec![gate.shape[0], 2 * gate.shape[1], gate.shape[2]];
            tensors.insert(
                format!("{base}gate_up_proj"),
                Tensor { dtype: gate.dtype, shape, bytes: both.collect::<Vec<_>>().concat() },
            );
        }
        Oracle { config, tensors, gguf }
    }

    pub fn write(&self, folder: &Path) {
        write_folder(folder, &self.config, std::slice::from_ref(&self.tensors));
    }
}

struct Heads {
    n_key: u64,
    n_value: u64,
    width: u64,
    /// Rows of queries and keys before the values.
    keys: u64,
}

impl Heads {
    /// Chunks of values, `each` bytes a head, from the order of GGUF files to that of checkpoints.
    fn grouped(&self, bytes: &[u8], each: usize) -> Vec<u8> {
        let per_key = self.n_value / self.n_key;
        let tile = |h: u64| (h % per_key * self.n_key + h / per_key) as usize;
        (0..self.n_value).flat_map(|h| bytes[tile(h) * each..][..each].to_vec()).collect()
    }
}

fn put(tensors: &mut Tensors, name: &str, n_layer: u64, mut t: Tensor, heads: &Heads) {
    let globals = [
        ("token_embd.weight", "model.language_model.embed_tokens.weight"),
        ("output_norm.weight", "model.language_model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    let minus_one = |t: &Tensor| Tensor::f32(&t.shape, t.floats().into_iter().map(|x| x - 1.0));
    if let Some((_, hf)) = globals.iter().find(|(gguf, _)| *gguf == name) {
        let t = if name == "output_norm.weight" { minus_one(&t) } else { t };
        tensors.insert((*hf).to_owned(), t);
        return;
    }
    let (il, part) = name.strip_prefix("blk.").unwrap().split_once('.').unwrap();
    let il: u64 = il.parse().unwrap();
    let row = t.bytes.len() / t.shape[0] as usize;
    let width = heads.width as usize;
    let hf = match part {
        "attn_norm.weight" => "input_layernorm.weight",
        "post_attention_norm.weight" => "post_attention_layernorm.weight",
        "attn_q.weight" => "self_attn.q_proj.weight",
        "attn_k.weight" => "self_attn.k_proj.weight",
        "attn_v.weight" => "self_attn.v_proj.weight",
        "attn_output.weight" => "self_attn.o_proj.weight",
        "attn_q_norm.weight" => "self_attn.q_norm.weight",
        "attn_k_norm.weight" => "self_attn.k_norm.weight",
        "attn_qkv.weight" | "ssm_conv1d.weight" => {
            let (keys, values) = t.bytes.split_at(heads.keys as usize * row);
            t.bytes = [keys, &heads.grouped(values, width * row)].concat();
            if part == "attn_qkv.weight" {
                "linear_attn.in_proj_qkv.weight"
            } else {
                t.shape.insert(1, 1);
                "linear_attn.conv1d.weight"
            }
        }
        "attn_gate.weight" => {
            t.bytes = heads.grouped(&t.bytes, width * row);
            "linear_attn.in_proj_z.weight"
        }
        "ssm_alpha.weight" | "ssm_beta.weight" | "ssm_dt.bias" | "ssm_a" => {
            t.bytes = heads.grouped(&t.bytes, row);
            match part {
                "ssm_alpha.weight" => "linear_attn.in_proj_a.weight",
                "ssm_beta.weight" => "linear_attn.in_proj_b.weight",
                "ssm_dt.bias" => "linear_attn.dt_bias",
                _ => {
                    t = Tensor::f32(&t.shape, t.floats().into_iter().map(|x| f64::from(-x).ln() as f32));
                    "linear_attn.A_log"
                }
            }
        }
        "ssm_norm.weight" => "linear_attn.norm.weight",
        "ssm_out.weight" => {
            let each = row / heads.n_value as usize;
            t.bytes = t.bytes.chunks(row).flat_map(|r| heads.grouped(r, each)).collect();
            "linear_attn.out_proj.weight"
        }
        "ffn_gate.weight" => "mlp.gate_proj.weight",
        "ffn_up.weight" => "mlp.up_proj.weight",
        "ffn_down.weight" => "mlp.down_proj.weight",
        "ffn_gate_inp.weight" => "mlp.gate.weight",
        "ffn_gate_inp_shexp.weight" => "mlp.shared_expert_gate.weight",
        "ffn_gate_shexp.weight" => "mlp.shared_expert.gate_proj.weight",
        "ffn_up_shexp.weight" => "mlp.shared_expert.up_proj.weight",
        "ffn_down_shexp.weight" => "mlp.shared_expert.down_proj.weight",
        "ffn_gate_exps.weight" => "mlp.experts.gate_proj",
        "ffn_up_exps.weight" => "mlp.experts.up_proj",
        "ffn_down_exps.weight" => "mlp.experts.down_proj",
        "nextn.eh_proj.weight" => "fc.weight",
        "nextn.enorm.weight" => "pre_fc_norm_embedding.weight",
        "nextn.hnorm.weight" => "pre_fc_norm_hidden.weight",
        "nextn.shared_head_norm.weight" => "norm.weight",
        other => panic!("{other}"),
    };
    let shifted = part.ends_with("norm.weight") && part != "ssm_norm.weight";
    let t = if shifted { minus_one(&t) } else { t };
    let full = match (il.checked_sub(n_layer), part.starts_with("nextn.")) {
        (Some(_), true) => format!("mtp.{hf}"),
        (Some(k), false) => format!("mtp.layers.{k}.{hf}"),
        (None, _) => format!("model.language_model.layers.{il}.{hf}"),
    };
    tensors.insert(full, t);
}

/// One tensor for each expert, in place of those that hold all.
pub fn with_single_experts(tensors: &Tensors) -> Tensors {
    let mut out = Tensors::new();
    for (name, t) in tensors {
        let Some((base, kind)) = name.split_once(".experts.") else {
            out.insert(name.clone(), t.clone());
            continue;
        };
        let each = t.bytes.len() / t.shape[0] as usize;
        for (e, bytes) in t.bytes.chunks(each).enumerate() {
            let mut one = |kind: &str, bytes: &[u8], rows: u64| {
                let t = Tensor { dtype: t.dtype, shape: vec![rows, t.shape[2]], bytes: bytes.to_vec() };
                out.insert(format!("{base}.experts.{e}.{kind}.weight"), t);
            };
            if kind == "gate_up_proj" {
                one("gate_proj", &bytes[..each / 2], t.shape[1] / 2);
                one("up_proj", &bytes[each / 2..], t.shape[1] / 2);
            } else {
                one(kind, bytes, t.shape[1]);
            }
        }
    }
    out
}

/// 8-bit floats with one scale for each block, with the numbers that they stand for.
pub fn as_fp8(t: &Tensor, block: (usize, usize)) -> (Tensor, Tensor, Tensor) {
    let (rows, cols) = (t.shape[0] as usize, t.shape[1] as usize);
    // Exponents of 5 to 8 and any fraction: numbers from 0.25 up to 3.75.
    let bytes: Vec<u8> = t.bytes.iter().step_by(2).map(|b| (b & 0x80) | (0x28 + (b & 0x1f))).collect();
    let grid = (rows.div_ceil(block.0), cols.div_ceil(block.1));
    let scales: Vec<f32> = (0..grid.0 * grid.1).map(|i| 0.001 * (i + 1) as f32).collect();
    let value = |byte: u8| {
        let x = f32::from(8 + (byte & 7)) * 2f32.powi(i32::from(byte >> 3 & 15) - 10);
        if byte & 0x80 != 0 { -x } else { x }
    };
    let at = |i: usize| value(bytes[i]) * scales[i / cols / block.0 * grid.1 + i % cols / block.1];
    let plain = Tensor::f32(&t.shape, (0..rows * cols).map(at));
    let scales = Tensor::f32(&[grid.0 as u64, grid.1 as u64], scales);
    (Tensor { dtype: "F8_E4M3", shape: t.shape.clone(), bytes }, scales, plain)
}

/// A file of the oracle's folder, or of one beside it, unpacked.
pub fn unpacked(name: &str) -> Vec<u8> {
    let path = golden().join("oracle").join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(&bytes).unwrap();
    if !name.ends_with(".z2") {
        return bytes;
    }
    let (even, odd) = bytes.split_at(bytes.len().div_ceil(2));
    (0..bytes.len()).map(|i| if i % 2 == 0 { even[i / 2] } else { odd[i / 2] }).collect()
}

/// Of the repository, from the crate or from its root.
pub fn golden() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let at_root = here.join("tests/golden");
    if at_root.is_dir() { at_root } else { here.join("../../tests/golden") }
}
