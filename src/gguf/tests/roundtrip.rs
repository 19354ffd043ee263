//! What is written is read back as it was, and what was read is written back byte for byte.

use crate::support::{good_files, rewrite};
use gguf::{ArrayBuf, GgufStr, Header, TensorType, Value, ValueType, Writer};
use proptest::collection::vec;
use proptest::prelude::*;

/// A value that owns its arrays and strings.
#[derive(Clone, Debug)]
enum Owned {
    Scalar(Value<'static>),
    Str(Vec<u8>),
    Array(ArrayBuf),
}

impl Owned {
    fn value(&self) -> Value<'_> {
        match self {
            Owned::Scalar(v) => *v,
            Owned::Str(s) => s.as_slice().into(),
            Owned::Array(a) => a.into(),
        }
    }
}

fn scalar() -> impl Strategy<Value = Value<'static>> {
    prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u32>().prop_map(|bits| Value::from(f32::from_bits(bits))),
        any::<u64>().prop_map(|bits| Value::from(f64::from_bits(bits))),
        any::<bool>().prop_map(Value::from),
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..12), ".{0,12}".prop_map(String::into_bytes)]
}

fn flat_array() -> impl Strategy<Value = ArrayBuf> {
    prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(|v| v.into_iter().collect()),
        vec(any::<i16>(), 0..9).prop_map(|v| v.into_iter().collect()),
        vec(any::<u32>(), 0..9).prop_map(|v| v.into_iter().collect()),
        vec(any::<i64>(), 0..9).prop_map(|v| v.into_iter().collect()),
        vec(any::<f32>(), 0..9).prop_map(|v| v.into_iter().collect()),
        vec(any::<f64>(), 0..9).prop_map(|v| v.into_iter().collect()),
        vec(any::<bool>(), 0..9).prop_map(|v| v.into_iter().collect()),
        vec(bytes(), 0..9).prop_map(|v| v.iter().map(Vec::as_slice).collect()),
    ]
}

fn any_array() -> impl Strategy<Value = ArrayBuf> {
    flat_array().prop_recursive(4, 32, 4, |inner| {
        vec(inner, 0..4).prop_map(|arrays| arrays.iter().map(ArrayBuf::as_array).collect())
    })
}

fn value() -> impl Strategy<Value = Owned> {
    prop_oneof![scalar().prop_map(Owned::Scalar), bytes().prop_map(Owned::Str), any_array().prop_map(Owned::Array)]
}

/// Up to three dimensions, the first in blocks.
fn tensor() -> impl Strategy<Value = (TensorType, Vec<u64>)> {
    (proptest::sample::select(TensorType::ALL), vec(0..4u64, 0..4)).prop_map(|(dtype, mut ne)| {
        match ne.first_mut() {
            Some(row) => *row *= dtype.block_size(),
            None => ne.push(dtype.block_size()),
        }
        (dtype, ne)
    })
}

/// Equal to the bit: `==` on floats takes NaN for another value and zero for minus zero.
fn same(a: &Value<'_>, b: &Value<'_>) -> bool {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn written_files_are_read_back_as_they_were(
        keys in proptest::collection::btree_map("[^\0]{1,20}", value(), 0..8),
        tensors in proptest::collection::btree_map("[a-z.]{1,30}", tensor(), 0..6),
        alignment in prop_oneof![Just(None), (0..10u32).prop_map(|n| Some(1u32 << n))],
        filler in any::<u8>(),
    ) {
        let mut w = Writer::in_memory();
        if let Some(alignment) = alignment {
            w.add("general.alignment", alignment).unwrap();
        }
        for (key, value) in &keys {
            w.add(key, value.value()).unwrap();
        }
        for (name, (dtype, ne)) in &tensors {
            w.tensor(name, ne, *dtype).unwrap();
        }
        let mut data = w.begin().unwrap();
        for (i, (name, (dtype, ne))) in tensors.iter().enumerate() {
            let n = dtype.row_bytes(ne[0]).unwrap() * ne[1..].iter().product::<u64>();
            data.write_tensor(name, &vec![filler.wrapping_add(i as u8); n as usize]).unwrap();
        }
        let bytes = data.finish().unwrap();

        let header = Header::parse(&bytes).unwrap();
        prop_assert_eq!(header.alignment(), u64::from(alignment.unwrap_or(32)));
        let found: Vec<_> = header.metadata().iter().filter(|(key, _)| *key != "general.alignment").collect();
        prop_assert_eq!(found.len(), keys.len());
        for ((key, value), (wanted_key, wanted)) in found.iter().zip(&keys) {
            prop_assert_eq!(*key, wanted_key.as_str());
            prop_assert!(same(value, &wanted.value()), "{}: {:?} is not {:?}", key, value, wanted);
        }
        prop_assert_eq!(header.tensors().len(), tensors.len());
        for (i, (t, (name, (dtype, ne)))) in header.tensors().iter().zip(&tensors).enumerate() {
            prop_assert_eq!((t.name, t.dtype, t.dims()), (name.as_str(), *dtype, ne.as_slice()));
            prop_assert!(bytes[t.range()].iter().all(|b| *b == filler.wrapping_add(i as u8)), "{}", name);
        }
        prop_assert_eq!(rewrite(&bytes, &header).unwrap(), bytes);
    }
}

