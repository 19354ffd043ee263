//! Models: opening files, blocks, one file per architecture, and the passes that compute them.
//! Owns what a tensor means and how a forward pass is made of ops. Knows nothing of requests, sampling or sequences.
//!
//! [`Model::open`] maps the file (all shards), reads hyper-parameters and vocabulary, and checks every tensor that the
//! graphs will read against them. A [`Runner`] computes passes: rows of tokens in, logits and hidden states out, with
//! the state of a [`memory::Memory`] made by [`Model::memory`].
#![forbid(unsafe_code)]

mod adapter;
mod adapter_set;
mod arch;
mod architecture;
mod attention_data;
mod blocks;
mod decoder;
mod decoder_config;
mod describe;
mod draft;
mod draft_file;
mod draft_vocab;
mod embedded;
mod error;
mod expert_cache;
mod feature_head;
mod features;
mod fingerprint;
mod head_file;
mod head_shape;
mod keys;
mod layer;
mod load;
mod memory_plan;
mod model;
mod mtp_layer;
mod pass;
mod pictures;
mod placed;
mod placement;
mod pooling;
mod projector;
mod rank_head;
mod replaced_head;
mod rope;
mod rope_options;
mod schema;
mod share;
mod step;
mod tensor_override;
mod tensor_parallel;
mod tensors;
mod zero_fill;

pub use adapter::Adapter;
pub use adapter_set::{AdapterSet, AdapterSetError};
pub use arch::{architectures, feature_heads, head_architectures, nextn_architectures};
pub use architecture::{Hparams, NextNHead};
pub use describe::Description;
pub use draft::{DraftBlock, WhichHead};
pub use draft_file::DraftFile;
pub use draft_vocab::DraftVocab;
pub use embedded::Embedded;
pub use error::{LoadError, RunError};
pub use fingerprint::Fingerprint;
pub use head_shape::{
    HeadAttention, HeadExperts, HeadFfn, HeadGate, HeadGlu, HeadInner, HeadLatent, HeadRotation, HeadRouter,
    HeadScores, HeadShape, HeadShared, HeadTemperature,
};
pub use load::{LoadOptions, map_shards};
pub use memory_plan::{Facts, MemoryBytes, MemoryPlan, MemoryPlanner};
pub use model::Model;
pub use pass::{Draft, DraftOutput, Noise, Pass, PassOutput, Rows, Runner};
pub use pictures::{BothWays, MIN_PICTURE_TOKENS, PictureError, PictureKind, Pictures, Placed};
pub use placed::{PlacedEntries, PlacedRows};
pub use placement::{ExpertCacheSize, GpuLayers, Placement, Split, gpus};
pub use pooling::{EmbeddingInfo, Pooling};
pub use projector::{Projector, ProjectorOptions, ProjectorSchema};
pub use rope_options::{RopeOptions, RopeScaling};
pub use schema::Schema;
pub use step::Likeliest;
pub use tensor_override::{TensorOverride, TensorPattern};
pub use tensors::{TensorSchema, block_of};

pub use ggml::{NoiseKey, Stats};
