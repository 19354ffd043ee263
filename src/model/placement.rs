//! Which device holds which tensor: layers on GPUs, from the last one on; the rest, or all experts, in the host's memory.
//! Owns the choice and its arithmetic. Knows names and sizes; knows nothing of what layers compute.

use ggml::{Device, DeviceKind};
use memory::LayerState;

use crate::error::LoadError;

/// How many layers go to the GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as fit beside their state and the buffers of passes.
    #[default]
    Auto,
    /// So many of the last ones, or it is an error; more than there are is all.
    Count(usize),
}

/// Where a model's tensors go.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// GPUs that take layers, in this order from first to last layer. None: the CPU has everything.
    pub gpus: Vec<Device>,
    /// How many layers they take.
    pub layers: GpuLayers,
    /// Layers, from the first, whose experts stay in the host's memory.
    pub n_cpu_moe: usize,
    /// Positions of all sequences together that will be kept beside the weights.
    pub n_cells: usize,
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
    cpu: Device,
}

/// Bytes of a block, or of all that is in none.
#[derive(Clone, Copy, Default)]
struct Need {
    weights: usize,
    state: usize,
}

/// Left free on each GPU for the buffers of passes.
const RESERVE: usize = 768 << 20;

/// Planes of recurrent state that drafting needs at most.
const N_PLANES: usize = 16;

impl Plan {
    /// Chooses. `tensors`: names and bytes; `states`: of the trunk's layers, then of the NextN head's, if there is one.
    pub(crate) fn new<'a>(
        wanted: &Placement,
        tensors: impl Iterator<Item = (&'a str, usize)> + Clone,
        states: &[LayerState],
    ) -> Result<Plan, LoadError> {
        let cpu = Device::cpu()?;
        let n_blocks =
            tensors.clone().filter_map(|(name, _)| block(name)).max().map_or(0, |il| il + 1).max(states.len());
        let all_on = |device| Plan { blocks: vec![device; n_blocks], output: device, input: device, n_cpu_moe: 0, cpu };
        if wanted.gpus.is_empty() || wanted.layers == GpuLayers::Count(0) {
            return Ok(all_on(cpu));
        }

        let mut blocks = vec![Need::default(); n_blocks];
        let mut rest = Need::default();
        for (name, bytes) in tensors {
            match block(name) {
                Some(il) if is_expert(name) && il < wanted.n_cpu_moe => {}
                Some(il) => blocks[il].weights += bytes,
                None => rest.weights += bytes,
            }
        }
        for (need, state) in blocks.iter_mut().zip(states) {
            need.state = state_bytes(state, wanted.n_cells);
        }

        let free: Vec<usize> = wanted.gpus.iter().map(|d| d.memory().0.saturating_sub(RESERVE)).collect();
        let n_fit = n_that_fit(&blocks, rest, &free);
        let n_gpu = match wanted.layers {
            GpuLayers::Auto => n_fit,
            GpuLayers::Count(n) if n.min(n_blocks) <= n_fit => n.min(n_blocks),
            GpuLayers::Count(n) => {
                let n = n.min(n_blocks);
                let needs =
                    mib(rest.weights + blocks[n_blocks - n..].iter().map(|b| b.weights + b.state).sum::<usize>());
                return Err(LoadError::Room { n, needs, free: mib(free.iter().sum()), n_fit });
            }
        };
        if n_gpu == 0 {
            tracing::warn!(free_mib = mib(free.iter().sum()), "no layer fits on the GPU: the CPU computes");
            return Ok(all_on(cpu));
        }
        let n_host = n_blocks - n_gpu;
        let mut plan = all_on(cpu);
        plan.n_cpu_moe = wanted.n_cpu_moe;
        let spread = spread(&blocks[n_host..], rest, &free);
        plan.blocks[n_host..].iter_mut().zip(&spread).for_each(|(d, &gpu)| *d = wanted.gpus[gpu]);
        plan.output = *plan.blocks.last().unwrap_or(&cpu);
        plan.input = if n_host == 0 { plan.blocks[0] } else { cpu };
        tracing::info!(n_gpu, n_host, n_cpu_moe = wanted.n_cpu_moe, free_mib = mib(free.iter().sum()), "layers placed");
        Ok(plan)
    }

