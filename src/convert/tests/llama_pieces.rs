//! Checkpoints of Llama, Mistral and Phi-3 with SentencePiece vocabularies: which of a folder's files tells what of a token, and
//! which vocabularies are refused.

use std::path::Path;

use convert::checkpoint::{Checkpoint, Options};
use convert::{Error, Key};
use serde_json::{Value, json};

use crate::families::{ATTENTION, DENSE, N_EMBD, N_VOCAB, config, converted_with, globals, key, layer};
use crate::pieces::{first, model};
use crate::support::{Tensors, write_folder};

const PIECES: &[(&str, f32, u8)] = &[
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    ("<0x0A>", 0.0, 6),
    ("ab", 0.0, 1),
    ("\u{2581}ab", -1.0, 1),
    ("a", -2.0, 1),
    ("b", -3.0, 1),
    ("\u{2581}", -4.0, 1),
];

/// The file of merges for the same pieces.
fn merges() -> Value {
    let vocab: Value = PIECES.iter().zip(0..).map(|((text, ..), id)| ((*text).to_owned(), Value::from(id))).collect();
    json!({
        "added_tokens": [
            {"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true},
            {"id": 2, "content": "</s>", "special": true}, {"id": 9, "content": "<|end|>", "special": true},
            {"id": 10, "content": "[a]\u{2581}", "special": false}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"}]},
        "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": vocab,
            "merges": [["a", "b"], "\u{2581} ab", "\u{2581}a b"]},
    })
}

fn tensors(phi: bool) -> Tensors {
    let mut tensors = globals();
    for il in 0..3 {
        layer(&mut tensors, il, &ATTENTION[..2]);
        if phi {
            layer(
                &mut tensors,
                il,
                &[
                    ("self_attn.qkv_proj.weight", &[96, N_EMBD]),
                    ("self_attn.o_proj.weight", &[N_EMBD, 32]),
                    ("mlp.gate_up_proj.weight", &[80, N_EMBD]),
                    ("mlp.down_proj.weight", &[N_EMBD, 40]),
                ],
            );
        } else {
            layer(&mut tensors, il, &ATTENTION[2..]);
            layer(&mut tensors, il, DENSE);
        }
    }
    tensors
}

/// A folder of `class` with these tokenizer files and no others.
fn converted(class: &str, files: &[(&str, &[u8])]) -> Result<Vec<u8>, Error> {
    let phi = class == "Phi3ForCausalLM";
    let more = json!({"head_dim": null, "num_key_value_heads": 4, "sliding_window": 32});
    let config = config(class, if phi { more } else { json!({}) });
    converted_with(&config, &tensors(phi), false, |folder: &Path| {
        for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
            std::fs::remove_file(folder.join(name)).expect("it was there");
        }
        for (name, bytes) in files {
            std::fs::write(folder.join(name), bytes).expect("written");
        }
    })
}

fn refused(class: &str, files: &[(&str, &[u8])]) -> String {
    converted(class, files).map(drop).expect_err("it cannot be converted").to_string()
}

fn text(v: &Value) -> Vec<u8> {
    v.to_string().into_bytes()
}

#[test]
fn pieces_alone_are_a_vocabulary_of_llama_mistral_and_phi() {
    for class in ["LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM"] {
        let file = converted(class, &[("tokenizer.model", &model(PIECES, 2, true))]).expect("a whole checkpoint");
        assert_eq!(key(&file, "tokenizer.ggml.model"), "Str(\"llama\")", "{class}");
        assert_eq!(
            first(&file, "tokenizer.ggml.scores", 6),
            "[F32(0.0), F32(0.0), F32(0.0), F32(0.0), F32(0.0), F32(-1.0)]"
        );
        let kinds = "[I32(2), I32(3), I32(3), I32(6), I32(1), I32(1), I32(1), I32(1), I32(1), I32(5)]";
        assert_eq!(first(&file, "tokenizer.ggml.token_type", 10), kinds);
        assert_eq!(key(&file, "tokenizer.ggml.add_space_prefix"), "absent", "a space goes before a text, as always");
    }
    let file = converted("LlamaForCausalLM", &[("tokenizer.model", &model(PIECES, 2, false))]).expect("a checkpoint");
    assert_eq!(key(&file, "tokenizer.ggml.add_space_prefix"), "Bool(false)");
    let told = json!({"add_prefix_space": true, "add_bos_token": true});
    let files: &[(&str, &[u8])] =
        &[("tokenizer.model", &model(PIECES, 2, false)), ("tokenizer_config.json", &text(&told))];
    let file = converted("LlamaForCausalLM", files).expect("a checkpoint");
    assert_eq!(key(&file, "tokenizer.ggml.add_space_prefix"), "Bool(true)");
    assert_eq!(key(&file, "tokenizer.ggml.add_bos_token"), "Bool(true)");
}

