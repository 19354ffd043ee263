//! Tokens known by their text: what they are for, where a file leaves out the key or the type.
//! Owns the lists of texts, which are facts about published models; knows nothing of ids that a file gives.

use std::collections::HashMap;

use super::TokenKind;

/// The known texts that a vocabulary has, with their ids.
pub(super) struct Names(HashMap<&'static str, u32>);

impl Names {
    /// Unused rows stand for nothing, whatever their text.
    pub(super) fn of(texts: &[&str], kinds: &[TokenKind]) -> Self {
        let known: HashMap<&str, &'static str> = LISTS.iter().copied().flatten().map(|name| (*name, *name)).collect();
        let mut found = HashMap::new();
        for ((text, kind), id) in texts.iter().zip(kinds).zip(0..) {
            if text.len() <= MAX_NAME
                && *kind != TokenKind::Unused
                && let Some(name) = known.get(text)
            {
                found.entry(*name).or_insert(id);
            }
        }
        Self(found)
    }

    /// The first of `names` that is there.
    pub(super) fn first(&self, names: &[&str]) -> Option<u32> {
        names.iter().find_map(|name| self.0.get(name).copied())
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Tokens that end generation by their text. Not all of [`ENDS`] do in every vocabulary: where a reply has
    /// channels `<|end|>` only ends one of them, and beside `<|tool_response>` the text `</s>` is a word like others.
    pub(super) fn ends(&self) -> impl Iterator<Item = u32> + '_ {
        let channels =
            (self.has("<|return|>") && self.has("<|call|>")) || (self.has("<|flush|>") && self.has("<|calls|>"));
        let tag = self.has("<|tool_response>") || self.has("<|plamo:eos|>");
        let is_end = move |name: &&&str| !(channels && **name == "<|end|>" || tag && **name == "</s>");
        ENDS.iter().filter(is_end).filter_map(|name| self.0.get(name).copied())
    }

    /// Makes control tokens of those that have the text of one: some files mark them as normal ones, and then neither
    /// a template's text would become them nor would generation stop at them.
    pub(super) fn settle(&self, kinds: &mut [TokenKind]) {
        let others = LISTS[1..].iter().copied().flatten().filter_map(|name| self.0.get(name).copied());
        for id in self.ends().chain(others.collect::<Vec<_>>()) {
            kinds[id as usize] = TokenKind::Control;
        }
        if let Some(&id) = self.0.get("</s>").filter(|id| !self.ends().any(|end| end == **id)) {
            kinds[id as usize] = TokenKind::Normal;
        }
    }
}

/// All lists; those that end generation first.
const LISTS: [&[&str]; 9] = [ENDS, EOT, EOM, FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX, FIM_PAD, FIM_REPO, FIM_FILE];

/// End of a turn, by likelihood.
pub(super) const EOT: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "<end_of_utterance>",
];

/// End of a message, after which a tool answers.
pub(super) const EOM: &[&str] = &["<|eom_id|>"];

/// Tokens that end generation whatever the file says. Qwen needs two of them: its files name one.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "[e~[",
    "<|plamo:eos|>",
];

pub(super) const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<\u{ff5c}fim\u{2581}begin\u{ff5c}>",
    "<PRE>",
    "\u{2581}<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];

pub(super) const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<\u{ff5c}fim\u{2581}end\u{ff5c}>",
    "<MID>",
    "\u{2581}<MID>",
    "<|code_middle|>",
    "<|middle|>",
];

pub(super) const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<\u{ff5c}fim\u{2581}hole\u{ff5c}>",
    "<SUF>",
    "\u{2581}<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];

pub(super) const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
pub(super) const FIM_REPO: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
pub(super) const FIM_FILE: &[&str] = &["<|file_sep|>"];

/// Bytes of the longest name.
const MAX_NAME: usize = 40;
