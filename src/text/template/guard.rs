//! Rewrites a template before it is compiled, so that every operation that can make much text is a counted one.
//! `a + b`, `a ~ b`, `a * b`, `a % b` and `x[i:j]` become calls; text between the tags becomes an expression. Owns the syntax of templates;
//! knows no limit. The engine's own tokens are used, so both read a template alike, and lines stay where they were.

use std::borrow::Cow;
use std::fmt::Write;

use minijinja::machinery::{Span, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

use super::ops;

/// The syntax of the source: as `transformers` sets up Jinja.
fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().expect("the delimiters are the usual ones")
}

/// The syntax of what `guarded` gives: no text stands outside of tags, so there is nothing to trim.
pub(super) fn rewritten_syntax() -> SyntaxConfig {
    SyntaxConfig::default()
}

/// The same template with counted operations.
///
/// # Errors
/// Where the tags or brackets of `source` do not pair up, or lie too deep in each other.
pub(super) fn guarded(source: &str) -> Result<String, Error> {
    let source = &without_generation(source)?;
    let tokens = tokenize(source, false, syntax()).collect::<Result<Vec<_>, _>>()?;
    let mut rewriter =
        Rewriter { source, tokens, at: 0, depth: 0, deepest: 0, out: String::with_capacity(source.len() * 2), line: 1 };
    rewriter.template()?;
    // One template, one parse: what the original does not mean, the rewritten one must not either.
    minijinja::machinery::parse(source, "chat", syntax())?;
    Ok(rewriter.out)
}

/// `transformers` marks with `{% generation %}` what the assistant writes. To render it is to render what it holds, in a scope of its
/// own, as `{% with %}` does; every other byte stays where it was.
fn without_generation(source: &str) -> Result<Cow<'_, str>, Error> {
    let mut plain = Cow::Borrowed(source);
    let tokens = tokenize(source, false, syntax()).collect::<Result<Vec<_>, _>>()?;
    for pair in tokens.windows(2) {
        let [(Token::BlockStart, _), (Token::Ident(word), span)] = pair else { continue };
        let scope = match *word {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        plain.to_mut().replace_range(start..end, &format!("{scope:0$}", end - start));
    }
    Ok(plain)
}

struct Rewriter<'s> {
    source: &'s str,
    tokens: Vec<(Token<'s>, Span)>,
    at: usize,
    depth: usize,
    /// The deepest bracket since this was last set to 0.
    deepest: usize,
    out: String,
    /// The line that `out` has reached.
    line: usize,
}

