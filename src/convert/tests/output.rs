//! An output appears whole or not at all, is taken up where it was left, and never is one of the inputs.

use std::path::Path;
use std::sync::atomic::Ordering;

use crate::support::Oracle;
use convert::Error;
use convert::checkpoint::{Checkpoint, Options};
use convert::quantize::{FileType, Recipe};
use convert::stream::{Control, Job, OnFailure};

fn job(folder: &Path) -> Job {
    let mut model = Checkpoint::open(folder, Options::default()).unwrap().model;
    let recipe = Recipe { file_type: FileType::Q4_K_M, head: None, plain: false, imatrix: None, requantize: false };
    recipe.apply(&mut model).unwrap();
    model.into_job(recipe.stamp()).unwrap()
}

fn checkpoint() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    Oracle::open("moe-a").write(dir.path());
    dir
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = dir.read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Runs until about `n_bytes` of the sources are done.
fn broken_off(job: &Job, out: &Path, n_bytes: u64) -> Control {
    let watcher = move |control: &Control| {
        if control.done.load(Ordering::Relaxed) >= n_bytes {
            control.stop.store(true, Ordering::Relaxed);
        }
    };
    let control = Control { watcher: Some(Box::new(watcher)), ..Control::default() };
    let e = job.run(out, 1, &control, OnFailure::Remove).unwrap_err();
    assert!(matches!(e, Error::Stopped { .. }), "{e}");
    control
}

#[test]
fn a_run_that_was_broken_off_goes_on_and_gives_the_same_file() {
    let folder = checkpoint();
    let dir = tempfile::tempdir().unwrap();
    let (whole, out) = (dir.path().join("whole.gguf"), dir.path().join("out.gguf"));
    job(folder.path()).run(&whole, 2, &Control::default(), OnFailure::Remove).unwrap();
    let whole = std::fs::read(whole).unwrap();

    std::fs::write(&out, "old").unwrap();
    let total = job(folder.path()).source_bytes();
    let mut before = 0;
    for part in 1..4 {
        let control = broken_off(&job(folder.path()), &out, total * part / 8);
        assert_eq!(names(dir.path()), ["out.gguf", "out.gguf.part", "out.gguf.part.json", "whole.gguf"]);
        assert_eq!(std::fs::read(&out).unwrap(), b"old");
        let resumed = control.resumed.load(Ordering::Relaxed);
        assert_eq!(resumed, before, "what was done is not done again");
        before = control.done.load(Ordering::Relaxed);
    }
    let control = Control::default();
    job(folder.path()).run(&out, 3, &control, OnFailure::Remove).unwrap();
    assert_eq!(control.resumed.load(Ordering::Relaxed), before);
    assert_eq!(control.done.load(Ordering::Relaxed), total);
    assert!(std::fs::read(&out).unwrap() == whole);
    assert_eq!(names(dir.path()), ["out.gguf", "whole.gguf"]);
}

#[test]
fn what_lies_behind_the_mark_of_the_journal_is_made_again() {
    // A kill leaves bytes behind the last mark, written or not.
    let folder = checkpoint();
    let dir = tempfile::tempdir().unwrap();
    let (whole, out) = (dir.path().join("whole.gguf"), dir.path().join("out.gguf"));
    job(folder.path()).run(&whole, 2, &Control::default(), OnFailure::Remove).unwrap();
    broken_off(&job(folder.path()), &out, 3_000_000);
    let part = dir.path().join("out.gguf.part");
    let journal = dir.path().join("out.gguf.part.json");
    let text = std::fs::read_to_string(&journal).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let slabs = json["slabs"].as_u64().unwrap();
    assert!(slabs > 2, "{slabs}");
    json["slabs"] = (slabs / 2).into();
    std::fs::write(&journal, json.to_string()).unwrap();
    let mut bytes = std::fs::read(&part).unwrap();
    let n = bytes.len();
    bytes[n / 2..].fill(0x55);
    std::fs::write(&part, bytes).unwrap();
    job(folder.path()).run(&out, 2, &Control::default(), OnFailure::Remove).unwrap();
    // Padding behind the mark is part of the damage: it is not data.
    let (a, b) = (std::fs::read(&out).unwrap(), std::fs::read(&whole).unwrap());
    let header = gguf::Header::parse(&b).unwrap();
    for t in header.tensors() {
        assert!(a[t.range()] == b[t.range()], "{}", t.name);
    }
}

