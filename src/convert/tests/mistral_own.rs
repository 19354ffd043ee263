//! Mistral's own checkpoints: `params.json`, `consolidated.safetensors`, `tekken.json` or numbered pieces. They become the file that
//! the same weights become in the form of transformers.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use convert::checkpoint::{Checkpoint, Options};
use convert::quantize::{FileType, Recipe};
use convert::stream::{Control, OnFailure};
use convert::{Error, Kind};
use gguf::Header;
use serde_json::{Value, json};

use crate::families::{ATTENTION, DENSE, N_EMBD, N_VOCAB, config, globals, key, layer, list, numbers};
use crate::pieces::{first, model};
use crate::support::{Tensor, Tensors, as_fp8, safetensors};

fn params(more: Value) -> Value {
    let mut params = json!({"dim": N_EMBD, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "head_dim": 12, "hidden_dim": 40,
        "vocab_size": N_VOCAB, "norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 4096, "moe": null});
    params.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    params
}

/// In the form of transformers.
fn theirs() -> Tensors {
    let mut tensors = globals();
    for il in 0..3 {
        layer(&mut tensors, il, ATTENTION);
        layer(&mut tensors, il, DENSE);
    }
    tensors
}

const NAMES: &[(&str, &str)] = &[
    ("model.embed_tokens.", "tok_embeddings."),
    ("lm_head.", "output."),
    ("model.", ""),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attention.wq"),
    ("self_attn.k_proj", "attention.wk"),
    ("self_attn.v_proj", "attention.wv"),
    ("self_attn.o_proj", "attention.wo"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("mlp.up_proj", "feed_forward.w3"),
];

/// The same in Mistral's own: other names, and of each head of 12 the first row beside the seventh, as in GGUF files.
fn own() -> Tensors {
    let turned = |t: &Tensor| {
        let each = t.bytes.len() / t.shape[0] as usize;
        let row = |i: usize| &t.bytes[(i / 12 * 12 + i % 2 * 6 + i % 12 / 2) * each..][..each];
        let bytes = (0..t.shape[0] as usize).flat_map(|i| row(i).to_vec()).collect();
        Tensor { bytes, ..t.clone() }
    };
    let one = |(name, t): (String, Tensor)| {
        let t = if name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight") { turned(&t) } else { t };
        (NAMES.iter().fold(name, |name, (from, to)| name.replace(from, to)), t)
    };
    theirs().into_iter().map(one).collect()
}

/// The bytes, and three tokens of several.
fn tekken() -> Value {
    let bytes = (0..=255u8).map(|byte| vec![byte]).chain([b" a".to_vec(), b"bc".to_vec(), b" abc".to_vec()]);
    let of = |(rank, bytes): (usize, Vec<u8>)| json!({"rank": rank, "token_bytes": STANDARD.encode(bytes), "token_str": null});
    let vocab: Vec<Value> = bytes.chain([b"never".to_vec()]).enumerate().map(of).collect();
    let (_, patterns, _) = text::split_rules().find(|(name, ..)| *name == "tekken").expect("a rule");
    json!({"config": {"pattern": patterns[0], "default_vocab_size": 24 + 259, "default_num_special_tokens": 24, "version": "v3"},
        "vocab": vocab})
}

/// A folder of these files, converted.
fn converted(files: &[(&str, Vec<u8>)]) -> Result<Vec<u8>, Error> {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).expect("written");
    }
    let mut model = Checkpoint::open(dir.path(), Options { name: Some("test"), ..Options::default() })?.model;
    let recipe = Recipe { file_type: FileType::F32, head: None, plain: false, imatrix: None, requantize: false };
    recipe.apply(&mut model)?;
    let out = dir.path().join("out.gguf");
    model.into_job(recipe.stamp())?.run(&out, 2, &Control::default(), OnFailure::Remove)?;
    Ok(std::fs::read(&out).expect("it was written"))
}

fn text_of(v: &Value) -> Vec<u8> {
    v.to_string().into_bytes()
}

fn of_params(params: &Value) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("params.json", text_of(params)),
        ("consolidated.safetensors", safetensors(&own())),
        ("tekken.json", text_of(&tekken())),
    ]
}

