//! Small good files, and one file per known way of hurting a GGUF reader.
//! Owns the bytes; what a reader has to say about each stands in `attacks.rs`.

use super::*;

/// Files that every reader takes.
pub fn good_files() -> Vec<(&'static str, Vec<u8>)> {
    let tokens = ["a", "b", "", "\u{fc}", "</s>"].map(|t| string(t.as_bytes())).concat();
    let plain = Raw::default()
        .key("general.architecture", STR, string(b"qwen35"))
        .key("qwen35.block_count", U32, 4u32.to_le_bytes())
        .key("qwen35.rope.freq_base", F32, 1e6f32.to_le_bytes())
        .key("tokenizer.ggml.tokens", ARR, array(STR, 5, &tokens))
        .key("tokenizer.ggml.token_type", ARR, array(I32, 5, &[1; 20]))
        .key("flags", ARR, array(BOOL, 3, &[1, 0, 1]))
        .tensor("token_embd.weight", &[32, 5], 8, 0)
        .tensor("output_norm.weight", &[32], 0, 192)
        .tensor("nothing", &[4, 0, 3], 0, 320)
        .tensor("last", &[3], 0, 320)
        .data(352);
    let wide = Raw { alignment: Some(64), version: Some(2), ..Raw::default() }
        .key("general.alignment", U32, 64u32.to_le_bytes())
        .key("one", U8, [200])
        .key("two", U64, u64::MAX.to_le_bytes())
        .key("broken text", STR, string(b"\xff\xfe"))
        .tensor("k", &[256, 2], 12, 0)
        .tensor("q", &[64], 40, 320)
        .tensor("r", &[128], 41, 384)
        .tensor("scalar", &[], 0, 448)
        .data(452);
    let shard = Raw::default()
        .key("split.no", 2, 0u16.to_le_bytes())
        .key("split.count", 2, 2u16.to_le_bytes())
        .key("split.tensors.count", I32, 3i32.to_le_bytes())
        .tensor("a", &[8], 0, 0)
        .data(32);
    let bare = Raw::default();
    vec![("plain", plain.bytes()), ("wide", wide.bytes()), ("shard", shard.bytes()), ("bare", bare.bytes())]
}

