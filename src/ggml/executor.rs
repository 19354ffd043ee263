//! Computes graphs over one model's weights on the devices that hold them: builds them once for each key, keeps them, runs
//! them. Owns the planner of graph memory and the built graphs. Knows keys only as something to compare.
//!
//! On one device all graphs share one buffer, sized by the largest so far. Over several, graphs that need little memory have
//! it to themselves, up to a fixed sum over all of them, and only the last of the others is kept (`split.rs`). A run reuses
//! the memory of its inputs, so every run brings all of them; outputs are valid until the next run, which the borrow of
//! [`Outputs`] enforces.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ggml_sys as sys;

use crate::crowding::Crowding;
use crate::device::{Device, GoOn};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::graph::{Graph, Name, Slot};
use crate::planner::{Gone, Place, Planner};
use crate::rank::Rank;
use crate::raw::Arena;
use crate::split::MAX_ALL_OWN;
use crate::state::Inner;
use crate::thread_count::ThreadCount;
use crate::weights::Weights;

/// Built graphs kept at most; the one unused for longest goes first.
const MAX_GRAPHS: usize = 96;

/// The contents of one input.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// 32-bit integers.
    I32(&'a [i32]),
    /// 64-bit integers.
    I64(&'a [i64]),
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 16-bit floats as their bits.
    F16(&'a [u16]),
}

impl Data<'_> {
    fn parts(&self) -> (*const u8, usize, sys::ggml_type) {
        match self {
            Data::I32(d) => (d.as_ptr().cast(), size_of_val(*d), sys::GGML_TYPE_I32),
            Data::I64(d) => (d.as_ptr().cast(), size_of_val(*d), sys::GGML_TYPE_I64),
            Data::F32(d) => (d.as_ptr().cast(), size_of_val(*d), sys::GGML_TYPE_F32),
            Data::F16(d) => (d.as_ptr().cast(), size_of_val(*d), sys::GGML_TYPE_F16),
        }
    }
}

/// Where the time of an executor went, since it was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Graphs computed.
    pub n_runs: u64,
    /// Graphs built.
    pub n_builds: u64,
    /// Building and planning graphs.
    pub build: Duration,
    /// Bringing inputs to the device.
    pub inputs: Duration,
    /// ggml's computation.
    pub compute: Duration,
    /// Bytes brought to the device and back.
    pub n_bytes_copied: u64,
}

impl std::ops::Add for Stats {
    type Output = Stats;

    fn add(self, other: Stats) -> Stats {
        Stats {
            n_runs: self.n_runs + other.n_runs,
            n_builds: self.n_builds + other.n_builds,
            build: self.build + other.build,
            inputs: self.inputs + other.inputs,
            compute: self.compute + other.compute,
            n_bytes_copied: self.n_bytes_copied + other.n_bytes_copied,
        }
    }
}

struct Built<K> {
    key: K,
    cgraph: NonNull<sys::ggml_cgraph>,
    inputs: Vec<Slot>,
    outputs: Vec<Slot>,
    states: Vec<Arc<Inner>>,
    last_used: u64,
    place: Place,
    /// Holds all descriptions above; dropped last.
    _context: Arena,
}

// SAFETY: the pointers lead into `_context`, which moves along; one thread uses the executor at a time (`&mut`).
unsafe impl<K: Send> Send for Built<K> {}

/// Computes graphs over weights. `K` tells graphs apart: equal keys must stand for equal graphs.
///
/// Field order is drop order: graphs, their memory with the streams, and the weights under them.
pub struct Executor<K> {
    graphs: Vec<Built<K>>,
    planner: Planner,
    weights: Arc<Weights>,
    rank: Option<Rank>,
    clock: u64,
    /// The graph that ran last, as long as its outputs are there.
    last: Option<usize>,
    stats: Stats,
    /// `None` where all threads always compute.
    threads: Option<VariableThreads>,
}

impl<K: Clone + Eq + Hash> Executor<K> {
    /// An executor over `weights`, on the devices that hold them, with `n_threads` threads of its own on a CPU.
    ///
    /// # Errors
    /// [`Error::Device`]: a device cannot be opened.
    pub fn new(weights: Arc<Weights>, n_threads: usize) -> Result<Self, Error> {
        Self::of_rank(weights, n_threads, None)
    }

