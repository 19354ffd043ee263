//! Markdown to terminal styles, as the text comes: spans in one line (`code`, *emphasis*, **strong**, ~~struck~~).
//! A span is held back until it is closed; one that is not closed on its line is shown as it was written.

use anstyle::Style;

use super::style;

/// Spans of one line after another.
#[derive(Debug, Default)]
pub struct Inline {
    base: Style,
    /// A span from its opening mark on, not closed yet.
    held: String,
    /// The character before `held`.
    before: Option<char>,
}

impl Inline {
    /// Starts a line whose text is set in `base`.
    pub fn start_line(&mut self, base: Style, out: &mut String) {
        *self = Self { base, held: String::new(), before: None };
        on(base, out);
    }

    /// Takes the next character of the line.
    pub fn push(&mut self, c: char, out: &mut String) {
        if self.held.is_empty() && !is_mark(c) {
            self.show(c, out);
            return;
        }
        self.held.push(c);
        // Most characters inside a span decide nothing.
        if let Some(step) = decide(&self.held, self.before, false) {
            self.apply(step, out);
        }
    }

    /// Ends the line: what is held is shown, styles are off.
    pub fn end_line(&mut self, out: &mut String) {
        while !self.held.is_empty() {
            let step = decide(&self.held, self.before, true).unwrap_or(Step::Literal(run_len(&self.held)));
            let held = std::mem::take(&mut self.held);
            let rest = self.apply_to(step, &held, out);
            for c in held[rest..].chars() {
                self.push(c, out);
            }
        }
        if self.base != Style::new() {
            off(out);
        }
    }

    fn apply(&mut self, step: Step, out: &mut String) {
        let held = std::mem::take(&mut self.held);
        let rest = self.apply_to(step, &held, out);
        for c in held[rest..].chars() {
            self.push(c, out);
        }
    }

    /// Shows the decided start of `held` and gives its length in bytes.
    fn apply_to(&mut self, step: Step, held: &str, out: &mut String) -> usize {
        match step {
            Step::Literal(n) => {
                for c in held[..n].chars() {
                    self.show(c, out);
                }
                n
            }
            Step::Span { mark, end } => {
                span(&held[mark..end], style_of(&held[..mark]), self.base, 0, out);
                self.before = held[..end + mark].chars().next_back();
                end + mark
            }
        }
    }

    fn show(&mut self, c: char, out: &mut String) {
        out.push(c);
        self.before = Some(c);
    }
}

/// What became of held text.
enum Step {
    /// So many bytes are no span.
    Literal(usize),
    /// A span: `mark` bytes of mark at both ends, the content ends at `end`.
    Span { mark: usize, end: usize },
}

/// Looks at `held`, which starts with a mark; `None` while it may still become a span. `complete`: the line ends here.
fn decide(held: &str, before: Option<char>, complete: bool) -> Option<Step> {
    let first = held.chars().next()?;
    let run = run_len(held);
    let Some(next) = held[run..].chars().next() else {
        return (complete || run > MARK_MAX).then_some(Step::Literal(run));
    };
    let fits = match first {
        '`' => true,
        '~' => run == 2 && !next.is_whitespace(),
        '_' => run <= 3 && !next.is_whitespace() && !before.is_some_and(char::is_alphanumeric),
        _ => run <= 3 && !next.is_whitespace(),
    };
    // A backslash before the mark: it was meant as it stands.
    if !fits || run > MARK_MAX || (before == Some('\\') && first != '`') {
        return Some(Step::Literal(run));
    }
    // A closing run can be judged once the character after it is known.
    let last = held.chars().next_back()?;
    let before_last = held[..held.len() - last.len_utf8()].chars().next_back()?;
    if ((before_last == first && last != first) || (complete && last == first))
        && let Some(end) = find_close(held, first, run, complete)
    {
        return Some(Step::Span { mark: run, end });
    }
    (complete || held.len() > SPAN_MAX).then_some(Step::Literal(run))
}

/// Where the content of the span that `held` opens ends. Code spans inside other spans hide their marks.
fn find_close(held: &str, mark: char, run: usize, complete: bool) -> Option<usize> {
    let mut at = run;
    while at < held.len() {
        let c = held[at..].chars().next()?;
        if c != mark && c != '`' {
            at += c.len_utf8();
            continue;
        }
        let n = run_len(&held[at..]);
        let before = held[..at].chars().next_back();
        let after = held[at + n..].chars().next();
        if after.is_none() && !complete {
            return None;
        }
        if c == mark && n == run {
            let closes = match mark {
                '`' => true,
                '_' => !before.is_some_and(char::is_whitespace) && !after.is_some_and(char::is_alphanumeric),
                _ => !before.is_some_and(char::is_whitespace),
            };
            if closes {
                return Some(at);
            }
        } else if c == '`'
            && mark != '`'
            && let Some(end) = find_close(&held[at..], '`', n, complete)
        {
            at += end + n;
            continue;
        }
        at += n;
    }
    None
}

