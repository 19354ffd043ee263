//! LoRA adapters for tiny models, and the same models with the updates merged into their weights by hand.

use gguf::TensorType;

use super::tiny::{Document, Meta, Rng, Spec, Tensor};

/// A random adapter of F32 tensors for those of a model's matrices that `wanted` names.
pub fn adapter(spec: &Spec, model: &Document, rank: u64, seed: u64, wanted: impl Fn(&str) -> bool) -> Document {
    let tensors = model.tensors.iter().map(|t| (t.name.as_str(), &t.ne[..]));
    adapter_for(spec.arch, tensors, rank, seed, wanted)
}

/// The same for a model of which names and shapes of the tensors are known.
pub fn adapter_for<'t>(
    arch: &str,
    tensors: impl Iterator<Item = (&'t str, &'t [u64])>,
    rank: u64,
    seed: u64,
    wanted: impl Fn(&str) -> bool,
) -> Document {
    let mut d = Document::default();
    d.set("general.architecture", Meta::Str(arch.into()));
    d.set("general.type", Meta::Str("adapter".into()));
    d.set("adapter.type", Meta::Str("lora".into()));
    d.set("adapter.lora.alpha", Meta::F32(2.0 * rank as f32));
    let mut rng = Rng::new(seed);
    for (name, ne) in tensors.filter(|(name, ne)| is_matrix(name, ne) && wanted(name)) {
        let (n_in, n_out, n) = sizes(ne);
        let (a, b) = match is_embedding(name) {
            true => (vec![rank, n_out], vec![rank, n_in]),
            false if ne.len() == 3 => (vec![n_in, rank, n], vec![rank, n_out, n]),
            false => (vec![n_in, rank], vec![rank, n_out]),
        };
        // About a third of what random weights of this shape are.
        let size = 0.15 / (rank as f32 * if is_embedding(name) { 0.05 } else { n_in as f32 }).sqrt();
        for (ending, ne, size) in [("lora_a", a, 1.0), ("lora_b", b, size)] {
            let n: u64 = ne.iter().product();
            let data = (0..n).flat_map(|_| (rng.normal() * size).to_le_bytes()).collect();
            d.tensors.push(Tensor { name: format!("{name}.{ending}"), ne, dtype: TensorType::F32, data });
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
        let (n_in, n_out, n) = sizes(&t.ne);
        let (n_in, n_out) = (n_in as usize, n_out as usize);
        let (mut w, of_rows) = (floats(t), is_embedding(&t.name));
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

fn is_embedding(name: &str) -> bool {
    name == "token_embd.weight"
}

fn is_matrix(name: &str, ne: &[u64]) -> bool {
    let of_one_row = name.ends_with("ffn_gate_inp_shexp.weight");
    name.ends_with(".weight")
        && (ne.len() > 1 || of_one_row)
        && !name.contains("conv1d")
        && !name.contains("shortconv.conv.")
}

/// Inputs, outputs and number of matrices; of the embedding its width and its rows.
fn sizes(ne: &[u64]) -> (u64, u64, u64) {
    let ne = |i: usize| ne.get(i).copied().unwrap_or(1);
    (ne(0), ne(1), ne(2))
}
