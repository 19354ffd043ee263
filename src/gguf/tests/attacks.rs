//! Every known attack on GGUF readers ends in an error that says what is wrong, or is harmless here.
//! The files stand in `support/shapes.rs`.

use crate::support::{ARR, Raw, U8, array, attacks, good_files};
use gguf::{Error, Header, Limits, SplitInfo, TensorType};

fn attack(name: &str) -> Vec<u8> {
    attacks().into_iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no attack {name:?}")).1
}

/// The file is refused with a message that holds every one of `parts`.
#[track_caller]
fn refused(name: &str, parts: &[&str]) -> Error {
    let bytes = attack(name);
    let error = Header::parse(&bytes).map(|_| ()).expect_err(name);
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{name}: {part:?} is not in {message:?}");
    }
    assert!(message.len() < 500, "{name}: {} bytes of message", message.len());
    error
}

#[test]
fn counts_are_compared_with_the_file_before_use() {
    refused("tensor count of 2^64 - 1", &["header", "number of tensors 18446744073709551615", "1048576"]);
    refused("key count of 2^64 - 1", &["header", "number of metadata keys 18446744073709551615", "65536"]);
    refused("tensor count over the file", &["tensor directory takes 24000 bytes", "8 left"]);
    refused("key count over the file", &["metadata takes 13000 bytes", "8 left"]);
}

#[test]
fn lengths_are_compared_with_the_file_before_use() {
    refused("key of 2^64 - 1 bytes", &["metadata key no. 0", "18446744073709551615"]);
    refused("key over the file", &["metadata key no. 0", "1000 bytes"]);
    refused("string of 2^64 - 1 bytes", &["metadata key \"s\"", "18446744073709551615", "1073741824"]);
    refused("string over the file", &["metadata key \"s\"", "1000 bytes from byte"]);
    refused("string in an array over the file", &["metadata key \"s\"", "1000 bytes from byte"]);
    refused("array over the file", &["metadata key \"a\"", "8000 bytes"]);
    refused("array whose bytes wrap", &["metadata key \"a\"", "array length 2305843009213693952"]);
    refused("name over the file", &["tensor no. 0", "name takes 40 bytes from byte 32 on", "32 left"]);
}

#[test]
fn a_read_that_comes_short_ends_the_parse() {
    refused("file ends in a key", &["metadata takes 13 bytes from byte 24 on, the file has 10 left"]);
    refused("file ends after a key", &["metadata takes 13 bytes from byte 24 on, the file has 11 left"]);
    refused("empty file", &["not a GGUF file", "\"\""]);
    refused("file of four bytes", &["version takes 4 bytes from byte 4 on, the file has 0 left"]);
}

#[test]
fn more_tokens_than_an_int_counts_are_refused() {
    refused("tokens beyond 2^31", &["tokenizer.ggml.tokens", "array length 2147483649"]);
}

#[test]
fn a_sum_of_sizes_that_wraps_is_refused() {
    refused("sum of sizes wraps", &["tensor \"t3\"", "an end that 64 bits can count"]);
    refused("size plus padding wraps", &["tensor \"t\"", "an end that 64 bits can count"]);
}

#[test]
fn a_tensor_size_that_wraps_or_is_absurd_is_refused() {
    refused("shape whose product wraps", &["tensor \"t\"", "[4294967296, 4294967296, 4, 1]", "i64::MAX elements"]);
    refused("size in bytes wraps", &["tensor \"t\"", "f64", "64 bits"]);
    refused("elements over i64", &["tensor \"t\"", "[4611686018427387904, 2, 1, 1]", "i64::MAX elements"]);
    refused("negative dimension", &["tensor \"t\"", "18446744073709551615", "i64::MAX"]);
    refused("negative dimension behind a zero", &["tensor \"t\"", "i64::MAX"]);
    let error = refused("tensor of an exabyte", &["tensor \"t\"", "get the file again"]);
    let Error::DataMissing { missing, file_bytes, end, .. } = error else { panic!("{error:?}") };
    assert_eq!(missing, (1 << 62) - 64);
    assert_eq!(end - missing, file_bytes);
}

