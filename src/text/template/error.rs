//! What can be wrong with a template, or with a conversation that it is to render.

/// Why a template does not compile or does not render.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is longer than `max`.
    #[error("chat template: {bytes} bytes, at most {max} are taken; use another template file")]
    SourceTooLong {
        /// Length of the source.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The source is not a template.
    #[error("chat template, line {line}: {detail}")]
    Syntax {
        /// Line in the template, from 1.
        line: usize,
        /// What is wrong there.
        detail: String,
    },
    /// The template itself refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {message} (template line {line})")]
    Raised {
        /// Line in the template, from 1.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// An operation in the template does not work on this conversation.
    #[error("chat template, line {line}: {detail}; check the messages, or use another template")]
    Render {
        /// Line in the template, from 1; 0 when unknown.
        line: usize,
        /// What went wrong there.
        detail: String,
    },
    /// Nobody wants the result any more.
    #[error("the rendering was given up")]
    GivenUp,
    /// The template took too many steps.
    #[error("chat template: stopped after {max} steps (line {line}); use another template or a shorter conversation")]
    TooManySteps {
        /// Line in the template, from 1.
        line: usize,
        /// The limit.
        max: u64,
    },
    /// The template made more text than is allowed.
    #[error(
        "chat template, line {line}: more than {max} bytes of text were made; use another template or a shorter conversation"
    )]
    TooMuchText {
        /// Line in the template, from 1.
        line: usize,
        /// The limit.
        max: usize,
    },
    /// A message cannot be given to the template.
    #[error("messages[{index}]: {detail}")]
    Message {
        /// Which message, from 0.
        index: usize,
        /// What is wrong with it.
        detail: String,
    },
}
