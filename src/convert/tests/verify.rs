//! What `verify` says of checkpoints, heads alone and model files: sound ones are sound, each kind of damage is told.

use std::path::{Path, PathBuf};

use crate::support::{Oracle, Tensor, Tensors, as_fp8, safetensors, unpacked, with_single_experts, write_folder};
use convert::check::{Options, Report, Verdict, verify};
use gguf::Header;
use serde_json::{Value, json};

fn report(path: &Path) -> Result<Report, String> {
    verify(path, Options { values: true, n_threads: 2 }, &Default::default()).map_err(|e| e.to_string())
}

fn of_folder(config: &Value, shards: &[Tensors]) -> Report {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), config, shards);
    report(dir.path()).unwrap()
}

/// All that stands in a report.
fn words(report: &Report) -> String {
    let all: Vec<&str> = report.damage.iter().chain(&report.notes).map(String::as_str).collect();
    all.join("\n")
}

/// Changes the numbers of an F32 tensor.
fn add(tensors: &mut Tensors, name: &str, x: f32) {
    let t = tensors.get_mut(name).unwrap_or_else(|| panic!("no {name}"));
    *t = Tensor::f32(&t.shape.clone(), t.floats().into_iter().map(|y| y + x));
}

#[test]
fn sound_checkpoints_are_sound_however_they_are_stored() {
    for (name, n_tensors, n_head) in [("dense-a", 123, 15), ("moe-a", 169, 20)] {
        let oracle = Oracle::open(name);
        let (even, odd): (Vec<_>, Vec<_>) =
            oracle.tensors.clone().into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
        let half = |list: Vec<(usize, (String, Tensor))>| list.into_iter().map(|(_, t)| t).collect::<Tensors>();
        for (what, shards) in [
            ("one file", vec![oracle.tensors.clone()]),
            ("single experts", vec![with_single_experts(&oracle.tensors)]),
            ("shards", vec![half(even), half(odd)]),
        ] {
            let found = of_folder(&oracle.config, &shards);
            assert_eq!(found.verdict, Verdict::Complete, "{name}, {what}: {}", words(&found));
            let gate = found.gate.unwrap();
            assert_eq!((gate.n_present, gate.n_expected), (n_tensors, n_tensors), "{name}, {what}");
            assert_eq!((gate.n_head_present, gate.n_head_expected), (n_head, n_head), "{name}, {what}");
            assert!(found.bytes_read > 1 << 20);
        }
        // The same checkpoint without its head: sound, and a promise that is not kept.
        let main_model: Tensors = oracle.tensors.clone().into_iter().filter(|(n, _)| !n.starts_with("mtp.")).collect();
        let found = of_folder(&oracle.config, &[main_model]);
        assert_eq!(found.verdict, Verdict::NoHead, "{name}: {}", words(&found));
        assert!(words(&found).contains("config.json promises a NextN head"), "{}", words(&found));
    }
}

