//! Checkpoints of gpt-oss: experts in blocks of MXFP4 keep their bits, in the order of ggml, and experts in floats are turned; gates
//! and up matrices, which stand in turns, are parted.

use convert::Error;
use gguf::{Header, TensorType};
use serde_json::{Value, json};

use crate::families::{ATTENTION, N_EMBD, converted_with, globals, key, layer, numbers, same};
use crate::support::{Tensor, Tensors};

const N_EXPERT: usize = 3;
const N_FF: usize = 64;
const WIDTH: usize = N_EMBD as usize;

fn config() -> Value {
    crate::families::config(
        "GptOssForCausalLM",
        json!({"num_local_experts": N_EXPERT, "num_experts_per_tok": 2, "intermediate_size": N_FF, "sliding_window": 16,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "original_max_position_embeddings": 64, "truncate": false},
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}}),
    )
}

/// All but the matrices of experts.
fn others() -> Tensors {
    let mut tensors = globals();
    for il in 0..3 {
        layer(&mut tensors, il, ATTENTION);
        layer(
            &mut tensors,
            il,
            &[
                ("self_attn.q_proj.bias", &[48]),
                ("self_attn.k_proj.bias", &[24]),
                ("self_attn.v_proj.bias", &[24]),
                ("self_attn.o_proj.bias", &[N_EMBD]),
                ("self_attn.sinks", &[4]),
                ("mlp.router.weight", &[N_EXPERT as u64, N_EMBD]),
                ("mlp.router.bias", &[N_EXPERT as u64]),
                ("mlp.experts.gate_up_proj_bias", &[N_EXPERT as u64, 2 * N_FF as u64]),
                ("mlp.experts.down_proj_bias", &[N_EXPERT as u64, N_EMBD]),
            ],
        );
    }
    tensors
}

/// Numbers of the 4-bit floats that checkpoints have: 16 by their bits.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Blocks and powers of two for matrices of `n_rows` rows of `n` numbers, and the numbers.
fn packed(seed: usize, n_rows: usize, n: usize) -> (Tensor, Tensor, Vec<f32>) {
    let n_blocks = N_EXPERT * n_rows * n / 32;
    let bytes: Vec<u8> = (0..n_blocks * 16).map(|i| ((i + seed) * 73 % 256) as u8).collect();
    let powers: Vec<u8> = (0..n_blocks).map(|i| (120 + (i + seed) % 11) as u8).collect();
    let number = |i: usize| {
        let code = bytes[i / 2] >> (4 * (i % 2)) & 15;
        E2M1[usize::from(code)] * 2f32.powi(i32::from(powers[i / 32]) - 127)
    };
    let floats = (0..n_blocks * 32).map(number).collect();
    let [e, r, b] = [N_EXPERT, n_rows, n / 32].map(|n| n as u64);
    let of = |shape: &[u64], bytes| Tensor { dtype: "U8", shape: shape.to_vec(), bytes };
    (of(&[e, r, b, 16], bytes), of(&[e, r, b], powers), floats)
}

fn with_packed(il: u64, tensors: &mut Tensors) -> (Vec<f32>, Vec<f32>) {
    let (blocks, scales, both) = packed(il as usize, 2 * N_FF, WIDTH);
    tensors.insert(format!("model.layers.{il}.mlp.experts.gate_up_proj_blocks"), blocks);
    tensors.insert(format!("model.layers.{il}.mlp.experts.gate_up_proj_scales"), scales);
    let (blocks, scales, down) = packed(50 + il as usize, WIDTH, N_FF);
    tensors.insert(format!("model.layers.{il}.mlp.experts.down_proj_blocks"), blocks);
    tensors.insert(format!("model.layers.{il}.mlp.experts.down_proj_scales"), scales);
    (both, down)
}

/// Every second row of length `n`, from `first` on.
fn alternate(all: &[f32], n: usize, first: usize) -> Vec<f32> {
    all.chunks(n).skip(first).step_by(2).flatten().copied().collect()
}

