//! Arguments copied as JSON while they come, from JSON or a notation near it: Gemma's marks around texts and bare keys, Python's
//! keyword arguments. Nothing is given that a later character could make wrong, so what has been given can always be closed as an
//! object: a key waits for its value, a number or a word for its end. Python's words, quotes and trailing commas, and raw line breaks
//! in texts are put right; spaces stay as they are.

use super::value::escaped;

/// How arguments are noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notation {
    /// JSON.
    Json,
    /// Bare keys, and this mark around texts, in which nothing is escaped.
    Marked(&'static str),
    /// `(key=value, ..)`.
    Keywords,
}

/// Copies one object.
#[derive(Debug)]
pub(super) struct Copy {
    notation: Notation,
    /// What closes the brackets that are open.
    open: Vec<char>,
    expect: Expect,
    token: Token,
    /// Spaces, a comma and a key that belong to the next value.
    lead: String,
    /// What has been copied since it was last taken.
    out: String,
    /// A value has begun, or the object has ended.
    pub(super) began: bool,
}

/// What comes of a character.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    More,
    /// It was the last of the object.
    Ended,
    /// This cannot go on; the text was not copied.
    Broken(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Object,
    KeyOrEnd,
    Colon,
    Value,
    ItemOrEnd,
    CommaOrEnd,
}

#[derive(Debug)]
enum Token {
    None,
    /// In a text between these quotes; a beginning of an escape is held.
    Quoted {
        quote: char,
        held: String,
    },
    /// Between marks, or in the opening one; a beginning of a mark is held.
    Marked {
        opened: bool,
        held: String,
    },
    /// A number, a word of JSON, or a bare key.
    Word(String),
}

impl Copy {
    pub(super) fn new(notation: Notation) -> Self {
        Self {
            notation,
            open: Vec::new(),
            expect: Expect::Object,
            token: Token::None,
            lead: String::new(),
            out: String::new(),
            began: false,
        }
    }

    /// What has been copied since the last time.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    /// Takes the next character.
    pub(super) fn push(&mut self, c: char) -> Step {
        match std::mem::replace(&mut self.token, Token::None) {
            Token::None => self.between(c),
            Token::Quoted { quote, held } => {
                self.quoted(c, quote, held);
                Step::More
            }
            Token::Marked { opened, held } => self.marked(c, opened, held),
            Token::Word(word) => self.word(c, word),
        }
    }

    /// What closes the object where it was cut off.
    pub(super) fn close(&mut self) -> String {
        match std::mem::replace(&mut self.token, Token::None) {
            Token::Quoted { .. } if !self.in_key() => self.out.push('"'),
            Token::Marked { opened: true, held } if !self.in_key() => {
                self.out += &escaped(&held);
                self.out.push('"');
            }
            Token::Word(word) if !self.in_key() => {
                self.end_word(&word);
            }
            _ => {}
        }
        while let Some(bracket) = self.open.pop() {
            self.out.push(if bracket == ')' { '}' } else { bracket });
        }
        self.take()
    }

    fn in_key(&self) -> bool {
        self.expect == Expect::Colon
    }

    /// A character that is in no text and no word.
    fn between(&mut self, c: char) -> Step {
        if c.is_whitespace() && self.expect != Expect::Object {
            // Other spaces than these four are none in JSON.
            self.lead.push(if matches!(c, ' ' | '\n' | '\t' | '\r') { c } else { ' ' });
            return Step::More;
        }
        let opening = if self.notation == Notation::Keywords { '(' } else { '{' };
        match (self.expect, c) {
            (Expect::Object, _) if c == opening => self.bracket(c),
            (Expect::KeyOrEnd, '}' | ')') | (Expect::ItemOrEnd | Expect::CommaOrEnd, '}' | ')' | ']') => self.end(c),
            (Expect::KeyOrEnd, _) => {
                self.expect = Expect::Colon;
                self.begin_token(c, true)
            }
            (Expect::Colon, ':') => self.colon(":"),
            (Expect::Colon, '=') if self.notation == Notation::Keywords => self.colon(": "),
            (Expect::CommaOrEnd, ',') => {
                self.lead.push(',');
                let in_list = self.open.last() == Some(&']');
                self.expect = if in_list { Expect::ItemOrEnd } else { Expect::KeyOrEnd };
                Step::More
            }
            (Expect::Value | Expect::ItemOrEnd, '{' | '[') => self.bracket(c),
            (Expect::Value | Expect::ItemOrEnd, _) => {
                self.expect = Expect::CommaOrEnd;
                self.begin_token(c, false)
            }
            _ => Step::Broken(c.to_string()),
        }
    }

