//! Dialects: what the text of a model family looks like - the tags of its reasoning, its tool calls. A family is a description as data
//! in a file of its own and a row in [`FAMILIES`]; from it come the parser of replies, the grammar of calls, and what a prompt leaves
//! open. A dialect is found from the template's text and the vocabulary, never from the name of an architecture.

mod deepseek;
mod dsml;
mod family;
mod functionary;
mod gemma;
mod glm;
mod grammar;
mod harmony;
mod hermes;
mod kimi;
mod kimi_k3;
mod lfm2;
mod lists;
mod llama3;
mod minicpm;
mod minimax;
mod mistral;
mod muse;
mod plain;
mod qwen;
mod reply;
mod seed;
mod texts;
mod tools;

use constrain::{Error, Kind, Lead, Limits, Spec, Written};
use text::template::Prompt;
use text::{Special, TokenId, Vocab};

use family::{Family, Form, Reasoning, THINK};
pub use reply::{ReplyEvent, ReplyOptions, ReplyParser, ToolSchema};
use texts::Texts;
pub use tools::{Tool, ToolChoice, Tools};

/// The families, in the order in which a template is compared with them.
static FAMILIES: [Family; 28] = [
    dsml::FAMILY,
    deepseek::FAMILY,
    kimi::FAMILY,
    kimi_k3::FAMILY,
    minimax::FAMILY,
    minimax::M3,
    muse::FAMILY,
    harmony::FAMILY,
    mistral::FAMILY,
    gemma::FAMILY,
    glm::FAMILY,
    seed::FAMILY,
    functionary::FAMILY,
    minicpm::FAMILY,
    lfm2::FAMILY,
    lists::COMMAND,
    lists::COMMAND_PLUS,
    lists::NEMOTRON,
    lists::APRIEL,
    lists::APERTUS,
    lists::GIGACHAT,
    lists::GRANITE,
    lists::MINIMAX_M1,
    lists::FIREFUNCTION,
    qwen::FAMILY,
    hermes::FAMILY,
    llama3::FAMILY,
    plain::FAMILY,
];

/// What the text of one model looks like.
#[derive(Clone, Debug)]
pub struct Dialect {
    family: &'static Family,
    reasoning: Option<&'static Reasoning>,
    /// The form of calls that the template shows.
    form: Option<&'static Form>,
    texts: Texts,
    /// The tokens that open and close reasoning.
    tokens: Option<(TokenId, TokenId)>,
    /// The tokens that close reasoning when a limit is reached.
    forced: Vec<TokenId>,
}

/// Whether the model may think before what is constrained begins. Thinking cannot be the end of the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// It does not think, or has done so in the prompt.
    #[default]
    Done,
    /// The prompt has opened a block of thinking.
    Open,
    /// It may open one by itself.
    Possible,
}

impl Dialect {
    /// The dialect of a model with this template, or with none, and this vocabulary. A template that shows nothing of a family is
    /// plain, unless the vocabulary has the tokens of calls; a log line says so.
    pub fn detect(template: Option<&str>, vocab: &Vocab) -> Self {
        let shown = |family: &&Family| {
            let shows = |sign: &&[&str]| sign.iter().all(|text| template.is_some_and(|source| source.contains(text)));
            family.signs.iter().any(shows)
        };
        let has_tokens =
            |family: &&Family| !family.tokens.is_empty() && family.tokens.iter().all(|token| vocab.id(token).is_some());
        let found = FAMILIES.iter().find(shown).or_else(|| FAMILIES.iter().find(has_tokens));
        let family = found.unwrap_or(&FAMILIES[FAMILIES.len() - 1]);
        if found.is_none() {
            tracing::info!("the chat template is of no known family: tool calls are not read");
        }
        let has = |tags: &Reasoning| {
            template.is_some_and(|source| source.contains(tags.close) || source.contains(tags.shown_by))
                || vocab.id(tags.token).zip(vocab.id(tags.close)).is_some()
        };
        let reasoning = [&family.reasoning, &THINK_TAGS].into_iter().find(|tags| has(tags));
        let forms = family.calls.as_ref().map_or(&[][..], |calls| calls.forms);
        let form = template.and_then(|source| forms.iter().find(|form| form.is_shown_by(source)));
        let tokens = reasoning.and_then(|tags| vocab.id(tags.token).zip(vocab.id(tags.close)));
        let closing = reasoning.map(closing).unwrap_or_default();
        let forced = vocab.encode_after_text(&closing, Special::Parse);
        Self { family, reasoning, form, texts: Texts::new(family, vocab), tokens, forced }
    }

