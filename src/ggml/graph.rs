//! The builder of one graph: tensors with a brand, a sticky error, inputs and outputs by name.
//! Owns nothing: it writes into an arena that the executor keeps. Ops live in `ops/`.
//!
//! A [`Tensor`] carries the brand `'g` of the builder that made it, so nodes of two graphs cannot be mixed and none can
//! leave the closure that builds the graph. The first error is kept; from then on every op gives back its operand, and
//! the build returns the error. So the maths reads without `?`.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use ggml_sys as sys;

use crate::device::{Device, DeviceKind};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::low_rank::{LowRank, LowRanks};
use crate::rank::Rank;
use crate::state::{Inner, StateBuffer};
use crate::state_id::StateId;
use crate::weight_tensor::WeightId;
use crate::weights::Weights;

/// Makes `'g` invariant, so that two builders never have the same brand.
type Brand<'g> = PhantomData<fn(&'g ()) -> &'g ()>;

/// A node of the graph being built, or a weight, state or input that it reads.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    ptr: NonNull<sys::ggml_tensor>,
    brand: Brand<'g>,
}

impl<'g> Tensor<'g> {
    /// Shape in ggml order, fastest dimension first.
    pub fn ne(self) -> [i64; 4] {
        self.description().ne
    }

    /// Bytes from one element to the next along each dimension.
    pub fn nb(self) -> [usize; 4] {
        self.description().nb
    }

    /// Element type.
    pub fn dtype(self) -> Dtype {
        Dtype::from_raw(self.description().type_)
    }

    /// Elements in all dimensions.
    pub fn n_elements(self) -> i64 {
        self.ne().iter().product()
    }

    /// The tensor whose memory this one is a view of, or itself.
    fn base(&self) -> &sys::ggml_tensor {
        // SAFETY: ggml keeps the base of a view in the arena of the view or, for weights and states, alive with it.
        unsafe { self.description().view_src.as_ref() }.unwrap_or_else(|| self.description())
    }

    /// [`Tensor::base`], to tell tensors apart.
    pub(crate) fn base_ptr(self) -> *const sys::ggml_tensor {
        self.base()
    }

    /// True for weights and states and views of them; everything else gets its memory with the finished graph.
    fn is_placed(self) -> bool {
        !self.base().buffer.is_null()
    }

    /// True for weights and views of them.
    pub(crate) fn is_weight(self) -> bool {
        // SAFETY: the buffer is alive with the weight or state.
        self.is_placed()
            && unsafe { sys::ggml_backend_buffer_get_usage(self.base().buffer) }
                == sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS
    }

    /// True when `ne` elements laid out one after the other, from byte `offset` of this tensor on, would end within the
    /// base. ggml asserts it for every view, whatever its strides.
    pub(crate) fn has_room(self, ne: [i64; 4], offset: usize) -> bool {
        let row = self.dtype().row_bytes(ne[0]).ok();
        let n_bytes =
            ne[1..].iter().try_fold(row.unwrap_or(usize::MAX), |n, &ne| n.checked_mul(usize::try_from(ne).ok()?));
        let end = n_bytes.and_then(|n| n.checked_add(offset)?.checked_add(self.description().view_offs));
        // SAFETY: the base is alive; the function only reads it.
        end.is_some_and(|end| end <= unsafe { sys::ggml_nbytes(self.base()) })
    }

    /// Bytes from where the tensor that this one looks into begins.
    pub(crate) fn view_offset(self) -> usize {
        self.description().view_offs
    }

    /// True when the tensor that this one looks into has room for `n` of its steps in the last dimension.
    pub(crate) fn has_room_for(self, n: i64) -> bool {
        let bytes = usize::try_from(n).ok().and_then(|n| self.nb()[3].checked_mul(n)?.checked_add(self.view_offset()));
        // SAFETY: the base is alive; the function only reads it.
        bytes.is_some_and(|end| end <= unsafe { sys::ggml_nbytes(self.base()) })
    }

    fn description(&self) -> &sys::ggml_tensor {
        // SAFETY: the arena that holds the description outlives the brand.
        unsafe { self.ptr.as_ref() }
    }

    pub(crate) fn raw(self) -> *mut sys::ggml_tensor {
        self.ptr.as_ptr()
    }

