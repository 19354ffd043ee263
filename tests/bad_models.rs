//! Damaged model files: opening and running them gives a result or an error, never a panic, an abort or a hang.
//!
//! ggml's assertions end the process, so the damage is tried in child processes: this test starts itself again with a
//! range of seeds in the environment, and names the seed at which a child ended or stood still.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gguf::TensorType;
use memory::{CacheType, MemoryConfig};
use model::{LoadOptions, Model, Pass, PassOutput, Rows, Runner};
use support::rig::exact;
use support::tiny::{Document, Meta, Rng, Spec, Tensor};
use tempfile::TempDir;
use text::TokenId;

const N_FILES: u64 = 5_000;
const FILES_OF_A_CHILD: u64 = 500;
/// One file takes milliseconds; this is for a machine that does much else.
const LIMIT: Duration = Duration::from_secs(120);
const SEEDS: &str = "NEXTN_TEST_SEEDS";

#[test]
fn five_thousand_damaged_models_end_in_a_result_or_an_error() {
    if let Ok(seeds) = std::env::var(SEEDS) {
        let (from, rest) = seeds.split_once(' ').expect("from, to, folder");
        let (to, dir) = rest.split_once(' ').expect("from, to, folder");
        return child(from.parse().expect("a number"), to.parse().expect("a number"), Path::new(dir));
    }
    let mut totals = [0u64; 3];
    for from in (0..N_FILES).step_by(FILES_OF_A_CHILD as usize) {
        let dir = TempDir::new().expect("a folder");
        let seeds = format!("{from} {} {}", from + FILES_OF_A_CHILD, dir.path().display());
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "five_thousand_damaged_models_end_in_a_result_or_an_error"])
            .env(SEEDS, &seeds)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("this test starts again");
        let start = Instant::now();
        let status = loop {
            match child.try_wait().expect("the child is ours") {
                Some(status) => break Some(status),
                None if start.elapsed() > LIMIT => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let seed = || std::fs::read_to_string(dir.path().join("seed")).unwrap_or_default();
        let Some(status) = status else {
            child.kill().and_then(|()| child.wait()).expect("the child is ours");
            panic!("seed {} stands still; {SEEDS}='N N+1 DIR' runs it alone", seed());
        };
        assert!(status.success(), "seed {} ended with {status}; {SEEDS}='N N+1 DIR' runs it alone", seed());
        let counts = std::fs::read_to_string(dir.path().join("counts")).expect("a child that ends well counts");
        for (total, count) in totals.iter_mut().zip(counts.split(' ')) {
            *total += count.parse::<u64>().expect("a number");
        }
    }
    let [refused, stopped, computed] = totals;
    println!("{refused} not opened, {stopped} opened and not computed, {computed} computed");
    // Damage that all files or none survive would prove little.
    assert_eq!(refused + stopped + computed, N_FILES);
    assert!(refused > N_FILES / 4 && computed > N_FILES / 20, "{refused} not opened, {computed} computed");
}

/// Tries a range of seeds; keeps the current one in `dir/seed`, and what came of all in `dir/counts`.
fn child(from: u64, to: u64, dir: &Path) {
    let mut counts = [0u64; 3];
    for seed in from..to {
        std::fs::write(dir.join("seed"), seed.to_string()).expect("the folder is writable");
        let path = dir.join("model.gguf");
        std::fs::write(&path, damaged(seed)).expect("the folder is writable");
        counts[try_file(&path)] += 1;
    }
    std::fs::write(dir.join("counts"), counts.map(|n| n.to_string()).join(" ")).expect("the folder is writable");
}