#[test]
fn what_no_file_of_a_checkpoint_tells_is_known_of_some_llamas() {
    // Code Llama's tokens around a gap.
    let infill = [("\u{2581}<PRE>", -5.0, 1), ("\u{2581}<MID>", -6.0, 1), ("\u{2581}<EOT>", -7.0, 1)];
    let file = converted("LlamaForCausalLM", &[("tokenizer.model", &model(&[PIECES, &infill].concat(), 2, true))]);
    let file = file.expect("a whole checkpoint");
    for (name, value) in [("prefix", "U32(9)"), ("middle", "U32(10)"), ("eot", "U32(11)"), ("suffix", "absent")] {
        assert_eq!(key(&file, &format!("tokenizer.ggml.{name}_token_id")), value, "{name}");
    }
    // Small ones without BOS, by the size of their vocabulary.
    let n_vocab = 49152;
    let mut tensors = tensors(false);
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        tensors.insert(name.to_owned(), crate::families::tensor(name, &[n_vocab, N_EMBD]));
    }
    let config = config("LlamaForCausalLM", json!({"vocab_size": n_vocab}));
    let file = converted_with(&config, &tensors, false, |_| ()).expect("a whole checkpoint");
    assert_eq!(key(&file, "tokenizer.ggml.add_bos_token"), "Bool(false)");
}

#[test]
fn merges_become_scores_that_take_the_same_steps() {
    let file = converted("LlamaForCausalLM", &[("tokenizer.json", &text(&merges()))]).expect("a whole checkpoint");
    // Of single characters no merge tells.
    assert_eq!(
        first(&file, "tokenizer.ggml.scores", 9),
        "[F32(-1000.0), F32(-1000.0), F32(-1000.0), F32(-3.0), F32(0.0), F32(-1.0), F32(-3.0), F32(-3.0), F32(-3.0)]"
    );
    let kinds = "[I32(3), I32(3), I32(3), I32(6), I32(1), I32(1), I32(1), I32(1), I32(1), I32(3), I32(4), I32(5)]";
    assert_eq!(first(&file, "tokenizer.ggml.token_type", 12), kinds);
    let tokens = first(&file, "tokenizer.ggml.tokens", 11);
    assert!(tokens.contains("\"[a] \"") && tokens.contains("<|end|>"), "{tokens}");
    assert_eq!(key(&file, "tokenizer.ggml.merges"), "absent");
    assert_eq!(key(&file, "tokenizer.ggml.add_space_prefix"), "absent");
    let mut without = merges();
    without["normalizer"] = Value::Null;
    without["pre_tokenizer"] = json!({"type": "Metaspace", "prepend_scheme": "never"});
    let file = converted("LlamaForCausalLM", &[("tokenizer.json", &text(&without))]).expect("a whole checkpoint");
    assert_eq!(key(&file, "tokenizer.ggml.add_space_prefix"), "Bool(false)");
}

#[test]
fn what_stands_beside_pieces_goes_over_them() {
    let config = json!({"added_tokens_decoder": {
        "2": {"content": "</s>", "special": false}, "9": {"content": "<|end|>", "special": false},
        "10": {"content": "[a]\u{2581}", "special": false}, "5000": {"content": "[no row]", "special": true}}});
    let more = json!({"<x>": 11, "</s>": 2, "[no row either]": 4096});
    let beside = json!({"added_tokens": [{"id": 6, "content": "a", "special": true}, {"id": 12, "content": "<y>", "special": true}],
        "model": {"type": "BPE", "byte_fallback": true}});
    let files: &[(&str, &[u8])] = &[
        ("tokenizer.model", &model(PIECES, 2, true)),
        ("tokenizer_config.json", &text(&config)),
        ("added_tokens.json", &text(&more)),
        ("tokenizer.json", &text(&beside)),
    ];
    let kinds = |file: &[u8]| first(file, "tokenizer.ggml.token_type", 14).replace("I32", "");
    let llama = converted("LlamaForCausalLM", files).expect("a whole checkpoint");
    assert_eq!(kinds(&llama), "[(2), (3), (4), (6), (1), (1), (1), (1), (1), (3), (4), (4), (3), (5)]");
    assert!(first(&llama, "tokenizer.ggml.tokens", 11).contains("\"[a] \""));
    // Phi-3's are as each file says, the last one last.
    let phi = converted("Phi3ForCausalLM", files).expect("a whole checkpoint");
    assert_eq!(kinds(&phi), "[(2), (3), (4), (6), (1), (1), (3), (1), (1), (4), (4), (4), (3), (5)]");
    assert!(first(&phi, "tokenizer.ggml.tokens", 11).contains("\"[a]\u{2581}\""));
}

