//! Opening a model: maps, headers, shards, and the order in which they are checked, placed and bound.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ggml::{Device, DeviceKind, LoadProgress, Mapping, WeightsBuilder};
use gguf::{Header, SplitInfo};
use memory::LayerState;

use crate::adapter;
use crate::arch;
use crate::architecture::{Hparams, ModelFile, NextNHead, Opened};
use crate::describe::Description;
use crate::error::LoadError;
use crate::expert_cache::expert_copies;
use crate::feature_head::{FeatureHeadEntry, FeatureTarget, WithFeatures};
use crate::head_file::{head_keys, mark_replaceable, refused};
use crate::keys::{Keys, PROJECTOR};
use crate::memory_plan::Facts;
use crate::model::Model;
use crate::placement::{ExpertCacheSize, Placement, block, is_input};
use crate::pooling::EmbeddingInfo;
use crate::rope::n_ctx_usable;
use crate::rope_options::RopeOptions;
use crate::share::{self, Cuts, Share};
use crate::tensor_override::check_overrides;
use crate::tensor_parallel::Peer;
use crate::tensors::{FileTensors, Tensors, Updatable};

/// How a model is opened.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Where the weights go.
    pub placement: Placement,
    /// A GGUF file whose NextN head is taken, and nothing else of it; `None` is the model's own head.
    pub head: Option<PathBuf>,
    /// Keep the model's own NextN head beside that of [`LoadOptions::head`], where both have as many layers: drafts may come from
    /// either ([`crate::WhichHead`]). Not where numbers of a head shall be replaced, nor beside copies of experts.
    pub keep_own_head: bool,
    /// Keep the numbers of the NextN head in memory of their own, for [`Model::replace_head`].
    pub replaceable_head: bool,
    /// The rotation of positions, where it shall differ from the file's; of the head as well.
    pub rope: RopeOptions,
    /// Files of LoRA adapters, which passes may use; their numbers are their places here.
    pub adapters: Vec<PathBuf>,
    /// Keep the pages of the files in memory. Where that is refused, a warning says so and the model is used all the same.
    pub lock: bool,
    /// Told how far locking and copying are.
    pub progress: LoadProgress,
}

/// Maps a file, with all shards when it is the first of several.
///
/// # Errors
/// A file that is not there or no GGUF file; a shard that is not the first.
pub fn map_shards(path: &Path) -> Result<Vec<Arc<Mapping>>, LoadError> {
    let first = Arc::new(Mapping::open(path)?);
    let split = SplitInfo::of(&Header::parse(first.bytes())?)?;
    let mut mappings = vec![first];
    if let Some(info) = split {
        let paths = gguf::shard_paths(path, &info)?;
        for path in &paths[1..] {
            mappings.push(Arc::new(Mapping::open(path)?));
        }
    }
    Ok(mappings)
}

/// The headers of all shards, which must belong together.
fn parse(mappings: &[Arc<Mapping>]) -> Result<Vec<Header<'_>>, LoadError> {
    let headers = mappings.iter().map(|m| Header::parse(m.bytes())).collect::<Result<Vec<_>, _>>()?;
    if headers.len() > 1 {
        gguf::check_shards(&headers)?;
    } else if let Some(header) = headers.first()
        && let Some(info) = SplitInfo::of(header)?.filter(|info| info.count > 1)
    {
        return Err(LoadError::Shard(format!("the file is one of {} shards, the others are not here", info.count)));
    }
    Ok(headers)
}

impl Model {
    /// Opens a GGUF file, with all shards when it is the first of several.
    ///
    /// # Errors
    /// [`LoadError`] names what does not fit; the file is mapped, and nothing of it is believed unchecked.
    pub fn open(path: &Path, options: &LoadOptions) -> Result<Arc<Model>, LoadError> {
        Self::from_mappings(map_shards(path)?, options)
    }