/// 0: not opened, 1: opened and not computed, 2: computed.
fn try_file(path: &Path) -> usize {
    let Ok(model) = Model::open(path, &LoadOptions::default()) else { return 0 };
    let fused = MemoryConfig { type_k: CacheType::F16, type_v: CacheType::F16, v_transposed: false, ..exact(1, 256) };
    let mut n_computed = 0;
    for config in [exact(1, 256), fused] {
        let Ok(mut memory) = model.memory(config) else { continue };
        let Ok(Some(slot)) = memory.acquire() else { continue };
        let Ok(mut runner) = Runner::new(model.clone(), 1) else { continue };
        let mut output = PassOutput::default();
        let last = model.hparams().n_vocab as u32 - 1;
        for tokens in [&[0, last, last / 2][..], &[last]] {
            let tokens: Vec<_> = tokens.iter().copied().map(TokenId).collect();
            let Ok(step) = memory.begin(&[(&slot, tokens.len())], 1) else { break };
            let pass = Pass { tokens: &tokens, rows: Rows::All, hidden: true };
            if runner.run(step.view(), &pass, &mut output).is_err() {
                break;
            }
            step.commit(&[tokens.len()]).expect("all rows of a computed step can be kept");
            n_computed += 1;
        }
    }
    if n_computed == 0 { 1 } else { 2 }
}

/// A small model with one to three wounds, the same for the same seed.
fn damaged(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut spec = small(rng.pick(&["qwen35", "qwen35moe", "qwen35", "qwen35moe", "qwen3moe", "llama"]));
    spec.nextn = spec.arch.starts_with("qwen35") && rng.below(3) == 0;
    spec.tied = rng.below(2) == 0;
    let kind = rng.below(8);
    if kind < 2 {
        odd_sizes(&mut spec, &mut rng);
    }
    let mut document = spec.document();
    if (2..7).contains(&kind) {
        for _ in 0..=rng.below(3) {
            match rng.below(7) {
                0..=2 => wound_key(&mut document, &mut rng),
                3 => wound_shape(&mut document, &mut rng),
                4 => wound_type(&mut document, &mut rng),
                5 => wound_numbers(&mut document, &mut rng),
                _ => wound_list(&mut document, &mut rng),
            }
        }
    }
    let mut bytes = encoded(&document);
    if kind == 7 {
        let n_header = bytes.len().min(12_000);
        for _ in 0..=rng.below(4) {
            let n = if rng.below(4) == 0 { bytes.len() } else { n_header.min(bytes.len()) };
            let at = rng.below(n);
            match rng.below(4) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes[at] = 0xff,
                2 => bytes[at] = 0,
                _ => bytes.truncate(at.max(1)),
            }
            if bytes.len() < 64 {
                break;
            }
        }
    }
    bytes
}

fn small(arch: &'static str) -> Spec {
    let of = Spec::of(arch);
    // What an architecture says of its own sizes would not fit others.
    if !of.more.is_empty() {
        return of;
    }
    Spec { n_layer: 2, n_embd: 32, n_ff: 32, n_ff_shared: 32, d_head: 16, n_rot: 8, d_state: 8, ..of }
}

/// Sizes that no model has, and tensors that agree with them.
fn odd_sizes(spec: &mut Spec, rng: &mut Rng) {
    for _ in 0..=rng.below(3) {
        let n = rng.pick(&[1, 2, 3, 5, 7, 9, 31, 33, 64]);
        match rng.below(12) {
            0 => spec.n_embd = n,
            1 => spec.n_head = n.min(9),
            2 => spec.n_head_kv = n.min(9),
            3 => spec.d_head = n,
            4 => spec.n_rot = n,
            5 => spec.n_ff = n,
            6 => (spec.n_k_heads, spec.n_v_heads) = (n.min(9), n.min(9) * (1 + rng.below(3))),
            7 => spec.d_state = n,
            8 => spec.n_taps = n,
            9 => spec.interval = 1 + rng.below(3),
            10 => (spec.n_expert, spec.n_used) = (n.min(9), 1 + rng.below(n.min(9))),
            _ => spec.n_ff_shared = n,
        }
    }
}

