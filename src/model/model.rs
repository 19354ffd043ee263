//! A model that is ready to run: weights on a device, an architecture over them, vocabulary and template.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use ggml::Weights;
use memory::{Memory, MemoryConfig, StateLayout};
use text::Vocab;

use crate::adapter::Adapter;
use crate::architecture::{Architecture, Hparams, NextNHead, each_once};
use crate::describe::Description;
use crate::draft::{DraftBlock, WhichHead};
use crate::error::LoadError;
use crate::fingerprint::{Fingerprint, digest, in_long_context};
use crate::memory_plan::Facts;
use crate::pictures::{BothWays, PictureKind};
use crate::placement::Plan;
use crate::pooling::EmbeddingInfo;
use crate::rank_head::RankHead;
use crate::rope_options::RopeOptions;
use crate::share::{Share, SharedRows};
use crate::tensor_parallel::Peer;

/// A model, read-only and shared.
pub struct Model {
    pub(crate) arch: Box<dyn Architecture>,
    pub(crate) hparams: Hparams,
    pub(crate) nextn: NextNHead,
    pub(crate) weights: Arc<Weights>,
    /// The shares of other devices, where several compute each layer together.
    pub(crate) peers: Vec<Peer>,
    pub(crate) plan: Plan,
    pub(crate) vocab: Arc<Vocab>,
    pub(crate) template: Option<String>,
    pub(crate) tool_use_template: Option<String>,
    pub(crate) description: Description,
    pub(crate) sampling: HashMap<String, String>,
    pub(crate) embedding: EmbeddingInfo,
    /// LoRA adapters.
    pub(crate) adapters: Vec<Adapter>,
    /// Of the maps under the weights, those of the model come first, then those of the head's file.
    pub(crate) n_files: [usize; 2],
    /// What the user said of the rotation of positions.
    pub(crate) rope: RopeOptions,
    /// Of the model and of its head, once somebody asked.
    pub(crate) fingerprints: OnceLock<(Fingerprint, Fingerprint)>,
    pub(crate) facts: Facts,
}

impl Model {
    /// Sizes.
    pub fn hparams(&self) -> &Hparams {
        &self.hparams
    }

    /// What state and passes are sized by.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Bytes of state that lie on each device: layers of the target model as far as `blocks` tells theirs, then the
    /// NextN head's.
    pub fn state_on_devices(&self, blocks: &[usize]) -> Vec<(ggml::Device, usize)> {
        let mut all: Vec<(ggml::Device, usize)> = Vec::new();
        let of_rank = |rank| blocks.iter().enumerate().map(move |(il, &bytes)| (self.place(rank, il), bytes));
        for (device, bytes) in (0..self.n_ranks()).flat_map(of_rank) {
            match all.iter_mut().find(|(d, _)| *d == device) {
                Some((_, sum)) => *sum = sum.saturating_add(bytes),
                None => all.push((device, bytes)),
            }
        }
        all
    }

    /// Tokens.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// Tokens, for those that may outlive the model.
    pub fn shared_vocab(&self) -> Arc<Vocab> {
        Arc::clone(&self.vocab)
    }

    /// The chat template's source, when the file has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// The source of the chat template for conversations with tools, when the file has another one for them.
    pub fn tool_use_template(&self) -> Option<&str> {
        self.tool_use_template.as_deref()
    }

    /// What the file says of itself.
    pub fn describe(&self) -> &Description {
        &self.description
    }

    /// Sampling parameters that the file recommends (`general.sampling.*`), by name, their values written out.
    pub fn sampling_defaults(&self) -> &HashMap<String, String> {
        &self.sampling
    }

    /// What the file says of embeddings and rankings.
    pub fn embedding(&self) -> &EmbeddingInfo {
        &self.embedding
    }

    /// Classes of the model's rank head; `None` without one.
    pub fn n_classes(&self) -> Option<usize> {
        self.arch.rank_head().map(RankHead::n_classes)
    }