    /// True when the CPU's kernels may read the elements where they lie.
    pub fn lies_on_host(self) -> bool {
        // SAFETY: the buffer is alive with the weight or state.
        self.is_placed() && unsafe { sys::ggml_backend_buffer_is_host(self.base().buffer) }
    }

    /// Where the elements lie; `None` of what has no place yet, and where ggml does not say.
    pub(crate) fn device(self) -> Option<Device> {
        if !self.is_placed() {
            return None;
        }
        // SAFETY: the buffer is alive with the weight or state.
        let kind = unsafe { sys::ggml_backend_buffer_get_type(self.base().buffer) };
        // SAFETY: buffer types are static.
        let raw = NonNull::new(unsafe { sys::ggml_backend_buft_get_device(kind) })?;
        // SAFETY: buffer types name entries of the registry.
        Some(unsafe { Device::from_raw(raw.as_ptr()) })
    }

    /// True when a backend keeps the elements in an order of its own.
    pub(crate) fn is_repacked(self) -> bool {
        !self.description().extra.is_null()
    }

    /// True for what only this graph computes: its value never changes within a run, unlike that of a state.
    fn is_computed_here(self) -> bool {
        let t = self.description();
        // SAFETY: a view's description points to the one that it looks into, which lives as long.
        let root = unsafe { t.view_src.as_ref() }.unwrap_or(t);
        root.buffer.is_null()
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype(), self.ne())
    }
}

/// The name of an input or output: a word, and a number where there are several.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name(pub &'static str, pub u32);

impl From<&'static str> for Name {
    fn from(word: &'static str) -> Self {
        Name(word, 0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.1 == 0 { f.write_str(self.0) } else { write!(f, "{}.{}", self.0, self.1) }
    }
}

/// An input or output of a built graph.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) name: Name,
    pub(crate) ptr: NonNull<sys::ggml_tensor>,
    /// For inputs that hold ids: how many things there are, and the op that looks them up.
    pub(crate) below: Option<(i64, &'static str)>,
    /// For outputs: it is copied to the host only when it is asked for.
    pub(crate) stays: bool,
}

/// Tensors by the one whose memory they are views of.
type Base = *const sys::ggml_tensor;

/// What a graph's builder knows of tensors that hold ids.
#[derive(Default)]
pub(crate) struct Ids {
    /// Computed here, and below this number whatever they are computed from.
    pub(crate) below: HashMap<Base, i64>,
    /// Rows are looked up by them without another check.
    pub(crate) trusted: HashSet<Base>,
    /// Some op writes over them.
    pub(crate) written: HashSet<Base>,
    /// Some stand for no expert.
    pub(crate) partial: HashSet<Base>,
}

/// What a finished builder hands to the executor.
pub(crate) struct Parts {
    pub(crate) inputs: Vec<Slot>,
    pub(crate) outputs: Vec<Slot>,
    pub(crate) states: Vec<Arc<Inner>>,
    /// State tensors that were asked for, each once.
    pub(crate) state_tensors: Vec<NonNull<sys::ggml_tensor>>,
    pub(crate) error: Option<Error>,
    /// What was put in order last.
    ordered: Option<NonNull<sys::ggml_tensor>>,
}

/// Rows at even distances: tensor, offset, length, number, distance.
type SharedRows = (*const sys::ggml_tensor, usize, i64, i64, usize);

/// The builder of one graph.
pub struct Graph<'g> {
    ctx: NonNull<sys::ggml_context>,
    cgraph: NonNull<sys::ggml_cgraph>,
    poison: Tensor<'g>,
    weights: Arc<Weights>,
    /// Where devices compute the model together, the one that this graph is of.
    rank: Option<Rank>,
    low_ranks: RefCell<Arc<LowRanks>>,
    max_tensors: usize,
    n_tensors: Cell<usize>,
    /// What was made once for all readers of some rows.
    shared: RefCell<HashMap<(SharedRows, &'static str), Tensor<'g>>>,
    layer: Cell<Option<usize>>,
    pub(crate) ids: RefCell<Ids>,
    parts: RefCell<Parts>,
    brand: Brand<'g>,
}

