//! Reading llama.cpp's grammar notation. Owns its syntax; knows nothing of what it is translated to.

use std::collections::HashMap;

/// A rule.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) body: Node,
}

/// What a rule is made of.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Text(String),
    /// One character, as a regular expression.
    Class(String),
    /// By number.
    Rule(usize),
    /// One token of the vocabulary, as Lark writes it.
    Token(String),
    Sequence(Vec<Node>),
    Either(Vec<Node>),
    Repeat(Box<Node>, usize, Option<usize>),
}

impl Node {
    fn inner(&self) -> &[Node] {
        match self {
            Self::Sequence(nodes) | Self::Either(nodes) => nodes,
            Self::Repeat(node, ..) => std::slice::from_ref(node),
            _ => &[],
        }
    }

    /// Whether rule `i` is named in it.
    pub(super) fn leads_to(&self, i: usize) -> bool {
        *self == Self::Rule(i) || self.inner().iter().any(|node| node.leads_to(i))
    }

    /// Whether it is a regular expression, if these rules are.
    pub(super) fn is_regular(&self, rules: &[bool]) -> bool {
        match self {
            Self::Rule(i) => rules[*i],
            Self::Token(_) => false,
            node => node.inner().iter().all(|node| node.is_regular(rules)),
        }
    }

    /// Whether a regular node matches the empty text, if these rules do.
    pub(super) fn may_be_empty(&self, rules: &[bool]) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Class(_) | Self::Token(_) => false,
            Self::Rule(i) => rules[*i],
            Self::Sequence(nodes) => nodes.iter().all(|node| node.may_be_empty(rules)),
            Self::Either(nodes) => nodes.iter().any(|node| node.may_be_empty(rules)),
            Self::Repeat(node, least, _) => *least == 0 || node.may_be_empty(rules),
        }
    }

    /// Whether a regular node matches nothing but the empty text, if these rules do so.
    pub(super) fn is_always_empty(&self, rules: &[bool]) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Class(_) | Self::Token(_) => false,
            Self::Rule(i) => rules[*i],
            Self::Repeat(_, _, Some(0)) => true,
            node => node.inner().iter().all(|node| node.is_always_empty(rules)),
        }
    }
}

/// The rules of a grammar, in their order.
///
/// # Errors
/// In words, with the line.
pub(super) fn rules(source: &str) -> Result<Vec<Rule>, String> {
    let mut parser = Parser { text: source, at: 0, numbers: HashMap::new(), rules: Vec::new() };
    parser.spaces(true);
    while parser.at < source.len() {
        parser.rule().map_err(|why| {
            let line = 1 + source[..parser.at.min(source.len())].matches('\n').count();
            format!("line {line}: {why}")
        })?;
        parser.spaces(true);
    }
    let mut rules = Vec::with_capacity(parser.rules.len());
    let mut names: Vec<_> = parser.numbers.into_iter().collect();
    names.sort_by_key(|(_, number)| *number);
    for (body, (name, _)) in parser.rules.into_iter().zip(names) {
        let body = body.ok_or_else(|| format!("rule `{name}` is used and not defined"))?;
        rules.push(Rule { name: name.to_owned(), body });
    }
    Ok(rules)
}

struct Parser<'s> {
    text: &'s str,
    at: usize,
    numbers: HashMap<&'s str, usize>,
    /// By number; `None` while a rule is only named.
    rules: Vec<Option<Node>>,
}

