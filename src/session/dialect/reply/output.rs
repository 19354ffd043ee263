//! The events of a reply as they are told: which spaces belong to what is said, and neighbours of one kind joined.

use super::event::ReplyEvent;

/// What was found, in its order.
#[derive(Debug)]
pub(super) struct Output {
    /// Spaces that are dropped if a tag follows them.
    pub(super) spaces: String,
    /// Nothing was printed since the reply's start or the last tag.
    pub(super) fresh: Fresh,
    n_calls: usize,
    events: Vec<ReplyEvent>,
}

/// Whether anything was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fresh {
    /// The very start: spaces belong to the text.
    Start,
    /// After a tag: blank lines do not belong to the text.
    AfterTag,
    No,
}

impl Output {
    pub(super) fn new(fresh: Fresh) -> Self {
        Self { spaces: String::new(), fresh, n_calls: 0, events: Vec::new() }
    }

    /// The events since the last time.
    pub(super) fn take(&mut self) -> Vec<ReplyEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn after_tag(&mut self) {
        self.spaces.clear();
        self.fresh = Fresh::AfterTag;
    }

    /// Reasoning or text, with the spaces before it; spaces at its end wait for what follows, unless the text is `plain`: no tag can
    /// follow. Whether it was more than spaces.
    pub(super) fn say(&mut self, text: &str, in_reasoning: bool, plain: bool) -> bool {
        if !in_reasoning && plain && self.fresh == Fresh::No {
            let spaces = std::mem::take(&mut self.spaces);
            self.emit_text(&spaces);
            self.emit_text(text);
            return true;
        }
        let body = text.trim_end();
        if !body.is_empty() {
            let before = &text[..text.len() - text.trim_start().len()];
            self.spaces.push_str(before);
            let spaces = std::mem::take(&mut self.spaces);
            let kept = match self.fresh {
                Fresh::No => spaces.as_str(),
                Fresh::Start if !in_reasoning => spaces.as_str(),
                // The first line may be indented.
                _ if !in_reasoning => &spaces[spaces.rfind('\n').map_or(0, |at| at + 1)..],
                _ => "",
            };
            self.fresh = Fresh::No;
            let whole = [kept, body.trim_start()].concat();
            if in_reasoning {
                self.emit_reasoning(&whole);
            } else {
                self.emit_text(&whole);
            }
        }
        self.spaces.push_str(&text[body.len()..]);
        !body.is_empty()
    }

    fn emit_reasoning(&mut self, text: &str) {
        match self.events.last_mut() {
            Some(ReplyEvent::Reasoning(last)) => last.push_str(text),
            _ => self.events.push(ReplyEvent::Reasoning(text.to_owned())),
        }
    }

    pub(super) fn emit_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.events.last_mut() {
            Some(ReplyEvent::Text(last)) => last.push_str(text),
            _ => self.events.push(ReplyEvent::Text(text.to_owned())),
        }
    }

    pub(super) fn start_call(&mut self, name: String) {
        self.events.push(ReplyEvent::ToolCallStart { index: self.n_calls, name });
        self.n_calls += 1;
    }

    /// More of the arguments of the last call.
    pub(super) fn arguments(&mut self, text: &str) {
        let index = self.n_calls - 1;
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(ReplyEvent::ToolCallArguments { index: last, delta }) if *last == index => delta.push_str(text),
            _ => self.events.push(ReplyEvent::ToolCallArguments { index, delta: text.to_owned() }),
        }
    }

    pub(super) fn end_call(&mut self) {
        self.events.push(ReplyEvent::ToolCallEnd { index: self.n_calls - 1 });
    }
}
