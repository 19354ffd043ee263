//! Which device holds which tensor: layers on GPUs, from the last one on; the rest, or all experts, in the host's memory;
//! tensors of some names where a user says (`tensor_override.rs`).
//! Owns the choice and its arithmetic. Knows names and sizes; knows nothing of what layers compute.

use ggml::{Device, DeviceKind};

use crate::error::LoadError;
use crate::memory_plan::{Facts, MemoryPlanner};
use crate::tensor_override::{ByName, TensorOverride, device_by_name};
use crate::tensors::block_of;

/// How many layers go to the GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as fit beside their state and the buffers of passes.
    #[default]
    Auto,
    /// So many of the last ones, or it is an error; more than there are is all.
    Count(usize),
}

/// How several GPUs share.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Split {
    /// One GPU where a whole model fits on one, consecutive layers on all of them otherwise.
    #[default]
    Auto,
    /// Consecutive layers, by these shares of the weights and state, one for each GPU; by free memory without any.
    Layers(Vec<f64>),
    /// Each layer on all of them, which compute it together (tensor parallelism).
    Tensor,
}

/// GPU memory for copies of experts that lie in the host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertCacheSize {
    /// None.
    #[default]
    Off,
    /// What is free beside everything else.
    Auto,
    /// So many bytes on all GPUs together, or it is an error.
    Bytes(usize),
}

/// Where a model's tensors go.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// GPUs that take layers, in this order from first to last layer. None: the CPU has everything.
    pub gpus: Vec<Device>,
    /// How many layers they take.
    pub layers: GpuLayers,
    /// How several of them share.
    pub split: Split,
    /// Layers, from the first, whose experts stay in the host's memory.
    pub n_cpu_moe: usize,
    /// Copies of experts that stay there.
    pub expert_cache: ExpertCacheSize,
    /// Keep a second copy of the weights on the CPU whose rows are joined, where its kernels are faster so.
    pub repack: bool,
    /// Tensors that go elsewhere than all this says, by name; the first pattern that matches decides.
    pub overrides: Vec<TensorOverride>,
    /// What will be kept beside the weights.
    pub planner: MemoryPlanner,
}

/// A choice that was made.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The device of each block.
    blocks: Vec<Device>,
    /// The final norm and the head.
    output: Device,
    /// The embedding, when it is not the head too.
    input: Device,
    n_cpu_moe: usize,
    overrides: Vec<TensorOverride>,
    cpu: Device,
    /// Bytes on GPUs that nothing was planned for.
    left: Vec<(Device, usize)>,
}

/// Bytes of a block.
#[derive(Clone, Copy, Default)]
struct Need {
    weights: usize,
    /// What must be there.
    state: usize,
    /// What there may be.
    most: usize,
}

/// Left free on each GPU beside state and the buffers of passes: for drivers and libraries, and for graphs that are kept
/// with memory of their own where there are several devices.
const RESERVE: usize = 384 << 20;

