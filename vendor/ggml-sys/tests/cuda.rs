//! The lines that call our CUDA kernels find their places in ggml's files: nvcc is not needed to know that.

#[path = "../build/hooks.rs"]
mod hooks;
#[path = "../build/source.rs"]
#[allow(dead_code)] // The build script uses all of it.
mod source;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// `text` of the file `name` as `scripts/build-plugin.sh` has it: what `cuda/hooked.awk` prints, or what it says on failure.
fn hooked_by_script(text: &str, hooks: &str, name: &str) -> Result<String, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hooks-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the two files");
    std::fs::write(folder.join("hooks"), hooks).expect("the hooks are written");
    std::fs::write(folder.join("text"), text).expect("the file is written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/hooked.awk");
    let run = Command::new("awk")
        .arg("-v")
        .arg(format!("file={name}"))
        .arg("-f")
        .arg(script)
        .args(["hooks", "text"])
        .current_dir(&folder)
        .output();
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    let output = run.expect("awk runs");
    let [printed, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    if output.status.success() { Ok(printed) } else { Err(said) }
}

#[test]
fn hooks_go_into_ggmls_source_and_call_what_we_have() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pin = source::pin(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda")).expect("the pin of the checkout");
    let ggml = source::locate(&pin, env!("GGML_SYS_TARGET")).expect("ggml was compiled before this test");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let list = read(&here.join("cuda/hooks"));
    let headers = [
        "few_columns",
        "copies",
        "attention",
        "stores",
        "gumbel",
        "mask",
        "states",
        "fusions",
        "all_reduce",
        "best_of_row",
    ];
    let headers = headers.map(|name| format!("{name}.cuh")).map(|name| read(&here.join("cuda").join(name)));
    let files: BTreeSet<&str> = list.lines().filter_map(|hook| hook.split('|').next()).collect();
    assert_eq!(files.len(), 5, "{list}");
    let mut n_added = 0;
    for file in files {
        let text = read(&ggml.src().join("ggml-cuda").join(file));
        let hooked = hooks::hooked(&text, &list, file).unwrap_or_else(|e| panic!("{file}: {e}"));
        if cfg!(unix) {
            assert_eq!(hooked_by_script(&text, &list, file).as_deref(), Ok(hooked.as_str()), "{file}");
        }
        n_added += hooked.lines().count() - text.lines().count();
    }
    assert_eq!(n_added, list.lines().count());
    for (at, _) in list.match_indices("nextn::") {
        let name = list[at + "nextn::".len()..].split('(').next().expect("a name");
        let has = |header: &String| [" ", "*"].iter().any(|before| header.contains(&format!("{before}{name}(")));
        assert!(headers.iter().any(has), "no header of ours has {name}");
    }
}

#[test]
fn lines_follow_in_their_order_and_a_line_that_has_changed_is_told() {
    let hooks = "f|b|1 || \\n\nf|b|2\ng|b|3\nf|c|4";
    for hooked in [hooks::hooked, hooked_by_script].iter().take(if cfg!(unix) { 2 } else { 1 }) {
        assert_eq!(hooked("a\nb\nc\n", hooks, "f").as_deref(), Ok("a\nb\n1 || \\n\n2\nc\n4\n"));
        for text in ["a\nc\n", "b\nb\nc\n"] {
            let error = hooked(text, hooks, "f").expect_err("b does not stand there once");
            assert!(error.contains("`b`") || error.ends_with(": b\n"), "{error}");
        }
    }
}