#[test]
fn a_file_written_by_hand_is_rewritten_byte_for_byte() {
    for (name, bytes) in good_files() {
        let header = Header::parse(&bytes).expect(name);
        // These files have bytes in their padding, and some end with the last tensor; the writer pads with zeros.
        let mut expected = bytes[..header.data_start() as usize].to_vec();
        for t in header.tensors() {
            expected.resize(t.offset as usize, 0);
            expected.extend(&bytes[t.range()]);
        }
        expected.resize(expected.len().next_multiple_of(header.alignment() as usize), 0);
        let again = rewrite(&bytes, &header).expect(name);
        let differ = again.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!((differ, again.len()), (None, expected.len()), "{name}: first byte that differs, length");
    }
}

#[test]
fn values_keep_their_types_and_order() {
    let bytes = good_files().into_iter().find(|(name, _)| *name == "wide").unwrap().1;
    let header = Header::parse(&bytes).unwrap();
    let values: Vec<_> = header.metadata().iter().map(|(key, value)| (key, *value)).collect();
    assert_eq!(
        values,
        [
            ("general.alignment", Value::U32(64)),
            ("one", Value::U8(200)),
            ("two", Value::U64(u64::MAX)),
            ("broken text", Value::from(&b"\xff\xfe"[..])),
        ]
    );
    let meta = header.metadata();
    assert_eq!(meta.u32("one").unwrap(), Some(200));
    assert_eq!(meta.u64("two").unwrap(), Some(u64::MAX));
    assert_eq!(meta.u32("three").unwrap(), None);
    assert_eq!(meta.require_u32("three").unwrap_err().to_string(), "metadata key \"three\" is missing, u32 expected");
    assert_eq!(
        meta.str("broken text").unwrap_err().to_string(),
        "metadata key \"broken text\": string \"\u{fffd}\u{fffd}\" found, UTF-8 string expected"
    );
    assert_eq!(header.version(), 2);
}

