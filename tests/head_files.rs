//! NextN heads between files: the ways back give the original bytes, and what does not fit is refused.

mod support;

use std::path::{Path, PathBuf};

use convert::Source;
use convert::check::{Options, Report, Verdict, verify};
use convert::heads::{Extract, Graft, HeadSource, Layout, NewFile, WeightType, extract, graft, strip};
use gguf::{Header, TensorType, Value};
use support::golden::oracle_bytes;
use support::tiny::{Document, Meta, Spec};
use tempfile::TempDir;

const LAYOUTS: [Layout; 3] = [Layout::Upstream, Layout::Slim, Layout::Legacy];

fn write(new: Result<NewFile, convert::Error>, path: &Path) -> PathBuf {
    let new = new.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    new.write(path, 2, &Default::default()).unwrap_or_else(|e| panic!("{e}"));
    path.to_owned()
}

fn open(path: &Path) -> Source {
    Source::open(path).unwrap_or_else(|e| panic!("{e}"))
}

fn head_of(path: &Path, layout: Layout, out: &Path) -> PathBuf {
    write(extract(open(path), Extract { layout, dtype: WeightType::Keep }), out)
}

fn joined(target: &Path, head: &Path, out: &Path) -> PathBuf {
    let head = HeadSource::open(head).unwrap_or_else(|e| panic!("{e}"));
    write(graft(open(target), head, Graft::default()), out)
}

/// Files with a head and without, of every architecture: each is looked at by its own list of tensors.
#[test]
fn every_architectures_files_are_inspected_and_verified_by_their_own_tensors() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("tiny.gguf");
    for arch in model::architectures() {
        let has_heads = model::nextn_architectures().contains(&arch);
        for nextn in [false, true].into_iter().filter(|nextn| has_heads || !nextn) {
            let spec = Spec { nextn, ..Spec::of(arch) };
            let document = spec.document();
            document.write(&path);
            let report = verified(&path);
            assert_eq!(report.verdict == Verdict::Complete, nextn, "{arch}: {:?}", report.damage);
            assert!(report.damage.is_empty() && report.notes.is_empty(), "{arch}: {report:?}");
            let gate = report.gate.expect("the tensors of every architecture are known");
            assert_eq!((gate.n_expected, gate.extra.len()), (document.tensors.len(), 0), "{arch}: {gate:?}");
            let found = convert::inspect::inspect(&path).expect("a sound file");
            assert_eq!(found.sizes.map(|s| s.n_layer), Some(spec.n_layer as u64), "{arch}");
            assert_eq!(found.head.n_tensors > 0, nextn, "{arch}");
            let mut less = spec.document();
            less.take("blk.1.attn_norm.weight");
            less.write(&path);
            assert_eq!(verified(&path).verdict, Verdict::Damaged, "{arch}: a tensor is missing");
        }
    }
}

#[test]
fn a_head_that_is_a_model_of_its_own_is_told_as_what_it_is_for() {
    let dir = TempDir::new().expect("a folder");
    let path = Spec::assistant().document().write(&dir.path().join("tiny.gguf"));
    let report = verified(&path);
    assert_eq!((report.verdict, report.damage.len()), (Verdict::Complete, 0), "{:?}", report.damage);
    let found = convert::inspect::inspect(&path).expect("a sound file");
    assert_eq!((found.head.status, found.head.target), (convert::inspect::Status::Present, Some("gemma4")));
    let error = refused(extract(open(&path), Extract { layout: Layout::Slim, dtype: WeightType::Keep }));
    assert!(error.contains("--draft-model takes as they are"), "{error}");
}

fn verified(path: &Path) -> Report {
    verify(path, Options { values: true, n_threads: 1 }, &Default::default()).expect("it can be read")
}

/// Of several MTP layers: all of them go, and come back.
#[test]
fn heads_of_several_layers_go_out_and_come_back() {
    let dir = TempDir::new().expect("a folder");
    for arch in ["mimo2", "step35"] {
        let spec = Spec { n_mtp: 3, ..with_head(arch, 5) };
        let whole = spec.document().write(&dir.path().join("whole.gguf"));
        assert_eq!(convert::inspect::inspect(&whole).expect("a sound file").head.n_blocks, 3, "{arch}");
        let plain = write(strip(open(&whole)), &dir.path().join("plain.gguf"));
        for layout in LAYOUTS {
            let head = head_of(&whole, layout, &dir.path().join("head.gguf"));
            let back = joined(&plain, &head, &dir.path().join("back.gguf"));
            assert!(std::fs::read(&back).unwrap() == std::fs::read(&whole).unwrap(), "{arch} {layout:?}");
            assert_eq!(verified(&head).verdict, Verdict::Complete, "{arch} {layout:?}");
        }
    }
}

