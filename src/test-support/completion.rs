//! Whole generations, as a reader sees them.

use engine::sample::TokenLogprob;
use engine::{
    DraftPosition, EngineHandle, Event, FinishReason, GenerateRequest, Generation, PromptProgress, RequestOptions,
    Summary, Timings,
};
use text::TokenId;

use crate::models::greedy_exactly;

/// A whole generation, with the order of its events checked.
#[derive(Debug)]
pub struct Completion {
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// Bytes of each token's piece.
    pub pieces: Vec<Vec<u8>>,
    /// For each token, if they were asked for.
    pub logprobs: Vec<Option<TokenLogprob>>,
    /// For each token, its position in the draft of its step.
    pub drafts: Vec<DraftPosition>,
    /// What was told of the prompt.
    pub progress: Vec<PromptProgress>,
    /// How it ended, or why it failed.
    pub end: Result<Summary, String>,
}

impl Completion {
    /// Reads to the end; panics when events come in another order than promised, or tell of other drafts than the end does.
    pub fn read(generation: &mut Generation) -> Self {
        Self::read_on(generation, vec![])
    }

    /// As [`Completion::read`], after progress of the prompt was read already.
    pub fn read_on(generation: &mut Generation, mut progress: Vec<PromptProgress>) -> Self {
        let (mut tokens, mut pieces, mut logprobs, mut drafts) = (vec![], vec![], vec![], vec![]);
        let mut told = Timings::default();
        let end = loop {
            match generation.next().expect("an end before the channel closes") {
                Event::Prompt(p) => {
                    assert!(tokens.is_empty(), "progress of the prompt after the first token");
                    progress.push(p);
                }
                Event::Tokens(some) => {
                    assert!(!progress.is_empty() && !some.is_empty(), "tokens before the prompt is done, or none");
                    told.count_draft_of(&some);
                    for piece in some {
                        tokens.push(piece.token);
                        pieces.push(piece.bytes);
                        logprobs.push(piece.logprob);
                        drafts.push(piece.draft);
                    }
                }
                Event::Finished(summary) => break Ok(*summary),
                Event::Failed(why) => break Err(why),
            }
        };
        assert!(generation.next().is_none(), "an event after the last");
        if let Ok(Summary { timings, .. }) = &end {
            let counts = |t: &Timings| (t.drafts, t.drafted, t.accepted, t.accepted_by_depth.clone());
            assert_eq!(counts(&told), counts(timings), "what the events told and what the end tells");
        }
        Self { tokens, pieces, logprobs, drafts, progress, end }
    }

    /// How it ended; it did not fail.
    pub fn summary(&self) -> &Summary {
        self.end.as_ref().expect("a complete generation")
    }

    /// Why it ended.
    pub fn reason(&self) -> &FinishReason {
        &self.summary().reason
    }

    /// Its metrics.
    pub fn timings(&self) -> &Timings {
        &self.summary().timings
    }

    /// Tokens of the prompt that were not computed.
    pub fn n_cached(&self) -> usize {
        self.timings().cached_tokens
    }

    /// All of its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        [&self.pieces.concat()[..], &self.summary().rest].concat()
    }

    /// Its text.
    pub fn text(&self) -> String {
        String::from_utf8(self.bytes()).expect("these generations are text")
    }

    /// Everything that drafts must not change.
    pub fn seen(&self) -> (&[TokenId], Vec<u8>, &[Option<TokenLogprob>], &FinishReason) {
        (&self.tokens, self.bytes(), &self.logprobs, self.reason())
    }
}

/// Puts a request into the queue, which has room.
pub fn submit(engine: &EngineHandle, prompt: &[TokenId], options: RequestOptions) -> Generation {
    let request = GenerateRequest::new(prompt.to_vec(), options, engine.limits()).expect("a request within the limits");
    engine.submit(request).expect("room in the queue")
}

/// One request and what comes of it.
pub fn generate(engine: &EngineHandle, prompt: &[TokenId], options: RequestOptions) -> Completion {
    Completion::read(&mut submit(engine, prompt, options))
}

/// Exactly `n` greedy tokens; `Err` says why there are none.
pub fn generate_tokens(engine: &EngineHandle, prompt: &[TokenId], n: usize) -> Result<Vec<TokenId>, String> {
    let Completion { tokens, end, .. } = generate(engine, prompt, greedy_exactly(n));
    end.map(|_| tokens)
}

/// Submits all requests, then reads all of them.
pub fn generate_all(engine: &EngineHandle, requests: Vec<(Vec<TokenId>, RequestOptions)>) -> Vec<Completion> {
    let running: Vec<_> = requests.into_iter().map(|(prompt, options)| submit(engine, &prompt, options)).collect();
    let read = |mut generation| {
        let completion = Completion::read(&mut generation);
        assert!(completion.end.is_ok(), "{:?}", completion.end);
        completion
    };
    running.into_iter().map(read).collect()
}
