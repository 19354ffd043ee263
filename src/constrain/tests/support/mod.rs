//! What the tests share: a real vocabulary, a compiler over it, and readers and writers of constrained texts.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::path::Path;
use std::sync::{Arc, OnceLock};

use constrain::{Compiler, Error, Kind, Lead, Limits, Spec};
use engine::{Allowed, Constraint, Grammar};
use model::{LoadOptions, Model};
use text::{Decoder, Special, TokenId, Vocab};

/// That of pocket: 8192 tokens, with Qwen's tags as user-defined and control tokens.
pub fn vocab() -> Arc<Vocab> {
    static VOCAB: OnceLock<Arc<Vocab>> = OnceLock::new();
    let open = || {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pocket-q4_k_m.gguf");
        Model::open(&path, &LoadOptions::default()).expect("a model of the repository").shared_vocab()
    };
    Arc::clone(VOCAB.get_or_init(open))
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
    takes_tokens(grammar, &vocab().encode(text, Special::Plain))
}

pub fn takes_tokens(grammar: &Arc<dyn Grammar>, tokens: &[TokenId]) -> bool {
    let mut walk = grammar.start();
    // Both ways to try a token say the same.
    let n = walk.n_fitting(tokens);
    for (i, &token) in tokens.iter().enumerate() {
        let fits = walk.accept(token).is_ok();
        assert_eq!(fits, i < n, "token {i} of {tokens:?}");
        if !fits {
            return false;
        }
    }
    may_end(&mut *walk)
}

pub fn may_end(walk: &mut dyn Constraint) -> bool {
    let eog = vocab().eog()[0];
    walk.is_complete() || walk.allowed().is_ok_and(|allowed| allowed.has(eog))
}

/// A random number generator with a seed that a test prints.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// Writes a text by drawing among the allowed tokens; `None` when it has not ended after `most` tokens. Ends as soon as it
/// may, in one of three cases, and always once half of the tokens are spent.
pub fn write(grammar: &Arc<dyn Grammar>, random: &mut Random, most: usize) -> Option<String> {
    let vocab = vocab();
    let mut walk = grammar.start();
    let (mut decoder, mut text) = (Decoder::new(), String::new());
    for i in 0..most {
        if walk.is_complete() {
            return Some(text + &decoder.finish());
        }
        let allowed = walk.allowed().unwrap_or_else(|error| panic!("{error} after {text:?}"));
        let may_end = allowed.has(vocab.eog()[0]);
        if may_end && (i > most / 2 || random.below(3) == 0) {
            return Some(text + &decoder.finish());
        }
        let ids = allowed_ids(&allowed, vocab.len());
        // Closing signs come more often than by chance, or texts would hardly ever end.
        let closes = |id: &&TokenId| {
            let bytes = vocab.bytes(**id).unwrap_or_default();
            bytes.first().is_some_and(|b| b"\"}]\n</e".contains(b))
        };
        let closing: Vec<&TokenId> = ids.iter().filter(closes).collect();
        let token = match closing.is_empty() || random.below(4) > 0 {
            true => ids[random.below(ids.len())],
            false => *closing[random.below(closing.len())],
        };
        text += &decoder.push(vocab.bytes(token).unwrap_or_default());
        walk.accept(token).unwrap_or_else(|error| panic!("{error}: {token:?} after {text:?}"));
    }
    None
}

/// The allowed tokens that do not end generation.
pub fn allowed_ids(allowed: &Allowed<'_>, n_vocab: usize) -> Vec<TokenId> {
    let vocab = vocab();
    (0..n_vocab as u32).map(TokenId).filter(|&id| allowed.has(id) && !vocab.is_eog(id)).collect()
}
