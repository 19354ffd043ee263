//! What is in the cache, and taking it out.

use std::fs;

use hub::HubError;
use test_support::{COMMIT, FakeFile, FakeHub, sha256};

use crate::support::{Client, files};

/// Two models with a shared head and projector, one of them in shards; and another repository with the same bytes.
fn client() -> Client {
    let fake = FakeHub::start();
    let file = |path: &str| FakeFile::new(path, path);
    let paths = [
        "m-Q8_0.gguf",
        "UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf",
        "UD-Q4_K_XL/m-UD-Q4_K_XL-00002-of-00002.gguf",
        "mtp-m.gguf",
        "mmproj-F16.gguf",
    ];
    fake.add("u/r", paths.map(file)).add("u/other", [file("m-Q8_0.gguf")]);
    let client = Client::new(&fake);
    for name in ["u/r:Q8_0", "u/r:UD-Q4_K_XL", "u/other"] {
        client.fetch(name).unwrap();
    }
    client
}

fn names(client: &Client) -> Vec<String> {
    client.hub.models().unwrap().into_iter().map(|model| model.name).collect()
}

#[test]
fn the_cache_lists_models_by_the_names_that_fetch_them() {
    let client = client();
    let models = client.hub.models().unwrap();
    assert_eq!(names(&client), ["u/other:Q8_0", "u/r:Q8_0", "u/r:UD-Q4_K_XL"]);
    let sharded = &models[2];
    assert_eq!(
        (sharded.quant.as_str(), sharded.size),
        ("UD-Q4_K_XL", 2 * "UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf".len() as u64)
    );
    assert!(sharded.path.ends_with("m-UD-Q4_K_XL-00001-of-00002.gguf"));
    assert!(sharded.head.as_ref().unwrap().ends_with("mtp-m.gguf") && sharded.projector.is_some());
    assert!(sharded.downloaded.is_some() && models[0].head.is_none());
    assert!(Client::at("http://127.0.0.1:1").hub.models().unwrap().is_empty());
    // What is no repository, or not whole, is passed over.
    fs::create_dir_all(client.path("models--x")).unwrap();
    fs::create_dir_all(client.path("models--..--x/snapshots/a")).unwrap();
    fs::create_dir_all(client.path("datasets--u--r")).unwrap();
    fs::write(client.path("version.txt"), "1").unwrap();
    fs::remove_file(client.path(&format!("models--u--r/blobs/{}", sha256(b"m-Q8_0.gguf")))).unwrap();
    assert_eq!(names(&client), ["u/other:Q8_0", "u/r:UD-Q4_K_XL"]);
}

#[test]
fn one_model_is_removed_and_the_others_stay_whole() {
    let client = client();
    let removed = client.hub.remove(&"u/r:ud-q4_k_xl".parse().unwrap()).unwrap();
    assert_eq!(removed.files.len(), 2, "{removed:?}");
    assert_eq!(removed.n_bytes, 2 * 43);
    assert_eq!(names(&client), ["u/other:Q8_0", "u/r:Q8_0"]);
    let kept = client.hub.cached(&"u/r:Q8_0".parse().unwrap()).unwrap();
    assert!(kept.head.is_some() && kept.projector.is_some(), "another model needs them");
    let removed = client.hub.remove(&"u/r:Q8_0".parse().unwrap()).unwrap();
    assert_eq!(removed.files, ["m-Q8_0.gguf", "mmproj-F16.gguf", "mtp-m.gguf"]);
    assert!(!client.path("models--u--r").exists(), "nothing is left of it");
    assert_eq!(names(&client), ["u/other:Q8_0"], "another repository's bytes are its own");
    let other = client.hub.cached(&"u/other".parse().unwrap()).unwrap().model.unwrap();
    assert_eq!(fs::read(other).unwrap(), b"m-Q8_0.gguf");
    assert!(matches!(client.hub.remove(&"u/r:Q8_0".parse().unwrap()), Err(HubError::NotCached { .. })));
}

#[test]
fn a_repository_is_removed_with_what_did_not_come_whole() {
    let client = client();
    fs::write(client.path(&format!("models--u--r/blobs/{}.incomplete", sha256(b"x"))), "part").unwrap();
    let removed = client.hub.remove(&"u/r".parse().unwrap()).unwrap();
    assert_eq!(removed.files.len(), 5);
    assert!(!client.path("models--u--r").exists() && client.path("models--u--other").exists());
    assert!(matches!(client.hub.remove(&"u/r".parse().unwrap()), Err(HubError::NotCached { .. })));
}

#[test]
fn bytes_that_an_older_revision_needs_stay() {
    let client = client();
    let old = client.path("models--u--r/snapshots/old");
    fs::create_dir_all(&old).unwrap();
    let blob = format!("../../blobs/{}", sha256(b"m-Q8_0.gguf"));
    std::os::unix::fs::symlink(blob, old.join("renamed-Q8_0.gguf")).unwrap();
    client.hub.remove(&"u/r:m-Q8_0.gguf".parse().unwrap()).unwrap();
    assert_eq!(fs::read(old.join("renamed-Q8_0.gguf")).unwrap(), b"m-Q8_0.gguf");
    assert!(!client.path(&format!("models--u--r/snapshots/{COMMIT}/m-Q8_0.gguf")).exists());
}

#[test]
fn nothing_outside_of_the_cache_is_removed() {
    let client = client();
    let outside = tempfile::tempdir().unwrap();
    let precious = outside.path().join("precious-Q8_0.gguf");
    fs::write(&precious, "precious").unwrap();
    // A file of the snapshot that leads out: the link goes, what it leads to stays.
    let link = client.path(&format!("models--u--r/snapshots/{COMMIT}/out-Q6_K.gguf"));
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    client.hub.remove(&"u/r:Q6_K".parse().unwrap()).unwrap();
    assert!(!link.exists() && fs::symlink_metadata(&link).is_err());
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    // A repository that is a link to another place is not followed.
    fs::create_dir_all(outside.path().join("snapshots/a")).unwrap();
    fs::write(outside.path().join("snapshots/a/m-Q8_0.gguf"), "x").unwrap();
    std::os::unix::fs::symlink(outside.path(), client.path("models--u--linked")).unwrap();
    for name in ["u/linked", "u/linked:Q8_0"] {
        assert!(matches!(client.hub.remove(&name.parse().unwrap()), Err(HubError::Outside { .. })), "{name}");
    }
    // Nor are its bytes.
    fs::remove_dir_all(client.path("models--u--other/blobs")).unwrap();
    std::os::unix::fs::symlink(outside.path(), client.path("models--u--other/blobs")).unwrap();
    assert!(matches!(client.hub.remove(&"u/other".parse().unwrap()), Err(HubError::Outside { .. })));
    assert_eq!(files(outside.path()), ["precious-Q8_0.gguf", "snapshots/a/m-Q8_0.gguf"]);
}

#[test]
fn what_is_being_fetched_is_not_removed() {
    let client = client();
    let lock = client.path(&format!(".locks/models--u--r/{}.lock", sha256(b"m-Q8_0.gguf")));
    let held = fs::File::open(lock).unwrap();
    held.lock().unwrap();
    for name in ["u/r:Q8_0", "u/r"] {
        assert!(matches!(client.hub.remove(&name.parse().unwrap()), Err(HubError::Locked { .. })), "{name}");
    }
    assert_eq!(names(&client).len(), 3, "nothing was begun");
    drop(held);
    client.hub.remove(&"u/r".parse().unwrap()).unwrap();
}
