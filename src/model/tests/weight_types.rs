//! Whole models with weights of every type: they predict what the same numbers as F32 predict, tokens have the bits that they
//! have alone, scales beside matrices count, and types without products are refused by the tensor's name.

use std::sync::Arc;

use crate::support::{rig, tiny};
use ggml::{BatchInvariance, Dtype};
use gguf::TensorType;
use model::{LoadError, LoadOptions, Model};
use rig::{Rig, exact};
use tiny::{Document, Rng, Spec, Tensor};

/// Rows that are whole blocks of every type. All experts are used, so that no near tie chooses others.
fn spec(arch: &'static str) -> Spec {
    let moe = arch.ends_with("moe");
    Spec {
        n_layer: 2,
        n_embd: 256,
        n_head: 8,
        n_ff: 256,
        n_expert: if moe { 2 } else { 0 },
        n_used: 2,
        n_ff_shared: 256,
        n_v_heads: 16,
        ..Spec::of(arch)
    }
}

fn open(document: &Document) -> Result<Arc<Model>, LoadError> {
    let dir = tempfile::TempDir::new().expect("a folder");
    Model::open(&document.write(&dir.path().join("tiny.gguf")), &LoadOptions::default())
}

/// The logits of some tokens, in passes of `width`.
fn logits(document: &Document, width: usize) -> Vec<f32> {
    let model = open(document).expect("a sound file");
    let mut rig = Rig::new(&model, exact(1, 32));
    let slot = rig.slot();
    let ids: Vec<u32> = (0..6).map(|i| 40 + 31 * i).collect();
    rig.in_pieces(&slot, &ids, &vec![width; ids.len() / width])
}

fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// The matrices that files have in types of fewer bits.
fn is_matrix(t: &Tensor) -> bool {
    t.ne.len() >= 2 && !t.name.contains("ffn_gate_inp") && !t.name.contains("conv1d") && t.name != "token_embd.weight"
}

/// A document whose matrices are any bytes of this type, with scales beside them that make the numbers small; and its twin,
/// which has the same numbers as F32.
fn with_type(spec: &Spec, dtype: Dtype) -> (Document, Document) {
    let (mut document, mut rng) = (spec.document(), Rng::new(u64::from(dtype.id())));
    let mut twin = document.clone();
    let stored = TensorType::from_id(dtype.id()).expect("gguf knows the types of ggml");
    let mut scales = Vec::new();
    for (t, twin) in document.tensors.iter_mut().zip(&mut twin.tensors).filter(|(t, _)| is_matrix(t)) {
        let n: u64 = t.ne.iter().product();
        // Without the upper bits there are no infinities, wherever scales lie.
        let n_bytes = stored.tensor_bytes(&shape(&t.ne)).expect("whole blocks") as usize;
        t.data = (0..n_bytes).map(|_| rng.bits().to_le_bytes()[7] & 0x3f).collect();
        t.dtype = stored;
        let mut values = vec![0.0; n as usize];
        ggml::unpack(dtype, &t.data, &mut values).expect("whole blocks");
        let n_matrices = t.ne.get(2).copied().unwrap_or(1) as usize;
        let mut of_matrices = Vec::new();
        for values in values.chunks_mut(n as usize / n_matrices) {
            let squares: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
            let scale = (values.len() as f64 / squares / t.ne[0] as f64).sqrt() as f32;
            assert!(scale.is_finite(), "{dtype}: scale {scale}");
            values.iter_mut().for_each(|v| *v *= scale);
            of_matrices.push(scale);
        }
        twin.data = f32s(values);
        let name = t.name.replace(".weight", ".scale");
        scales.push(Tensor { name, ne: vec![n_matrices as u64], dtype: TensorType::F32, data: f32s(of_matrices) });
    }
    document.tensors.extend(scales);
    (document, twin)
}

fn shape(ne: &[u64]) -> [u64; 4] {
    std::array::from_fn(|i| ne.get(i).copied().unwrap_or(1))
}

