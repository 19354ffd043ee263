//! LoRA adapters for tiny models, and the same models with the updates merged into their weights by hand.

use gguf::TensorType;

use super::tiny::{Document, Meta, Rng, Spec, Tensor};

/// A random adapter of F32 tensors for those of a model's matrices that `wanted` names.
pub fn adapter(spec: &Spec, model: &Document, rank: u64, seed: u64, wanted: impl Fn(&str) -> bool) -> Document {
    let mut d = Document::default();
    d.set("general.architecture", Meta::Str(spec.arch.into()));
    d.set("general.type", Meta::Str("adapter".into()));
    d.set("adapter.type", Meta::Str("lora".into()));
    d.set("adapter.lora.alpha", Meta::F32(2.0 * rank as f32));
    let mut rng = Rng::new(seed);
    for t in model.tensors.iter().filter(|t| is_matrix(t) && wanted(&t.name)) {
        let (n_in, n_out, n) = sizes(t);
        let (a, b) = match is_embedding(t) {
            true => (vec![rank, n_out], vec![rank, n_in]),
            false if t.ne.len() == 3 => (vec![n_in, rank, n], vec![rank, n_out, n]),
            false => (vec![n_in, rank], vec![rank, n_out]),
        };
        let size = 0.15 / (rank as f32 * if is_embedding(t) { 0.05 } else { n_in as f32 }).sqrt();
        for (ending, ne, size) in [("lora_a", a, 1.0), ("lora_b", b, size)] {
            let n: u64 = ne.iter().product();
            let data = (0..n).flat_map(|_| (rng.normal() * size).to_le_bytes()).collect();
            d.tensors.push(Tensor { name: format!("{}.{ending}", t.name), ne, dtype: TensorType::F32, data });
        }
    }
    assert!(!d.tensors.is_empty(), "no matrix has a wanted name");
    d
}

/// A model of F32 tensors with an adapter's updates added to its weights, `scale` times.
pub fn merged(model: &Document, adapter: &Document, scale: f32) -> Document {
    let mut merged = model.clone();
    let alpha = adapter.keys.iter().find_map(|(key, value)| match value {
        Meta::F32(alpha) if key == "adapter.lora.alpha" => Some(*alpha),
        _ => None,
    });
    let tensor = |name: String| adapter.tensors.iter().find(|t| t.name == name);
    for t in &mut merged.tensors {
        let Some(a) = tensor(format!("{}.lora_a", t.name)) else { continue };
        let b = tensor(format!("{}.lora_b", t.name)).expect("both or none");
        let rank = b.ne[0] as usize;
        let scale = f64::from(scale * alpha.map_or(1.0, |alpha| alpha / rank as f32));
        let (n_in, n_out, n) = sizes(t);
        let (n_in, n_out) = (n_in as usize, n_out as usize);
        let (mut w, of_rows) = (floats(t), is_embedding(t));
        let (a, b) = (floats(a), floats(b));
        for matrix in 0..n as usize {
            let (a, b) = (&a[matrix * (a.len() / n as usize)..], &b[matrix * (b.len() / n as usize)..]);
            for o in 0..n_out {
                for i in 0..n_in {
                    let term = |r: usize| match of_rows {
                        true => f64::from(a[o * rank + r]) * f64::from(b[i * rank + r]),
                        false => f64::from(a[r * n_in + i]) * f64::from(b[o * rank + r]),
                    };
                    w[(matrix * n_out + o) * n_in + i] += (scale * (0..rank).map(term).sum::<f64>()) as f32;
                }
            }
        }
        t.data = w.iter().flat_map(|x| x.to_le_bytes()).collect();
    }
    merged
}

/// The numbers of an F32 tensor.
pub fn floats(t: &Tensor) -> Vec<f32> {
    assert_eq!(t.dtype, TensorType::F32, "{}", t.name);
    t.data.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().expect("four bytes"))).collect()
}

fn is_embedding(t: &Tensor) -> bool {
    t.name == "token_embd.weight"
}

fn is_matrix(t: &Tensor) -> bool {
    let of_one_row = t.name.ends_with("ffn_gate_inp_shexp.weight");
    t.name.ends_with(".weight") && (t.ne.len() > 1 || of_one_row) && !t.name.contains("conv1d")
}

/// Inputs, outputs and number of matrices; of the embedding its width and its rows.
fn sizes(t: &Tensor) -> (u64, u64, u64) {
    let ne = |i: usize| t.ne.get(i).copied().unwrap_or(1);
    (ne(0), ne(1), ne(2))
}
