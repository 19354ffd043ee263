//! Files that come: whole, in parts, closed, late, twice at the same time.

use std::fs;
use std::sync::mpsc;
use std::time::Duration;

use hub::{Event, HubError, ModelName};
use test_support::{COMMIT, FakeFile, FakeHub, sha256};

use crate::support::{Client, files};

const BYTES: &[u8] = b"GGUF and so on, for some more bytes";

fn hub() -> FakeHub {
    let hub = FakeHub::start();
    hub.add("u/r", [FakeFile::new("sub/m-Q4_K_M.gguf", BYTES), FakeFile::new("README.md", "x")]);
    hub
}

#[test]
fn a_model_is_fetched_once_and_found_offline() {
    let fake = hub();
    let mut client = Client::new(&fake);
    let found = client.fetch("u/r:q4_k_m").unwrap();
    let path = found.model.clone().unwrap();
    assert_eq!(fs::read(&path).unwrap(), BYTES);
    assert_eq!(path, client.path(&format!("models--u--r/snapshots/{COMMIT}/sub/m-Q4_K_M.gguf")));
    assert_eq!((found.name.as_deref(), found.head, found.projector), (Some("u/r:Q4_K_M"), None, None));
    assert_eq!(client.told().first().unwrap(), "1 files, 35 bytes");
    assert_eq!(client.told().last().unwrap(), "sub/m-Q4_K_M.gguf 35/35");
    assert_eq!(client.fetch("u/r").unwrap().model.unwrap(), path);
    assert_eq!(fake.asked_for_bytes().len(), 1, "the second time it is there");
    assert_eq!(fs::read_to_string(client.path("models--u--r/refs/main")).unwrap(), COMMIT);

    client.hub.endpoint = "http://127.0.0.1:1".into();
    assert_eq!(client.fetch("u/r").unwrap().model.unwrap(), path, "a hub that is away holds up nobody who has it");
    assert!(matches!(client.fetch("u/other"), Err(HubError::Unreachable { .. })));
    client.hub.offline = true;
    assert_eq!(client.fetch("u/r").unwrap().model.unwrap(), path);
    assert!(matches!(client.fetch("u/other"), Err(HubError::NotCached { .. })));
    let error = client.fetch("u/r:Q8_0").unwrap_err();
    assert!(matches!(&error, HubError::OtherCached { .. }) && error.to_string().contains("m-Q4_K_M"), "{error}");
}

#[test]
fn all_files_of_a_model_come() {
    let fake = FakeHub::start();
    let file = |path: &str| FakeFile::new(path, path);
    fake.add(
        "u/r",
        ["m-Q8_0-00002-of-00002.gguf", "mtp-m.gguf", "mmproj-F16.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q2_K.gguf"]
            .map(file),
    );
    fake.pages(2);
    let mut client = Client::new(&fake);
    let found = client.fetch("u/r").unwrap();
    let at = |name: &str| client.path(&format!("models--u--r/snapshots/{COMMIT}/{name}"));
    assert_eq!(found.model, Some(at("m-Q8_0-00001-of-00002.gguf")));
    assert_eq!((found.head, found.projector), (Some(at("mtp-m.gguf")), Some(at("mmproj-F16.gguf"))));
    assert_eq!(fs::read(at("m-Q8_0-00002-of-00002.gguf")).unwrap(), b"m-Q8_0-00002-of-00002.gguf");
    assert!(!at("m-Q2_K.gguf").exists());
    client.hub.parts.projector = false;
    assert_eq!(client.fetch("u/r").unwrap().projector, None);
}

#[test]
fn a_download_that_breaks_off_goes_on_where_it_stopped() {
    let fake = hub();
    let file = FakeFile { breaks: [10, 0, 5].into(), ..FakeFile::new("sub/m-Q4_K_M.gguf", BYTES) };
    fake.add("u/r", [file.clone()]);
    let client = Client::new(&fake);
    assert_eq!(fs::read(client.fetch("u/r").unwrap().model.unwrap()).unwrap(), BYTES);
    let ranges: Vec<_> = fake.asked_for_bytes().iter().map(|asked| asked.from).collect();
    assert_eq!(ranges, [None, Some(10), Some(10), Some(15)]);

    // With another run in between, and one that gives up.
    fake.add("u/r", [FakeFile { breaks: [7, 0, 0, 0, 0].into(), ..file.clone() }]);
    let client = Client::new(&fake);
    let error = client.fetch("u/r").unwrap_err().to_string();
    assert!(error.contains("7 of 35 bytes came"), "{error}");
    assert_eq!(files(&client.path("models--u--r/blobs")), [format!("{}.incomplete", sha256(BYTES))]);
    assert!(!client.path("models--u--r/snapshots").exists(), "nothing looks whole that is not");
    assert_eq!(fs::read(client.fetch("u/r").unwrap().model.unwrap()).unwrap(), BYTES);
    assert_eq!(fake.asked_for_bytes().last().unwrap().from, Some(7));
}