#[test]
fn phi_is_called_so_that_its_tokens_take_the_white_space_after_them() {
    let named = |folder: &str, rstrip: bool| {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(folder);
        std::fs::create_dir(&path).expect("a folder");
        let config = config("Phi3ForCausalLM", json!({"head_dim": null, "num_key_value_heads": 4}));
        write_folder(&path, &config, &[tensors(true)]);
        std::fs::write(path.join("tokenizer.model"), model(PIECES, 2, true)).expect("written");
        let json = json!({"added_tokens": [{"id": 9, "content": "<|end|>", "special": true, "rstrip": rstrip}],
            "model": {"type": "BPE", "byte_fallback": true}});
        std::fs::write(path.join("tokenizer.json"), json.to_string()).expect("written");
        let model = Checkpoint::open(&path, Options::default()).expect("a whole checkpoint").model;
        match model.key("general.name") {
            Some(Key::Str(name)) => String::from_utf8(name.clone()).expect("words"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(named("Phi-3-mini-4k", true), "Phi-3 Mini 4k");
    assert_eq!(named("my-phi3", true), "My Phi3");
    assert_eq!(named("pocket", true), "Pocket (Phi-3)");
    assert_eq!(named("Phi-3-mini-4k", false), "Phi 3 Mini 4k");
}

#[test]
fn a_byte_level_vocabulary_goes_before_pieces_of_another_kind() {
    // As a folder of Llama 3 that has its tiktoken file too.
    let config = config("LlamaForCausalLM", json!({}));
    let file = converted_with(&config, &tensors(false), false, |folder| {
        std::fs::write(folder.join("tokenizer.model"), "IQ== 0\nIg== 1\n").expect("written");
    });
    assert_eq!(key(&file.expect("a whole checkpoint"), "tokenizer.ggml.model"), "Str(\"gpt2\")");
}

#[test]
fn vocabularies_that_no_file_can_have_are_refused() {
    let whole = model(PIECES, 2, true);
    let error = refused("LlamaForCausalLM", &[]);
    assert!(error.contains("neither tokenizer.json nor tokenizer.model"), "{error}");
    for n in [0, 1, 7, 40, whole.len() - 9] {
        let error = refused("MistralForCausalLM", &[("tokenizer.model", &whole[..n])]);
        assert!(error.contains("tokenizer.model") && error.contains("download"), "{n}: {error}");
    }
    let error = refused("LlamaForCausalLM", &[("tokenizer.model", &model(PIECES, 1, true))]);
    assert!(error.contains("no BPE model"), "{error}");
    let error = refused("Phi3ForCausalLM", &[("tokenizer.model", b"IQ== 0\n")]);
    assert!(error.contains("is no SentencePiece model"), "{error}");
    let error = refused("LlamaForCausalLM", &[("tokenizer.json", br#"{"model": {"type": "Unigram", "vocab": []}}"#)]);
    assert!(error.contains("Unigram") && error.contains("BPE expected"), "{error}");
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut json = merges();
        change(&mut json["model"]);
        refused("LlamaForCausalLM", &[("tokenizer.json", &text(&json))])
    };
    // A pair that is no merge would be one by its score.
    let error = changed(&|model| {
        model["vocab"]["\u{2581}a"] = json!(11);
        model["merges"] = json!([["a", "b"], ["\u{2581}", "ab"]]);
    });
    assert!(error.contains("is no merge") && error.contains("tokenizer.model is missing"), "{error}");
    let error = changed(&|model| model["merges"] = json!(["ab"]));
    assert!(error.contains("merge 0"), "{error}");
    let error = changed(&|model| model["vocab"]["b"] = json!(6));
    assert!(error.contains("two tokens have id 6"), "{error}");
    let last = u64::from(u32::MAX);
    assert!(last > N_VOCAB, "an id without a row");
    let mut json = merges();
    json["model"]["vocab"]["b"] = json!(last);
    assert!(converted("LlamaForCausalLM", &[("tokenizer.json", &text(&json))]).is_ok(), "it is passed over");
}
