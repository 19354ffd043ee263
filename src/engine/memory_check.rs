//! Whether what an engine keeps fits beside the weights, and which settings would.
//! Owns how that is said. The arithmetic is `model`'s, by which layers are placed too.

use ggml::{Device, DeviceKind};
use memory::{CacheType, LayerState, Memory};
use model::{Facts, MemoryBytes, MemoryPlan, Model, RunError, Runner};

use crate::config::{EngineConfig, EngineError};
use crate::host_memory;

/// Refuses settings whose state alone is more than a device has free, before anything is allocated. `plan`: what an engine
/// of such settings keeps.
///
/// # Errors
/// [`EngineError::Room`]; [`EngineError::Memory`]: state that no memory can be made for.
pub fn check_memory(
    model: &Model,
    config: &EngineConfig,
    plan: &dyn Fn(&EngineConfig) -> MemoryPlan,
) -> Result<(), EngineError> {
    let needs = plan(&reserved(model, config)).bytes(model.facts())?;
    let mut states = model.state_on_devices(&needs.blocks).into_iter();
    let full = states.find(|(device, bytes)| bytes.saturating_add(needs.beside) > free(*device));
    full.map_or(Ok(()), |(device, _)| Err(EngineError::Room(describe(model, config, plan, device, &needs))))
}

/// Settings whose state is what these need at least: that of one sequence where memory of others is taken when they write to it, as
/// far as there is any.
fn reserved(model: &Model, config: &EngineConfig) -> EngineConfig {
    let as_written = model.takes_state_as_written() && !config.plain_state(model.facts()).v_transposed;
    let n_sequences = if model.is_on_cpu() || as_written { 1 } else { config.n_sequences };
    EngineConfig { n_sequences, ..config.clone() }
}

/// An error for want of memory, with the numbers and with settings that fit; others as they are.
pub(crate) fn explain(
    error: EngineError,
    model: &Model,
    config: &EngineConfig,
    plan: &dyn Fn(&EngineConfig) -> MemoryPlan,
) -> EngineError {
    let alloc = match &error {
        EngineError::Memory(memory::Error::Device(ggml::Error::Alloc { device, .. }))
        | EngineError::Run(RunError::Device(ggml::Error::Alloc { device, .. })) => device,
        _ => return error,
    };
    let (device, needs) = match (
        Device::all().into_iter().find(|d| d.name() == *alloc),
        plan(&reserved(model, config)).bytes(model.facts()),
    ) {
        (Some(device), Ok(needs)) => (device, needs),
        _ => return error,
    };
    EngineError::Room(describe(model, config, plan, device, &needs))
}

/// Bytes that the state of sequences may take, as asked for or by what the machine has free; `None` where all of it was
/// reserved at the start. A proposer that keeps `of_drafts` bytes for all sequences gets its share.
///
/// # Errors
/// [`EngineError::Room`]: less than one sequence takes.
pub(crate) fn budget(
    memory: &Memory,
    runner: &Runner,
    config: &EngineConfig,
    of_drafts: usize,
) -> Result<Option<usize>, EngineError> {
    let (footprint, n_ctx) = (memory.footprint(), memory.config().n_ctx);
    if !footprint.is_all() {
        if config.kv_bytes.is_some() {
            tracing::warn!(
                "--kv-memory changes nothing: this device reserves the memory of all sequences at the start"
            );
        }
        return Ok(None);
    }
    let own = memory.n_bytes() as f64 / (memory.n_bytes() + of_drafts).max(1) as f64;
    let one = footprint.n_bytes(n_ctx);
    let Some(asked) = config.kv_bytes else {
        // A sequence alone may try: what the system does not have it takes from its cache.
        return Ok(Some(((room(memory, runner) * own) as usize).max(one)));
    };
    let share = (asked as f64 * own) as usize;
    if share < one {
        let of_all = (one as f64 / own) as usize;
        return Err(EngineError::Room(format!(
            "--kv-memory {}: one sequence of {} positions needs {} MiB: raise it, lower -c, or choose smaller types with \
             --cache-type-k and --cache-type-v",
            mib(asked),
            config.n_ctx(runner.model().facts()),
            mib(of_all) + 1
        )));
    }
    Ok(Some(share))
}

/// What sequences may take together, so that the part of it on each device has room there.
fn room(memory: &Memory, runner: &Runner) -> f64 {
    let parts = memory.growing_bytes();
    let all: usize = parts.iter().map(|(_, bytes)| bytes).sum();
    let of_part = |(device, bytes): (Device, usize)| {
        let free = match device.kind() {
            // Buffers of the host take memory when they are first used.
            DeviceKind::Cpu => {
                host_memory::available().map_or(usize::MAX, |free| free.saturating_sub(runner.buffer_bytes()))
            }
            _ => free(device).saturating_sub(OF_DRIVERS),
        };
        free as f64 * AUTO * all as f64 / bytes.max(1) as f64
    };
    parts.into_iter().map(of_part).fold(usize::MAX as f64, f64::min)
}

/// Of the memory that is free, what the state of sequences may take where nothing else was asked for.
const AUTO: f64 = 0.9;

/// Left free on a GPU besides: for drivers and libraries, which take memory when they first need it.
const OF_DRIVERS: usize = 384 << 20;

/// Bytes that a device has free; all there could be where it does not say.
fn free(device: Device) -> usize {
    match device.memory() {
        (_, 0) => usize::MAX,
        (free, _) => free,
    }
}

