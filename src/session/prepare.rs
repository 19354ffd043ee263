//! From a conversation or a text to a request for the engine, with what the reply to it may hold.
//! Owns the steps between: template, tokens, checkpoint boundaries, grammar, thinking, continuing a message. Works on threads
//! that may block, and gives up between two steps when nobody wants the request any more.

use std::sync::Arc;

use constrain::{Error, Kind};
use engine::{GenerateRequest, Grammar, RequestError, RequestOptions, Scope};
use model::{Model, Pictures, RunError};
use serde_json::{Value, json};
use text::template::{Chat, Prompt, TemplateError};
use text::{Special, TokenId};

use crate::conversation::{Conversation, Form, ToolChoice};
use crate::dialect::{ReplyOptions, Thinking, Tool, ToolChoice as Choice, ToolSchema, Tools};
use crate::messages::{BLIND, check, have_word, text_of, with_pictures_as};
use crate::open::LoadedModel;
use crate::roles::placed;
use crate::sight::{PixelBudget, Shown, Sight, SightError};
use crate::template::template_of;
use crate::waiting::Wanted;

/// A request that the engine can take, and how its reply is read.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// For the engine.
    pub request: GenerateRequest,
    /// How the reply is read; `None` takes everything as text.
    pub reply: Option<ReplyPlan>,
}

/// How a reply is read.
#[derive(Clone, Debug)]
pub struct ReplyPlan {
    /// What it may hold.
    pub options: ReplyOptions,
    /// The stop string that ends it after one tool call, if one does.
    pub after_call: Option<&'static str>,
}

/// Why there is no request.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// There is nothing that renders conversations.
    #[error("the model file has no chat template: continue a text of your own instead of a conversation")]
    NoTemplate,
    /// There are no tokens that mark a gap.
    #[error("this model's vocabulary has no tokens for filling in the middle")]
    NoInfill,
    /// What was given cannot be used.
    #[error("{message}")]
    Given {
        /// Where it was given.
        field: String,
        /// What is wrong, and what is expected.
        message: String,
    },
    /// The form that was asked for cannot be compiled.
    #[error("{field}: {error}")]
    Form {
        /// Who asked for it.
        field: &'static str,
        /// Why not.
        error: Error,
    },
    /// An image that cannot be seen.
    #[error("{name}: {error}")]
    Picture {
        /// Which of the conversation's images or frames.
        name: String,
        /// Why not.
        error: SightError,
    },
    /// The images do not fit the prompt.
    #[error("messages: {0}")]
    Places(SightError),
    /// The engine cannot serve it.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Nobody waits for it any more.
    #[error("nobody waits for this request any more")]
    Abandoned,
}

impl PrepareError {
    /// Of a picture with this name.
    fn picture((name, error): (String, SightError)) -> Self {
        match error {
            SightError::Run(RunError::Device(ggml::Error::Stopped)) => Self::Abandoned,
            error => Self::Picture { name, error },
        }
    }

    fn given(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Given { field: field.into(), message: message.into() }
    }
}

/// A rendered conversation.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// The prompt as text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// Token offsets that are worth a checkpoint.
    pub boundaries: Vec<usize>,
    /// Where the rows of each picture begin among the tokens.
    pub pictures: Vec<usize>,
    /// What each of them shows.
    pub shown: Vec<Shown>,
    /// The reply begins as reasoning.
    pub starts_in_reasoning: bool,
    /// The prompt ends within what the assistant says or thinks.
    pub continues: bool,
}

impl Prepared {
    /// The same request behind the tokens of an earlier one and its reply. A beginning-of-text token stands once.
    ///
    /// # Errors
    /// As [`GenerateRequest::new`].
    pub fn behind(self, mut before: Vec<TokenId>, bos: Option<TokenId>) -> Result<Self, RequestError> {
        let prompt = self.request.prompt();
        let n_cut = usize::from(!before.is_empty() && bos.is_some() && prompt.first().copied() == bos);
        let mut options = self.request.options().clone();
        options.checkpoint_boundaries.retain(|&boundary| boundary > n_cut);
        let n_before = before.len();
        options.pictures = self.request.pictures().behind(n_before - n_cut);
        options.checkpoint_boundaries.iter_mut().for_each(|boundary| *boundary = *boundary - n_cut + n_before);
        before.extend_from_slice(&prompt[n_cut..]);
        Ok(Self { request: GenerateRequest::new(before, options, self.request.limits())?, reply: self.reply })
    }

