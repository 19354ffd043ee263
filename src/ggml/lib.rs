//! Safe ggml: weights over mapped files, state that outlives a step, graphs built under a brand, executors. A wrapper: what
//! computes is ggml, and the crate `kernels` for products of few tokens and recurrent layers. Knows nothing of models,
//! sequences or files' formats.
//!
//! Who owns what: [`Weights`] own maps and descriptions and are shared (`Arc`); a [`StateBuffer`] owns tensors that
//! change; an [`Executor`] owns a stream of work and the graphs that it has built, and holds a share of all weights and
//! states that they read. Dimensions are in ggml order, fastest first: a weight `[n_in, n_out]` maps a vector of `n_in`
//! to one of `n_out` by [`Graph::mul_mat`].
//!
//! ```
//! # fn main() -> Result<(), ggml::Error> {
//! use ggml::{Data, Device, Dtype, Executor, Name, WeightsBuilder};
//! let weights = WeightsBuilder::new(vec![]).build(Device::cpu()?)?;
//! let mut executor = Executor::new(weights, 1)?;
//! let mut sum = Vec::new();
//! let inputs = [(Name("a", 0), Data::F32(&[1.0, 2.0])), (Name("b", 0), Data::F32(&[10.0, 20.0]))];
//! let mut out = executor.run(&"add", 16, |g| {
//!     let a = g.input("a", Dtype::F32, [2, 1, 1, 1]);
//!     let b = g.input("b", Dtype::F32, [2, 1, 1, 1]);
//!     g.output("sum", g.add(a, b));
//! }, &inputs)?;
//! out.f32("sum", &mut sum)?;
//! assert_eq!(sum, [11.0, 22.0]);
//! # Ok(())
//! # }
//! ```
//!
//! A tensor cannot leave the closure that builds its graph, so two graphs cannot be mixed:
//!
//! ```compile_fail,E0521
//! # use ggml::{Device, Dtype, Executor, WeightsBuilder};
//! let weights = WeightsBuilder::new(vec![]).build(Device::cpu().unwrap()).unwrap();
//! let mut executor = Executor::new(weights, 1).unwrap();
//! let mut kept = None;
//! executor.reserve(16, &1, |g| kept = Some(g.input("a", Dtype::F32, [2, 1, 1, 1]))).unwrap();
//! ```

mod batch_invariance;
mod control_groups;
mod cores;
mod crowding;
mod cuda_granules;
mod device;
mod device_granules;
mod dtype;
mod error;
mod executor;
mod expert_cache;
mod granule_places;
mod granules;
mod graph;
mod joined_rows;
mod log;
mod low_rank;
mod mapping;
mod memory_file;
mod nodes;
mod numa;
mod ops;
mod pages;
mod pieces;
mod planner;
mod plugin;
mod pretended_granules;
mod progress;
mod quantize;
mod rank;
mod ranks;
mod raw;
mod rpc;
mod shared_pages;
mod shutdown;
mod split;
mod staging;
mod state;
mod state_granules;
mod state_id;
mod thread_count;
mod uploads;
mod weight_part;
mod weight_tensor;
mod weight_use;
mod weights;
mod weights_on_device;

pub use batch_invariance::{BatchInvariance, SMALL_FLOATS};
pub use control_groups::{ControlGroup, control_groups};
pub use cores::n_cores;
pub use device::{Device, DeviceKind, KeptAs};
pub use dtype::Dtype;
pub use error::{Error, version};
pub use executor::{Data, Executor, Outputs, Stats};
pub use expert_cache::ExpertLayer;
pub use granule_places::MOST_GRANULES;
pub use graph::{Graph, Name, Tensor};
pub use kernels::{LARGE_STATE, Turbo, gumbel, uniform};
pub use low_rank::{LowRank, LowRanks};
pub use mapping::Mapping;
pub use numa::Numa;
pub use ops::{
    Cells, DeltaRule, ExpertCopies, LoggedStep, Logs, NoiseKey, PastState, Rope, Scores, Snapshots, SsmScan,
    kernels_in_use, log_capacity, log_entry_bytes, replay, take_state_numbers,
};
pub use pieces::{Piece, Pieces};
pub use plugin::{load_plugin, load_plugins};
pub use pretended_granules::{pretend_granules, pretended_granules_left};
pub use progress::LoadProgress;
pub use quantize::{pack_rows, unpack};
pub use ranks::Ranks;
pub use rpc::{add_worker, serve_as_worker};
pub use shared_pages::SharedPages;
pub use state::{Held, StateBuffer, StateSpec};
pub use state_granules::Shown;
pub use state_id::StateId;
pub use weight_part::WeightPart;
pub use weight_tensor::WeightId;
pub use weight_use::WeightUse;
pub use weights::{Weights, WeightsBuilder};