impl Plan {
    /// Chooses. `tensors`: names and bytes.
    pub(crate) fn new<'a>(
        wanted: &Placement,
        tensors: impl Iterator<Item = (&'a str, usize)> + Clone,
        facts: &Facts,
    ) -> Result<Plan, LoadError> {
        let cpu = Device::cpu()?;
        let n_states = facts.layout.layers.len() + facts.head.len();
        let n_blocks = tensors.clone().filter_map(|(name, _)| block(name)).max().map_or(0, |il| il + 1).max(n_states);
        let overrides = &wanted.overrides;
        let all_on = |device| Plan {
            blocks: vec![device; n_blocks],
            output: device,
            input: device,
            n_cpu_moe: 0,
            overrides: overrides.clone(),
            cpu,
            left: Vec::new(),
        };
        let by_name = ByName::of(overrides, tensors.clone())?;
        let no_layers = wanted.gpus.is_empty() || wanted.layers == GpuLayers::Count(0);
        if no_layers && by_name.is_on_cpu() {
            return Ok(all_on(cpu));
        }
        let bytes = wanted.planner.bytes(facts)?;
        let reserve = RESERVE.saturating_add(bytes.passes).saturating_add(bytes.beside);
        by_name.check_room(|device| device.memory().0.saturating_sub(reserve))?;
        if no_layers {
            return Ok(all_on(cpu));
        }

        let mut blocks = vec![Need::default(); n_blocks];
        let (mut input, mut output) = (0, 0);
        let tied = !tensors.clone().any(|(name, _)| name == "output.weight");
        for (name, bytes) in tensors.filter(|(name, _)| device_by_name(overrides, name).is_none()) {
            match block(name) {
                Some(il) if is_expert(name) && il < wanted.n_cpu_moe => {}
                Some(il) => blocks[il].weights += bytes,
                None if is_input(name, tied) => input += bytes,
                None => output += bytes,
            }
        }
        let as_written = wanted.gpus.iter().all(|d| d.granule().is_some());
        let states = if as_written { &bytes.least } else { &bytes.blocks };
        for (need, (state, most)) in blocks.iter_mut().zip(states.iter().zip(&bytes.blocks)) {
            (need.state, need.most) = (*state, *most);
        }
        let sizes = |state: fn(&Need) -> usize| Sizes {
            blocks: blocks.iter().map(|b| b.weights + state(b)).collect(),
            input,
            output,
        };
        let (sizes, most) = (sizes(|b| b.state), sizes(|b| b.most));

        let mut gpus = wanted.gpus.clone();
        let mut free: Vec<usize> =
            gpus.iter().map(|d| d.memory().0.saturating_sub(reserve.saturating_add(by_name.on(*d)))).collect();
        if wanted.split == Split::Auto && gpus.len() > 1 {
            // A GPU of this machine before one of another.
            let fits = |i: &usize| sizes.all() <= free[*i];
            let alone = (0..gpus.len()).filter(fits).min_by_key(|&i| (gpus[i].is_remote(), i));
            if let Some(i) = alone.filter(|_| !matches!(wanted.layers, GpuLayers::Count(n) if n < n_blocks)) {
                (gpus, free) = (vec![gpus[i]], vec![free[i]]);
            }
        }
        let shares: Vec<f64> = match &wanted.split {
            Split::Layers(shares) if !shares.is_empty() => shares.clone(),
            _ => free.iter().map(|&f| f as f64).collect(),
        };
        if shares.len() != gpus.len() {
            return Err(LoadError::Shares { n_shares: shares.len(), n_gpus: gpus.len() });
        }
        let n_fit = sizes.packed(&free).len();
        let n_gpu = match wanted.layers {
            GpuLayers::Auto => n_fit,
            GpuLayers::Count(n) if n.min(n_blocks) <= n_fit => n.min(n_blocks),
            GpuLayers::Count(n) => {
                let n = n.min(n_blocks);
                let (needs, state) = (mib(sizes.of_last(n)), blocks[n_blocks - n..].iter().map(|b| b.state).sum());
                let (state, passes) = (mib(state), mib(reserve));
                return Err(LoadError::Room { n, needs, state, passes, free: mib(free.iter().sum()), n_fit });
            }
        };
        if n_gpu == 0 {
            tracing::warn!(free_mib = mib(free.iter().sum()), "no layer fits on the GPU: the CPU computes");
            return Ok(all_on(cpu));
        }
        let n_host = n_blocks - n_gpu;
        let mut plan = all_on(cpu);
        plan.n_cpu_moe = wanted.n_cpu_moe;
        let spread = sizes.spread(n_gpu, &shares);
        let spread = match sizes.first_overfull(&spread, &free) {
            None => spread,
            // Shares by free memory are cut at layers; where that is too much for one, layers are packed from the last on.
            Some(_)
                if matches!(&wanted.split, Split::Auto)
                    || matches!(&wanted.split, Split::Layers(s) if s.is_empty()) =>
            {
                let packed = sizes.packed(&free);
                packed[packed.len() - n_gpu..].to_vec()
            }
            Some(i) => {
                let (needs, free) = (mib(sizes.on(&spread, i)), mib(free[i]));
                return Err(LoadError::ShareRoom { device: gpus[i].name(), needs, free });
            }
        };
        let left = |i: usize| (gpus[i], free[i].saturating_sub(most.on(&spread, i)));
        plan.left = (0..gpus.len()).map(left).collect();
        plan.blocks[n_host..].iter_mut().zip(&spread).for_each(|(d, &gpu)| *d = gpus[gpu]);
        plan.output = *plan.blocks.last().unwrap_or(&cpu);
        plan.input = if n_host == 0 { plan.blocks[0] } else { cpu };
        let of = |d: &Device| plan.blocks.iter().filter(|b| *b == d).count();
        let on: Vec<String> = gpus.iter().map(|d| format!("{} on {}", of(d), d.name())).collect();
        let free_mib = mib(free.iter().sum());
        let n_cpu_moe = wanted.n_cpu_moe.min(n_blocks);
        tracing::info!(n_gpu, n_host, n_cpu_moe, free_mib, on = on.join(", "), "layers placed");
        Ok(plan)
    }