#[test]
fn a_hub_without_ranges_sends_all_of_it_again() {
    let fake = hub();
    let file = FakeFile { breaks: [10].into(), no_ranges: true, ..FakeFile::new("sub/m-Q4_K_M.gguf", BYTES) };
    fake.add("u/r", [file]);
    let client = Client::new(&fake);
    assert_eq!(fs::read(client.fetch("u/r").unwrap().model.unwrap()).unwrap(), BYTES);
}

#[test]
fn a_download_is_stopped_and_goes_on_the_next_time() {
    let fake = hub();
    fake.add("u/r", [FakeFile { hold: Some(12), ..FakeFile::new("sub/m-Q4_K_M.gguf", BYTES) }]);
    let client = Client::new(&fake);
    let error = client
        .fetch_and("u/r", &|event| {
            if matches!(event, Event::Progress { done: 12.., .. }) {
                client.cancel.cancel();
                fake.release();
            }
        })
        .unwrap_err();
    assert!(matches!(error, HubError::Cancelled), "{error}");
    let again = Client { cancel: hub::Cancel::default(), ..client };
    assert_eq!(fs::read(again.fetch("u/r").unwrap().model.unwrap()).unwrap(), BYTES);
    assert_eq!(fake.asked_for_bytes().last().unwrap().from, Some(12));
}

#[test]
fn wrong_bytes_are_not_kept() {
    let fake = hub();
    let wrong = FakeFile { sha256: Some(sha256(b"something else")), ..FakeFile::new("sub/m-Q4_K_M.gguf", BYTES) };
    fake.add("u/r", [wrong]);
    let client = Client::new(&fake);
    let error = client.fetch("u/r").unwrap_err();
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
    assert_eq!(files(&client.path("models--u--r")), Vec::<String>::new());
}

#[test]
fn a_part_with_other_bytes_is_noticed_and_thrown_away() {
    let fake = hub();
    let client = Client::new(&fake);
    let part = client.path(&format!("models--u--r/blobs/{}.incomplete", sha256(BYTES)));
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, "other bytes").unwrap();
    assert!(matches!(client.fetch("u/r"), Err(HubError::Checksum { .. })));
    assert_eq!(fs::read(client.fetch("u/r").unwrap().model.unwrap()).unwrap(), BYTES);
    // One that is longer than the file cannot be its beginning.
    let client = Client::new(&fake);
    let part = client.path(&format!("models--u--r/blobs/{}.incomplete", sha256(BYTES)));
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, [1; 100]).unwrap();
    assert_eq!(fs::read(client.fetch("u/r").unwrap().model.unwrap()).unwrap(), BYTES);
}

#[test]
fn a_closed_repository_opens_with_its_token_only() {
    let fake = hub();
    fake.close("secret");
    let mut client = Client::new(&fake);
    let error = client.fetch("u/r").unwrap_err().to_string();
    assert!(error.contains("401") && error.contains("HF_TOKEN"), "{error}");
    client.hub.token = Some("wrong".into());
    let error = client.fetch("u/r").unwrap_err().to_string();
    assert!(
        error.contains("403") && error.contains("the token is not accepted") && !error.contains("wrong"),
        "{error}"
    );
    client.hub.token = Some("secret".into());
    assert_eq!(fs::read(client.fetch("u/r").unwrap().model.unwrap()).unwrap(), BYTES);
}

#[test]
fn another_host_never_sees_the_token() {
    let (fake, cdn) = (hub(), hub());
    fake.close("secret").redirect(&cdn);
    let mut client = Client::new(&fake);
    client.hub.token = Some("secret".into());
    assert_eq!(fs::read(client.fetch("u/r").unwrap().model.unwrap()).unwrap(), BYTES);
    let asked = cdn.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].authorization, None);
    assert!(fake.asked().iter().all(|asked| asked.authorization.as_deref() == Some("Bearer secret")));
}

