//! Sequence state: attention KV, recurrent and convolution state, transactions that roll back.
//! Owns the device tensors and who may use them. Knows positions; knows nothing of tokens, requests or architectures.
//!
//! A [`Memory`] has a number of slots, one for each sequence. A step begins a [`Txn`] over some of them, which says where
//! each row goes ([`StepView`]); after the pass, [`Txn::commit`] keeps the first rows of each sequence. Dropping it keeps
//! nothing.
//!
//! Attention KV: each slot owns a stripe of cells, the cell is the position, so dropping positions is forgetting a
//! length; in layers with a window the stripe may be a ring. Of latent attention a cell is one row, whose first elements are
//! the values. Recurrent state cannot be cut: it lies in planes, row `plane * n_slots + slot`. A step reads the plane that
//! holds a sequence's state and writes snapshots (the newest, one row back, two rows back, ...) into others, so rollback is a
//! change of plane and never a copy.
#![forbid(unsafe_code)]

mod bytes;
mod cache_type;
mod error;
mod footprint;
mod hold;
mod layout;
mod loading;
mod logged;
mod masks;
mod names;
mod ring;
mod rotation;
mod saved;
mod saved_cells;
mod shape;
mod shared;
mod shown;
mod size;
mod slots;
mod snapshot;
mod step_log;
mod stride;
mod taken;
mod taking;
mod txn;
mod view;

pub use bytes::{ByteReader, put_number};
pub use cache_type::CacheType;
pub use error::Error;
pub use footprint::Footprint;
pub use layout::{Kv, LayerState, Recurrent, StateLayout};
pub use loading::Loading;
pub use saved::{Checkpoint, SavedSequence};
pub use shape::StateShape;
pub use size::KV_STEP;
pub use slots::{MAX_KINDS, Memory, MemoryConfig, Slot};
pub use snapshot::Saving;
pub use txn::Txn;
pub use view::{OwnedView, Segment, StepView};