    fn colon(&mut self, text: &str) -> Step {
        self.lead += text;
        self.expect = Expect::Value;
        Step::More
    }

    fn bracket(&mut self, c: char) -> Step {
        if self.open.len() == MAX_DEPTH {
            return Step::Broken(c.to_string());
        }
        if !self.open.is_empty() {
            self.begin_value();
        }
        self.out.push(if c == '[' { '[' } else { '{' });
        self.open.push(match c {
            '[' => ']',
            '(' => ')',
            _ => '}',
        });
        self.expect = if c == '[' { Expect::ItemOrEnd } else { Expect::KeyOrEnd };
        Step::More
    }

    fn end(&mut self, c: char) -> Step {
        if self.open.last() != Some(&c) {
            return Step::Broken(c.to_string());
        }
        self.open.pop();
        // A comma without anything after it.
        let lead = std::mem::take(&mut self.lead);
        self.out += lead.trim_start_matches(',');
        self.out.push(if c == ')' { '}' } else { c });
        self.expect = Expect::CommaOrEnd;
        self.began |= self.open.is_empty();
        if self.open.is_empty() { Step::Ended } else { Step::More }
    }

    fn begin_value(&mut self) {
        let lead = std::mem::take(&mut self.lead);
        self.out += &lead;
        self.began = true;
    }

    /// The first character of a key or a value.
    fn begin_token(&mut self, c: char, is_key: bool) -> Step {
        let (quotes, mark) = match self.notation {
            Notation::Json => ("\"", None),
            Notation::Marked(mark) => ("\"", Some(mark)),
            Notation::Keywords => ("\"'", None),
        };
        let is_text = quotes.contains(c);
        if is_text || mark.is_some_and(|mark| mark.starts_with(c)) {
            self.token = match is_text {
                true => Token::Quoted { quote: c, held: String::new() },
                false => Token::Marked { opened: false, held: c.to_string() },
            };
            if is_text {
                self.begin_text();
            }
            return Step::More;
        }
        let is_bare_key = is_key && self.notation != Notation::Json;
        if (is_key && !is_bare_key) || c.is_control() || "{}[]():,=\"".contains(c) {
            return Step::Broken(c.to_string());
        }
        self.token = Token::Word(c.to_string());
        Step::More
    }

    fn begin_text(&mut self) {
        if !self.in_key() {
            self.begin_value();
        }
        self.sink().push('"');
    }

    /// Where a key or a text is written.
    fn sink(&mut self) -> &mut String {
        if self.in_key() { &mut self.lead } else { &mut self.out }
    }

    /// In a text between quotes.
    fn quoted(&mut self, c: char, quote: char, mut held: String) {
        if held.is_empty() {
            match c {
                _ if c == quote => return self.sink().push('"'),
                '\\' => held.push(c),
                _ if c != '"' && !c.is_control() => self.sink().push(c),
                _ => *self.sink() += &escaped(c.encode_utf8(&mut [0; 4])),
            }
            self.token = Token::Quoted { quote, held };
            return;
        }
        held.push(c);
        let (given, again) = match escape(&held) {
            Escape::Unfinished => {
                self.token = Token::Quoted { quote, held };
                return;
            }
            Escape::Good => (held, String::new()),
            Escape::Instead(text, n) => (text.to_owned(), held.split_off(n)),
        };
        *self.sink() += &given;
        self.token = Token::Quoted { quote, held: String::new() };
        for c in again.chars() {
            if let Token::Quoted { quote, held } = std::mem::replace(&mut self.token, Token::None) {
                self.quoted(c, quote, held);
            }
        }
    }

