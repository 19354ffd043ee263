//! Experts in the host's memory of whom some have copies on another device: which these are, and how they change.
//! Owns the copies, their numbers and the counts of use. Knows tensors of equal parts; knows nothing of what experts compute.
//!
//! A layer's experts have numbers of copies in two tables, one for each device: the host leaves experts with copies out
//! (`ops/expert_copies.rs`), the other device looks up where theirs lie. Behind the last copy lies one of zeros, for experts
//! that have none. So whatever is copied, a sum over both devices is that of all experts that a token uses.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use ggml_sys as sys;
use kernels::{Isa, WeightType};

use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::progress::Counted;
use crate::raw::{Buffer, Context};
use crate::weight_tensor::{Arena, WeightId, WeightTensor};

/// The experts of one layer, some of whom shall have copies.
#[derive(Clone, Debug)]
pub struct ExpertLayer {
    /// Tensors in the host's memory whose last dimension counts experts: matrices `[n_in, n_out, n_expert]` and what belongs to
    /// them.
    pub tensors: Vec<WeightId>,
    /// How many experts there are.
    pub n_expert: usize,
    /// How many have copies at one time.
    pub n_copies: usize,
    /// Where the copies lie.
    pub device: Device,
}

impl ExpertLayer {
    /// True when the CPU's kernels can leave matrices `ne: [n_in, n_out, n_expert]` of this type out.
    pub fn serves(dtype: Dtype, ne: [i64; 4]) -> bool {
        let ty = WeightType::of(dtype.raw()).filter(|_| Isa::chosen().is_some());
        ty.is_some_and(|ty| usize::try_from(ne[0]).is_ok_and(|k| k.is_multiple_of(ty.format().block())))
    }

    /// Bytes that copies of `n_copies` experts take where one has `bytes`: with the one of zeros and the numbers.
    pub fn bytes(bytes: usize, n_expert: usize, n_copies: usize) -> usize {
        bytes * (n_copies + 1) + n_expert * size_of::<i32>()
    }
}

/// An expert takes the place of another when it was used so many times more often, and half as often again: chance alone moves
/// few copies.
const MORE_USES: i32 = 16;

/// Uses of an expert on average from which on all counts are halved, so that the latest texts count most.
const MANY_USES: i32 = 64;

/// A tensor of experts and its copies.
struct Pair {
    of: (WeightId, WeightTensor),
    copies: (WeightId, WeightTensor),
}

/// A layer with copies.
pub(crate) struct CachedLayer {
    pairs: Vec<Pair>,
    n_expert: usize,
    n_copies: usize,
    /// i32 `[1, n_expert]` on the device of the copies: the number of an expert's copy, `n_copies` without one.
    numbers_there: WeightTensor,
    /// i32 `[n_expert]` in the host's memory: the same, -1 without one.
    numbers: WeightTensor,
    /// i32 `[n_expert + 1]` in the host's memory: how often each was asked for, and how often there was a copy.
    counts: WeightTensor,
    /// The number of each expert's copy, as in the tables.
    number_of: Mutex<Vec<Option<usize>>>,
}

/// Copies of a model's experts.
#[derive(Default)]
pub(crate) struct ExpertCache {
    pub(crate) layers: Vec<CachedLayer>,
    /// Where exchanges go on; it counts beyond the last.
    next_layer: AtomicUsize,
}

/// Tensors that are added to those of a file.
pub(crate) struct Added<'a> {
    pub(crate) tensors: &'a mut Vec<WeightTensor>,
    pub(crate) names: &'a mut Vec<String>,
    /// The number of each tensor's device among the weights'.
    pub(crate) places: &'a mut Vec<usize>,
    pub(crate) buffers: &'a mut Vec<Buffer>,
    pub(crate) contexts: &'a mut Vec<Context>,
}

