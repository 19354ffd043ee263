//! What can go wrong between a file and a pass.

use std::path::Path;

/// A model that cannot be opened. Messages name the key or tensor, what was found and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file's structure.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// The vocabulary.
    #[error(transparent)]
    Vocab(#[from] text::Error),
    /// The device, or the map of the file.
    #[error(transparent)]
    Device(#[from] ggml::Error),
    /// State that no memory can be made for.
    #[error(transparent)]
    State(#[from] memory::Error),
    /// An architecture that no file in `arch/` is for.
    #[error("architecture `{found}` is not known; known are: {known}")]
    Architecture {
        /// What the file says.
        found: String,
        /// What there is.
        known: String,
    },
    /// A head where a model was to be.
    #[error("architecture `{found}` is a draft head: give this file with --draft-model beside a model of `{target}`")]
    HeadAlone {
        /// What the file says.
        found: String,
        /// What it drafts for.
        target: &'static str,
    },
    /// A hyper-parameter out of its range, or at odds with another.
    #[error("{key}: {what}")]
    Key {
        /// The metadata key.
        key: String,
        /// What was found and what was expected.
        what: String,
    },
    /// A tensor that is missing.
    #[error("tensor {0} is missing; run `extract-nextn inspect` on the file to see what it holds")]
    Missing(String),
    /// A tensor of another shape or type than the hyper-parameters ask for.
    #[error("{name}: {what}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// What was found and what was expected.
        what: String,
    },
    /// A NextN head in a file of its own that does not belong to the model.
    #[error("the file with the NextN head does not fit the model: {0}")]
    Head(String),
    /// A projector that cannot be used, or not with the model.
    #[error("projector: {0}")]
    Projector(String),
    /// A projector where a model was to be.
    #[error(
        "the file is a projector, which reads images for a model and answers nothing alone: give the model by -m and this file by --mmproj"
    )]
    ProjectorAlone,
    /// An adapter that does not belong to the model, or cannot be used; the words name its file.
    #[error("adapter {0}")]
    Adapter(String),
    /// More layers were asked onto the GPUs than fit.
    #[error(
        "{n} layers need {needs} MiB, of which {state} MiB are sequence state (-c, --parallel and --cache-type-k/-v size it); \
         {free} MiB are free on the GPUs beside {passes} MiB on each for passes: -ngl {n_fit} fits, or less state"
    )]
    Room {
        /// Layers asked for.
        n: usize,
        /// Their weights and state, with the head, in MiB.
        needs: usize,
        /// Their state, in MiB.
        state: usize,
        /// What is left to passes on each GPU, in MiB.
        passes: usize,
        /// Free on all chosen GPUs beside the buffers of passes, in MiB.
        free: usize,
        /// Layers that fit.
        n_fit: usize,
    },
    /// A model or settings that several GPUs cannot compute together.
    #[error("--split-mode tensor: {0}")]
    TensorParallel(String),
    /// Shares that are not one for each GPU.
    #[error("--tensor-split has {n_shares} numbers, and {n_gpus} GPUs take layers: give one for each")]
    Shares {
        /// Numbers given.
        n_shares: usize,
        /// GPUs chosen.
        n_gpus: usize,
    },
    /// A share that is more than its GPU has room for.
    #[error(
        "{device}: its share of the layers is {needs} MiB, {free} MiB are free there: give it a smaller one in --tensor-split"
    )]
    ShareRoom {
        /// Which GPU.
        device: String,
        /// Weights and state of its layers, in MiB.
        needs: usize,
        /// Free there beside the buffers of passes, in MiB.
        free: usize,
    },
    /// Copies of experts that lie on GPUs already, or of none.
    #[error(
        "--expert-cache: no layer on a GPU has experts in host memory to copy: add --cpu-moe, or leave the option out"
    )]
    NoExpertsToCopy,
    /// More copies of experts than a GPU has room for, or too little room for any.
    #[error(
        "{device}: --expert-cache wants {wanted} MiB there, {free} MiB are free beside everything else; at least {least} MiB hold one expert of each layer"
    )]
    ExpertCacheRoom {
        /// Which GPU.
        device: String,
        /// Wanted there, in MiB.
        wanted: usize,
        /// Free there, in MiB.
        free: usize,
        /// What one expert of each layer needs, in MiB.
        least: usize,
    },
    /// A pattern of `--override-tensor` for tensors that the model does not have.
    #[error(
        "--override-tensor `{pattern}={device}`: no tensor of the model has a name that matches; `extract-nextn inspect` lists them"
    )]
    NoSuchTensor {
        /// The regular expression.
        pattern: String,
        /// Where they were to go.
        device: String,
    },
    /// More by `--override-tensor` than a device has room for.
    #[error(
        "{device}: --override-tensor puts {needs} MiB there, {free} MiB are free beside what passes need: have its patterns match fewer tensors"
    )]
    OverrideRoom {
        /// Which device.
        device: String,
        /// The tensors, in MiB.
        needs: usize,
        /// Free there beside the buffers of passes, in MiB.
        free: usize,
    },
    /// A tensor that `--override-tensor` puts on a device that cannot compute with it.
    #[error(
        "{name}: {device} computes nothing with a tensor of type {dtype} and shape {ne:?}: have the pattern of --override-tensor \
         leave it out, or put one before it that matches it, with =CPU"
    )]
    OverrideType {
        /// The tensor.
        name: String,
        /// The device.
        device: String,
        /// The tensor's type.
        dtype: &'static str,
        /// The tensor's shape, in ggml order.
        ne: [i64; 4],
    },
    /// The shards of a split file.
    #[error("{0}")]
    Shard(String),
}

impl LoadError {
    /// The message with the file's name in front, unless it names one itself.
    pub fn in_file(&self, path: &Path) -> String {
        match self {
            LoadError::Device(ggml::Error::Map { .. }) | LoadError::Adapter(_) => self.to_string(),
            _ => format!("{}: {self}", path.display()),
        }
    }
}

/// A pass that was not computed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The graph or the device.
    #[error(transparent)]
    Device(#[from] ggml::Error),
    /// Sequence state.
    #[error(transparent)]
    Memory(#[from] memory::Error),
    /// Tokens or rows that do not fit the step.
    #[error("{0}")]
    Pass(String),
    /// A thread that computes for another has ended before its time.
    #[error("the thread `{0}` has ended: its panic stands in the log")]
    Thread(String),
}