#[test]
fn a_part_of_something_else_is_not_used() {
    let folder = checkpoint();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let shard = folder.path().join("model.safetensors");
    for change in ["time", "content", "options"] {
        broken_off(&job(folder.path()), &out, 3_000_000);
        let mut job = job(folder.path());
        match change {
            "time" => {
                let shard = std::fs::File::options().write(true).open(&shard).unwrap();
                shard.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
            }
            "content" => {
                // Another file of the same path, length and time.
                let (bytes, time) = (std::fs::read(&shard).unwrap(), shard.metadata().unwrap().modified().unwrap());
                std::fs::remove_file(&shard).unwrap();
                std::fs::write(&shard, bytes).unwrap();
                std::fs::File::options().write(true).open(&shard).unwrap().set_modified(time).unwrap();
            }
            _ => job.options = "others".into(),
        }
        if change != "options" {
            job = self::job(folder.path());
        }
        let control = Control::default();
        job.run(&out, 2, &control, OnFailure::Remove).unwrap();
        assert_eq!(control.resumed.load(Ordering::Relaxed), 0, "{change}");
    }
}

/// The message of a run that is refused, after which the same names are in the folder.
fn refused(folder: &Path, out: &Path) -> String {
    let dir = out.parent().unwrap();
    let before = names(dir);
    let e = job(folder).run(out, 1, &Control::default(), OnFailure::Remove).expect_err("refused").to_string();
    assert_eq!(names(dir), before, "{e}");
    e
}

#[test]
fn a_damaged_or_planted_journal_is_refused_and_nothing_is_removed() {
    let folder = checkpoint();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let (part, journal) = (dir.path().join("out.gguf.part"), dir.path().join("out.gguf.part.json"));
    let changed = |key: &str, to: serde_json::Value| {
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&journal).unwrap()).unwrap();
        json[key] = to;
        std::fs::write(&journal, json.to_string()).unwrap();
    };
    for (change, words) in [
        ("no JSON", "has a damaged journal"),
        ("no journal", "has no journal beside it"),
        ("shorter", "does not have what its journal says"),
        ("more slabs than there are", "does not have what its journal says"),
        ("another part", "has the journal of another file"),
    ] {
        broken_off(&job(folder.path()), &out, 3_000_000);
        match change {
            "no JSON" => std::fs::write(&journal, "{").unwrap(),
            "no journal" => std::fs::remove_file(&journal).unwrap(),
            "shorter" => std::fs::File::options().write(true).open(&part).unwrap().set_len(1000).unwrap(),
            "more slabs than there are" => changed("slabs", 1_000_000.into()),
            // As whoever knows the format would plant it: all of it is done, and the bytes are of their choice.
            _ => {
                let mut bytes = std::fs::read(&part).unwrap();
                let n = bytes.len();
                bytes[n / 2..].fill(0x55);
                std::fs::rename(&part, dir.path().join("aside")).unwrap();
                std::fs::write(&part, bytes).unwrap();
            }
        }
        let left = std::fs::read(&part).unwrap();
        let e = refused(folder.path(), &out);
        assert!(e.contains(words) && e.contains("out.gguf.part.json") && e.contains("remove both"), "{change}: {e}");
        assert!(std::fs::read(&part).unwrap() == left, "{change}");
        for file in dir.path().read_dir().unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
}

#[test]
fn an_unfinished_download_of_that_name_is_not_overwritten() {
    let folder = checkpoint();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("out.gguf.part"), "half of something").unwrap();
    let e = refused(folder.path(), &dir.path().join("out.gguf"));
    assert!(e.contains("out.gguf.part: has no journal") && e.contains("remove"), "{e}");
    assert_eq!(std::fs::read(dir.path().join("out.gguf.part")).unwrap(), b"half of something");
}

