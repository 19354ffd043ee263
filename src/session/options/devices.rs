//! The options that say where a model computes, for all programs; and the list of what there is.
//! Owns the words for devices. What fits where is `model`'s to say.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use ggml::{Device, DeviceKind, Numa};
use model::{ExpertCacheSize, GpuLayers, MemoryPlanner, Placement, Split};

use super::device_names::{is_called, kind, listed};
use super::tensor_overrides::{self, TensorOverrides};

/// Where the model computes.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Devices")]
pub struct DeviceOptions {
    /// Devices to use: auto (GPUs if present), cpu, or names from `nextn-bench devices`
    #[arg(long, value_name = "NAME,NAME,...", default_value = "auto", env = "NEXTN_DEVICE", hide_env_values = true)]
    pub device: DeviceChoice,

    /// Number of layers on GPUs (-ngl), from the last, or auto (as many as fit)
    #[arg(long, aliases = ["ngl", "n-gpu-layers"], value_name = "N", default_value = "auto", env = "NEXTN_GPU_LAYERS", hide_env_values = true, value_parser = gpu_layers)]
    pub gpu_layers: GpuLayers,

    /// Keep all experts in host memory
    #[arg(long, conflicts_with = "n_cpu_moe")]
    pub cpu_moe: bool,

    /// Keep the experts of the first N layers in host memory
    #[arg(long, value_name = "N")]
    pub n_cpu_moe: Option<usize>,

    /// GPU memory in MiB for copies of often used experts that stay in host memory, or auto (what is free)
    #[arg(long, value_name = "MIB", env = "NEXTN_EXPERT_CACHE", hide_env_values = true, value_parser = expert_cache)]
    pub expert_cache: Option<ExpertCacheSize>,

    /// Keep a second, faster copy of the weights in memory (CPUs with AVX2 or AVX-VNNI)
    #[arg(long, env = "NEXTN_REPACK", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub repack: bool,

    /// Put the tensors whose names match a pattern on a device (-ot), such as exps=CPU
    #[arg(long, value_name = "REGEX=DEVICE,...", env = "NEXTN_OVERRIDE_TENSOR", hide_env_values = true)]
    pub override_tensor: Vec<TensorOverrides>,

    /// Split a model over GPUs: layer (by turns), tensor (all compute each layer), none (one GPU), or auto (one GPU if it fits, else layer)
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub split_mode: SplitMode,

    /// GPU for --split-mode none, from 0 among --device
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub main_gpu: usize,

    /// Share of the layers for each GPU, such as 3,1 [default: by free memory]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = share)]
    pub tensor_split: Vec<f64>,

    /// Add the devices of RPC workers (nextn-server --rpc-worker)
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', env = "NEXTN_RPC", hide_env_values = true)]
    pub rpc: Vec<String>,

    /// NUMA placement of threads: distribute, isolate (one node), or numactl
    #[arg(long, value_name = "MODE", env = "NEXTN_NUMA", hide_env_values = true)]
    pub numa: Option<NumaMode>,

    /// Lock the model in memory, up to `ulimit -l`
    #[arg(long, env = "NEXTN_MLOCK", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub mlock: bool,

    /// Load backends (libggml-*.so) from a folder
    #[arg(long, value_name = "FOLDER", env = "NEXTN_BACKEND_DIR", hide_env_values = true)]
    pub backend_dir: Option<PathBuf>,
}

/// `--numa`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[allow(missing_docs)]
pub enum NumaMode {
    Distribute,
    Isolate,
    Numactl,
}

/// `--split-mode`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
#[allow(missing_docs)]
pub enum SplitMode {
    #[default]
    Auto,
    Layer,
    #[value(alias = "row")]
    Tensor,
    None,
}

/// `--device`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The devices of workers and the GPUs of one backend, if there are any.
    #[default]
    Auto,
    /// No GPU.
    Cpu,
    /// These, by name; a name without a number stands for all of its kind.
    Named(Vec<String>),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "cpu" | "none" => Ok(Self::Cpu),
            s if s.split(',').all(|name| !name.trim().is_empty()) => {
                Ok(Self::Named(s.split(',').map(|name| name.trim().to_owned()).collect()))
            }
            _ => Err(format!("`{s}` is not auto, cpu, or names joined by commas")),
        }
    }
}

fn gpu_layers(s: &str) -> Result<GpuLayers, String> {
    match s {
        "auto" => Ok(GpuLayers::Auto),
        "all" => Ok(GpuLayers::Count(usize::MAX)),
        n => n.parse().map(GpuLayers::Count).map_err(|_| format!("`{n}` is not a number of layers, all or auto")),
    }
}