fn wound_key(document: &mut Document, rng: &mut Rng) {
    let at = rng.below(document.keys.len());
    if rng.below(8) == 0 {
        document.keys.remove(at);
        return;
    }
    let n = rng.pick(&[0, 1, 2, 3, 5, 8, 17, 32, 33, 255, 65_536, 1 << 22, i32::MAX as u32, 1 << 31, u32::MAX]);
    let value = &mut document.keys[at].1;
    *value = match (&*value, rng.below(8)) {
        (Meta::U32(old), 0..=2) => Meta::U32(old.wrapping_add_signed(rng.pick(&[-1, 1, 2, 7]))),
        (Meta::F32(_), 0..=5) => Meta::F32(rng.pick(&[0.0, -1.0, 1e-30, 1e30, f32::NAN, f32::INFINITY, -0.0, 1e-6])),
        (_, 3) => Meta::F32(n as f32),
        (_, 4) => Meta::Bool(n.is_multiple_of(2)),
        (_, 5) => Meta::Str("none".into()),
        (_, 6) => Meta::U32s(vec![n; rng.below(4)]),
        (_, 7) => Meta::Bools((0..rng.below(4)).map(|i| i % 2 == 0).collect()),
        _ => Meta::U32(n),
    };
}

fn wound_shape(document: &mut Document, rng: &mut Rng) {
    let at = rng.below(document.tensors.len());
    let ne = &mut document.tensors[at].ne;
    let dim = rng.below(ne.len());
    match rng.below(6) {
        0 => ne.reverse(),
        1 => ne.push(rng.pick(&[0, 1, 2])),
        2 if ne.len() > 1 => {
            let last = ne.pop().expect("two at least");
            ne[0] = ne[0].wrapping_mul(last);
        }
        3 => ne[dim] = rng.pick(&[0, 1, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX]),
        4 => ne[dim] = ne[dim].wrapping_sub(1),
        _ => ne[dim] = 1 + ne[dim] / 2,
    }
}

/// Another type, with as much data as it needs: random bits.
fn wound_type(document: &mut Document, rng: &mut Rng) {
    let at = rng.below(document.tensors.len());
    let Tensor { ne, dtype, data, .. } = &mut document.tensors[at];
    *dtype = rng.pick(TensorType::ALL);
    let mut shape = [1; 4];
    shape[..ne.len().min(4)].copy_from_slice(&ne[..ne.len().min(4)]);
    let n_bytes = dtype.tensor_bytes(&shape).filter(|&n| n < 1 << 22);
    if let Some(n) = n_bytes {
        *data = (0..n).map(|_| rng.bits() as u8).collect();
    }
}

/// Weights that are no numbers, or not of this world.
fn wound_numbers(document: &mut Document, rng: &mut Rng) {
    let at = rng.below(document.tensors.len());
    let value = rng.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, f32::MAX, f32::MIN_POSITIVE]);
    let every = 1 + rng.below(5);
    let data = &mut document.tensors[at].data;
    data.chunks_exact_mut(4).step_by(every).for_each(|bytes| bytes.copy_from_slice(&value.to_le_bytes()));
}

fn wound_list(document: &mut Document, rng: &mut Rng) {
    let (strings, numbers): (Vec<_>, Vec<_>) =
        document.keys.iter_mut().map(|(_, value)| value).partition(|v| matches!(v, Meta::Strs(_)));
    if rng.below(3) == 0 {
        for value in numbers {
            if let Meta::I32s(types) = value {
                let at = rng.below(types.len());
                match rng.below(3) {
                    0 => types.truncate(at),
                    1 => types.fill(rng.pick(&[0, 2, 6, 7, -1, i32::MAX])),
                    _ => types[at] = rng.pick(&[0, 2, 6, 7, -1, i32::MAX]),
                }
            }
        }
        return;
    }
    for value in strings {
        let Meta::Strs(list) = value else { continue };
        if list.is_empty() || rng.below(2) == 0 {
            continue;
        }
        let at = rng.below(list.len());
        match rng.below(4) {
            0 => list.truncate(at),
            1 => list[at] = rng.pick(&["", " ", "a b c", "\u{0}", "\u{10ffff} x", "th e"]).to_string(),
            2 => list[at] = list[rng.below(list.len())].clone(),
            _ => list.push("one more".into()),
        }
    }
}