    /// The device that outputs come from.
    pub(crate) fn output(&self) -> Device {
        self.output
    }

    /// The device of block `il`'s state.
    pub(crate) fn block(&self, il: usize) -> Device {
        self.blocks.get(il).copied().unwrap_or(self.output)
    }

    /// The device of a tensor. `tied`: there is no head but the embedding.
    pub(crate) fn device(&self, name: &str, tied: bool) -> Device {
        match block(name) {
            Some(il) if is_expert(name) && il < self.n_cpu_moe => self.cpu,
            Some(il) => self.block(il),
            None if name.starts_with("token_embd") && !tied => self.input,
            None => self.output,
        }
    }
}

/// Every GPU of this machine.
pub fn gpus() -> Vec<Device> {
    Device::all().into_iter().filter(|d| d.kind() == DeviceKind::Gpu).collect()
}

/// `blk.17.attn_q.weight` is of block 17.
fn block(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

fn is_expert(name: &str) -> bool {
    name.contains("_exps.")
}

fn state_bytes(state: &LayerState, n_cells: usize) -> usize {
    match state {
        LayerState::None => 0,
        LayerState::Kv(kv) => n_cells * kv.n_head_kv * (kv.d_k + kv.d_v) * 2,
        LayerState::Recurrent(r) => N_PLANES * 4 * (r.n_conv * r.n_channels + r.d_state * r.d_state * r.n_heads),
    }
}

/// The last blocks that fit, with what is in no block, into what all GPUs have free together.
fn n_that_fit(blocks: &[Need], rest: Need, free: &[usize]) -> usize {
    let mut left = free.iter().sum::<usize>();
    let Some(after) = left.checked_sub(rest.weights) else { return 0 };
    left = after;
    let fits = |need: &&Need| {
        let after = left.checked_sub(need.weights + need.state);
        after.is_some_and(|after| {
            left = after;
            true
        })
    };
    blocks.iter().rev().take_while(fits).count()
}

/// The number of the GPU for each block, first blocks on the first: each takes by what it has free.
fn spread(blocks: &[Need], rest: Need, free: &[usize]) -> Vec<usize> {
    let total: usize = blocks.iter().map(|b| b.weights + b.state).sum::<usize>() + rest.weights;
    let all_free = free.iter().sum::<usize>().max(1);
    let mut ends = Vec::with_capacity(free.len());
    let mut end = 0.0;
    for f in free {
        end += total as f64 * *f as f64 / all_free as f64;
        ends.push(end);
    }
    let mut before = 0;
    let place = |b: &Need| {
        let middle = (before + (b.weights + b.state) / 2) as f64;
        before += b.weights + b.state;
        ends.iter().position(|&end| middle < end).unwrap_or(free.len() - 1)
    };
    blocks.iter().map(place).collect()
}

fn mib(bytes: usize) -> usize {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(weights: usize) -> Need {
        Need { weights, state: 10 }
    }

    #[test]
    fn as_many_of_the_last_blocks_are_taken_as_fit() {
        let blocks = [need(90), need(90), need(40), need(90)];
        let rest = Need { weights: 50, state: 0 };
        assert_eq!(n_that_fit(&blocks, rest, &[49]), 0, "not even the head");
        assert_eq!(n_that_fit(&blocks, rest, &[150]), 1);
        assert_eq!(n_that_fit(&blocks, rest, &[200]), 2);
        assert_eq!(n_that_fit(&blocks, rest, &[150, 250]), 4, "two GPUs count together");
    }

    #[test]
    fn two_gpus_share_by_what_they_have_free() {
        let blocks = [need(90); 8];
        assert_eq!(spread(&blocks, Need::default(), &[1000, 1000]), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(spread(&blocks, Need::default(), &[600, 200]), [0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(spread(&blocks, Need::default(), &[5000]), [0; 8]);
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
        let plan = Plan::new(&Placement::default(), tensors.into_iter(), &[LayerState::None]).unwrap();
        let cpu = Device::cpu().unwrap();
        assert!(tensors.iter().all(|(name, _)| plan.device(name, false) == cpu));
        assert!(plan.output() == cpu && plan.block(0) == cpu && plan.block(9) == cpu);
    }
}
