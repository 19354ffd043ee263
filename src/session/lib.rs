//! What every front end does alike: open a model, turn a conversation into a request, turn the engine's events into a reply.
//! Knows no terminal, no HTTP and no tensors.
//!
//! [`open`] makes a [`LoadedModel`] of a file and [`ModelOptions`]; [`LoadedModel::prepare`] makes a [`Prepared`] request of a
//! [`Conversation`]; [`LoadedModel::reply`] takes it to the engine and gives the [`Delta`]s of a [`ReplyStream`]. A front end
//! with a loop of its own submits the request itself and hands every event to [`Reply::take`].
#![forbid(unsafe_code)]

mod conversation;
pub mod dialect;
mod embedding;
mod file_progress;
mod files;
mod infill;
mod learning;
mod messages;
mod named_templates;
mod open;
mod open_error;
pub mod options;
mod prepare;
mod projector_file;
mod reply;
mod roles;
mod sight;
mod stream;
mod template;
mod variables;
mod video;
mod waiting;

pub use constrain::{Error as FormError, Kind, Limits};
pub use conversation::{Conversation, Effort, Form, Reasoning, ToolChoice, Video};
pub use file_progress::FileProgress;
pub use files::{DraftFiles, ModelSource, open_draft, open_weights};
pub use infill::Gap;
pub use learning::{KeptError, KeptReply, LearnOptions, Learning, LiveNumbers, LiveOptions, folder_of, read_replies};
pub use messages::{BLIND, text_of};
pub use named_templates::{named_template, template_names};
pub use open::{DraftDefaults, LoadedModel, open, start_engine, start_engine_with};
pub use open_error::{Fault, OpenError};
pub use options::{ModelOptions, TemplateSource};
pub use prepare::{PrepareError, Prepared, Rendered, ReplyPlan, prompt_of};
pub use projector_file::is_projector;
pub use reply::{Delta, End, Reply, Span, Step, Token};
pub use sight::{SeenPicture, Shown, Sight, SightError};
pub use stream::{ReplyError, ReplyStream, SessionError};
pub use template::template_of;
pub use variables::PRESERVE_THINKING;
pub use waiting::{ALWAYS, Waiting, Wanted};