#[test]
fn models_of_every_type_predict_what_their_numbers_as_f32_predict() {
    for &stored in TensorType::ALL {
        let Ok(dtype) = Dtype::from_id(stored.id()) else { continue };
        if !dtype.is_for_weights() || !dtype.is_quantized() {
            continue;
        }
        for arch in ["qwen3", "qwen3moe"] {
            let (document, twin) = with_type(&spec(arch), dtype);
            let (found, wanted) = (logits(&document, 6), logits(&twin, 6));
            let spread = (wanted.iter().map(|l| l * l).sum::<f32>() / wanted.len() as f32).sqrt();
            let error =
                (found.iter().zip(&wanted).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / found.len() as f32).sqrt();
            // Activations are rounded to 8 bits at each of some ten products. Numbers of any bytes are not even about zero in all
            // types, which makes that count more (0.066 was seen); wrong numbers are off by the spread itself.
            assert!(error <= 0.1 * spread, "{dtype}, {arch}: logits are off by {error} of {spread}");
            if BatchInvariance::of(dtype).width().is_some_and(|n| n >= 6) {
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(bits(&found) == bits(&logits(&document, 1)), "{dtype}, {arch}: one at a time");
            }
        }
    }
}

#[test]
fn scales_beside_matrices_and_experts_are_factors_of_their_numbers() {
    for (arch, fused) in
        [("qwen3", false), ("qwen35", false), ("qwen3moe", false), ("qwen35moe", false), ("qwen35moe", true)]
    {
        let mut plain = Spec::of(arch).document();
        if fused {
            for il in 0..4 {
                let part = |name: &str| format!("blk.{il}.ffn_{name}_exps.weight");
                plain.fuse(&[&part("gate"), &part("up")], &part("gate_up"));
            }
        }
        let mut scaled = plain.clone();
        let mut scales = Vec::new();
        for t in scaled.tensors.iter_mut().filter(|t| is_matrix(t)) {
            // Powers of two, another for each expert: exact in every product.
            let n_matrices = t.ne.get(2).copied().unwrap_or(1) as usize;
            let factor = |i: usize| 2f32.powi([3, -4, 1, -2, 5, -1][i % 6]);
            let n = t.data.len() / 4 / n_matrices;
            let value = |i: usize| f32::from_le_bytes(std::array::from_fn(|b| t.data[4 * i + b])) / factor(i / n);
            t.data = f32s((0..n * n_matrices).map(value).collect::<Vec<_>>());
            let name = t.name.replace(".weight", ".scale");
            let ne = vec![n_matrices as u64];
            scales.push(Tensor { name, ne, dtype: TensorType::F32, data: f32s((0..n_matrices).map(factor)) });
        }
        scaled.tensors.extend(scales);
        let (found, wanted) = (logits(&scaled, 3), logits(&plain, 3));
        assert!(found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() <= 1e-5), "{arch}, gate and up fused: {fused}");
    }
}

#[test]
fn a_scale_for_another_number_of_experts_is_an_error() {
    let mut document = Spec::of("qwen3moe").document();
    let name = "blk.1.ffn_up_exps.scale".to_owned();
    document.tensors.push(Tensor { name, ne: vec![7], dtype: TensorType::F32, data: f32s([1.0; 7]) });
    let error = open(&document).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("blk.1.ffn_up_exps.scale") && error.contains("[6]") && error.contains("[7]"), "{error}");
}

#[test]
fn a_type_without_products_is_refused_by_the_tensors_name() {
    for stored in [TensorType::Q8_1, TensorType::Q8_K, TensorType::I8, TensorType::I32, TensorType::F64] {
        for name in ["blk.1.ffn_up.weight", "token_embd.weight", "output.weight", "output_norm.weight"] {
            let mut document = spec("qwen3").document();
            let t = document.tensors.iter_mut().find(|t| t.name == name).expect("a dense model has it");
            t.dtype = stored;
            let n_bytes = stored.tensor_bytes(&shape(&t.ne)).expect("whole blocks");
            t.data = vec![0; n_bytes as usize];
            let error = open(&document).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(stored.name()), "{stored}, {name}: {error}");
        }
    }
}
