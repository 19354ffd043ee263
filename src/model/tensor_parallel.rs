//! Tensor parallelism: several devices compute each layer together. Each has the same share of the layer's heads, of the inner
//! rows of its feed-forwards and of the state, and a copy of all else; what mixers and feed-forwards give is added up
//! ([`ggml::Graph::all_reduce`]). Source: Shoeybi et al. 2019 (Megatron-LM). Owns what is shared and how tensors are cut for it.

use std::sync::Arc;

use ggml::{Device, Weights};

use crate::architecture::Architecture;
use crate::decoder_config::{BlockConfig, DecoderConfig, MixerConfig};
use crate::error::LoadError;
use crate::memory_plan::Facts;
use crate::placement::{ExpertCacheSize, GpuLayers, Placement, Plan, Split};
use crate::share::{Share, refused};

/// Tensors of a block that are made of several segments, by their names in the block.
fn segments(block: &BlockConfig) -> Vec<(&'static str, Vec<usize>)> {
    let mut all = match block.mixer {
        MixerConfig::Attention(a) => {
            let rows = a.rows_of_qkv();
            vec![("attn_qkv.weight", rows.to_vec()), ("attn_qkv.bias", rows.to_vec())]
        }
        MixerConfig::DeltaNet(d) => d.segments(),
        MixerConfig::Latent(_) | MixerConfig::Mamba(_) | MixerConfig::ShortConv(_) | MixerConfig::None => Vec::new(),
    };
    let halves = |n_ff: usize| vec![n_ff, n_ff];
    if let Some(n_ff) = block.ffn.fused_rows() {
        all.extend([("ffn_up.weight", halves(n_ff)), ("ffn_up.bias", halves(n_ff))]);
    }
    if let Some(moe) = block.ffn.moe() {
        all.extend(["ffn_gate_up_exps.weight", "ffn_gate_up_exps.bias"].map(|name| (name, halves(moe.n_ff()))));
    }
    all
}

impl DecoderConfig {
    /// Tensors that are made of several segments, by their names.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        let of_block = |(il, block): (usize, &BlockConfig)| {
            segments(block).into_iter().map(move |(name, segments)| (format!("blk.{il}.{name}"), segments))
        };
        self.blocks().iter().enumerate().flat_map(of_block)
    }

    /// The sizes of a share.
    pub(crate) fn shared(self, share: Share) -> Result<Self, LoadError> {
        let of_block = |block: BlockConfig| {
            let mixer = match block.mixer {
                MixerConfig::Attention(a) => MixerConfig::Attention(a.shared(share)?),
                MixerConfig::DeltaNet(d) => MixerConfig::DeltaNet(d.shared(share)?),
                MixerConfig::None => MixerConfig::None,
                other if share == Share::WHOLE => other,
                MixerConfig::Latent(_) | MixerConfig::Mamba(_) | MixerConfig::ShortConv(_) => {
                    return Err(refused(
                        "this model has layers that GPUs cannot share, only take in turns: use --split-mode layer",
                    ));
                }
            };
            Ok(BlockConfig { mixer, ffn: block.ffn.shared(share)?, ..block })
        };
        let blocks = self.blocks.into_iter().map(of_block).collect::<Result<_, LoadError>>()?;
        Ok(Self { blocks, ..self })
    }
}

/// A share that is computed beside the first one.
pub(crate) struct Peer {
    pub(crate) arch: Box<dyn Architecture>,
    pub(crate) weights: Arc<Weights>,
    pub(crate) device: Device,
}

impl Placement {
    /// The shares that devices have of each layer; one where they take layers in turns.
    pub(crate) fn n_shares(&self) -> Result<usize, LoadError> {
        if self.split != Split::Tensor {
            return Ok(1);
        }
        let beside = [
            (self.n_cpu_moe > 0, "--cpu-moe and --n-cpu-moe"),
            (self.expert_cache != ExpertCacheSize::Off, "--expert-cache"),
            (!self.overrides.is_empty(), "--override-tensor"),
            (self.repack, "--repack"),
            (matches!(self.layers, GpuLayers::Count(n) if n != usize::MAX), "--gpu-layers"),
        ];
        if let Some((_, option)) = beside.iter().find(|(is_given, _)| *is_given) {
            return Err(refused(format!(
                "{option} cannot be used with it: all tensors lie on the GPUs, each of them on all"
            )));
        }
        if let Some(other) = self.gpus.iter().find(|gpu| !gpu.adds_up()) {
            let name = other.name();
            return Err(refused(format!(
                "{name} cannot compute parts of layers: NVIDIA's GPUs from sm_80 on can, by our CUDA backend"
            )));
        }
        match self.gpus.len() {
            n @ 2..=MAX_SHARES => Ok(n),
            n => Err(refused(format!("2 to {MAX_SHARES} GPUs expected, there are {n}"))),
        }
    }

    /// Where the tensors of a share go, of which names and bytes are given: all on its device. As [`Plan::new`] of the whole.
    pub(crate) fn plan<'a>(
        &self,
        share: Share,
        tensors: impl Iterator<Item = (&'a str, usize)> + Clone,
        facts: &Facts,
    ) -> Result<Plan, LoadError> {
        if share == Share::WHOLE {
            return Plan::new(self, tensors, facts);
        }
        let gpu = self.gpus[share.index];
        let (gpus, layers) = (vec![gpu], GpuLayers::Count(usize::MAX));
        let own = Placement { gpus, layers, split: Split::Auto, ..self.clone() };
        Plan::new(&own, tensors, facts).map_err(|error| match error {
            LoadError::Room { needs, state, passes, free, .. } => refused(format!(
                "the share of {} needs {needs} MiB, of which {state} MiB are sequence state (-c, --parallel and \
                 --cache-type-k/-v size it); {free} MiB are free there beside {passes} MiB for passes",
                gpu.name()
            )),
            other => other,
        })
    }
}

/// Devices that one sum is made of at most (`vendor/ggml-sys/cuda/all_reduce.cu`).
const MAX_SHARES: usize = 8;