#[test]
fn weights_of_8_bits_are_judged_with_their_scales() {
    let oracle = Oracle::open("moe-a");
    let mut packed = Tensors::new();
    for (name, t) in with_single_experts(&oracle.tensors) {
        if t.dtype == "BF16" && name.contains("_proj") && t.shape.len() == 2 {
            let (weight, scales, _) = as_fp8(&t, (128, 128));
            packed.insert(format!("{name}_scale_inv"), scales);
            packed.insert(name, weight);
        } else {
            packed.insert(name, t);
        }
    }
    let mut config = oracle.config.clone();
    config["quantization_config"] = json!({"quant_method": "fp8", "fmt": "e4m3"});
    let found = of_folder(&config, &[packed.clone()]);
    assert_eq!(found.verdict, Verdict::Complete, "{}", words(&found));
    let scale = packed.keys().find(|k| k.ends_with("_scale_inv")).unwrap().clone();
    let t = packed.get_mut(&scale).unwrap();
    t.bytes[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let found = of_folder(&config, &[packed]);
    assert!(found.verdict == Verdict::Damaged && words(&found).contains("NaN or infinite"), "{}", words(&found));
}

#[test]
fn every_kind_of_damage_to_a_checkpoint_is_told() {
    type Harm = fn(&mut Tensors, &mut Value);
    const Q: &str = "model.language_model.layers.3.self_attn.q_proj.weight";
    let harms: [(&str, Harm); 11] = [
        ("1 missing: blk.0.ssm_a", |t, _| drop(t.remove("model.language_model.layers.0.linear_attn.A_log"))),
        ("1 missing: blk.8.nextn.eh_proj.weight", |t, _| drop(t.remove("mtp.fc.weight"))),
        ("1 of a wrong shape: blk.3.attn_q.weight", |t, _| t.get_mut(Q).unwrap().shape = vec![256, 256]),
        ("1 of a wrong type: blk.3.attn_q.weight", |t, _| t.get_mut(Q).unwrap().dtype = "I16"),
        ("have no place in this model: \"model.odd.weight\"", |t, _| {
            drop(t.insert("model.odd.weight".into(), t[Q].clone()))
        }),
        ("NaN or infinite", |t, _| t.get_mut(Q).unwrap().bytes[..2].copy_from_slice(&[0xc0, 0x7f])),
        ("rows are all zero", |t, _| t.get_mut(Q).unwrap().bytes[..256].fill(0)),
        ("norms of the head are not shifted by one: mean(enorm)", |t, _| {
            add(t, "mtp.pre_fc_norm_embedding.weight", -1.0);
            add(t, "mtp.pre_fc_norm_hidden.weight", -1.0);
        }),
        ("norms of the head are shifted twice: mean(attn_q_norm)", |t, _| {
            add(t, "mtp.layers.0.self_attn.q_norm.weight", 1.0);
            add(t, "mtp.layers.0.self_attn.k_norm.weight", 1.0);
        }),
        ("num_hidden_layers is 0", |_, c| c["text_config"]["num_hidden_layers"] = json!(0)),
        ("OddForCausalLM", |_, c| c["architectures"] = json!(["OddForCausalLM"])),
    ];
    let oracle = Oracle::open("dense-a");
    for (told, harm) in harms {
        let (mut tensors, mut config) = (oracle.tensors.clone(), oracle.config.clone());
        harm(&mut tensors, &mut config);
        let found = of_folder(&config, &[tensors]);
        assert!(found.verdict == Verdict::Damaged && words(&found).contains(told), "{told}: {}", words(&found));
    }
    // Files: cut short, and not there.
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &oracle.config, std::slice::from_ref(&oracle.tensors));
    let shard = dir.path().join("model.safetensors");
    let whole = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &whole[..whole.len() - 1000]).unwrap();
    let found = report(dir.path()).unwrap();
    assert!(found.verdict == Verdict::Damaged && words(&found).contains("cut short"), "{}", words(&found));
    let index = json!({"weight_map": {"a": "model-00001-of-00002.safetensors"}}).to_string();
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    let found = report(dir.path()).unwrap();
    assert!(found.verdict == Verdict::Damaged && words(&found).contains("not in the folder"), "{}", words(&found));
}

#[test]
fn a_head_alone_is_judged_by_itself() {
    for (name, n) in [("dense-a", 15), ("moe-a", 20)] {
        let oracle = Oracle::open(name);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mtp.safetensors");
        let own: Tensors = oracle.tensors.into_iter().filter(|(n, _)| n.starts_with("mtp.")).collect();
        let of = |tensors: &Tensors| {
            std::fs::write(&file, safetensors(tensors)).unwrap();
            report(&file).unwrap()
        };
        let found = of(&own);
        assert_eq!(found.verdict, Verdict::Complete, "{name}: {}", words(&found));
        let gate = found.gate.unwrap();
        assert_eq!((gate.n_present, gate.n_expected, gate.n_head_expected), (n, n, n), "{name}");
        // The folder that holds nothing else is the same.
        assert_eq!(report(dir.path()).unwrap().verdict, Verdict::Complete);
        let told = |change: &dyn Fn(&mut Tensors), what: &str| {
            let mut tensors = own.clone();
            change(&mut tensors);
            let found = of(&tensors);
            assert!(found.verdict == Verdict::Damaged && words(&found).contains(what), "{what}: {}", words(&found));
        };
        told(&|t| drop(t.remove("mtp.fc.weight")), "1 missing: nextn.eh_proj.weight");
        told(&|t| drop(t.remove("mtp.layers.0.self_attn.k_proj.weight")), "1 missing: attn_k.weight");
        told(&|t| t.get_mut("mtp.layers.0.self_attn.o_proj.weight").unwrap().shape.reverse(), "attn_q.weight");
        for (x, what) in [(-1.0, "not shifted by one"), (1.0, "shifted twice")] {
            told(
                &|t| {
                    add(t, "mtp.pre_fc_norm_embedding.weight", x);
                    add(t, "mtp.pre_fc_norm_hidden.weight", x);
                },
                what,
            );
        }
    }
}

#[test]
fn what_is_no_model_is_an_error_that_says_what_it_is() {
    let oracle = Oracle::open("dense-a");
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &oracle.config, std::slice::from_ref(&oracle.tensors));
    for (name, words) in
        [("tokenizer.json", "is JSON"), ("model.safetensors", "give the folder"), ("nothing", "nothing: open:")]
    {
        let e = report(&dir.path().join(name)).unwrap_err();
        assert!(e.contains(words), "{name}: {e}");
    }
    let other = tempfile::tempdir().unwrap();
    assert!(report(other.path()).unwrap_err().contains("without a checkpoint"));
    let main_model: Tensors = oracle.tensors.into_iter().filter(|(n, _)| !n.starts_with("mtp.")).collect();
    std::fs::write(other.path().join("main.safetensors"), safetensors(&main_model)).unwrap();
    assert!(report(other.path()).unwrap_err().contains("no tensor of a NextN head"));
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// A copy of a file with some of its bytes changed: `change` gets the bytes of a tensor.
fn with(bytes: &[u8], dir: &Path, tensors: &[&str], change: &dyn Fn(&mut [u8])) -> Report {
    let mut bytes = bytes.to_vec();
    let ranges: Vec<_> = {
        let header = Header::parse(&bytes).unwrap();
        tensors.iter().map(|name| header.tensor(name).unwrap_or_else(|| panic!("no {name}")).range()).collect()
    };
    ranges.into_iter().for_each(|range| change(&mut bytes[range]));
    let path = dir.join("changed.gguf");
    std::fs::write(&path, &bytes).unwrap();
    report(&path).unwrap()
}

