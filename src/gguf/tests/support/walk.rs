//! Everything that a caller can ask of a parsed file, asked once. Used by the mutation test and by the fuzzer.

use std::path::Path;

use gguf::{Error, Header, Value, Writer, check_shards, shard_paths};

/// Parses, decodes every value, reads every tensor's bytes, writes the file again and compares the two.
///
/// # Errors
/// The file does not parse. Everything after that must go well or panics, typed getters aside, which may refuse.
pub fn walk(bytes: &[u8]) -> Result<(), Error> {
    let header = Header::parse(bytes)?;
    let meta = header.metadata();
    for (key, value) in meta.iter() {
        assert!(meta.get(key).is_some(), "{key:?} is listed and not found");
        std::hint::black_box((value.to_string(), format!("{value:?}")));
        count(value);
        if let Ok(Some(strings)) = meta.str_array(key) {
            assert_eq!(strings.iter().count(), strings.len());
            strings.iter_str().filter_map(Result::err).for_each(said);
        }
        let refused = [
            meta.u32(key).err(),
            meta.u64(key).err(),
            meta.i32(key).err(),
            meta.f32(key).err(),
            meta.bool(key).err(),
            meta.str(key).err(),
            meta.array(key).err(),
            meta.u32_array(key).err(),
            meta.i32_array(key).err(),
            meta.f32_array(key).err(),
            meta.bool_array(key).err(),
        ];
        refused.into_iter().flatten().for_each(said);
    }
    for tensor in header.tensors() {
        assert_eq!(header.tensor(tensor.name), Some(tensor));
        assert_eq!(bytes[tensor.range()].len() as u64, tensor.n_bytes);
        assert_eq!(tensor.offset % header.alignment(), 0);
    }
    if let Ok(Some(split)) = gguf::SplitInfo::of(&header) {
        let path = format!("m-00001-of-{:05}.gguf", split.count);
        shard_paths(Path::new(&path), &split).err().into_iter().for_each(said);
        check_shards(std::slice::from_ref(&header)).err().into_iter().for_each(said);
    }
    // With more, the padding alone would be gigabytes.
    if header.alignment() <= 4096 {
        let again = rewrite(bytes, &header).expect("what was read can be written");
        let reread = Header::parse(&again).expect("what was written can be read");
        assert_eq!(reread.tensors(), header.tensors());
        let end = header.tensors().last().map_or(header.data_start() as usize, |t| t.range().end);
        assert!(again.len() >= end, "{} of {end} bytes written", again.len());
        // Up to the data all is equal, but for padding, which a damaged file may have filled.
        let pairs = |h: &Header<'_>| h.metadata().iter().map(|(k, v)| (k.to_owned(), encoded(v))).collect::<Vec<_>>();
        assert_eq!(pairs(&reread), pairs(&header));
        for tensor in header.tensors() {
            assert_eq!(bytes[tensor.range()], again[tensor.range()], "{}", tensor.name);
        }
    }
    Ok(())
}

/// Messages are short, whatever the file holds.
fn said(error: Error) {
    let message = error.to_string();
    assert!(message.len() < 2000, "{} bytes of message: {message}", message.len());
}

/// The same file by this crate's writer.
pub fn rewrite(bytes: &[u8], header: &Header<'_>) -> Result<Vec<u8>, Error> {
    let mut w = Writer::in_memory();
    w.set_version(header.version())?;
    w.add_all(header.metadata())?;
    for t in header.tensors() {
        w.tensor(t.name, t.dims(), t.dtype)?;
    }
    let mut data = w.begin()?;
    for t in header.tensors() {
        data.write_tensor(t.name, &bytes[t.range()])?;
    }
    data.finish()
}

/// Bits, where `==` would not do: NaN.
fn encoded(value: &Value<'_>) -> Vec<u8> {
    match value {
        Value::F32(v) => v.to_bits().to_le_bytes().to_vec(),
        Value::F64(v) => v.to_bits().to_le_bytes().to_vec(),
        Value::Array(a) => a.bytes().to_vec(),
        other => format!("{other:?}").into_bytes(),
    }
}

/// All scalars and strings, however deep.
fn count(value: &Value<'_>) -> usize {
    match value {
        Value::Array(array) => {
            assert_eq!(array.iter().len(), array.len());
            array.iter().map(|v| count(&v)).sum()
        }
        _ => 1,
    }
}