#[test]
#[cfg(unix)]
fn links_and_files_that_are_no_part_of_ours_are_refused_and_not_followed() {
    use std::os::unix::fs::symlink;

    let folder = checkpoint();
    let dir = tempfile::tempdir().unwrap();
    let aside = tempfile::tempdir().unwrap();
    let victim = aside.path().join("victim");
    let out = dir.path().join("out.gguf");
    for name in ["out.gguf.part", "out.gguf.part.json"] {
        let path = dir.path().join(name);
        for (kind, words) in [
            ("a link", "is a symbolic link"),
            ("a link to nothing", "is a symbolic link"),
            ("a hard link", "has 2 names"),
            ("a pipe", "is not a regular file"),
            ("a folder", ""),
        ] {
            std::fs::write(&victim, "precious").unwrap();
            match kind {
                "a link" => symlink(&victim, &path).unwrap(),
                "a link to nothing" => symlink(aside.path().join("new"), &path).unwrap(),
                "a hard link" => std::fs::hard_link(&victim, &path).unwrap(),
                "a pipe" => assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success()),
                _ => std::fs::create_dir(&path).unwrap(),
            }
            let e = refused(folder.path(), &out);
            assert!(e.contains(&format!("{name}: {words}")), "{name}, {kind}: {e}");
            assert_eq!(std::fs::read(&victim).unwrap(), b"precious", "{name}, {kind}");
            assert_eq!(aside.path().read_dir().unwrap().count(), 1, "{name}, {kind}: nothing new beside the victim");
            if kind == "a folder" { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) }.unwrap();
        }
    }
    // The journal's next state is written anew every time: what has its name goes, and what that leads to stays.
    symlink(&victim, dir.path().join("out.gguf.part.json.new")).unwrap();
    job(folder.path()).run(&out, 1, &Control::default(), OnFailure::Remove).unwrap();
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    assert_eq!(names(dir.path()), ["out.gguf"]);
}

#[cfg(unix)]
#[test]
fn links_and_devices_stay_what_they_are() {
    let (folder, dir) = (checkpoint(), tempfile::tempdir().unwrap());
    let (link, socket) = (dir.path().join("link.gguf"), dir.path().join("socket.gguf"));
    std::fs::write(dir.path().join("file"), "kept").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for out in [&link, &socket] {
        let e = job(folder.path()).run(out, 1, &Control::default(), OnFailure::Remove).unwrap_err().to_string();
        assert!(e.contains("is a link or a device"), "{e}");
        assert!(!std::fs::symlink_metadata(out).unwrap().is_file());
        let e = gguf::Writer::create(out).expect_err("refused").to_string();
        assert!(e.contains("a link or a device"), "{e}");
    }
    assert_eq!(std::fs::read(&link).unwrap(), b"kept");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn an_input_is_never_the_output_and_a_failure_leaves_nothing() {
    let folder = checkpoint();
    let shard = folder.path().join("model.safetensors");
    let before = std::fs::read(&shard).unwrap();
    let link = folder.path().join("link.gguf");
    std::fs::hard_link(&shard, &link).unwrap();
    for out in [&shard, &link] {
        let e = job(folder.path()).run(out, 1, &Control::default(), OnFailure::Remove).unwrap_err().to_string();
        assert!(e.contains("is one of the inputs"), "{e}");
        assert!(std::fs::read(&shard).unwrap() == before);
    }

    // The descriptions are inputs too, and so is what would be the unfinished output.
    for name in ["config.json", "tokenizer.json", "chat_template.jinja"] {
        let out = folder.path().join(name);
        let before = std::fs::read(&out).unwrap();
        let e = job(folder.path()).run(&out, 1, &Control::default(), OnFailure::Remove).unwrap_err().to_string();
        assert!(e.contains("is one of the inputs") && std::fs::read(&out).unwrap() == before, "{e}");
    }
    let part = folder.path().join("model.gguf.part");
    std::fs::hard_link(&shard, &part).unwrap();
    let e = job(folder.path()).run(&part.with_extension(""), 1, &Control::default(), OnFailure::Remove).unwrap_err();
    assert!(e.to_string().contains("model.gguf.part: is one of the inputs"), "{e}");
    assert!(std::fs::read(&shard).unwrap() == before);

    // A shard that becomes shorter while it is read.
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    std::fs::write(&out, "old").unwrap();
    let job = job(folder.path());
    std::fs::File::options().write(true).open(&shard).unwrap().set_len(4_000_000).unwrap();
    let e = job.run(&out, 2, &Control::default(), OnFailure::Remove).unwrap_err().to_string();
    assert!(e.contains("model.safetensors: read"), "{e}");
    assert_eq!(names(dir.path()), ["out.gguf"]);
    assert_eq!(std::fs::read(&out).unwrap(), b"old");
}

#[test]
fn one_output_has_one_writer() {
    let folder = checkpoint();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let part = std::fs::File::create(dir.path().join("out.gguf.part")).unwrap();
    part.lock().unwrap();
    let e = job(folder.path()).run(&out, 1, &Control::default(), OnFailure::Remove).unwrap_err().to_string();
    assert!(e.contains("another process"), "{e}");
}