    /// As [`Executor::new`], whose graphs are those of a rank.
    pub(crate) fn of_rank(weights: Arc<Weights>, n_threads: usize, rank: Option<Rank>) -> Result<Self, Error> {
        crate::log::install();
        let planner = Planner::new(weights.devices(), n_threads)?;
        let threads = planner.variable_threads().map(VariableThreads::new);
        Ok(Self { graphs: Vec::new(), planner, weights, rank, clock: 0, last: None, stats: Stats::default(), threads })
    }

    /// Has its threads sleep until the next graph, where they would spin in wait for it: another executor's turn has come.
    pub fn rest(&mut self) {
        self.planner.rest();
    }

    /// The device that outputs come from.
    pub fn device(&self) -> Device {
        self.planner.device()
    }

    /// The weights under the graphs.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// Bytes of the buffers that graphs compute in, on all devices.
    pub fn buffer_bytes(&self) -> usize {
        self.planner.buffer_bytes() + self.own_bytes()
    }

    /// [`Executor::buffer_bytes`] of one device.
    pub fn buffer_bytes_on(&self, device: Device) -> usize {
        let own = self.graphs.iter().filter(|g| matches!(g.place, Place::Own(_)));
        let own: usize = own.map(|g| self.planner.bytes_on(&g.place, device)).sum();
        self.planner.bytes_on(&Place::Shared, device) + own
    }

    /// Where the time went.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// True when a graph with this key is kept.
    pub fn has(&self, key: &K) -> bool {
        self.graphs.iter().any(|g| g.key == *key)
    }