fn refused(params: &Value) -> String {
    converted(&of_params(params)).map(drop).expect_err("it cannot be converted").to_string()
}

/// All tensors, and the keys of an architecture.
fn contents(file: &[u8], arch: &str) -> (Vec<(String, Vec<f32>)>, Vec<String>) {
    let header = Header::parse(file).expect("a sound file");
    let mut tensors: Vec<_> = header.tensors().iter().map(|t| (t.name.to_owned(), numbers(file, t.name).1)).collect();
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    let keys = header.metadata().iter().filter(|(key, _)| key.starts_with(arch));
    (tensors, keys.map(|(key, value)| format!("{key} {value:?}")).collect())
}

#[test]
fn own_files_become_what_those_of_transformers_become() {
    let own = converted(&of_params(&params(json!({})))).expect("a whole checkpoint");
    let config = text_of(&config("MistralForCausalLM", json!({})));
    let folder =
        [("config.json", config), ("model.safetensors", safetensors(&theirs())), ("tekken.json", text_of(&tekken()))];
    let file = converted(&folder).expect("a whole checkpoint");
    assert_eq!(contents(&own, "llama."), contents(&file, "llama."));
    assert_eq!(key(&own, "general.architecture"), "Str(\"llama\")");
    for name in ["tokens", "token_type", "merges"] {
        let name = format!("tokenizer.ggml.{name}");
        assert_eq!(list(&own, &name), list(&file, &name), "{name}");
    }
}

