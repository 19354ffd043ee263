//! Damaged and malicious safetensors files and indexes: an error each, whatever they say.

use std::panic::catch_unwind;
use std::path::Path;

use crate::support::{Oracle, Tensor, Tensors, safetensors};
use convert::check::{Verdict, verify};
use convert::checkpoint::{Checkpoint, Head, Options};
use convert::safetensors::{File, Header, Shards};
use serde_json::json;

fn small() -> Tensors {
    [
        ("a".to_owned(), Tensor::f32(&[2, 3], [1.0; 6])),
        ("b".to_owned(), Tensor::bf16(&[4], &[7; 8])),
        ("c".to_owned(), Tensor::f32(&[], [2.0])),
    ]
    .into()
}

/// A file with this header and so many bytes of data.
fn with_header(json: &str, n_data: usize) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &vec![0; n_data]].concat()
}

fn parse(bytes: &[u8]) -> Result<Header, String> {
    let n = Header::length(&bytes[..bytes.len().min(8)], bytes.len() as u64)?;
    Header::parse(&bytes[8..8 + n as usize], bytes.len() as u64)
}

#[test]
fn a_good_file_is_read() {
    let header = parse(&safetensors(&small())).unwrap();
    let names: Vec<_> = header.tensors.iter().map(|t| (t.name.as_str(), t.n_elements(), t.n_bytes)).collect();
    assert_eq!(names, [("a", 6, 24), ("b", 4, 8), ("c", 1, 4)]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    std::fs::write(&path, safetensors(&small())).unwrap();
    let file = File::open(&path).unwrap();
    let b = &file.tensors()[1];
    let mut bytes = vec![0; b.n_bytes as usize];
    file.input().read_at(&mut bytes, b.start).unwrap();
    assert_eq!(bytes, [7; 8]);
}

#[test]
fn attacks_are_refused_in_words() {
    let t = |entry: &str| format!("{{{entry}}}");
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for (bytes, words) in [
        (vec![], "at least 8"),
        (vec![1, 0, 0], "at least 8"),
        (u64::MAX.to_le_bytes().to_vec(), "at most 100000000"),
        (100_000_001u64.to_le_bytes().to_vec(), "at most 100000000"),
        (50u64.to_le_bytes().to_vec(), "cut short"),
        (b"GGUF\x03\0\0\0\0\0".to_vec(), "GGUF file"),
        (with_header("", 0), "header:"),
        (with_header("[]", 0), "an object of tensors"),
        (with_header("{} x", 0), "header:"),
        (with_header(&deep, 0), "header:"),
        (
            with_header(
                &t(
                    r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#,
                ),
                8,
            ),
            "appears twice",
        ),
        (
            with_header(&t(r#""a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}"#), 4),
            "dtype appears twice",
        ),
        (with_header(&t(r#""a":{"dtype":"F32","shape":[1]}"#), 4), "no data_offsets"),
        (with_header(&t(r#""a":{"shape":[1],"data_offsets":[0,4]}"#), 4), "no dtype"),
        (with_header(&t(r#""a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}"#), 4), "F31"),
        (with_header(&t(r#""a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#), 4), "header:"),
        (
            with_header(&t(r#""a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}"#), 4),
            "more than 8 dimensions",
        ),
        (with_header(&t(r#""a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}"#), 1), "no number of bytes"),
        (
            with_header(&t(r#""a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}"#), 0),
            "no number of bytes",
        ),
        (with_header(&t(r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}"#), 4), "8 bytes expected"),
        (with_header(&t(r#""a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#), 4), "4 bytes expected"),
        (
            with_header(
                &t(r#""a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615]}"#),
                4,
            ),
            "expected",
        ),
        (
            with_header(
                &t(r#""a":{"dtype":"U8","shape":[4],"data_offsets":[18446744073709551611,18446744073709551615]}"#),
                4,
            ),
            "cut short",
        ),
        (with_header(&t(r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#), 4), "cut short"),
        (
            with_header(
                &t(
                    r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#,
                ),
                8,
            ),
            "overlaps",
        ),
        (
            with_header(
                &t(
                    r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}"#,
                ),
                12,
            ),
            "gap of 4 bytes",
        ),
        (with_header(&t(r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#), 5), "the file at byte"),
    ] {
        let e = parse(&bytes).expect_err(words);
        assert!(e.contains(words), "{e:?} does not say {words:?}");
    }
}

#[test]
fn an_index_names_files_beside_it_that_are_there() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x.safetensors"), safetensors(&small())).unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    let open = |map: serde_json::Value| {
        std::fs::write(&index, json!({"weight_map": map}).to_string()).unwrap();
        Shards::open(dir.path(), |_| true).map(|s| s.iter().count()).map_err(|e| e.to_string())
    };
    assert_eq!(open(json!({"a": "x.safetensors", "b": "x.safetensors"})), Ok(3));
    for name in ["../x.safetensors", "/etc/passwd", "..", ".", "", "sub/x.safetensors", "a\\b", "C:x.safetensors"] {
        let e = open(json!({"a": name})).expect_err(name);
        assert!(e.contains("a name without a path expected"), "{e}");
    }
    let e = open(json!({"a": "x.safetensors", "z": "y.safetensors"})).unwrap_err();
    assert!(e.contains("1 file") && e.contains("y.safetensors"), "{e}");
    let e = open(json!({"z": "x.safetensors"})).unwrap_err();
    assert!(e.contains("\"z\"") && e.contains("no such"), "{e}");
    std::fs::write(dir.path().join("y.safetensors"), safetensors(&small())).unwrap();
    let e = open(json!({"a": "x.safetensors", "b": "y.safetensors"})).unwrap_err();
    assert!(e.contains("is also in x.safetensors"), "{e}");
    for text in
        ["", "{}", "[]", r#"{"weight_map":{"a":1}}"#, r#"{"weight_map":{"a":"x.safetensors","a":"x.safetensors"}}"#]
    {
        std::fs::write(&index, text).unwrap();
        assert!(Shards::open(dir.path(), |_| true).is_err(), "{text}");
    }
    std::fs::remove_file(&index).unwrap();
    std::fs::remove_file(dir.path().join("y.safetensors")).unwrap();
    std::fs::rename(dir.path().join("x.safetensors"), dir.path().join("m-00002-of-00003.safetensors")).unwrap();
    let e = Shards::open(dir.path(), |_| true).unwrap_err().to_string();
    assert!(e.contains("m-00001-of-00003.safetensors is not"), "{e}");
    let e = Shards::open(Path::new("/dev/zero"), |_| true).unwrap_err().to_string();
    assert!(e.contains("not a regular file"), "{e}");
}

/// A generator of numbers that are the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

#[test]
fn three_thousand_damaged_checkpoints_neither_panic_nor_write() {
    let oracle = Oracle::open("dense-a");
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("checkpoint");
    std::fs::create_dir(&folder).unwrap();
    oracle.write(&folder);
    let shard = folder.join("model.safetensors");
    let good = std::fs::read(&shard).unwrap();
    let n_header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let config = std::fs::read(folder.join("config.json")).unwrap();
    let tokenizer = std::fs::read(folder.join("tokenizer_config.json")).unwrap();
    let files = |folder: &Path| folder.read_dir().unwrap().count();
    let before = files(&folder);
    let mut random = Random(17);
    let mut damage = |bytes: &[u8], n: usize| -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..1 + random.below(4) {
            let at = random.below(n.min(bytes.len()));
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = b"0123456789[]{}\",:"[random.below(17)],
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"0123456789[]{}\",:"[random.below(17)]),
            }
        }
        if random.below(8) == 0 {
            bytes.truncate(random.below(bytes.len()));
        }
        bytes
    };
    let mut n_refused = 0;
    for i in 0..3000 {
        let (path, bytes, n_bytes) = match i % 6 {
            4 => ("config.json", damage(&config, config.len()), None),
            5 => ("tokenizer_config.json", damage(&tokenizer, tokenizer.len()), None),
            // With as much data as before, or with none; what it is does not matter here.
            n => (
                "model.safetensors",
                damage(&good[..n_header], n_header),
                (n % 2 == 0).then_some(good.len() - n_header),
            ),
        };
        let (path, aside) = (folder.join(path), dir.path().join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        if let Some(n_bytes) = n_bytes {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len((bytes.len() + n_bytes) as u64).unwrap();
        }
        let outcome = catch_unwind(|| {
            let head = Head::open(&shard).map(|head| head.tensors().len()).map_err(|e| e.to_string());
            let whole = Checkpoint::open(&folder, Options::default()).map(drop).map_err(|e| e.to_string());
            let options = convert::check::Options { values: false, n_threads: 1 };
            // It does the same once more: now and then is enough.
            let judged = (i % 7 == 0).then(|| verify(&folder, options, &Default::default()).map_err(|e| e.to_string()));
            (head, whole, judged)
        });
        let (head, whole, judged) = outcome.unwrap_or_else(|_| panic!("damage {i} panics"));
        // What cannot be opened is damaged, and what can is not.
        if let Some(judged) = judged {
            let damaged = judged.as_ref().is_ok_and(|report| report.verdict == Verdict::Damaged);
            assert_eq!(damaged, whole.is_err(), "damage {i}: {judged:?}, {whole:?}");
        }
        for e in [head.as_ref().err(), whole.as_ref().err()].into_iter().flatten() {
            assert!(e.len() > 20 && e.len() < 2000, "{e}");
        }
        n_refused += u32::from(whole.is_err());
        std::fs::rename(&aside, &path).unwrap();
    }
    assert!((1000..3000).contains(&n_refused), "{n_refused}: most damage is found, some changes nothing that matters");
    assert_eq!(files(&folder), before, "nothing was written");
}