#[test]
fn a_zero_dimension_is_a_tensor_without_data() {
    for name in ["zero dimension", "zero dimension behind a huge one"] {
        let bytes = attack(name);
        let header = Header::parse(&bytes).expect(name);
        let t = &header.tensors()[0];
        assert_eq!((t.n_bytes, t.range()), (0, bytes.len()..bytes.len()), "{name}");
    }
}

#[test]
fn keys_are_named_once_in_text() {
    refused("empty key", &["metadata key no. 0", "empty name"]);
    refused("key twice", &["metadata key \"k\" appears twice"]);
    refused("key not UTF-8", &["metadata key no. 0", "UTF-8 expected"]);
    refused("key with NUL", &["metadata key no. 0", "NUL"]);
    refused("key of 65,536 bytes", &["metadata key no. 0", "65536 found", "65535"]);
}

#[test]
fn getters_check_the_declared_type_and_the_range() {
    let message = |name: &str, get: &dyn Fn(&Header<'_>) -> Result<(), Error>| {
        let bytes = attack(name);
        get(&Header::parse(&bytes).expect(name)).expect_err(name).to_string()
    };
    let block_count = |h: &Header<'_>| h.metadata().require_u32("qwen35.block_count").map(drop);
    let scores = message("scores of u8", &|h| h.metadata().f32_array("tokenizer.ggml.scores").map(drop));
    assert_eq!(scores, "metadata key \"tokenizer.ggml.scores\": element 0 is u8 0 found, array of f32 expected");
    assert_eq!(
        message("layer count below zero", &block_count),
        "metadata key \"qwen35.block_count\": i32 -1 found, u32 expected"
    );
    assert_eq!(
        message("layer count of 64 bits", &block_count),
        "metadata key \"qwen35.block_count\": u64 4294967296 found, u32 expected"
    );
    assert_eq!(
        message("layer count as text", &block_count),
        "metadata key \"qwen35.block_count\": string \"4\" found, u32 expected"
    );
    let file_type = message("file type as text", &|h| h.metadata().u32("general.file_type").map(drop));
    assert_eq!(file_type, "metadata key \"general.file_type\": string \"7\" found, u32 expected");
    let bytes = attack("layer count of 2^32 - 1");
    let header = Header::parse(&bytes).unwrap();
    assert_eq!(
        header.metadata().require_u32("qwen35.block_count").unwrap(),
        u32::MAX,
        "its range is the model's matter"
    );
}

#[test]
fn alignment_is_a_power_of_two_in_u32() {
    for (name, found) in [
        ("alignment of u64", "u64 32 found"),
        ("alignment as text", "string \"32\" found"),
        ("alignment of 0", "u32 0 found"),
        ("alignment of 48", "u32 48 found"),
    ] {
        refused(name, &["metadata key \"general.alignment\"", found, "power of two"]);
    }
    refused("alignment over the file", &["tensor \"t\"", "2147483648", "missing"]);
}

#[test]
fn no_loop_follows_a_number_of_the_file() {
    refused("array of 2^63", &["metadata key \"a\"", "9223372036854775808"]);
    refused("array of 2^63 empty arrays", &["metadata key \"a\"", "9223372036854775808"]);
    refused("2^32 - 1 dimensions", &["tensor \"t\"", "number of dimensions 4294967295 found, at most 4"]);
    refused("five dimensions", &["tensor \"t\"", "number of dimensions 5 found, at most 4"]);
}

#[test]
fn data_behind_the_end_of_the_file_is_refused_with_the_bytes_missing() {
    refused("data over the end", &["tensor \"t\"", "156 bytes are missing"]);
    refused("offset over the end", &["tensor \"t\"", "data offset 1099511627776 found, 0"]);
}

#[test]
fn tensors_lie_in_order_without_gaps() {
    refused("gap between tensors", &["tensor \"u\"", "data offset 64 found, 32"]);
    refused("tensors over each other", &["tensor \"u\"", "data offset 32 found, 64"]);
    refused("tensors not in file order", &["tensor \"t\"", "data offset 32 found, 0"]);
    refused("offset off the alignment", &["tensor \"u\"", "data offset 16 found, 32"]);
}