#[test]
fn fields_of_longer_contexts_are_those_of_mistral_3() {
    let yarn = json!({"yarn": {"factor": 16.0, "original_max_position_embeddings": 64, "beta": 32.0, "alpha": 1.0,
            "apply_scale": false}, "llama_4_scaling": {"original_max_position_embeddings": 64, "beta": 0.1}});
    let own = converted(&of_params(&params(yarn.clone()))).expect("a whole checkpoint");
    let rope = json!({"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 64,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1});
    let config = text_of(&config("Ministral3ForCausalLM", json!({"rope_parameters": rope})));
    let folder =
        [("config.json", config), ("model.safetensors", safetensors(&theirs())), ("tekken.json", text_of(&tekken()))];
    let file = converted(&folder).expect("a whole checkpoint");
    assert_eq!(contents(&own, "mistral3."), contents(&file, "mistral3."));
    assert_eq!(key(&own, "mistral3.attention.temperature_scale"), "F32(0.1)");
    // A rotation that changes lengths; and the older architecture, which files without that scale have.
    let mut longer = yarn;
    longer["yarn"]["apply_scale"] = true.into();
    longer["llama_4_scaling"] = Value::Null;
    let own = converted(&of_params(&params(longer))).expect("a whole checkpoint");
    assert_eq!(key(&own, "llama.rope.scaling.yarn_log_multiplier"), "F32(0.0)");
}

#[test]
fn tekken_has_special_tokens_first_and_merges_by_rank() {
    let file = converted(&of_params(&params(json!({})))).expect("a whole checkpoint");
    assert_eq!(key(&file, "tokenizer.ggml.pre"), "Str(\"tekken\")");
    let tokens = list(&file, "tokenizer.ggml.tokens");
    let expected =
        ["\"<unk>\"", "\"[TOOL_CONTENT]\"", "\"<SPECIAL_23>\"", "\"\u{100}\"", "\"\u{120}abc\"", "\"[PAD283]\""];
    let places: Vec<_> = expected.iter().map(|t| tokens.find(t).unwrap_or_else(|| panic!("{t} of {tokens}"))).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(!tokens.contains("never"), "tokens behind the last are not the model's");
    let merges = list(&file, "tokenizer.ggml.merges");
    assert_eq!(merges, "[Str(\"\u{120} a\"), Str(\"b c\"), Str(\"\u{120}a bc\")]");
    for (name, id) in [("bos", 1), ("eos", 2), ("unknown", 0), ("padding", 11)] {
        assert_eq!(key(&file, &format!("tokenizer.ggml.{name}_token_id")), format!("U32({id})"), "{name}");
    }
    assert_eq!(key(&file, "tokenizer.ggml.add_bos_token"), "Bool(true)");
    assert_eq!(key(&file, "tokenizer.ggml.add_eos_token"), "Bool(false)");
    // A list of its own goes before the one that older files mean.
    let mut listed = tekken();
    listed["special_tokens"] = json!([{"rank": 1, "token_str": "<begin>", "is_control": true}]);
    let mut files = of_params(&params(json!({})));
    files[2].1 = text_of(&listed);
    let file = converted(&files).expect("a whole checkpoint");
    assert!(
        list(&file, "tokenizer.ggml.tokens")
            .starts_with("[Str(\"<SPECIAL_0>\"), Str(\"<begin>\"), Str(\"<SPECIAL_2>\")")
    );
    assert_eq!(key(&file, "tokenizer.ggml.bos_token_id"), "absent");
}

#[test]
fn a_damaged_tekken_is_refused() {
    let changed = |change: &dyn Fn(&mut Value)| {
        let (mut json, mut files) = (tekken(), of_params(&params(json!({}))));
        change(&mut json);
        files[2].1 = text_of(&json);
        let error = converted(&files).map(drop).expect_err("it cannot be converted").to_string();
        assert!(error.contains("tekken.json"), "{error}");
        error
    };
    for (change, words) in [
        (&(|j: &mut Value| j["config"]["pattern"] = ".".into()) as &dyn Fn(&mut Value), "no known split rule"),
        (&|j| j["config"]["default_vocab_size"] = 5000.into(), "vocab_size is 4096"),
        (&|j| j["config"]["default_num_special_tokens"] = 300.into(), "300 of them special"),
        (&|j| j["config"]["default_vocab_size"] = 400.into(), "376 expected"),
        (&|j| j["vocab"][9]["token_bytes"] = "?".into(), "rank 9"),
        (&|j| j["vocab"][9]["token_bytes"] = STANDARD.encode([7; 2000]).into(), "1 to 1024 bytes"),
        (&|j| j["vocab"][9]["rank"] = 8.into(), "two tokens have rank 8"),
        (&|j| j["vocab"][9]["rank"] = u64::MAX.into(), "are missing"),
        (&|j| j["vocab"][9]["token_bytes"] = STANDARD.encode("a").into(), "the same bytes"),
        (&|j| j["vocab"][9]["token_bytes"] = STANDARD.encode("xyz").into(), "made of no two others"),
        (&|j| j["special_tokens"] = json!([{"rank": 24, "token_str": "<s>"}]), "has rank 24, of 24"),
        (&|j| j["special_tokens"] = json!([{"rank": 1, "token_str": "a"}, {"rank": 1, "token_str": "b"}]), "rank 1"),
    ] {
        let error = changed(change);
        assert!(error.contains(words), "{error:?} does not say {words:?}");
    }
}

#[test]
fn numbered_pieces_are_a_vocabulary() {
    let pieces: &[(&str, f32, u8)] =
        &[("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("[INST]", 0.0, 3), ("ab", -1.0, 1)];
    let mut files = of_params(&params(json!({})));
    files[2] = ("tokenizer.model.v3", model(pieces, 2, true));
    files.push(("tokenizer.model.v1", model(&pieces[..4], 2, true)));
    let file = converted(&files).expect("a whole checkpoint");
    assert_eq!(key(&file, "tokenizer.ggml.model"), "Str(\"llama\")");
    assert_eq!(first(&file, "tokenizer.ggml.token_type", 6), "[I32(2), I32(3), I32(3), I32(3), I32(1), I32(5)]");
    for (name, value) in [("bos", 1), ("eos", 2), ("unknown", 0), ("padding", 2)] {
        assert_eq!(key(&file, &format!("tokenizer.ggml.{name}_token_id")), format!("U32({value})"), "{name}");
    }
    assert_eq!(key(&file, "tokenizer.ggml.add_bos_token"), "Bool(true)");
    files.truncate(2);
    let error = converted(&files).map(drop).expect_err("no vocabulary").to_string();
    assert!(error.contains("neither tekken.json nor tokenizer.model is there"), "{error}");
}

#[test]
fn scales_of_matrices_in_8_bit_floats_are_multiplied_in() {
    let (mut packed, mut plain) = (own(), own());
    for (name, rows) in [("layers.1.feed_forward.w2", 32), ("layers.0.attention.wq", 48)] {
        let t = own().remove(&format!("{name}.weight")).expect("it is there");
        let t = Tensor { dtype: "BF16", bytes: t.bytes.chunks_exact(4).flat_map(|b| [b[2], b[3]]).collect(), ..t };
        assert_eq!(t.shape[0], rows);
        let (fp8, scale, whole) = as_fp8(&t, (64, 64));
        packed.insert(format!("{name}.weight"), fp8);
        packed.insert(format!("{name}.qscale_weight"), scale);
        packed.insert(format!("{name}.qscale_act"), Tensor::f32(&[], [2.0]));
        plain.insert(format!("{name}.weight"), whole);
    }
    let mut files = of_params(&params(json!({"quantization": {"qformat_weight": "fp8_e4m3"}})));
    files[1].1 = safetensors(&packed);
    let file = converted(&files).expect("a whole checkpoint");
    files[1].1 = safetensors(&plain);
    let whole = converted(&files).expect("a whole checkpoint");
    assert_eq!(contents(&file, "llama."), contents(&whole, "llama."));
}

#[test]
fn of_both_forms_in_one_folder_one_is_read() {
    let mut both = of_params(&params(json!({"dim": 1})));
    both.push(("config.json", text_of(&config("MistralForCausalLM", json!({})))));
    both.push(("model.safetensors", safetensors(&theirs())));
    both.push(("consolidated.safetensors.index.json", b"{}".to_vec()));
    assert!(converted(&both).is_ok(), "that of transformers");
    // Where its weights are not there, the other.
    both.retain(|(name, _)| !["model.safetensors", "consolidated.safetensors.index.json"].contains(name));
    both[0].1 = text_of(&params(json!({})));
    assert!(converted(&both).is_ok(), "Mistral's own");
    both.retain(|(name, _)| *name != "params.json");
    let error = converted(&both).map(drop).expect_err("names that the class has not").to_string();
    assert!(error.contains("have no place in this model"), "{error}");
}

#[test]
fn what_such_a_folder_cannot_be_is_refused_with_its_own_words() {
    for (more, words) in [
        (json!({"dim": null}), "dim is missing"),
        (json!({"hidden_dim": null}), "the params.json of a Mistral model expected"),
        (json!({"moe": {"num_experts": 8}}), "moe: Mistral's own files with experts are not read"),
        (json!({"yarn": {"factor": 2.0}}), "yarn.original_max_position_embeddings is missing"),
        (json!({"quantization": {"qformat_weight": "nvfp4"}}), "fp8_e4m3 expected"),
        (json!({"n_layers": 4}), "tensors are missing"),
        (json!({"n_layers": 2}), "have no place in this model"),
        (json!({"n_heads": "four"}), "num_attention_heads"),
    ] {
        let error = refused(&params(more));
        assert!(error.contains(words), "{error:?} does not say {words:?}");
    }
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("params.json"), "{}").expect("written");
    assert_eq!(Kind::of(dir.path()).ok(), Some(Kind::Checkpoint));
    std::fs::write(dir.path().join("consolidated.safetensors"), safetensors(&own())).expect("written");
    let error =
        Kind::of_whole(Path::new(&dir.path().join("consolidated.safetensors"))).expect_err("a part").to_string();
    assert!(error.contains("give the folder"), "{error}");
}