    /// In a mark, or in a text between marks.
    fn marked(&mut self, c: char, opened: bool, mut held: String) -> Step {
        let Notation::Marked(mark) = self.notation else { return Step::Broken(held) };
        held.push(c);
        if held == mark {
            if opened {
                self.sink().push('"');
            } else {
                self.begin_text();
                self.token = Token::Marked { opened: true, held: String::new() };
            }
            return Step::More;
        }
        if !opened && !mark.starts_with(&held) {
            return Step::Broken(held);
        }
        while !mark.starts_with(&held) {
            let first = held.remove(0);
            *self.sink() += &escaped(first.encode_utf8(&mut [0; 4]));
        }
        self.token = Token::Marked { opened, held };
        Step::More
    }

    /// In a word.
    fn word(&mut self, c: char, mut word: String) -> Step {
        let ends = match self.notation {
            Notation::Marked(mark) => "{}[],:\"".contains(c) || mark.starts_with(c),
            _ => c.is_whitespace() || "{}[](),:=\"'".contains(c),
        };
        if !ends {
            word.push(c);
            self.token = Token::Word(word);
            return Step::More;
        }
        if self.in_key() {
            self.lead += &format!("\"{}\"", escaped(word.trim()));
        } else if !self.end_word(&word) {
            return Step::Broken(word + c.encode_utf8(&mut [0; 4]));
        }
        self.between(c)
    }

    /// Writes a value that is no text; false if it is none.
    fn end_word(&mut self, word: &str) -> bool {
        let word = match word.trim() {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            word => word,
        };
        let value = match serde_json::from_str::<serde_json::Value>(word) {
            Ok(_) => word.to_owned(),
            Err(_) if matches!(self.notation, Notation::Marked(_)) => format!("\"{}\"", escaped(word)),
            Err(_) => return false,
        };
        self.begin_value();
        self.out += &value;
        true
    }
}

enum Escape {
    Unfinished,
    Good,
    /// It is none: this text for its first bytes, the rest is looked at again.
    Instead(&'static str, usize),
}

/// What a text that begins with a backslash is.
fn escape(held: &str) -> Escape {
    let n_hex = |text: &str| text.bytes().take(4).take_while(u8::is_ascii_hexdigit).count();
    let code = |text: &str| u32::from_str_radix(&text[..4], 16).unwrap_or_default();
    let Some(digits) = held.strip_prefix("\\u") else {
        return match &held[1..] {
            "\"" | "\\" | "/" | "b" | "f" | "n" | "r" | "t" => Escape::Good,
            "'" => Escape::Instead("'", 2),
            _ => Escape::Instead("\\\\", 1),
        };
    };
    match n_hex(digits) {
        4 => {}
        n if n == digits.len() => return Escape::Unfinished,
        _ => return Escape::Instead("\\\\", 1),
    }
    match code(digits) {
        0xd800..0xdc00 => {}
        0xdc00..0xe000 => return Escape::Instead("\\ufffd", 6),
        _ => return Escape::Good,
    }
    // The second half of a pair.
    let pair = &digits[4..];
    match pair.strip_prefix("\\u") {
        _ if "\\u".starts_with(pair) => Escape::Unfinished,
        Some(low) if n_hex(low) == 4 && matches!(code(low), 0xdc00..0xe000) => Escape::Good,
        Some(low) if n_hex(low) == low.len() && low.len() < 4 => Escape::Unfinished,
        _ => Escape::Instead("\\ufffd", 6),
    }
}

/// Brackets within each other; readers of JSON take not many more.
const MAX_DEPTH: usize = 100;
