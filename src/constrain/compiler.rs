//! Builds grammars on a thread of its own, with a stack that deep ones cannot exhaust, and keeps those built.
//! Owns that thread, the vocabulary's trie and the cache. A panic in there is an error of that one grammar.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError, TrySendError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::{Constraint, Grammar};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use serde_json::json;
use text::{TokenId, Vocab};

use crate::error::Error;
use crate::limits::Limits;
use crate::spec::{Kind, Spec, THINK, THINK_END, Thinking};
use crate::tools::{self, ToolChoice};
use crate::walk::{Lead, Walk, plain};
use crate::watch::Watch;
use crate::words::Words;
use crate::{gbnf, lark};

/// Builds grammars over one vocabulary. Share it: what it has built once it need not build again.
pub struct Compiler {
    jobs: mpsc::SyncSender<Job>,
    limits: Limits,
}

struct Job {
    spec: Spec,
    reply: mpsc::Sender<Reply>,
}

enum Reply {
    /// Its turn has come.
    Begun,
    Done(Result<Arc<dyn Grammar>, Error>),
}

impl Compiler {
    /// Starts the thread; the vocabulary's trie is made with the first grammar.
    ///
    /// # Errors
    /// [`Error::Broken`]: the system has no thread for it.
    pub fn new(vocab: Arc<Vocab>, limits: Limits) -> Result<Self, Error> {
        let (jobs, receiver) = mpsc::sync_channel(MAX_WAITING);
        let thread = std::thread::Builder::new().name("nextn-grammars".into()).stack_size(STACK);
        thread.spawn(move || run(&vocab, limits, &receiver)).map_err(|error| Error::Broken(error.to_string()))?;
        Ok(Self { jobs, limits })
    }

    /// Builds a grammar, or finds it among those built before. Blocks for some milliseconds; the first time in a process
    /// for as long as the vocabulary's trie takes, up to seconds.
    ///
    /// # Errors
    /// Whatever is wrong with the specification, in words for whoever wrote it; and [`Error::Busy`].
    pub fn compile(&self, spec: &Spec) -> Result<Arc<dyn Grammar>, Error> {
        check(&spec.kind, &self.limits)?;
        let what = spec.kind.what();
        let (reply, replies) = mpsc::channel();
        let gone = || Error::Broken("their thread has ended".into());
        self.jobs.try_send(Job { spec: spec.clone(), reply }).map_err(|error| match error {
            TrySendError::Full(_) => Error::Busy,
            TrySendError::Disconnected(_) => gone(),
        })?;
        if !matches!(replies.recv(), Ok(Reply::Begun)) {
            return Err(gone());
        }
        match replies.recv_timeout(self.limits.build) {
            Ok(Reply::Done(result)) => result,
            Err(RecvTimeoutError::Timeout) => Err(Error::TooSlow { what, seconds: self.limits.build.as_secs() }),
            Ok(Reply::Begun) | Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }

    /// The bounds that it keeps.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// What needs no vocabulary.
fn check(kind: &Kind, limits: &Limits) -> Result<(), Error> {
    let what = kind.what();
    match kind {
        Kind::JsonObject => Ok(()),
        Kind::JsonSchema(schema) => limits.schema(what, schema).map(|_| ()),
        Kind::Regex(source) | Kind::Lark(source) | Kind::Gbnf(source) => limits.text(what, source),
        Kind::Choice(choices) => {
            limits.items(what, "choices", choices.len())?;
            limits.bytes(what, choices.iter().map(|choice| choice.len() + 1).sum())?;
            if choices.is_empty() { Err(Error::Nothing { what }) } else { Ok(()) }
        }
        Kind::Tools(tools) => tools.check(limits),
    }
}

/// The thread.
fn run(vocab: &Arc<Vocab>, limits: Limits, jobs: &mpsc::Receiver<Job>) {
    let mut builder: Option<Result<Builder, Error>> = None;
    while let Ok(job) = jobs.recv() {
        let made = builder.get_or_insert_with(|| {
            let start = Instant::now();
            let made = caught(|| Builder::new(Arc::clone(vocab), limits));
            tracing::debug!(n_vocab = vocab.len(), took = ?start.elapsed(), "the trie of the vocabulary is made");
            made
        });
        // Those who asked may be gone: nobody to tell then.
        let _ = job.reply.send(Reply::Begun);
        let done = match made {
            Ok(builder) => caught(|| builder.grammar(&job.spec)),
            Err(error) => Err(error.clone()),
        };
        let _ = job.reply.send(Reply::Done(done));
    }
}

fn caught<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    // What a panic leaves half done is the cache at worst, and that is only pushed to.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Error::Broken("building one has panicked".into())))
}

struct Builder {
    words: Arc<Words>,
    factory: ParserFactory,
    limits: Limits,
    watch: Arc<Watch>,
    /// The latest last.
    built: VecDeque<(Kind, Arc<Mutex<Matcher>>)>,
    think: Option<TokenId>,
}

impl Builder {
    fn new(vocab: Arc<Vocab>, limits: Limits) -> Result<Self, Error> {
        let think = vocab.id(THINK);
        let words = Words::new(vocab);
        let mut factory =
            ParserFactory::new_simple(&words.env).map_err(|error| Error::Broken(plain(&error.to_string())))?;
        factory.quiet();
        let bounds = factory.limits_mut();
        bounds.verbose_errors = false;
        bounds.max_lexer_states = limits.max_lexer_states;
        let watch = Watch::new(limits.mask);
        Ok(Self { words: Arc::new(words), factory, limits, watch, built: VecDeque::new(), think })
    }

