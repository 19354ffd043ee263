//! Options of llama.cpp's server that change nothing here, or are another option here: start scripts of that server work, and
//! one line on standard error for each says what happens in its place.
//! Owns their names. What an option of ours does is `args.rs`.

use std::collections::VecDeque;
use std::ffi::OsString;

/// A command line as `args.rs` knows it, and a sentence for each option that was left out of it.
pub(super) struct Translated {
    pub(super) words: Vec<OsString>,
    pub(super) notes: Vec<String>,
}

/// Takes llama.cpp's options out of a command line.
pub(super) fn translated(words: impl Iterator<Item = OsString>) -> Translated {
    let mut words: VecDeque<OsString> = words.collect();
    let (mut kept, mut notes) = (Vec::new(), Vec::new());
    kept.extend(words.pop_front());
    while let Some(word) = words.pop_front() {
        let Some(text) = word.to_str() else {
            kept.push(word);
            continue;
        };
        let (name, joined) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value)),
            _ => (text, None),
        };
        if let Some((_, ours)) = OURS.iter().find(|(theirs, _)| *theirs == text) {
            kept.push(ours.into());
        } else if let Some((_, takes, why)) = NOTHING.iter().find(|(theirs, ..)| theirs.contains(&name)) {
            if *takes == Takes::Value && joined.is_none() {
                words.pop_front();
            }
            if !why.is_empty() {
                notes.push(format!("{name} changes nothing here: {why}"));
            }
        } else {
            kept.push(word);
        }
    }
    Translated { words: kept, notes }
}

/// What an option stands before.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Nothing,
    Value,
}
use Takes::{Nothing, Value};

/// The same by another name.
const OURS: [(&str, &str); 7] = [
    ("--no-slots", "--slots=off"),
    ("--no-ui", "--no-webui"),
    ("-rea", "--reasoning"),
    ("--log-verbose", "--verbose"),
    ("-mm", "--mmproj"),
    ("--no-mmproj-auto", "--no-mmproj"),
    ("--no-mmproj-offload", "--mmproj-device=cpu"),
];

const ONE_POOL: &str = "one number of threads serves all work, see --threads";
const SYSTEM: &str = "priorities and places of threads are the system's, see nice and taskset";
const MAPPED: &str = "model files are mapped, and weights are read as they are used";
const LOGS: &str = "log lines have the form that -v, -q, --log-json and NEXTN_LOG choose";

