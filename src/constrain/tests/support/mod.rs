//! What the tests share: a real vocabulary, a compiler over it, and readers and writers of constrained texts.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::sync::{Arc, OnceLock};

use constrain::{Compiler, Error, Kind, Lead, Limits, Spec};
use engine::Grammar;
use test_support::takes_tokens;
use text::{Special, Vocab};

/// That of pocket: 8192 tokens, with Qwen's tags as user-defined and control tokens.
pub fn vocab() -> Arc<Vocab> {
    test_support::pocket().shared_vocab()
}

pub fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| Compiler::new(vocab(), Limits::default()))
}

pub fn compile(kind: Kind) -> Result<Arc<dyn Grammar>, Error> {
    compiler().compile(&Spec::new(kind))
}

/// Whether thinking comes before a form.
#[derive(Clone, Copy, Debug)]
pub enum Thinking {
    Done,
    Open,
    Possible,
}

pub fn after(thinking: Thinking, kind: Kind) -> Spec {
    let lead = Lead { until: "</think>".into(), may_end: false, gap: 8 };
    let leads = if matches!(thinking, Thinking::Done) { Vec::new() } else { vec![lead] };
    let opening = matches!(thinking, Thinking::Possible).then(|| "<think>".into());
    Spec { kind, leads, opening }
}

pub fn grammar(kind: Kind) -> Arc<dyn Grammar> {
    let shown = format!("{kind:?}");
    compile(kind).unwrap_or_else(|error| panic!("{error}: {shown}"))
}

/// Whether the grammar takes this text and may end after it, with the tokens that the vocabulary cuts it into.
pub fn takes(grammar: &Arc<dyn Grammar>, text: &str) -> bool {
    takes_tokens(grammar, &vocab(), &vocab().encode(text, Special::Plain))
}
