//! One answer, from the request to its last piece: events of the engine and signals in, decoded and parted text out.
//! Owns the thread that waits for the engine. Knows not where the text goes.

use std::sync::mpsc;
use std::time::Instant;

use engine::{Event, GenerateRequest, Piece, RequestError, RequestOptions, SubmitError, Summary, Timings};
use text::Decoder;
use text::reply::{ReplyEvent, ReplyOptions, ReplyParser};

use super::exit::{Exit, Failure, Outcome};
use super::loaded::Loaded;
use super::prompt::Encoded;
use super::report::{Answer, Finish, Logprob, Times, ToolCall};
use super::signals::Signals;
use super::sink::Sink;

/// What came of a request.
#[derive(Debug)]
pub struct Done {
    /// The whole answer, as `--json` prints it.
    pub answer: Answer,
    /// The engine's figures; our own where the answer was stopped.
    pub timings: Timings,
    /// The signal that stopped it.
    pub stopped: Option<Exit>,
}

/// What wakes the loop.
enum Happening {
    Engine(Event),
    /// The engine says nothing more.
    Silence,
    Signal(Exit),
}

/// Asks for an answer to `prompt` and brings it to `sink` as it comes; SIGINT and SIGTERM stop it.
/// `parse`: thinking and tool calls are taken apart from the answer.
///
/// # Errors
/// With [`Exit::Prompt`] or [`Exit::Usage`] when the request cannot be served, [`Exit::Runtime`] when the engine fails;
/// those of the sink.
pub fn run(
    loaded: &Loaded,
    signals: &Signals,
    prompt: Encoded,
    mut options: RequestOptions,
    parse: bool,
    sink: &mut dyn Sink,
) -> Outcome<Done> {
    let form = loaded.form.as_ref();
    options.grammar = form.map(|form| form.grammar(&prompt, &loaded.model, parse)).transpose()?;
    options.borders = prompt.borders;
    let prompt_tokens = prompt.tokens.len();
    let with_logprobs = options.logprobs.is_some();
    let request = GenerateRequest::new(prompt.tokens, options, loaded.engine.limits()).map_err(refused)?;
    let mut generation = loaded.engine.submit(request).map_err(|error| match error {
        SubmitError::Sampling(_) => Failure::new(Exit::Usage, error),
        error => Failure::new(Exit::Runtime, error),
    })?;

    let (sender, happenings) = mpsc::channel();
    let _listening = signals.listen(sender.clone(), Happening::Signal);
    std::thread::spawn(move || {
        while let Some(event) = generation.next() {
            // Nobody waits any more: dropping the generation cancels it.
            if sender.send(Happening::Engine(event)).is_err() {
                return;
            }
        }
        // As above.
        let _ = sender.send(Happening::Silence);
    });

    let mut reply = Reply::new(parse.then_some(prompt.starts_in_reasoning), with_logprobs);
    let mut clock = Clock::new(prompt_tokens);
    for happening in happenings {
        match happening {
            Happening::Engine(Event::Prompt(progress)) => sink.prompt(progress)?,
            Happening::Engine(Event::Tokens(pieces)) => {
                clock.tick(pieces.len());
                reply.pieces(&pieces, sink)?;
            }
            Happening::Engine(Event::Finished(summary)) => {
                let Summary { reason, rest, timings, .. } = *summary;
                reply.finish(&rest, sink)?;
                return Ok(reply.done(Finish::from(&reason), timings, loaded.load_ms, None));
            }
            Happening::Engine(Event::Failed(message)) => {
                reply.finish(&[], sink)?;
                return Err(Failure::message(Exit::Runtime, message));
            }
            Happening::Silence => break,
            Happening::Signal(exit) => {
                reply.finish(&[], sink)?;
                return Ok(reply.done(Finish::Cancelled, clock.timings(), loaded.load_ms, Some(exit)));
            }
        }
    }
    reply.finish(&[], sink)?;
    Err(Failure::message(Exit::Runtime, "the engine ended in the middle of an answer"))
}

fn refused(error: RequestError) -> Failure {
    let exit = match &error {
        RequestError::EmptyPrompt | RequestError::PromptTooLong { .. } => Exit::Prompt,
        RequestError::NoTokens | RequestError::Logprobs { .. } | RequestError::Sampling(_) | RequestError::Stop(_) => {
            Exit::Usage
        }
        // Tokens and borders come from us.
        RequestError::Token { .. } | RequestError::Borders { .. } => Exit::Runtime,
    };
    match error {
        RequestError::PromptTooLong { .. } => {
            Failure::new(exit, anyhow::Error::new(error).context("-c sets the context"))
        }
        error => Failure::new(exit, error),
    }
}

