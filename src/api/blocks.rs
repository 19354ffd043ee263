//! A reply as blocks that open, grow and close one after the other: thinking, text, calls. Two wire formats say it so.
//! Owns the order of blocks and their names. Knows neither of the two formats.

use engine::FinishReason;
use session::dialect::ReplyEvent;

use crate::ids;

/// What a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reasoning,
    Text,
    /// Of this function; the block's text is the JSON of its arguments.
    Call(String),
}

/// A block as far as it is there.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) id: String,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// What happens to a block, by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Open(usize),
    More(usize, String),
    Close(usize),
}

/// All blocks of a reply; at most the last is open.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub(crate) all: Vec<Block>,
    open: bool,
    /// What the names of a kind of block begin with.
    prefix: fn(&Kind) -> &'static str,
}

impl Blocks {
    pub(crate) fn new(prefix: fn(&Kind) -> &'static str) -> Self {
        Self { all: Vec::new(), open: false, prefix }
    }

    /// Takes more of the reply.
    pub(crate) fn take(&mut self, event: ReplyEvent) -> Vec<Change> {
        let mut changes = Vec::new();
        match event {
            ReplyEvent::Reasoning(text) => self.grow(Kind::Reasoning, text, &mut changes),
            ReplyEvent::Text(text) => self.grow(Kind::Text, text, &mut changes),
            ReplyEvent::ToolCallStart { name, .. } => self.open(Kind::Call(name), &mut changes),
            ReplyEvent::ToolCallArguments { delta, .. } => self.more(delta, &mut changes),
            ReplyEvent::ToolCallEnd { .. } => self.close(&mut changes),
        }
        changes
    }

    /// Takes the end. A reply that was not cut short says something, if only an empty text.
    pub(crate) fn finish(&mut self, reason: &FinishReason) -> Vec<Change> {
        let mut changes = Vec::new();
        let cut = matches!(reason, FinishReason::Length | FinishReason::Context | FinishReason::Cancelled);
        let silent = self.all.iter().all(|block| block.kind == Kind::Reasoning);
        if self.all.is_empty() || silent && !cut {
            self.open(Kind::Text, &mut changes);
        }
        self.close(&mut changes);
        changes
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.all.iter().any(|block| matches!(block.kind, Kind::Call(_)))
    }

    fn grow(&mut self, kind: Kind, text: String, changes: &mut Vec<Change>) {
        if !self.open || self.all.last().is_none_or(|block| block.kind != kind) {
            self.open(kind, changes);
        }
        self.more(text, changes);
    }

    fn more(&mut self, text: String, changes: &mut Vec<Change>) {
        if let Some(block) = self.all.last_mut() {
            block.text += &text;
            changes.push(Change::More(self.all.len() - 1, text));
        }
    }

    fn open(&mut self, kind: Kind, changes: &mut Vec<Change>) {
        self.close(changes);
        changes.push(Change::Open(self.all.len()));
        self.all.push(Block { id: ids::new((self.prefix)(&kind)), kind, text: String::new() });
        self.open = true;
    }

    fn close(&mut self, changes: &mut Vec<Change>) {
        if std::mem::replace(&mut self.open, false) {
            changes.push(Change::Close(self.all.len() - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_open_and_close_in_turn() {
        let mut blocks = Blocks::new(|_| "x");
        let mut changes = Vec::new();
        for event in [
            ReplyEvent::Reasoning("a".into()),
            ReplyEvent::Text("b".into()),
            ReplyEvent::Text("c".into()),
            ReplyEvent::ToolCallStart { index: 0, name: "f".into() },
            ReplyEvent::ToolCallArguments { index: 0, delta: "{}".into() },
            ReplyEvent::ToolCallEnd { index: 0 },
            ReplyEvent::Text("d".into()),
        ] {
            changes.extend(blocks.take(event));
        }
        changes.extend(blocks.finish(&FinishReason::Complete));
        use Change::{Close, More, Open};
        let expected = [
            vec![Open(0), More(0, "a".into()), Close(0)],
            vec![Open(1), More(1, "b".into()), More(1, "c".into()), Close(1)],
            vec![Open(2), More(2, "{}".into()), Close(2)],
            vec![Open(3), More(3, "d".into()), Close(3)],
        ];
        assert_eq!(changes, expected.concat());
    }

    #[test]
    fn a_reply_that_says_nothing_has_an_empty_text() {
        let finish = |event: Option<ReplyEvent>, reason| {
            let mut blocks = Blocks::new(|_| "x");
            event.map(|event| blocks.take(event));
            blocks.finish(&reason);
            blocks.all.into_iter().map(|block| block.kind).collect::<Vec<_>>()
        };
        let thought = || Some(ReplyEvent::Reasoning("a".into()));
        assert_eq!(finish(None, FinishReason::Length), [Kind::Text]);
        assert_eq!(finish(thought(), FinishReason::Complete), [Kind::Reasoning, Kind::Text]);
        assert_eq!(finish(thought(), FinishReason::Length), [Kind::Reasoning]);
    }
}