impl<'g> Graph<'g> {
    /// # Safety
    /// `ctx` has room for `max_tensors` descriptions and holds `cgraph`; both outlive `'g`.
    pub(crate) unsafe fn new(
        ctx: NonNull<sys::ggml_context>,
        cgraph: NonNull<sys::ggml_cgraph>,
        weights: Arc<Weights>,
        rank: Option<Rank>,
        max_tensors: usize,
    ) -> Self {
        // SAFETY: the arena has room for `max_tensors` descriptions (the caller).
        let poison = unsafe { sys::ggml_new_tensor_1d(ctx.as_ptr(), sys::GGML_TYPE_F32, 1) };
        let poison = NonNull::new(poison).expect("ggml ends the process rather than return null here");
        Self {
            ctx,
            cgraph,
            poison: Tensor { ptr: poison, brand: PhantomData },
            weights,
            rank,
            low_ranks: RefCell::default(),
            max_tensors,
            n_tensors: Cell::new(1),
            shared: RefCell::default(),
            layer: Cell::new(None),
            ids: RefCell::default(),
            parts: RefCell::new(Parts {
                inputs: vec![],
                outputs: vec![],
                states: vec![],
                state_tensors: vec![],
                error: None,
                ordered: None,
            }),
            brand: PhantomData,
        }
    }

    pub(crate) fn into_parts(self) -> Parts {
        let ordered = self.parts.borrow().ordered.filter(|_| self.ok());
        if let Some(ordered) = ordered {
            // SAFETY: the graph is alive and has at least that node; -1 is the last.
            let last = unsafe { sys::ggml_graph_node(self.cgraph.as_ptr(), -1) };
            self.check("order", last != ordered.as_ptr(), || "nothing needs what was put in order last".into());
        }
        self.parts.into_inner()
    }

    /// Errors from here on name layer `il`.
    pub fn layer(&self, il: usize) {
        self.layer.set(Some(il));
    }

    /// Errors from here on name no layer.
    pub fn no_layer(&self) {
        self.layer.set(None);
    }

    /// Which of the devices that compute the model together this graph is of ([`crate::Ranks`]); 0 where there is one.
    pub fn rank(&self) -> usize {
        self.rank.map_or(0, |rank| rank.index)
    }

    /// The number of the group that the rank is of, its own, and how many there are; `None` where there is one.
    pub(crate) fn rank_numbers(&self) -> Option<[i32; 3]> {
        let Rank { group, index, of } = self.rank?;
        Some([group, i32::try_from(index).ok()?, i32::try_from(of).ok()?])
    }