#[test]
fn getters_take_every_width_that_fits_and_nothing_else() {
    let mut w = Writer::in_memory();
    w.add("i8", -5i8).unwrap();
    w.add("i64", i64::from(u32::MAX)).unwrap();
    w.add("f64", 0.5f64).unwrap();
    w.add("f64 huge", 1e300f64).unwrap();
    w.add("f64 inf", f64::INFINITY).unwrap();
    w.add("bool", true).unwrap();
    w.add("u16s", &[1u16, 65535].into_iter().collect::<ArrayBuf>()).unwrap();
    w.add("i64s", &[-1i64, 1 << 40].into_iter().collect::<ArrayBuf>()).unwrap();
    w.add("f64s", &[1.0f64, 2.5].into_iter().collect::<ArrayBuf>()).unwrap();
    w.add("bools", &[true, false].into_iter().collect::<ArrayBuf>()).unwrap();
    w.add("strs", &["a", "\u{fc}"].into_iter().collect::<ArrayBuf>()).unwrap();
    w.add("raw strs", &[&b"\xff"[..]].into_iter().collect::<ArrayBuf>()).unwrap();
    w.add("empty", &std::iter::empty::<u8>().collect::<ArrayBuf>()).unwrap();
    let bytes = w.begin().unwrap().finish().unwrap();
    let header = Header::parse(&bytes).unwrap();
    let m = header.metadata();
    assert_eq!(m.i32("i8").unwrap(), Some(-5));
    m.u32("i8").expect_err("negative");
    assert_eq!(m.u32("i64").unwrap(), Some(u32::MAX));
    m.i32("i64").expect_err("over i32");
    assert_eq!(m.f32("f64").unwrap(), Some(0.5));
    m.f32("f64 huge").expect_err("over f32");
    assert_eq!(m.f32("f64 inf").unwrap(), Some(f32::INFINITY));
    m.f32("i8").expect_err("an integer is not a float");
    assert_eq!(m.bool("bool").unwrap(), Some(true));
    m.u32("bool").expect_err("a bool is not a number");
    m.bool("i8").expect_err("a number is not a bool");
    assert_eq!(m.u32_array("u16s").unwrap(), Some(vec![1, 65535]));
    let message = m.i32_array("i64s").unwrap_err().to_string();
    assert_eq!(message, "metadata key \"i64s\": element 1 is i64 1099511627776 found, array of i32 expected");
    assert_eq!(m.f32_array("f64s").unwrap(), Some(vec![1.0, 2.5]));
    assert_eq!(m.bool_array("bools").unwrap(), Some(vec![true, false]));
    let strings = m.str_array("strs").unwrap().unwrap();
    assert_eq!((strings.len(), strings.iter_str().collect::<Result<Vec<_>, _>>().unwrap()), (2, vec!["a", "\u{fc}"]));
    let broken = m.str_array("raw strs").unwrap().unwrap();
    assert_eq!(broken.iter().collect::<Vec<_>>(), [b"\xff"]);
    let message = broken.iter_str().next().unwrap().unwrap_err().to_string();
    assert_eq!(message, "metadata key \"raw strs\": element 0 \"\u{fffd}\" found, UTF-8 expected");
    let empty = m.array("empty").unwrap().unwrap();
    assert_eq!((empty.elem_type(), empty.len(), empty.is_empty()), (ValueType::U8, 0, true));
    assert!(matches!(m.get("strs"), Some(Value::Array(a)) if a.iter().next() == Some(Value::from("a"))));
    assert_eq!(format!("{:?}", GgufStr::from("a\n")), "\"a\\n\"");
}

#[test]
fn a_vocabulary_of_real_size_is_walked_once_and_found_whole() {
    let tokens: Vec<String> = (0..248_320).map(|i| format!("t{i}")).collect();
    let merges: Vec<String> = (0..247_587).map(|i| format!("t{i} t{}", i + 1)).collect();
    let mut w = Writer::in_memory();
    w.add("tokens", &tokens.iter().map(String::as_str).collect::<ArrayBuf>()).unwrap();
    w.add("merges", &merges.iter().map(String::as_str).collect::<ArrayBuf>()).unwrap();
    let bytes = w.begin().unwrap().finish().unwrap();
    let start = std::time::Instant::now();
    let header = Header::parse(&bytes).unwrap();
    println!("{} bytes of header in {:?}", bytes.len(), start.elapsed());
    let found = header.metadata().str_array("tokens").unwrap().unwrap();
    assert!(found.iter_str().map(Result::unwrap).eq(tokens.iter().map(String::as_str)));
    let found = header.metadata().str_array("merges").unwrap().unwrap();
    assert!(found.iter_str().map(Result::unwrap).eq(merges.iter().map(String::as_str)));
}

/// The models of the repository, as many as there are: files that other programs wrote.
#[test]
fn the_models_of_the_repository_are_rewritten_byte_for_byte() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models");
    // A checkout without them has nothing to compare.
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ext| ext == "gguf") {
            let bytes = std::fs::read(&path).unwrap();
            let header = Header::parse(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let again = rewrite(&bytes, &header).unwrap();
            let differ = again.iter().zip(&bytes).position(|(a, b)| a != b);
            assert_eq!((differ, again.len()), (None, bytes.len()), "{}: first byte that differs", path.display());
        }
    }
}
