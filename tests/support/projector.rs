//! Tiny projectors with random weights, for tests of what sees: the kinds that there are, with tensors as published files
//! name them. Included by path; it needs the crate `gguf` alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gguf::{ArrayBuf, TensorType, Writer};

/// A tensor: its shape, fastest dimension first, and its numbers.
pub type Tensor = (Vec<u64>, Vec<f32>);

/// A projector before it is written; tests may change everything in it.
#[derive(Clone)]
pub struct TinyProjector {
    pub kind: &'static str,
    pub numbers: BTreeMap<String, u32>,
    pub flags: BTreeMap<String, Vec<bool>>,
    pub tensors: BTreeMap<String, Tensor>,
}

pub const N_EMBD: u64 = 24;
pub const N_FF: u64 = 20;
pub const N_HEAD: u64 = 2;
pub const N_LAYER: u64 = 2;
pub const PATCH: u64 = 4;
/// Positions of the learned table along a side.
pub const SIDE: u64 = 5;
/// Patches along a side of what Gemma 3 makes of every picture.
pub const SQUARE: u64 = 9;
/// Positions of the table of columns, and of that of rows.
pub const N_PLACES: u64 = 60;

impl TinyProjector {
    /// Of Qwen3.5, with rows of `n_embd_text`.
    pub fn qwen(n_embd_text: u64) -> Self {
        let mut t = Self::of("qwen3vl_merger", n_embd_text, 0.5);
        let (n, block) = (N_EMBD, 4 * N_EMBD);
        for name in ["v.patch_embd.weight", "v.patch_embd.weight.1"] {
            t.random(name, &[PATCH, PATCH, 3, n]);
        }
        t.random("v.patch_embd.bias", &[n]);
        t.random("v.position_embd.weight", &[n, SIDE * SIDE]);
        for il in 0..N_LAYER {
            t.norm(&format!("v.blk.{il}.ln1"), n, true);
            t.norm(&format!("v.blk.{il}.ln2"), n, true);
            for (name, n_in, n_out) in
                [("attn_qkv", n, 3 * n), ("attn_out", n, n), ("ffn_up", n, N_FF), ("ffn_down", N_FF, n)]
            {
                t.linear(&format!("v.blk.{il}.{name}"), n_in, n_out);
            }
        }
        t.norm("v.post_ln", n, true);
        t.linear("mm.0", block, block);
        t.linear("mm.2", block, n_embd_text);
        t
    }

    /// Of Gemma 4, with rows of `n_embd_text`; with limits on every linear or without, then with a standard.
    pub fn gemma(n_embd_text: u64, clipped: bool) -> Self {
        let mut t = Self::of("gemma4v", n_embd_text, 0.0);
        let n = N_EMBD;
        t.random("v.patch_embd.weight", &[PATCH, PATCH, 3, n]);
        t.random("v.position_embd.weight", &[n, N_PLACES, 2]);
        for il in 0..N_LAYER {
            let name = |part: &str| format!("v.blk.{il}.{part}");
            for norm in ["ln1", "ln2", "attn_post_norm", "ffn_post_norm"] {
                t.norm(&name(norm), n, false);
            }
            t.norm(&name("attn_q_norm"), n / N_HEAD, false);
            t.norm(&name("attn_k_norm"), n / N_HEAD, false);
            for (part, n_in, n_out) in [
                ("attn_q", n, n),
                ("attn_k", n, n),
                ("attn_v", n, n),
                ("attn_out", n, n),
                ("ffn_gate", n, N_FF),
                ("ffn_up", n, N_FF),
                ("ffn_down", N_FF, n),
            ] {
                t.random(&name(&format!("{part}.weight")), &[n_in, n_out]);
                let limits = [("input_min", -0.9), ("input_max", 1.1), ("output_min", -0.8), ("output_max", 0.7)];
                for (limit, value) in limits.into_iter().filter(|_| clipped) {
                    t.tensors.insert(name(&format!("{part}.{limit}")), (vec![1], vec![value]));
                }
            }
        }
        if !clipped {
            t.random("v.std_bias", &[n]);
            t.norm("v.std_scale", n, false);
            let scale = t.tensors.remove("v.std_scale.weight").expect("just made");
            t.tensors.insert("v.std_scale".into(), scale);
        }
        t.random("mm.input_projection.weight", &[n, n_embd_text]);
        t
    }