/// Shows the content of a span over `base`, with the spans inside it.
fn span(content: &str, own: Style, base: Style, depth: usize, out: &mut String) {
    if base != Style::new() {
        off(out);
    }
    let style = merge(base, own);
    on(style, out);
    if own == style::CODE || depth >= DEPTH_MAX {
        // One space on each side only keeps backticks apart.
        let inner = content.strip_prefix(' ').and_then(|c| c.strip_suffix(' ')).filter(|c| !c.trim().is_empty());
        out.push_str(inner.unwrap_or(content));
    } else {
        let mut at = 0;
        let mut before = None;
        while at < content.len() {
            let rest = &content[at..];
            let Some(c) = rest.chars().next() else { break };
            let run = run_len(rest);
            if is_mark(c)
                && let Some(end) = closed_span(rest, before)
            {
                span(&rest[run..end], style_of(&rest[..run]), style, depth + 1, out);
                before = Some(c);
                at += end + run;
            } else {
                let n = if is_mark(c) { run } else { c.len_utf8() };
                out.push_str(&rest[..n]);
                before = Some(c);
                at += n;
            }
        }
    }
    off(out);
    on(base, out);
}

/// The end of the content when `text` starts with a whole span.
fn closed_span(text: &str, before: Option<char>) -> Option<usize> {
    let run = run_len(text);
    let mark = text.chars().next()?;
    let next = text[run..].chars().next()?;
    let word = mark == '_' && before.is_some_and(char::is_alphanumeric);
    let fits = mark == '`' || (!next.is_whitespace() && !word && if mark == '~' { run == 2 } else { run <= 3 });
    if fits { find_close(text, mark, run, true) } else { None }
}

fn is_mark(c: char) -> bool {
    matches!(c, '`' | '*' | '_' | '~')
}

/// Bytes of the run of equal marks at the start of `text`.
fn run_len(text: &str) -> usize {
    let Some(first) = text.chars().next() else { return 0 };
    text.chars().take_while(|&c| c == first).count() * first.len_utf8()
}

fn style_of(mark: &str) -> Style {
    match (mark.as_bytes().first(), mark.len()) {
        (Some(b'`'), _) => style::CODE,
        (Some(b'~'), _) => style::STRUCK,
        (_, 1) => style::ITALIC,
        (_, 2) => style::BOLD,
        _ => style::BOLD.italic(),
    }
}

fn merge(base: Style, own: Style) -> Style {
    if own == style::CODE {
        return own;
    }
    base.effects(base.get_effects() | own.get_effects()).fg_color(own.get_fg_color().or(base.get_fg_color()))
}

fn on(style: Style, out: &mut String) {
    out.push_str(&style.render().to_string());
}

fn off(out: &mut String) {
    out.push_str(&anstyle::Reset.render().to_string());
}

/// Longest span in bytes that is held back.
const SPAN_MAX: usize = 240;
/// Longest run of marks that opens a span.
const MARK_MAX: usize = 16;
/// Spans inside spans.
const DEPTH_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> String {
        let (mut inline, mut out) = (Inline::default(), String::new());
        inline.start_line(Style::new(), &mut out);
        for c in text.chars() {
            inline.push(c, &mut out);
        }
        inline.end_line(&mut out);
        let marks = [
            (style::BOLD.italic(), "<bi>"),
            (style::CODE, "<c>"),
            (style::BOLD, "<b>"),
            (style::ITALIC, "<i>"),
            (style::STRUCK, "<s>"),
        ];
        style::marked(out, &marks)
    }

    #[test]
    fn closed_spans_are_styled() {
        for (text, shown) in [
            ("a *b* c", "a <i>b<> c"),
            ("a **b c** d", "a <b>b c<> d"),
            ("***x***", "<bi>x<>"),
            ("~~gone~~", "<s>gone<>"),
            ("_em_ and __strong__", "<i>em<> and <b>strong<>"),
            ("`code`", "<c>code<>"),
            ("``a ` b``", "<c>a ` b<>"),
            ("`` ` ``", "<c>`<>"),
            ("**use `a*b` now**", "<b>use <><c>a*b<><b> now<>"),
            ("**bold *both* bold**", "<b>bold <><bi>both<><b> bold<>"),
            ("*a***b**", "*a***b**"),
            ("(*x*), \u{4e2d}**\u{6587}**", "(<i>x<>), \u{4e2d}<b>\u{6587}<>"),
        ] {
            assert_eq!(line(text), shown, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_span_stays_as_written() {
        for text in [
            "2 * 3 * 4",
            "snake_case_name",
            "a ** b",
            "*args and **kwargs",
            "open `code",
            "~home and ~~",
            "\\*not\\*",
            "****",
            "* ",
            "a_b*c~d`e",
            "****************************",
        ] {
            assert_eq!(line(text), text);
        }
    }

    #[test]
    fn an_open_mark_does_not_hide_later_spans() {
        assert_eq!(line("*open and `code` here"), "*open and <c>code<> here");
        assert_eq!(line("`open and **bold** here"), "`open and <b>bold<> here");
    }

    #[test]
    fn long_spans_are_shown_in_time() {
        let text = format!("*{}", "x".repeat(SPAN_MAX + 10));
        let (mut inline, mut out) = (Inline::default(), String::new());
        inline.start_line(Style::new(), &mut out);
        for c in text.chars() {
            inline.push(c, &mut out);
        }
        assert_eq!(out, text, "nothing is held back any more");
    }

    #[test]
    fn hostile_lines_take_linear_room_and_little_time() {
        for part in ["*a ", "_a*b`c~~", "`", "*", "**a`", "~~*_`"] {
            let text = part.repeat(6_000 / part.len());
            let shown = line(&text);
            assert!(shown.len() < text.len() * 8, "{part:?}: {} bytes of {}", shown.len(), text.len());
        }
    }
}
