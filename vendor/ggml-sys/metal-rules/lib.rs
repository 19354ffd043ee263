//! Which nodes ggml's Metal backend computes, asked on any machine: the pinned ggml's own rules, compiled by the build
//! script. Owns the way from a node as the crate `ggml` tells of it at level `trace` (`ggml::nodes`) to the question.
//! For tests.

use std::ffi::CStr;

use ggml_sys as sys;

unsafe extern "C" {
    fn nextn_metal_supports(has_bfloat: bool, op: *const sys::ggml_tensor) -> bool;
}

/// A node of a graph, in the words of the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// As ggml names it: `MUL_MAT`.
    pub op: String,
    /// `[1, 0, 3]`; further ones are zero.
    pub params: String,
    /// What it computes: `f32[64,3]`.
    pub result: String,
    /// What it reads, with spaces between.
    pub operands: String,
}

impl Node {
    /// Whether Metal computes it, on a processor with 16-bit brain floats or without.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn is_on_metal(&self, has_bfloat: bool) -> Result<bool, String> {
        // Moved nowhere after the first address was taken.
        let operands: Vec<Option<sys::ggml_tensor>> =
            self.operands.split_whitespace().map(operand).collect::<Result<_, _>>()?;
        let mut node = tensor(&self.result)?;
        node.op = op(&self.op)?;
        let params = self.params.trim_matches(['[', ']']).split(',').map(str::trim).filter(|p| !p.is_empty());
        for (i, param) in params.enumerate() {
            let place = node.op_params.get_mut(i).ok_or_else(|| format!("too many parameters: {}", self.params))?;
            *place = param.parse().map_err(|e| format!("parameter {param}: {e}"))?;
        }
        for (i, operand) in operands.iter().enumerate() {
            let place = node.src.get_mut(i).ok_or_else(|| format!("too many operands: {}", self.operands))?;
            *place = operand.as_ref().map_or(std::ptr::null_mut(), |t| std::ptr::from_ref(t).cast_mut());
        }
        // SAFETY: node and operands are alive; the rules read descriptions only.
        Ok(unsafe { nextn_metal_supports(has_bfloat, &node) })
    }
}

fn operand(text: &str) -> Result<Option<sys::ggml_tensor>, String> {
    if text == "-" { Ok(None) } else { tensor(text).map(Some) }
}

/// `f32[64,3]`, or `f32[64,3]/4,512,1536,1536`.
fn tensor(text: &str) -> Result<sys::ggml_tensor, String> {
    let bad = || format!("`{text}` is no tensor as in f32[64,3]/4,512,1536,1536");
    let (dtype, rest) = text.split_once('[').ok_or_else(bad)?;
    let (ne, strides) = rest.split_once(']').ok_or_else(bad)?;
    let dtype = dtype_of(dtype)?;
    // SAFETY: plain data, valid when zeroed.
    let mut t: sys::ggml_tensor = unsafe { std::mem::zeroed() };
    t.type_ = dtype;
    t.ne = [1; 4];
    for (i, n) in ne.split(',').enumerate() {
        *t.ne.get_mut(i).ok_or_else(bad)? = n.parse().map_err(|_| bad())?;
    }
    if let Some(strides) = strides.strip_prefix('/') {
        for (i, n) in strides.split(',').enumerate() {
            *t.nb.get_mut(i).ok_or_else(bad)? = n.parse().map_err(|_| bad())?;
        }
    } else {
        // SAFETY: a type of ggml's.
        t.nb[0] = unsafe { sys::ggml_type_size(dtype) };
        // SAFETY: as above.
        t.nb[1] = unsafe { sys::ggml_row_size(dtype, t.ne[0]) };
        t.nb[2] = t.nb[1] * usize::try_from(t.ne[1]).map_err(|_| bad())?;
        t.nb[3] = t.nb[2] * usize::try_from(t.ne[2]).map_err(|_| bad())?;
    }
    Ok(t)
}

fn op(name: &str) -> Result<sys::ggml_op, String> {
    let is = |&op: &sys::ggml_op| {
        // SAFETY: an op of ggml's.
        let text = unsafe { sys::ggml_op_name(op) };
        // SAFETY: names are static.
        unsafe { CStr::from_ptr(text) }.to_bytes() == name.as_bytes()
    };
    (0..sys::GGML_OP_COUNT).find(is).ok_or_else(|| format!("ggml has no op {name}"))
}

fn dtype_of(name: &str) -> Result<sys::ggml_type, String> {
    let is = |&dtype: &sys::ggml_type| {
        // SAFETY: below the count of types; the name is null or static.
        let text = unsafe { sys::ggml_type_name(dtype) };
        // SAFETY: not null, so a name.
        !text.is_null() && unsafe { CStr::from_ptr(text) }.to_bytes() == name.as_bytes()
    };
    (0..sys::GGML_TYPE_COUNT).find(is).ok_or_else(|| format!("ggml has no type {name}"))
}