impl ExpertCache {
    /// Copies the first experts of each layer. `devices`: those of the weights; `data`: the bytes of a tensor.
    pub(crate) fn build<'d>(
        layers: &[ExpertLayer],
        devices: &[Device],
        data: impl Fn(WeightId) -> &'d [u8],
        added: &mut Added<'_>,
        copied: &mut Counted<'_>,
    ) -> Result<Self, Error> {
        let cpu = Device::cpu()?;
        let mut host = Arena::new(cpu, 2 * layers.len())?;
        let mut there: Vec<(usize, Arena)> = Vec::new();
        let mut cache = Self::default();
        for layer in layers {
            let refused = |what: String| Error::Tensor { name: format!("{:?}", layer.tensors), what };
            let place = devices.iter().position(|d| *d == layer.device);
            let place = place.ok_or_else(|| refused(format!("{} computes nothing", layer.device.name())))?;
            if !there.iter().any(|(p, _)| *p == place) {
                let n = layers.iter().map(|l| l.tensors.len() + 1).sum();
                there.push((place, Arena::new(layer.device, n)?));
            }
            let (_, arena) = there.iter_mut().find(|(p, _)| *p == place).expect("just added");
            let n_expert = layer.n_expert as i64;
            let mut pairs = Vec::new();
            for &id in &layer.tensors {
                let of = added.tensors.get(id.index()).ok_or_else(|| refused(format!("there is no {id:?}")))?;
                // SAFETY: descriptions of weights are alive.
                let t = unsafe { of.0.as_ref() };
                // SAFETY: tensors of a file have memory by now.
                if !unsafe { sys::ggml_backend_buffer_is_host(t.buffer) } {
                    return Err(refused(format!("{} does not lie in the host's memory", added.names[id.index()])));
                }
                let last = t.ne.iter().rposition(|&n| n != 1).unwrap_or(0);
                if t.ne[last] != n_expert || layer.n_copies == 0 || layer.n_copies >= layer.n_expert {
                    let n = layer.n_copies;
                    return Err(refused(format!("{:?} has no {n} parts of {n_expert} to copy", t.ne)));
                }
                let mut ne = t.ne;
                ne[last] = layer.n_copies as i64 + 1;
                let of = *of;
                let name = format!("{} (copies)", added.names[id.index()]);
                let c_name = CString::new(&*name).unwrap_or_default();
                let copies = arena.tensor(Dtype::from_raw(t.type_), ne, &c_name)?;
                pairs.push(Pair { of: (id, of), copies: (WeightId::at(added.tensors.len()), copies) });
                added.tensors.push(copies);
                added.names.push(name);
                added.places.push(place);
            }
            cache.layers.push(CachedLayer {
                pairs,
                n_expert: layer.n_expert,
                n_copies: layer.n_copies,
                numbers_there: arena.tensor(Dtype::I32, [1, n_expert, 1, 1], c"numbers of copies")?,
                numbers: host.tensor(Dtype::I32, [n_expert, 1, 1, 1], c"experts with copies")?,
                counts: host.tensor(Dtype::I32, [n_expert + 1, 1, 1, 1], c"uses of experts")?,
                number_of: Mutex::new((0..layer.n_expert).map(|e| Some(e).filter(|&e| e < layer.n_copies)).collect()),
            });
        }
        for arena in there.into_iter().map(|(_, arena)| arena).chain([host]) {
            added.buffers.extend(arena.allocate("copies of experts")?);
            added.contexts.push(arena.into_context());
        }
        for layer in &cache.layers {
            for Pair { of, copies: (_, t) } in &layer.pairs {
                let data = data(of.0);
                let one = data.len() / layer.n_expert;
                set(t, 0, &data[..one * layer.n_copies]);
                set(t, one * layer.n_copies, &vec![0; one]);
                copied.add(one * layer.n_copies);
            }
            let number_of = layer.number_of.lock().unwrap_or_else(PoisonError::into_inner);
            let or = |none: i32| number_of.iter().map(|number| number.map_or(none, |n| n as i32)).collect::<Vec<_>>();
            set_numbers(&layer.numbers, 0, &or(-1));
            set_numbers(&layer.numbers_there, 0, &or(layer.n_copies as i32));
            set_numbers(&layer.counts, 0, &vec![0; layer.n_expert + 1]);
        }
        Ok(cache)
    }

    /// Bytes that building will copy.
    pub(crate) fn copied_bytes(layers: &[ExpertLayer], bytes: impl Fn(WeightId) -> usize) -> usize {
        let of_layer = |l: &ExpertLayer| {
            let all: usize = l.tensors.iter().map(|&id| bytes(id)).sum();
            all / l.n_expert.max(1) * l.n_copies
        };
        layers.iter().map(of_layer).sum()
    }

    /// How often experts were asked for, and how often there was a copy.
    pub(crate) fn uses(&self) -> (u64, u64) {
        let mut all = (0, 0);
        for layer in &self.layers {
            let uses = |i: usize| u64::try_from(layer.count(i).load(Relaxed)).unwrap_or(0);
            all.0 += (0..layer.n_expert).map(uses).sum::<u64>();
            all.1 += uses(layer.n_expert);
        }
        all
    }

    /// Exchanges copies until none needs to be or `until` is past, going on where it stopped last; gives how many. Nobody reads
    /// copies and numbers meanwhile.
    pub(crate) fn renew(&self, until: Instant) -> usize {
        let mut n_exchanged = 0;
        self.layers.iter().for_each(CachedLayer::fade);
        for _ in &self.layers {
            let layer = &self.layers[self.next_layer.load(Relaxed) % self.layers.len()];
            let mut number_of = layer.number_of.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some((last, expert)) = layer.next_change(&number_of) {
                if Instant::now() >= until {
                    return n_exchanged;
                }
                let Some(number) = number_of[last].take() else { break };
                layer.exchange(last, expert, number);
                number_of[expert] = Some(number);
                n_exchanged += 1;
            }
            self.next_layer.fetch_add(1, Relaxed);
        }
        n_exchanged
    }

    /// The layer that a tensor is one of.
    pub(crate) fn layer_of(&self, id: WeightId) -> Option<&CachedLayer> {
        self.layers.iter().find(|layer| layer.copies_of(id).is_some())
    }

    /// The copies of a tensor.
    pub(crate) fn copies_of(&self, id: WeightId) -> Option<WeightId> {
        self.layers.iter().find_map(|layer| layer.copies_of(id))
    }
}