#[test]
fn tensor_names_are_unique_short_text() {
    refused("tensor twice", &["tensor \"t\" appears twice"]);
    refused("name of 64 bytes", &["tensor no. 0", "64 found, at most 63"]);
    refused("empty name", &["tensor no. 0", "empty name"]);
    refused("name not UTF-8", &["tensor no. 0", "UTF-8 expected"]);
    refused("name with NUL", &["tensor no. 0", "NUL"]);
}

#[test]
fn tensor_types_are_known_and_rows_are_whole_blocks() {
    refused("row that splits a block", &["tensor \"t\"", "100 elements per row", "256, the block of q4_K"]);
    refused("removed tensor type", &["tensor \"t\"", "tensor type 4 found"]);
    refused("tensor type 44", &["tensor \"t\"", "tensor type 44 found"]);
    refused("tensor type 2^32 - 1", &["tensor \"t\"", "tensor type 4294967295 found"]);
    // The types that other readers refuse or give a wrong size.
    let bytes = good_files().into_iter().find(|(name, _)| *name == "wide").unwrap().1;
    let header = Header::parse(&bytes).unwrap();
    let types: Vec<_> = header.tensors()[..3].iter().map(|t| (t.dtype, t.n_bytes)).collect();
    assert_eq!(types, [(TensorType::Q4_K, 288), (TensorType::NVFP4, 36), (TensorType::Q1_0, 18)]);
}

#[test]
fn deep_arrays_are_an_error_and_not_a_stack_overflow() {
    refused("deep arrays", &["metadata key \"a\"", "array depth 9 found, at most 8"]);
    let nested = |depth: usize| {
        Raw::default().key("a", ARR, [array(ARR, 1, &[]).repeat(depth - 1), array(U8, 1, &[7])].concat()).bytes()
    };
    Header::parse(&nested(8)).expect("eight are allowed");
    Header::parse(&nested(9)).expect_err("nine are not");
    Header::parse_with(&nested(9), &Limits { max_depth: 9, ..Limits::default() }).expect("unless the caller says so");
}

#[test]
fn versions_and_byte_orders_that_we_cannot_read_are_said() {
    for name in ["version 0", "version 1", "version 4"] {
        refused(name, &[&format!("GGUF {name} found, 2 or 3 expected")]);
    }
    refused("big endian", &["big-endian", "version 3"]);
    refused("another magic", &["not a GGUF file", "\"ggjt\""]);
}

#[test]
fn value_types_and_bools_have_only_the_values_of_the_format() {
    refused("value type 13", &["metadata key \"k\"", "value type 13 found"]);
    refused("element type 13", &["metadata key \"k\"", "value type 13 found"]);
    refused("bool of 2", &["metadata key \"k\"", "bool 2 found"]);
    refused("bool of 2 in an array", &["metadata key \"k\"", "bool 2 in an array found"]);
}

#[test]
fn every_cut_of_a_good_file_is_an_error_until_only_padding_is_missing() {
    for (name, bytes) in good_files() {
        let header = Header::parse(&bytes).expect(name);
        let end = header.tensors().iter().map(|t| t.range().end).max().unwrap_or(header.data_start() as usize);
        for cut in 0..bytes.len() {
            assert_eq!(Header::parse(&bytes[..cut]).is_ok(), cut >= end, "{name} cut to {cut} of {}", bytes.len());
        }
    }
}

#[test]
fn the_table_of_attacks_is_tested_as_a_whole() {
    // What parses is harmless by itself; everything else is refused. A new shape must be put on one side.
    let harmless: Vec<_> =
        attacks().into_iter().filter(|(_, bytes)| Header::parse(bytes).is_ok()).map(|a| a.0).collect();
    let expected = [
        "zero dimension",
        "zero dimension behind a huge one",
        "scores of u8",
        "layer count of 2^32 - 1",
        "layer count below zero",
        "layer count of 64 bits",
        "layer count as text",
        "file type as text",
        "arrays of arrays",
    ];
    assert_eq!(harmless, expected);
    for (name, bytes) in good_files() {
        let header = Header::parse(&bytes).expect(name);
        SplitInfo::of(&header).expect(name);
    }
}
