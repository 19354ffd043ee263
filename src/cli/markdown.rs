//! Markdown to terminal styles, as the text comes: lines. Owns what a line is (heading, list, quote, code, rule).
//! Marks are hidden only where their meaning is certain; all other text goes through as it is. Input must be sanitised.
//! No crate does this: parsers of Markdown need the whole text, and a reply is shown while it comes.

use super::code::Code;
use super::inline::Inline;
use super::style;

/// A stream of markdown on its way to a terminal. Holds back only what is not decided yet: the start of a line, or a
/// span like `**this**` until it is closed. The result is the same for every way of cutting the text.
#[derive(Debug, Default)]
pub struct Markdown {
    at: At,
    /// Start of a line whose kind is open.
    held: String,
    inline: Inline,
    fence: Option<Fence>,
    code: Code,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum At {
    #[default]
    LineStart,
    /// In a line of prose.
    Prose,
    /// In a line of a code block.
    Code,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Fence {
    mark: char,
    n: usize,
}

impl Markdown {
    /// Appends what is certain of `text` to `out`.
    pub fn push(&mut self, text: &str, out: &mut String) {
        for c in text.chars() {
            self.step(c, out);
        }
    }

    /// Appends what was held back, and switches styles off.
    pub fn finish(&mut self, out: &mut String) {
        if self.at == At::LineStart && !self.held.is_empty() {
            self.start_line(true, out);
        }
        match self.at {
            At::LineStart => {}
            At::Prose => self.inline.end_line(out),
            At::Code => self.code.end_line(out),
        }
        *self = Self::default();
    }

    fn step(&mut self, c: char, out: &mut String) {
        match (self.at, c) {
            (At::LineStart, '\n') => {
                self.start_line(true, out);
                match self.at {
                    At::LineStart => {}
                    At::Prose => self.inline.end_line(out),
                    At::Code => self.code.end_line(out),
                }
                out.push('\n');
                self.at = At::LineStart;
            }
            (At::LineStart, c) => {
                self.held.push(c);
                self.start_line(false, out);
            }
            (At::Prose, '\n') => {
                self.inline.end_line(out);
                out.push('\n');
                self.at = At::LineStart;
            }
            (At::Prose, c) => self.inline.push(c, out),
            (At::Code, '\n') => {
                self.code.end_line(out);
                out.push('\n');
                self.at = At::LineStart;
            }
            (At::Code, c) => self.code.push(c, out),
        }
    }

    /// Decides the line by what is held of it; `complete` when there is no more.
    fn start_line(&mut self, complete: bool, out: &mut String) {
        let kind = match self.fence {
            Some(fence) => code_line(&self.held, fence, complete),
            None => prose_line(&self.held, complete),
        };
        let Some(kind) = kind else { return };
        let held = std::mem::take(&mut self.held);
        match kind {
            Line::FenceOpen(fence) => {
                self.fence = Some(fence);
                self.code = Code::new(held.trim());
                out.push_str(&style::paint(&held, style::DIM, true));
            }
            Line::FenceClose => {
                self.fence = None;
                out.push_str(&style::paint(&held, style::DIM, true));
            }
            Line::Rule => out.push_str(&style::paint(&held, style::DIM, true)),
            Line::Code if held.is_empty() => {}
            Line::Code => {
                held.chars().for_each(|c| self.code.push(c, out));
                self.at = At::Code;
            }
            Line::Prose { marks, shown, base } => {
                out.push_str(&shown);
                self.inline.start_line(base, out);
                self.at = At::Prose;
                for c in held[marks..].chars() {
                    self.inline.push(c, out);
                }
            }
        }
    }
}

/// What a line turned out to be.
enum Line {
    FenceOpen(Fence),
    FenceClose,
    Rule,
    Code,
    /// `marks` bytes of the line are replaced by `shown`; the rest is set over `base`.
    Prose {
        marks: usize,
        shown: String,
        base: anstyle::Style,
    },
}

fn plain() -> Option<Line> {
    Some(Line::Prose { marks: 0, shown: String::new(), base: anstyle::Style::new() })
}

/// The kind of a line outside a code block; `None` while more of it is needed.
fn prose_line(line: &str, complete: bool) -> Option<Line> {
    let body = line.trim_start_matches(' ');
    let indent = &line[..line.len() - body.len()];
    let open = |undecided: bool| if undecided && !complete && line.len() < HELD_MAX { None } else { plain() };
    let Some(first) = body.chars().next() else { return open(true) };
    let run = body.chars().take_while(|&c| c == first).count();
    let after = body.chars().nth(run);
    let prose = |marks: usize, shown: String, base| {
        Some(Line::Prose { marks: indent.len() + marks, shown: format!("{indent}{shown}"), base })
    };
    match first {
        '#' if run <= 6 => match after {
            Some(' ') => prose(run + 1, String::new(), style::HEADING),
            after => open(after.is_none()),
        },
        '`' | '~' => {
            let info = &body[run..];
            if run < 3 || (first == '`' && info.contains('`')) || line.len() >= HELD_MAX {
                return open(after.is_none());
            }
            complete.then_some(Line::FenceOpen(Fence { mark: first, n: run }))
        }
        '-' | '*' | '_' => {
            if body.chars().all(|c| c == first || c == ' ') && line.len() < HELD_MAX {
                let n = body.chars().filter(|&c| c == first).count();
                match (complete, n) {
                    (false, _) => None,
                    (true, 3..) => Some(Line::Rule),
                    (true, _) => plain(),
                }
            } else if first != '_' && run == 1 && after == Some(' ') {
                prose(2, format!("{} ", BULLETS[(indent.len() / 2) % BULLETS.len()]), anstyle::Style::new())
            } else {
                plain()
            }
        }
        '+' => match after {
            Some(' ') if run == 1 => prose(2, format!("{} ", BULLETS[0]), anstyle::Style::new()),
            after => open(after.is_none()),
        },
        '>' => {
            let mark = style::paint("\u{2502} ", style::DIM, true);
            match body[1..].chars().next() {
                None if !complete => None,
                Some(' ') => prose(2, mark, anstyle::Style::new()),
                _ => prose(1, mark, anstyle::Style::new()),
            }
        }
        _ => plain(),
    }
}

/// The kind of a line inside a code block; `None` while it may still be the closing fence.
fn code_line(line: &str, fence: Fence, complete: bool) -> Option<Line> {
    let body = line.trim_start_matches(' ');
    let run = body.chars().take_while(|&c| c == fence.mark).count();
    let rest_blank = body.chars().skip(run).all(|c| c == ' ');
    if !rest_blank || line.len() >= HELD_MAX {
        return Some(Line::Code);
    }
    match (complete, run >= fence.n) {
        (true, true) => Some(Line::FenceClose),
        (true, false) => Some(Line::Code),
        (false, _) => None,
    }
}

/// Bullets by depth of the list.
const BULLETS: [&str; 2] = ["\u{2022}", "\u{25e6}"];
/// Longest start of a line that is held back before it is taken as prose.
const HELD_MAX: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str) -> String {
        let (mut markdown, mut out) = (Markdown::default(), String::new());
        markdown.push(text, &mut out);
        markdown.finish(&mut out);
        out
    }