    /// Of Gemma 3, with rows of `n_embd_text`.
    pub fn gemma3(n_embd_text: u64) -> Self {
        let mut t = Self::of("gemma3", n_embd_text, 0.5);
        let n = N_EMBD;
        t.numbers.remove("spatial_merge_size");
        t.numbers.insert("image_size".into(), (SQUARE * PATCH) as u32);
        t.numbers.insert("projector.scale_factor".into(), 3);
        t.flags.clear();
        t.random("v.patch_embd.weight", &[PATCH, PATCH, 3, n]);
        t.random("v.patch_embd.bias", &[n]);
        t.random("v.position_embd.weight", &[n, SQUARE * SQUARE]);
        for il in 0..N_LAYER {
            t.norm(&format!("v.blk.{il}.ln1"), n, true);
            t.norm(&format!("v.blk.{il}.ln2"), n, true);
            for (name, n_in, n_out) in [
                ("attn_q", n, n),
                ("attn_k", n, n),
                ("attn_v", n, n),
                ("attn_out", n, n),
                ("ffn_up", n, N_FF),
                ("ffn_down", N_FF, n),
            ] {
                t.linear(&format!("v.blk.{il}.{name}"), n_in, n_out);
            }
        }
        t.norm("v.post_ln", n, true);
        t.norm("mm.soft_emb_norm", n, false);
        t.random("mm.input_projection.weight", &[n_embd_text, n]);
        t
    }

    fn of(kind: &'static str, n_embd_text: u64, mean: f32) -> Self {
        let side = if mean > 0.0 { SIDE } else { N_PLACES };
        let numbers = [
            ("embedding_length", N_EMBD),
            ("feed_forward_length", N_FF),
            ("block_count", N_LAYER),
            ("attention.head_count", N_HEAD),
            ("projection_dim", n_embd_text),
            ("patch_size", PATCH),
            ("image_size", side * PATCH),
            ("spatial_merge_size", 2),
        ];
        let numbers = numbers.map(|(key, n)| (key.to_owned(), n as u32)).into();
        let flags = [("is_deepstack_layers".to_owned(), vec![false; N_LAYER as usize])].into();
        Self { kind, numbers, flags, tensors: BTreeMap::new() }
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> PathBuf {
        let mut writer = Writer::create(path).expect("a folder that can be written");
        let mut add = |key: &str, value: gguf::Value<'_>| writer.add(key, value).expect("a key");
        add("general.architecture", "clip".into());
        let gemma = self.kind == "gemma4v";
        add(if gemma { "clip.vision.projector_type" } else { "clip.projector_type" }, self.kind.into());
        for (key, number) in &self.numbers {
            add(&format!("clip.vision.{key}"), (*number).into());
        }
        for (key, flags) in &self.flags {
            let array: ArrayBuf = flags.iter().copied().collect();
            add(&format!("clip.vision.{key}"), (&array).into());
        }
        let of_channels = if gemma { [0.0f32, 1.0] } else { [0.5, 0.5] };
        for (key, value) in ["image_mean", "image_std"].into_iter().zip(of_channels) {
            let array: ArrayBuf = [value; 3].into_iter().collect();
            add(&format!("clip.vision.{key}"), (&array).into());
        }
        for (name, (ne, _)) in &self.tensors {
            writer.tensor(name, ne, TensorType::F32).expect("a shape");
        }
        let mut data = writer.begin().expect("a sound header");
        for (name, (_, values)) in &self.tensors {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            data.write_tensor(name, &bytes).expect("as declared");
        }
        data.finish().expect("a disk with room");
        path.to_owned()
    }

    fn linear(&mut self, name: &str, n_in: u64, n_out: u64) {
        self.random(&format!("{name}.weight"), &[n_in, n_out]);
        self.random(&format!("{name}.bias"), &[n_out]);
    }

    /// Weights around 1.
    fn norm(&mut self, name: &str, n: u64, bias: bool) {
        self.random(&format!("{name}.weight"), &[n]);
        let (_, values) = self.tensors.get_mut(&format!("{name}.weight")).expect("just made");
        values.iter_mut().for_each(|x| *x += 1.0);
        if bias {
            self.random(&format!("{name}.bias"), &[n]);
        }
    }

    /// Random numbers around 0 that its name and place fix: small where they are summed over many.
    fn random(&mut self, name: &str, ne: &[u64]) {
        let n: u64 = ne.iter().product();
        let n_summed = if ne.len() == 1 { 16 } else { n / ne[ne.len() - 1] };
        let scale = 1.6 / (n_summed as f32).sqrt();
        let mut state =
            name.bytes().fold(1469598103934665603u64, |h, b| (h ^ u64::from(b)).wrapping_mul(1099511628211));
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
        };
        self.tensors.insert(name.to_owned(), (ne.to_vec(), (0..n).map(|_| next()).collect()));
    }
}
