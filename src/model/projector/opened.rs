//! A projector that is ready: weights on a device, a tower over them, and the executor of its graphs.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ggml::{Data, Device, DeviceKind, Dtype, Executor, Graph, LoadProgress, Mapping, Name, Weights, WeightsBuilder};
use gguf::Header;
use vision::{ImageLimits, Patches, Processor, VisionError};

use super::file::{Known, ProjectorFile};
use super::parts::max_nodes;
use super::table::find;
use super::tower::{Entry, Seen, Tower};
use crate::describe::Description;
use crate::embedded::Embedded;
use crate::error::{LoadError, RunError};
use crate::fingerprint::{Fingerprint, digest};
use crate::load::map_shards;
use crate::model::Model;
use crate::rope_options::RopeOptions;
use crate::share::Cuts;
use crate::tensors::{FileTensors, Tensors};

/// How a projector is opened.
#[derive(Clone, Debug, Default)]
pub struct ProjectorOptions {
    /// Where it lies and computes; `None` is the CPU.
    pub device: Option<Device>,
    /// Threads of its own on a CPU; 0 is one.
    pub n_threads: usize,
    /// Keep the pages of the file in memory.
    pub lock: bool,
    /// Told how far locking and copying are.
    pub progress: LoadProgress,
}

/// What tells graphs of a tower apart: a picture's grid in patches, and whether it is a pair of frames.
type Key = ([usize; 3], bool);

/// A projector. Threads may share it: pictures are computed one after the other.
pub struct Projector {
    entry: &'static Entry,
    tower: Box<dyn Tower>,
    weights: Arc<Weights>,
    description: Description,
    fingerprint: Fingerprint,
    n_threads: usize,
    executor: Mutex<Option<Executor<Key>>>,
}

/// Buffers of graphs that are kept for the next picture; larger ones are given back.
const MAX_KEPT: usize = 512 << 20;

impl Projector {
    /// Opens a projector's GGUF file.
    ///
    /// # Errors
    /// [`LoadError`] names what does not fit; the file is mapped, and nothing of it is believed unchecked.
    pub fn open(path: &Path, options: &ProjectorOptions) -> Result<Projector, LoadError> {
        let mappings = map_shards(path)?;
        let [mapping] = mappings.as_slice() else {
            return Err(LoadError::Projector(format!("it is in {} shards; one file is read", mappings.len())));
        };
        let locked = [mapping.as_ref()].into_iter().filter(|_| options.lock);
        for error in Mapping::lock_all(locked, &options.progress) {
            tracing::warn!(%error, "going on without --mlock for the projector: raise the limit (ulimit -l)");
        }
        Projector::of_mapping(mapping, options)
    }

    fn of_mapping(mapping: &Arc<Mapping>, options: &ProjectorOptions) -> Result<Projector, LoadError> {
        let header = Header::parse(mapping.bytes())?;
        let headers = std::slice::from_ref(&header);
        let entry = find(header.metadata())?;
        let mut tensors = Tensors::Bind {
            file: FileTensors::of(headers, 0),
            other: FileTensors::default(),
            weights: WeightsBuilder::new(vec![Arc::clone(mapping)]).with_progress(options.progress.clone()),
            updatable: HashMap::new(),
            cuts: Cuts::default(),
            label: "",
        };
        let number = |name: &str| number(&header, mapping.bytes(), name);
        let known = Known { n_rows: &|name| header.tensor(name).map(|t| t.ne[1]), number: &number };
        let tower = (entry.open)(&mut ProjectorFile::new(header.metadata(), &mut tensors, known))?;
        let Tensors::Bind { weights, .. } = tensors else { unreachable!("it was made so above") };
        let device = options.device.map_or_else(Device::cpu, Ok)?;
        let description = Description::of(headers, entry.name, false);
        let shape = tower.shape();
        tracing::info!(kind = entry.name, n_layer = shape.n_layer, device = device.name(), "projector placed");
        Ok(Projector {
            entry,
            weights: weights.build(device)?,
            description,
            fingerprint: digest(std::slice::from_ref(mapping), &RopeOptions::default())?,
            n_threads: options.n_threads.max(1),
            executor: Mutex::default(),
            tower,
        })
    }

    /// The preprocessing that the published one of its family is, with a user's limits.
    ///
    /// # Errors
    /// As [`Processor::limited`].
    pub fn processor(&self, limits: &ImageLimits) -> Result<Processor, VisionError> {
        self.tower.shape().processor.clone().limited(limits)
    }

    /// Two frames of a video that follow each other are seen as one.
    pub fn takes_pairs(&self) -> bool {
        self.tower.takes_pairs()
    }

