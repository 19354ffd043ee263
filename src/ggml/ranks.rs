//! Tensor parallelism: devices that compute one model together, each over weights and state of its own, which are parts of the
//! model's. Their graphs are the same but for what the parts are, and meet where sums over all of them are made
//! ([`Graph::all_reduce`]). Owns the executors of all ranks, and what they meet by. Knows nothing of how weights are parted.

use std::ffi::c_void;
use std::hash::Hash;
use std::sync::Arc;
use std::thread;

use ggml_sys as sys;
use kernels::Meeting;

use crate::device::{Device, DeviceKind};
use crate::error::Error;
use crate::executor::{Data, Executor, Outputs, Stats};
use crate::graph::{Graph, Name};
use crate::rank::Rank;
use crate::state::Inner;
use crate::weights::Weights;

type NewGroup = unsafe extern "C" fn(i32, *const sys::ggml_backend_dev_t) -> i32;
type FreeGroup = unsafe extern "C" fn(i32);

/// What the ranks of one model meet by.
#[derive(Debug)]
struct Group {
    number: i32,
    by: Way,
}

#[derive(Debug)]
enum Way {
    Host(Meeting),
    Device(FreeGroup),
}

impl Group {
    fn of(devices: &[Device]) -> Result<Self, Error> {
        let refused = |device: Device, what: String| Error::Device { device: device.name(), what };
        if devices.iter().all(|d| d.kind() == DeviceKind::Cpu) {
            let meeting = Meeting::new(devices.len());
            return Ok(Self { number: meeting.number(), by: Way::Host(meeting) });
        }
        let functions = |device: Device| -> [*mut c_void; 2] {
            [c"nextn_all_reduce_new", c"nextn_all_reduce_free"].map(|name| device.function(name))
        };
        let first = functions(devices[0]);
        // Of one backend, so that each knows the others' memory.
        if let Some(other) = devices.iter().find(|d| functions(**d) != first || first[0].is_null()) {
            return Err(refused(*other, format!("cannot add up with {}", devices[0].name())));
        }
        // SAFETY: null or, by this name, of this type.
        let new: Option<NewGroup> = unsafe { std::mem::transmute(first[0]) };
        // SAFETY: as above.
        let free: Option<FreeGroup> = unsafe { std::mem::transmute(first[1]) };
        let raw: Vec<_> = devices.iter().map(|d| d.raw()).collect();
        let n = i32::try_from(raw.len()).unwrap_or(i32::MAX);
        let (Some(new), Some(free)) = (new, free) else { unreachable!("both were found above") };
        // SAFETY: as many entries of the registry, all of this backend.
        let number = unsafe { new(n, raw.as_ptr()) };
        if number < 0 {
            return Err(refused(devices[0], format!("cannot add up with {} others", raw.len() - 1)));
        }
        Ok(Self { number, by: Way::Device(free) })
    }

    /// Some rank failed: the others are not to wait for it. GPUs give up by themselves.
    fn break_up(&self) {
        if let Way::Host(meeting) = &self.by {
            meeting.break_up();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Way::Device(free) = self.by {
            // SAFETY: made by the backend that the function is of, and nobody else's; executors, which are dropped before, have
            // waited for all that computes with it.
            unsafe { free(self.number) };
        }
    }
}

/// The executors of all ranks of a model; one where one device, or several by turns, compute it alone.
///
/// Field order is drop order: graphs before what they meet by.
pub struct Ranks<K> {
    /// Never empty.
    executors: Vec<Executor<K>>,
    group: Option<Group>,
}

impl<K: Clone + Eq + Hash + Send + Sync> Ranks<K> {
    /// Executors over the weights of each rank, the one that outputs come from first, with `n_threads` threads each on a CPU.
    ///
    /// # Errors
    /// [`Error::Device`]: a device cannot be opened; those of several ranks cannot add up.
    pub fn new(weights: &[Arc<Weights>], n_threads: usize) -> Result<Self, Error> {
        let devices: Vec<Device> = weights.iter().map(|w| w.device()).collect();
        let group = if devices.len() > 1 { Some(Group::of(&devices)?) } else { None };
        let rank = |index| group.as_ref().map(|group| Rank { group: group.number, index, of: devices.len() });
        let open =
            |(index, weights): (usize, &Arc<Weights>)| Executor::of_rank(Arc::clone(weights), n_threads, rank(index));
        Ok(Self { executors: weights.iter().enumerate().map(open).collect::<Result<_, _>>()?, group })
    }

