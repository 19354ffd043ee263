//! A NextN head in a file of its own drafts as it does inside the model's file, and a head of another model is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{EngineConfig, Timings};
use gguf::{Header, Value, Writer};
use model::{LoadOptions, Model, NextNHead};
use speculate::{Depth, Mode, SpecConfig, proposer};
use test_support::{config, generate, greedy_exactly, spawn};
use text::TokenId;

fn pocket(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name)
}

/// What becomes of a key: its name and value in the copy.
type Change<'c> = &'c dyn for<'v> Fn(&str, Value<'v>) -> Option<(String, Value<'v>)>;

/// A copy of a file with the tensors that `keep` wants, with its keys as `change` makes them.
fn copy(bytes: &[u8], to: &Path, keep: &dyn Fn(&str) -> bool, arch: Option<&str>, change: Change<'_>) {
    let header = Header::parse(bytes).expect("a sound file");
    let mut writer = Writer::create(to).expect("a temporary file");
    for (key, value) in header.metadata().iter() {
        match (key, arch) {
            ("general.architecture", Some(arch)) => writer.add(key, arch).expect("a sound key"),
            _ => {
                if let Some((key, value)) = change(key, *value) {
                    writer.add(&key, value).expect("a sound key");
                }
            }
        }
    }
    let kept: Vec<_> = header.tensors().iter().filter(|t| keep(t.name)).collect();
    for t in &kept {
        writer.tensor(t.name, &t.ne, t.dtype).expect("a sound tensor");
    }
    let mut data = writer.begin().expect("a sound header");
    for t in &kept {
        data.write_tensor(t.name, &bytes[t.range()]).expect("its bytes");
    }
    data.finish().expect("a file");
}

fn block_count(bytes: &[u8], arch: &str) -> u32 {
    let header = Header::parse(bytes).expect("a sound file");
    header.metadata().require_u32(&format!("{arch}.block_count")).expect("a count")
}

/// The greedy answer to a few words, and how many drafts were made and kept.
fn answer(model: &Arc<Model>) -> (Vec<TokenId>, Timings) {
    let config = config(256, 1);
    let spec = SpecConfig { mode: Mode::NextN, depth: Depth::Fixed(3), ..SpecConfig::default() };
    let drafts = proposer(model, &config, spec).expect("a head to draft with");
    let engine = spawn(model, config, drafts);
    let text = "<|im_start|>user\nWhat is 17 + 25?<|im_end|>\n<|im_start|>assistant\n<think>\n";
    let completion = generate(&engine, &model.vocab().encode(text, text::Special::Parse), greedy_exactly(48));
    let timings = completion.timings().clone();
    (completion.tokens, timings)
}

fn with_head(model: &Path, head: &Path) -> Result<Arc<Model>, String> {
    let options = LoadOptions { head: Some(head.to_owned()), ..LoadOptions::default() };
    Model::open(model, &options).map_err(|error| error.to_string())
}

#[test]
fn a_head_of_its_own_file_drafts_as_inside_the_models_in_every_layout() {
    for (name, arch) in [("pocket-q4_k_m.gguf", "qwen35"), ("pocket-moe-q8_0.gguf", "qwen35moe")] {
        let whole = pocket(name);
        let bytes = std::fs::read(&whole).expect("a model of the repository");
        let block = format!("blk.{}.", block_count(&bytes, arch) - 1);
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str| dir.path().join(name);
        let own = |name: &str| name.starts_with(&block);
        let shared =
            |name: &str| own(name) || ["token_embd.weight", "output_norm.weight", "output.weight"].contains(&name);
        let renamed = format!("{arch}_mtp");
        let rename = |key: &str| key.replace(&format!("{arch}."), &format!("{renamed}."));
        copy(&bytes, &file("upstream"), &shared, None, &|key, value| Some((key.to_owned(), value)));
        copy(&bytes, &file("legacy"), &shared, Some(&renamed), &|key, value| Some((rename(key), value)));
        copy(&bytes, &file("slim"), &own, None, &|key, value| {
            (!key.starts_with("tokenizer.")).then(|| (key.to_owned(), value))
        });
        // A target that promises a head and lacks it.
        copy(&bytes, &file("promise"), &|name| !own(name), None, &|key, value| Some((key.to_owned(), value)));

        let plain = Model::open(&whole, &LoadOptions::default()).expect("a sound model");
        let (tokens, timings) = answer(&plain);
        assert!(timings.accepted > 10, "{name}: {timings:?}");
        for (target, head) in [
            (&whole, whole.clone()),
            (&whole, file("upstream")),
            (&file("promise"), whole.clone()),
            (&file("promise"), file("upstream")),
            (&file("promise"), file("legacy")),
            (&file("promise"), file("slim")),
        ] {
            let model = with_head(target, &head).unwrap_or_else(|e| panic!("{}: {e}", head.display()));
            assert_eq!(*model.nextn(), NextNHead::Bound);
            let (got, t) = answer(&model);
            let counts = (t.drafted, t.accepted, t.acceptance_by_depth());
            let expected = (timings.drafted, timings.accepted, timings.acceptance_by_depth());
            assert_eq!((got, counts), (tokens.clone(), expected), "{name} with {}", head.display());
        }
        let alone = Model::open(&file("promise"), &LoadOptions::default()).expect("it runs without its head");
        let config = EngineConfig::default();
        assert!(proposer(&alone, &config, SpecConfig::default()).expect("plain decoding").is_none());
        let asked = SpecConfig { mode: Mode::NextN, ..SpecConfig::default() };
        let error = proposer(&alone, &config, asked).err().expect("there is no head").to_string();
        assert!(error.contains(&block) && error.contains("graft"), "{error}");
    }
}

#[test]
fn a_slim_head_belongs_to_the_model_whose_vocabulary_it_names() {
    use convert::Source;
    use convert::heads::{Extract, Layout, WeightType, extract};
    let whole = pocket("pocket-q4_k_m.gguf");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| dir.path().join(name);
    let source = Source::open(&whole).expect("a sound file");
    let new = extract(source, Extract { layout: Layout::Slim, dtype: WeightType::Keep }).expect("it has a head");
    new.write(&file("slim"), 1, &Default::default()).expect("room for a head");
    let bytes = std::fs::read(file("slim")).expect("a slim head");
    let model = with_head(&whole, &file("slim")).expect("cut from this model");
    assert_eq!(*model.nextn(), NextNHead::Bound);

    // The same sizes and other words, another number of words, and heads that do not say.
    let all = |_: &str| true;
    let says = |key: &'static str, value: Option<Value<'static>>, words: &[&str]| {
        copy(&bytes, &file("other"), &all, None, &|k, v| match (k == key, value) {
            (true, None) => None,
            (true, Some(value)) => Some((k.to_owned(), value)),
            (false, _) => Some((k.to_owned(), v)),
        });
        let got = with_head(&whole, &file("other"));
        match words {
            [] => assert!(got.is_ok(), "without {key}: {got:?}"),
            _ => {
                let error = got.expect_err("it does not belong");
                assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
            }
        }
    };
    let other = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    says("nextn.target.tokenizer", Some(other.into()), &["another vocabulary", "sha256:0123456789ab"]);
    says("nextn.target.vocab_size", Some(Value::U32(8000)), &["8000 tokens", "8192"]);
    says("nextn.target.vocab_size", Some("many".into()), &["nextn.target.vocab_size"]);
    says("nextn.target.tokenizer", None, &[]);
    says("nextn.target.vocab_size", None, &[]);
}

#[test]
fn a_head_that_does_not_belong_to_the_model_is_refused_with_the_reason() {
    let (dense, moe) = (pocket("pocket-q4_k_m.gguf"), pocket("pocket-moe-q8_0.gguf"));
    let bytes = std::fs::read(&dense).expect("a model of the repository");
    let n_block = block_count(&bytes, "qwen35");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| dir.path().join(name);
    let all = |_: &str| true;
    let says = |head: &Path, words: &[&str]| {
        let error = with_head(&dense, head).expect_err("it does not belong");
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    };
    says(&moe, &["qwen35moe", "`qwen35`"]);

    let without = |name: &str| !name.starts_with(&format!("blk.{}.", n_block - 1));
    copy(&bytes, &file("trunk"), &without, None, &|key, value| Some((key.to_owned(), value)));
    says(&file("trunk"), &["it lacks", "nextn.eh_proj"]);

    copy(&bytes, &file("none"), &all, None, &|key, value| {
        (!key.ends_with("nextn_predict_layers")).then(|| (key.to_owned(), value))
    });
    says(&file("none"), &["nextn_predict_layers is 0"]);

    // One layer more or less than the model: a head of a larger sister.
    copy(&bytes, &file("deeper"), &all, None, &|key, value| match key {
        "qwen35.block_count" => Some((key.to_owned(), Value::U32(n_block + 1))),
        _ => Some((key.to_owned(), value)),
    });
    says(&file("deeper"), &["layers before the head"]);

    copy(&bytes, &file("wider"), &all, None, &|key, value| match key {
        "qwen35.embedding_length" => Some((key.to_owned(), Value::U32(64))),
        _ => Some((key.to_owned(), value)),
    });
    says(&file("wider"), &["embedding_length: 64 there"]);

    // The same number of words, one of them another.
    let mut other = bytes.clone();
    let place = other.windows(12).position(|w| w == b"<|im_start|>").expect("a token of every chat model");
    other[place + 2..place + 4].copy_from_slice(b"xx");
    std::fs::write(file("words"), &other).expect("a temporary file");
    says(&file("words"), &["its token", "<|xx_start|>", "<|im_start|>"]);
}