    /// Styles as short marks, so that a failing line can be read.
    fn marks(text: &str) -> String {
        let marks = [
            (style::HEADING, "<h>"),
            (style::CODE, "<c>"),
            (style::DIM, "<d>"),
            (style::BOLD, "<b>"),
            (style::ITALIC, "<i>"),
        ];
        style::marked(render(text), &marks)
    }

    #[test]
    fn lines_get_their_style() {
        for (text, shown) in [
            ("plain text\nmore\n", "plain text\nmore\n"),
            ("# Title\nx", "<h>Title<>\nx"),
            ("### Deep `code` in\n", "<h>Deep <><c>code<><h> in<>\n"),
            ("#hashtag\n", "#hashtag\n"),
            ("####### seven\n", "####### seven\n"),
            ("- one\n* two\n+ three\n  - deep\n", "\u{2022} one\n\u{2022} two\n\u{2022} three\n  \u{25e6} deep\n"),
            ("1. **bold** item\n", "1. <b>bold<> item\n"),
            ("---\n***\n- - -\n", "<d>---<>\n<d>***<>\n<d>- - -<>\n"),
            ("-- \n", "-- \n"),
            ("> quoted *it*\n", "<d>\u{2502} <>quoted <i>it<>\n"),
            ("**bold** start\n", "<b>bold<> start\n"),
            ("*it* start\n", "<i>it<> start\n"),
            ("`x` start\n", "<c>x<> start\n"),
            ("\n\n", "\n\n"),
            ("   \n", "   \n"),
            ("-", "-"),
            ("#", "#"),
        ] {
            assert_eq!(marks(text), shown, "{text:?}");
        }
    }

    #[test]
    fn code_blocks_are_left_alone() {
        assert_eq!(
            marks("```\n# no heading\n\n  **no** bold `x`\n```\nafter *it*\n"),
            "<d>```<>\n<c># no heading<>\n\n<c>  **no** bold `x`<>\n<d>```<>\nafter <i>it<>\n"
        );
        assert_eq!(marks("~~~\n```\n~~~\nx"), "<d>~~~<>\n<c>```<>\n<d>~~~<>\nx");
        assert_eq!(marks("````\n```\n````\nx"), "<d>````<>\n<c>```<>\n<d>````<>\nx");
        assert_eq!(marks("```rs\n# x\n```\n```\nx\n"), "<d>```rs<>\n# x\n<d>```<>\n<d>```<>\n<c>x<>\n");
        // Cut off in the middle: styles end with the text.
        assert_eq!(marks("```\nlet x"), "<d>```<>\n<c>let x<>");
    }

    #[test]
    fn cutting_the_text_changes_nothing() {
        let text =
            "# T `c`\n- a **b *c* d** e\n\n```sh\necho *x*\n```\n> q\n---\n1. `x` *y\n_z_ ~~s~~ 2 * 3 * 4 **open\n";
        let whole = render(text);
        for cut in text.char_indices().map(|(i, _)| i) {
            let (mut markdown, mut out) = (Markdown::default(), String::new());
            markdown.push(&text[..cut], &mut out);
            markdown.push(&text[cut..], &mut out);
            markdown.finish(&mut out);
            assert_eq!(out, whole, "cut at {cut}");
        }
    }

    #[test]
    fn prose_is_not_held_back() {
        let (mut markdown, mut out) = (Markdown::default(), String::new());
        markdown.push("Hel", &mut out);
        assert_eq!(out, "Hel");
        markdown.push("lo **wor", &mut out);
        assert_eq!(out, "Hello ");
        markdown.push("ld** ", &mut out);
        assert!(out.contains("world"), "{out:?}");
    }
}