/// What has no effect, and why; without a sentence it is how this server is anyway.
const NOTHING: [(&[&str], Takes, &str); 42] = [
    (&["-tb", "--threads-batch", "-td", "--threads-draft", "-tbd", "--threads-batch-draft"], Value, ONE_POOL),
    (&["--threads-http"], Value, "connections are served by one thread per core"),
    (&["--prio", "--prio-batch", "--prio-draft", "--poll", "--poll-batch", "--poll-draft"], Value, SYSTEM),
    (
        &["-C", "--cpu-mask", "-Cr", "--cpu-range", "-Cb", "--cpu-mask-batch", "-Crb", "--cpu-range-batch"],
        Value,
        SYSTEM,
    ),
    (&["--cpu-strict", "--cpu-strict-batch"], Value, SYSTEM),
    (&["--mmap"], Nothing, ""),
    (&["--no-mmap"], Nothing, MAPPED),
    (&["-lm", "--load-mode", "-lzm", "--lazy-mode"], Value, MAPPED),
    (&["-dio", "--direct-io", "--no-host", "-nr", "--no-repack"], Nothing, MAPPED),
    (&["--check-tensors"], Nothing, "`extract-nextn verify` checks a file"),
    (&["-nkvo", "--no-kv-offload"], Nothing, "the cache of a layer lies where the layer lies, see --gpu-layers"),
    (&["-kvo", "--kv-offload", "--op-offload", "--no-op-offload"], Nothing, ""),
    (&["-fit", "--fit"], Value, "what does not fit is told before anything is allocated, with settings that fit"),
    (&["-fitt", "--fit-target", "-fitc", "--fit-ctx"], Value, "what does not fit is told, with settings that fit"),
    (&["--no-cache-idle-slots"], Nothing, "a conversation that loses its slot moves to the host, see --cache-ram"),
    (&["-kvu", "--kv-unified"], Nothing, "every sequence has a context of its own, of --ctx-size tokens"),
    (&["-no-kvu", "--no-kv-unified"], Nothing, ""),
    (&["--swa-full"], Nothing, "layers with a window keep what the window needs"),
    (&["--no-context-shift"], Nothing, ""),
    (
        &["--cache-reuse"],
        Value,
        "a prompt is reused as far as it begins like an earlier one, and after that from a checkpoint",
    ),
    (&["--cache-prompt", "--cache-idle-slots"], Nothing, ""),
    (&["--no-cache-prompt"], Nothing, "a request switches it off with `cache_prompt: false`"),
    (
        &["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"],
        Value,
        "checkpoints are bounded by their memory, see --checkpoint-ram",
    ),
    (&["-sps", "--slot-prompt-similarity"], Value, "the slot that saves most is taken"),
    (&["--defrag-thold", "-dt"], Value, ""),
    (&["-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"], Value, "see --rope-scaling for long contexts"),
    (&["--warmup", "-e", "--escape", "--no-escape", "--perf", "--no-perf"], Nothing, ""),
    (&["-nocb", "--no-cont-batching"], Nothing, "requests are always batched"),
    (&["--no-jinja"], Nothing, "templates are always rendered as Jinja"),
    (&["--prefill-assistant"], Nothing, ""),
    (&["--no-prefill-assistant"], Nothing, "a request says `continue_final_message: false`"),
    (&["--props"], Nothing, "settings do not change while the server runs"),
    (&["--ui", "--webui", "--models-autoload"], Nothing, ""),
    (&["--no-models-autoload"], Nothing, "a request loads its model"),
    (&["-bs", "--backend-sampling", "--backend_sampling"], Nothing, "tokens are sampled on the CPU"),
    (&["--reuse-port"], Nothing, ""),
    (&["--log-colors", "--log-prefix", "--log-timestamps", "--no-log-prefix", "--no-log-timestamps"], Nothing, LOGS),
    (&["-lv", "--verbosity", "--log-verbosity"], Value, LOGS),
    (&["--log-disable"], Nothing, LOGS),
    (&["--mmproj-url", "-mmu"], Value, "download the projector and name it by --mmproj, or take the model by -hf"),
    (&["--media-path"], Value, "images come with requests, or from the web (--allow-image-urls)"),
    (&["--mmproj-auto", "--mmproj-offload"], Nothing, ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> (Vec<String>, Vec<String>) {
        let words = ["nextn-server"].iter().chain(words).map(OsString::from);
        let Translated { words, notes } = translated(words);
        (words.into_iter().skip(1).map(|word| word.into_string().unwrap()).collect(), notes)
    }

    #[test]
    fn what_changes_nothing_is_taken_out_with_its_value_and_told() {
        let (words, notes) = of(&["--no-mmap", "-c", "512", "-tb", "8", "--cache-reuse=256", "-m", "x.gguf"]);
        assert_eq!(words, ["-c", "512", "-m", "x.gguf"]);
        assert_eq!(notes.len(), 3);
        for (note, words) in notes.iter().zip(["--no-mmap changes", "-tb changes nothing here: one", "--cache-reuse"]) {
            assert!(note.starts_with(words), "{note}");
        }
        assert_eq!(of(&["--mmap", "--no-context-shift", "-dt", "0.1"]), (Vec::new(), Vec::new()));
    }

    #[test]
    fn other_names_are_ours_and_the_rest_stays() {
        let given = ["--no-slots", "--no-ui", "--host", "::1", "--unknown", "--chat-template", "{{ x }}"];
        let expected = ["--slots=off", "--no-webui", "--host", "::1", "--unknown", "--chat-template", "{{ x }}"];
        assert_eq!(of(&given), (expected.map(str::to_owned).to_vec(), Vec::new()));
    }

    #[test]
    fn no_option_of_this_server_is_taken_away() {
        let command = crate::args::command();
        for name in NOTHING.iter().flat_map(|(names, ..)| *names).chain(OURS.iter().map(|(theirs, _)| theirs)) {
            let ours = |arg: &clap::Arg| {
                let long = name.strip_prefix("--");
                let longs = arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default());
                longs.into_iter().any(|known| Some(known) == long)
            };
            assert!(!command.get_arguments().any(ours), "{name}");
        }
    }
}