fn describe(
    model: &Model,
    config: &EngineConfig,
    plan: &dyn Fn(&EngineConfig) -> MemoryPlan,
    device: Device,
    needs: &MemoryBytes,
) -> String {
    let (facts, plan) = (model.facts(), &|config: &EngineConfig| plan(&reserved(model, config)));
    let on_device = |blocks: &[usize]| {
        let there = model.state_on_devices(blocks).into_iter().find(|(d, _)| *d == device);
        there.map_or(0, |(_, bytes)| bytes)
    };
    let of = |wanted: fn(&LayerState) -> bool| {
        let states = facts.layout.layers.iter().map(Some).chain(std::iter::repeat(None));
        let only = |(bytes, state): (&usize, Option<&LayerState>)| if state.is_some_and(wanted) { *bytes } else { 0 };
        mib(on_device(&needs.blocks.iter().zip(states).map(only).collect::<Vec<_>>()))
    };
    let cells = of(|state| matches!(state, LayerState::Kv(_)));
    let recurrent = of(|state| matches!(state, LayerState::Recurrent(_)));
    let state = mib(on_device(&needs.blocks));
    let (head, passes, free_mib) = (state - (cells + recurrent).min(state), mib(needs.passes), mib(free(device)));
    let (n, n_ctx) = (reserved(model, config).n_sequences, config.n_ctx(facts));
    let fitting = fitting((config, n), facts, &|config| fits(model, &plan(config)));
    let name = device.name();
    let beside = match mib(needs.beside) {
        0 => String::new(),
        n => format!(", a draft model {n} MiB"),
    };
    let who = if n == 1 { "one sequence".to_owned() } else { format!("{n} sequences") };
    format!(
        "{name}: {who} of {n_ctx} positions: {state} MiB are needed there ({cells} MiB of keys and values, \
         {recurrent} MiB of recurrent state, {head} MiB for drafts) and for passes up to {passes} MiB{beside}, {free_mib} MiB are free. {fitting}"
    )
}

/// True when all of it has room on every device that holds a part.
fn fits(model: &Model, plan: &MemoryPlan) -> bool {
    let Ok(needs) = plan.bytes(model.facts()) else { return false };
    let all = model.state_on_devices(&needs.blocks);
    let others = needs.passes.saturating_add(needs.beside);
    all.into_iter().all(|(device, state)| state.saturating_add(others) <= free(device))
}

/// Settings close to these, which reserve memory for `n` sequences, that fit, in the words of the command line.
fn fitting((config, n): (&EngineConfig, usize), facts: &Facts, fits: &dyn Fn(&EngineConfig) -> bool) -> String {
    let mut found = Vec::new();
    if let Some(n_ctx) = longest(config, facts, fits) {
        found.push(format!("-c {n_ctx}"));
    }
    let fewer = (1..n).rev().find(|&n| fits(&EngineConfig { n_sequences: n, ..config.clone() }));
    found.extend(fewer.map(|n| format!("--parallel {n}")));
    let q8_0 = CacheType::Q8_0;
    let packed = EngineConfig { cache_type_k: q8_0, cache_type_v: q8_0, ..config.clone() };
    if config.cache_type_k.is_plain() || config.cache_type_v.is_plain() {
        let flags = "--cache-type-k q8_0 --cache-type-v q8_0";
        if fits(&packed) {
            found.push(flags.to_owned());
        } else if let Some(n_ctx) = longest(&packed, facts, fits) {
            found.push(format!("{flags} -c {n_ctx}"));
        }
    }
    if found.is_empty() {
        return "No context fits: use a smaller model, or fewer layers on the GPU (-ngl)".into();
    }
    let trained = match facts.hparams.n_ctx_train {
        n if n > 0 && config.n_ctx(facts) > n => format!("; the model was trained for {n} tokens"),
        _ => String::new(),
    };
    format!("What fits: {}{trained}", found.join(", or "))
}

/// The longest context that fits with settings that are otherwise these, as a round number.
fn longest(config: &EngineConfig, facts: &Facts, fits: &dyn Fn(&EngineConfig) -> bool) -> Option<usize> {
    let with = |steps: usize| EngineConfig { n_ctx: Some(steps * STEP), ..config.clone() };
    let (mut most, mut too_many) = (0, config.n_ctx(facts).div_ceil(STEP));
    while most + 1 < too_many {
        let middle = most + (too_many - most) / 2;
        if fits(&with(middle)) { most = middle } else { too_many = middle }
    }
    (most > 0).then(|| round(most * STEP))
}

/// At most so much, in five bits with zeros behind them, as people choose contexts: less than a sixteenth is lost.
fn round(n_ctx: usize) -> usize {
    let unit = 1 << (n_ctx / 16).max(STEP).ilog2();
    n_ctx / unit * unit
}

/// Contexts are tried in multiples of this.
const STEP: usize = 256;

fn mib(bytes: usize) -> usize {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_advised_in_round_numbers() {
        for (fits, advised) in [(256, 256), (4352, 4352), (20224, 19456), (684_544, 655_360), (1 << 20, 1 << 20)] {
            assert_eq!(round(fits), advised);
        }
        assert!((1..4000).map(|n| n * STEP).all(|n| round(n) <= n && n - round(n) <= n / 16));
    }
}