fn refused(new: Result<NewFile, convert::Error>) -> String {
    new.map(|_| ()).expect_err("this must be refused").to_string()
}

/// Per-layer arrays, an order of tensors that nobody would choose, a key between others.
fn odd(spec: &Spec) -> Document {
    let mut d = spec.document();
    let n = spec.n_layer + 1;
    let full = |key: &str| format!("{}.{key}", spec.arch);
    let kv = (0..n).map(|il| if spec.is_recurrent(il) { 0 } else { spec.n_head_kv as u32 }).collect();
    d.set(&full("attention.head_count_kv"), Meta::U32s(kv));
    d.set(&full("attention.recurrent_layers"), Meta::Bools((0..n).map(|il| spec.is_recurrent(il)).collect()));
    let n_tensors = d.tensors.len();
    for i in 0..n_tensors {
        d.tensors.swap(i, (i * 7 + 3) % n_tensors);
    }
    d
}

fn with_head(arch: &'static str, seed: u64) -> Spec {
    Spec { nextn: true, seed, ..Spec::of(arch) }
}

/// Files with heads of every kind that is here.
fn combined(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for arch in ["qwen35", "qwen35moe"] {
        let spec = with_head(arch, 5);
        files.push(spec.document().write(&dir.join(format!("{arch}.gguf"))));
        files.push(odd(&spec).write(&dir.join(format!("{arch}-odd.gguf"))));
    }
    for arch in ["deepseek2", "nemotron_h_moe"] {
        files.push(with_head(arch, 5).document().write(&dir.join(format!("{arch}.gguf"))));
    }
    for name in ["dense-a.bf16", "moe-a.bf16", "dense-k.Q4_K_M"] {
        let path = dir.join(format!("{name}.gguf"));
        std::fs::write(&path, oracle_bytes(name)).unwrap();
        files.push(path);
    }
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    files.push(models.join("pocket-q4_k_m.gguf"));
    files.push(models.join("pocket-moe-q8_0.gguf"));
    files
}

#[test]
fn strip_and_graft_of_the_extracted_head_give_the_file_byte_for_byte() {
    let dir = TempDir::new().unwrap();
    for file in combined(dir.path()) {
        let original = std::fs::read(&file).unwrap();
        let trunk = write(strip(open(&file)), &dir.path().join("trunk"));
        for layout in LAYOUTS {
            let head = head_of(&file, layout, &dir.path().join("head"));
            let whole = joined(&trunk, &head, &dir.path().join("whole"));
            let same = std::fs::read(whole).unwrap() == original;
            assert!(same, "{} by way of a head in layout {}", file.display(), layout.name());
        }
        let whole = joined(&trunk, &file, &dir.path().join("whole"));
        assert!(std::fs::read(whole).unwrap() == original, "{} from itself", file.display());
    }
}

#[test]
fn graft_and_strip_give_the_trunk_byte_for_byte_whatever_it_said_of_a_head() {
    let dir = TempDir::new().unwrap();
    for arch in ["qwen35", "qwen35moe"] {
        let spec = with_head(arch, 3);
        let head = head_of(&odd(&spec).write(&dir.path().join("donor")), Layout::Slim, &dir.path().join("head"));
        let plain = Spec { nextn: false, seed: 8, ..spec.clone() };
        let key = format!("{arch}.nextn_predict_layers");
        let mut zero = plain.document();
        zero.set(&key, Meta::U32(0));
        let mut promised = plain.document();
        promised.set(&key, Meta::U32(1));
        promised.set(&format!("{arch}.block_count"), Meta::U32(spec.n_layer as u32 + 1));
        for (what, document) in [("plain", plain.document()), ("zero", zero), ("promised", promised)] {
            let trunk = document.write(&dir.path().join(what));
            let whole = joined(&trunk, &head, &dir.path().join("whole"));
            assert_eq!(checked(&whole).verdict, Verdict::Complete, "{arch} {what}");
            let back = write(strip(open(&whole)), &dir.path().join("back"));
            assert!(std::fs::read(back).unwrap() == std::fs::read(&trunk).unwrap(), "{arch} {what}");
            // And the tensors of the trunk are those of the file, the head's those of the head.
            let (whole, trunk) = (std::fs::read(&whole).unwrap(), std::fs::read(&trunk).unwrap());
            let (whole_header, trunk_header) = (Header::parse(&whole).unwrap(), Header::parse(&trunk).unwrap());
            for t in trunk_header.tensors() {
                let in_whole = whole_header.tensor(t.name).unwrap();
                assert!(whole[in_whole.range()] == trunk[t.range()], "{}", t.name);
            }
            assert_eq!(whole_header.metadata().u32(&key).unwrap(), Some(1));
        }
    }
}