/// The answer as it grows.
struct Reply {
    decoder: Decoder,
    parser: Option<ReplyParser>,
    answer: Answer,
}

impl Reply {
    /// `thinking`: whether the answer starts with it; `None` takes everything as text.
    fn new(thinking: Option<bool>, with_logprobs: bool) -> Self {
        let parser = thinking.map(|starts_in_reasoning| {
            let tool_schemas = Vec::new();
            ReplyParser::new(ReplyOptions { starts_in_reasoning, reasoning: true, tools: true, tool_schemas })
        });
        let answer = Answer { logprobs: with_logprobs.then(Vec::new), ..Answer::default() };
        Self { decoder: Decoder::new(), parser, answer }
    }

    fn pieces(&mut self, pieces: &[Piece], sink: &mut dyn Sink) -> Outcome<()> {
        let ids: Vec<u32> = pieces.iter().map(|piece| piece.token.0).collect();
        sink.tokens(&ids)?;
        self.answer.token_ids.extend(ids);
        for piece in pieces {
            if let (Some(all), Some(one)) = (&mut self.answer.logprobs, &piece.logprob) {
                let top = one.top.iter().map(|&(id, logprob)| Logprob { token_id: id.0, logprob, top: Vec::new() });
                all.push(Logprob { token_id: one.token.0, logprob: one.logprob, top: top.collect() });
            }
            let text = self.decoder.push(&piece.bytes);
            self.text(&text, sink)?;
        }
        Ok(())
    }

    fn finish(&mut self, rest: &[u8], sink: &mut dyn Sink) -> Outcome<()> {
        let mut text = self.decoder.push(rest);
        text += &self.decoder.finish();
        self.text(&text, sink)?;
        if let Some(mut parser) = self.parser.take() {
            let events = parser.finish();
            self.events(events, sink)?;
        }
        sink.end()?;
        Ok(())
    }

    fn text(&mut self, text: &str, sink: &mut dyn Sink) -> Outcome<()> {
        if text.is_empty() {
            return Ok(());
        }
        match &mut self.parser {
            Some(parser) => {
                let events = parser.push(text);
                self.events(events, sink)
            }
            None => self.events(vec![ReplyEvent::Text(text.to_owned())], sink),
        }
    }

    fn events(&mut self, events: Vec<ReplyEvent>, sink: &mut dyn Sink) -> Outcome<()> {
        for event in events {
            match event {
                ReplyEvent::Reasoning(text) => {
                    self.answer.reasoning += &text;
                    sink.reasoning(&text)?;
                }
                ReplyEvent::Text(text) => {
                    self.answer.text += &text;
                    sink.text(&text)?;
                }
                ReplyEvent::ToolCallStart { name, .. } => {
                    self.answer.tool_calls.push(ToolCall { name, arguments: String::new() });
                }
                ReplyEvent::ToolCallArguments { delta, .. } => {
                    if let Some(call) = self.answer.tool_calls.last_mut() {
                        call.arguments += &delta;
                    }
                }
                ReplyEvent::ToolCallEnd { .. } => {
                    if let Some(call) = self.answer.tool_calls.last() {
                        sink.tool_call(call)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn done(mut self, reason: Finish, timings: Timings, load_ms: f64, stopped: Option<Exit>) -> Done {
        self.answer.finish_reason = reason;
        self.answer.timings = Times::new(load_ms, &timings);
        Done { answer: self.answer, timings, stopped }
    }
}

/// Our own figures, for answers that are stopped: the engine gives its own only at the end.
struct Clock {
    prompt_tokens: usize,
    start: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    generated: usize,
    cycles: usize,
}

impl Clock {
    fn new(prompt_tokens: usize) -> Self {
        Self { prompt_tokens, start: Instant::now(), first: None, last: None, generated: 0, cycles: 0 }
    }

    fn tick(&mut self, n_tokens: usize) {
        let now = Instant::now();
        self.cycles += usize::from(self.first.is_some());
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.generated += n_tokens;
    }

    fn timings(&self) -> Timings {
        let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
        Timings {
            prompt_tokens: self.prompt_tokens,
            prompt_ms: self.first.map_or(0.0, |first| ms(self.start, first)),
            generated_tokens: self.generated,
            generated_ms: self.first.zip(self.last).map_or(0.0, |(first, last)| ms(first, last)),
            steps: self.cycles,
            ..Timings::default()
        }
    }
}
