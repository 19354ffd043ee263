//! A model's chat template: which source it comes from, and the texts of the special tokens that it may use.
//! Knows the names that files give; renders nothing.

use model::Model;
use text::template::{ChatTemplate, TemplateError};
use text::{TokenId, Vocab};

use crate::options::TemplateSource;

/// The sources of a model's template.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// For conversations.
    pub(crate) default: Option<String>,
    /// For those with tools; `None`: the default too.
    pub(crate) tool_use: Option<String>,
}

impl Sources {
    /// What `source` says, of this model.
    pub(crate) fn new(source: &TemplateSource, model: &Model) -> Self {
        match source {
            TemplateSource::File => Self::of_file(model),
            TemplateSource::Given(source) => Self { default: Some(source.clone()), tool_use: None },
            TemplateSource::None => Self::default(),
        }
    }

    fn of_file(model: &Model) -> Self {
        let [mut default, tool_use] =
            [model.chat_template(), model.tool_use_template()].map(|source| source.map(str::to_owned));
        let vocab = model.vocab();
        if default.is_none() && CHATML_MARKS.iter().all(|mark| vocab.id(mark).is_some()) {
            tracing::warn!(
                "the model file has no chat template: conversations are written as ChatML, whose marks its vocabulary has"
            );
            default = Some(CHATML.to_owned());
        }
        Self { default, tool_use }
    }

    /// The template; `None` where there is no source.
    pub(crate) fn compile(&self, vocab: &Vocab) -> Result<Option<ChatTemplate>, TemplateError> {
        let template = match (&self.default, &self.tool_use) {
            (Some(default), Some(tool_use)) => ChatTemplate::new(default)?.with_tool_use(tool_use)?,
            (Some(only), None) | (None, Some(only)) => ChatTemplate::new(only)?,
            (None, None) => return Ok(None),
        };
        Ok(Some(template.with_special_tokens(special_tokens(vocab))))
    }

    /// All that the templates show of the model's dialect.
    pub(crate) fn shown(&self) -> Option<String> {
        let sources: Vec<&str> = [&self.tool_use, &self.default].into_iter().flatten().map(String::as_str).collect();
        (!sources.is_empty()).then(|| sources.join("\n"))
    }
}

/// The template of a model that has no engine, with the texts of its special tokens; `None` where its file has none.
///
/// # Errors
/// What the template has against being compiled.
pub fn template_of(model: &Model) -> Result<Option<ChatTemplate>, TemplateError> {
    Sources::of_file(model).compile(model.vocab())
}

/// The text of a token; `None` where there is none.
pub(crate) fn text_of(vocab: &Vocab, id: Option<TokenId>) -> Option<String> {
    let bytes = id.and_then(|id| vocab.bytes(id))?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// The variables by which templates know special tokens. Templates add the first two to texts without asking whether there are any.
fn special_tokens(vocab: &Vocab) -> impl Iterator<Item = (String, String)> {
    let text = |id| text_of(vocab, id);
    let (bos, eos) = (text(vocab.bos()).unwrap_or_default(), text(vocab.eos()).unwrap_or_default());
    let tokens = [("bos_token", Some(bos)), ("eos_token", Some(eos)), ("pad_token", text(vocab.pad()))];
    tokens.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?)))
}

/// ChatML as a template, the form of conversations for files without one.
pub(crate) const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
     {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const CHATML_MARKS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];
