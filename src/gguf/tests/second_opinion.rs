//! The crate `gguf-rs` sees the same metadata, where it is right: it loses number types, replaces bytes that are not
//! UTF-8, and has wrong sizes for several tensor types. Those are left out here.

use gguf::{ArrayBuf, Header, TensorType, Value, Writer};
use proptest::prelude::*;

/// What `gguf-rs` makes of the bytes: keys with values as JSON, tensors as name, type id, offset and shape.
fn theirs(bytes: &[u8]) -> gguf_rs::GGUFModel {
    // It wants the version behind the magic.
    let (magic, rest) = bytes.split_at(4);
    assert_eq!(magic, b"GGUF");
    let reader = Box::new(std::io::Cursor::new(rest.to_vec()));
    gguf_rs::GGUFContainer::new(gguf_rs::ByteOrder::LE, reader, u64::MAX).decode().unwrap()
}

/// Our value as text in JSON's manner, compared with theirs as text.
fn json(value: &Value<'_>) -> String {
    match value {
        Value::U8(v) => v.to_string(),
        Value::I8(v) => v.to_string(),
        Value::U16(v) => v.to_string(),
        Value::I16(v) => v.to_string(),
        Value::U32(v) => v.to_string(),
        Value::I32(v) => v.to_string(),
        Value::U64(v) => v.to_string(),
        Value::I64(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::Str(v) => format!("\"{}\"", v.as_str().expect("only text is written here")),
        Value::Array(v) => format!("[{}]", v.iter().map(|v| json(&v)).collect::<Vec<_>>().join(",")),
        Value::F32(_) | Value::F64(_) => panic!("compared as numbers, not as text"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn gguf_rs_reads_the_same_metadata(
        ints in (any::<u8>(), any::<i8>(), any::<u16>(), any::<i16>(), any::<u32>(), any::<i32>(), any::<u64>(), any::<i64>()),
        float in -1e30f32..1e30,
        flag in any::<bool>(),
        text in "[ -!#-\\[\\]-~\u{e4}\u{4e2d}]{0,20}",
        tokens in proptest::collection::vec("[a-z\u{e4}]{0,6}", 0..20),
        types in proptest::collection::vec(any::<i32>(), 0..20),
        rows in 1..6u64,
    ) {
        let mut w = Writer::in_memory();
        w.add("u8", ints.0).unwrap();
        w.add("i8", ints.1).unwrap();
        w.add("u16", ints.2).unwrap();
        w.add("i16", ints.3).unwrap();
        w.add("u32", ints.4).unwrap();
        w.add("i32", ints.5).unwrap();
        w.add("u64", ints.6).unwrap();
        w.add("i64", ints.7).unwrap();
        w.add("f32", float).unwrap();
        w.add("f64", f64::from(float)).unwrap();
        w.add("bool", flag).unwrap();
        w.add("str", text.as_str()).unwrap();
        w.add("tokens", &tokens.iter().map(String::as_str).collect::<ArrayBuf>()).unwrap();
        w.add("types", &types.into_iter().collect::<ArrayBuf>()).unwrap();
        w.tensor("x", &[256, rows], TensorType::Q4_K).unwrap();
        w.tensor("y", &[7, rows], TensorType::F32).unwrap();
        let mut data = w.begin().unwrap();
        data.write_tensor("x", &vec![0; 144 * rows as usize]).unwrap();
        data.write_tensor("y", &vec![0; 28 * rows as usize]).unwrap();
        let bytes = data.finish().unwrap();

        let header = Header::parse(&bytes).unwrap();
        let other = theirs(&bytes);
        prop_assert_eq!(other.metadata().len(), header.metadata().len());
        for (key, value) in header.metadata().iter() {
            let their = &other.metadata()[key];
            match value {
                Value::F32(v) => prop_assert_eq!(their.as_f64().unwrap() as f32, *v, "{}", key),
                Value::F64(v) => prop_assert_eq!(their.as_f64().unwrap(), *v, "{}", key),
                _ => prop_assert_eq!(their.to_string(), json(value), "{}", key),
            }
        }
        prop_assert_eq!(other.alignment(), header.alignment());
        prop_assert_eq!(other.data_offset(), header.data_start());
        for (their, ours) in other.tensors().iter().zip(header.tensors()) {
            prop_assert_eq!(their.name.as_str(), ours.name);
            prop_assert_eq!(their.kind, ours.dtype.id());
            prop_assert_eq!(their.offset + other.data_offset(), ours.offset);
            prop_assert_eq!(their.size, ours.n_bytes, "{} is one of the types it knows", ours.dtype);
        }
    }
}
