//! Heads are grafted from safetensors of whatever kind: names, files, experts and numbers as they are found in the
//! field.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::support::{Oracle, Tensor, Tensors, as_fp8, safetensors, with_single_experts, write_folder};
use convert::Source;
use convert::check::{Options, Verdict, verify};
use convert::heads::{Graft, HeadSource, WeightType, graft, strip};
use gguf::{Header, TensorType};

/// Tensors of a GGUF file by name: shape, type, bytes.
type Content = BTreeMap<String, (Vec<u64>, TensorType, Vec<u8>)>;

struct Rig {
    oracle: Oracle,
    dir: tempfile::TempDir,
    /// The model without its head.
    main_model: PathBuf,
}

impl Rig {
    fn new(name: &str) -> Rig {
        let (oracle, dir) = (Oracle::open(name), tempfile::tempdir().unwrap());
        let (whole, main_model) = (dir.path().join("whole.gguf"), dir.path().join("main.gguf"));
        std::fs::write(&whole, &oracle.gguf).unwrap();
        strip(Source::open(&whole).unwrap()).unwrap().write(&main_model, 1, &Default::default()).unwrap();
        Rig { oracle, dir, main_model }
    }

    /// The head's tensors with their names changed.
    fn head(&self, rename: impl Fn(&str) -> String) -> Tensors {
        let of_head = self.oracle.tensors.iter().filter_map(|(n, t)| Some((n.strip_prefix("mtp.")?, t)));
        of_head.map(|(n, t)| (rename(n), t.clone())).collect()
    }

    fn file(&self, name: &str, tensors: &Tensors) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, safetensors(tensors)).unwrap();
        path
    }

    /// The main model with this head, and what is in it; it must be a sound file from which `strip` gives the main
    /// model again.
    fn grafted(&self, head: &Path, dtype: WeightType) -> Result<(Vec<u8>, Content), String> {
        let words = |e: convert::Error| e.to_string();
        let head = HeadSource::open(head).map_err(words)?;
        let how = Graft { dtype, ..Graft::default() };
        let new = graft(Source::open(&self.main_model).map_err(words)?, head, how).map_err(words)?;
        let (out, back) = (self.dir.path().join("out.gguf"), self.dir.path().join("back.gguf"));
        new.write(&out, 2, &Default::default()).map_err(words)?;
        let report = verify(&out, Options { values: true, n_threads: 2 }, &Default::default()).map_err(words)?;
        assert_eq!(report.verdict, Verdict::Complete, "{:?}", report.damage);
        strip(Source::open(&out).unwrap()).unwrap().write(&back, 1, &Default::default()).unwrap();
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&self.main_model).unwrap(), "the main model comes back");
        let bytes = std::fs::read(&out).unwrap();
        let header = Header::parse(&bytes).unwrap();
        let of = |t: &gguf::TensorInfo<'_>| (t.dims().to_vec(), t.dtype, bytes[t.range()].to_vec());
        let content = header.tensors().iter().map(|t| (t.name.to_owned(), of(t))).collect();
        Ok((bytes, content))
    }
}

fn content(bytes: &[u8]) -> Content {
    let header = Header::parse(bytes).unwrap();
    let of = |t: &gguf::TensorInfo<'_>| (t.dims().to_vec(), t.dtype, bytes[t.range()].to_vec());
    header.tensors().iter().map(|t| (t.name.to_owned(), of(t))).collect()
}

/// All matrices of a head in other numbers, by `change`.
fn changed(tensors: &Tensors, change: impl Fn(&str, &Tensor) -> Vec<(String, Tensor)>) -> Tensors {
    tensors.iter().flat_map(|(name, t)| change(name, t)).collect()
}

#[test]
fn every_source_of_a_head_makes_the_combined_file() {
    for name in ["dense-a", "moe-a"] {
        let rig = Rig::new(name);
        let expected = content(&rig.oracle.gguf);
        let own = rig.head(|n| format!("mtp.{n}"));
        // Shards of a checkpoint, of which only that with the head is there.
        let shards = rig.dir.path().join("shards");
        std::fs::create_dir(&shards).unwrap();
        let main_model = rig.oracle.tensors.iter().filter(|(n, _)| !n.starts_with("mtp."));
        let main_model: Tensors = main_model.map(|(n, t)| (n.clone(), t.clone())).collect();
        write_folder(&shards, &rig.oracle.config, &[main_model, own.clone()]);
        std::fs::remove_file(shards.join("model-00001-of-00002.safetensors")).unwrap();
        let folder = rig.dir.path().join("checkpoint");
        std::fs::create_dir(&folder).unwrap();
        rig.oracle.write(&folder);
        let sources = [
            ("a whole checkpoint", folder),
            ("its only file", rig.file("whole.safetensors", &rig.oracle.tensors)),
            ("the shard with the head", shards.clone()),
            ("that shard as a file", shards.join("model-00002-of-00002.safetensors")),
            ("mtp.", rig.file("mtp.safetensors", &own)),
            ("no prefix", rig.file("bare.safetensors", &rig.head(str::to_owned))),
            ("model.mtp.", rig.file("model.safetensors", &rig.head(|n| format!("model.mtp.{n}")))),
            ("language_model.", rig.file("language.safetensors", &rig.head(|n| format!("language_model.mtp.{n}")))),
            ("both", rig.file("both.safetensors", &rig.head(|n| format!("model.language_model.mtp.{n}")))),
            ("a bare name in model.", rig.file("in-model.safetensors", &rig.head(|n| format!("model.{n}")))),
            ("single experts", rig.file("single.safetensors", &with_single_experts(&own))),
            ("single experts, no prefix", rig.file("bare-single", &with_single_experts(&rig.head(str::to_owned)))),
        ];
        for (what, head) in sources {
            let (bytes, found) = rig.grafted(&head, WeightType::Keep).unwrap_or_else(|e| panic!("{name}, {what}: {e}"));
            assert!(found == expected, "{name}, {what}: the tensors are those of the combined file");
            let (ours, theirs) = (Header::parse(&bytes).unwrap(), Header::parse(&rig.oracle.gguf).unwrap());
            let keys = |h: &Header<'_>| h.metadata().iter().map(|(k, v)| format!("{k} {v}")).collect::<Vec<_>>();
            assert_eq!(keys(&ours), keys(&theirs), "{name}, {what}: keys and their order");
        }
    }
}