    /// Every device that holds a layer's state, the one that outputs come from first.
    pub(crate) fn devices(&self) -> Vec<Device> {
        let mut devices = vec![self.output];
        for device in &self.blocks {
            if !devices.contains(device) {
                devices.push(*device);
            }
        }
        devices
    }

    /// The device of block `il`'s state.
    pub(crate) fn block(&self, il: usize) -> Device {
        self.blocks.get(il).copied().unwrap_or(self.output)
    }

    /// Bytes on each GPU that nothing was planned for.
    pub(crate) fn left(&self) -> &[(Device, usize)] {
        &self.left
    }

    /// The device of a tensor. `tied`: there is no head but the embedding.
    pub(crate) fn device(&self, name: &str, tied: bool) -> Device {
        if let Some(device) = device_by_name(&self.overrides, name) {
            return device;
        }
        match block(name) {
            Some(il) if is_expert(name) && il < self.n_cpu_moe => self.cpu,
            Some(il) => self.block(il),
            None if is_input(name, tied) => self.input,
            None => self.output,
        }
    }
}

/// Every GPU of this machine.
pub fn gpus() -> Vec<Device> {
    Device::all().into_iter().filter(|d| d.kind() == DeviceKind::Gpu).collect()
}

/// `blk.17.attn_q.weight` is of block 17.
pub(crate) fn block(name: &str) -> Option<usize> {
    usize::try_from(block_of(name)?.0).ok()
}

/// True for what is read before the first layer, and not after the last one too.
pub(crate) fn is_input(name: &str, tied: bool) -> bool {
    name.starts_with("token_embd") && !tied || name.starts_with("per_layer_token_embd")
}

pub(crate) fn is_expert(name: &str) -> bool {
    name.contains("_exps.")
}

/// Bytes of a model's parts: each block with its state, what comes before the first, and what comes after the last.
struct Sizes {
    blocks: Vec<usize>,
    input: usize,
    output: usize,
}

impl Sizes {
    fn all(&self) -> usize {
        self.of_last(self.blocks.len())
    }

    /// The last `n` blocks with the output, and all of them with the input.
    fn of_last(&self, n: usize) -> usize {
        let n_host = self.blocks.len() - n;
        let input = if n_host == 0 { self.input } else { 0 };
        input + self.blocks[n_host..].iter().sum::<usize>() + self.output
    }

    /// As many of the last blocks as fit, filling GPUs from the last one on: the GPU of each.
    fn packed(&self, free: &[usize]) -> Vec<usize> {
        let mut gpu = free.len();
        let mut left = 0;
        let mut need = self.output;
        let mut places = Vec::new();
        for (il, bytes) in self.blocks.iter().enumerate().rev() {
            // The output goes where the last block goes, the input where the first does.
            need += bytes + if il == 0 { self.input } else { 0 };
            while left < need && gpu > 0 {
                gpu -= 1;
                left = free[gpu];
            }
            if left < need {
                break;
            }
            left -= need;
            need = 0;
            places.push(gpu);
        }
        places.reverse();
        places
    }

    /// The GPU of each of the last `n` blocks, first ones on the first, by shares of the bytes.
    fn spread(&self, n: usize, shares: &[f64]) -> Vec<usize> {
        let n_host = self.blocks.len() - n;
        let all: f64 = shares.iter().sum();
        let mut end = 0.0;
        let ends: Vec<f64> = shares
            .iter()
            .map(|share| {
                end += self.of_last(n) as f64 * share / all.max(f64::MIN_POSITIVE);
                end
            })
            .collect();
        let last = shares.iter().rposition(|&share| share > 0.0).unwrap_or(0);
        let mut before = if n_host == 0 { self.input } else { 0 };
        let place = |bytes: &usize| {
            let middle = (before + bytes / 2) as f64;
            before += bytes;
            ends.iter().position(|&end| middle < end).unwrap_or(last)
        };
        self.blocks[n_host..].iter().map(place).collect()
    }

