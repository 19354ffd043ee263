//! Tells, at level `trace`, what each node of a graph computes and where: for whoever wants to see why a device is idle.
//! Knows descriptions only, no contents.
//!
//! A tensor is told as `q4_K[64,3]`: type and dimensions, fastest first, without ones at the end. Where it is not contiguous
//! its strides in bytes follow: `f32[64,3]/4,512,1536,1536`. An operand that is left out is `-`.

use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::ptr::NonNull;

use ggml_sys as sys;

use crate::planner::{Place, Planner};

/// Whether anybody listens.
pub(crate) fn wanted() -> bool {
    tracing::enabled!(tracing::Level::TRACE)
}

/// Tells of all nodes of a graph.
///
/// # Safety
/// The graph is alive and was planned in `place`.
pub(crate) unsafe fn tell(cgraph: NonNull<sys::ggml_cgraph>, planner: &Planner, place: &Place) {
    // SAFETY: the graph is alive (the caller).
    let n = unsafe { sys::ggml_graph_n_nodes(cgraph.as_ptr()) };
    for i in 0..n {
        // SAFETY: `i` is below the count.
        let Some(node) = NonNull::new(unsafe { sys::ggml_graph_node(cgraph.as_ptr(), i) }) else { continue };
        let device = planner.device_of(place, node).map_or_else(|| "none".into(), |device| device.name());
        // SAFETY: nodes and what they read are alive as long as their graph.
        let t = unsafe { node.as_ref() };
        let (op, kind) = (op(t), kind(t));
        let n_operands = t.src.iter().rposition(|s| !s.is_null()).map_or(0, |last| last + 1);
        let mut operands = String::new();
        for &operand in &t.src[..n_operands] {
            if !operands.is_empty() {
                operands.push(' ');
            }
            match NonNull::new(operand) {
                // SAFETY: as above.
                Some(operand) => operands.push_str(&described(unsafe { operand.as_ref() })),
                None => operands.push('-'),
            }
        }
        let n_params = t.op_params.iter().rposition(|&p| p != 0).map_or(0, |last| last + 1);
        let params = &t.op_params[..n_params];
        tracing::trace!(device, op, kind, ?params, result = described(t), operands, "node");
    }
}

fn op(t: &sys::ggml_tensor) -> String {
    // SAFETY: a tensor's op is one of ggml's; its name is static.
    text(unsafe { sys::ggml_op_name(t.op) })
}

/// The function of a node that applies one of several to each element; the op's name otherwise.
fn kind(t: &sys::ggml_tensor) -> String {
    // SAFETY: the tensor is alive; the name is static.
    text(unsafe { sys::ggml_op_desc(t) })
}

fn described(t: &sys::ggml_tensor) -> String {
    // SAFETY: a tensor's type is one of ggml's; its name is static.
    let mut out = text(unsafe { sys::ggml_type_name(t.type_) });
    let n_dims = t.ne.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
    write!(out, "[{}]", joined(&t.ne[..n_dims])).expect("a string takes all");
    // SAFETY: the tensor is alive.
    if !unsafe { sys::ggml_is_contiguous(t) } {
        write!(out, "/{}", joined(&t.nb)).expect("a string takes all");
    }
    out
}

fn joined(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// ggml's names are static and NUL-terminated.
fn text(name: *const c_char) -> String {
    // SAFETY: the callers pass such a name.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
