//! Checkpoints of Gemma 3: pieces of `tokenizer.model` with their scores and kinds, norms with their one, what files can say of
//! windows, and what published configurations leave out.

use std::path::Path;

use gguf::{Header, Value as GgufValue};
use serde_json::{Value, json};

use crate::families::{ATTENTION, DENSE, N_EMBD, N_VOCAB, add, converted_with, key, layer, numbers, same};
use crate::support::Tensors;

fn config(more: Value) -> Value {
    let mut config = crate::families::config(
        "Gemma3ForCausalLM",
        json!({"sliding_window": 16, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
    );
    config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    config
}

fn tensors(within: &str) -> Tensors {
    let mut tensors = Tensors::new();
    add(&mut tensors, &[("model.embed_tokens.weight", &[N_VOCAB, N_EMBD]), ("model.norm.weight", &[N_EMBD])]);
    for il in 0..3 {
        layer(&mut tensors, il, ATTENTION);
        layer(&mut tensors, il, DENSE);
        layer(
            &mut tensors,
            il,
            &[
                ("self_attn.q_norm.weight", &[12]),
                ("self_attn.k_norm.weight", &[12]),
                ("pre_feedforward_layernorm.weight", &[N_EMBD]),
                ("post_feedforward_layernorm.weight", &[N_EMBD]),
            ],
        );
    }
    tensors.into_iter().map(|(name, t)| (name.replacen("model.", within, 1), t)).collect()
}

/// A field of a protocol buffer that has bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat()
}

/// `tokenizer.model` of these pieces, of this kind (2: BPE), with a space before a text or without.
pub(crate) fn model(pieces: &[(&str, f32, u8)], kind: u8, space_first: bool) -> Vec<u8> {
    let one = |(text, score, kind): &(&str, f32, u8)| {
        let score = [&[2 << 3 | 5][..], &score.to_le_bytes()].concat();
        field(1, &[field(1, text.as_bytes()), score, vec![3 << 3, *kind]].concat())
    };
    let pieces: Vec<u8> = pieces.iter().flat_map(one).collect();
    [pieces, field(2, &[3 << 3, kind]), field(3, &[3 << 3, u8::from(space_first)])].concat()
}

/// `tokenizer.model` of these pieces, and what stands beside it.
fn write_pieces(folder: &Path, pieces: &[(&str, f32, u8)]) {
    std::fs::write(folder.join("tokenizer.model"), model(pieces, 2, false)).expect("written");
    let added = json!({"added_tokens_decoder": {
        "4": {"content": "<start_of_turn>", "special": true}, "5": {"content": "\u{2581}\u{2581}", "special": false},
        "6": {"content": "<unused7>", "special": false}},
        "bos_token": "<bos>", "add_bos_token": true, "add_eos_token": false});
    std::fs::write(folder.join("tokenizer_config.json"), added.to_string()).expect("written");
    let json = json!({"added_tokens": [{"id": 2, "content": "<bos>", "special": true}], "model": {"type": "BPE"}});
    std::fs::write(folder.join("tokenizer.json"), json.to_string()).expect("written");
}

const PIECES: &[(&str, f32, u8)] = &[
    ("<pad>", 0.0, 3),
    ("<unk>", 0.0, 2),
    ("<bos>", 0.0, 3),
    ("<0x0A>", 0.0, 6),
    ("a", -1.0, 1),
    ("b", -2.0, 4),
    ("c", -3.0, 5),
    ("\u{2581}the", -4.5, 1),
];

fn converted(config: &Value, tensors: &Tensors) -> Result<Vec<u8>, convert::Error> {
    converted_with(config, tensors, false, |folder| write_pieces(folder, PIECES))
}

/// The first entries of a list.
pub(crate) fn first(file: &[u8], name: &str, n: usize) -> String {
    let header = Header::parse(file).expect("a sound file");
    let Some(GgufValue::Array(array)) = header.metadata().get(name) else { panic!("{name} is no list") };
    assert_eq!(array.iter().count() as u64, N_VOCAB, "{name}");
    format!("{:?}", array.iter().take(n).collect::<Vec<_>>())
}

#[test]
fn pieces_become_tokens_with_scores_and_kinds() {
    let file = converted(&config(json!({})), &tensors("model.")).expect("a whole checkpoint");
    assert_eq!(key(&file, "tokenizer.ggml.model"), "Str(\"llama\")");
    assert_eq!(
        first(&file, "tokenizer.ggml.scores", 9),
        "[F32(0.0), F32(0.0), F32(0.0), F32(0.0), F32(-1000.0), F32(-1000.0), F32(-1000.0), F32(-4.5), F32(-10000.0)]"
    );
    assert_eq!(
        first(&file, "tokenizer.ggml.token_type", 9),
        "[I32(3), I32(2), I32(3), I32(6), I32(3), I32(4), I32(3), I32(1), I32(5)]"
    );
    let tokens = first(&file, "tokenizer.ggml.tokens", 9);
    assert!(tokens.contains("<start_of_turn>") && tokens.contains("\"  \"") && tokens.contains("[PAD8]"), "{tokens}");
    assert_eq!(key(&file, "tokenizer.ggml.add_space_prefix"), "Bool(false)");
    assert_eq!(key(&file, "tokenizer.ggml.bos_token_id"), "U32(2)");
    assert_eq!(key(&file, "tokenizer.ggml.add_bos_token"), "Bool(true)");
    assert_eq!(key(&file, "tokenizer.ggml.merges"), "absent");
    let without =
        converted_with(&config(json!({})), &tensors("model."), false, |_| ()).expect_err("no pieces").to_string();
    assert!(without.contains("tokenizer.model"), "{without}");
}

#[test]
fn merges_stand_in_for_pieces() {
    let file = converted_with(&config(json!({})), &tensors("model."), false, |folder| {
        let json = json!({
            "added_tokens": [{"id": 2, "content": "<bos>", "special": true}, {"id": 5, "content": "\u{2581}\u{2581}", "special": false}],
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
            "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "merges": ["\u{2581} a"],
                "vocab": {"<pad>": 0, "<unk>": 1, "<bos>": 2, "<0x0A>": 3, "\u{2581}a": 4, "a": 6, "\u{2581}": 7}}});
        std::fs::write(folder.join("tokenizer.json"), json.to_string()).expect("written");
    })
    .expect("a whole checkpoint");
    assert_eq!(
        first(&file, "tokenizer.ggml.token_type", 9),
        "[I32(1), I32(2), I32(3), I32(6), I32(1), I32(4), I32(1), I32(1), I32(5)]"
    );
    assert_eq!(first(&file, "tokenizer.ggml.scores", 5), "[F32(-1.0), F32(-1.0), F32(-1000.0), F32(-1.0), F32(0.0)]");
    assert_eq!(key(&file, "tokenizer.ggml.add_space_prefix"), "Bool(false)");
}