    /// Builds a graph only to make room for it, so that later ones of that size or smaller need no new memory.
    ///
    /// # Errors
    /// As [`Executor::run`], without those of running.
    pub fn reserve(&mut self, max_nodes: usize, key: &K, build: impl for<'g> FnOnce(&Graph<'g>)) -> Result<(), Error> {
        let _working = crate::shutdown::working();
        let built = self.build(key.clone(), max_nodes, true, build)?;
        drop(built);
        Ok(())
    }

    /// Runs the graph of `key`, built first if it is not kept, with all of its inputs.
    ///
    /// # Errors
    /// The builder's first error; no room; an op that the device lacks; an input that is missing, unknown, of another
    /// type or another size; the device stopped.
    pub fn run(
        &mut self,
        key: &K,
        max_nodes: usize,
        build: impl for<'g> FnOnce(&Graph<'g>),
        inputs: &[(Name, Data<'_>)],
    ) -> Result<Outputs<'_>, Error> {
        self.run_if(key, max_nodes, build, inputs, None)
    }

    /// As [`Executor::run`], for as long as `go_on` says yes: on a CPU the run ends after the node at which it says no. Other
    /// devices compute to the end.
    ///
    /// # Errors
    /// As [`Executor::run`]; [`Error::Stopped`].
    pub fn run_while(
        &mut self,
        key: &K,
        max_nodes: usize,
        build: impl for<'g> FnOnce(&Graph<'g>),
        inputs: &[(Name, Data<'_>)],
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Outputs<'_>, Error> {
        self.run_if(key, max_nodes, build, inputs, Some(go_on))
    }

    fn run_if(
        &mut self,
        key: &K,
        max_nodes: usize,
        build: impl for<'g> FnOnce(&Graph<'g>),
        inputs: &[(Name, Data<'_>)],
        go_on: Option<GoOn<'_>>,
    ) -> Result<Outputs<'_>, Error> {
        let _working = crate::shutdown::working();
        let index = self.prepare(key, max_nodes, build, inputs)?;
        let weights = Arc::clone(&self.weights);
        let reading = weights.reading();
        // Host reads of these states wait until the graph is done.
        let mut states = self.states(index).to_vec();
        let access = Inner::lock_all(&mut states);
        let done = self.compute(index, key, go_on);
        drop((access, reading));
        done.map(|()| self.outputs(index))
    }

    /// Builds the graph of `key` if it is not kept and gives it its inputs, for [`Executor::compute`]; gives its number. Contents of
    /// `inputs` are read until the graph was computed, or [`Executor::drop_inputs`].
    pub(crate) fn prepare(
        &mut self,
        key: &K,
        max_nodes: usize,
        build: impl for<'g> FnOnce(&Graph<'g>),
        inputs: &[(Name, Data<'_>)],
    ) -> Result<usize, Error> {
        self.clock += 1;
        self.last = None;
        let index = match self.graphs.iter().position(|g| g.key == *key) {
            Some(index) => index,
            None => {
                let built = self.build(key.clone(), max_nodes, false, build)?;
                if self.graphs.len() >= MAX_GRAPHS {
                    self.drop_oldest(|_| true);
                }
                self.graphs.push(built);
                self.graphs.len() - 1
            }
        };
        let graph = &mut self.graphs[index];
        graph.last_used = self.clock;

        let start = Instant::now();
        let planner = &mut self.planner;
        let set = graph.inputs.iter().try_fold(0, |n, slot| {
            let data = inputs.iter().find(|(name, _)| *name == slot.name);
            let (_, data) = data.ok_or_else(|| slot_error("input", slot.name, "is not given".into()))?;
            Ok(n + set_input(planner, slot, data)?)
        });
        if set.is_err() {
            // Copies that are under way still read from `inputs`.
            planner.drop_inputs();
        }
        self.stats.n_bytes_copied += set? as u64;
        if inputs.len() != graph.inputs.len() {
            let unknown = inputs.iter().find(|(name, _)| graph.inputs.iter().all(|slot| slot.name != *name));
            let name = unknown.map_or(Name("?", 0), |(name, _)| *name);
            planner.drop_inputs();
            return Err(slot_error("input", name, "is not one of the graph's inputs, or is given twice".into()));
        }
        self.stats.inputs += start.elapsed();
        Ok(index)
    }

    /// The states that a graph reads and writes.
    pub(crate) fn states(&self, index: usize) -> &[Arc<Inner>] {
        &self.graphs[index].states
    }

    /// Forgets inputs of graphs that will not be computed.
    pub(crate) fn drop_inputs(&mut self) {
        self.planner.drop_inputs();
    }

    /// Computes the graph of `key` that was prepared last. Whoever calls has locked its states, and before that the weights for
    /// reading.
    pub(crate) fn compute(&mut self, index: usize, key: &K, go_on: Option<GoOn<'_>>) -> Result<(), Error> {
        let start = Instant::now();
        let graph = &self.graphs[index];
        let turn = self.threads.as_ref().map(|threads| threads.choose(key, &mut self.planner));
        // Those of other ranks are the same.
        let outputs = if self.rank.is_none_or(|rank| rank.index == 0) { &graph.outputs[..] } else { &[] };
        // SAFETY: the graph is alive; weights (`self.weights`) and states (`graph.states`, locked by the caller) too; memory was
        // planned for this graph and is valid (`build` drops graphs when it is not).
        let status = unsafe { self.planner.compute(graph.cgraph, &graph.place, outputs, go_on.as_ref()) };
        // What was left early tells nothing of how long the graph takes.
        let done = turn.filter(|_| status == sys::GGML_STATUS_SUCCESS);
        if let Some((threads, turn)) = self.threads.as_mut().zip(done) {
            threads.ran(turn, start.elapsed());
        }
        self.stats.compute += start.elapsed();
        self.stats.n_runs += 1;
        if let Some(lost) = self.planner.lost() {
            return Err(lost);
        }
        if status == sys::GGML_STATUS_ABORTED {
            return Err(Error::Stopped);
        }
        if status != sys::GGML_STATUS_SUCCESS {
            return Err(Error::Compute { device: self.planner.device().name(), status });
        }
        self.last = Some(index);
        Ok(())
    }

    /// The outputs of the graph that was computed last.
    pub(crate) fn outputs(&mut self, index: usize) -> Outputs<'_> {
        Outputs { slots: &self.graphs[index].outputs, stats: &mut self.stats, planner: &self.planner }
    }

    /// The outputs of the last run once more; `None` when it failed, or another graph took its place since.
    pub fn last(&mut self) -> Option<Outputs<'_>> {
        let graph = self.graphs.get(self.last?)?;
        Some(Outputs { slots: &graph.outputs, stats: &mut self.stats, planner: &self.planner })
    }

    /// Bytes of graphs with memory of their own.
    fn own_bytes(&self) -> usize {
        self.graphs.iter().map(|g| g.place.own_bytes()).sum()
    }

    /// Drops the graph unused for longest among `those`; false when there is none.
    fn drop_oldest(&mut self, those: impl Fn(&Built<K>) -> bool) -> bool {
        let among = (0..self.graphs.len()).filter(|&i| those(&self.graphs[i]));
        let oldest = among.min_by_key(|&i| self.graphs[i].last_used);
        oldest.map(|i| self.graphs.swap_remove(i)).is_some()
    }

    /// Gives a graph its memory; others that lose theirs are dropped. `size`: nodes and leaves that it has at most, and
    /// those that graphs of its kind may have. `to_share`: not its own.
    fn plan(
        &mut self,
        cgraph: NonNull<sys::ggml_cgraph>,
        (size, max_size): (usize, usize),
        to_share: bool,
    ) -> Result<Place, Error> {
        if self.planner.prepare(cgraph)? {
            self.graphs.clear();
        }
        let own = if to_share { None } else { self.planner.own_bytes(cgraph, size) };
        if let Some(n_bytes) = own {
            let has_own = |g: &Built<K>| g.place.own_bytes() > 0;
            while self.own_bytes() + n_bytes > MAX_ALL_OWN && self.drop_oldest(has_own) {}
            if let Some(place) = self.planner.plan_own(cgraph, size) {
                return Ok(place);
            }
            // What they take may be what is missing.
            self.graphs.retain(|g| !has_own(g));
        }
        let gone = self.planner.plan_shared(cgraph, max_size).inspect_err(|_| self.graphs.clear())?;
        self.graphs.retain(|g| match gone {
            Gone::None => true,
            Gone::Shared => matches!(g.place, Place::Own(_)),
        });
        Ok(Place::Shared)
    }

    fn build(
        &mut self,
        key: K,
        max_nodes: usize,
        to_share: bool,
        build: impl for<'g> FnOnce(&Graph<'g>),
    ) -> Result<Built<K>, Error> {
        let start = Instant::now();
        self.last = None;
        // ggml counts leaves apart from nodes, and every weight may be one.
        let graph_size = 2 * max_nodes + self.weights.len() + 64;
        let max_tensors = 2 * max_nodes;
        let no_arena = || Error::no_arena(graph_size * 400, "graph descriptions");
        // Room for one more of each node: what `Graph::once_for` makes is not counted.
        let context = Arena::new(max_tensors + max_nodes + 8, graph_size).ok_or_else(no_arena)?;
        // SAFETY: the arena was sized for one graph of this size.
        let cgraph = unsafe { sys::ggml_new_graph_custom(context.as_ptr(), graph_size, false) };
        let cgraph = NonNull::new(cgraph).ok_or_else(no_arena)?;
        let arena = NonNull::new(context.as_ptr()).expect("owned contexts are not null");
        // SAFETY: the arena has room for `max_tensors`, holds the graph, and outlives the builder.
        let graph = unsafe { Graph::new(arena, cgraph, Arc::clone(&self.weights), self.rank, max_tensors) };
        build(&graph);
        let parts = graph.into_parts();
        if let Some(error) = parts.error {
            return Err(error);
        }
        // ggml's schedulers count leaves and nodes together, and add nodes of their own where graphs are split.
        let n_leaves = self.weights.len() + parts.inputs.len() + parts.state_tensors.len();
        // SAFETY: the graph is alive.
        let n_nodes = unsafe { sys::ggml_graph_n_nodes(cgraph.as_ptr()) };
        let size = 2 * (usize::try_from(n_nodes).unwrap_or(0) + n_leaves + 64);
        let place = self.plan(cgraph, (size, 2 * graph_size), to_share)?;
        if crate::nodes::wanted() {
            // SAFETY: the graph is alive and was planned just now.
            unsafe { crate::nodes::tell(cgraph, &self.planner, &place) };
        }
        self.stats.n_builds += 1;
        self.stats.build += start.elapsed();
        let (inputs, outputs, states) = (parts.inputs, parts.outputs, parts.states);
        Ok(Built { key, cgraph, inputs, outputs, states, last_used: self.clock, place, _context: context })
    }
}

