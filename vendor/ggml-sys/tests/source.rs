//! Every way in which ggml's source is not to be had is a message that names the place and the way out.

#[path = "../build/source.rs"]
#[allow(dead_code)] // The build script uses all of it.
mod source;

use std::path::{Path, PathBuf};

#[test]
fn a_folder_without_ggml_is_named_with_what_it_lacks() {
    let folder = folder("empty", &[] as &[(&str, &str)]);
    let message = source::at(&folder, "GGML_SOURCE_DIR".to_owned()).expect_err("the folder is empty");
    for part in [folder.to_str().expect("made of ASCII"), "GGML_SOURCE_DIR", "include/ggml.h", "unset it"] {
        assert!(message.contains(part), "`{part}` is missing: {message}");
    }
}

#[test]
fn ggmls_own_checkout_and_llama_cpps_are_both_found() {
    let cmake = "set(GGML_VERSION_MAJOR 1)\nset(GGML_VERSION_MINOR 22)\nset(GGML_VERSION_PATCH 333)\n";
    let files = [("include/ggml.h", ""), ("src/ggml.c", ""), ("CMakeLists.txt", cmake)];
    let ggml = folder("plain", &files);
    let llama = folder("llama", &files.map(|(name, text)| (format!("ggml/{name}"), text)));
    for (given, root) in [(&ggml, ggml.clone()), (&llama, llama.join("ggml"))] {
        let source = source::at(given, "GGML_SOURCE_DIR".to_owned()).expect("all three files are there");
        assert_eq!((source.ggml.as_path(), source.version.as_str()), (root.as_path(), "1.22.333"));
        assert_eq!(source.watched().len(), 3, "a folder of the user's is watched");
    }
    let pinned = source::at(&ggml, "llama-cpp-sys-4@0.11.0".to_owned()).expect("the same folder");
    assert!(pinned.watched().is_empty(), "a registry's package never changes");
}

#[test]
fn a_version_that_cannot_be_read_names_the_line() {
    let cmake = "set(GGML_VERSION_MAJOR 1)\nset(GGML_VERSION_PATCH 3)\n";
    let folder = folder("unversioned", &[("include/ggml.h", ""), ("src/ggml.c", ""), ("CMakeLists.txt", cmake)]);
    let message = source::at(&folder, "GGML_SOURCE_DIR".to_owned()).expect_err("MINOR is missing");
    assert!(message.contains("CMakeLists.txt") && message.contains("set(GGML_VERSION_MINOR "), "{message}");
}

#[test]
fn cargos_own_words_and_the_way_out_are_told_when_it_cannot_fetch() {
    if std::env::var_os("GGML_SOURCE_DIR").is_some() {
        return; // The pin is not asked.
    }
    let pin = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-such-manifest.toml");
    let message = source::locate(&pin, env!("GGML_SYS_TARGET")).expect_err("there is no such manifest");
    for part in ["no-such-manifest.toml", "cargo fetch --locked --manifest-path", "GGML_SOURCE_DIR"] {
        assert!(message.contains(part), "`{part}` is missing: {message}");
    }
}

/// A fresh folder of this test's with the `files` in it.
fn folder(name: &str, files: &[(impl AsRef<str>, &str)]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("source").join(name);
    std::fs::create_dir_all(&folder).expect("cargo's folder for tests is writable");
    for (file, text) in files {
        let path = folder.join(file.as_ref());
        std::fs::create_dir_all(path.parent().expect("it lies in the folder")).expect("as above");
        std::fs::write(path, text).expect("as above");
    }
    folder
}