#[test]
fn blocks_keep_their_numbers_whether_they_stay_packed_or_not() {
    let mut tensors = others();
    let experts: Vec<_> = (0..3).map(|il| with_packed(il, &mut tensors)).collect();
    let unpacked = converted_with(&config(), &tensors, true, |_| ()).expect("a whole checkpoint");
    let file = converted_with(&config(), &tensors, false, |_| ()).expect("a whole checkpoint");
    let header = Header::parse(&file).expect("a sound file");
    assert_eq!(key(&file, "general.file_type"), "U32(38)");
    assert_eq!(key(&unpacked, "general.file_type"), "U32(0)");
    for (il, (both, down)) in experts.iter().enumerate() {
        let expected = [("gate", alternate(both, WIDTH, 0)), ("up", alternate(both, WIDTH, 1)), ("down", down.clone())];
        for (part, expected) in expected {
            let name = format!("blk.{il}.ffn_{part}_exps.weight");
            assert!(numbers(&unpacked, &name).1 == expected, "{name} in floats");
            let t = header.tensor(&name).expect("it is there");
            assert_eq!(t.dtype, TensorType::MXFP4, "{name}");
            let mut found = vec![0.0; expected.len()];
            ggml::unpack(ggml::Dtype::from_id(t.dtype.id()).expect("a type"), &file[t.range()], &mut found)
                .expect("whole blocks");
            assert!(found == expected, "{name} in blocks");
        }
        let of = |name: &str| format!("model.layers.{il}.{name}");
        let bias = |first| alternate(&tensors[&of("mlp.experts.gate_up_proj_bias")].floats(), 1, first);
        assert_eq!(
            numbers(&file, &format!("blk.{il}.ffn_gate_exps.bias")),
            (vec![N_FF as u64, N_EXPERT as u64], bias(0))
        );
        assert_eq!(numbers(&file, &format!("blk.{il}.ffn_up_exps.bias")).1, bias(1));
        for (gguf, hf) in [
            ("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
            ("attn_sinks.weight", "self_attn.sinks"),
            ("ffn_gate_inp.bias", "mlp.router.bias"),
            ("post_attention_norm.weight", "post_attention_layernorm.weight"),
        ] {
            same(&file, &tensors, &[(&format!("blk.{il}.{gguf}"), &of(hf))]);
        }
    }
    for (name, value) in [
        ("attention.sliding_window", "U32(16)"),
        ("expert_count", "U32(3)"),
        ("expert_feed_forward_length", "U32(64)"),
        ("rope.scaling.factor", "F32(8.0)"),
        ("rope.scaling.yarn_beta_fast", "F32(32.0)"),
        ("rope.scaling.original_context_length", "U32(64)"),
    ] {
        assert_eq!(key(&file, &format!("gpt-oss.{name}")), value, "{name}");
    }
}

#[test]
fn experts_in_floats_are_turned() {
    let mut tensors = others();
    let (e, n_ff) = (N_EXPERT as u64, N_FF as u64);
    for il in 0..3 {
        layer(
            &mut tensors,
            il,
            &[("mlp.experts.gate_up_proj", &[e, N_EMBD, 2 * n_ff]), ("mlp.experts.down_proj", &[e, n_ff, N_EMBD])],
        );
    }
    let mut config = config();
    config.as_object_mut().expect("an object").remove("quantization_config");
    let file = converted_with(&config, &tensors, false, |_| ()).expect("a whole checkpoint");
    let both = tensors["model.layers.1.mlp.experts.gate_up_proj"].floats();
    let down = tensors["model.layers.1.mlp.experts.down_proj"].floats();
    for (part, first) in [("gate", 0), ("up", 1)] {
        let (ne, found) = numbers(&file, &format!("blk.1.ffn_{part}_exps.weight"));
        assert_eq!(ne, [N_EMBD, n_ff, e]);
        let at = |expert: usize, row: usize, i: usize| both[(expert * WIDTH + i) * 2 * N_FF + 2 * row + first];
        let all = (0..N_EXPERT).flat_map(|x| (0..N_FF).flat_map(move |row| (0..WIDTH).map(move |i| (x, row, i))));
        assert!(all.map(|(x, row, i)| at(x, row, i)).eq(found), "{part}");
    }
    let (ne, found) = numbers(&file, "blk.1.ffn_down_exps.weight");
    assert_eq!(ne, [n_ff, N_EMBD, e]);
    let all = (0..N_EXPERT).flat_map(|x| (0..WIDTH).flat_map(move |row| (0..N_FF).map(move |i| (x, row, i))));
    assert!(all.map(|(x, row, i)| down[(x * N_FF + i) * WIDTH + row]).eq(found), "down");
}

#[test]
fn blocks_without_scales_or_of_another_shape_are_refused_by_name() {
    let whole = || {
        let mut tensors = others();
        (0..3).for_each(|il| {
            with_packed(il, &mut tensors);
        });
        tensors
    };
    let refused = |tensors: &Tensors| -> String {
        let error: Error = converted_with(&config(), tensors, false, |_| ()).expect_err("not a whole checkpoint");
        error.to_string()
    };
    let mut tensors = whole();
    tensors.remove("model.layers.1.mlp.experts.down_proj_scales");
    let error = refused(&tensors);
    assert!(error.contains("blk.1.ffn_down_exps.weight") && error.contains("scales"), "{error}");
    let mut tensors = whole();
    let (blocks, _, _) = packed(0, WIDTH, 2 * N_FF);
    tensors.insert("model.layers.2.mlp.experts.down_proj_blocks".into(), blocks);
    let error = refused(&tensors);
    assert!(error.contains("blk.2.ffn_down_exps.weight") && error.contains("[3, 32, 4]"), "{error}");
}
