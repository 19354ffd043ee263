//! llama.cpp's grammar notation, as llguidance's Lark.
//!
//! GBNF knows characters, Lark knows lexemes, which are matched as long as possible. So whatever can be one regular
//! expression becomes one: every rule that does not lead to itself, every run of such parts in one that does, and rules
//! that only repeat themselves at their ends. A grammar that is regular as a whole is translated exactly. In the others a
//! part may take characters that the notation would have left to what follows: such a translation allows less than the
//! original, never more.

mod parse;

use std::fmt::Write;

use parse::{Node, Rule};

use crate::lark;

/// # Errors
/// In words: where the notation is not followed, or a rule that is missing.
pub(crate) fn to_lark(source: &str) -> Result<String, String> {
    let mut rules = parse::rules(source)?;
    for (i, rule) in rules.iter_mut().enumerate() {
        unroll(i, rule);
    }
    let regular = true_of(&rules, Node::is_regular);
    let empty = true_of(&rules, Node::may_be_empty);
    let nothing = true_of(&rules, Node::is_always_empty);
    let root = rules.iter().position(|rule| rule.name == "root").ok_or("it has no rule `root`, where answers begin")?;
    let mut writer =
        Writer { regular: &regular, empty: &empty, nothing: &nothing, n_terminals: 0, text: String::new() };
    let start = writer.node(&Node::Rule(root));
    let mut text = format!("start: {start}\n");
    for (i, rule) in rules.iter().enumerate() {
        // Writing to a String cannot go wrong.
        let _ = match regular[i] {
            true => writeln!(text, "T{i}: {}", writer.terminal(&rule.body)),
            false => writeln!(text, "rule{i}: {}", writer.node(&rule.body)),
        };
    }
    Ok(text + &writer.text)
}

/// `a ::= x a | y` is `a ::= x* y`, which needs no rule that leads to itself.
fn unroll(i: usize, rule: &mut Rule) {
    let mut alternatives = match &rule.body {
        Node::Either(nodes) => nodes.clone(),
        node => vec![node.clone()],
    };
    // `(x a)?` is `x a | ""`.
    if let [Node::Repeat(inner, 0, Some(1))] = &alternatives[..] {
        alternatives = match &**inner {
            Node::Either(nodes) => nodes.clone(),
            node => vec![node.clone()],
        };
        alternatives.push(Node::Sequence(Vec::new()));
    }
    let (mut repeated, mut last) = (Vec::new(), Vec::new());
    for alternative in alternatives {
        let mut parts = match alternative {
            Node::Sequence(parts) => parts,
            node => vec![node],
        };
        let again = matches!(parts.last(), Some(Node::Rule(to)) if *to == i);
        if again {
            parts.pop();
        }
        if parts.iter().any(|part| part.leads_to(i)) || again && parts.is_empty() {
            return;
        }
        if again { &mut repeated } else { &mut last }.push(Node::Sequence(parts));
    }
    if !repeated.is_empty() && !last.is_empty() {
        let repeated = Node::Repeat(Box::new(Node::Either(repeated)), 0, None);
        rule.body = Node::Sequence(vec![repeated, Node::Either(last)]);
    }
}

/// For each rule, whether something holds of it that depends on the rules it names. What is known grows until nothing
/// more is found; of rules that wait for each other it does not hold.
fn true_of(rules: &[Rule], holds: fn(&Node, &[bool]) -> bool) -> Vec<bool> {
    let mut known = vec![false; rules.len()];
    loop {
        let mut grew = false;
        for (i, rule) in rules.iter().enumerate() {
            if !known[i] && holds(&rule.body, &known) {
                (known[i], grew) = (true, true);
            }
        }
        if !grew {
            return known;
        }
    }
}

struct Writer<'r> {
    regular: &'r [bool],
    empty: &'r [bool],
    nothing: &'r [bool],
    n_terminals: usize,
    /// Terminals made on the way.
    text: String,
}

impl Writer<'_> {
    /// A part of a rule.
    fn node(&mut self, node: &Node) -> String {
        if node.is_regular(self.regular) {
            return self.lexeme(std::slice::from_ref(node));
        }
        match node {
            Node::Rule(i) => format!("rule{i}"),
            Node::Token(token) => token.clone(),
            Node::Repeat(inner, least, most) => format!("({}){}", self.node(inner), times(*least, *most)),
            Node::Either(nodes) => {
                let parts: Vec<String> = nodes.iter().map(|node| self.node(node)).collect();
                format!("({})", parts.join(" | "))
            }
            Node::Sequence(nodes) => {
                let mut parts = Vec::new();
                // Neighbours that are regular become one lexeme.
                for run in nodes.chunk_by(|a, b| a.is_regular(self.regular) && b.is_regular(self.regular)) {
                    match run {
                        [one] => parts.push(self.node(one)),
                        _ => parts.push(self.lexeme(run)),
                    }
                }
                parts.join(" ")
            }
            Node::Text(_) | Node::Class(_) => unreachable!("these are regular"),
        }
    }

    /// A run of regular parts as a terminal of its own; a lexeme is never empty, so what may be is optional.
    fn lexeme(&mut self, run: &[Node]) -> String {
        let run = Node::Sequence(run.to_vec());
        let empty = run.may_be_empty(self.empty);
        if run.is_always_empty(self.nothing) {
            return "\"\"".into();
        }
        let name = format!("X{}", self.n_terminals);
        self.n_terminals += 1;
        let body = self.terminal(&run);
        let body = if empty { format!("({body}) & {}", lark::regex("(?s:.+)")) } else { body };
        // As above.
        let _ = writeln!(self.text, "{name}: {body}");
        if empty { format!("({name})?") } else { name }
    }

    /// A part of a terminal.
    fn terminal(&self, node: &Node) -> String {
        match node {
            Node::Text(text) => lark::text(text),
            Node::Class(class) => lark::regex(class),
            Node::Rule(i) => format!("T{i}"),
            Node::Repeat(inner, least, most) => format!("({}){}", self.terminal(inner), times(*least, *most)),
            Node::Either(nodes) => {
                let parts: Vec<String> = nodes.iter().map(|node| self.terminal(node)).collect();
                format!("({})", parts.join(" | "))
            }
            Node::Sequence(nodes) if nodes.is_empty() => "\"\"".into(),
            Node::Sequence(nodes) => {
                let parts: Vec<String> = nodes.iter().map(|node| self.terminal(node)).collect();
                parts.join(" ")
            }
            Node::Token(_) => unreachable!("a token is not regular"),
        }
    }
}

fn times(least: usize, most: Option<usize>) -> String {
    match (least, most) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}