    /// Bytes on GPU `gpu` when the last blocks lie as `places` says.
    fn on(&self, places: &[usize], gpu: usize) -> usize {
        let n_host = self.blocks.len() - places.len();
        let blocks = places.iter().zip(&self.blocks[n_host..]).filter(|(place, _)| **place == gpu);
        let input = if n_host == 0 && places.first() == Some(&gpu) { self.input } else { 0 };
        let output = if places.last() == Some(&gpu) { self.output } else { 0 };
        input + blocks.map(|(_, bytes)| bytes).sum::<usize>() + output
    }

    /// The first GPU that such places ask too much of.
    fn first_overfull(&self, places: &[usize], free: &[usize]) -> Option<usize> {
        (0..free.len()).find(|&gpu| self.on(places, gpu) > free[gpu])
    }
}

fn mib(bytes: usize) -> usize {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(blocks: &[usize], input: usize, output: usize) -> Sizes {
        Sizes { blocks: blocks.to_vec(), input, output }
    }

    #[test]
    fn as_many_of_the_last_blocks_are_taken_as_fit() {
        let sizes = sizes(&[100, 100, 50, 100], 20, 50);
        let n = |free: &[usize]| sizes.packed(free).len();
        assert_eq!(n(&[49]), 0, "not even the head");
        assert_eq!(n(&[150]), 1);
        assert_eq!(n(&[200]), 2);
        assert_eq!((n(&[419]), n(&[420])), (3, 4), "the first block brings the embedding");
        assert_eq!(sizes.packed(&[270, 150]), [0, 0, 0, 1], "two GPUs count together");
        assert_eq!(sizes.packed(&[269, 150]), [0, 0, 1], "a block is not cut");
        assert_eq!(sizes.packed(&[420, 100]), [0, 0, 0, 0], "a GPU too small for the head is left out");
    }

    #[test]
    fn gpus_share_by_bytes() {
        let sizes = sizes(&[100; 8], 0, 0);
        assert_eq!(sizes.spread(8, &[1000.0, 1000.0]), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(sizes.spread(8, &[600.0, 200.0]), [0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(sizes.spread(4, &[1.0, 1.0]), [0, 0, 1, 1], "of the last blocks only");
        assert_eq!(sizes.spread(8, &[5.0]), [0; 8]);
        assert_eq!(sizes.spread(8, &[1.0, 0.0]), [0; 8], "a share of nothing takes nothing");
    }

    #[test]
    fn input_and_output_count_where_they_lie() {
        let sizes = sizes(&[100; 4], 100, 300);
        let places = sizes.spread(4, &[1.0, 1.0]);
        assert_eq!(places, [0, 0, 0, 1]);
        assert_eq!((sizes.on(&places, 0), sizes.on(&places, 1)), (400, 400));
        assert_eq!(sizes.first_overfull(&places, &[400, 399]), Some(1));
        assert_eq!(sizes.first_overfull(&places, &[400, 400]), None);
    }

    #[test]
    fn names_tell_their_block() {
        assert_eq!(block("blk.17.attn_q.weight"), Some(17));
        assert_eq!(block("token_embd.weight"), None);
        assert!(is_expert("blk.0.ffn_up_exps.weight") && !is_expert("blk.0.ffn_up_shexp.weight"));
    }

    #[test]
    fn without_gpus_the_cpu_has_everything() {
        let tensors = [("blk.0.ffn_up_exps.weight", 100), ("output.weight", 10)];
        let plan = Plan::new(&Placement::default(), tensors.into_iter(), &Facts::default()).unwrap();
        let cpu = Device::cpu().unwrap();
        assert!(tensors.iter().all(|(name, _)| plan.device(name, false) == cpu));
        assert!(plan.devices() == [cpu] && plan.block(0) == cpu && plan.block(9) == cpu);
    }
}
