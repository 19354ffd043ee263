//! Lines that end at words, as text comes: between what is shown and the terminal. Owns the column that the cursor is in.
//! Text is parted at spaces and between ideographs; fenced code blocks and rows of tables stay as they are, for a terminal
//! to break. Knows styles only as what takes no room. Crates that wrap text want the whole of it; a reply comes in pieces.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Breaks the lines of a stream. Holds back the last word until it is known to fit; the result is the same for every way of
/// cutting the text.
#[derive(Debug, Default)]
pub struct Wrap {
    /// Columns of the terminal, asked at the start of each line: it may be resized.
    columns: Option<fn() -> Option<usize>>,
    width: Option<usize>,
    /// Column of the cursor, where all that was given out stands.
    column: usize,
    /// Visible text of the line as it came, its first characters.
    head: String,
    /// Columns that broken parts of the line are indented by.
    indent: usize,
    spaces: String,
    /// The word that is not given out yet, with its styles.
    word: String,
    /// Its visible characters.
    bare: String,
    /// An escape sequence is going through.
    in_escape: bool,
    fence: Option<(char, usize)>,
}

/// A whole text, broken as a stream is.
pub fn wrapped(columns: Option<fn() -> Option<usize>>, text: &str) -> String {
    let (mut wrap, mut out) = (Wrap::new(columns), String::new());
    wrap.push(text, &mut out);
    wrap.finish(&mut out);
    out
}

impl Wrap {
    /// Breaks lines at what `columns` gives, or nowhere where it gives nothing.
    pub fn new(columns: Option<fn() -> Option<usize>>) -> Self {
        Self { columns, width: columns.and_then(|columns| columns()), ..Self::default() }
    }

    /// Appends to `out` what of `text` has its place. `text` may hold styles and no other escape sequence.
    pub fn push(&mut self, text: &str, out: &mut String) {
        if self.columns.is_none() {
            out.push_str(text);
            return;
        }
        for c in text.chars() {
            self.step(c, out);
        }
    }

    /// Appends the word that was held back. What comes next begins a line.
    pub fn finish(&mut self, out: &mut String) {
        self.place(out);
        out.push_str(&std::mem::take(&mut self.spaces));
        *self = Self::new(self.columns);
    }

    fn step(&mut self, c: char, out: &mut String) {
        if self.in_escape || c == '\x1b' {
            self.word.push(c);
            self.in_escape = c != 'm';
            return;
        }
        if c == '\n' {
            self.end_line(out);
            return;
        }
        if self.head.len() < HEAD_MAX {
            self.head.push(c);
        }
        if self.is_verbatim() {
            self.word.push(c);
            out.push_str(&std::mem::take(&mut self.word));
            return;
        }
        if c == ' ' || c == '\t' {
            if !self.word.is_empty() {
                self.place(out);
            }
            self.spaces.push(c);
            return;
        }
        if self.bare.chars().next_back().is_some_and(|before| may_break(before, c)) {
            self.place(out);
        }
        self.word.push(c);
        self.bare.push(c);
        // A word that is longer than any line need not wait for its end.
        if self.bare.len() > WORD_MAX {
            self.place(out);
        }
    }

    fn end_line(&mut self, out: &mut String) {
        self.place(out);
        self.spaces.clear();
        out.push('\n');
        let mark = fence_of(&self.head);
        self.fence = match (self.fence, mark) {
            (None, Some((c, n, rest))) if c == '~' || !rest.contains('`') => Some((c, n)),
            (Some((c, n)), Some((mark, m, rest))) if mark == c && m >= n && rest.trim().is_empty() => None,
            (fence, _) => fence,
        };
        self.head.clear();
        self.column = 0;
        self.indent = 0;
        self.width = self.columns.and_then(|columns| columns());
    }

    /// The line is code, or a row of a table.
    fn is_verbatim(&self) -> bool {
        self.fence.is_some() || self.head.starts_with('|')
    }