/// Each attack by name. The comment above a group says where it was seen.
pub fn attacks() -> Vec<(&'static str, Vec<u8>)> {
    let raw = Raw::default;
    // Without the padding that would be read in place of what is missing.
    let cut = || Raw { alignment: Some(1), ..Raw::default() };
    let long = u64::MAX.to_le_bytes();
    let eight = [8u64; 4];
    let files = [
        // CVE-2024-21802, -21825, -21836, -23496, -23605; ollama 17042: counts and lengths used before they are compared.
        ("tensor count of 2^64 - 1", Raw { n_tensors: Some(u64::MAX), ..raw() }),
        ("tensor count over the file", Raw { n_tensors: Some(1000), ..raw() }),
        ("key count of 2^64 - 1", Raw { n_keys: Some(u64::MAX), ..raw() }),
        ("key count over the file", Raw { n_keys: Some(1000), ..raw() }),
        ("key of 2^64 - 1 bytes", raw().key_bytes(long).data(64)),
        ("key over the file", raw().key_bytes(1000u64.to_le_bytes()).data(64)),
        ("string of 2^64 - 1 bytes", raw().key("s", STR, long)),
        ("string over the file", raw().key("s", STR, 1000u64.to_le_bytes())),
        ("string in an array over the file", raw().key("s", ARR, array(STR, 1, &1000u64.to_le_bytes()))),
        ("array whose bytes wrap", raw().key("a", ARR, array(U64, 1 << 61, &[0; 64]))),
        ("array over the file", raw().key("a", ARR, array(U64, 1000, &[0; 64]))),
        ("shape whose product wraps", raw().tensor("t", &[1 << 32, 1 << 32, 4], 0, 0)),
        ("name over the file", raw().tensor_bytes(40u64.to_le_bytes()).data(32)),
        // CVE-2024-32878, -41130, issue 8583: going on after a read that came short.
        ("file ends in a key", cut().key_bytes([5, 0, 0, 0, 0, 0, 0, 0, b'a', b'b'])),
        ("file ends after a key", cut().key_bytes(string(b"abc"))),
        // CVE-2025-49847, -52566: more tokens than an int counts.
        ("tokens beyond 2^31", raw().key("tokenizer.ggml.tokens", ARR, array(STR, (1 << 31) + 1, &[0; 64]))),
        // CVE-2025-53630, CVE-2026-27940: the sum of sizes wraps.
        (
            "sum of sizes wraps",
            (0..4u64).fold(raw(), |r, i| r.tensor(format!("t{i}"), &[1 << 62], 24, i << 62)).tensor("u", &[8], 24, 0),
        ),
        // CVE-2026-33298: a size in bytes that wraps, or that is just far too large.
        ("size in bytes wraps", raw().tensor("t", &[1 << 61], 28, 0).data(64)),
        ("elements over i64", raw().tensor("t", &[1 << 62, 2], 24, 0).data(64)),
        ("tensor of an exabyte", raw().tensor("t", &[1 << 30, 1 << 30], 0, 0).data(64)),
        ("negative dimension", raw().tensor("t", &[u64::MAX, 1], 0, 0).data(64)),
        ("negative dimension behind a zero", raw().tensor("t", &[0, u64::MAX], 0, 0).data(64)),
        // GHSA-3p75, PRs 18586, 20716, 24263: division by a dimension of zero; an assert on empty keys.
        ("zero dimension", raw().tensor("t", &[0, 8], 12, 0)),
        ("zero dimension behind a huge one", raw().tensor("t", &[1 << 62, 0, 1 << 62], 0, 0)),
        ("empty key", raw().key("", U8, [1])),
        // PR 26690: an array of a narrower type than the reader takes for granted.
        ("scores of u8", raw().key("tokenizer.ggml.scores", ARR, array(U8, 4, &[0; 4]))),
        // PR 25821, 26051: a layer count over every table.
        ("layer count of 2^32 - 1", raw().key("qwen35.block_count", U32, u32::MAX.to_le_bytes())),
        ("layer count below zero", raw().key("qwen35.block_count", I32, (-1i32).to_le_bytes())),
        ("layer count of 64 bits", raw().key("qwen35.block_count", U64, (1u64 << 32).to_le_bytes())),
        ("layer count as text", raw().key("qwen35.block_count", STR, string(b"4"))),
        // PR 26318: alignment of another type, padding that wraps.
        ("alignment of u64", raw().key("general.alignment", U64, 32u64.to_le_bytes())),
        ("alignment as text", raw().key("general.alignment", STR, string(b"32"))),
        ("alignment of 0", raw().key("general.alignment", U32, 0u32.to_le_bytes())),
        ("alignment of 48", raw().key("general.alignment", U32, 48u32.to_le_bytes())),
        (
            "alignment over the file",
            raw().key("general.alignment", U32, (1u32 << 31).to_le_bytes()).tensor("t", &[0], 0, 0),
        ),
        ("size plus padding wraps", raw().tensor("t", &[i64::MAX as u64], 25, 0).tensor("u", &[8], 0, 0)),
        // gguf-py 25378, 27188: loops over 2^63 elements or 2^32 dimensions.
        ("array of 2^63", raw().key("a", ARR, array(U8, 1 << 63, &[0; 64]))),
        ("array of 2^63 empty arrays", raw().key("a", ARR, array(ARR, 1 << 63, &[0; 64]))),
        ("2^32 - 1 dimensions", raw().tensor_bytes([&string(b"t")[..], &u32::MAX.to_le_bytes(), &[0; 64]].concat())),
        ("five dimensions", raw().tensor("t", &[1; 5], 0, 0).data(64)),
        // CVE-2026-7482: data that ends behind the file; CVE-2024-39720 and others: files of a few bytes.
        ("data over the end", raw().tensor("t", &[64], 0, 0).data(100)),
        ("offset over the end", raw().tensor("t", &[8], 0, 1 << 40).data(32)),
        // Seen in gguf-rs.
        ("tensor twice", raw().tensor("t", &[8], 0, 0).tensor("t", &[8], 0, 32).data(64)),
        ("row that splits a block", raw().tensor("t", &[100], 12, 0).data(144)),
        ("file type as text", raw().key("general.file_type", STR, string(b"7"))),
        // Read here and refused by ggml.
        (
            "arrays of arrays",
            raw().key("a", ARR, array(ARR, 2, &[array(STR, 1, &string(b"x")), array(U8, 2, &[1, 2])].concat())),
        ),
        // Seen in shimmytok: 200,000 arrays within each other.
        ("deep arrays", raw().key("a", ARR, array(ARR, 1, &[]).repeat(200_000))),
        // The format's own rules.
        ("version 0", Raw { version: Some(0), ..raw() }),
        ("version 1", Raw { version: Some(1), ..raw() }),
        ("version 4", Raw { version: Some(4), ..raw() }),
        ("big endian", Raw { version: Some(3 << 24), ..raw() }),
        ("another magic", Raw { magic: Some(*b"ggjt"), ..raw() }),
        ("key twice", raw().key("k", U8, [1]).key("k", U8, [1])),
        ("key not UTF-8", raw().key(b"\xff", U8, [1])),
        ("key with NUL", raw().key("a\0b", U8, [1])),
        ("key of 65,536 bytes", raw().key("k".repeat(1 << 16), U8, [1])),
        ("value type 13", raw().key("k", 13, [0; 8])),
        ("element type 13", raw().key("k", ARR, array(13, 1, &[0; 8]))),
        ("bool of 2", raw().key("k", BOOL, [2])),
        ("bool of 2 in an array", raw().key("k", ARR, array(BOOL, 3, &[1, 0, 2]))),
        ("name of 64 bytes", raw().tensor("t".repeat(64), &[8], 0, 0).data(32)),
        ("empty name", raw().tensor("", &[8], 0, 0).data(32)),
        ("name not UTF-8", raw().tensor(b"\xc3", &[8], 0, 0).data(32)),
        ("name with NUL", raw().tensor("t\0u", &[8], 0, 0).data(32)),
        ("removed tensor type", raw().tensor("t", &[32], 4, 0).data(64)),
        ("tensor type 44", raw().tensor("t", &[32], 44, 0).data(64)),
        ("tensor type 2^32 - 1", raw().tensor("t", &[32], u32::MAX, 0).data(64)),
        ("gap between tensors", raw().tensor("t", &[8], 0, 0).tensor("u", &[8], 0, 64).data(96)),
        ("tensors over each other", raw().tensor("t", &[16], 0, 0).tensor("u", &[8], 0, 32).data(64)),
        ("tensors not in file order", raw().tensor("t", &eight[..1], 0, 32).tensor("u", &eight[..1], 0, 0).data(64)),
        ("offset off the alignment", raw().tensor("t", &[4], 0, 0).tensor("u", &[4], 0, 16).data(64)),
    ];
    let mut files: Vec<_> = files.into_iter().map(|(name, raw)| (name, raw.bytes())).collect();
    files.push(("empty file", Vec::new()));
    files.push(("file of four bytes", b"GGUF".to_vec()));
    files
}
