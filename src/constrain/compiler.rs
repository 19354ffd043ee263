//! Builds grammars on threads of their own, with a stack that deep ones cannot exhaust, and keeps those built.
//! Owns those threads, the vocabulary's trie and the cache. A panic in there is an error of that one grammar, and a build
//! that overruns its time is left behind ([`crate::turns`]).

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use engine::{Constraint, Grammar};
use llguidance::api::{GrammarWithLexer, StopReason, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use serde_json::json;
use text::{TokenKind, Vocab};

use crate::error::Error;
use crate::limits::Limits;
use crate::spec::{Kind, Spec};
use crate::turns::Turns;
use crate::walk::{Lead, Walk, plain};
use crate::watch::Watch;
use crate::words::Words;
use crate::{gbnf, lark};

/// Builds grammars over one vocabulary. Share it: what it has built once it need not build again.
pub struct Compiler {
    shop: Arc<Shop>,
}

/// What the builds of a compiler share.
struct Shop {
    vocab: Arc<Vocab>,
    limits: Limits,
    turns: Arc<Turns>,
    builder: OnceLock<Result<Builder, Error>>,
    /// The grammars that were built, the latest last.
    kept: Mutex<VecDeque<(Kind, Arc<Mutex<Matcher>>)>>,
}

/// What a thread that builds says.
enum Progress {
    /// The vocabulary is ready: from here on the time counts.
    Begun,
    Done(Result<Arc<Mutex<Matcher>>, Error>),
}

impl Compiler {
    /// A compiler for this vocabulary, whose trie is made with the first grammar.
    pub fn new(vocab: Arc<Vocab>, limits: Limits) -> Self {
        let (turns, builder, kept) = (Arc::default(), OnceLock::new(), Mutex::default());
        Self { shop: Arc::new(Shop { vocab, limits, turns, builder, kept }) }
    }

    /// Builds a grammar, or finds it among those built before. Blocks for some milliseconds, at most for as long as `wait` and
    /// `build` of the limits say together; the first time in a process the vocabulary's trie comes to that, up to seconds.
    ///
    /// # Errors
    /// Whatever is wrong with the specification, in words for whoever wrote it; [`Error::TooSlow`]; and [`Error::Busy`].
    pub fn compile(&self, spec: &Spec) -> Result<Arc<dyn Grammar>, Error> {
        let shop = &self.shop;
        check(&spec.kind, &shop.limits)?;
        let matcher = match shop.find(&spec.kind) {
            Some(matcher) => matcher,
            None => self.build(&spec.kind)?,
        };
        Ok(shop.builder()?.grammar(spec, matcher))
    }

    /// Builds it on a thread of its own, when its turn comes.
    fn build(&self, kind: &Kind) -> Result<Arc<Mutex<Matcher>>, Error> {
        let Limits { wait, build, .. } = self.shop.limits;
        let turn = self.shop.turns.take(wait)?;
        let (sender, receiver) = mpsc::channel();
        let (shop, own_turn, own_kind) = (Arc::clone(&self.shop), Arc::clone(&turn), kind.clone());
        let work = move || {
            let builder = shop.builder();
            // Nobody may be left to tell.
            let _ = sender.send(Progress::Begun);
            let _ = sender.send(Progress::Done(builder.and_then(|builder| shop.found_or_built(builder, &own_kind))));
            drop(own_turn);
        };
        let thread = std::thread::Builder::new().name("nextn-grammar".into()).stack_size(STACK);
        thread.spawn(work).map_err(|error| Error::Broken(error.to_string()))?;
        let gone = || Error::Broken("their thread has ended".into());
        let Ok(Progress::Begun) = receiver.recv_timeout(MAX_PREPARING) else {
            return Err(Error::Broken("the vocabulary is not ready for them".into()));
        };
        match receiver.recv_timeout(build) {
            Ok(Progress::Done(result)) => result,
            Err(RecvTimeoutError::Timeout) => {
                turn.leave_behind();
                tracing::warn!(what = kind.what(), "a grammar is not built within its time: its thread is left behind");
                Err(Error::TooSlow { what: kind.what(), seconds: build.as_secs() })
            }
            Ok(Progress::Begun) | Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }

    /// The bounds that it keeps.
    pub fn limits(&self) -> &Limits {
        &self.shop.limits
    }
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").field("limits", &self.shop.limits).finish_non_exhaustive()
    }
}

impl Shop {
    /// What builds over the vocabulary, made by whoever needs it first.
    fn builder(&self) -> Result<&Builder, Error> {
        let made = self.builder.get_or_init(|| {
            let start = Instant::now();
            let made = caught(|| Builder::new(Arc::clone(&self.vocab), self.limits))
                .unwrap_or_else(|| Err(Error::Broken("the trie of the vocabulary cannot be made".into())));
            tracing::debug!(n_vocab = self.vocab.len(), took = ?start.elapsed(), "the trie of the vocabulary is made");
            made
        });
        made.as_ref().map_err(Error::clone)
    }

    fn find(&self, kind: &Kind) -> Option<Arc<Mutex<Matcher>>> {
        let mut kept = self.kept();
        let at = kept.iter().position(|(known, _)| known == kind)?;
        let found = kept.remove(at)?;
        let matcher = Arc::clone(&found.1);
        kept.push_back(found);
        Some(matcher)
    }

    /// A grammar that another request may have built in the meantime.
    fn found_or_built(&self, builder: &Builder, kind: &Kind) -> Result<Arc<Mutex<Matcher>>, Error> {
        if let Some(matcher) = self.find(kind) {
            return Ok(matcher);
        }
        let start = Instant::now();
        let built = caught(|| builder.build(kind)).unwrap_or_else(|| {
            tracing::error!(what = kind.what(), "building a grammar has panicked");
            Err(Error::Unusable { what: kind.what(), why: "building it has failed, which is not its fault".into() })
        });
        let matcher = Arc::new(Mutex::new(built?));
        tracing::debug!(what = kind.what(), took = ?start.elapsed(), "grammar built");
        let mut kept = self.kept();
        if kept.len() == MAX_KEPT {
            kept.pop_front();
        }
        kept.push_back((kind.clone(), Arc::clone(&matcher)));
        Ok(matcher)
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<(Kind, Arc<Mutex<Matcher>>)>> {
        // Nothing in there can be left half done.
        self.kept.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The result of work; `None` when it panicked.
fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    // Work of this kind changes nothing that outlives it.
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// What needs no vocabulary.
fn check(kind: &Kind, limits: &Limits) -> Result<(), Error> {
    let what = kind.what();
    match kind {
        Kind::JsonObject => Ok(()),
        Kind::JsonSchema(schema) => limits.schema(what, schema).map(|_| ()),
        Kind::Regex(source) | Kind::Gbnf(source) => limits.text(what, source),
        Kind::Lark(source) => limits.lark(what, source),
        Kind::Choice(choices) => {
            limits.items(what, "choices", choices.len())?;
            limits.bytes(what, choices.iter().map(|choice| choice.len() + 1).sum())?;
            if choices.is_empty() { Err(Error::Nothing { what }) } else { Ok(()) }
        }
        Kind::Written(written) => limits.written(what, &written.key),
        Kind::OneOf(kinds) => {
            limits.items(what, "forms", kinds.len())?;
            match kinds.iter().any(|kind| matches!(kind, Kind::OneOf(_))) {
                true => Err(Error::Unusable { what, why: "a form of it is such a choice itself".into() }),
                false if kinds.is_empty() => Err(Error::Nothing { what }),
                false => kinds.iter().try_for_each(|kind| check(kind, limits)),
            }
        }
    }
}

struct Builder {
    words: Arc<Words>,
    factory: ParserFactory,
    limits: Limits,
    watch: Arc<Watch>,
}

impl Builder {
    fn new(vocab: Arc<Vocab>, limits: Limits) -> Result<Self, Error> {
        let words = Words::new(vocab);
        let mut factory =
            ParserFactory::new_simple(&words.env).map_err(|error| Error::Broken(plain(&error.to_string())))?;
        factory.quiet();
        let bounds = factory.limits_mut();
        bounds.verbose_errors = false;
        bounds.max_lexer_states = limits.max_lexer_states;
        let watch = Watch::new(limits.mask);
        Ok(Self { words: Arc::new(words), factory, limits, watch })
    }

    /// A grammar, with what may come before it by `spec`.
    fn grammar(&self, spec: &Spec, matcher: Arc<Mutex<Matcher>>) -> Arc<dyn Grammar> {
        let vocab = &self.words.vocab;
        let opening = spec.opening.as_deref().map(|text| vocab.id(text));
        let leads = spec.leads.iter().skip(usize::from(opening == Some(None))).map(|lead| Lead {
            until: lead.until.clone().into(),
            token: vocab.id(&lead.until).filter(|&id| vocab.kind(id) == Some(TokenKind::Control)),
            may_end: lead.may_end,
            gap: lead.gap,
        });
        let (leads, opening) = (leads.collect(), opening.flatten());
        Arc::new(Compiled {
            matcher,
            words: Arc::clone(&self.words),
            watch: Arc::clone(&self.watch),
            leads,
            opening,
            deadline: self.limits.mask,
        })
    }

    /// Builds a grammar and tries whether it lets anything through.
    fn build(&self, kind: &Kind) -> Result<Matcher, Error> {
        let what = kind.what();
        let unusable = |why: String| Error::Unusable { what, why };
        let grammar = self.grammar_of(kind)?;
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
            Err(error) => match plain(&error.to_string()) {
                // A rule that is only itself: no first byte is possible.
                why if why.contains(&format!("{:?}", StopReason::NoExtensionBias)) => Err(Error::Nothing { what }),
                why => Err(unusable(why)),
            },
        }
    }

    /// A form in llguidance's terms.
    fn grammar_of(&self, kind: &Kind) -> Result<TopLevelGrammar, Error> {
        let unusable = |why: String| Error::Unusable { what: kind.what(), why };
        Ok(match kind {
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
            Kind::Written(written) => TopLevelGrammar::from_lark((written.write)(&self.limits)?),
            Kind::OneOf(kinds) => {
                let names: Vec<String> = (0..kinds.len()).map(|i| format!("form{i}")).collect();
                let either: Vec<String> = names.iter().map(|name| format!("@{name}")).collect();
                let mut whole = TopLevelGrammar::from_lark(format!("start: {}", either.join(" | ")));
                for (kind, name) in kinds.iter().zip(names) {
                    let parts = self.grammar_of(kind)?.grammars;
                    let named = |part| GrammarWithLexer { name: Some(name.clone()), ..part };
                    whole.grammars.extend(parts.into_iter().map(named));
                }
                whole
            }
        })
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
    opening: Option<text::TokenId>,
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

/// Grammars that are kept.
const MAX_KEPT: usize = 32;
/// Time for the vocabulary's trie, which no request can make longer.
const MAX_PREPARING: Duration = Duration::from_secs(300);
/// Stack of a thread that builds; only what is used takes memory.
const STACK: usize = 64 << 20;
