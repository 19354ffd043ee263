//! Chat templates: a conversation in, the prompt's text and its message boundaries out.
//! Knows nothing of tokens, and of no template in particular.

mod boundaries;
mod budget;
mod chat;
mod clock;
mod compiled;
mod env;
mod error;
mod filters;
mod format;
mod guard;
mod json;
mod markup;
mod messages;
mod methods;
mod ops;
mod repr;
mod texts;

pub use chat::{Chat, Prompt};
pub use clock::today;
pub use compiled::ChatTemplate;
pub use error::TemplateError;

use boundaries::Rendered;

impl ChatTemplate {
    /// Renders `chat` and finds its message boundaries by rendering parts of it again: five renderings for most conversations, a dozen
    /// where the template makes boundaries hard to find.
    ///
    /// This can take long on a long conversation: call it on a thread that may block.
    ///
    /// # Errors
    /// `Raised` when the template refuses the conversation; `Message` when a message is not an object or its tool call arguments are
    /// not JSON; `Render`, `TooManySteps` and `TooMuchText` when the template does not get through.
    pub fn render(&self, chat: &Chat) -> Result<Prompt, TemplateError> {
        self.render_while(chat, &|| true)
    }

    /// As [`ChatTemplate::render`], for as long as `wanted` says so: it is asked before each rendering.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and `GivenUp`.
    pub fn render_while(&self, chat: &Chat, wanted: &(dyn Fn() -> bool + Sync)) -> Result<Prompt, TemplateError> {
        // A thread of its own: a hostile template can make values so deep that dropping them needs this stack.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("chat template".to_owned());
            let render = || Rendered::new(self, chat, wanted)?.prompt();
            let stopped = |detail: String| TemplateError::Render { line: 0, detail };
            thread
                .stack_size(STACK)
                .spawn_scoped(scope, render)
                .map_err(|e| stopped(format!("no thread to render in: {e}")))?
                .join()
                .unwrap_or_else(|_| Err(stopped("the template engine panicked".to_owned())))
        })
    }
}

/// Only what is used of it takes memory.
const STACK: usize = 256 << 20;
