//! The first cut of a text: into words, inside which BPE then merges.
//! Owns the split rules by name; knows nothing of vocabularies.
//!
//! The rules are published as regular expressions; they are written here as one forward scan, because their
//! look-ahead `\s+(?!\S)` needs a backtracking engine. Each character is looked at a bounded number of times.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// A split rule, by the name that `tokenizer.ggml.pre` gives it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Pre {
    /// Qwen2 to Qwen3: one digit at a time.
    Qwen2,
    /// Qwen3.5: as `Qwen2`, and combining marks belong to words.
    Qwen35,
    /// Llama 3 and GLM-4: as `Qwen2`, with digits in groups of up to three.
    LlamaBpe,
}

impl Pre {
    const KNOWN: [(&str, Self); 4] =
        [("qwen35", Self::Qwen35), ("qwen2", Self::Qwen2), ("llama-bpe", Self::LlamaBpe), ("glm4", Self::LlamaBpe)];

    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::KNOWN.iter().find(|(known, _)| *known == name).map(|&(_, pre)| pre)
    }

    pub(crate) fn known_names() -> String {
        Self::KNOWN.map(|(name, _)| format!("{name:?}")).join(", ")
    }

    /// The words of `text`, in order; put together they are `text`.
    pub(crate) fn words(self, text: &str) -> Words<'_> {
        Words { pre: self, rest: text }
    }

    fn max_digits(self) -> usize {
        if self == Self::LlamaBpe { 3 } else { 1 }
    }

    fn class(self, c: char) -> Class {
        if let Some(&class) = ASCII.get(c as usize) {
            return class;
        }
        if c.is_whitespace() {
            return Class::Space;
        }
        match c.general_category_group() {
            GeneralCategoryGroup::Letter => Class::Letter,
            GeneralCategoryGroup::Mark if self == Self::Qwen35 => Class::Letter,
            GeneralCategoryGroup::Number => Class::Number,
            _ => Class::Other,
        }
    }
}

/// Iterator over the words of a text.
pub(crate) struct Words<'t> {
    pre: Pre,
    rest: &'t str,
}

impl<'t> Iterator for Words<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let len = self.first_word()?;
        let (word, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some(word)
    }
}

impl Words<'_> {
    /// Length in bytes of the word at the start. The alternatives stand in the order of the regular expressions.
    fn first_word(&self) -> Option<usize> {
        let text = self.rest;
        let first = text.chars().next()?;
        let class = self.pre.class(first);
        let after_first = &text[first.len_utf8()..];
        let second = after_first.chars().next().map(|c| self.pre.class(c));

        if first == '\''
            && let Some(len) = contraction(after_first)
        {
            return Some(1 + len);
        }
        // [^\r\n\p{L}\p{N}]?\p{L}+
        let letter_prefix = matches!(class, Class::Space | Class::Other) && second == Some(Class::Letter);
        if class == Class::Letter || letter_prefix {
            return Some(first.len_utf8() + self.run(after_first, Class::Letter));
        }
        // \p{N} or \p{N}{1,3}
        if class == Class::Number {
            let more = after_first.chars().take(self.pre.max_digits() - 1);
            let more = more.take_while(|&c| self.pre.class(c) == Class::Number);
            return Some(first.len_utf8() + more.map(char::len_utf8).sum::<usize>());
        }
        // ` ?[^\s\p{L}\p{N}]+[\r\n]*`
        if class == Class::Other || (first == ' ' && second == Some(Class::Other)) {
            let end = first.len_utf8() + self.run(after_first, Class::Other);
            return Some(end + self.run(&text[end..], Class::Newline));
        }
        Some(self.space(text))
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last line end in the run of white space; else the run, without its
    /// last character when a word follows, which takes it as its prefix or leaves it alone.
    fn space(&self, text: &str) -> usize {
        let mut last = 0;
        let mut newline_end = 0;
        let mut end = 0;
        let mut word_follows = false;
        for (at, c) in text.char_indices() {
            match self.pre.class(c) {
                Class::Newline => newline_end = at + 1,
                Class::Space => {}
                Class::Letter | Class::Number | Class::Other => {
                    word_follows = true;
                    break;
                }
            }
            last = at;
            end = at + c.len_utf8();
        }
        match (newline_end, word_follows && last > 0) {
            (0, true) => last,
            (0, false) => end,
            (newline_end, _) => newline_end,
        }
    }

    /// Length in bytes of the run of `class` at the start of `text`.
    fn run(&self, text: &str, class: Class) -> usize {
        text.find(|c| self.pre.class(c) != class).unwrap_or(text.len())
    }
}