    /// Gives out the held word, on a line of its own where it does not fit on this one.
    fn place(&mut self, out: &mut String) {
        let (word, bare) = (std::mem::take(&mut self.word), std::mem::take(&mut self.bare));
        if word.is_empty() {
            return;
        }
        if bare.is_empty() {
            // Nothing but styles: spaces keep their place before the next word.
            out.push_str(&word);
            return;
        }
        let width = self.width.unwrap_or(usize::MAX).max(WIDTH_MIN);
        let own = bare.width();
        if self.column == 0 && self.indent == 0 {
            self.indent = indent_of(&self.head, width);
        }
        let spaces = std::mem::take(&mut self.spaces);
        let wide = spaces.chars().fold(self.column, |at, c| if c == '\t' { (at / 8 + 1) * 8 } else { at + 1 });
        let is_first = self.column <= self.indent;
        if wide.saturating_add(own) <= width || is_first || self.indent + own > width && wide < width {
            out.push_str(&spaces);
            self.column = wide;
        } else {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', self.indent));
            self.column = self.indent;
        }
        out.push_str(&word);
        self.column += own;
        if self.column > width {
            // The terminal broke it; the cursor waits behind the last column of a full line.
            self.column = (self.column - 1) % width + 1;
        }
    }
}

/// Where parts of a broken line begin: below the text of a list's item or a quote.
fn indent_of(head: &str, width: usize) -> usize {
    let body = head.trim_start_matches(' ');
    let own = head.len() - body.len();
    let mark = body.split(' ').next().unwrap_or_default();
    let n_digits = mark.chars().take_while(char::is_ascii_digit).count();
    let is_number = (1..=3).contains(&n_digits) && matches!(&mark[n_digits..], "." | ")");
    let is_mark =
        is_number || matches!(mark, "-" | "*" | "+" | ">" | "\u{2022}" | "\u{25e6}" | "\u{25aa}" | "\u{2502}");
    let indent = own + if is_mark { mark.width() + 1 } else { 0 };
    if indent <= width / 3 { indent } else { 0 }
}

/// The mark of a line that opens or closes a fenced block, how long it is, and what follows.
fn fence_of(line: &str) -> Option<(char, usize, &str)> {
    let body = line.trim_start_matches(' ');
    let mark = body.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let n = body.chars().take_while(|&c| c == mark).count();
    (n >= 3).then(|| (mark, n, &body[n..]))
}

/// Whether a line may end between two characters that no space parts: beside an ideograph, but not before a mark that closes
/// nor behind one that opens (a small part of Unicode's annex 14).
fn may_break(before: char, after: char) -> bool {
    let joins = |c: char| matches!(c, '\u{200d}' | '\u{fe00}'..='\u{fe0f}') || c.width() == Some(0);
    (is_ideograph(before) || is_ideograph(after)) && !CLOSES.contains(after) && !OPENS.contains(before) && !joins(after)
}

fn is_ideograph(c: char) -> bool {
    let hangul_and_full_width = matches!(c, '\u{ac00}'..='\u{d7a3}' | '\u{ff01}'..='\u{ff60}');
    hangul_and_full_width || matches!(c, '\u{2e80}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3fffd}')
}

/// Marks that begin no line.
const CLOSES: &str = ".,;:!?)]}\u{3001}\u{3002}\u{ff0c}\u{ff0e}\u{ff1a}\u{ff1b}\u{ff01}\u{ff1f}\u{ff09}\u{3009}\u{300b}\u{300d}\
                      \u{300f}\u{3011}\u{3015}\u{ff3d}\u{ff5d}\u{201d}\u{2019}\u{30fc}\u{3005}\u{3063}\u{30c3}\u{3083}\u{3085}\u{3087}\
                      \u{30e3}\u{30e5}\u{30e7}\u{2026}\u{30fb}";
/// Marks that end no line.
const OPENS: &str = "([{\u{ff08}\u{3008}\u{300a}\u{300c}\u{300e}\u{3010}\u{3014}\u{ff3b}\u{ff5b}\u{201c}\u{2018}";