/// The number of threads of an executor on a CPU, by what other programs leave.
struct VariableThreads {
    count: ThreadCount,
    crowding: Crowding,
}

/// A graph's run with a number of threads.
struct Turn {
    graph: u64,
    n_threads: usize,
}

impl VariableThreads {
    fn new(most: usize) -> Self {
        Self { count: ThreadCount::new(most, Instant::now()), crowding: Crowding::new() }
    }

    /// Has as many threads as are fast compute the graph of `key`.
    fn choose<K: Hash>(&self, key: &K, planner: &mut Planner) -> Turn {
        let graph = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        let n_threads = self.count.choose(graph);
        planner.use_threads(n_threads);
        Turn { graph, n_threads }
    }

    fn ran(&mut self, turn: Turn, took: Duration) {
        let (now, before) = (Instant::now(), self.count.serves());
        let load = self.crowding.look(now);
        self.count.ran(turn.graph, turn.n_threads, took, load, now);
        if load.is_some() {
            // SAFETY: no preconditions.
            unsafe { sys::nextn_set_crowded(self.count.is_crowded()) };
        }
        if let Some(change) = self.count.change_from(before) {
            tracing::info!("{change}");
        }
    }
}

fn slot_error(kind: &'static str, name: Name, what: String) -> Error {
    Error::Slot { kind, name: name.to_string(), what }
}