#[test]
fn layouts_hold_what_the_page_says() {
    let dir = TempDir::new().unwrap();
    let spec = with_head("qwen35moe", 4);
    let file = odd(&spec).write(&dir.path().join("file"));
    for layout in LAYOUTS {
        let bytes = std::fs::read(head_of(&file, layout, &dir.path().join("head"))).unwrap();
        let header = Header::parse(&bytes).unwrap();
        let meta = header.metadata();
        let arch = if layout == Layout::Legacy { "qwen35moe_mtp" } else { "qwen35moe" };
        assert_eq!(meta.require_str("general.architecture").unwrap(), arch);
        assert_eq!(meta.require_u32(&format!("{arch}.block_count")).unwrap(), spec.n_layer as u32 + 1);
        assert_eq!(meta.require_u32(&format!("{arch}.nextn_predict_layers")).unwrap(), 1);
        assert_eq!(meta.array(&format!("{arch}.attention.head_count_kv")).unwrap().unwrap().len(), spec.n_layer + 1);
        assert_eq!(meta.require_str("nextn.layout").unwrap(), layout.name());
        assert_eq!(meta.require_u32("nextn.block").unwrap(), spec.n_layer as u32);
        assert_eq!(meta.require_u32("nextn.target.embedding_length").unwrap(), spec.n_embd as u32);
        assert_eq!(meta.require_u32("nextn.target.vocab_size").unwrap(), spec.n_vocab as u32);
        let whole = std::fs::read(&file).unwrap();
        let of_file = text::fingerprint(Header::parse(&whole).unwrap().metadata()).unwrap().unwrap();
        assert_eq!(meta.require_str("nextn.target.tokenizer").unwrap(), of_file);
        let slim = layout == Layout::Slim;
        let from_target: Vec<&str> =
            meta.str_array("nextn.from_target").unwrap().unwrap().iter_str().map(Result::unwrap).collect();
        assert_eq!(from_target, if slim { vec!["token_embd", "output"] } else { vec![] });
        assert_eq!(meta.get("tokenizer.ggml.tokens").is_some(), !slim);
        for (name, here) in [("token_embd.weight", !slim), ("output.weight", !slim), ("output_norm.weight", true)] {
            assert_eq!(header.tensor(name).is_some(), here, "{name} in {}", layout.name());
        }
        assert!(header.tensor("blk.0.attn_norm.weight").is_none());
        let n_head = header.tensors().iter().filter(|t| t.name.starts_with("blk.4.")).count();
        assert_eq!(n_head, 20, "{}", layout.name());
        // From one layout into another, too.
        let other = head_of(&dir.path().join("head"), Layout::Slim, &dir.path().join("other"));
        let direct = head_of(&file, Layout::Slim, &dir.path().join("direct"));
        assert!(std::fs::read(other).unwrap() == std::fs::read(direct).unwrap(), "slim by way of {}", layout.name());
    }
}

#[test]
fn a_head_changes_its_type_but_not_its_vectors() {
    let dir = TempDir::new().unwrap();
    let file = with_head("qwen35moe", 4).document().write(&dir.path().join("file"));
    let how = Extract { layout: Layout::Upstream, dtype: WeightType::To(TensorType::Q8_0) };
    let bytes = std::fs::read(write(extract(open(&file), how), &dir.path().join("head"))).unwrap();
    let header = Header::parse(&bytes).unwrap();
    let dtype = |name: &str| header.tensor(name).unwrap().dtype;
    assert_eq!(dtype("blk.4.nextn.eh_proj.weight"), TensorType::Q8_0);
    assert_eq!(dtype("blk.4.ffn_gate_inp.weight"), TensorType::F32, "routers stay");
    assert_eq!(dtype("blk.4.nextn.enorm.weight"), TensorType::F32);
    assert_eq!(dtype("token_embd.weight"), TensorType::F16, "rows of 48 are no blocks of 32");
}