    /// The name of its family.
    pub fn name(&self) -> &'static str {
        self.family.name
    }

    /// Takes one reply apart.
    pub fn parser(&self, options: ReplyOptions) -> ReplyParser {
        ReplyParser::new(self.family, self.reasoning, options)
    }

    /// Whether the reply to this prompt begins as reasoning. Only the opening of the reply counts: a user may write the tag too.
    pub fn starts_in_reasoning(&self, prompt: &Prompt) -> bool {
        let Some(tags) = self.reasoning else { return false };
        match prompt.reply_at {
            Some(at) => prompt.text[at..].rfind(tags.open) > prompt.text[at..].rfind(tags.close),
            None => prompt.text.trim_end().ends_with(tags.open),
        }
    }

    /// What closes reasoning, with the white space around it that templates write; `None`: it has no tags.
    pub fn reasoning_end(&self) -> Option<String> {
        self.reasoning.map(closing)
    }

    /// The tokens that open and close reasoning, where the vocabulary has them.
    pub fn reasoning_tokens(&self) -> Option<(TokenId, TokenId)> {
        self.tokens
    }

    /// A limit on reasoning, which the prompt has `open`ed or not; `None` where the vocabulary has no token that ends it.
    pub fn thinking_limit(&self, max_tokens: usize, open: bool) -> Option<engine::Thinking> {
        let (start, end) = self.tokens?;
        Some(engine::Thinking { max_tokens, open, start, end, forced: self.forced.clone() })
    }

    /// Of the boundaries of a prompt those worth a checkpoint: the first, the last two that hold whatever comes, and the last that
    /// holds within a loop of tool calls. The engine keeps a checkpoint at its first and at three more.
    pub fn boundaries(&self, prompt: &Prompt) -> Vec<usize> {
        let (lasting, looping) = prompt.boundaries.split_at(prompt.n_lasting.min(prompt.boundaries.len()));
        let mut lasting = lasting.to_vec();
        // The beginning of the reply's opening is repeated too: a few tokens less to compute in every turn.
        if looping.is_empty() && lasting.len() > 1 && prompt.repeated < prompt.text.len() {
            lasting.pop();
            lasting.push(prompt.repeated);
        }
        let n_last = 3 - usize::from(!looping.is_empty());
        let first = lasting.first().into_iter().chain(lasting.iter().skip(1).rev().take(n_last).rev());
        first.chain(looping.last()).copied().collect()
    }

    /// How a prompt with these tokens leaves thinking: opened, closed, or not mentioned at its end, and then possible.
    pub fn thinking_after(&self, starts_in_reasoning: bool, prompt: &[TokenId]) -> Thinking {
        let Some((open, close)) = self.tokens else {
            return if starts_in_reasoning { Thinking::Open } else { Thinking::Possible };
        };
        let last = &prompt[prompt.len().saturating_sub(LOOK_BACK)..];
        let at = |tag| last.iter().rposition(|&token| token == tag);
        match (at(open), at(close)) {
            _ if starts_in_reasoning => Thinking::Open,
            (Some(open), close) if close.is_none_or(|close| close < open) => Thinking::Open,
            (_, Some(_)) => Thinking::Done,
            (_, None) => Thinking::Possible,
        }
    }

    /// A form of the reply, with thinking before it.
    pub fn spec(&self, kind: Kind, thinking: Thinking) -> Spec {
        let mut spec = Spec::new(kind);
        let Some(tags) = self.reasoning.filter(|_| thinking != Thinking::Done) else { return spec };
        spec.leads.push(Lead { until: tags.close.into(), may_end: false, gap: MAX_GAP });
        spec.opening = (thinking == Thinking::Possible).then(|| tags.token.into());
        spec
    }

    /// Tool calls as this dialect writes them, with thinking before them; with a free choice, text before them too, or, where the
    /// text has to have the form `or`, that in their place. `None`: the template shows no form of calls that can be forced, or none
    /// that can be told from text.
    ///
    /// # Errors
    /// What is wrong with the tools, for whoever wrote them.
    pub fn tool_spec(
        &self,
        mut tools: Tools,
        or: Option<Kind>,
        thinking: Thinking,
        limits: &Limits,
    ) -> Result<Option<Spec>, Error> {
        let Some(form) = self.form else { return Ok(None) };
        let or = or.filter(|_| tools.choice == ToolChoice::Auto);
        // What begins a call has to differ from what begins the text: lexemes are as long as possible, and are not tried anew.
        if or.is_some() && form.opening.is_empty() {
            return Ok(None);
        }
        if or.is_some() {
            tools.choice = ToolChoice::Required;
        }
        let free = tools.choice == ToolChoice::Auto;
        if free && (form.opening.is_empty() || !self.texts.is_one(form.opening)) {
            return Ok(None);
        }
        tools.check(limits)?;
        let key = format!("{:?} {tools:?}", std::ptr::from_ref(form));
        let texts = self.texts.clone();
        let write = move |limits: &Limits| grammar::grammar(form, &texts, &tools, limits);
        let kind = Kind::Written(Written { what: "list of tools", key, write: std::sync::Arc::new(write) });
        if let Some(or) = or {
            return Ok(Some(self.spec(Kind::OneOf(vec![kind, or]), thinking)));
        }
        if !free {
            return Ok(Some(self.spec(kind, thinking)));
        }
        // Free text has room for thinking that the model opens by itself.
        let mut spec = self.spec(kind, if thinking == Thinking::Open { thinking } else { Thinking::Done });
        spec.leads.iter_mut().for_each(|lead| lead.may_end = true);
        spec.leads.push(Lead { until: form.opening.into(), may_end: true, gap: 0 });
        Ok(Some(spec))
    }

    /// Whether tool calls can be read from replies.
    pub fn has_calls(&self) -> bool {
        self.family.calls.is_some()
    }

    /// A text that ends a reply after one call; `None` where a call has no end of its own.
    pub fn after_call(&self) -> Option<&'static str> {
        let calls = self.family.calls.as_ref()?;
        calls.ends.iter().find(|end| end.len() > 1).copied()
    }
}

/// `<think>` for templates of families with other tags, or none.
static THINK_TAGS: Reasoning = THINK;

/// What closes reasoning, with the white space around it.
fn closing(tags: &Reasoning) -> String {
    [tags.around[0], tags.close, tags.around[1]].concat()
}

/// Tokens at a prompt's end among which a template leaves its tags: they are followed by line breaks only.
const LOOK_BACK: usize = 4;
/// White space between thinking and what is constrained, in bytes.
const MAX_GAP: usize = 8;