    /// A model that is part of the program.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn from_static(bytes: &'static [u8], options: &LoadOptions) -> Result<Arc<Model>, LoadError> {
        Self::from_mappings(vec![Arc::new(Mapping::Static(bytes))], options)
    }

    fn from_mappings(mappings: Vec<Arc<Mapping>>, options: &LoadOptions) -> Result<Arc<Model>, LoadError> {
        let of_head = options.head.as_deref().map(map_shards).transpose()?.unwrap_or_default();
        let headers = parse(&mappings)?;
        let head_headers = parse(&of_head)?;
        let n_model = mappings.len();
        let mut all = mappings.clone();
        all.extend(of_head.iter().cloned());
        if options.lock {
            lock(all.iter().map(Arc::as_ref), &options.progress);
        }
        let meta = headers[0].metadata();
        let name = meta.require_str("general.architecture")?;
        if let Some(head) = arch::find_head(name) {
            return Err(LoadError::HeadAlone { found: name.to_owned(), target: head.target });
        }
        if arch::find_feature_head(name).is_some() {
            return Err(LoadError::HeadAlone {
                found: name.to_owned(),
                target: "the architecture that it was trained for",
            });
        }
        if name == PROJECTOR {
            return Err(LoadError::ProjectorAlone);
        }
        arch::find(name)?;
        let vocab = Arc::new(text::Vocab::from_metadata(meta)?);
        let keys = Keys::new(meta, name, options.rope);
        let (n_ctx_train, n_vocab) = (n_ctx_usable(&keys)?, vocab.len());
        let embedding = EmbeddingInfo::read(meta, &keys, n_vocab)?;
        let source = Source { headers: &headers, head_headers: &head_headers, maps: &all, options };
        let n_shares = options.placement.n_shares()?;
        refuse_beside_shares(n_shares, options)?;
        let bind = |index: usize| source.bind(Share { index, of: n_shares }, n_vocab);
        let Bound { mut opened, mut weights, updatable } = bind(0)?;
        opened.hparams.n_ctx_train = n_ctx_train;
        let open = |(id, path): (usize, &PathBuf)| adapter::open(path, id, name, &updatable, &mut weights);
        let adapters = options.adapters.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
        if options.lock {
            lock(adapters.iter().map(adapter::Adapter::mapping), &LoadProgress::default());
        }
        if options.replaceable_head {
            let of_head = if head_headers.is_empty() { &headers } else { &head_headers };
            mark_replaceable(&mut weights, of_head, opened.hparams.n_layer);
        }
        let facts = facts_of(&opened, &weights);
        let plan = options.placement.plan(Share { index: 0, of: n_shares }, weights.sizes(), &facts)?;
        let tied = !weights.sizes().any(|(name, _)| name == "output.weight");
        check_overrides(&options.placement.overrides, weights.shapes())?;
        let wanted = options.placement.expert_cache;
        weights.copy_experts(expert_copies(wanted, &plan, &weights, tied, !adapters.is_empty())?);
        if options.placement.repack {
            weights.join_rows(|name| !is_input(name, tied) && !name.ends_with("nextn.embed_tokens.weight"));
        }
        let weights = weights.build_on(&plan.devices(), |name| plan.device(name, tied))?;
        let of_share = |index: usize| {
            let Bound { opened, weights, .. } = bind(index)?;
            let share = Share { index, of: n_shares };
            let plan = options.placement.plan(share, weights.sizes(), &facts_of(&opened, &weights))?;
            let weights = weights.build_on(&plan.devices(), |name| plan.device(name, tied))?;
            Ok(Peer { arch: opened.arch, device: plan.block(0), weights })
        };
        let peers = (1..n_shares).map(of_share).collect::<Result<Vec<Peer>, LoadError>>()?;
        let on_cpu = weights.devices().iter().all(|d| d.kind() == DeviceKind::Cpu);
        if options.placement.repack {
            tell_of_joined_rows(weights.joined_bytes());
        }
        tell_of_batches(&weights, rows_alike(&facts, &weights), on_cpu);
        if let NextNHead::Missing(names) = &opened.nextn {
            tracing::warn!(
                missing = names.join(", "),
                "the file promises a NextN head and lacks its tensors: running without speculation; `extract-nextn graft` adds a head"
            );
        }
        let Opened { arch, hparams, nextn, .. } = opened;
        Ok(Arc::new(Model {
            description: Description::of(&headers, name, nextn.is_bound()),
            template: meta.str("tokenizer.chat_template")?.map(str::to_owned),
            tool_use_template: meta.str("tokenizer.chat_template.tool_use")?.map(str::to_owned),
            sampling: sampling_defaults(meta)?,
            embedding,
            facts: Facts {
                on_cpu,
                rows_alike: rows_alike(&facts, &weights),
                gpus: gpus(&weights).chain(peers.iter().flat_map(|peer| gpus(&peer.weights))).collect(),
                ..facts
            },
            n_files: [n_model, of_head.len()],
            rope: options.rope,
            fingerprints: OnceLock::new(),
            arch,
            hparams,
            nextn,
            adapters,
            peers,
            weights,
            plan,
            vocab,
        }))
    }
}