    /// The same request for the `i`th of several replies, whose seeds follow each other, within `scope`.
    ///
    /// # Errors
    /// As [`GenerateRequest::new`].
    pub fn choice(&self, i: usize, scope: Scope) -> Result<Self, RequestError> {
        let mut options = RequestOptions { scope, ..self.request.options().clone() };
        options.sampling.seed = options.sampling.seed.map(|seed| seed.wrapping_add(i as u64));
        let request = GenerateRequest::new(self.request.prompt().to_vec(), options, self.request.limits())?;
        Ok(Self { request, reply: self.reply.clone() })
    }
}

impl LoadedModel {
    /// A request that continues these tokens, with `form` as the form of the text.
    ///
    /// # Errors
    /// [`PrepareError`].
    pub fn prepare_text(&self, prompt: Vec<TokenId>, options: RequestOptions) -> Result<Prepared, PrepareError> {
        Ok(Prepared { request: GenerateRequest::new(prompt, options, self.engine.limits())?, reply: None })
    }

    /// A request that continues these tokens, in which each place for an image ([`Sight::shown`]) takes one of `pictures`.
    ///
    /// # Errors
    /// [`PrepareError`].
    pub fn prepare_seen(
        &self,
        prompt: Vec<TokenId>,
        pictures: Vec<Arc<[u8]>>,
        options: RequestOptions,
        wanted: Wanted<'_>,
    ) -> Result<Prepared, PrepareError> {
        let sight = self.sight.as_ref().ok_or_else(|| PrepareError::given("prompt", BLIND))?;
        let shown = Rendered {
            text: String::new(),
            tokens: prompt,
            boundaries: options.checkpoint_boundaries.clone(),
            pictures: Vec::new(),
            shown: Vec::new(),
            starts_in_reasoning: false,
            continues: true,
        };
        let pictures = sight.images(&pictures, &mut PixelBudget::default()).map_err(PrepareError::picture)?;
        let shown = expanded(sight, shown, [pictures, Vec::new()])?;
        let pictures = self.seen(&shown, wanted)?;
        let options = RequestOptions { pictures, checkpoint_boundaries: shown.boundaries, ..options };
        self.prepare_text(shown.tokens, options)
    }

    /// The grammar of a form; `None` without one. No thinking comes before it.
    ///
    /// # Errors
    /// [`PrepareError::Form`].
    pub fn grammar(&self, form: Option<&Form>) -> Result<Option<Arc<dyn Grammar>>, PrepareError> {
        form.map(|form| self.compiled(form.kind.clone(), Thinking::Done, form.field)).transpose()
    }