impl<'s> Parser<'s> {
    fn rest(&self) -> &'s str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn takes(&mut self, what: &str) -> bool {
        let there = self.rest().starts_with(what);
        self.at += if there { what.len() } else { 0 };
        there
    }

    /// Passes over spaces and comments, and over line breaks with `lines`.
    fn spaces(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                '#' => self.at += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    fn number_of(&mut self, name: &'s str) -> usize {
        let n = self.numbers.len();
        let number = *self.numbers.entry(name).or_insert(n);
        if number == self.rules.len() {
            self.rules.push(None);
        }
        number
    }

    fn name(&mut self) -> Option<&'s str> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let n = self.rest().find(|c| !is_part(c)).unwrap_or(self.rest().len());
        let name = &self.rest()[..n];
        self.at += n;
        (n > 0).then_some(name)
    }

    fn rule(&mut self) -> Result<(), String> {
        let name = self.name().ok_or_else(|| format!("a rule's name is expected, {} found", self.found()))?;
        self.spaces(false);
        if !self.takes("::=") {
            return Err(format!("::= is expected after `{name}`, {} found", self.found()));
        }
        self.spaces(true);
        let body = self.either(0)?;
        let number = self.number_of(name);
        if self.rules[number].replace(body).is_some() {
            return Err(format!("rule `{name}` is defined twice"));
        }
        match self.peek() {
            None | Some('\r' | '\n') => Ok(()),
            Some(_) => Err(format!("the end of rule `{name}` is expected, {} found", self.found())),
        }
    }

    fn either(&mut self, depth: usize) -> Result<Node, String> {
        if depth > MAX_DEPTH {
            return Err(format!("groups are nested deeper than {MAX_DEPTH} levels"));
        }
        let mut nodes = vec![self.sequence(depth)?];
        loop {
            let before = self.at;
            self.spaces(true);
            if !self.takes("|") {
                self.at = if depth > 0 { self.at } else { before };
                break;
            }
            self.spaces(true);
            nodes.push(self.sequence(depth)?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Either(nodes) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, String> {
        let mut nodes = Vec::new();
        loop {
            self.spaces(depth > 0);
            let node = match self.peek() {
                Some('"') => Node::Text(self.literal()?),
                Some('[') => Node::Class(self.class()?),
                Some('.') => {
                    self.at += 1;
                    Node::Class("(?s:.)".into())
                }
                Some('(') => {
                    self.at += 1;
                    let inner = self.either(depth + 1)?;
                    if !self.takes(")") {
                        return Err(format!(") is expected, {} found", self.found()));
                    }
                    inner
                }
                Some('<' | '!') => Node::Token(self.token()?),
                Some(c) if c.is_ascii_alphanumeric() || c == '-' || c == '_' => {
                    let name = self.name().unwrap_or_default();
                    Node::Rule(self.number_of(name))
                }
                _ => return Ok(Node::Sequence(nodes)),
            };
            nodes.push(self.repeated(node)?);
        }
    }

    fn repeated(&mut self, mut node: Node) -> Result<Node, String> {
        for _ in 0..=MAX_DEPTH {
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let end = self.rest().find('}').ok_or("a } is missing")?;
                    let inside = &self.rest()[1..end];
                    let number = |text: &str| {
                        let n = text.trim().parse().ok().filter(|&n| n <= MAX_TIMES);
                        n.ok_or_else(|| format!("a count from 0 to {MAX_TIMES} is expected in {{{inside}}}"))
                    };
                    let range = match inside.split_once(',') {
                        None => (number(inside)?, Some(number(inside)?)),
                        Some((least, most)) if most.trim().is_empty() => (number(least)?, None),
                        Some((least, most)) => (number(least)?, Some(number(most)?)),
                    };
                    if range.1.is_some_and(|most| most < range.0) {
                        return Err(format!("the second count is less than the first in {{{inside}}}"));
                    }
                    self.at += end;
                    range
                }
                _ => return Ok(node),
            };
            self.at += 1;
            node = Node::Repeat(Box::new(node), least, most);
        }
        Err(format!("one part is repeated by more than {MAX_DEPTH} signs"))
    }

    fn literal(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.character()? {
                ('"', false) => return Ok(text),
                (c, _) => text.push(c),
            }
        }
    }

    fn class(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut class = String::from(if self.takes("^") { "[^" } else { "[" });
        let mut n = 0;
        loop {
            let first = match self.character()? {
                (']', false) => break,
                (c, _) => c,
            };
            let mut last = first;
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                last = self.character()?.0;
            }
            if last < first {
                return Err(format!("the range {first:?} to {last:?} is empty"));
            }
            class += &format!(r"\x{{{:X}}}-\x{{{:X}}}", first as u32, last as u32);
            n += 1;
        }
        match n {
            0 if class == "[^" => Ok("(?s:.)".into()),
            0 => Err("a class without characters matches nothing".into()),
            _ => Ok(class + "]"),
        }
    }

    /// A character of a literal or class, and whether it was written with a backslash.
    fn character(&mut self) -> Result<(char, bool), String> {
        let c = self.next().ok_or("a literal or class has no end")?;
        if c != '\\' {
            return Ok((c, false));
        }
        let escaped = self.next().ok_or("a literal or class has no end")?;
        let digits = match escaped {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            'n' => return Ok(('\n', true)),
            'r' => return Ok(('\r', true)),
            't' => return Ok(('\t', true)),
            other if other.is_ascii_punctuation() => return Ok((other, true)),
            other => return Err(format!(r"\{other} is not a known escape")),
        };
        let hex = self.rest().get(..digits).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        let c = code.ok_or_else(|| format!(r"\{escaped} needs {digits} hex digits that name a character"))?;
        self.at += digits;
        Ok((c, true))
    }

    /// `<name>`, `<[number]>`, or any token but that.
    fn token(&mut self) -> Result<String, String> {
        let but = self.takes("!");
        let end = self.rest().find('>').filter(|_| self.rest().starts_with('<')).ok_or("a token ends with >")?;
        let token = &self.rest()[..=end];
        self.at += end + 1;
        let number = token.strip_prefix("<[").and_then(|rest| rest.strip_suffix("]>"));
        match number {
            Some(n) if n.parse::<u32>().is_err() => Err(format!("{token} does not hold a token's number")),
            Some(n) if but => Ok(format!("<[^{n}]>")),
            _ if but => Err(format!("!{token} is not supported: give the token's number, as in !<[7]>")),
            _ => Ok(token.to_owned()),
        }
    }

    /// What stands here, for messages.
    fn found(&self) -> String {
        match self.peek() {
            None => "the end".into(),
            Some(_) => format!("{:?}", self.rest().chars().take(12).collect::<String>()),
        }
    }
}

/// Groups within groups, and signs of repetition after one part.
const MAX_DEPTH: usize = 50;
/// Counts of repetitions.
const MAX_TIMES: usize = 2000;