fn expert_cache(s: &str) -> Result<ExpertCacheSize, String> {
    match (s, s.parse::<usize>()) {
        ("auto", _) => Ok(ExpertCacheSize::Auto),
        ("off" | "0", _) => Ok(ExpertCacheSize::Off),
        (_, Ok(mib)) => {
            mib.checked_mul(1 << 20).map(ExpertCacheSize::Bytes).ok_or_else(|| format!("`{s}` MiB are too many"))
        }
        _ => Err(format!("`{s}` is not a number of MiB, auto or off")),
    }
}

fn share(s: &str) -> Result<f64, String> {
    let share: f64 = s.trim().parse().map_err(|_| format!("`{s}` is not a number"))?;
    if share.is_finite() && share >= 0.0 { Ok(share) } else { Err(format!("`{s}` is not a share")) }
}

/// Why no model can compute where it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A device, a folder or a share that cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// A backend or a worker.
    #[error(transparent)]
    Backend(#[from] ggml::Error),
}

impl DeviceOptions {
    /// Loads the backends of the folder and adds the devices of workers, if any were named; threads go where `--numa` says.
    ///
    /// # Errors
    /// A folder without backends, or one that does not fit this program; a worker that cannot be used.
    pub fn load_backends(&self) -> Result<(), DeviceError> {
        let numa = self.numa.map(|mode| match mode {
            NumaMode::Distribute => Numa::Distribute,
            NumaMode::Isolate => Numa::Isolate,
            NumaMode::Numactl => Numa::Numactl,
        });
        if numa.is_some_and(|numa| !numa.apply()) {
            tracing::warn!("--numa has no effect: this machine has one memory node");
        }
        if let Some(folder) = &self.backend_dir
            && ggml::load_plugins(folder)? == 0
        {
            return Err(DeviceError::Unusable(format!(
                "{}: no file libggml-*{} there",
                folder.display(),
                std::env::consts::DLL_SUFFIX
            )));
        }
        for worker in self.rpc.iter().filter(|worker| !worker.is_empty()) {
            ggml::add_worker(worker.trim())?;
        }
        Ok(())
    }

    /// What was given and changes nothing beside the rest, a sentence each.
    pub fn without_effect(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.main_gpu != 0 && self.split_mode != SplitMode::None {
            let why = "only --split-mode none puts everything on one GPU";
            words.push(format!("--main-gpu {} has no effect: {why}", self.main_gpu));
        }
        if !self.tensor_split.is_empty() && self.split_mode == SplitMode::None {
            words.push("--tensor-split has no effect: --split-mode none puts everything on one GPU".to_owned());
        }
        words
    }

    /// The devices that were chosen, after [`DeviceOptions::load_backends`]; none is the CPU.
    ///
    /// # Errors
    /// A device that is not here.
    pub fn chosen(&self) -> Result<Vec<Device>, DeviceError> {
        self.device.devices()
    }

    /// Where a model goes beside which an engine keeps what `beside` says.
    ///
    /// # Errors
    /// As [`DeviceOptions::load_backends`]; a device that is not here.
    pub fn placement(&self, planner: MemoryPlanner) -> Result<Placement, DeviceError> {
        self.load_backends()?;
        let mut gpus = self.chosen()?;
        let overrides = tensor_overrides::resolve(&self.override_tensor, &gpus).map_err(DeviceError::Unusable)?;
        if self.split_mode == SplitMode::None && !gpus.is_empty() {
            let Some(&main) = gpus.get(self.main_gpu) else {
                return Err(DeviceError::Unusable(format!(
                    "--main-gpu {}: there are {} GPUs, counted from 0",
                    self.main_gpu,
                    gpus.len()
                )));
            };
            gpus = vec![main];
        }
        let shares = self.tensor_split.clone();
        if shares.iter().sum::<f64>() <= 0.0 && !shares.is_empty() {
            return Err(DeviceError::Unusable("--tensor-split: all shares are 0".to_owned()));
        }
        let split = match self.split_mode {
            SplitMode::Layer => Split::Layers(shares),
            SplitMode::Tensor if !shares.is_empty() => {
                let what = "--tensor-split is for --split-mode layer: with tensor all GPUs have the same share";
                return Err(DeviceError::Unusable(what.to_owned()));
            }
            SplitMode::Tensor => Split::Tensor,
            // Shares are a wish for layers.
            SplitMode::Auto if !shares.is_empty() => Split::Layers(shares),
            SplitMode::Auto | SplitMode::None => Split::Auto,
        };
        let n_cpu_moe = if self.cpu_moe { usize::MAX } else { self.n_cpu_moe.unwrap_or(0) };
        let expert_cache = self.expert_cache.unwrap_or_default();
        let (layers, repack) = (self.gpu_layers, self.repack);
        Ok(Placement { gpus, layers, split, n_cpu_moe, expert_cache, repack, overrides, planner })
    }
}