/// The file's bytes, whatever the document says; tensors lie one after the other, at multiples of 32.
fn encoded(document: &Document) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((document.tensors.len() as u64).to_le_bytes());
    out.extend((document.keys.len() as u64).to_le_bytes());
    let string = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let array = |out: &mut Vec<u8>, element: u32, len: usize| {
        out.extend(9u32.to_le_bytes());
        out.extend(element.to_le_bytes());
        out.extend((len as u64).to_le_bytes());
    };
    for (key, value) in &document.keys {
        string(&mut out, key);
        match value {
            Meta::U32(v) => out.extend([4u32.to_le_bytes(), v.to_le_bytes()].concat()),
            Meta::F32(v) => out.extend([6u32.to_le_bytes(), v.to_le_bytes()].concat()),
            Meta::Bool(v) => {
                out.extend(7u32.to_le_bytes());
                out.push((*v).into());
            }
            Meta::Str(v) => {
                out.extend(8u32.to_le_bytes());
                string(&mut out, v);
            }
            Meta::U32s(v) => {
                array(&mut out, 4, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Meta::I32s(v) => {
                array(&mut out, 5, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Meta::F32s(v) => {
                array(&mut out, 6, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Meta::Bools(v) => {
                array(&mut out, 7, v.len());
                out.extend(v.iter().map(|&v| u8::from(v)));
            }
            Meta::Strs(v) => {
                array(&mut out, 8, v.len());
                v.iter().for_each(|v| string(&mut out, v));
            }
        }
    }
    let mut offset = 0u64;
    for t in &document.tensors {
        string(&mut out, &t.name);
        out.extend((t.ne.len() as u32).to_le_bytes());
        t.ne.iter().for_each(|n| out.extend(n.to_le_bytes()));
        out.extend(t.dtype.id().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += (t.data.len() as u64).next_multiple_of(32);
    }
    for t in &document.tensors {
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&t.data);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out
}

#[test]
fn the_undamaged_model_computes() {
    for arch in model::architectures() {
        let dir = TempDir::new().expect("a folder");
        let path = dir.path().join("model.gguf");
        std::fs::write(&path, encoded(&small(arch).document())).expect("the folder is writable");
        assert_eq!(try_file(&path), 2, "{arch}");
    }
}

#[test]
fn a_file_that_is_no_model_is_refused_in_plain_words() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("model.gguf");
    let says = |path: &Path| Model::open(path, &LoadOptions::default()).expect_err("no model").to_string();

    let error = says(&path);
    assert!(error.contains("model.gguf") && error.contains("No such file"), "{error}");
    let error = says(dir.path());
    assert!(error.contains("is not a regular file"), "{error}");
    std::fs::write(&path, b"").expect("the folder is writable");
    assert!(says(&path).contains("is empty"), "{}", says(&path));

    let good = encoded(&small("qwen35").document());
    std::fs::write(&path, &good[..good.len() - 4000]).expect("the folder is writable");
    let error = says(&path);
    assert!(error.contains("missing") || error.contains("beyond"), "{error}");
    for n in [1, 3, 4, 23, 24, 100, 5000] {
        std::fs::write(&path, &good[..n]).expect("the folder is writable");
        assert!(!says(&path).is_empty());
    }
    let mut other = good.clone();
    other[..4].copy_from_slice(b"GGML");
    std::fs::write(&path, &other).expect("the folder is writable");
    let error = says(&path);
    assert!(error.contains("GGUF"), "{error}");

    let mut unknown = small("qwen35").document();
    unknown.set("general.architecture", Meta::Str("mamba9".into()));
    std::fs::write(&path, encoded(&unknown)).expect("the folder is writable");
    let known = model::architectures().join(", ");
    assert_eq!(says(&path), format!("architecture `mamba9` is not known; known are: {known}"));
}