/// Files that a model is bound from.
struct Source<'a> {
    headers: &'a [Header<'a>],
    head_headers: &'a [Header<'a>],
    /// Of both, one after the other.
    maps: &'a [Arc<Mapping>],
    options: &'a LoadOptions,
}

/// A model, or a share of one, whose tensors have no place yet.
struct Bound {
    opened: Opened,
    weights: WeightsBuilder,
    updatable: HashMap<String, Updatable>,
}

impl Source<'_> {
    /// Asks for the tensors of a share, for a vocabulary of `n_vocab` tokens.
    fn bind(&self, share: Share, n_vocab: usize) -> Result<Bound, LoadError> {
        let Self { headers, head_headers, maps, options } = *self;
        let meta = headers[0].metadata();
        let name = meta.require_str("general.architecture")?;
        let entry = arch::find(name)?;
        let (head_keys, of_features) = match head_headers.first() {
            Some(header) => {
                let of_features = match header.metadata().str("general.architecture")? {
                    Some(own) => arch::find_feature_head(own),
                    None => None,
                };
                if of_features.is_none() && !arch::takes_head(entry, name) {
                    return Err(refused(format!("architecture `{name}` takes none")));
                }
                let keys = head_keys(header.metadata(), meta, name, options.rope, arch::drafts_for)?;
                match of_features {
                    Some(entry) => (None, Some((keys, entry))),
                    None => (Some(keys), None),
                }
            }
            None => (None, None),
        };
        let mut tensors = Tensors::Bind {
            file: FileTensors::of(headers, 0),
            other: FileTensors::of(head_headers, maps.len() - head_headers.len()),
            weights: WeightsBuilder::new(maps.to_vec()).with_progress(options.progress.clone()),
            updatable: HashMap::new(),
            label: "",
            cuts: Cuts::of(share),
        };
        let keys = Keys::new(meta, name, options.rope);
        let own_head = of_features.is_none() && (head_keys.is_none() || keeps_own_head(options));
        let file = &mut ModelFile { keys, head_keys, own_head, tensors: &mut tensors, n_vocab, share };
        let mut opened = (entry.open)(file)?;
        if let Some((keys, entry)) = of_features {
            opened = with_features(opened, &mut tensors, &keys, entry)?;
        }
        if opened.share != share {
            return Err(share::refused(format!("architecture `{name}` is not supported: use --split-mode layer")));
        }
        let Tensors::Bind { weights, updatable, .. } = tensors else { unreachable!("it was made so above") };
        Ok(Bound { opened, weights, updatable })
    }
}

/// What a model that is shared by several devices cannot have beside.
fn refuse_beside_shares(n_shares: usize, options: &LoadOptions) -> Result<(), LoadError> {
    let beside = [
        (!options.adapters.is_empty(), "LoRA adapters (--lora)"),
        (options.replaceable_head, "a NextN head that learns (--learn-live)"),
    ];
    match beside.iter().find(|(is_there, _)| *is_there && n_shares > 1) {
        Some((_, what)) => Err(share::refused(format!("{what} cannot be used with it: use --split-mode layer"))),
        None => Ok(()),
    }
}

/// See [`LoadOptions::keep_own_head`].
fn keeps_own_head(options: &LoadOptions) -> bool {
    options.keep_own_head && !options.replaceable_head && options.placement.expert_cache == ExpertCacheSize::Off
}

/// Keeps the pages of files in memory, as far as that is allowed.
fn lock<'m>(mappings: impl Iterator<Item = &'m Mapping> + Clone, progress: &LoadProgress) {
    for error in Mapping::lock_all(mappings, progress) {
        tracing::warn!(%error, "going on without --mlock: raise the limit (ulimit -l), or use a smaller model");
    }
}

/// GPUs that weights lie on.
fn gpus(weights: &ggml::Weights) -> impl Iterator<Item = Device> {
    weights.devices().iter().copied().filter(|d| d.kind() != DeviceKind::Cpu)
}

/// See [`Model::rows_alike`]: products, and on GPUs attention over F16 cells.
fn rows_alike(facts: &Facts, weights: &ggml::Weights) -> Option<usize> {
    let of_layer = |layer: &LayerState| match layer {
        LayerState::Kv(kv) if kv.latent || kv.d_k != kv.d_v => gpus(weights).next().is_none().then_some(usize::MAX),
        LayerState::Kv(kv) => gpus(weights).try_fold(usize::MAX, |least, d| Some(least.min(d.queries_alike(kv.d_k)?))),
        LayerState::None | LayerState::Recurrent(_) => Some(usize::MAX),
    };
    let products = weights.rows_alike()?;
    facts.layout.layers.iter().map(of_layer).try_fold(products, |least, n| Some(least.min(n?)))
}

