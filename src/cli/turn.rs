//! One reply, from the request to its last piece: events of the engine and signals in, decoded and parted text out.
//! Owns the thread that waits for the engine. Knows not where the text goes.

use std::sync::{Mutex, PoisonError, mpsc};

use engine::{Event, RequestOptions, Timings};
use session::dialect::ReplyEvent;
use session::{Delta, Prepared, Reply, Step, Token};

use super::loaded::{Loaded, Prompt, not_submitted};
use super::report::{Answer, Finish, Logprob, Times, ToolCall};
use super::sink::Sink;
use program::exit::{Exit, Failure, Outcome};
use program::signals::Signals;

/// What came of a request.
#[derive(Debug)]
pub struct Done {
    /// The whole reply, as `--json` prints it.
    pub answer: Answer,
    /// The engine's timings; our own where the reply was stopped.
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

/// Asks for a reply to `prompt` and brings it to `sink` as it comes; SIGINT and SIGTERM stop it.
///
/// # Errors
/// With [`Exit::Prompt`] or [`Exit::Usage`] when the request cannot be served, [`Exit::Runtime`] when the engine fails;
/// those of the sink.
pub fn run(
    loaded: &Loaded,
    signals: &Signals,
    prompt: Prompt,
    options: RequestOptions,
    sink: &mut dyn Sink,
) -> Outcome<Done> {
    let with_logprobs = options.logprobs.is_some();
    let prepared = match prepare(loaded, signals, prompt, options)? {
        Ok(prepared) => prepared,
        Err(exit) => {
            sink.end()?;
            let timings = Timings::default();
            let times = Times::new(loaded.load_ms(), &timings);
            let answer = Answer { finish_reason: Finish::Cancelled, timings: times, ..Answer::default() };
            return Ok(Done { answer, timings, stopped: Some(exit) });
        }
    };
    sink.begin(prepared.request.prompt().len());
    let (mut generation, reply) = loaded.model.submit(prepared).map_err(not_submitted)?;

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

    let mut growing = Growing::new(reply, with_logprobs);
    for happening in happenings {
        match happening {
            Happening::Engine(event) => match growing.reply.take(event) {
                Ok(Delta::Progress(progress)) => sink.prompt(progress)?,
                Ok(Delta::Step(step)) => growing.step(step, sink)?,
                Ok(Delta::End(end)) => {
                    growing.events(end.events, sink)?;
                    sink.end()?;
                    return Ok(growing.done(Finish::from(&end.reason), end.timings, loaded.load_ms(), None));
                }
                Err(message) => {
                    growing.rest(sink)?;
                    return Err(Failure::message(Exit::Runtime, message));
                }
            },
            Happening::Silence => break,
            Happening::Signal(exit) => {
                growing.rest(sink)?;
                let timings = growing.reply.timings().clone();
                return Ok(growing.done(Finish::Cancelled, timings, loaded.load_ms(), Some(exit)));
            }
        }
    }
    growing.rest(sink)?;
    Err(Failure::message(Exit::Runtime, "the engine ended in the middle of an answer"))
}

/// The request, or the signal that came before it was ready: a projector looks at images for seconds.
fn prepare(
    loaded: &Loaded,
    signals: &Signals,
    prompt: Prompt,
    options: RequestOptions,
) -> Outcome<Result<Prepared, Exit>> {
    let (sender, incoming) = mpsc::channel();
    let _listening = signals.listen(sender, |exit| exit);
    // The question is asked on threads that compute.
    let heard = Mutex::new((incoming, None));
    let stopped = || {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.1.is_none() {
            heard.1 = heard.0.try_recv().ok();
        }
        heard.1
    };
    match loaded.prepare(prompt, options, &|| stopped().is_none()) {
        Err(failure) => stopped().map_or(Err(failure), |exit| Ok(Err(exit))),
        prepared => prepared.map(Ok),
    }
}

/// The reply as it grows.
struct Growing {
    reply: Reply,
    answer: Answer,
}

impl Growing {
    fn new(reply: Reply, with_logprobs: bool) -> Self {
        Self { reply, answer: Answer { logprobs: with_logprobs.then(Vec::new), ..Answer::default() } }
    }

    fn step(&mut self, step: Step, sink: &mut dyn Sink) -> Outcome<()> {
        let ids: Vec<u32> = step.pieces().map(|piece| piece.token.0).collect();
        sink.tokens(&ids)?;
        self.answer.token_ids.extend(ids);
        for Token { piece, events } in step.tokens {
            if let (Some(all), Some(one)) = (&mut self.answer.logprobs, &piece.logprob) {
                let top = one.top.iter().map(|&(id, logprob)| Logprob { token_id: id.0, logprob, top: Vec::new() });
                all.push(Logprob { token_id: one.token.0, logprob: one.logprob, top: top.collect() });
            }
            self.events(events, sink)?;
        }
        Ok(())
    }

    /// What was held back, where the reply ends without an end of its own.
    fn rest(&mut self, sink: &mut dyn Sink) -> Outcome<()> {
        let events = self.reply.rest(&[]);
        self.events(events, sink)?;
        Ok(sink.end()?)
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