#[test]
fn heads_that_do_not_fit_are_refused_with_both_values() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    let spec = with_head("qwen35", 1);
    let donor = spec.document().write(&path("donor"));
    let trunk = Spec { nextn: false, ..spec.clone() };
    let try_graft = |target: Document| {
        let target = target.write(&path("target"));
        refused(graft(open(&target), HeadSource::open(&donor).unwrap(), Graft::default()))
    };
    let wide = try_graft(Spec { n_embd: 64, ..trunk.clone() }.document());
    assert!(wide.contains("width 48") && wide.contains("width 64"), "{wide}");
    let deep = try_graft(Spec { n_layer: 6, ..trunk.clone() }.document());
    assert!(deep.contains("4 blocks") && deep.contains("6 of width"), "{deep}");
    let ffn = try_graft(Spec { n_ff: 80, ..trunk.clone() }.document());
    assert!(ffn.contains("[48, 80] expected, [48, 72] found"), "{ffn}");
    let moe = try_graft(Spec { nextn: false, ..Spec::of("qwen35moe") }.document());
    assert!(moe.contains("for qwen35") && moe.contains("is qwen35moe"), "{moe}");
    let mut tokens = trunk.document();
    let Some((_, Meta::Strs(list))) = tokens.keys.iter_mut().find(|(key, _)| key == "tokenizer.ggml.tokens") else {
        panic!("a tiny model has tokens")
    };
    list[40] = "zebra".into();
    let other = try_graft(tokens.clone());
    assert!(other.contains("another vocabulary"), "{other}");
    let how = Graft { other_tokenizer: true, ..Graft::default() };
    graft(open(&tokens.write(&path("target"))), HeadSource::open(&donor).unwrap(), how).expect("taken when asked for");

    let mut poor = spec.document();
    poor.take("blk.4.attn_k.weight");
    let poor = poor.write(&path("poor"));
    let target = trunk.document().write(&path("target"));
    let missing = refused(graft(open(&target), HeadSource::open(&poor).unwrap(), Graft::default()));
    assert!(missing.contains("blk.4.attn_k.weight is missing"), "{missing}");
    assert!(
        refused(graft(open(&donor), HeadSource::open(&donor).unwrap(), Graft::default())).contains("has a NextN head")
    );
    assert!(refused(strip(open(&target))).contains("no NextN head"));
    let keep = Extract { layout: Layout::Upstream, dtype: WeightType::Keep };
    assert!(refused(extract(open(&target), keep)).contains("no NextN head"));
    let slim = head_of(&donor, Layout::Slim, &path("slim"));
    assert!(refused(extract(open(&slim), keep)).contains("slim"));
    assert!(refused(strip(open(&slim))).contains("without a main model"));
}

#[test]
fn an_output_is_never_an_input_and_a_failure_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let file = with_head("qwen35", 1).document().write(&dir.path().join("file"));
    let original = std::fs::read(&file).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let hard = dir.path().join("hard");
    std::fs::hard_link(&file, &hard).unwrap();
    for out in [&file, &link, &hard] {
        let e = strip(open(&file)).unwrap().write(out, 1, &Default::default()).unwrap_err();
        assert!(e.to_string().contains("one of the inputs"), "{e}");
    }
    let stopped = convert::stream::Control::default();
    stopped.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let out = dir.path().join("out");
    std::fs::write(&out, "old").unwrap();
    let e = strip(open(&file)).unwrap().write(&out, 1, &stopped).unwrap_err();
    assert!(matches!(e, convert::Error::Interrupted), "{e}");
    assert_eq!(std::fs::read(&out).unwrap(), b"old");
    // The file shrinks between its header and its data.
    let short = dir.path().join("short");
    std::fs::write(&short, &original).unwrap();
    let new = strip(open(&short)).unwrap();
    std::fs::write(&short, &original[..original.len() / 2]).unwrap();
    new.write(&out, 1, &Default::default()).expect_err("half of the data is gone");
    assert_eq!(std::fs::read(&out).unwrap(), b"old");
    assert_eq!(std::fs::read(&file).unwrap(), original);
    let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["file", "hard", "link", "out", "short"]);
}