/// Says what `--repack` takes, or that it does nothing.
fn tell_of_joined_rows(n_bytes: usize) {
    match n_bytes {
        0 => tracing::warn!(
            kernels = ggml::kernels_in_use(),
            "--repack has no effect: no weight here is multiplied faster so (docs/KERNELS.md)"
        ),
        _ => tracing::info!(mib = n_bytes >> 20, "weights are in memory once more, repacked"),
    }
}

/// Says so where drafts may change a greedy reply (docs/NUMERICS.md).
fn tell_of_batches(weights: &ggml::Weights, rows_alike: Option<usize>, on_cpu: bool) {
    if rows_alike.is_some() {
        return;
    }
    if !on_cpu {
        tracing::info!(
            "a GPU's products depend on the batch: drafts may change greedy output at near ties; --exact keeps it"
        );
        return;
    }
    let types = weights.dtypes_of_no_promise().join(", ");
    tracing::warn!(
        types,
        "products with weights of these types depend on the batch: drafts may change greedy output at near ties; --exact keeps it"
    );
}

/// A target with a head of another file that reads the streams of its layers.
fn with_features(
    opened: Opened,
    tensors: &mut Tensors<'_>,
    keys: &Keys<'_, '_>,
    entry: &FeatureHeadEntry,
) -> Result<Opened, LoadError> {
    let Opened { arch: target, hparams, share, head: shape, .. } = opened;
    let tables = target.tables().ok_or_else(|| refused("the model does not give the streams of its layers"))?;
    let Hparams { n_layer, n_embd, n_vocab, .. } = hparams;
    let of_target = FeatureTarget { n_layer, n_embd, n_vocab, tables };
    let head = tensors.in_head_file(entry.label, |t| (entry.open)(keys, t, &of_target))?;
    Ok(Opened { arch: Box::new(WithFeatures { target, head }), hparams, nextn: NextNHead::Bound, share, head: shape })
}

/// What is known of a model whose tensors are bound.
fn facts_of(opened: &Opened, weights: &WeightsBuilder) -> Facts {
    let (arch, hparams) = (&opened.arch, opened.hparams.clone());
    let mut widths: HashMap<usize, usize> = HashMap::new();
    let mut seen = HashSet::new();
    for (name, _, [_, n_out, n_matrices, _]) in weights.shapes() {
        // Two heads have tensors of the same names, and a pass computes one of them.
        if let Some(il) = block(name).filter(|_| seen.insert(name)) {
            let n_matrices = usize::try_from(n_matrices).unwrap_or(1);
            // Of experts those that a token uses; those of heads all.
            let n_used = if name.contains("_exps.") { hparams.n_expert_used.max(1) } else { n_matrices };
            let n_out = usize::try_from(n_out).unwrap_or(0);
            *widths.entry(il).or_default() += n_out * n_used;
        }
    }
    Facts {
        layout: arch.state(),
        head: arch.mtp_states(),
        own_head: arch.own_mtp_states(),
        block: arch.draft_block(),
        n_draft_words: arch.draft_words().map(<[u32]>::len),
        head_row_bytes: opened.draft_heads().into_iter().filter_map(|id| weights.row_bytes(id)).sum(),
        on_cpu: false,
        rows_alike: None,
        gpus: Vec::new(),
        layer_width: widths.into_values().max().unwrap_or(0),
        hparams,
    }
}

/// `general.sampling.*`: what the model's makers recommend, by the key's last words. Converters write numbers of any type,
/// and the order of the stages as text.
fn sampling_defaults(meta: &gguf::Metadata<'_>) -> Result<HashMap<String, String>, LoadError> {
    let mut found = HashMap::new();
    for (key, value) in meta.iter() {
        let Some(name) = key.strip_prefix("general.sampling.") else { continue };
        let text = match value {
            gguf::Value::F32(x) => Some(x.to_string()),
            gguf::Value::F64(x) => Some(x.to_string()),
            gguf::Value::Str(_) => meta.str(key)?.map(str::to_owned),
            _ => value.as_int().map(|n| n.to_string()),
        };
        if let Some(text) = text {
            found.insert(name.to_owned(), text);
        }
    }
    Ok(found)
}
