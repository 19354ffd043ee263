//! The writer checks the order and length of what it is given, and a file appears whole or not at all.

use std::io::Write;

use gguf::{Error, Header, TensorType, Writer};

/// One tensor `a` of 8 floats and one `b` of 2.
fn two_tensors(mut w: Writer) -> gguf::DataWriter {
    w.add("general.name", "two").unwrap();
    w.tensor("a", &[8], TensorType::F32).unwrap();
    w.tensor("b", &[2], TensorType::F32).unwrap();
    w.begin().unwrap()
}

fn names(dir: &tempfile::TempDir) -> Vec<String> {
    let mut names: Vec<_> =
        dir.path().read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_finished_file_is_there_and_a_dropped_one_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, "old").unwrap();

    let writer = Writer::create(&path).unwrap();
    assert_eq!(names(&dir).len(), 2, "{:?}", names(&dir));
    drop(writer);
    let mut data = two_tensors(Writer::create(&path).unwrap());
    data.write_tensor("a", &[1; 32]).unwrap();
    drop(data);
    assert_eq!(names(&dir), ["m.gguf"]);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");

    let mut data = two_tensors(Writer::create(&path).unwrap());
    data.write_tensor("a", &[1; 32]).unwrap();
    std::io::copy(&mut &[2; 8][..], &mut data.tensor("b").unwrap()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"old", "the target is as it was until the end");
    data.finish().unwrap();
    assert_eq!(names(&dir), ["m.gguf"]);
    let bytes = std::fs::read(&path).unwrap();
    let header = Header::parse(&bytes).unwrap();
    assert_eq!(&bytes[header.tensor("a").unwrap().range()], &[1; 32]);
    assert_eq!(&bytes[header.tensor("b").unwrap().range()], &[2; 8]);
    assert_eq!(bytes.len() % 32, 0);
}

#[test]
fn a_layout_filled_by_hand_is_the_file_that_the_writer_writes() {
    let mut w = Writer::in_memory();
    w.add("general.alignment", 64u32).unwrap();
    w.tensor("a", &[8], TensorType::F32).unwrap();
    w.tensor("b", &[2], TensorType::F32).unwrap();
    let layout = w.layout().unwrap();
    let mut data = w.begin().unwrap();
    data.write_tensor("a", &[1; 32]).unwrap();
    data.write_tensor("b", &[2; 8]).unwrap();
    let written = data.finish().unwrap();

    let mut by_hand = vec![0; layout.n_bytes as usize];
    by_hand[..layout.header.len()].copy_from_slice(&layout.header);
    for ((name, start, n_bytes), fill) in layout.tensors.iter().zip([1, 2]) {
        assert_eq!(name, if fill == 1 { "a" } else { "b" });
        by_hand[*start as usize..][..*n_bytes as usize].fill(fill);
    }
    assert_eq!(by_hand, written);
}

#[test]
fn two_writers_of_one_target_do_not_share_a_temporary_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let (first, second) = (Writer::create(&path).unwrap(), Writer::create(&path).unwrap());
    assert_eq!(names(&dir).len(), 2);
    second.begin().unwrap().finish().unwrap();
    first.begin().unwrap().finish().unwrap();
    assert_eq!(names(&dir), ["m.gguf"]);
}

#[test]
fn a_target_that_cannot_be_is_said_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().join("no/such/m.gguf"), dir.path().to_owned()] {
        let error = Writer::create(&path).unwrap_err();
        assert!(matches!(&error, Error::Io { path: p, .. } if *p == path), "{error}");
    }
}

#[test]
fn data_comes_in_the_declared_order_and_length() {
    let dir = tempfile::tempdir().unwrap();
    let begin = || two_tensors(Writer::create(dir.path().join("m.gguf")).unwrap());
    let message = |e: Error| e.to_string();

    let mut data = begin();
    assert_eq!(
        message(data.tensor("b").map(drop).unwrap_err()),
        "tensor \"b\": data of this tensor found, tensor \"a\" expected by the writer"
    );
    assert_eq!(
        message(data.write_tensor("a", &[0; 33]).unwrap_err()),
        "tensor \"a\": 33 bytes found, 32 bytes expected by the writer"
    );
    let mut data = begin();
    assert_eq!(
        message(data.write_tensor("a", &[0; 31]).unwrap_err()),
        "tensor \"a\": 31 bytes found, 32 bytes expected by the writer"
    );
    let mut data = begin();
    data.tensor("a").unwrap().write_all(&[0; 30]).unwrap();
    assert!(message(data.tensor("b").map(drop).unwrap_err()).contains("30 bytes found"));
    assert!(message(data.finish().unwrap_err()).contains("30 bytes found"));
    let mut data = begin();
    data.write_tensor("a", &[0; 32]).unwrap();
    assert_eq!(message(data.finish().unwrap_err()), "tensor \"b\": 0 bytes found, 8 bytes expected by the writer");
    let mut data = begin();
    data.write_tensor("a", &[0; 32]).unwrap();
    data.write_tensor("b", &[0; 8]).unwrap();
    assert!(message(data.tensor("c").map(drop).unwrap_err()).contains("no more tensors expected"));
}

/// Declares and begins; the message when either is refused.
fn begin(declare: impl Fn(&mut Writer<Vec<u8>>) -> Result<(), Error>) -> Result<(), String> {
    let mut w = Writer::in_memory();
    declare(&mut w).and_then(|()| w.begin().map(drop)).map_err(|e| e.to_string())
}

#[test]
fn a_header_that_could_not_be_read_is_not_written() {
    let twice = |w: &mut Writer<_>| w.add("k", 1u8).and_then(|()| w.add("k", 2u8));
    assert_eq!(begin(twice).unwrap_err(), "metadata key \"k\" appears twice");
    assert!(begin(|w| w.add("", 1u8)).unwrap_err().contains("empty name"));
    assert!(begin(|w| w.add("general.alignment", 48u32)).unwrap_err().contains("power of two"));
    assert!(begin(|w| w.set_version(1)).unwrap_err().contains("version 1"));
    assert!(begin(|w| w.tensor("t", &[100], TensorType::Q4_K)).unwrap_err().contains("multiple of 256"));
    assert!(begin(|w| w.tensor("t", &[1; 5], TensorType::F32)).unwrap_err().contains("at most 4"));
    assert!(begin(|w| w.tensor(&"t".repeat(64), &[1], TensorType::F32)).unwrap_err().contains("at most 63"));
    let wraps = |w: &mut Writer<_>| (0..5).try_for_each(|i| w.tensor(&format!("t{i}"), &[1 << 62], TensorType::I8));
    assert!(begin(wraps).unwrap_err().contains("2^64"));
    begin(|w| w.tensor("t", &[256], TensorType::Q4_K)).unwrap();
}