fn set_input(planner: &mut Planner, slot: &Slot, data: &Data<'_>) -> Result<usize, Error> {
    let (from, n_bytes, dtype) = data.parts();
    // SAFETY: the slot's description lies in the arena of a kept graph.
    let t = unsafe { slot.ptr.as_ref() };
    // SAFETY: the description is alive.
    let wanted = unsafe { sys::ggml_nbytes(slot.ptr.as_ptr()) };
    if t.type_ != dtype || wanted != n_bytes {
        let (is, wants) = (Dtype::from_raw(dtype), Dtype::from_raw(t.type_));
        return Err(slot_error(
            "input",
            slot.name,
            format!("takes {wanted} bytes of {wants}, given {n_bytes} of {is}"),
        ));
    }
    if let Some((n, op)) = slot.below {
        let range = 0..n;
        let outside = match data {
            Data::I32(ids) => {
                ids.iter().position(|&id| !range.contains(&i64::from(id))).map(|i| (i, i64::from(ids[i])))
            }
            Data::I64(ids) => ids.iter().position(|id| !range.contains(id)).map(|i| (i, ids[i])),
            Data::F32(_) | Data::F16(_) => None,
        };
        if let Some((i, id)) = outside {
            let what = format!("element {i} is {id}, but `{op}` takes ids from 0 to below {n}");
            return Err(slot_error("input", slot.name, what));
        }
    }
    // An input that no op reads gets no memory: nothing to set then.
    if t.buffer.is_null() || t.data.is_null() {
        return Ok(0);
    }
    // SAFETY: the tensor has memory (planned) and exactly `n_bytes` bytes; `from` has as many, and the caller waits for the
    // copy before it is gone.
    unsafe { planner.set(slot.ptr, from, n_bytes) };
    Ok(n_bytes)
}

/// The outputs of the last run; gone with the next one.
pub struct Outputs<'e> {
    slots: &'e [Slot],
    planner: &'e Planner,
    stats: &'e mut Stats,
}

impl Outputs<'_> {
    /// Reads an F32 output whole, replacing what `into` held.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such output, or it is not F32.
    pub fn f32(&mut self, name: impl Into<Name>, into: &mut Vec<f32>) -> Result<(), Error> {
        self.read(name.into(), sys::GGML_TYPE_F32, 0.0, into)
    }

    /// Reads an I32 output whole, replacing what `into` held.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such output, or it is not I32.
    pub fn i32(&mut self, name: impl Into<Name>, into: &mut Vec<i32>) -> Result<(), Error> {
        self.read(name.into(), sys::GGML_TYPE_I32, 0, into)
    }

    fn read<T: Copy>(&mut self, name: Name, dtype: sys::ggml_type, zero: T, into: &mut Vec<T>) -> Result<(), Error> {
        let slot = self.slots.iter().find(|slot| slot.name == name);
        let slot = slot.ok_or_else(|| slot_error("output", name, "is not one of the graph's outputs".into()))?;
        // SAFETY: the slot's description lies in the arena of a kept graph.
        let t = unsafe { slot.ptr.as_ref() };
        // SAFETY: the description is alive.
        let sound = t.type_ == dtype && unsafe { sys::ggml_is_contiguous(slot.ptr.as_ptr()) };
        if !sound {
            let is = Dtype::from_raw(t.type_);
            return Err(slot_error("output", name, format!("is {is}, or not contiguous")));
        }
        // SAFETY: the description is alive.
        let n_bytes = unsafe { sys::ggml_nbytes(slot.ptr.as_ptr()) };
        into.resize(n_bytes / size_of::<T>(), zero);
        let to = into.as_mut_ptr().cast::<u8>();
        match self.planner.staged(slot.ptr) {
            // SAFETY: these are the tensor's `n_bytes` bytes, and `into` was sized for them.
            Some(bytes) => unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) },
            // SAFETY: the tensor has `n_bytes` bytes and `into` was sized for them.
            None => unsafe { sys::ggml_backend_tensor_get(slot.ptr.as_ptr(), to.cast(), 0, n_bytes) },
        }
        self.stats.n_bytes_copied += n_bytes as u64;
        self.planner.lost().map_or(Ok(()), Err)
    }
}
