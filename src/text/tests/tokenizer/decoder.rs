//! The streaming decoder against the decoding of the whole, for every way of cutting.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use text::Decoder;

use crate::generate::{any_text, config};

fn decoded<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut decoder = Decoder::new();
    let mut text: String = parts.into_iter().map(|part| decoder.push(part)).collect();
    text += &decoder.finish();
    text
}

/// Well-formed text, damaged text, and bytes that are mostly the beginnings and ends of characters.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let edges = prop::sample::select(&b"a\x80\xbf\xc0\xc2\xc3\xe0\xe2\x9f\xa0\xed\xef\xf0\x90\xf4\x8f\xf5\xff"[..]);
    prop_oneof![
        any_text().prop_map(String::into_bytes),
        prop::collection::vec(edges, 0..40),
        (any_text(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(text, at, byte)| {
            let mut bytes = text.into_bytes();
            bytes.insert(at.index(bytes.len() + 1), byte);
            bytes
        }),
    ]
}

#[test]
fn every_cut_gives_the_text_of_the_whole() {
    TestRunner::new(config(2000))
        .run(&any_bytes(), |bytes| {
            let whole = String::from_utf8_lossy(&bytes);
            prop_assert_eq!(&decoded(bytes.chunks(1)), &whole);
            prop_assert_eq!(&decoded(bytes.chunks(3)), &whole);
            for cut in 0..=bytes.len() {
                let (head, tail) = bytes.split_at(cut);
                prop_assert_eq!(&decoded([head, tail]), &whole);
                prop_assert_eq!(&decoded([head, &[], tail]), &whole);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_part_of_a_character_waits_and_a_wrong_one_does_not() {
    let mut decoder = Decoder::new();
    assert_eq!(decoder.push(b"a\xf0\x9f"), "a");
    assert!(decoder.is_pending());
    assert_eq!(decoder.push(b"\x99\x82b"), "\u{1f642}b");
    assert!(!decoder.is_pending());
    assert_eq!(decoder.push(b"\xe2\x82"), "");
    assert_eq!(decoder.push(b"x"), "\u{fffd}x");
    assert_eq!(decoder.push(b"\xc3"), "");
    assert_eq!(decoder.finish(), "\u{fffd}");
    assert_eq!(decoder.finish(), "");
    assert_eq!(decoder.push(b"y"), "y");
}
