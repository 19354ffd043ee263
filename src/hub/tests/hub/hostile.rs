//! Hubs that lie: in paths, in sizes, in how much they send.

use std::fs;

use hub::HubError;
use serde_json::json;
use test_support::{FakeFile, FakeHub, sha256};

use crate::support::{Client, files};

const BYTES: &[u8] = b"GGUF and so on";

fn entry(path: &str) -> serde_json::Value {
    json!({ "type": "file", "path": path, "size": 14, "lfs": { "oid": sha256(BYTES), "size": 14 } })
}

#[test]
fn paths_that_lead_elsewhere_are_passed_over() {
    let hostile = [
        "../x-Q4_K_M.gguf",
        "/etc/x-Q4_K_M.gguf",
        "a/../../x-Q4_K_M.gguf",
        "a\u{7}b-Q4_K_M.gguf",
        "C:\\x-Q4_K_M.gguf",
        "a//x-Q4_K_M.gguf",
        "./x-Q4_K_M.gguf",
        "a/./x-Q4_K_M.gguf",
        "\\\\host\\x-Q4_K_M.gguf",
        "x-Q4_K_M.gguf\n.gguf",
        "..\\x-Q4_K_M.gguf",
        "con:x-Q4_K_M.gguf",
        "a. /x-Q4_K_M.gguf",
        " /x-Q4_K_M.gguf",
    ];
    let fake = FakeHub::start();
    fake.add("u/r", [FakeFile::new("m-Q8_0.gguf", BYTES)]);
    let mut list: Vec<serde_json::Value> = hostile.into_iter().map(entry).collect();
    list.push(entry(&format!("{}-Q4_K_M.gguf", "x".repeat(5000))));
    list.push(entry(&"a/".repeat(1000)));
    list.push(entry("m-Q8_0.gguf"));
    fake.list("u/r", json!(list).to_string());
    let client = Client::new(&fake);
    let found = client.fetch("u/r").unwrap().model.unwrap();
    assert!(found.ends_with("m-Q8_0.gguf"), "{found:?}");
    let error = client.fetch("u/r:Q4_K_M").unwrap_err().to_string();
    assert!(error.ends_with("there are: m-Q8_0.gguf"), "{error}");
    fake.list("u/r", json!(hostile.map(entry)).to_string());
    assert!(matches!(client.fetch("u/r"), Err(HubError::NoFile { .. })));
}

#[test]
fn checksums_that_are_paths_are_none() {
    let fake = FakeHub::start();
    let oid = "../../../../".repeat(5) + "aaaa";
    fake.list("u/r", json!([{ "path": "m.gguf", "size": 14, "lfs": { "oid": oid, "size": 14 } }]).to_string());
    let client = Client::new(&fake);
    let error = client.fetch("u/r").unwrap_err().to_string();
    assert!(error.contains("no checksum"), "{error}");
    assert_eq!(files(client.cache.path()), Vec::<String>::new());
}

#[test]
fn a_list_that_is_no_list_or_too_long_is_refused() {
    let fake = FakeHub::start();
    let client = Client::new(&fake);
    for list in
        ["", "{}", "[1]", "[{\"path\":1}]", "[{\"path\":\"m.gguf\",\"size\":-1}]", "<html>", &"[".repeat(100_000)]
    {
        fake.list("u/r", list.to_owned());
        let error = client.fetch("u/r").unwrap_err();
        assert!(matches!(error, HubError::Http { .. }), "{list:.20}: {error}");
    }
    let one = entry("m-Q4_K_M.gguf").to_string();
    let many = format!("[{}]", vec![one.as_str(); 1_000_000].join(","));
    fake.list("u/r", many);
    let error = client.fetch("u/r").unwrap_err().to_string();
    assert!(error.contains("longer than 32 MiB"), "{error}");
    fake.list("u/r", format!("[{}]", vec![one.as_str(); 30_000].join(",")));
    let error = client.fetch("u/r").unwrap_err();
    assert!(matches!(error, HubError::Listing { .. }), "{error}");
    // Files that are no models do not count.
    let other = "{\"path\":\"x\"},".repeat(100_000);
    fake.list("u/r", format!("[{other}{one}]")).add("u/r", [FakeFile::new("m-Q4_K_M.gguf", BYTES)]);
    client.fetch("u/r").unwrap();
}

#[test]
fn pages_without_end_are_not_followed() {
    let fake = FakeHub::start();
    fake.add("u/r", (0..300).map(|i| FakeFile::new(&format!("m{i}.gguf"), "x")));
    fake.pages(1);
    let error = Client::new(&fake).fetch("u/r").unwrap_err();
    assert!(matches!(error, HubError::Listing { .. }), "{error}");
}

#[test]
fn sizes_that_lie_are_noticed() {
    let fake = FakeHub::start();
    let file = FakeFile::new("m.gguf", BYTES);
    // More comes than was promised, told in the header and by the bytes.
    fake.add("u/r", [FakeFile { size: Some(5), ..file.clone() }]);
    let client = Client::new(&fake);
    let error = client.fetch("u/r").unwrap_err().to_string();
    assert!(error.contains("promises 5 bytes, and more come"), "{error}");
    // Less comes.
    fake.add("u/r", [FakeFile { size: Some(50), ..file.clone() }]);
    let error = client.fetch("u/r").unwrap_err().to_string();
    assert!(error.contains("14 of 50 bytes") || error.contains("416"), "{error}");
    fake.add("u/r", [FakeFile { size: Some(u64::MAX), ..file.clone() }]);
    assert!(matches!(client.fetch("u/r"), Err(HubError::NoRoom { .. })));
    fake.add("u/r", [FakeFile { size: Some(0), ..file.clone() }]);
    assert!(matches!(client.fetch("u/r"), Err(HubError::Checksum { .. })));
    // A hub that mends itself is forgiven.
    fake.add("u/r", [file]);
    assert_eq!(fs::read(client.fetch("u/r").unwrap().model.unwrap()).unwrap(), BYTES);
}

#[test]
fn other_bytes_than_those_that_were_asked_for_are_refused() {
    let fake = FakeHub::start();
    fake.add("u/r", [FakeFile { breaks: [3].into(), shifted: 2, ..FakeFile::new("m.gguf", BYTES) }]);
    let error = Client::new(&fake).fetch("u/r").unwrap_err().to_string();
    assert!(error.contains("other bytes than those that were asked for"), "{error}");
}

#[test]
fn a_revision_whose_name_is_a_path_is_refused() {
    let fake = FakeHub::start();
    fake.add("u/r", [FakeFile::new("m.gguf", BYTES)]);
    // The fake hub answers every list; only the revision is wrong here.
    fake.fail(
        "/revision/main",
        302,
        "location: /api/models/u/r/tree/0123456789abcdef0123456789abcdef01234567?recursive=true\r\n",
    );
    assert!(matches!(Client::new(&fake).fetch("u/r"), Err(HubError::Http { .. })));
}
