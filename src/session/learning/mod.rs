//! Replies that are kept to train a model's head on (docs/decisions/0023-replies-are-kept-as-tokens.md).
//! [`Learning`] writes them beside an engine, [`read_replies`] gives them back, `kept` is the form that they have in files, `live`
//! has the head learn from them while no request waits.

mod counts;
mod kept;
mod live;
mod options;
mod read;
mod write;

pub use kept::KeptReply;
pub use live::LiveNumbers;
pub(crate) use live::Subject;
pub use options::{LearnOptions, LiveOptions};
pub use read::{KeptError, read_replies};
pub use write::{Learning, folder_of};