    /// What the file holds of a NextN head.
    pub fn nextn(&self) -> &NextNHead {
        &self.nextn
    }

    /// The LoRA adapters that passes may use.
    pub fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }

    /// The weights.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// Rows of a pass up to which each has the bits that it has alone (docs/NUMERICS.md); `None` where a row's bits
    /// depend on how many there are.
    pub fn rows_alike(&self) -> Option<usize> {
        self.facts.rows_alike
    }

    /// Width of what the NextN head takes of each token.
    pub fn n_embd_mtp(&self) -> usize {
        self.arch.features().map_or(self.hparams.n_embd, |features| features.n_embd())
    }

    /// The block that the head drafts at once; `None` where it makes one token after the other.
    pub fn draft_block(&self) -> Option<DraftBlock> {
        self.facts.block
    }

    /// Rows that a draft of so many tokens takes for each sequence after its entries: those of a chain after its first token,
    /// or a whole block.
    pub fn n_chain_rows(&self, depth: usize) -> usize {
        match (self.facts.block, self.n_mtp_layers()) {
            (Some(_), _) if depth > 0 => depth + 1,
            (None, 0 | 1) => depth.saturating_sub(1),
            _ => 0,
        }
    }

    /// Tokens of the rows of the head's own output matrix, where these are part of the vocabulary.
    pub(crate) fn draft_words(&self) -> Option<&[u32]> {
        self.arch.draft_words()
    }

    /// Devices that compute each layer together; 1 where they take layers in turns.
    pub fn n_ranks(&self) -> usize {
        1 + self.peers.len()
    }

    /// The weights of each of these devices.
    pub fn weights_of_ranks(&self) -> Vec<Arc<Weights>> {
        let others = self.peers.iter().map(|peer| &peer.weights);
        std::iter::once(&self.weights).chain(others).cloned().collect()
    }

    /// Every device that computes, the one that outputs come from first, unless that is a CPU among others.
    pub fn devices(&self) -> Vec<ggml::Device> {
        let mut all: Vec<ggml::Device> = Vec::new();
        for weights in self.weights_of_ranks() {
            all.extend(weights.devices().iter().filter(|device| !all.contains(device)).copied().collect::<Vec<_>>());
        }
        all
    }

    /// Bytes of weights on a device.
    pub fn weight_bytes_on(&self, device: ggml::Device) -> usize {
        self.weights_of_ranks().iter().map(|weights| weights.bytes_on(device)).sum()
    }

    /// One of these devices; `None` for the first, which is the model's own.
    fn peer(&self, rank: usize) -> Option<&Peer> {
        self.peers.get(rank.checked_sub(1)?)
    }

    /// The graphs of one of these devices.
    pub(crate) fn arch_of(&self, rank: usize) -> &dyn Architecture {
        match self.peer(rank) {
            Some(peer) => &*peer.arch,
            None => &*self.arch,
        }
    }

    /// The device of block `il` of one of them.
    fn place(&self, rank: usize, il: usize) -> ggml::Device {
        match self.peer(rank) {
            Some(peer) => peer.device,
            None => self.plan.block(il),
        }
    }

    /// Every device that has state, and where outputs come from first.
    fn state_devices(&self) -> Vec<ggml::Device> {
        let mut all = self.plan.devices();
        all.extend(self.peers.iter().map(|peer| peer.device));
        all
    }

    /// True when nothing of it lies on a GPU.
    pub fn is_on_cpu(&self) -> bool {
        self.weights().devices().iter().all(|d| d.kind() == ggml::DeviceKind::Cpu)
    }

    /// True when state takes memory as it is written, on every device that has some.
    pub fn takes_state_as_written(&self) -> bool {
        self.state_devices().iter().all(|d| d.takes_state_as_written())
    }

    /// True when the state of some layer lies in the host's memory.
    pub fn has_state_on_host(&self) -> bool {
        self.state_devices().iter().any(|d| d.kind() == ggml::DeviceKind::Cpu)
    }

    /// State that the target model's layers need: those of each device, where several compute each layer together.
    pub fn state_layout(&self) -> StateLayout {
        StateLayout { layers: self.arch.state().layers.repeat(self.n_ranks()) }
    }

    /// State for sequences of this model, each layer's on the device that holds its weights.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn memory(&self, config: MemoryConfig) -> Result<Memory, memory::Error> {
        let n_layers = self.facts.layout.layers.len().max(1);
        let place = |il| self.place(il / n_layers, il % n_layers);
        let mut memory = Memory::placed(place, self.state_layout(), config)?;
        self.name_inputs(&mut memory, place);
        Ok(memory)
    }

    /// Has steps say by small inputs what the devices of layers take so.
    fn name_inputs(&self, memory: &mut Memory, place: impl Fn(usize) -> ggml::Device) {
        memory.name_what_devices_take(&place);
        // The rows of a picture see later ones.
        let seen_later = matches!(self.picture_kind(), Some(PictureKind::Plain { both_ways: BothWays::Everywhere }));
        memory.say_spans(|il| !seen_later && place(il).makes_masks());
    }

    /// State of the NextN head for as many sequences: the KV caches of its layers. `None` without a head.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn head_memory(&self, config: MemoryConfig) -> Result<Option<Memory>, memory::Error> {
        self.head_memory_of(config, usize::MAX)
    }

    /// As [`Model::head_memory`], of the head's first `n_layers` layers: passes over it compute no others.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn head_memory_of(&self, config: MemoryConfig, n_layers: usize) -> Result<Option<Memory>, memory::Error> {
        self.memory_of_head(WhichHead::First, config, n_layers)
    }

    /// As [`Model::head_memory_of`], of this head; `None` where the model has it not.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn memory_of_head(
        &self,
        head: WhichHead,
        config: MemoryConfig,
        n_layers: usize,
    ) -> Result<Option<Memory>, memory::Error> {
        // All layers of a head that drafts a block make each of its tokens.
        let n_layers = if self.facts.block.is_some() { usize::MAX } else { n_layers };
        let layers = match head {
            WhichHead::First => &self.facts.head,
            WhichHead::Own => &self.facts.own_head,
        };
        let layers: Vec<_> = layers.iter().take(n_layers).cloned().collect();
        let n_layers = layers.len();
        if n_layers == 0 {
            return Ok(None);
        }
        let place = |k| self.place(k / n_layers, self.hparams.n_layer + k % n_layers);
        let layers = layers.repeat(self.n_ranks());
        let mut memory = Memory::placed(place, StateLayout { layers }, config)?;
        self.name_inputs(&mut memory, place);
        Ok(Some(memory))
    }

    /// How pictures stand among the tokens of this model; `None` where it takes none.
    pub fn picture_kind(&self) -> Option<PictureKind> {
        self.arch.pictures()
    }

    /// Layers of the NextN head, 0 without one. One drafts a chain of any length; of several, each makes one draft token. A head
    /// that drafts a block at once counts as one.
    pub fn n_mtp_layers(&self) -> usize {
        self.facts.n_mtp_layers()
    }

    /// The heads that drafts may come from: none, one, or that of another file and the model's own.
    pub fn heads(&self) -> &'static [WhichHead] {
        match (self.facts.head.is_empty(), self.facts.own_head.is_empty()) {
            (true, _) => &[],
            (false, true) => &[WhichHead::First],
            (false, false) => &[WhichHead::First, WhichHead::Own],
        }
    }

    /// The NextN head keeps nothing: it reads the target model's cells ([`crate::Runner::draft_at_end`]).
    pub fn head_reads_target(&self) -> bool {
        self.arch.head_reads_target()
    }

    /// SHA-256 over the model's file: its metadata, names, types and shapes of its tensors, and a few bytes of each; and over
    /// what the user said of the rotation of positions. It is computed when it is first asked for: a large vocabulary takes
    /// some tens of milliseconds.
    ///
    /// # Errors
    /// [`LoadError`]: the file has changed since it was opened.
    pub fn fingerprint(&self) -> Result<Fingerprint, LoadError> {
        self.fingerprints().map(|(of_model, _)| of_model)
    }

    /// As [`Model::fingerprint`], for states in contexts of so many positions: some models rotate positions otherwise in
    /// long ones.
    ///
    /// # Errors
    /// As [`Model::fingerprint`].
    pub fn fingerprint_in(&self, n_ctx: usize) -> Result<Fingerprint, LoadError> {
        let plain = self.fingerprint()?;
        Ok(if self.arch.rotates_as_long(n_ctx) { in_long_context(&plain) } else { plain })
    }

    /// As [`Model::fingerprint`], over the file that the NextN head comes from.
    ///
    /// # Errors
    /// As [`Model::fingerprint`].
    pub fn head_fingerprint(&self) -> Result<Fingerprint, LoadError> {
        self.fingerprints().map(|(_, of_head)| of_head)
    }

    /// As [`Model::head_fingerprint`], of this head.
    ///
    /// # Errors
    /// As [`Model::fingerprint`].
    pub fn fingerprint_of_head(&self, head: WhichHead) -> Result<Fingerprint, LoadError> {
        match head {
            WhichHead::First => self.head_fingerprint(),
            WhichHead::Own => self.fingerprint(),
        }
    }

    fn fingerprints(&self) -> Result<(Fingerprint, Fingerprint), LoadError> {
        if let Some(known) = self.fingerprints.get() {
            return Ok(*known);
        }
        let [n_model, n_head] = self.n_files;
        let (of_model, others) = self.weights.mappings().split_at(n_model.min(self.weights.mappings().len()));
        let of_head = &others[..n_head.min(others.len())];
        let model = digest(of_model, &self.rope)?;
        let head = if of_head.is_empty() { model } else { digest(of_head, &self.rope)? };
        Ok(*self.fingerprints.get_or_init(|| (model, head)))
    }

    /// True where the device that makes the logits of drafts makes their noise too ([`crate::Noise::Keys`]).
    pub fn makes_noise(&self) -> bool {
        let heads = self.draft_heads();
        let makes = |head: &ggml::WeightId| self.weights().device_of(*head).is_some_and(ggml::Device::makes_noise);
        !heads.is_empty() && heads.iter().all(makes)
    }

    /// The output matrices that draft tokens come from, each once.
    pub(crate) fn draft_heads(&self) -> Vec<ggml::WeightId> {
        each_once(self.arch.draft_heads())
    }

    /// Likewise as each rank numbers them.
    pub(crate) fn draft_heads_of_ranks(&self) -> Vec<Vec<ggml::WeightId>> {
        (0..self.n_ranks()).map(|rank| each_once(self.arch_of(rank).draft_heads())).collect()
    }

    /// The bytes of a row of one of [`Model::draft_heads`], which `heads` gives as each rank numbers it, from the rank that has it.
    pub(crate) fn row_of_head(&self, heads: &[ggml::WeightId], row: usize) -> Result<Vec<u8>, ggml::Error> {
        let n_vocab = self.hparams.n_vocab;
        let is_shared = self.weights.ne(heads[0]).is_some_and(|ne| ne[1] as usize != n_vocab);
        let shared = SharedRows::of(Share { index: 0, of: self.n_ranks() }, n_vocab).filter(|_| is_shared);
        let (rank, row) = shared.map_or((0, row), |rows| rows.place(row));
        let weights = self.peer(rank).map_or(&self.weights, |peer| &peer.weights);
        let mut bytes = vec![0; weights.row_bytes(heads[rank])?];
        weights.read(heads[rank], row * bytes.len(), &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn arch(&self) -> &dyn Architecture {
        &*self.arch
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model({})", self.description)
    }
}