#[test]
fn shards_become_one_file() {
    let dir = TempDir::new().unwrap();
    let document = with_head("qwen35", 2).document();
    let whole = document.write(&dir.path().join("whole"));
    let trunk = write(strip(open(&document.write_shards(dir.path()))), &dir.path().join("trunk"));
    let of_whole = write(strip(open(&whole)), &dir.path().join("trunk-of-whole"));
    assert!(std::fs::read(trunk).unwrap() == std::fs::read(of_whole).unwrap());
}

fn checked(path: &Path) -> Report {
    verify(path, Options { values: true, n_threads: 2 }, &Default::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn sound_files_are_found_sound() {
    let dir = TempDir::new().unwrap();
    for file in combined(dir.path()) {
        let report = checked(&file);
        assert_eq!(report.verdict, Verdict::Complete, "{}: {:?}", file.display(), report.damage);
        let gate = report.gate.unwrap();
        assert_eq!((gate.n_present, gate.extra.len()), (gate.n_expected, 0), "{}", file.display());
        assert!(gate.n_head_expected >= 15);
        let trunk = checked(&write(strip(open(&file)), &dir.path().join("trunk")));
        assert_eq!(trunk.verdict, Verdict::NoHead, "{}: {:?}", file.display(), trunk.damage);
        for layout in LAYOUTS {
            let head = checked(&head_of(&file, layout, &dir.path().join("head")));
            assert_eq!(head.verdict, Verdict::Complete, "{} {}: {:?}", file.display(), layout.name(), head.damage);
        }
    }
}

#[test]
fn every_kind_of_damage_is_told() {
    type Harm = fn(&mut Document);
    fn floats(d: &mut Document, name: &str, change: impl Fn(usize, f32) -> f32) {
        let t = d.tensors.iter_mut().find(|t| t.name == name).unwrap();
        for (i, b) in t.data.as_chunks_mut().0.iter_mut().enumerate() {
            *b = change(i, f32::from_le_bytes(*b)).to_le_bytes();
        }
    }
    let harms: [(&str, Harm); 11] = [
        ("NaN or infinite", |d| floats(d, "blk.2.ffn_up.weight", |i, x| if i == 70 { f32::NAN } else { x })),
        ("rows are all zero", |d| floats(d, "blk.4.nextn.eh_proj.weight", |i, x| if i < 96 { 0.0 } else { x })),
        ("rows are all zero", |d| floats(d, "blk.1.attn_norm.weight", |_, _| 0.0)),
        ("not shifted", |d| {
            floats(d, "blk.4.nextn.enorm.weight", |_, x| x - 1.0);
            floats(d, "blk.4.nextn.hnorm.weight", |_, x| x - 1.0);
        }),
        ("shifted twice", |d| {
            floats(d, "blk.4.nextn.enorm.weight", |_, x| x + 1.0);
            floats(d, "blk.4.nextn.hnorm.weight", |_, x| x + 1.0);
        }),
        ("-exp(A_log)", |d| floats(d, "blk.0.ssm_a", |_, x| -x)),
        ("1 missing: blk.4.attn_k.weight", |d| drop(d.take("blk.4.attn_k.weight"))),
        ("1 missing: blk.3.attn_v.weight", |d| drop(d.take("blk.3.attn_v.weight"))),
        ("1 of a wrong shape: blk.4.ffn_gate.weight", |d| {
            d.tensors.iter_mut().find(|t| t.name == "blk.4.ffn_gate.weight").unwrap().ne = vec![72, 48];
        }),
        ("1 of a wrong type", |d| {
            d.tensors.iter_mut().find(|t| t.name == "blk.4.ffn_gate.weight").unwrap().dtype = TensorType::I32;
        }),
        ("ssm.v_head_reordered is false", |d| d.set("qwen35.ssm.v_head_reordered", Meta::Bool(false))),
    ];
    let dir = TempDir::new().unwrap();
    for (words, harm) in harms {
        let mut document = with_head("qwen35", 6).document();
        harm(&mut document);
        let report = checked(&document.write(&dir.path().join("file")));
        assert_eq!(report.verdict, Verdict::Damaged, "{words}");
        assert!(report.damage.iter().any(|d| d.contains(words)), "{words}: {:?}", report.damage);
    }
    let whole = std::fs::read(with_head("qwen35", 6).document().write(&dir.path().join("file"))).unwrap();
    std::fs::write(dir.path().join("cut.gguf"), &whole[..whole.len() - 4000]).unwrap();
    let report = checked(&dir.path().join("cut.gguf"));
    assert_eq!(report.verdict, Verdict::Damaged);
    assert!(report.damage[0].contains("missing in all"), "{:?}", report.damage);
}

#[test]
fn a_head_that_is_cut_to_a_part_of_the_vocabulary_is_said_to_be() {
    let dir = TempDir::new().unwrap();
    let spec = with_head("qwen35", 3);
    let whole = spec.document().write(&dir.path().join("whole"));
    let trunk = write(strip(open(&whole)), &dir.path().join("trunk"));
    let mut cut = spec.document();
    let output = cut.tensors.iter_mut().find(|t| t.name == "output.weight").expect("the embedding is not tied");
    output.ne[1] = 8;
    output.data.truncate(8 * spec.n_embd * 4);
    let ids = (0..8u32).flat_map(u32::to_le_bytes).collect();
    let mut list = cut.tensors[0].clone();
    (list.name, list.ne, list.dtype, list.data) = ("d2t".into(), vec![8], TensorType::I32, ids);
    cut.tensors.push(list);
    let cut = cut.write(&dir.path().join("cut"));
    let report = checked(&cut);
    assert_eq!(report.verdict, Verdict::Complete, "{:?}", report.damage);
    assert!(report.notes.iter().any(|note| note.contains("cut to 8 tokens (d2t)")), "{:?}", report.notes);
    let e = refused(extract(open(&cut), Extract { layout: Layout::Upstream, dtype: WeightType::Keep }));
    assert!(e.contains("cut to 8 tokens"), "{e}");
    // Its block is whole: beside a trunk with an output matrix of its own it is as good as any.
    let back = joined(&trunk, &cut, &dir.path().join("back"));
    assert_eq!(checked(&back).verdict, Verdict::Complete);
}

#[test]
fn a_promise_without_a_head_is_told_and_mended() {
    let dir = TempDir::new().unwrap();
    let mut promised = Spec::of("qwen35").document();
    promised.set("qwen35.nextn_predict_layers", Meta::U32(1));
    promised.set("qwen35.block_count", Meta::U32(5));
    let file = promised.write(&dir.path().join("file"));
    let report = checked(&file);
    assert_eq!(report.verdict, Verdict::NoHead);
    assert!(report.notes.iter().any(|note| note.contains("promises a NextN head")), "{:?}", report.notes);
    let mended = std::fs::read(write(strip(open(&file)), &dir.path().join("mended"))).unwrap();
    let header = Header::parse(&mended).unwrap();
    assert_eq!(header.metadata().get("qwen35.block_count"), Some(&Value::U32(4)));
    assert_eq!(header.metadata().get("qwen35.nextn_predict_layers"), None);
}

/// The program with these arguments: code, standard output, standard error.
fn program(args: &[&str]) -> (i32, String, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_extract-nextn")).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("it ends by itself"), text(output.stdout), text(output.stderr))
}

#[test]
fn the_program_tells_by_its_code_and_in_json() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    with_head("qwen35moe", 2).document().write(&dir.path().join("whole"));
    let (whole, trunk, head, back, cut) = (path("whole"), path("trunk"), path("head"), path("back"), path("cut"));
    assert_eq!(program(&["verify", &whole]).0, 0);
    assert_eq!(program(&["strip", &whole, "-o", &trunk]).0, 0);
    let (code, out, _) = program(&["verify", &trunk, "--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["verdict"]), (3, &"no_head".into()));
    let (code, out, _) = program(&["extract", &whole, "-o", &head, "--layout", "slim", "--json"]);
    let written: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &written["n_tensors"]), (0, &21.into()));
    let (code, out, _) = program(&["inspect", &head, "--json"]);
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &found["head"]["layout"], &found["head"]["n_tensors"]), (0, &"slim".into(), &20.into()));
    assert_eq!(program(&["graft", &trunk, &head, "-o", &back]).0, 0);
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&whole).unwrap());
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let (code, out, _) = program(&["verify", &cut]);
    assert!(code == 4 && out.contains("bytes are missing"), "{out}");
    let (code, out, _) = program(&["inspect", &whole]);
    assert!(code == 0 && out.contains("present: 20 tensors") && out.lines().count() <= 24, "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 120), "{out}");
    for (args, expected) in [
        (vec!["strip", &trunk, "-o", &back], 1),
        (vec!["strip", &whole, "-o", &whole], 1),
        (vec!["verify", "/nothing/here"], 1),
        (vec!["extract", &whole, "-o", &head, "--type", "q9_9"], 2),
    ] {
        let (code, _, err) = program(&args);
        assert!(code == expected && err.starts_with("error: ") && err.len() < 700, "{args:?}: {code}, {err}");
    }
    assert!(std::fs::read(&whole).unwrap() == bytes);
}