#[test]
fn heads_in_other_numbers_keep_them_or_become_what_is_asked_for() {
    for name in ["dense-a", "moe-a"] {
        let rig = Rig::new(name);
        let own = with_single_experts(&rig.head(|n| format!("mtp.{n}")));
        let is_matrix = |t: &Tensor| t.dtype == "BF16";
        let as_f16 = |t: &Tensor| {
            let mut bytes = vec![0; t.bytes.len()];
            ggml::pack_rows(ggml::Dtype::F16, &t.floats(), t.shape[1] as usize, None, &mut bytes).unwrap();
            Tensor { dtype: "F16", shape: t.shape.clone(), bytes }
        };
        let wide = changed(&own, |n, t| vec![(n.to_owned(), t.widened())]);
        let half = changed(&own, |n, t| vec![(n.to_owned(), if is_matrix(t) { as_f16(t) } else { t.clone() })]);
        let expected = content(&rig.oracle.gguf);
        let (_, of_wide) = rig.grafted(&rig.file("wide", &wide), WeightType::To(TensorType::BF16)).unwrap();
        assert!(of_wide == expected, "{name}: F32 holds what BF16 held");
        let (_, of_half) = rig.grafted(&rig.file("half", &half), WeightType::Keep).unwrap();
        let eh_proj = &of_half["blk.8.nextn.eh_proj.weight"];
        assert_eq!((eh_proj.1, &eh_proj.2), (TensorType::F16, &half["mtp.fc.weight"].bytes), "{name}: halves stay");

        // 8-bit floats: a scale for blocks, for rows, for the whole matrix; against the numbers that they stand for.
        for block in [(128, 128), (1, 1 << 20), (1 << 20, 1 << 20)] {
            let fits = |n: &str, t: &Tensor| is_matrix(t) && n.contains("_proj");
            let packed = changed(&own, |n, t| match fits(n, t) {
                false => vec![(n.to_owned(), t.clone())],
                true => {
                    let (weight, scale, _) = as_fp8(t, block);
                    vec![(n.to_owned(), weight), (format!("{n}_scale_inv"), scale)]
                }
            });
            let plain = changed(&own, |n, t| match fits(n, t) {
                false => vec![(n.to_owned(), t.clone())],
                true => vec![(n.to_owned(), as_fp8(t, block).2)],
            });
            let plain = rig.file("plain", &plain);
            for dtype in [WeightType::To(TensorType::BF16), WeightType::To(TensorType::Q8_0)] {
                let (_, a) = rig.grafted(&rig.file("packed", &packed), dtype).unwrap();
                assert!(a == rig.grafted(&plain, dtype).unwrap().1, "{name}, blocks of {block:?}, {dtype:?}");
            }
            // Kept, they become BF16.
            let (_, kept) = rig.grafted(&rig.file("packed", &packed), WeightType::Keep).unwrap();
            assert!(kept == rig.grafted(&plain, WeightType::To(TensorType::BF16)).unwrap().1, "{name}, {block:?}");
            let without: Tensors = packed.into_iter().filter(|(n, _)| !n.contains("q_proj.weight_scale")).collect();
            let e = rig.grafted(&rig.file("without", &without), WeightType::Keep).unwrap_err();
            assert!(e.contains("q_proj") && e.contains("scale"), "{e}");
        }
    }
}

#[test]
fn heads_that_are_not_whole_or_of_another_model_are_refused() {
    let (dense, moe) = (Rig::new("dense-a"), Rig::new("moe-a"));
    let own = |rig: &Rig| rig.head(|n| format!("mtp.{n}"));
    let says = |rig: &Rig, tensors: &Tensors, words: &str| {
        let e = rig.grafted(&rig.file("head.safetensors", tensors), WeightType::Keep).unwrap_err();
        assert!(e.contains(words), "{e:?} does not say {words:?}");
    };
    let mut without = own(&dense);
    without.remove("mtp.fc.weight");
    says(&dense, &without, "blk.8.nextn.eh_proj.weight is missing");
    says(&dense, &own(&moe), "blk.8.attn_k.weight: [128, 128] expected, [128, 64] found");
    says(&moe, &own(&dense), "does not fit");
    let mut short = with_single_experts(&own(&moe));
    short.retain(|n, _| !n.contains("experts.3."));
    says(&moe, &short, "expert 3 is missing");
    let mut narrow = own(&dense);
    let q = narrow.get_mut("mtp.layers.0.self_attn.q_proj.weight").unwrap();
    (q.shape[0], q.bytes) = (q.shape[0] / 2, q.bytes[..q.bytes.len() / 2].to_vec());
    says(&dense, &narrow, "blk.8.attn_q.weight");
    let main_model = dense.oracle.tensors.iter().filter(|(n, _)| !n.starts_with("mtp."));
    says(&dense, &main_model.map(|(n, t)| (n.clone(), t.clone())).collect(), "no tensor of a NextN head");
    let second = changed(&own(&dense), |n, t| vec![(n.to_owned(), t.clone()), (n.replace(".0.", ".1."), t.clone())]);
    says(&dense, &second, "blk.9.nextn.eh_proj.weight is missing");
}
