//! The numbers that a head starts from: the model's own, or new ones. Owns what a new head begins as.

use std::collections::HashMap;

use anyhow::{Context, bail, ensure};
use candle_core::{DType, Device};
use convert::heads::NewHead;
use model::block_of;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::block::{Head, Layer, Numbers};

/// Tensors of a head that are not trained: they are the size of the vocabulary.
const TABLES: [&str; 2] = ["nextn.embed_tokens.weight", "nextn.shared_head_head.weight"];

/// The head of `source`, for texts of at most `n_positions` tokens. Without one of its own it starts anew by `seed`.
///
/// # Errors
/// The file cannot be read; the head has tensors that the trained function does not.
pub fn head(source: &NewHead, n_positions: usize, seed: u64, device: &Device) -> anyhow::Result<Head> {
    let mut rng = StdRng::seed_from_u64(seed);
    let final_norm =
        source.floats("output_norm.weight")?.context("the model has no final norm (output_norm.weight)")?;
    let mut layers: Vec<Vec<Numbers>> = vec![Vec::new(); source.n_layers()];
    for t in source.tensors() {
        let Some((il, name)) = block_of(&t.name) else { continue };
        if TABLES.contains(&name) {
            continue;
        }
        ensure!(is_known(name), "{}: heads with this tensor cannot be trained", t.name);
        let ne: Vec<usize> = t.ne.iter().map(|n| *n as usize).collect();
        let numbers = match source.floats(&t.name)? {
            Some(numbers) => numbers,
            None => new(name, &ne, &final_norm, &mut rng),
        };
        let n: usize = ne.iter().product();
        ensure!(numbers.len() == n, "{}: {} numbers found, {ne:?} expected", t.name, numbers.len());
        let Some(layer) = layers.get_mut((il as usize).wrapping_sub(source.n_layer())) else {
            bail!("{}: not of the head", t.name)
        };
        layer.push((name.to_owned(), ne, numbers));
    }
    let layers =
        layers.into_iter().map(|tensors| Layer::new(tensors, DType::F32, device)).collect::<Result<Vec<_>, _>>()?;
    let factors = source.floats("rope_freqs.weight")?;
    Ok(Head::new(source.shape().clone(), layers, (&final_norm, factors.as_deref()), n_positions, device)?)
}

/// Names of the tensors that the function of a head reads; a norm before the feed-forward has one of several names.
fn is_known(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".bias")) else { return false };
    stem.ends_with("norm") || KNOWN.contains(&stem)
}

/// Those that are no norms, without their endings.
const KNOWN: [&str; 28] = [
    "nextn.eh_proj",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "attn_gate",
    "attn_sinks",
    "attn_q_a",
    "attn_q_b",
    "attn_kv_a_mqa",
    "attn_k_b",
    "attn_v_b",
    "attn_kv_b",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_inp",
    "exp_probs_b",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
    "ffn_latent_down",
    "ffn_latent_up",
    "ffn_gate_inp_shexp",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
];

/// What a tensor of a new head begins as. Its output is at first its projection alone: what the blocks add begins at zero.
fn new(name: &str, ne: &[usize], final_norm: &[f32], rng: &mut StdRng) -> Vec<f32> {
    let n: usize = ne.iter().product();
    if name == "nextn.shared_head_norm.weight" {
        return final_norm.to_vec();
    }
    if name.contains("norm") {
        return vec![1.0; n];
    }
    // Gates are half open, and sinks a score among others.
    let zero = ["attn_output", "ffn_down", "attn_gate", "attn_sinks"];
    if name.ends_with(".bias") || zero.iter().any(|zero| name.starts_with(zero)) {
        return vec![0.0; n];
    }
    // Keys are made by the matrix that the file has for queries, the other way round.
    let n_in = if name == "attn_k_b.weight" { ne.get(1) } else { ne.first() };
    let scale = (n_in.copied().unwrap_or(1) as f32).sqrt().recip();
    (0..n).map(|_| normal(rng) * scale).collect()
}

/// A number of the normal distribution. Source: Box and Muller 1958.
fn normal(rng: &mut StdRng) -> f32 {
    let (a, b): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    ((-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
}

/// The numbers of all layers, by the names of the tensors in files.
///
/// # Errors
/// The device's.
pub fn numbers(head: &Head, n_layer: usize) -> anyhow::Result<HashMap<String, Vec<f32>>> {
    let mut all = HashMap::new();
    for (k, layer) in head.layers().iter().enumerate() {
        let named =
            layer.numbers()?.into_iter().map(|(name, numbers)| (format!("blk.{}.{name}", n_layer + k), numbers));
        all.extend(named);
    }
    Ok(all)
}