impl DeviceChoice {
    /// The GPUs that it names; none is the CPU.
    ///
    /// # Errors
    /// A device that is not here.
    pub(crate) fn devices(&self) -> Result<Vec<Device>, DeviceError> {
        self.among(model::gpus())
    }

    fn among(&self, gpus: Vec<Device>) -> Result<Vec<Device>, DeviceError> {
        let names = match self {
            Self::Cpu => return Ok(Vec::new()),
            Self::Auto => {
                // One GPU may be there twice, by two backends. Workers come first: logits leave the device of the last
                // layer, and should not have to cross the network.
                let (mut all, local): (Vec<_>, Vec<_>) = gpus.into_iter().partition(|d| d.is_remote());
                let first = local.first().map(|d| kind(&d.name()).to_owned());
                all.extend(local.into_iter().filter(|d| Some(kind(&d.name())) == first.as_deref()));
                return Ok(all);
            }
            Self::Named(names) => names,
        };
        let mut chosen = Vec::new();
        for name in names {
            let found: Vec<Device> = gpus.iter().filter(|d| is_called(**d, name)).copied().collect();
            if found.is_empty() {
                let all = listed(&Device::all());
                return Err(DeviceError::Unusable(format!(
                    "there is no device `{name}`; there are: {all} (--backend-dir and --rpc add more)"
                )));
            }
            chosen.extend(found.into_iter().filter(|d| !chosen.contains(d)).collect::<Vec<_>>());
        }
        Ok(chosen)
    }
}

/// One line for each device: name, kind, free and total memory, description.
pub fn device_table() -> String {
    let mut lines =
        vec!["| device | kind | free MiB | total MiB | hardware |".to_owned(), "|---|---|---|---|---|".into()];
    for d in Device::all() {
        let kind = match d.kind() {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
            DeviceKind::Accelerator => "accelerator",
        };
        let (free, total) = d.memory();
        lines.push(format!("| {} | {kind} | {} | {} | {} |", d.name(), free >> 20, total >> 20, d.description()));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_devices() {
        assert_eq!("AUTO".parse(), Ok(DeviceChoice::Auto));
        assert_eq!(("cpu".parse(), "none".parse()), (Ok(DeviceChoice::Cpu), Ok(DeviceChoice::Cpu)));
        assert_eq!("CUDA0, cuda1".parse(), Ok(DeviceChoice::Named(vec!["cuda0".into(), "cuda1".into()])));
        assert!("cuda0,,x".parse::<DeviceChoice>().is_err());
        assert_eq!(gpu_layers("all"), Ok(GpuLayers::Count(usize::MAX)));
        assert!(gpu_layers("-1").is_err());
    }

    #[test]
    fn options_that_change_nothing_are_named_with_the_reason() {
        let without = |main_gpu, split_mode, tensor_split: &[f64]| {
            DeviceOptions { main_gpu, split_mode, tensor_split: tensor_split.to_vec(), ..DeviceOptions::default() }
                .without_effect()
        };
        for mode in [SplitMode::Auto, SplitMode::Layer] {
            let words = without(1, mode, &[3.0, 1.0]);
            assert!(words.len() == 1 && words[0].contains("--main-gpu 1") && words[0].contains("none"), "{words:?}");
            assert!(without(0, mode, &[3.0, 1.0]).is_empty());
        }
        let words = without(1, SplitMode::None, &[3.0, 1.0]);
        assert!(words.len() == 1 && words[0].contains("--tensor-split"), "{words:?}");
        assert!(without(1, SplitMode::None, &[]).is_empty());
    }

    #[test]
    fn a_device_that_is_not_here_is_named_with_those_that_are() {
        let choice = DeviceChoice::Named(vec!["cuda77".into()]);
        let error = choice.among(model::gpus()).unwrap_err().to_string();
        assert!(error.contains("`cuda77`") && error.contains("CPU"), "{error}");
        assert_eq!(DeviceChoice::Cpu.among(model::gpus()).unwrap(), []);
    }
}
