//! The head of a checkpoint is found in whatever it comes in, and is what a GGUF file of it has.

use crate::support::{Oracle, Tensors, safetensors, with_single_experts, write_folder};
use convert::checkpoint::Head;
use gguf::{Header, TensorType};

/// All tensors of a head by name, in their own types.
fn all(head: &Head) -> Vec<(String, Vec<u64>, TensorType, Vec<u8>)> {
    let mut all: Vec<_> = head
        .tensors()
        .iter()
        .enumerate()
        .map(|(i, t)| {
            let mut bytes = Vec::new();
            head.write(i, t.dtype, &mut bytes).unwrap();
            assert_eq!(t.layer, 0);
            (t.name.clone(), t.ne.clone(), t.dtype, bytes)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn every_source_of_a_head_gives_the_tensors_of_the_file() {
    for name in ["dense-a", "moe-a"] {
        let oracle = Oracle::open(name);
        let header = Header::parse(&oracle.gguf).unwrap();
        let mut expected: Vec<_> = header
            .tensors()
            .iter()
            .filter_map(|t| {
                Some((
                    t.name.strip_prefix("blk.8.")?.to_owned(),
                    t.dims().to_vec(),
                    t.dtype,
                    oracle.gguf[t.range()].to_vec(),
                ))
            })
            .collect();
        expected.sort();
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, tensors: &Tensors| {
            let path = dir.path().join(name);
            std::fs::write(&path, safetensors(tensors)).unwrap();
            all(&Head::open(&path).unwrap())
        };
        let only: Tensors =
            oracle.tensors.iter().filter(|(n, _)| n.starts_with("mtp.")).map(|(n, t)| (n.clone(), t.clone())).collect();
        let renamed = |prefix: &str| -> Tensors {
            only.iter().map(|(n, t)| (format!("{prefix}{}", n.strip_prefix("mtp.").unwrap()), t.clone())).collect()
        };
        assert_eq!(of("whole.safetensors", &oracle.tensors), expected, "{name}");
        assert_eq!(of("only.safetensors", &only), expected, "{name}");
        assert_eq!(of("bare.safetensors", &renamed("")), expected, "{name}");
        assert_eq!(of("model.safetensors", &renamed("model.mtp.")), expected, "{name}");
        assert_eq!(of("language.safetensors", &renamed("language_model.mtp.")), expected, "{name}");
        assert_eq!(of("single.safetensors", &with_single_experts(&only)), expected, "{name}");

        // Of the shards of a checkpoint only that of the head is there.
        let folder = dir.path().join("shards");
        std::fs::create_dir(&folder).unwrap();
        let main_model: Tensors = oracle
            .tensors
            .iter()
            .filter(|(n, _)| !n.starts_with("mtp."))
            .map(|(n, t)| (n.clone(), t.clone()))
            .collect();
        write_folder(&folder, &oracle.config, &[main_model, only.clone()]);
        std::fs::remove_file(folder.join("model-00001-of-00002.safetensors")).unwrap();
        assert_eq!(all(&Head::open(&folder).unwrap()), expected, "{name}");
        let e = convert::checkpoint::Checkpoint::open(&folder, Default::default()).unwrap_err().to_string();
        assert!(e.contains("model-00001-of-00002.safetensors"), "{e}");

        // A head beside a checkpoint that has none: its file is not in the index.
        let beside = dir.path().join("beside");
        std::fs::create_dir(&beside).unwrap();
        let half = |i: usize| -> Tensors {
            oracle
                .tensors
                .iter()
                .filter(|(n, _)| !n.starts_with("mtp."))
                .enumerate()
                .filter(|(j, _)| j % 2 == i)
                .map(|(_, (n, t))| (n.clone(), t.clone()))
                .collect()
        };
        write_folder(&beside, &oracle.config, &[half(0), half(1)]);
        std::fs::write(beside.join("mtp.safetensors"), safetensors(&only)).unwrap();
        assert_eq!(all(&Head::open(&beside).unwrap()), expected, "{name}");
    }
}

#[test]
fn a_head_can_be_written_in_other_types() {
    let oracle = Oracle::open("dense-a");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("whole.safetensors");
    std::fs::write(&path, safetensors(&oracle.tensors)).unwrap();
    let head = Head::open(&path).unwrap();
    let i = head.tensors().iter().position(|t| t.name == "nextn.eh_proj.weight").unwrap();
    let mut bytes = Vec::new();
    head.write(i, TensorType::Q8_0, &mut bytes).unwrap();
    assert_eq!(bytes.len(), 256 * 128 / 32 * 34);
    let e = head.write(i, TensorType::IQ2_XXS, &mut bytes).unwrap_err().to_string();
    assert!(e.starts_with("nextn.eh_proj.weight"), "{e}");
}

#[test]
fn a_file_without_a_head_is_said_to_have_none() {
    let oracle = Oracle::open("dense-a");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("main.safetensors");
    let main_model: Tensors = oracle.tensors.into_iter().filter(|(n, _)| !n.starts_with("mtp.")).collect();
    std::fs::write(&path, safetensors(&main_model)).unwrap();
    let e = Head::open(&path).unwrap_err().to_string();
    assert!(e.contains("no tensor of a NextN head"), "{e}");
}