    /// The kind of tower: `clip.projector_type`.
    pub fn kind(&self) -> &'static str {
        self.entry.name
    }

    /// Width of the rows that it gives: the text model's.
    pub fn n_embd_text(&self) -> usize {
        self.tower.shape().n_embd_text
    }

    /// What the file says of itself.
    pub fn describe(&self) -> &Description {
        &self.description
    }

    /// SHA-256 over the file's header and a sample of its tensors: rows of two projectors must not be mixed up.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The weights.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// Whether its rows are what a model of text takes in place of embeddings.
    ///
    /// # Errors
    /// [`LoadError::Projector`] with what disagrees.
    pub fn fits(&self, model: &Model) -> Result<(), LoadError> {
        self.entry.fits(self.n_embd_text(), &model.describe().architecture, model.hparams().n_embd)
    }

    /// Computes one picture. Buffers grow with the number of patches and are given back when they are large.
    ///
    /// # Errors
    /// Patches of another size or more of them than the tower has positions for; no room; the device stopped.
    pub fn embed(&self, patches: &Patches) -> Result<Embedded, RunError> {
        self.embed_while(patches, &|| true)
    }

    /// As [`Projector::embed`], for as long as `go_on` says yes: a CPU stops within a layer, another device after the picture.
    ///
    /// # Errors
    /// As there; [`ggml::Error::Stopped`].
    pub fn embed_while(&self, patches: &Patches, go_on: &(dyn Fn() -> bool + Sync)) -> Result<Embedded, RunError> {
        self.check(patches)?;
        let n_patches = patches.n_patches();
        let on_cpu = self.weights.device().kind() == DeviceKind::Cpu;
        let mut held = self.executor.lock().unwrap_or_else(PoisonError::into_inner);
        let executor = match &mut *held {
            Some(executor) => executor,
            none => none.insert(Executor::new(Arc::clone(&self.weights), self.n_threads)?),
        };
        let inputs = self.tower.inputs(patches);
        let mut data: Vec<(Name, Data<'_>)> = inputs.iter().map(|input| input.data()).collect();
        data.push((Name("pixels", 0), Data::F32(&patches.pixels)));
        let is_pair = !patches.later.is_empty();
        if is_pair {
            data.push((Name("later", 0), Data::F32(&patches.later)));
        }
        let n_pixels = (patches.pixels.len() / n_patches) as i64;
        let build = |g: &Graph<'_>| {
            let frame = |name: &'static str| g.input(name, Dtype::F32, [n_pixels, n_patches as i64, 1, 1]);
            let (pixels, later) = (frame("pixels"), is_pair.then(|| frame("later")));
            g.output("rows", self.tower.build(g, &Seen { pixels, later, n_patches, on_cpu }));
        };
        let mut rows = Vec::new();
        let n_nodes = max_nodes(self.tower.shape(), n_patches);
        let ran = executor.run_while(&(patches.grid, is_pair), n_nodes, build, &data, go_on);
        let ran = ran.and_then(|mut out| out.f32("rows", &mut rows));
        executor.rest();
        if ran.is_err() || executor.buffer_bytes() > MAX_KEPT {
            *held = None;
        }
        ran?;
        if rows.iter().any(|x| !x.is_finite()) {
            return Err(RunError::Pass("the projector gave rows that are not finite: its file may be damaged".into()));
        }
        Ok(Embedded { rows, grid: patches.token_grid() })
    }

    /// Whether patches are what the tower takes.
    fn check(&self, patches: &Patches) -> Result<(), RunError> {
        let shape = self.tower.shape();
        let Processor { patch, merge, .. } = shape.processor;
        let [n_times, height, width] = patches.grid;
        let n_values = height.checked_mul(width).and_then(|n| n.checked_mul(patch * patch * 3));
        let whole = height % merge == 0 && width % merge == 0 && height > 0 && width > 0;
        if patches.merge != merge || n_times != 1 || !whole || n_values != Some(patches.pixels.len()) {
            let what = format!(
                "{} values in a grid of {:?} patches with blocks of {}, one frame of whole blocks of {merge} with patches of {patch} expected",
                patches.pixels.len(),
                patches.grid,
                patches.merge
            );
            return Err(RunError::Pass(what));
        }
        let n_later = patches.later.len();
        if n_later > 0 && !(self.tower.takes_pairs() && n_later == patches.pixels.len()) {
            let what =
                format!("{n_later} values of a second frame, which a projector of type {} takes not", self.kind());
            return Err(RunError::Pass(what));
        }
        match shape.max_side {
            Some(max) if height.max(width) > max => {
                let what =
                    format!("a picture of {width} x {height} patches: the projector has positions for {max} on a side");
                Err(RunError::Pass(what))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Projector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Projector({})", self.description)
    }
}

/// The value of a tensor of one F32 number.
fn number(header: &Header<'_>, bytes: &[u8], name: &str) -> Option<f32> {
    let tensor = header.tensor(name).filter(|t| t.dtype == gguf::TensorType::F32)?;
    let value = bytes.get(tensor.range())?;
    Some(f32::from_le_bytes(value.try_into().ok()?))
}