#[test]
fn redirects_on_the_hub_keep_the_token_and_end() {
    let fake = hub();
    fake.close("secret");
    let mut client = Client::new(&fake);
    client.hub.token = Some("secret".into());
    fake.fail("/revision/main", 307, "location: /api/models/u/r/revision/main?moved\r\n");
    fake.fail("/revision/main?moved", 301, "location: /api/models/u/r/revision/main\r\n");
    client.fetch("u/r").unwrap();
    for _ in 0..20 {
        fake.fail("/revision/main", 302, "location: /api/models/u/r/revision/main\r\n");
    }
    assert!(client.fetch("u/r").unwrap_err().to_string().contains("more than 10 redirects"));
    for to in ["ftp://127.0.0.1/x", "file:///etc/passwd", "javascript:x", ""] {
        let fake = hub();
        fake.fail("/revision/main", 302, &format!("location: {to}\r\n"));
        let error = Client::new(&fake).fetch("u/r").unwrap_err();
        assert!(matches!(error, HubError::Http { .. }), "{to}: {error}");
    }
}

#[test]
fn a_hub_that_is_busy_is_asked_again_as_it_says() {
    let fake = hub();
    fake.fail("/tree/", 429, "retry-after: 0\r\n").fail("/tree/", 503, "").fail("/resolve/", 500, "");
    let client = Client::new(&fake);
    client.fetch("u/r").unwrap();
    assert_eq!(client.told().iter().filter(|told| told.starts_with("again: ")).count(), 3, "{:?}", client.told());
    let client = Client::new(&fake);
    fake.fail("/tree/", 429, "retry-after: 86400\r\n");
    let error = client.fetch("u/r").unwrap_err().to_string();
    assert!(error.contains("429") && error.contains("86400 s"), "{error}");
    for _ in 0..4 {
        fake.fail("/revision/", 503, "");
    }
    assert!(matches!(client.fetch("u/r"), Err(HubError::Unreachable { .. })), "it does not ask for ever");
}

#[test]
fn what_is_not_there_is_told() {
    let client = Client::new(&hub());
    let error = client.fetch("u/none").unwrap_err().to_string();
    assert!(error.contains("404") && error.contains("no such repository"), "{error}");
    let error = client.fetch("u/r:Q2_K").unwrap_err().to_string();
    assert!(error.contains("Q2_K") && error.contains("sub/m-Q4_K_M.gguf"), "{error}");
    let error = client.fetch("u/r:sub/n.gguf").unwrap_err().to_string();
    assert!(error.contains("sub/n.gguf") && error.contains("sub/m-Q4_K_M.gguf"), "{error}");
    assert!(matches!(Client::at("not an address").fetch("u/r"), Err(HubError::Http { .. })));
}

#[test]
fn two_programs_that_want_the_same_file_fetch_it_once() {
    let fake = hub();
    fake.add("u/r", [FakeFile { hold: Some(12), ..FakeFile::new("sub/m-Q4_K_M.gguf", BYTES) }]);
    let first = Client::new(&fake);
    let second = Client { hub: first.hub.clone(), ..Client::new(&fake) };
    let (sender, started) = mpsc::channel();
    std::thread::scope(|scope| {
        let one = scope.spawn(|| {
            first.fetch_and("u/r", &|event| {
                if matches!(event, Event::Progress { done: 12.., .. }) {
                    let _ = sender.send(());
                }
            })
        });
        started.recv_timeout(Duration::from_secs(60)).expect("the first download begins");
        let two = scope.spawn(|| {
            second.fetch_and("u/r", &|event| {
                if matches!(event, Event::Waiting { .. }) {
                    fake.release();
                }
            })
        });
        let (one, two) = (one.join().unwrap().unwrap(), two.join().unwrap().unwrap());
        assert_eq!(one, two);
        assert_eq!(fs::read(one.model.unwrap()).unwrap(), BYTES);
    });
    assert_eq!(fake.asked_for_bytes().len(), 1);
    let name: ModelName = "u/r".parse().unwrap();
    assert_eq!(second.hub.cached(&name).unwrap().name.as_deref(), Some("u/r:Q4_K_M"));
}

#[test]
fn what_does_not_fit_on_the_disk_is_not_begun() {
    let fake = hub();
    fake.add("u/r", [FakeFile { size: Some(1 << 60), ..FakeFile::new("sub/m-Q4_K_M.gguf", BYTES) }]);
    let client = Client::new(&fake);
    let error = client.fetch("u/r").unwrap_err();
    assert!(matches!(error, HubError::NoRoom { .. }), "{error}");
    assert!(error.to_string().contains("1073741824.00 GiB"), "{error}");
    assert!(fake.asked_for_bytes().is_empty());
}