    /// The request for a reply to `conversation`.
    ///
    /// # Errors
    /// [`PrepareError`].
    pub fn prepare(
        &self,
        mut conversation: Conversation,
        options: RequestOptions,
        wanted: Wanted<'_>,
    ) -> Result<Prepared, PrepareError> {
        let messages = std::mem::take(&mut conversation.messages);
        let rendered = self.rendered_of(&conversation, messages, wanted)?;
        let grammar = self.grammar_of(&conversation, &rendered)?;
        go_on(wanted)?;
        let pictures = self.seen(&rendered, wanted)?;
        let mut options = RequestOptions { checkpoint_boundaries: rendered.boundaries, grammar, pictures, ..options };
        let tools = !conversation.tools.is_empty() && conversation.tool_choice != ToolChoice::None;
        // The parser closes the call that is open.
        let after_call = self.dialect.after_call().filter(|_| conversation.one_call && tools);
        options.stops.extend(after_call.map(str::to_owned));
        if conversation.reasoning.enable != Some(false) {
            // Without a limit it can still be ended from outside.
            let budget = conversation.reasoning.limit(self.knows_efforts()).unwrap_or(usize::MAX);
            options.thinking = self.dialect.thinking_limit(budget, rendered.starts_in_reasoning);
        }
        let request = GenerateRequest::new(rendered.tokens, options, self.engine.limits())?;
        let of_reply = ReplyOptions {
            starts_in_reasoning: rendered.starts_in_reasoning,
            continues: rendered.continues,
            reasoning: !conversation.reasoning.in_content,
            tools: tools || conversation.reads_calls,
            forced: matches!(conversation.tool_choice, ToolChoice::Required | ToolChoice::Named(_)),
            either: conversation.form.is_some(),
            tool_schemas: conversation.tools.iter().filter_map(ToolSchema::from_tool).collect(),
        };
        Ok(Prepared { request, reply: Some(ReplyPlan { options: of_reply, after_call }) })
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// [`PrepareError`].
    pub fn render(&self, mut conversation: Conversation, wanted: Wanted<'_>) -> Result<Rendered, PrepareError> {
        let messages = std::mem::take(&mut conversation.messages);
        self.rendered_of(&conversation, messages, wanted)
    }

    /// `given`: the conversation's messages, which are not held twice: they may be many.
    fn rendered_of(
        &self,
        conversation: &Conversation,
        given: Vec<Value>,
        wanted: Wanted<'_>,
    ) -> Result<Rendered, PrepareError> {
        check(&given, [conversation.pictures.len(), conversation.videos.len()], self.sight.is_some())
            .map_err(|message| PrepareError::given("messages", message))?;
        let messages = placed(given, self.template.as_ref(), self.knows_developers());
        if let Some(i) = conversation.tools.iter().position(|tool| ToolSchema::from_tool(tool).is_none()) {
            let message = format!(
                "tools[{i}]: {{\"type\": \"function\", \"function\": {{\"name\": ...}}}} expected, with a name"
            );
            return Err(PrepareError::given("tools", message));
        }
        match &self.sight {
            Some(sight) if !(conversation.pictures.is_empty() && conversation.videos.is_empty()) => {
                if let Some(word) = sight.place_words().find(|word| have_word(&messages, word)) {
                    return Err(PrepareError::Places(SightError::Word { word }));
                }
                let budget = &mut PixelBudget::default();
                let pictures = sight.images(&conversation.pictures, budget).map_err(PrepareError::picture)?;
                let frames = sight.frames(&conversation.videos, budget).map_err(PrepareError::picture)?;
                let rendered = self.rendered_messages(conversation, messages.clone(), wanted);
                let n_shown = [pictures.len(), frames.len()];
                match rendered {
                    Ok(rendered) if sight.n_places(&rendered.tokens) == n_shown => {
                        expanded(sight, rendered, [pictures, frames])
                    }
                    // The template knows no pictures or no videos: they stand in the text.
                    _ => {
                        let messages = with_pictures_as(messages, &sight.shown(), &sight.shown_video());
                        let rendered = self.rendered_messages(conversation, messages, wanted)?;
                        expanded(sight, rendered, [pictures, frames])
                    }
                }
            }
            _ => self.rendered_messages(conversation, messages, wanted),
        }
    }

    /// The pictures of a prompt as rows. One that does not fit the context costs nothing.
    fn seen(&self, rendered: &Rendered, wanted: Wanted<'_>) -> Result<Pictures, PrepareError> {
        let shown = &rendered.shown;
        let Some(sight) = self.sight.as_ref().filter(|_| !shown.is_empty()) else { return Ok(Pictures::default()) };
        GenerateRequest::new(rendered.tokens.clone(), RequestOptions::default(), self.engine.limits())?;
        let seen = shown.iter().map(|one| {
            wanted.before_picture();
            go_on(wanted)?;
            sight.see(one, wanted).map_err(|error| PrepareError::picture((one.name().to_owned(), error)))
        });
        let seen = seen.collect::<Result<_, _>>()?;
        sight.placed(&self.model, rendered.tokens.len(), &rendered.pictures, seen).map_err(PrepareError::Places)
    }

    fn rendered_messages(
        &self,
        conversation: &Conversation,
        messages: Vec<Value>,
        wanted: Wanted<'_>,
    ) -> Result<Rendered, PrepareError> {
        let no_tools = conversation.tool_choice == ToolChoice::None;
        let mut chat = Chat {
            messages,
            tools: if no_tools { Vec::new() } else { conversation.tools.clone() },
            add_generation_prompt: true,
            enable_thinking: conversation.reasoning.enable,
            kwargs: self.variables(conversation),
        };
        let last = chat.messages.last().filter(|_| conversation.continue_last && continues(&chat.messages)).cloned();
        let (mut prompt, starts_in_reasoning) = match &last {
            Some(last) => {
                chat.messages.pop();
                self.continued(chat, last, wanted)?
            }
            None => {
                chat.add_generation_prompt =
                    conversation.kwargs.get("add_generation_prompt") != Some(&Value::Bool(false));
                let prompt = self.rendered(&mut chat, wanted)?;
                let starts_in_reasoning = self.dialect.starts_in_reasoning(&prompt);
                (prompt, starts_in_reasoning)
            }
        };
        go_on(wanted)?;
        if let Some(sight) = &self.sight {
            let n_pictures = conversation.pictures.len();
            sight.write_out(&mut prompt, n_pictures, &conversation.videos).map_err(PrepareError::Places)?;
        }
        let continues = last.is_some_and(|last| {
            let reasoning = last.get("reasoning_content").or(last.get("reasoning"));
            !text_of(if starts_in_reasoning { reasoning } else { last.get("content") }).is_empty()
        });
        Ok(Rendered { continues, ..self.encode(prompt, starts_in_reasoning) })
    }

    fn rendered(&self, chat: &mut Chat, wanted: Wanted<'_>) -> Result<Prompt, PrepareError> {
        let template = self.template.as_ref().ok_or(PrepareError::NoTemplate)?;
        // Templates that know the variable differ in what they make of its absence.
        chat.enable_thinking.get_or_insert(true);
        let prompt = template.render_while(chat, &|| wanted.is_wanted());
        prompt.map_err(|error| PrepareError::given("messages", error.to_string()))
    }

    /// The prompt with the opening of the reply and the beginning of the reply itself.
    fn continued(&self, mut chat: Chat, last: &Value, wanted: Wanted<'_>) -> Result<(Prompt, bool), PrepareError> {
        let content = text_of(last.get("content"));
        let reasoning = text_of(last.get("reasoning_content").or(last.get("reasoning")));
        if reasoning.is_empty() && !content.is_empty() && chat.enable_thinking.is_none() {
            // What is there was said without thinking, as far as we know.
            chat.enable_thinking = Some(false);
        }
        let mut prompt = self.rendered(&mut chat, wanted)?;
        let mut in_reasoning = self.dialect.starts_in_reasoning(&prompt);
        if in_reasoning {
            prompt.text += &reasoning;
            if let Some(end) = self.dialect.reasoning_end().filter(|_| !content.is_empty()) {
                prompt.text += &end;
                in_reasoning = false;
            }
        }
        prompt.text += &content;
        Ok((prompt, in_reasoning))
    }

    /// What the conversation demands of the reply's form, after whatever thinking its prompt leaves possible.
    fn grammar_of(
        &self,
        conversation: &Conversation,
        rendered: &Rendered,
    ) -> Result<Option<Arc<dyn Grammar>>, PrepareError> {
        let thinking = match (conversation.reasoning.enable, rendered.starts_in_reasoning) {
            (_, true) => Thinking::Open,
            (Some(false), false) => Thinking::Done,
            (_, false) => self.dialect.thinking_after(false, &rendered.tokens),
        };
        let choice = match &conversation.tool_choice {
            ToolChoice::None => None,
            ToolChoice::Auto if conversation.tools.is_empty() => None,
            ToolChoice::Auto => Some(Choice::Auto),
            ToolChoice::Required => Some(Choice::Required),
            ToolChoice::Named(name) => Some(Choice::Named(name.clone())),
        };
        match (choice, &conversation.form) {
            (None, None) => Ok(None),
            (None, Some(form)) => self.compiled(form.kind.clone(), thinking, form.field).map(Some),
            // Nothing that could be called can be told from text.
            (Some(Choice::Auto), Some(form)) if !self.dialect.has_calls() => {
                self.compiled(form.kind.clone(), thinking, form.field).map(Some)
            }
            (Some(choice), form) => self.calls(conversation, choice, form.as_ref(), thinking),
        }
    }

    fn calls(
        &self,
        conversation: &Conversation,
        choice: Choice,
        or: Option<&Form>,
        thinking: Thinking,
    ) -> Result<Option<Arc<dyn Grammar>>, PrepareError> {
        let or = or.filter(|_| choice == Choice::Auto);
        // Nothing is demanded: calls come as the model writes them, and text too.
        let free = choice == Choice::Auto && or.is_none() && conversation.allowed_tools.is_none();
        let tools = conversation.tools.iter().map(Tool::from_json).collect::<Result<_, _>>();
        let spec = tools.and_then(|tools| {
            let allowed = conversation.allowed_tools.clone();
            let tools = Tools { tools, choice, parallel: !conversation.one_call, allowed };
            self.dialect.tool_spec(tools, or.map(|form| form.kind.clone()), thinking, self.grammars.limits())
        });
        let grammar = match spec {
            Ok(None) if free => return Ok(None),
            Ok(None) => return Err(unforced(or)),
            Ok(Some(spec)) => self.grammars.compile(&spec),
            Err(error) => Err(error),
        };
        match grammar {
            Ok(grammar) => Ok(Some(grammar)),
            // Nothing was demanded: calls of tools that no grammar can have are read as they come. What another try would
            // have is not left out.
            Err(error) if free && error.is_of_the_form() => {
                tracing::debug!(%error, "tool calls are not constrained");
                Ok(None)
            }
            Err(error) => {
                // Of the two the form may be at fault.
                or.map_or(Ok(()), |form| self.compiled(form.kind.clone(), thinking, form.field).map(|_| ()))?;
                Err(PrepareError::Form { field: "tools", error })
            }
        }
    }

    fn encode(&self, prompt: Prompt, starts_in_reasoning: bool) -> Rendered {
        let places = self.dialect.boundaries(&prompt);
        let (tokens, boundaries) = self.vocab().encode_with_cuts(&prompt.text, &places);
        if boundaries.is_empty() && !places.is_empty() {
            tracing::debug!("the prompt's parts and the whole differ in tokens: no checkpoint boundaries");
        }
        Rendered {
            text: prompt.text,
            tokens,
            boundaries,
            pictures: Vec::new(),
            shown: Vec::new(),
            starts_in_reasoning,
            continues: false,
        }
    }

    fn compiled(&self, kind: Kind, thinking: Thinking, field: &'static str) -> Result<Arc<dyn Grammar>, PrepareError> {
        self.grammars.compile(&self.dialect.spec(kind, thinking)).map_err(|error| PrepareError::Form { field, error })
    }
}

/// Calls that no grammar of this model can have, with the form that text was to have in their place.
fn unforced(or: Option<&Form>) -> PrepareError {
    match or {
        Some(Form { field, .. }) => {
            let message = format!(
                "{field}: this model's template has not the format of calls that can be told from a form: set tool_choice to `none`"
            );
            PrepareError::given(*field, message)
        }
        None => {
            let message =
                "tool_choice: this model's template has not the format of calls that can be forced: use `auto`";
            PrepareError::given("tool_choice", message)
        }
    }
}

/// The prompt of one message without thinking, of a model that has no engine yet; the message itself where the model has no
/// template.
///
/// # Errors
/// What the template has against it.
pub fn prompt_of(model: &Model, message: &str) -> Result<Vec<TokenId>, TemplateError> {
    let Some(template) = template_of(model)? else { return Ok(model.vocab().encode(message, Special::Parse)) };
    let chat = Chat {
        messages: vec![json!({ "role": "user", "content": message })],
        add_generation_prompt: true,
        enable_thinking: Some(false),
        ..Chat::default()
    };
    Ok(model.vocab().encode(&template.render(&chat)?.text, Special::Parse))
}

fn go_on(wanted: Wanted<'_>) -> Result<(), PrepareError> {
    if wanted.is_wanted() { Ok(()) } else { Err(PrepareError::Abandoned) }
}

/// With as many tokens for each picture and each frame as it has rows.
fn expanded(sight: &Sight, mut rendered: Rendered, shown: [Vec<Shown>; 2]) -> Result<Rendered, PrepareError> {
    let expanded = sight.expanded(&rendered.tokens, shown, &mut rendered.boundaries);
    (rendered.tokens, rendered.pictures, rendered.shown) = expanded.map_err(PrepareError::Places)?;
    Ok(rendered)
}

/// The last message is the beginning of the reply.
fn continues(messages: &[Value]) -> bool {
    let Some(last) = messages.last() else { return false };
    let calls = last.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    messages.len() > 1 && !calls && last.get("role").and_then(Value::as_str) == Some("assistant")
}
