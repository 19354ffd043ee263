//! `nextn` the library: open a model, ask it, read the reply as it comes. The crates below are here under their names.
//!
//! `nextn = { version = "0.1", default-features = false }` in `Cargo.toml` leaves out the programs, which the package brings too.
//!
//! ```no_run
//! use nextn::{Conversation, Delta, ModelOptions};
//!
//! let model = nextn::open("model.gguf", &ModelOptions::default())?;
//! for delta in model.ask(&Conversation::of("What is 6 times 7?"))? {
//!     if let Delta::Step(step) = delta? {
//!         print!("{}", step.text());
//!     }
//! }
//! # Ok::<(), nextn::SessionError>(())
//! ```
#![forbid(unsafe_code)]

pub use {constrain, convert, engine, ggml, gguf, memory, model, session, speculate, text};

pub use session::dialect::ReplyEvent;
pub use session::{
    Conversation, Delta, End, Form, LoadedModel, ModelOptions, ModelSource, Reasoning, ReplyStream, SessionError, Step,
    ToolChoice, open,
};
