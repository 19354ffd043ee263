//! Projectors: files with a tower that sees, `mmproj` files of `general.architecture` `clip`. A tower is one file here and one
//! row in the table, with a schema of its own; weights are mapped and placed as those of models.
//! Owns the open projector. Knows patches; knows nothing of files of pictures, tokens or sequences.

mod file;
mod gemma3;
mod gemma4v;
mod opened;
mod parts;
mod qwen3vl;
mod schema;
mod shape;
mod table;
mod tower;

pub use opened::{Projector, ProjectorOptions};
pub use schema::ProjectorSchema;
