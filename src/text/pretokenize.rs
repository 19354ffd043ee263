//! The first cut of a text: into words, inside which merges then happen.
//! Owns the split rules by name; knows nothing of vocabularies.
//!
//! A rule is data: the regular expressions of the models' own tokenizers (`rules.rs`), run one after another, each
//! inside the pieces of the one before it; what no match takes is a piece too. Three of the expressions, which most
//! files use, are written as a forward scan (`scan.rs`). The others run in an automaton (`pattern.rs`), which has no
//! look-ahead and needs none: in all of these expressions a look-ahead only says where a run of white space or of
//! digits ends, which is computed from the run. So time is linear in the text for every rule, where a backtracking
//! engine would have to be stopped; a test holds the cuts equal to those of the backtracking engine that the reference
//! tokenizers use.

mod pattern;
mod ranges;
mod rules;
mod scan;

use pattern::Pattern;
pub(crate) use rules::{Bos, Rule, Spelling};
use scan::Scan;

/// A rule, ready to cut.
#[derive(Debug)]
pub(crate) struct Splitter {
    stages: Vec<Stage>,
}

#[derive(Debug)]
enum Stage {
    Scan(Scan),
    Pattern(Pattern),
}

impl Splitter {
    /// Takes some milliseconds for most rules, and next to nothing for those that are scanned.
    pub(crate) fn new(rule: &Rule) -> Self {
        let stage = |pattern: &&str| match Scan::of(pattern) {
            Some(scan) => Stage::Scan(scan),
            None => Stage::Pattern(Pattern::new(pattern)),
        };
        Self { stages: rule.patterns.iter().map(stage).collect() }
    }

    /// Gives the words of `text` to `word`, in order, none empty; put together they are `text`.
    pub(crate) fn words<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) {
        cut(&self.stages, text, word);
    }
}

fn cut<'t>(stages: &[Stage], text: &'t str, word: &mut dyn FnMut(&'t str)) {
    match stages.split_first() {
        _ if text.is_empty() => {}
        None => word(text),
        Some((Stage::Scan(scan), rest)) => scan.words(text).for_each(|piece| cut(rest, piece, word)),
        Some((Stage::Pattern(pattern), rest)) => pattern.pieces(text, &mut |piece| cut(rest, piece, word)),
    }
}

/// All names, for a message.
pub(crate) fn known_names() -> String {
    let names = rules::RULES.iter().flat_map(|rule| rule.names).map(|name| format!("{name:?}"));
    names.collect::<Vec<_>>().join(", ")
}

/// How a `ByteLevel` pre-tokenizer of a `tokenizer.json` splits by itself.
pub const BYTE_LEVEL_SPLIT: &str = rules::GPT2;

/// The name of the rule that runs these patterns, which are those of a `tokenizer.json`, and takes words that are tokens
/// whole or not; if only that differs, a rule with these patterns.
#[must_use]
pub fn split_rule(patterns: &[&str], whole_words: bool) -> Option<&'static str> {
    let is_it = |rule: &&Rule| rule.patterns == patterns && rule.spelling == Spelling::ByteLevel;
    let mut rules = rules::RULES.iter().filter(is_it);
    let first = rules.clone().next();
    rules.find(|rule| rule.whole_words == whole_words).or(first).map(|rule| rule.names[0])
}

