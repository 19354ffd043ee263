//! Against a small hub on this machine.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use super::*;

const BYTES: &[u8] = b"GGUF and so on";

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Serves one repository; gives its address, and the `Range` of each request for bytes.
fn hub(oid: String) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let ranges = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ranges);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let Some(path) = head.first().and_then(|line| line.split(' ').nth(1)) else { continue };
            let range =
                head.iter().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
            let tree = format!(
                r#"[{{"type":"file","path":"README.md","size":3}},
                    {{"type":"file","path":"sub/m-Q4_K_M.gguf","size":{n},"lfs":{{"oid":"{oid}","size":{n}}}}}]"#,
                n = BYTES.len()
            );
            let (status, body) = match path {
                "/api/models/u/r/revision/main" => ("200 OK", br#"{"sha":"abc123"}"#.to_vec()),
                "/api/models/u/r/tree/abc123?recursive=true" => ("200 OK", tree.into_bytes()),
                "/u/r/resolve/abc123/sub/m-Q4_K_M.gguf" => {
                    seen.lock().unwrap().push(range.clone().unwrap_or_default());
                    match range {
                        Some(range) => {
                            let from: usize = range.trim_end_matches('-').parse().unwrap();
                            ("206 Partial Content", BYTES[from..].to_vec())
                        }
                        None => ("200 OK", BYTES.to_vec()),
                    }
                }
                _ => ("404 Not Found", Vec::new()),
            };
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    (address, ranges)
}

fn at(endpoint: String, cache: &Path, offline: bool) -> Hub {
    Hub { endpoint, cache: cache.to_owned(), token: None, offline }
}

#[test]
fn a_file_is_fetched_once_and_found_offline() {
    let (endpoint, ranges) = hub(sha(BYTES));
    let cache = tempfile::tempdir().unwrap();
    let online = at(endpoint, cache.path(), false);
    let told = Mutex::new(Vec::new());
    let path =
        online.file("u/r:q4_k_m", &|name, done, all| told.lock().unwrap().push((name.to_owned(), done, all))).unwrap();
    assert_eq!(fs::read(&path).unwrap(), BYTES);
    assert!(path.ends_with("models--u--r/snapshots/abc123/sub/m-Q4_K_M.gguf"), "{path:?}");
    assert_eq!(told.lock().unwrap().last(), Some(&("sub/m-Q4_K_M.gguf".to_owned(), 14, 14)));
    assert_eq!(online.file("u/r", &|_, _, _| {}).unwrap(), path);
    assert_eq!(ranges.lock().unwrap().len(), 1, "the second time it is there");
    let offline = at("http://127.0.0.1:1".into(), cache.path(), true);
    assert_eq!(offline.file("u/r", &|_, _, _| {}).unwrap(), path);
    let unreachable = at("http://127.0.0.1:1".into(), cache.path(), false);
    assert_eq!(unreachable.file("u/r", &|_, _, _| {}).unwrap(), path, "a hub that is away holds up nobody who has it");
    assert!(matches!(unreachable.file("u/other", &|_, _, _| {}), Err(HubError::Silent { .. })));
    assert!(matches!(offline.file("u/other", &|_, _, _| {}), Err(HubError::NotThere { .. })));
}

#[test]
fn a_download_goes_on_where_it_stopped() {
    let (endpoint, ranges) = hub(sha(BYTES));
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--u--r/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.incomplete", sha(BYTES))), &BYTES[..5]).unwrap();
    let path = at(endpoint, cache.path(), false).file("u/r", &|_, _, _| {}).unwrap();
    assert_eq!(fs::read(path).unwrap(), BYTES);
    assert_eq!(*ranges.lock().unwrap(), ["5-"]);
}

#[test]
fn wrong_bytes_are_not_kept() {
    let (endpoint, _) = hub(sha(b"something else"));
    let cache = tempfile::tempdir().unwrap();
    let error = at(endpoint, cache.path(), false).file("u/r", &|_, _, _| {}).unwrap_err();
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
    assert_eq!(fs::read_dir(cache.path().join("models--u--r/blobs")).unwrap().count(), 0);
}

#[test]
fn what_is_not_there_is_told() {
    let (endpoint, _) = hub(sha(BYTES));
    let cache = tempfile::tempdir().unwrap();
    let hub = at(endpoint, cache.path(), false);
    let error = hub.file("u/r:Q2_K", &|_, _, _| {}).unwrap_err().to_string();
    assert!(error.contains("Q2_K") && error.contains("m-Q4_K_M.gguf"), "{error}");
    let error = hub.file("u/none", &|_, _, _| {}).unwrap_err().to_string();
    assert!(error.contains("404"), "{error}");
    for name in ["r", "u/", "../r", "u/../r", "u/r:../x", "", "u/r/s"] {
        assert!(matches!(hub.file(name, &|_, _, _| {}), Err(HubError::Name(_))), "{name}");
    }
}

#[test]
fn all_shards_are_chosen_and_projectors_are_not() {
    let paths = ["mmproj-Q4_K_M.gguf", "m-Q4_K_M-00002-of-00002.gguf", "m-Q4_K_M-00001-of-00002.gguf", "m-Q8_0.gguf"];
    let paths = paths.map(str::to_owned);
    let chosen = |name: &str| Wanted::parse(name).unwrap().choose(&paths).unwrap();
    assert_eq!(chosen("u/r:q8_0"), ["m-Q8_0.gguf"]);
    let shards = ["m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf"];
    assert_eq!(Wanted::parse("u/r").unwrap().choose(&paths).unwrap(), shards);
}