impl CachedLayer {
    fn copies_of(&self, id: WeightId) -> Option<WeightId> {
        self.pairs.iter().find(|pair| pair.of.0 == id).map(|pair| pair.copies.0)
    }

    /// The tensors that have copies.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = WeightId> + '_ {
        self.pairs.iter().map(|pair| pair.of.0)
    }

    pub(crate) fn n_copies(&self) -> usize {
        self.n_copies
    }

    /// Numbers of copies on their device, numbers on the host, and counts.
    pub(crate) fn tables(&self) -> [NonNull<sys::ggml_tensor>; 3] {
        [self.numbers_there.0, self.numbers.0, self.counts.0]
    }

    /// What was counted under `i`.
    fn count(&self, i: usize) -> &AtomicI32 {
        debug_assert!(i <= self.n_expert);
        // SAFETY: descriptions are alive with the weights, and not changed.
        let counts = unsafe { self.counts.0.as_ref() }.data.cast::<i32>();
        // SAFETY: `n_expert + 1` aligned numbers in the host's memory, which lives as long as the layer's weights; whoever changes
        // them does so by atomics.
        unsafe { AtomicI32::from_ptr(counts.wrapping_add(i.min(self.n_expert))) }
    }

    /// The expert that has least reason to keep its copy, and the one that has most to get it, if that is enough.
    fn next_change(&self, number_of: &[Option<usize>]) -> Option<(usize, usize)> {
        let uses = |expert: &usize| self.count(*expert).load(Relaxed);
        let (held, others): (Vec<usize>, Vec<usize>) = (0..self.n_expert).partition(|&e| number_of[e].is_some());
        let (last, next) = (held.into_iter().min_by_key(uses)?, others.into_iter().max_by_key(uses)?);
        let least = uses(&last);
        let enough = least.saturating_add(least / 2).saturating_add(MORE_USES);
        (uses(&next) >= enough).then_some((last, next))
    }

    /// Puts a copy of `expert` in the place of `last`'s. Nobody reads copies and numbers meanwhile.
    fn exchange(&self, last: usize, expert: usize, number: usize) {
        for Pair { of: (_, of), copies: (_, copies) } in &self.pairs {
            // SAFETY: descriptions are alive with the weights.
            let n_bytes = unsafe { sys::ggml_nbytes(of.0.as_ptr()) };
            // SAFETY: likewise.
            let data = unsafe { of.0.as_ref() }.data.cast::<u8>();
            // SAFETY: the tensor lies in the host's memory (`ExpertCache::build`) and has so many bytes, which nobody changes.
            let all = unsafe { std::slice::from_raw_parts(data, n_bytes) };
            let one = all.len() / self.n_expert;
            set(copies, one * number, &all[one * expert..][..one]);
        }
        set_numbers(&self.numbers_there, last, &[self.n_copies as i32]);
        set_numbers(&self.numbers_there, expert, &[number as i32]);
        set_numbers(&self.numbers, last, &[-1]);
        set_numbers(&self.numbers, expert, &[number as i32]);
    }

    /// Makes older uses count less.
    fn fade(&self) {
        let all: i64 = (0..self.n_expert).map(|e| i64::from(self.count(e).load(Relaxed))).sum();
        if all > i64::from(MANY_USES) * self.n_expert as i64 {
            (0..=self.n_expert).for_each(|i| {
                let uses = self.count(i);
                uses.fetch_sub(uses.load(Relaxed) / 2, Relaxed);
            });
        }
    }
}

/// Writes bytes of a tensor from `offset` on, which lie within it.
fn set(t: &WeightTensor, offset: usize, bytes: &[u8]) {
    // SAFETY: the tensor is alive.
    debug_assert!(offset + bytes.len() <= unsafe { sys::ggml_nbytes(t.0.as_ptr()) });
    // SAFETY: the tensor was given memory, and the bytes lie within it (the caller); nobody reads it meanwhile.
    unsafe { sys::ggml_backend_tensor_set(t.0.as_ptr(), bytes.as_ptr().cast(), offset, bytes.len()) }
}

/// Writes numbers of a table from number `at` on.
fn set_numbers(t: &WeightTensor, at: usize, numbers: &[i32]) {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
    set(t, at * size_of::<i32>(), &bytes);
}
