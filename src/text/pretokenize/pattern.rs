//! A split pattern run by an engine: everything between look-aheads is a regular expression proper, which the engine
//! matches in linear time, and the look-aheads of these patterns are computed from the match.
//! Owns that reading of a pattern; which patterns there are is for `rules.rs` to say.

use regex_automata::meta::Regex;
use regex_automata::{Input, PatternID};

use super::rules::{AFMOE_DIGITS, SUPERBPE_DIGITS, TINY_AYA_DIGITS};

/// One pattern of a rule.
#[derive(Debug)]
pub(super) struct Pattern {
    /// Pattern 0 is what matches are taken from as they are, pattern 1 a run of white space whose end depends on what
    /// follows it. The first that matches wins, as the alternatives of the published pattern do.
    regex: Regex,
    run: Run,
}

/// What becomes of a run that needs to know what follows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Run {
    /// There is none.
    None,
    /// `\s+(?!\S)|\s+`: white space before a word leaves its last character to the word.
    Blanks,
    /// As `Blanks`, in pieces of 512, 256, ... characters.
    BlanksByPowers,
    /// Digits by three from the last one on.
    Digits,
    /// Cuts before each three digits of such a run, and nowhere else.
    BeforeDigits,
}

impl Pattern {
    /// Reads one of the patterns of the table.
    pub(super) fn new(pattern: &str) -> Self {
        let (alternatives, run) = parts(pattern);
        let patterns = match run {
            Run::None => vec![alternatives],
            Run::Blanks | Run::BlanksByPowers => vec![alternatives, r"\s+"],
            // Nothing is taken as it is.
            Run::Digits | Run::BeforeDigits => vec!["[a&&b]", alternatives],
        };
        // The automaton is built as text demands; text of many scripts needs more of it than the default holds.
        let config = Regex::config().hybrid_cache_capacity(CACHE_BYTES);
        let regex = Regex::builder().configure(config).build_many(&patterns);
        Self { regex: regex.expect("a unit test builds all patterns of the table"), run }
    }

    /// Gives the matches in `text` and what lies between them to `piece`, in order; put together they are `text`.
    pub(super) fn pieces<'t>(&self, text: &'t str, piece: &mut dyn FnMut(&'t str)) {
        // Between `gap` and `at` lies what no match has taken.
        let (mut gap, mut at) = (0, 0);
        while let Some(found) = self.regex.find(Input::new(text).range(at..)) {
            let before = &text[gap..found.start()];
            let range = found.range();
            if found.pattern() == PatternID::ZERO {
                piece(before);
                piece(&text[range.clone()]);
                (gap, at) = (range.end, range.end);
            } else if matches!(self.run, Run::Blanks | Run::BlanksByPowers) {
                piece(before);
                at = self.blanks(text, range.start, range.end, piece);
                gap = at;
            } else {
                at = range.end;
                let digits = &text[range.clone()];
                let mut cut = range.start + group_start(digits, digits.chars().count() % 3);
                if self.run == Run::Digits {
                    piece(before);
                    gap = range.start;
                }
                while cut < range.end {
                    piece(&text[gap..cut]);
                    (gap, cut) = (cut, cut + group_start(&text[cut..range.end], 3));
                }
                if self.run == Run::Digits {
                    piece(&text[gap..range.end]);
                    gap = range.end;
                }
            }
        }
        piece(&text[gap..]);
    }

    /// Cuts the run of white space from `start` to `end`, and gives where the search goes on.
    fn blanks<'t>(&self, text: &'t str, start: usize, end: usize, piece: &mut dyn FnMut(&'t str)) -> usize {
        let run = &text[start..end];
        let at_end = end == text.len();
        let last = run.char_indices().next_back().map_or(0, |(at, _)| at);
        if self.run == Run::Blanks {
            let taken = if at_end || last == 0 { run.len() } else { last };
            piece(&run[..taken]);
            return start + taken;
        }
        let mut rest = run;
        let mut n_left = run.chars().count();
        // The last character belongs to the word that follows, unless the run is no longer than that.
        while n_left > usize::from(!at_end) || (n_left == 1 && rest.len() == run.len()) {
            let fits = |n: &usize| n_left > *n || (at_end && n_left == *n);
            let n = BLANK_GROUPS.into_iter().find(fits).unwrap_or(1);
            let (group, after) = rest.split_at(group_start(rest, n));
            piece(group);
            (rest, n_left) = (after, n_left - n);
        }
        end - rest.len()
    }
}

/// What the engine matches, and what is computed.
fn parts(pattern: &str) -> (&str, Run) {
    match pattern {
        AFMOE_DIGITS => return (r"\p{N}+", Run::Digits),
        TINY_AYA_DIGITS => return (r"\d+\b", Run::Digits),
        SUPERBPE_DIGITS => return (r"\d+", Run::BeforeDigits),
        _ => {}
    }
    if let Some(alternatives) = pattern.strip_suffix(BLANKS_BY_POWERS) {
        (alternatives, Run::BlanksByPowers)
    } else if let Some(alternatives) = pattern.strip_suffix(BLANKS) {
        (alternatives, Run::Blanks)
    } else {
        (pattern, Run::None)
    }
}

/// Where character `n` of `text` starts; the end if there are no more.
fn group_start(text: &str, n: usize) -> usize {
    text.char_indices().nth(n).map_or(text.len(), |(at, _)| at)
}

const BLANKS: &str = r"|\s+(?!\S)|\s+";
const BLANKS_BY_POWERS: &str = r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// `\s{1,2}` takes two where it can.
const BLANK_GROUPS: [usize; 9] = [512, 256, 128, 64, 32, 16, 8, 4, 2];
const CACHE_BYTES: usize = 16 << 20;