    /// The weight with this id.
    pub fn weight(&self, id: WeightId) -> Tensor<'g> {
        match self.weights.raw(id) {
            Some(ptr) => Tensor { ptr, brand: PhantomData },
            None => self.fail("weight", format!("{id:?} is not one of this model's {}", self.weights.len())),
        }
    }

    /// What `look` finds in the model's weights.
    pub(crate) fn with_weights<T>(&self, look: impl FnOnce(&Weights) -> T) -> T {
        look(&self.weights)
    }

    /// A tensor that lives as long as the weights.
    pub(crate) fn placed(&self, ptr: NonNull<sys::ggml_tensor>) -> Tensor<'g> {
        Tensor { ptr, brand: PhantomData }
    }

    /// From here on these updates of weights hold.
    pub fn set_low_ranks(&self, low_ranks: Arc<LowRanks>) {
        self.low_ranks.replace(low_ranks);
    }

    /// The updates of a weight that hold in this graph, in the order in which they are added.
    pub fn low_ranks(&self, id: WeightId) -> Vec<LowRank> {
        self.low_ranks.borrow().get(&id).cloned().unwrap_or_default()
    }

    /// A tensor of state. The graph keeps it alive.
    pub fn state(&self, buffer: &StateBuffer, id: StateId) -> Tensor<'g> {
        let Some(ptr) = buffer.inner().raw(id) else {
            return self.fail("state", format!("{id:?} is not one of this buffer's tensors"));
        };
        let mut parts = self.parts.borrow_mut();
        if !parts.states.iter().any(|s| Arc::ptr_eq(s, buffer.inner())) {
            parts.states.push(Arc::clone(buffer.inner()));
        }
        if !parts.state_tensors.contains(&ptr) {
            // ggml's graph has a place for each; the executor counts on half of the tensors being nodes.
            if parts.state_tensors.len() >= self.max_tensors / 2 {
                let error = Error::TooManyNodes { place: self.place(), max: self.max_tensors / 2 };
                parts.error.get_or_insert(error);
                return self.poison;
            }
            parts.state_tensors.push(ptr);
        }
        Tensor { ptr, brand: PhantomData }
    }

    /// A tensor whose contents every run brings along, under `name`.
    pub fn input(&self, name: impl Into<Name>, dtype: Dtype, ne: [i64; 4]) -> Tensor<'g> {
        let name = name.into();
        if ne.iter().any(|&n| n < 1) {
            return self.fail("input", format!("`{name}` has shape {ne:?}, with a dimension below 1"));
        }
        if let Err(e) = dtype.row_bytes(ne[0]) {
            return self.fail("input", e.to_string());
        }
        if !dtype.is_sizeable(ne) {
            return self.fail("input", format!("`{name}` of {dtype} {ne:?} is too large"));
        }
        if self.parts.borrow().inputs.iter().any(|s| s.name == name) {
            return self.fail("input", format!("`{name}` is declared twice"));
        }
        let t = self.node("input", self.poison, |ctx| {
            // SAFETY: the arena has room (`node` counts) and the shape is sound.
            unsafe { sys::ggml_new_tensor(ctx, dtype.raw(), 4, ne.as_ptr()) }
        });
        if self.ok() {
            // SAFETY: `t` lies in the arena.
            unsafe { sys::ggml_set_input(t.raw()) };
            self.name(t, name);
            self.parts.borrow_mut().inputs.push(Slot { name, ptr: t.ptr, below: None, stays: false });
        }
        t
    }

    /// Makes `t` part of the graph and readable after each run under `name`. Weights and states are copied.
    pub fn output(&self, name: impl Into<Name>, t: Tensor<'g>) {
        // ggml marks an output in its description, which executors share when it is a weight or a state.
        let t = if t.is_placed() { self.cont(t) } else { t };
        if !self.ok() {
            return;
        }
        let name = name.into();
        // SAFETY: `t` lies in the arena (brand).
        unsafe { sys::ggml_set_output(t.raw()) };
        self.name(t, name);
        self.keep(t);
        self.parts.borrow_mut().outputs.push(Slot { name, ptr: t.ptr, below: None, stays: false });
    }

    /// As [`Graph::output`], but `t` stays on the device until it is asked for ([`Outputs`](crate::Outputs) of the run,
    /// [`Executor::last`](crate::Executor::last)): for what is large and seldom wanted.
    pub fn output_that_stays(&self, name: impl Into<Name>, t: Tensor<'g>) {
        self.output(name, t);
        if self.ok()
            && let Some(slot) = self.parts.borrow_mut().outputs.last_mut()
        {
            slot.stays = true;
        }
    }

    /// Makes `t` and all that it needs part of the graph, in this place of the order; for writes into state.
    pub fn keep(&self, t: Tensor<'g>) {
        if self.ok() {
            // SAFETY: `t` and the graph lie in the arena; the graph is sized for all of its tensors.
            unsafe { sys::ggml_build_forward_expand(self.cgraph.as_ptr(), t.raw()) };
        }
    }

    /// Puts `t` and all that it needs in this place of the order; something behind it must need it: backends that look for
    /// nodes to compute together look past the end of a graph that ends there.
    pub fn order(&self, t: Tensor<'g>) {
        self.keep(t);
        self.parts.borrow_mut().ordered = Some(t.ptr);
    }

    /// Has every run check the input `base` for values from 0 to below `n`; false if it is no input.
    pub(crate) fn bound_input(&self, op: &'static str, base: *const sys::ggml_tensor, n: i64) -> bool {
        let inputs = &mut self.parts.borrow_mut().inputs;
        let slot = inputs.iter_mut().find(|slot| slot.ptr.as_ptr().cast_const() == base);
        slot.map(|slot| slot.below = Some(slot.below.filter(|&(least, _)| least <= n).unwrap_or((n, op)))).is_some()
    }

    fn name(&self, t: Tensor<'g>, name: Name) {
        let text = CString::new(name.to_string()).expect("names are words of this program");
        // SAFETY: `t` lies in the arena; the name is NUL-terminated and copied, cut to ggml's length.
        unsafe { sys::ggml_set_name(t.raw(), text.as_ptr()) };
    }

    /// True when a CPU computes all of it.
    pub(crate) fn is_on_cpu(&self) -> bool {
        self.weights.devices().iter().all(|d| d.kind() == DeviceKind::Cpu)
    }

    /// False after the first error.
    pub fn ok(&self) -> bool {
        self.parts.borrow().error.is_none()
    }

    /// Keeps the first error and gives back a tensor that stands in for the result.
    pub(crate) fn fail(&self, op: &'static str, what: String) -> Tensor<'g> {
        let error = Error::Shape { place: self.place(), op, what };
        self.parts.borrow_mut().error.get_or_insert(error);
        self.poison
    }

    /// Adds a node by `make`, unless there was an error; then `operand` stands in for the result.
    pub(crate) fn node(
        &self,
        op: &'static str,
        operand: Tensor<'g>,
        make: impl FnOnce(*mut sys::ggml_context) -> *mut sys::ggml_tensor,
    ) -> Tensor<'g> {
        if !self.ok() {
            return operand;
        }
        // Some of ggml's functions make two tensors.
        let n = self.n_tensors.get() + 2;
        if n > self.max_tensors {
            let error = Error::TooManyNodes { place: self.place(), max: self.max_tensors / 2 };
            self.parts.borrow_mut().error.get_or_insert(error);
            return operand;
        }
        self.n_tensors.set(n);
        match NonNull::new(make(self.ctx.as_ptr())) {
            Some(ptr) => Tensor { ptr, brand: PhantomData },
            None => self.fail(op, "ggml made no node".into()),
        }
    }

    /// A node computed by `fun` on all threads from `args`, which it finds in `src`.
    pub(crate) fn custom(
        &self,
        op: &'static str,
        dtype: Dtype,
        ne: [i64; 4],
        args: &[Tensor<'g>],
        fun: unsafe extern "C" fn(*mut sys::ggml_tensor, c_int, c_int, *mut c_void),
    ) -> Tensor<'g> {
        self.custom_of(op, dtype, ne, args, fun, &[])
    }

    /// As [`Graph::custom`], with parameters that `fun` finds in the node from [`kernels::FIRST_PARAMETER`] on.
    pub(crate) fn custom_of(
        &self,
        op: &'static str,
        dtype: Dtype,
        ne: [i64; 4],
        args: &[Tensor<'g>],
        fun: unsafe extern "C" fn(*mut sys::ggml_tensor, c_int, c_int, *mut c_void),
        parameters: &[i32],
    ) -> Tensor<'g> {
        let mut raw: Vec<_> = args.iter().map(|t| t.raw()).collect();
        let n_args = c_int::try_from(raw.len()).expect("a few operands");
        let [n0, n1, n2, n3] = ne;
        let t = self.node(op, args[0], |ctx| {
            let (args, no_data) = (raw.as_mut_ptr(), std::ptr::null_mut());
            let (dtype, all) = (dtype.raw(), sys::GGML_N_TASKS_MAX);
            // SAFETY: the arena has room (`node` counts); the operands carry the brand and their pointers are copied.
            unsafe { sys::ggml_custom_4d(ctx, dtype, n0, n1, n2, n3, args, n_args, Some(fun), all, no_data) }
        });
        if self.ok() {
            // SAFETY: the node just made, which nobody else looks at. ggml keeps function, tasks and data in front of these.
            let all = unsafe { &mut (*t.raw()).op_params };
            all[kernels::FIRST_PARAMETER..][..parameters.len()].copy_from_slice(parameters);
        }
        t
    }

    /// What `make` gives, made once for each `purpose` and the rows of `source` (however they are arranged in dimensions 1
    /// to 3) if those keep their values during a run. Not counted as a node of the caller's: the arena has room for one for
    /// each of them.
    pub(crate) fn once_for(
        &self,
        source: Tensor<'g>,
        purpose: &'static str,
        make: impl FnOnce() -> Tensor<'g>,
    ) -> Tensor<'g> {
        let (ne, nb) = (source.ne(), source.nb());
        let base: *const sys::ggml_tensor = source.base();
        let rows = (base, source.description().view_offs, ne[0], ne[1] * ne[2] * ne[3], nb[1]);
        if let Some(made) = self.shared.borrow().get(&(rows, purpose)) {
            return *made;
        }
        let n_tensors = self.n_tensors.get();
        let made = make();
        self.n_tensors.set(n_tensors);
        if self.ok() && source.is_computed_here() {
            self.shared.borrow_mut().insert((rows, purpose), made);
        }
        made
    }

    fn place(&self) -> String {
        self.layer.get().map_or_else(String::new, |il| format!("layer {il}: "))
    }
}