#[test]
fn norms_get_their_one_and_windows_their_keys_in_both_classes() {
    let alone = tensors("model.");
    let file = converted(&config(json!({})), &alone).expect("a whole checkpoint");
    let one_more: Vec<f32> = alone["model.layers.1.self_attn.q_norm.weight"].floats().iter().map(|x| x + 1.0).collect();
    assert_eq!(numbers(&file, "blk.1.attn_q_norm.weight").1, one_more);
    same(&file, &alone, &[("blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight")]);
    for (name, value) in [
        ("attention.sliding_window", "U32(16)"),
        ("attention.key_length", "U32(12)"),
        ("rope.freq_base", "F32(1000000.0)"),
        ("rope.freq_base_swa", "F32(10000.0)"),
        ("rope.scaling.type", "Str(\"linear\")"),
        ("rope.scaling.factor", "F32(8.0)"),
    ] {
        assert_eq!(key(&file, &format!("gemma3.{name}")), value, "{name}");
    }
    // As published: the text model within one that sees, and most sizes left to the class.
    let text = json!({"hidden_size": N_EMBD, "intermediate_size": 40, "num_hidden_layers": 3, "vocab_size": N_VOCAB,
        "head_dim": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 16,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    let seeing = json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text});
    let mut within = tensors("language_model.model.");
    add(&mut within, &[("vision_tower.vision_model.post_layernorm.weight", &[8])]);
    let file = converted(&seeing, &within).expect("a whole checkpoint");
    for (name, value) in [
        ("context_length", "U32(131072)"),
        ("attention.layer_norm_rms_epsilon", "F32(1e-6)"),
        ("rope.freq_base", "F32(1000000.0)"),
    ] {
        assert_eq!(key(&file, &format!("gemma3.{name}")), value, "{name}");
    }
}

#[test]
fn windows_that_no_file_can_tell_are_refused() {
    let kinds = |kinds: [&str; 3]| json!({"layer_types": kinds.map(|kind| format!("{kind}_attention"))});
    let with = |more: Value| converted(&config(more), &tensors("model."));
    assert!(with(kinds(["sliding"; 3])).is_ok());
    let none = with(kinds(["full"; 3])).expect("no windows");
    assert_eq!(key(&none, "gemma3.attention.sliding_window"), "absent");
    for more in [kinds(["sliding", "full", "sliding"]), json!({"sliding_window_pattern": 3})] {
        let error = with(more).expect_err("a pattern of its own").to_string();
        assert!(error.contains("window"), "{error}");
    }
}