    fn grammar(&mut self, spec: &Spec) -> Result<Arc<dyn Grammar>, Error> {
        let start = Instant::now();
        let matcher = match self.built.iter().position(|(kind, _)| *kind == spec.kind) {
            Some(i) => {
                let kept = self.built.remove(i).expect("it was just found there");
                let matcher = Arc::clone(&kept.1);
                self.built.push_back(kept);
                matcher
            }
            None => {
                let matcher = Arc::new(Mutex::new(self.build(&spec.kind)?));
                if self.built.len() == MAX_KEPT {
                    self.built.pop_front();
                }
                self.built.push_back((spec.kind.clone(), Arc::clone(&matcher)));
                tracing::debug!(what = spec.kind.what(), took = ?start.elapsed(), "grammar built");
                matcher
            }
        };
        let mut leads = Vec::new();
        let auto = matches!(&spec.kind, Kind::Tools(tools) if tools.choice == ToolChoice::Auto);
        let opening = self.think.filter(|_| spec.thinking == Thinking::Possible && !auto);
        if spec.thinking == Thinking::Open || opening.is_some() {
            leads.push(Lead { until: THINK_END.into(), may_end: auto, gap: MAX_GAP });
        }
        if auto {
            leads.push(Lead { until: tools::OPENING.into(), may_end: true, gap: 0 });
        }
        Ok(Arc::new(Compiled {
            matcher,
            words: Arc::clone(&self.words),
            watch: Arc::clone(&self.watch),
            leads: leads.into(),
            opening,
            deadline: self.limits.mask,
        }))
    }

    /// Builds a grammar and tries whether it lets anything through.
    fn build(&self, kind: &Kind) -> Result<Matcher, Error> {
        let what = kind.what();
        let unusable = |why: String| Error::Unusable { what, why };
        let grammar = match kind {
            Kind::JsonObject => schema(&json!({ "type": "object" })),
            Kind::JsonSchema(given) => schema(given),
            Kind::Regex(expression) => {
                let whole = expression.strip_prefix('^').unwrap_or(expression);
                let cut = whole.ends_with('$') && !whole.ends_with(r"\$");
                TopLevelGrammar::from_regex(if cut { &whole[..whole.len() - 1] } else { whole })
            }
            Kind::Choice(choices) => {
                let texts: Vec<String> = choices.iter().map(|choice| lark::text(choice)).collect();
                TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}", texts.join(" | ")))
            }
            Kind::Lark(source) => TopLevelGrammar::from_lark(source.clone()),
            Kind::Gbnf(source) => TopLevelGrammar::from_lark(gbnf::to_lark(source).map_err(unusable)?),
            Kind::Tools(given) => TopLevelGrammar::from_lark(tools::grammar(given)?),
        };
        let parser = self.factory.create_parser(grammar).map_err(|error| unusable(plain(&error.to_string())))?;
        let matcher = Matcher::new(Ok(parser)).into_cancellable();
        let mut trial = matcher.deep_clone();
        let watched = trial.cancellation_handle().map(|handle| self.watch.over(handle));
        let first = match &watched {
            Some(watched) => watched.during(|| trial.compute_mask()),
            None => trial.compute_mask(),
        };
        match first {
            Ok(mask) if mask.is_zero() => Err(Error::Nothing { what }),
            Ok(_) => Ok(matcher),
            Err(_) if trial.is_cancelled() => Err(unusable("its first mask alone takes too long".into())),
            Err(error) => Err(unusable(plain(&error.to_string()))),
        }
    }
}

fn schema(schema: &serde_json::Value) -> TopLevelGrammar {
    TopLevelGrammar::from_grammar(GrammarWithLexer::from_json_schema(lark::json_schema(schema)))
}

/// A grammar that was built, and what may come before it.
struct Compiled {
    /// Never walked itself.
    matcher: Arc<Mutex<Matcher>>,
    words: Arc<Words>,
    watch: Arc<Watch>,
    leads: Arc<[Lead]>,
    opening: Option<TokenId>,
    deadline: Duration,
}

impl Grammar for Compiled {
    fn start(&self) -> Box<dyn Constraint> {
        // Nothing in there can be left half done: it is only cloned.
        let matcher = self.matcher.lock().unwrap_or_else(|e| e.into_inner()).deep_clone();
        let watched = self.watch.over(matcher.cancellation_handle().unwrap_or_default());
        Box::new(Walk::new(
            Arc::clone(&self.words),
            matcher,
            watched,
            Arc::clone(&self.leads),
            self.opening,
            self.deadline.as_millis(),
        ))
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").field("leads", &self.leads).finish_non_exhaustive()
    }
}

/// White space between thinking and the answer, in bytes.
const MAX_GAP: usize = 8;
/// Grammars that are kept.
const MAX_KEPT: usize = 32;
/// Grammars that may wait to be built.
const MAX_WAITING: usize = 64;
/// Stack of the thread; only what is used takes memory.
const STACK: usize = 64 << 20;
