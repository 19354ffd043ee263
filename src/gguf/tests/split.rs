//! Shards find each other by name, and shards that do not belong together are told apart.

use std::path::{Path, PathBuf};

use gguf::{Header, SplitInfo, TensorType, Writer, check_shards, shard_paths};

/// Shard `no` of `count` with these tensors, of `n_tensors` in all.
fn shard(no: u16, count: u16, n_tensors: i32, names: &[&str]) -> Vec<u8> {
    let mut w = Writer::in_memory();
    w.add("split.no", no).unwrap();
    w.add("split.count", count).unwrap();
    w.add("split.tensors.count", n_tensors).unwrap();
    names.iter().for_each(|name| w.tensor(name, &[4], TensorType::F32).unwrap());
    let mut data = w.begin().unwrap();
    names.iter().for_each(|name| data.write_tensor(name, &[0; 16]).unwrap());
    data.finish().unwrap()
}

#[track_caller]
fn check(files: &[Vec<u8>]) -> Result<(), String> {
    let headers: Vec<_> = files.iter().map(|f| Header::parse(f).unwrap()).collect();
    check_shards(&headers).map_err(|e| e.to_string())
}

#[test]
fn the_first_shard_names_all_others() {
    let bytes = shard(0, 3, 3, &["a"]);
    let info = SplitInfo::of(&Header::parse(&bytes).unwrap()).unwrap().unwrap();
    assert_eq!(info, SplitInfo { no: 0, count: 3, n_tensors: 3 });
    let paths = shard_paths(Path::new("dir/m-q4-00001-of-00003.gguf"), &info).unwrap();
    let names = ["dir/m-q4-00001-of-00003.gguf", "dir/m-q4-00002-of-00003.gguf", "dir/m-q4-00003-of-00003.gguf"];
    assert_eq!(paths, names.map(PathBuf::from));
    for renamed in ["dir/m.gguf", "dir/m-00001-of-00004.gguf", "dir/m-00001-of-00003.gguf.bak", "", ".."] {
        let message = shard_paths(Path::new(renamed), &info).unwrap_err().to_string();
        assert!(message.contains("\"-00001-of-00003.gguf\" expected"), "{message}");
    }
}

#[test]
fn another_shard_opened_by_mistake_names_the_first() {
    let bytes = shard(1, 3, 3, &["b"]);
    let info = SplitInfo::of(&Header::parse(&bytes).unwrap()).unwrap().unwrap();
    let message = |path: &str| shard_paths(Path::new(path), &info).unwrap_err().to_string();
    assert_eq!(
        message("dir/m-00002-of-00003.gguf"),
        "this is shard 2 of 3, the first shard expected; open \"m-00001-of-00003.gguf\""
    );
    assert!(message("renamed.gguf").ends_with("open \"...-00001-of-00003.gguf\""));
}

#[test]
fn whole_files_are_not_split() {
    let mut w = Writer::in_memory();
    w.add("split.count", 0u16).unwrap();
    for bytes in [w.begin().unwrap().finish().unwrap(), Writer::in_memory().begin().unwrap().finish().unwrap()] {
        assert_eq!(SplitInfo::of(&Header::parse(&bytes).unwrap()).unwrap(), None);
    }
    let message = check(&[Writer::in_memory().begin().unwrap().finish().unwrap()]).unwrap_err();
    assert!(message.contains("split.count is not in the first"), "{message}");
}

#[test]
fn split_keys_out_of_range_or_missing_are_refused() {
    let of = |bytes: &[u8]| SplitInfo::of(&Header::parse(bytes).unwrap()).unwrap_err().to_string();
    assert!(of(&shard(3, 3, 1, &[])).contains("split.no is 3, below split.count = 3 expected"));
    assert!(of(&shard(0, 3, -1, &[])).contains("\"split.tensors.count\": i32 -1 found, u64 expected"));
    let mut w = Writer::in_memory();
    w.add("split.count", 2u16).unwrap();
    assert!(of(&w.begin().unwrap().finish().unwrap()).contains("\"split.no\" is missing"));
    let mut w = Writer::in_memory();
    w.add("split.count", u32::MAX).unwrap();
    w.add("split.no", 0u16).unwrap();
    w.add("split.tensors.count", 0i32).unwrap();
    assert!(of(&w.begin().unwrap().finish().unwrap()).contains("split.count is 4294967295, at most 99999 allowed"));
}

#[test]
fn shards_of_one_model_agree() {
    let (a, b, c) = (shard(0, 3, 4, &["a"]), shard(1, 3, 4, &["b", "c"]), shard(2, 3, 4, &["d"]));
    check(&[a.clone(), b.clone(), c.clone()]).unwrap();
    check(&[shard(0, 1, 1, &["a"])]).unwrap();
    let told = |files: &[&Vec<u8>], part: &str| {
        let message = check(&files.iter().map(|f| f.to_vec()).collect::<Vec<_>>()).unwrap_err();
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    };
    told(&[&a, &b], "2 shards given, split.count is 3");
    told(&[&a, &c, &b], "shard 2: split.no is 2, 1 expected");
    told(&[&b, &a, &c], "shard 1: split.no is 1, 0 expected");
    told(&[&a, &shard(1, 2, 4, &["b"]), &c], "shard 2: split.count is 2, 3 expected");
    told(&[&a, &b, &shard(2, 3, 5, &["d"])], "shard 3: split.tensors.count is 5, 4 expected");
    told(&[&a, &b, &shard(2, 3, 4, &["a"])], "tensor \"a\" is in shard 1 and in shard 3");
    told(&[&a, &b, &shard(2, 3, 4, &[])], "3 tensors in all shards, split.tensors.count is 4");
    told(&[&a, &Writer::in_memory().begin().unwrap().finish().unwrap(), &c], "\"split.no\" is missing");
}
