//! Complete generations for whoever learns from them: what was asked and answered, and which drafts were refused.
//! Owns the way out of the engine, which never makes it wait. Knows nothing of files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use text::TokenId;

use crate::event::Piece;
use crate::request::{GenerateRequest, Scope};

/// A generation that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedReply {
    /// Whose it is.
    pub scope: Scope,
    /// The prompt's tokens.
    pub prompt: Vec<TokenId>,
    /// The generated tokens, end of generation included.
    pub reply: Vec<TokenId>,
    /// Where a drafted token was refused: the position in `reply` of the token that the model took instead, and the depth of the
    /// draft, the first being 1. Ascending.
    pub refused: Vec<(usize, usize)>,
    /// Drafts that were verified.
    pub n_drafts: usize,
    /// Of these, drafts whose first token was the model's choice: this does not depend on how long drafts are.
    pub n_begun: usize,
}

/// Takes finished replies from an engine. Where its queue is full they are dropped, and counted.
#[derive(Clone, Debug)]
pub struct ReplySink {
    sender: SyncSender<FinishedReply>,
    n_dropped: Arc<AtomicU64>,
}

impl ReplySink {
    /// A sink whose queue holds `n` replies, and the queue's end.
    pub fn new(n: usize) -> (Self, Receiver<FinishedReply>) {
        let (sender, receiver) = sync_channel(n);
        (Self { sender, n_dropped: Arc::default() }, receiver)
    }

    /// Replies that found the queue full; it goes on counting after the sink is gone.
    pub fn n_dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.n_dropped)
    }

    fn put(&self, reply: FinishedReply) {
        if self.sender.try_send(reply).is_err() {
            self.n_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A reply while it is generated.
#[derive(Debug)]
pub(crate) struct Recording {
    sink: ReplySink,
    reply: Vec<TokenId>,
    refused: Vec<(usize, usize)>,
    n_drafts: usize,
    n_begun: usize,
}

impl Recording {
    /// `None` for requests that leave nothing: those that may not be cached or kept, and those whose tokens a head alone cannot
    /// learn from, with pictures, with adapters, or without a generation.
    pub(crate) fn of(request: &GenerateRequest, sink: Option<&ReplySink>) -> Option<Self> {
        let options = request.options();
        let plain = options.adapters.is_empty() && options.pictures.is_empty() && options.embed.is_none();
        let sink = sink.filter(|_| options.cache && options.keep && plain && request.max_tokens() > 0)?.clone();
        Some(Self { sink, reply: Vec::new(), refused: Vec::new(), n_drafts: 0, n_begun: 0 })
    }

    /// The tokens of a step whose draft had `n_drafted`.
    pub(crate) fn take(&mut self, pieces: &[Piece], n_drafted: usize) {
        let n_agreed = pieces.iter().take_while(|piece| piece.draft.depth > 0).count();
        self.n_drafts += usize::from(n_drafted > 0);
        self.n_begun += usize::from(n_agreed > 0);
        if n_agreed < n_drafted && n_agreed < pieces.len() {
            self.refused.push((self.reply.len() + n_agreed, n_agreed + 1));
        }
        self.reply.extend(pieces.iter().map(|piece| piece.token));
    }

    /// The generation is complete.
    pub(crate) fn finish(self, request: &GenerateRequest) {
        let Self { sink, reply, refused, n_drafts, n_begun } = self;
        let prompt = request.prompt().to_vec();
        sink.put(FinishedReply { scope: request.options().scope, prompt, reply, refused, n_drafts, n_begun });
    }
}