/// The rules by name, each with its patterns.
pub fn split_rules() -> impl Iterator<Item = (&'static str, &'static [&'static str], bool)> {
    rules::RULES.iter().flat_map(|rule| rule.names.iter().map(|name| (*name, rule.patterns, rule.whole_words)))
}

#[cfg(test)]
#[path = "tests/tokenizer/generate.rs"]
mod generate;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, SplitDelimiterBehavior};

    use super::generate::{any_text, config};
    use super::*;

    /// The cuts that the patterns make in the engine of the `tokenizers` crate.
    struct Reference(Vec<Split>);

    impl Reference {
        fn new(rule: &Rule) -> Self {
            let split = |pattern: &&str| {
                let pattern = SplitPattern::Regex((*pattern).to_owned());
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap()
            };
            Self(rule.patterns.iter().map(split).collect())
        }

        fn words(&self, text: &str) -> Vec<String> {
            let mut cut = PreTokenizedString::from(text);
            self.0.iter().for_each(|split| split.pre_tokenize(&mut cut).unwrap());
            let words = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
            words.into_iter().map(|(word, ..)| word.to_owned()).filter(|word| !word.is_empty()).collect()
        }
    }

    fn words<'t>(splitter: &Splitter, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        splitter.words(text, &mut |word| words.push(word));
        words
    }

    fn words_of<'t>(pre: &str, text: &'t str) -> Vec<&'t str> {
        words(&Splitter::new(Rule::by_name(pre).unwrap()), text)
    }

    /// Rules with different patterns.
    fn each_rule() -> Vec<&'static Rule> {
        let mut seen: Vec<&Rule> = Vec::new();
        for rule in rules::RULES {
            if !seen.iter().any(|other| other.patterns == rule.patterns) {
                seen.push(rule);
            }
        }
        seen
    }

    #[test]
    fn generated_text_is_cut_as_the_patterns_cut_it() {
        for rule in each_rule() {
            let (ours, reference) = (Splitter::new(rule), Reference::new(rule));
            let cases = if rule.patterns.iter().all(|pattern| Scan::of(pattern).is_some()) { 3000 } else { 600 };
            let equal = |text: String| {
                prop_assert_eq!(words(&ours, &text), reference.words(&text), "{:?}", rule.names);
                Ok(())
            };
            TestRunner::new(config(cases)).run(&any_text(), equal).unwrap();
        }
    }

    #[test]
    fn every_character_is_classed_as_the_patterns_class_it() {
        // The neighbours show the class: letters, digits and symbols take in their like, white space stays alone.
        let probe = |c: &char| format!("a{c}a1{c}1 {c}!{c}A\n");
        for rule in each_rule() {
            let (ours, reference) = (Splitter::new(rule), Reference::new(rule));
            // The scan has tables of its own: every 5th character, so that each range of five and more is met. The
            // engine has those of the reference. In groups, for speed.
            let step = if rule.patterns.iter().all(|pattern| Scan::of(pattern).is_some()) { 5 } else { 211 };
            for group in ('\0'..=char::MAX).step_by(step).collect::<Vec<_>>().chunks(512) {
                let text: String = group.iter().map(probe).collect();
                if words(&ours, &text) != reference.words(&text) {
                    let differs = |c: &&char| words(&ours, &probe(c)) != reference.words(&probe(c));
                    panic!("{:?}: {:?}", rule.names, group.iter().filter(differs).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn each_name_is_given_once_and_finds_its_rule() {
        let mut names: Vec<_> = split_rules().map(|(name, ..)| name).collect();
        assert!(names.len() > 80);
        assert!(names.iter().all(|name| Rule::by_name(name).is_some_and(|rule| rule.names.contains(name))));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), split_rules().count());
    }

    #[test]
    fn patterns_name_their_rule() {
        assert_eq!(split_rule(&[rules::QWEN35], false), Some("qwen35"));
        assert_eq!(split_rule(&[rules::LLAMA3], true), Some("llama-bpe"));
        assert_eq!(split_rule(&[rules::LLAMA3], false), Some("chatglm-bpe"));
        assert_eq!(split_rule(&[r"\p{N}", rules::GPT2], false), Some("starcoder"));
        assert_eq!(split_rule(&["x"], false), None);
    }

    #[test]
    fn white_space_without_end_takes_no_more_than_its_length() {
        for rule in each_rule() {
            let ours = Splitter::new(rule);
            for text in [" ".repeat(300_000), "\n ".repeat(150_000), "1".repeat(300_000), "aA'".repeat(100_000)] {
                for text in [text.clone(), format!("{text}x")] {
                    assert_eq!(words(&ours, &text).concat(), text);
                }
            }
        }
    }

    #[test]
    fn white_space_goes_to_the_line_end_or_leaves_one_for_the_word() {
        assert_eq!(words_of("qwen35", "a   b"), ["a", "  ", " b"]);
        assert_eq!(words_of("qwen35", "a   "), ["a", "   "]);
        assert_eq!(words_of("qwen35", "  \n \r\n  x"), ["  \n \r\n", " ", " x"]);
        assert_eq!(words_of("qwen35", "\t7"), ["\t", "7"]);
        assert_eq!(words_of("qwen35", "\u{a0}\u{3000}7"), ["\u{a0}", "\u{3000}", "7"]);
        assert_eq!(words_of("qwen35", " !\n\n x"), [" !\n\n", " x"]);
    }

    #[test]
    fn contractions_win_over_words() {
        assert_eq!(words_of("qwen35", "I'Mx 'story"), ["I", "'M", "x", " '", "story"]);
        assert_eq!(words_of("qwen35", "'story"), ["'s", "tory"]);
        assert_eq!(words_of("qwen35", "'lLa'la"), ["'lL", "a", "'la"]);
        assert_eq!(words_of("qwen35", "'\u{17f}a"), ["'\u{17f}", "a"]);
    }

    #[test]
    fn the_rules_differ_in_marks_and_digits() {
        assert_eq!(words_of("qwen35", "e\u{301}f 1234"), ["e\u{301}f", " ", "1", "2", "3", "4"]);
        assert_eq!(words_of("qwen2", "e\u{301}f 12"), ["e", "\u{301}f", " ", "1", "2"]);
        assert_eq!(words_of("llama-bpe", "e\u{301}. 1234"), ["e", "\u{301}.", " ", "123", "4"]);
    }

    #[test]
    fn characters_without_a_class_count_as_symbols() {
        assert_eq!(words_of("qwen35", "a\u{378}\u{e000}\u{200b}b"), ["a", "\u{378}\u{e000}\u{200b}", "b"]);
    }
}
