//! llama.cpp's short names of more than one letter, written out: clap has none such.
//! One list for all programs; a program that lacks the option says so by its long name.

use std::ffi::OsString;

/// The command line as clap takes it.
pub fn spelled_out(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    words.map(|word| {
        let long = NAMES.iter().find(|(short, _)| word == *short);
        long.map_or(word, |(_, long)| long.into())
    })
}

const NAMES: [(&str, &str); 22] = [
    ("-cmoe", "--cpu-moe"),
    ("-cpent", "--checkpoint-every"),
    ("-cram", "--cache-ram"),
    ("-cb", "--cont-batching"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-dev", "--device"),
    ("-fa", "--flash-attn"),
    ("-hf", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-hfr", "--hf-repo"),
    ("-hft", "--hf-token"),
    ("-md", "--draft-model"),
    ("-mg", "--main-gpu"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-ngl", "--gpu-layers"),
    ("-np", "--parallel"),
    ("-ot", "--override-tensor"),
    ("-sm", "--split-mode"),
    ("-to", "--request-timeout"),
    ("-ts", "--tensor-split"),
    ("-ub", "--ubatch-size"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_written_out_and_nothing_else() {
        let words = ["x", "-ngl", "3", "-np", "2", "-n", "-nglx"].map(OsString::from);
        let out: Vec<OsString> = spelled_out(words.into_iter()).collect();
        assert_eq!(out, ["x", "--gpu-layers", "3", "--parallel", "2", "-n", "-nglx"]);
    }
}