impl Rewriter<'_> {
    fn template(&mut self) -> Result<(), Error> {
        while let Some((token, span)) = self.tokens.get(self.at) {
            let start_line = usize::from(span.start_line);
            match token {
                Token::TemplateData(text) => {
                    let text = quoted(text);
                    self.tag("{{", start_line);
                    self.out.push_str(&text);
                    self.out.push_str("}}");
                    self.at += 1;
                }
                Token::VariableStart => {
                    self.tag("{{", start_line);
                    self.at += 1;
                    self.inside("}}")?;
                }
                Token::BlockStart => {
                    self.tag("{%", start_line);
                    self.at += 1;
                    // The first word is the statement's name, even where it could be a variable's.
                    if matches!(self.peek(), Some(Token::Ident(_))) {
                        let is_set = matches!(self.peek(), Some(Token::Ident("set")));
                        let word = self.token();
                        self.put(&word);
                        if is_set {
                            self.assignment()?;
                        }
                    }
                    self.inside("%}")?;
                }
                _ => return Err(self.unexpected()),
            }
        }
        Ok(())
    }

    /// `TARGET = VALUE`: a value that holds others is counted with its depth; without `=` it is a block.
    fn assignment(&mut self) -> Result<(), Error> {
        let mut target = String::new();
        while !matches!(self.peek(), None | Some(Token::Assign | Token::BlockEnd | Token::Pipe)) {
            target += &self.token();
        }
        if let Some(Token::Assign) = self.peek() {
            target += &self.token();
            self.deepest = 0;
            let value = self.items()?;
            target += &format!(" {}(({value}), {})", ops::NEST, self.deepest + 1);
        }
        self.put(&target);
        Ok(())
    }

    /// Opens a tag on its line in the source.
    fn tag(&mut self, open: &str, line: usize) {
        self.out.push_str(open);
        while self.line < line {
            self.out.push('\n');
            self.line += 1;
        }
        self.out.push(' ');
    }

    /// The rest of a tag.
    fn inside(&mut self, close: &str) -> Result<(), Error> {
        let text = self.items()?;
        self.put(&text);
        match self.peek() {
            Some(Token::VariableEnd | Token::BlockEnd) => {
                self.at += 1;
                self.out.push(' ');
                self.out.push_str(close);
                Ok(())
            }
            _ => Err(self.unexpected()),
        }
    }

    fn put(&mut self, text: &str) {
        self.line += text.matches('\n').count();
        self.out.push_str(text);
    }

    /// Everything up to a closing bracket or the tag's end: expressions, and what stands between them.
    fn items(&mut self) -> Result<String, Error> {
        let mut text = String::new();
        loop {
            match self.peek() {
                None
                | Some(
                    Token::ParenClose | Token::BracketClose | Token::BraceClose | Token::VariableEnd | Token::BlockEnd,
                ) => return Ok(text),
                Some(token) if begins_operand(token) => text += &self.sum()?,
                // Words and commas; also the stars of `f(*args, **kwargs)`, which stand where an operand would begin.
                Some(_) => text += &self.token(),
            }
        }
    }

    fn sum(&mut self) -> Result<String, Error> {
        let mut left = self.concat()?;
        loop {
            match self.peek() {
                Some(Token::Plus) => {
                    self.at += 1;
                    left = call(ops::ADD, &left, &self.concat()?);
                }
                Some(Token::Minus) => {
                    left += &self.token();
                    left += &self.concat()?;
                }
                _ => return Ok(left),
            }
        }
    }

    fn concat(&mut self) -> Result<String, Error> {
        let mut left = self.product()?;
        while let Some(Token::Tilde) = self.peek() {
            self.at += 1;
            left = call(ops::CONCAT, &left, &self.product()?);
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<String, Error> {
        let mut left = self.power()?;
        loop {
            match self.peek() {
                Some(Token::Mul) => {
                    self.at += 1;
                    left = call(ops::MUL, &left, &self.power()?);
                }
                Some(Token::Mod) => {
                    self.at += 1;
                    left = call(ops::REM, &left, &self.power()?);
                }
                Some(Token::Div | Token::FloorDiv) => {
                    left += &self.token();
                    left += &self.power()?;
                }
                _ => return Ok(left),
            }
        }
    }

    fn power(&mut self) -> Result<String, Error> {
        let mut left = self.filtered()?;
        while let Some(Token::Pow) = self.peek() {
            left += &self.token();
            left += &self.filtered()?;
        }
        Ok(left)
    }

    /// An operand with its filters and tests.
    fn filtered(&mut self) -> Result<String, Error> {
        let mut text = self.operand()?;
        loop {
            match self.peek() {
                Some(Token::Pipe) => {
                    text += &self.token();
                    text += &self.name()?;
                }
                Some(Token::Ident("is")) => {
                    text += &self.token();
                    if let Some(Token::Ident("not")) = self.peek() {
                        text += &self.token();
                    }
                    text += &self.name()?;
                    // A test may take its argument without parentheses.
                    if self.peek().is_some_and(begins_operand) && !matches!(self.peek(), Some(Token::ParenOpen)) {
                        text += &self.operand()?;
                    }
                }
                _ => return Ok(text),
            }
        }
    }

    /// The name of a filter or test, and its arguments in parentheses.
    fn name(&mut self) -> Result<String, Error> {
        let mut text = String::new();
        match self.peek() {
            Some(Token::Ident(_)) => text += &self.token(),
            _ => return Err(self.unexpected()),
        }
        while let Some(Token::Dot) = self.peek() {
            text += &self.token();
            text += &self.token();
        }
        if let Some(Token::ParenOpen) = self.peek() {
            text += &self.group(Token::ParenClose)?;
        }
        Ok(text)
    }

    /// A value with its minus signs, and what hangs on it: attributes, subscripts, calls.
    fn operand(&mut self) -> Result<String, Error> {
        let mut minus = String::new();
        while let Some(Token::Minus) = self.peek() {
            minus += &self.token();
        }
        let mut text = match self.peek() {
            Some(Token::ParenOpen) => self.group(Token::ParenClose)?,
            Some(Token::BracketOpen) => self.group(Token::BracketClose)?,
            Some(Token::BraceOpen) => self.group(Token::BraceClose)?,
            Some(token) if begins_operand(token) => self.token(),
            _ => return Err(self.unexpected()),
        };
        // Texts side by side are one text.
        while matches!(self.peek(), Some(Token::Str(_) | Token::String(_)))
            && matches!(self.tokens[self.at - 1].0, Token::Str(_) | Token::String(_))
        {
            text += &self.token();
        }
        loop {
            match self.peek() {
                Some(Token::Dot) => {
                    text += &self.token();
                    text += &self.token();
                }
                Some(Token::ParenOpen) => text += &self.group(Token::ParenClose)?,
                Some(Token::BracketOpen) => {
                    if self.is_slice() {
                        text = self.slice(&text)?;
                    } else {
                        text += &self.group(Token::BracketClose)?;
                    }
                }
                _ => return Ok(minus + &text),
            }
        }
    }

    fn group(&mut self, close: Token<'_>) -> Result<String, Error> {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        if self.depth > MAX_DEPTH {
            return Err(self.error(format!("more than {MAX_DEPTH} brackets in each other")));
        }
        let mut text = self.token();
        text += &self.items()?;
        match self.peek() {
            Some(token) if std::mem::discriminant(token) == std::mem::discriminant(&close) => {
                text += &self.token();
            }
            _ => return Err(self.unexpected()),
        }
        self.depth -= 1;
        Ok(text)
    }

    /// `[i:j:k]` on `value`, as a call.
    fn slice(&mut self, value: &str) -> Result<String, Error> {
        self.at += 1;
        let mut parts = vec![String::new()];
        loop {
            match self.peek() {
                Some(Token::BracketClose) => break,
                Some(Token::Colon) if parts.len() < 3 => {
                    self.at += 1;
                    parts.push(String::new());
                }
                Some(Token::Colon | Token::ParenClose | Token::BraceClose) | None => {
                    return Err(self.unexpected());
                }
                Some(token) => {
                    let begins = begins_operand(token);
                    let text = if begins { self.sum()? } else { self.token() };
                    parts.last_mut().expect("it begins with one").push_str(&text);
                }
            }
        }
        self.at += 1;
        for part in &mut parts {
            if part.is_empty() {
                part.push_str("none");
            }
        }
        Ok(format!(" {}({value},{})", ops::SLICE, parts.join(",")))
    }

    /// Whether the bracket that opens here holds a colon of its own.
    fn is_slice(&self) -> bool {
        let mut depth = 0_usize;
        for (token, _) in &self.tokens[self.at..] {
            match token {
                Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => depth += 1,
                Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return false;
                    }
                }
                Token::Colon if depth == 1 => return true,
                _ => {}
            }
        }
        false
    }

    fn peek(&self) -> Option<&Token<'_>> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    /// This token as it stands in the source, with the line breaks before it.
    fn token(&mut self) -> String {
        let Some((_, span)) = self.tokens.get(self.at) else {
            return String::new();
        };
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        let before = match self.at.checked_sub(1) {
            Some(before) => self.tokens[before].1.end_offset as usize,
            None => start,
        };
        let breaks = self.source[before.min(start)..start].matches('\n').count();
        self.at += 1;
        let mut text = "\n".repeat(breaks);
        text.push(' ');
        text.push_str(&self.source[start..end]);
        text
    }

    fn unexpected(&self) -> Error {
        match self.tokens.get(self.at) {
            Some((token, _)) => self.error(format!("unexpected {token}")),
            None => self.error("unexpected end of the template".to_owned()),
        }
    }

    fn error(&self, detail: String) -> Error {
        // The engine's own parser words it better and knows the line; this is for what only the rewriter refuses.
        match minijinja::machinery::parse(self.source, "chat", syntax()) {
            Err(error) => error,
            Ok(_) => Error::new(ErrorKind::SyntaxError, format!("{detail} near line {}", self.line)),
        }
    }
}

fn call(function: &str, left: &str, right: &str) -> String {
    format!(" {function}({left},{right})")
}

fn begins_operand(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(word) => !WORDS.contains(word),
        Token::Str(_)
        | Token::String(_)
        | Token::Int(_)
        | Token::Int128(_)
        | Token::Float(_)
        | Token::Minus
        | Token::ParenOpen
        | Token::BracketOpen
        | Token::BraceOpen => true,
        _ => false,
    }
}

/// A string literal that spans no lines.
fn quoted(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for c in text.chars() {
        match c {
            '"' => literal.push_str("\\\""),
            '\\' => literal.push_str("\\\\"),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            c if (c as u32) < 0x20 => {
                write!(literal, "\\u{:04x}", c as u32).expect("a String takes everything");
            }
            c => literal.push(c),
        }
    }
    literal.push('"');
    literal
}

/// Words of the expression language, which are no operands.
const WORDS: &[&str] = &["and", "or", "not", "in", "is", "if", "else", "recursive"];
const MAX_DEPTH: usize = 100;