/// Bytes of a line's start that say what it is.
const HEAD_MAX: usize = 128;
/// Bytes of the longest word that is held back.
const WORD_MAX: usize = 1024;
/// Narrower terminals are taken to be so wide.
const WIDTH_MIN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// What `columns` make of `text`, which is the same in one piece and in single characters.
    fn both_ways(columns: fn() -> Option<usize>, text: &str) -> String {
        let [whole, cut] = [text.len(), 1].map(|n| {
            let (mut wrap, mut out) = (Wrap::new(Some(columns)), String::new());
            let mut part = String::new();
            for c in text.chars() {
                part.push(c);
                if part.len() >= n {
                    wrap.push(&std::mem::take(&mut part), &mut out);
                }
            }
            wrap.push(&part, &mut out);
            wrap.finish(&mut out);
            out
        });
        assert_eq!(whole, cut, "cutting the text changes nothing");
        whole
    }

    fn at_12(text: &str) -> String {
        both_ways(|| Some(12), text)
    }

    #[test]
    fn lines_end_at_words_and_paragraphs_stay() {
        assert_eq!(at_12("one two three four"), "one two\nthree four");
        assert_eq!(at_12("exactly 12 ch and more"), "exactly 12\nch and more");
        assert_eq!(at_12("one two thre\n\nfour"), "one two thre\n\nfour");
        assert_eq!(both_ways(|| None, "one two three four"), "one two three four");
        assert_eq!(at_12("hello, world, hello"), "hello,\nworld, hello");
    }

    #[test]
    fn wide_characters_take_two_columns_and_break_between_each_other() {
        // Six to a line, and no line begins with a full stop.
        let text = "\u{4e00}".repeat(8);
        assert_eq!(at_12(&text), format!("{}\n{}", "\u{4e00}".repeat(6), "\u{4e00}".repeat(2)));
        let text = format!("{}\u{3002}{}", "\u{4e00}".repeat(6), "\u{4e8c}".repeat(2));
        assert_eq!(at_12(&text), format!("{}\n\u{4e00}\u{3002}{}", "\u{4e00}".repeat(5), "\u{4e8c}".repeat(2)));
        // A family is one picture of two columns.
        let family = "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}";
        assert_eq!(at_12(&format!("ten column {family}")), format!("ten column\n{family}"));
        assert_eq!(at_12(&format!("ten colum {family}")), format!("ten colum {family}"));
        assert_eq!(at_12("cafe\u{301} cafe\u{301} abc"), "cafe\u{301} cafe\u{301}\nabc");
    }

    #[test]
    fn styles_take_no_room() {
        assert_eq!(
            at_12("\x1b[1mone two\x1b[0m three \x1b[3mfour\x1b[0m"),
            "\x1b[1mone two\x1b[0m\nthree \x1b[3mfour\x1b[0m"
        );
    }

    #[test]
    fn items_and_quotes_are_continued_below_their_text() {
        assert_eq!(at_12("- one two three"), "- one two\n  three");
        assert_eq!(at_12("10. one two three"), "10. one two\n    three");
        assert_eq!(at_12("\u{2022} one two three\nfour five six"), "\u{2022} one two\n  three\nfour five\nsix");
    }

    #[test]
    fn code_and_tables_are_left_alone() {
        let code = "```rust\nlet a_long_line = of_code();\n```";
        assert_eq!(
            at_12(&format!("one two three\n{code}\none two three")),
            format!("one two\nthree\n{code}\none two\nthree")
        );
        assert_eq!(at_12("~~~\n``` is no end\n~~~\none two three"), "~~~\n``` is no end\n~~~\none two\nthree");
        assert_eq!(at_12("| a table | with columns |"), "| a table | with columns |");
    }

    #[test]
    fn words_longer_than_a_line_are_left_to_the_terminal() {
        // Sixteen columns: a full line and four more, then room for seven.
        assert_eq!(at_12("see https://a.example/b"), "see https://a.example/b");
        assert_eq!(at_12("0123456789abcdef seven.. x"), "0123456789abcdef seven..\nx");
    }

    #[test]
    fn a_terminal_that_was_resized_is_asked_at_the_next_line() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static COLUMNS: AtomicUsize = AtomicUsize::new(12);
        fn columns() -> Option<usize> {
            Some(COLUMNS.load(Ordering::Relaxed))
        }
        let (mut wrap, mut out) = (Wrap::new(Some(columns as fn() -> Option<usize>)), String::new());
        wrap.push("one two three ", &mut out);
        COLUMNS.store(20, Ordering::Relaxed);
        wrap.push("four\none two three four", &mut out);
        wrap.finish(&mut out);
        assert_eq!(out, "one two\nthree four\none two three four");
    }

    #[test]
    fn hostile_lines_take_linear_room() {
        for part in ["a", "\u{4e00}", " ", "\t", "|", "`", "\x1b[1m"] {
            let text = part.repeat(20_000);
            assert!(at_12(&text).len() < text.len() * 4 + 64, "{part:?}");
        }
    }
}
