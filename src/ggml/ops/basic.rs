//! Element-wise ops.

use kernels::Isa;

use super::checks::{ask, can_repeat, op};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// `a + b`, `b` repeated over `a` where it is smaller. Gives the shape and type of `a`; `b` is F32 or as `a`.
    pub fn add(&self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        if !self.fits("add", a, b) {
            return a;
        }
        op!(self, "add", ggml_add, a, b.raw())
    }

    /// `a * b` by element, `b` repeated over `a` where it is smaller. Gives the shape and type of `a`; `b` is F32 or as
    /// `a`.
    pub fn mul(&self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        if !self.fits("mul", a, b) {
            return a;
        }
        op!(self, "mul", ggml_mul, a, b.raw())
    }

    /// `a / b` by element, `b` repeated over `a` where it is smaller. Gives the shape and type of `a`; `b` is F32 or as
    /// `a`.
    pub fn div(&self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        if !self.fits("div", a, b) {
            return a;
        }
        op!(self, "div", ggml_div, a, b.raw())
    }

    /// `a * factor`, F32.
    pub fn scale(&self, a: Tensor<'g>, factor: f32) -> Tensor<'g> {
        if !(self.check_f32("scale", "a", a) && self.check_elements("scale", "a", a)) {
            return a;
        }
        op!(self, "scale", ggml_scale, a, factor)
    }

    /// `a * factor + term`, F32.
    pub fn scale_and_add(&self, a: Tensor<'g>, factor: f32, term: f32) -> Tensor<'g> {
        if !(self.check_f32("scale_and_add", "a", a) && self.check_elements("scale_and_add", "a", a)) {
            return a;
        }
        op!(self, "scale_and_add", ggml_scale_bias, a, factor, term)
    }

    /// The largest whole number that is not above `a`.
    pub fn floor(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !self.rows_of_floats("floor", "a", a) {
            return a;
        }
        op!(self, "floor", ggml_floor, a)
    }

    /// The natural logarithm of `a`.
    pub fn log(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !self.rows_of_floats("log", "a", a) {
            return a;
        }
        op!(self, "log", ggml_log, a)
    }

    /// The hyperbolic tangent of `a`.
    pub fn tanh(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !self.rows_of_floats("tanh", "a", a) {
            return a;
        }
        op!(self, "tanh", ggml_tanh, a)
    }

    /// `1 / (1 + exp(-a))`.
    pub fn sigmoid(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !self.rows_of_floats("sigmoid", "a", a) {
            return a;
        }
        op!(self, "sigmoid", ggml_sigmoid, a)
    }

    /// `a * sigmoid(a)`.
    pub fn silu(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !self.rows_of_floats("silu", "a", a) {
            return a;
        }
        op!(self, "silu", ggml_silu, a)
    }

    /// `max(a, 0)`.
    pub fn relu(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !self.rows_of_floats("relu", "a", a) {
            return a;
        }
        op!(self, "relu", ggml_relu, a)
    }

    /// `a * a`.
    pub fn sqr(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !self.rows_of_floats("sqr", "a", a) {
            return a;
        }
        op!(self, "sqr", ggml_sqr, a)
    }

    /// `ln(1 + exp(a))`, linear above 20.
    pub fn softplus(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !self.rows_of_floats("softplus", "a", a) {
            return a;
        }
        op!(self, "softplus", ggml_softplus, a)
    }

    /// `max(min(a, high), low)`; `a` is F32 or F16. A new tensor: `a` keeps its values.
    pub fn clamp(&self, a: Tensor<'g>, low: f32, high: f32) -> Tensor<'g> {
        let sound = self.check("clamp", matches!(a.dtype(), Dtype::F32 | Dtype::F16), || {
            format!("`a` is {}, f32 or f16 is needed", a.dtype())
        }) && self.check_elements("clamp", "a", a);
        if !sound {
            return a;
        }
        op!(self, "clamp", ggml_clamp, a, low, high)
    }

    /// `silu(gate) * up` by element; both of one shape and type.
    pub fn swiglu(&self, gate: Tensor<'g>, up: Tensor<'g>) -> Tensor<'g> {
        if !self.gated("swiglu", gate, up) {
            return gate;
        }
        op!(self, "swiglu", ggml_swiglu_split, gate, up.raw())
    }

    /// `gelu(gate) * up` by element, GELU in its form of a hyperbolic tangent; both of one shape and type. On a CPU a kernel of
    /// our own serves F32, because ggml looks GELU up in a table of F16 numbers there.
    ///
    /// Source: Hendrycks and Gimpel 2016; Shazeer 2020.
    pub fn geglu(&self, gate: Tensor<'g>, up: Tensor<'g>) -> Tensor<'g> {
        if !self.gated("geglu", gate, up) {
            return gate;
        }
        if gate.dtype() == Dtype::F32 && self.is_on_cpu() && Isa::chosen().is_some() {
            return self.custom("geglu", Dtype::F32, gate.ne(), &[gate, up], kernels::gated_gelu);
        }
        op!(self, "geglu", ggml_geglu_split, gate, up.raw())
    }

    /// GELU in its form of a hyperbolic tangent, F32. On a CPU a kernel of our own serves, as in [`Graph::geglu`].
    ///
    /// Source: Hendrycks and Gimpel 2016.
    pub fn gelu(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !self.rows_of_f32("gelu", a) {
            return a;
        }
        if self.is_on_cpu() && Isa::chosen().is_some() {
            return self.custom("gelu", Dtype::F32, a.ne(), &[a], kernels::gelu);
        }
        op!(self, "gelu", ggml_gelu, a)
    }

    /// `a / 2 * (1 + erf(a / sqrt(2)))`, F32.
    ///
    /// Source: Hendrycks and Gimpel 2016.
    pub fn gelu_erf(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !self.rows_of_f32("gelu_erf", a) {
            return a;
        }
        op!(self, "gelu_erf", ggml_gelu_erf, a)
    }

    /// True when `a` is F32 and its rows follow each other.
    fn rows_of_f32(&self, what: &'static str, a: Tensor<'g>) -> bool {
        self.check_f32(what, "a", a)
            && self.check_elements(what, "a", a)
            && self.check(what, ask!(ggml_is_contiguous_1, a), || format!("the rows of {a:?} do not follow each other"))
    }

    /// True when `gate` and `up` are rows of floats of one shape.
    fn gated(&self, what: &'static str, gate: Tensor<'g>, up: Tensor<'g>) -> bool {
        let alike = gate.ne() == up.ne() && gate.dtype() == up.dtype();
        self.check(what, alike, || format!("`gate` {gate:?} is not like `up` {up:?}"))
            && self.rows_of_floats(what, "gate", gate)
            && self.rows_of_floats(what, "up", up)
            && self.check(what, ask!(ggml_is_contiguous_1, gate) && ask!(ggml_is_contiguous_1, up), || {
                format!("the rows of `gate` {gate:?} or `up` {up:?} do not follow each other")
            })
    }

    /// `x * sigmoid(slope * x) * (y + 1)` by element, with `x = min(gate, limit)` and `y` = `up` within `-limit` to `limit`;
    /// both F32 and of one shape.
    pub fn swiglu_clamped(&self, gate: Tensor<'g>, up: Tensor<'g>, slope: f32, limit: f32) -> Tensor<'g> {
        let rows = || ask!(ggml_is_contiguous_1, gate) && ask!(ggml_is_contiguous_1, up);
        let sound = self
            .check("swiglu_clamped", gate.ne() == up.ne(), || format!("`gate` {gate:?} is not like `up` {up:?}"))
            && self.check_f32("swiglu_clamped", "gate", gate)
            && self.check_f32("swiglu_clamped", "up", up)
            && self.check_elements("swiglu_clamped", "gate", gate)
            && self.check_elements("swiglu_clamped", "up", up)
            && self.check("swiglu_clamped", limit >= 0.0, || format!("a limit of {limit}"))
            && self.check("swiglu_clamped", rows(), || {
                format!("the rows of `gate` {gate:?} or `up` {up:?} do not follow each other")
            });
        if !sound {
            return gate;
        }
        op!(self, "swiglu_clamped", ggml_swiglu_oai, gate, up.raw(), slope, limit)
    }

    /// `value` everywhere, in a new tensor of the shape of `a`: F32, contiguous.
    pub fn fill(&self, a: Tensor<'g>, value: f32) -> Tensor<'g> {
        let sound = self.check_f32("fill", "a", a)
            && self.check("fill", ask!(ggml_is_contiguous, a), || format!("`a` {a:?} has gaps"));
        if !sound {
            return a;
        }
        op!(self, "fill", ggml_fill, a, value)
    }

    /// The sum over dim 0: `[n, ..]` to `[1, ..]`.
    pub fn sum_rows(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !(self.check_f32("sum_rows", "a", a) && self.check_elements("sum_rows", "a", a)) {
            return a;
        }
        op!(self, "sum_rows", ggml_sum_rows, a)
    }

    fn fits(&self, what: &'static str, a: Tensor<'g>, b: Tensor<'g>) -> bool {
        self.check(what, can_repeat(b, a), || format!("`b` {b:?} does not repeat over `a` {a:?}"))
            && self.rows_of_floats(what, "a", a)
            && self.check(what, b.dtype() == Dtype::F32 || b.dtype() == a.dtype(), || {
                format!("`b` {b:?} is neither f32 nor as `a` {a:?}")
            })
    }

    fn rows_of_floats(&self, what: &'static str, name: &str, a: Tensor<'g>) -> bool {
        self.check_float(what, name, a) && self.check_elements(what, name, a)
    }
}