    /// As [`Executor::run`]; `build` builds the graph of [`Graph::rank`]. Outputs are those of the first rank.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn run(
        &mut self,
        key: &K,
        max_nodes: usize,
        build: impl for<'g> Fn(&Graph<'g>),
        inputs: &[(Name, Data<'_>)],
    ) -> Result<Outputs<'_>, Error> {
        if self.executors.len() == 1 {
            return self.executors[0].run(key, max_nodes, build, inputs);
        }
        let _working = crate::shutdown::working();
        // All or none: a rank that computes waits for the others.
        let mut ready = Vec::with_capacity(self.executors.len());
        for executor in &mut self.executors {
            match executor.prepare(key, max_nodes, &build, inputs) {
                Ok(index) => ready.push(index),
                Err(error) => {
                    self.executors.iter_mut().for_each(Executor::drop_inputs);
                    return Err(error);
                }
            }
        }
        let weights: Vec<Arc<Weights>> = self.executors.iter().map(|e| Arc::clone(e.weights())).collect();
        let reading: Vec<_> = weights.iter().map(|w| w.reading()).collect();
        let mut states: Vec<Arc<Inner>> = Vec::new();
        for (executor, &index) in self.executors.iter().zip(&ready) {
            states.extend(executor.states(index).iter().cloned());
        }
        let access = Inner::lock_all(&mut states);
        let group = self.group.as_ref();
        if let Some(Way::Host(meeting)) = group.map(|group| &group.by) {
            meeting.begin();
        }
        let compute = |executor: &mut Executor<K>, index: usize| {
            let done = executor.compute(index, key, None);
            if let (Err(_), Some(group)) = (&done, group) {
                group.break_up();
            }
            done
        };
        let compute = &compute;
        let done: Vec<Result<(), Error>> = thread::scope(|s| {
            let mut all = self.executors.iter_mut().zip(&ready);
            let first = all.next();
            let others: Vec<_> = all.map(|(executor, &index)| s.spawn(move || compute(executor, index))).collect();
            let first = first.map(|(executor, &index)| compute(executor, index));
            let of_others =
                others.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            first.into_iter().chain(of_others).collect()
        });
        drop((access, reading));
        done.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(self.executors[0].outputs(ready[0]))
    }

    /// As [`Executor::reserve`].
    ///
    /// # Errors
    /// As [`Executor::reserve`].
    pub fn reserve(&mut self, max_nodes: usize, key: &K, build: impl for<'g> Fn(&Graph<'g>)) -> Result<(), Error> {
        self.executors.iter_mut().try_for_each(|executor| executor.reserve(max_nodes, key, &build))
    }

    /// The outputs of the last run once more, as [`Executor::last`].
    pub fn last(&mut self) -> Option<Outputs<'_>> {
        self.executors[0].last()
    }

    /// As [`Executor::rest`].
    pub fn rest(&mut self) {
        self.executors.iter_mut().for_each(Executor::rest);
    }

    /// Where the time of the first rank went, for which the others wait.
    pub fn stats(&self) -> Stats {
        self.executors[0].stats()
    }

    /// Bytes of the buffers that graphs compute in, on all devices.
    pub fn buffer_bytes(&self) -> usize {
        self.executors.iter().map(Executor::buffer_bytes).sum()
    }

    /// [`Ranks::buffer_bytes`] of one device.
    pub fn buffer_bytes_on(&self, device: Device) -> usize {
        self.executors.iter().map(|executor| executor.buffer_bytes_on(device)).sum()
    }
}
