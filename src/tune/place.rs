//! Where a head is trained: on the GPU of the model's layers, where that is NVIDIA's and the program was built for it, else on the
//! CPU. Owns the choice, how much goes through a head at once there, and what is said where it is not possible.

use anyhow::Context;
use candle_core::Device;
use model::{HeadShape, Model};

/// Where a head is trained.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where its numbers are.
    pub device: Device,
    /// What the user is told of it, where the model is on a GPU.
    pub said: Option<String>,
}

impl Place {
    /// The CUDA device that has most room of those that hold layers of `model` (`--device` has chosen them).
    ///
    /// # Errors
    /// A GPU that cannot be used.
    pub fn of(model: &Model) -> anyhow::Result<Self> {
        let gpus = model.weights().devices().iter().filter(|device| !is_cpu(&device.name()));
        let gpus: Vec<(String, usize)> = gpus.map(|device| (device.name(), device.memory().0)).collect();
        let cuda = gpus.iter().filter_map(|(name, n_free)| Some((number(name)?, name, *n_free)));
        let Some((number, name, _)) = cuda.max_by_key(|(number, _, n_free)| (*n_free, std::cmp::Reverse(*number)))
        else {
            let other = gpus.first().map(|(name, _)| format!("the head is trained on the CPU: it cannot be on {name}"));
            return Ok(Self { device: Device::Cpu, said: other });
        };
        if !cfg!(feature = "cuda") {
            let said =
                format!("the head is trained on the CPU: this program was built without --features cuda for {name}");
            return Ok(Self { device: Device::Cpu, said: Some(said) });
        }
        let refused = || format!("{name}: no head can be trained there; --device cpu trains it on the CPU");
        let device = Device::new_cuda(number).with_context(refused)?;
        // Products round to the 10 bits of TF32, as the hidden states that are kept do; NVIDIA_TF32_OVERRIDE=0 has them in F32.
        candle_core::cuda::set_gemm_reduced_precision_f32(true);
        Ok(Self { device, said: Some(format!("the head is trained on {name}")) })
    }

    /// Tokens, padding included, that go through a head of this shape at once; texts have at most `n_ctx` of them.
    pub fn n_part(&self, shape: &HeadShape, n_ctx: usize, depth: usize) -> usize {
        if self.device.is_cpu() {
            return N_PART;
        }
        // What the graph keeps of a token for the way back, roughly, in numbers.
        let n_ff = shape.ffn.n_inner();
        let n_head = shape.attention.n_head;
        let n_each = 32 * shape.n_embd + 8 * n_ff + n_head * (8 * n_ctx + 12 * shape.attention.d_k);
        (GRAPH_BYTES / (size_of::<f32>() * depth.max(1) * n_each)).clamp(N_PART / 2, 8 * N_PART) / 256 * 256
    }
}

/// True where the passes of a model are computed on a GPU, at least in part.
pub fn is_on_gpu(model: &Model) -> bool {
    model.weights().devices().iter().any(|device| !is_cpu(&device.name()))
}

/// As ggml calls the host's processor.
fn is_cpu(name: &str) -> bool {
    name == "CPU"
}

/// The number of a CUDA device by ggml's name for it.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix("CUDA")?.parse().ok()
}

/// Says what helps where a GPU has no more memory.
pub fn with_remedy(error: anyhow::Error) -> anyhow::Error {
    let said = format!("{error:#}");
    if ["OUT_OF_MEMORY", "ALLOC_FAILED"].iter().any(|words| said.contains(words)) {
        return error.context(
            "the GPU has no memory left for training: make --batch or --context smaller, give it fewer layers \
             (--gpu-layers), or train on the CPU (--device cpu)",
        );
    }
    error
}

/// Tokens, padding included, that go through the head at once on a CPU: one thread computes them.
const N_PART: usize = 2048;

/// Bytes on a GPU that a part may keep. Nothing that is free at the moment: the same options must give the same parts again.
const GRAPH_BYTES: usize = 8 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cuda_device_has_the_number_of_its_name() {
        let numbers = ["CUDA0", "CUDA12", "CUDA", "CPU", "Vulkan0", "RPC0[10.0.0.1:50052]"].map(number);
        assert_eq!(numbers, [Some(0), Some(12), None, None, None, None]);
    }

    #[test]
    fn a_gpu_without_room_is_told_with_what_helps() {
        let error = with_remedy(anyhow::anyhow!("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"));
        assert!(format!("{error:#}").contains("--batch") && format!("{error:#}").contains("OUT_OF_MEMORY"));
        assert_eq!(format!("{:#}", with_remedy(anyhow::anyhow!("no such tensor"))), "no such tensor");
    }
}
