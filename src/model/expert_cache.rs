//! Which layers' experts in the host's memory have copies on a GPU, and how many: `--expert-cache`.
//! Owns the choice and its arithmetic. Which experts are copied, and when they change, is `ggml`'s.

use std::collections::BTreeMap;

use ggml::{Device, DeviceKind, Dtype, ExpertLayer, WeightUse, WeightsBuilder};

use crate::error::LoadError;
use crate::placement::{ExpertCacheSize, Plan, block, is_expert};

/// Experts of a layer that may have copies, of whom none has one yet.
struct Layer {
    experts: ExpertLayer,
    /// Of one expert.
    bytes: usize,
}

impl Layer {
    /// Bytes of all experts.
    fn all_bytes(&self) -> usize {
        self.bytes * self.experts.n_expert
    }
}

/// Copies of experts beside what `plan` places. `has_adapters`: some tensors are updated by LoRA adapters.
///
/// # Errors
/// No experts in the host's memory, or no room for so many bytes, where a number is wanted.
pub(crate) fn expert_copies(
    wanted: ExpertCacheSize,
    plan: &Plan,
    weights: &WeightsBuilder,
    tied: bool,
    has_adapters: bool,
) -> Result<Vec<ExpertLayer>, LoadError> {
    if wanted == ExpertCacheSize::Off {
        return Ok(Vec::new());
    }
    if has_adapters {
        tracing::warn!("--expert-cache has no effect: copies of experts are not updated by LoRA adapters");
        return Ok(Vec::new());
    }
    let layers = layers(plan, weights, tied);
    if layers.is_empty() {
        if wanted == ExpertCacheSize::Auto {
            tracing::info!("--expert-cache has no effect: no layer on a GPU has experts in host memory to copy");
            return Ok(Vec::new());
        }
        return Err(LoadError::NoExpertsToCopy);
    }
    let all: usize = layers.iter().map(Layer::all_bytes).sum();
    let mut copied = Vec::new();
    for &(device, free) in plan.left() {
        let here: Vec<&Layer> = layers.iter().filter(|l| l.experts.device == device).collect();
        let of_one: usize = here.iter().map(|l| l.bytes).sum();
        let Some(n_expert) = here.iter().map(|l| l.experts.n_expert).max() else { continue };
        let budget = match wanted {
            ExpertCacheSize::Off => 0,
            ExpertCacheSize::Auto => free,
            // Each GPU gets the share that its layers have of all.
            ExpertCacheSize::Bytes(bytes) => {
                let of_device: usize = here.iter().map(|l| l.all_bytes()).sum();
                let share = (bytes as u128 * of_device as u128 / all.max(1) as u128) as usize;
                // More than there is to copy is all of it.
                share.min(of_one * n_expert)
            }
        };
        let tables: usize = here.iter().map(|l| ExpertLayer::bytes(0, l.experts.n_expert, 0)).sum();
        let n_copies = (budget.saturating_sub(tables) / of_one.max(1)).saturating_sub(1);
        let least = (tables + 2 * of_one).div_ceil(1 << 20);
        if budget > free || n_copies == 0 {
            let (device, free) = (device.name(), free >> 20);
            if wanted == ExpertCacheSize::Auto {
                tracing::warn!(device, free, least, "no room for copies of experts (MiB)");
                continue;
            }
            return Err(LoadError::ExpertCacheRoom { device, wanted: budget >> 20, free, least });
        }
        let of_layer = |l: &Layer| ExpertLayer { n_copies: n_copies.min(l.experts.n_expert - 1), ..l.experts.clone() };
        let taken = |l: &Layer| ExpertLayer::bytes(l.bytes, l.experts.n_expert, of_layer(l).n_copies);
        let mib = here.iter().map(|l| taken(l)).sum::<usize>() >> 20;
        let (n_layers, n_copies) = (here.len(), n_copies.min(n_expert - 1));
        tracing::info!(n_layers, n_copies, of = n_expert, mib, on = device.name(), "experts copied");
        copied.extend(here.into_iter().map(of_layer));
    }
    Ok(copied)
}

/// The layers whose state lies on a GPU, and all of whose experts lie in the host's memory and can be left out there.
fn layers(plan: &Plan, weights: &WeightsBuilder, tied: bool) -> Vec<Layer> {
    let mut found: BTreeMap<usize, (Layer, bool)> = BTreeMap::new();
    let tensors = weights.shapes().zip(weights.sizes()).zip(weights.ids());
    for (((name, dtype, ne), (_, bytes)), (id, replaceable)) in tensors {
        let Some(il) = block(name).filter(|_| is_expert(name)) else { continue };
        let n_expert = ne.iter().rfind(|&&n| n != 1).map_or(1, |&n| n as usize);
        let device = plan.block(il);
        let (layer, serves) = found.entry(il).or_insert_with(|| {
            let experts = ExpertLayer { tensors: Vec::new(), n_expert, n_copies: 0, device };
            (Layer { experts, bytes: 0 }, device.kind() != DeviceKind::Cpu)
        });
        *serves &= plan.device(name, tied).kind() == DeviceKind::Cpu
            && !replaceable
            && n_expert == layer.experts.n_expert
            && n_expert > 1
            && (ne[2] == 1 || takes(device, name, dtype, ne));
        layer.experts.tensors.push(id);
        layer.bytes += bytes / n_expert.max(1);
    }
    found.into_values().filter(|(_, serves)| *serves).map(|(layer, _)| layer).collect()
}

/// True when the host can leave experts of this type out, and the GPU has a kernel for them.
fn takes(device: Device, name: &str, dtype: Dtype, ne: [i64; 4]) -> bool {
    let takes = ExpertLayer::serves(dtype, ne) && device.computes_with(dtype, ne, WeightUse::Experts);
    if !takes {
        tracing::warn!(
            name,
            dtype = dtype.name(),
            device = device.name(),
            "experts of this type and width are not copied"
        );
    }
    takes
}