/// Length of the `s`, `t`, `re`, `ve`, `m`, `ll` or `d` that follows an apostrophe, in any case.
/// The long s folds to s, as case-insensitive matching by Unicode has it.
fn contraction(after_apostrophe: &str) -> Option<usize> {
    let mut chars = after_apostrophe.chars();
    let first = chars.next()?;
    match first.to_ascii_lowercase() {
        's' | 't' | 'm' | 'd' | '\u{17f}' => Some(first.len_utf8()),
        'r' | 'v' if matches!(chars.next(), Some('e' | 'E')) => Some(2),
        'l' if matches!(chars.next(), Some('l' | 'L')) => Some(2),
        _ => None,
    }
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Class {
    Letter,
    Number,
    /// CR and LF.
    Newline,
    /// The other white space.
    Space,
    /// Punctuation, symbols, controls, format characters, private use, unassigned.
    Other,
}

/// The classes of the first 128 characters: most text never reaches the search in the Unicode tables.
const ASCII: [Class; 128] = {
    let mut table = [Class::Other; 128];
    let mut c = 0;
    while c < 128 {
        table[c] = match c as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b'\n' | b'\r' => Class::Newline,
            b' ' | b'\t' | 0x0B | 0x0C => Class::Space,
            _ => Class::Other,
        };
        c += 1;
    }
    table
};

#[cfg(test)]
#[path = "tests/tokenizer/generate.rs"]
mod generate;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, SplitDelimiterBehavior};

    use super::generate::{LLAMA3, QWEN2, QWEN35, any_text, config};
    use super::*;

    const RULES: [(Pre, &str); 3] = [(Pre::Qwen35, QWEN35), (Pre::Qwen2, QWEN2), (Pre::LlamaBpe, LLAMA3)];

    /// The cuts that the pattern makes in the engine of the `tokenizers` crate.
    struct Reference(Split);

    impl Reference {
        fn new(pattern: &str) -> Self {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            Self(Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap())
        }

        fn words(&self, text: &str) -> Vec<String> {
            let mut cut = PreTokenizedString::from(text);
            self.0.pre_tokenize(&mut cut).unwrap();
            let words = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
            words.into_iter().map(|(word, ..)| word.to_owned()).filter(|word| !word.is_empty()).collect()
        }
    }

    #[test]
    fn generated_text_is_cut_as_the_patterns_cut_it() {
        for (pre, pattern) in RULES {
            let reference = Reference::new(pattern);
            let equal = |text: String| {
                prop_assert_eq!(words(pre, &text), reference.words(&text));
                Ok(())
            };
            TestRunner::new(config(3000)).run(&any_text(), equal).unwrap();
        }
    }

    #[test]
    fn every_character_is_classed_as_the_patterns_class_it() {
        // The neighbours show the class: letters, digits and symbols take in their like, white space stays alone.
        let probe = |c: &char| format!("a{c}a1{c}1 {c}!{c}\n");
        for (pre, pattern) in RULES {
            let reference = Reference::new(pattern);
            // Every 5th character, so that each range of five and more is met; in groups, for speed.
            for group in ('\0'..=char::MAX).step_by(5).collect::<Vec<_>>().chunks(512) {
                let text: String = group.iter().map(probe).collect();
                if words(pre, &text) != reference.words(&text) {
                    let differs = |c: &&char| words(pre, &probe(c)) != reference.words(&probe(c));
                    panic!("{pre:?}: {:?}", group.iter().filter(differs).collect::<Vec<_>>());
                }
            }
        }
    }

    fn words(pre: Pre, text: &str) -> Vec<&str> {
        pre.words(text).collect()
    }

    #[test]
    fn white_space_goes_to_the_line_end_or_leaves_one_for_the_word() {
        assert_eq!(words(Pre::Qwen35, "a   b"), ["a", "  ", " b"]);
        assert_eq!(words(Pre::Qwen35, "a   "), ["a", "   "]);
        assert_eq!(words(Pre::Qwen35, "  \n \r\n  x"), ["  \n \r\n", " ", " x"]);
        assert_eq!(words(Pre::Qwen35, "\t7"), ["\t", "7"]);
        assert_eq!(words(Pre::Qwen35, "\u{a0}\u{3000}7"), ["\u{a0}", "\u{3000}", "7"]);
        assert_eq!(words(Pre::Qwen35, " !\n\n x"), [" !\n\n", " x"]);
    }

    #[test]
    fn contractions_win_over_words() {
        assert_eq!(words(Pre::Qwen35, "I'Mx 'story"), ["I", "'M", "x", " '", "story"]);
        assert_eq!(words(Pre::Qwen35, "'story"), ["'s", "tory"]);
        assert_eq!(words(Pre::Qwen35, "'lLa'la"), ["'lL", "a", "'la"]);
        assert_eq!(words(Pre::Qwen35, "'\u{17f}a"), ["'\u{17f}", "a"]);
    }

    #[test]
    fn the_rules_differ_in_marks_and_digits() {
        assert_eq!(words(Pre::Qwen35, "e\u{301}f 1234"), ["e\u{301}f", " ", "1", "2", "3", "4"]);
        assert_eq!(words(Pre::Qwen2, "e\u{301}f 12"), ["e", "\u{301}f", " ", "1", "2"]);
        assert_eq!(words(Pre::LlamaBpe, "e\u{301}. 1234"), ["e", "\u{301}.", " ", "123", "4"]);
    }

    #[test]
    fn characters_without_a_class_count_as_symbols() {
        assert_eq!(words(Pre::Qwen35, "a\u{378}\u{e000}\u{200b}b"), ["a", "\u{378}\u{e000}\u{200b}", "b"]);
    }
}