#[test]
fn norms_of_trained_models_that_are_wrong_by_one_are_told_and_right_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    for (name, block, attention) in
        [("pocket-q4_k_m.gguf", 12, [3, 7, 11].as_slice()), ("pocket-moe-q8_0.gguf", 8, &[3, 7])]
    {
        let bytes = std::fs::read(models().join(name)).unwrap();
        let found = with(&bytes, dir.path(), &[], &|_| {});
        assert_eq!(found.verdict, Verdict::Complete, "{name}: {}", words(&found));
        assert!(!words(&found).contains("norm"), "{name}: {}", words(&found));
        let of_head = |parts: [&str; 2]| parts.map(|part| format!("blk.{block}.{part}.weight")).to_vec();
        let heads = ["attn_q_norm", "attn_k_norm"];
        let in_main_model =
            attention.iter().flat_map(|il| heads.map(|part| format!("blk.{il}.{part}.weight"))).collect();
        for (what, names) in [
            ("mean(enorm)", of_head(["nextn.enorm", "nextn.hnorm"])),
            ("norms of the head are", of_head(heads)),
            ("mean(attn_norm)", of_head(["attn_norm", "post_attention_norm"])),
            ("norms of the main model are", in_main_model),
        ] {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            for (x, told) in [(-1.0, "not shifted by one"), (1.0, "shifted twice")] {
                let found = with(&bytes, dir.path(), &names, &|bytes| {
                    bytes.as_chunks_mut().0.iter_mut().for_each(|b| *b = (f32::from_le_bytes(*b) + x).to_le_bytes());
                });
                let damage = found.damage.join("\n");
                assert!(damage.contains(what) && damage.contains(told), "{name}, {what}, {told}: {}", words(&found));
            }
        }
    }
}

#[test]
fn rows_of_zeros_are_holes_unless_there_is_a_reason_for_each() {
    let dir = tempfile::tempdir().unwrap();
    // Its dimension 0 is written by no matrix: said, and no damage.
    let oracle = unpacked("dense-a.bf16.gguf.z2");
    let found = with(&oracle, dir.path(), &[], &|_| {});
    assert_eq!(found.verdict, Verdict::Complete, "{}", words(&found));
    assert!(
        words(&found).contains("no matrix writes to dimension 0: its rows are zeros in all 18"),
        "{}",
        words(&found)
    );
    let damaged = |bytes: &[u8], tensors: &[&str], change: &dyn Fn(&mut [u8])| {
        let found = with(bytes, dir.path(), tensors, change);
        assert!(
            found.verdict == Verdict::Damaged && found.damage.iter().any(|d| d.contains("rows are all zero")),
            "{tensors:?}: {}",
            words(&found)
        );
    };
    // One row more, in one matrix; in two; in another matrix than those that write to the stream.
    damaged(&oracle, &["blk.0.ffn_down.weight"], &|b| b[512..1024].fill(0));
    damaged(&oracle, &["blk.8.ffn_down.weight", "blk.8.attn_output.weight"], &|b| b[512..1024].fill(0));
    damaged(&oracle, &["blk.0.ffn_up.weight"], &|b| b[..256].fill(0));
    damaged(&oracle, &["blk.8.nextn.hnorm.weight"], &|b| b.fill(0));
    // Dimension 0 is written by one of the main model's matrices: then the others have lost it.
    damaged(&oracle, &["blk.3.attn_output.weight"], &|b| b[..2].copy_from_slice(&[0x80, 0x3f]));

    // Quantised, single rows may have been rounded away; a page of them was not.
    let small = std::fs::read(models().join("pocket-q4_k_m.gguf")).unwrap();
    // Rows of 256 numbers, a block of Q4_K each.
    let row = 144;
    let found = with(&small, dir.path(), &["blk.2.ffn_gate.weight"], &|b| b[7 * row..8 * row].fill(0));
    assert_eq!(found.verdict, Verdict::Complete, "{}", words(&found));
    assert!(words(&found).contains("blk.2.ffn_gate.weight: 1 of 512 rows are all zero"), "{}", words(&found));
    damaged(&small, &["blk.2.ffn_gate.weight"], &|b| b[row..32 * row].fill(0));
}