/// xorshift64*; Vigna 2014.
fn random(state: &mut u64) -> usize {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize
}

#[test]
fn three_thousand_damaged_files_end_in_an_answer_or_an_error() {
    const SEED: u64 = 0x6865_6164_2026;
    println!("seed {SEED:#x}");
    let dir = TempDir::new().unwrap();
    let small =
        |arch| Spec { n_layer: 2, n_embd: 16, n_ff: 8, n_ff_shared: 8, d_head: 8, n_rot: 4, ..with_head(arch, 1) };
    let good: Vec<PathBuf> =
        ["qwen35", "qwen35moe"].into_iter().map(|arch| odd(&small(arch)).write(&dir.path().join(arch))).collect();
    let bytes: Vec<Vec<u8>> = good.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let trunks: Vec<Vec<u8>> =
        good.iter().map(|path| std::fs::read(write(strip(open(path)), &dir.path().join("trunk"))).unwrap()).collect();
    let (mut state, mut n_opened) = (SEED, 0);
    let (file, out) = (dir.path().join("damaged.gguf"), dir.path().join("out"));
    for i in 0..3000 {
        let which = i % 2;
        let mut damaged = if i % 5 == 0 { trunks[which].clone() } else { bytes[which].clone() };
        let header = Header::parse(&damaged).unwrap().data_start() as usize;
        for _ in 0..=random(&mut state) % 3 {
            // The vocabulary is most of the header and least of the matter.
            let at = match random(&mut state) % 3 {
                0 => random(&mut state) % 1600,
                1 => header - 1 - random(&mut state) % 3000,
                _ => random(&mut state) % damaged.len(),
            };
            match random(&mut state) % 5 {
                0 => damaged[at] ^= 1 << (random(&mut state) % 8),
                1 => damaged[at] = random(&mut state) as u8,
                2 => {
                    let huge = [u64::MAX, 1 << 63, 1 << 32, 1 << 24, 0, 2][random(&mut state) % 6].to_le_bytes();
                    let n = huge.len().min(damaged.len() - at);
                    damaged[at..at + n].copy_from_slice(&huge[..n]);
                }
                3 => damaged[at] = damaged[at].wrapping_add(1),
                _ if random(&mut state).is_multiple_of(4) => damaged.truncate(at.max(1)),
                _ => damaged[at] = 0,
            }
            if damaged.len() < header {
                break;
            }
        }
        std::fs::write(&file, &damaged).unwrap();
        let report =
            verify(&file, Options { values: true, n_threads: 1 }, &Default::default()).expect("it can be read");
        assert!(report.verdict != Verdict::Damaged || report.damage.iter().all(|d| !d.is_empty()));
        let _ = convert::inspect::inspect(&file);
        let Ok(source) = Source::open(&file) else { continue };
        n_opened += 1;
        drop(source);
        for layout in LAYOUTS {
            let _ = extract(open(&file), Extract { layout, dtype: WeightType::Keep });
        }
        let _ = graft(open(&file), HeadSource::open(&good[which]).unwrap(), Graft::default());
        if let Ok(head) = HeadSource::open(&file) {
            let target = dir.path().join("target");
            std::fs::write(&target, &trunks[which]).unwrap();
            let _ = graft(open(&target), head, Graft::default());
        }
        if let Ok(new) = strip(open(&file)) {
            // What is written can be read again.
            if new.write(&out, 1, &Default::default()).is_ok() {
                open(&out);
            }
        }
    }
    println!("{n_opened} of 3000 opened");
    assert!(n_opened > 300, "{n_opened} of 3000 opened: too much damage to tell anything");
    for (path, bytes) in good.iter().zip(&bytes) {
        assert!(std::fs::read(path).unwrap() == *bytes, "an input was changed");
    }
}
