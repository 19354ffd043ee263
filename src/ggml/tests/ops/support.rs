//! What the tests of single ops share: random data, plain tensors, weights in memory, one run of one graph.
#![allow(dead_code, reason = "every test program uses a part")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ggml::{Data, Device, Dtype, Executor, Graph, Mapping, Name, Tensor, WeightId, Weights, WeightsBuilder};

/// Splitmix64. The seed is printed, so that a failing test shows it.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self(seed)
    }

    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.u64() % n as u64) as usize
    }

    /// Evenly from -1 to 1.
    pub fn f32(&mut self) -> f32 {
        (self.u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn list(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.f32()).collect()
    }

    pub fn tensor(&mut self, ne: [usize; 4]) -> In {
        In::F32(ne, self.list(ne.iter().product()))
    }
}

/// An input with its shape.
#[derive(Clone, Debug)]
pub enum In {
    F32([usize; 4], Vec<f32>),
    F16([usize; 4], Vec<u16>),
    I32([usize; 4], Vec<i32>),
    I64([usize; 4], Vec<i64>),
}

impl In {
    /// As F16, with the values rounded.
    pub fn f16(&self) -> In {
        let In::F32(ne, values) = self else { panic!("only floats are rounded") };
        In::F16(*ne, values.iter().map(|&v| to_f16(v)).collect())
    }

    /// The values as F32.
    pub fn f32(&self) -> Vec<f32> {
        match self {
            In::F32(_, values) => values.clone(),
            In::F16(_, bits) => bits.iter().map(|&b| from_f16(b)).collect(),
            In::I32(_, values) => values.iter().map(|&v| v as f32).collect(),
            In::I64(_, values) => values.iter().map(|&v| v as f32).collect(),
        }
    }

    fn declare(&self) -> (Dtype, [i64; 4]) {
        let (dtype, ne) = match self {
            In::F32(ne, _) => (Dtype::F32, ne),
            In::F16(ne, _) => (Dtype::F16, ne),
            In::I32(ne, _) => (Dtype::I32, ne),
            In::I64(ne, _) => (Dtype::I64, ne),
        };
        (dtype, ne.map(|n| n as i64))
    }

    fn data(&self) -> Data<'_> {
        match self {
            In::F32(_, values) => Data::F32(values),
            In::F16(_, values) => Data::F16(values),
            In::I32(_, values) => Data::I32(values),
            In::I64(_, values) => Data::I64(values),
        }
    }
}

/// ggml's threads spin at barriers: executors run one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one graph over `weights` with `threads` threads; `build` gets the inputs in order and gives the result.
pub fn run_over(
    weights: &Arc<Weights>,
    threads: usize,
    inputs: &[In],
    build: impl for<'g> FnOnce(&Graph<'g>, &[Tensor<'g>]) -> Tensor<'g>,
) -> Vec<f32> {
    let _alone = alone();
    let mut executor: Executor<u32> = Executor::new(Arc::clone(weights), threads).unwrap();
    let data: Vec<_> = inputs.iter().enumerate().map(|(i, x)| (Name("in", i as u32), x.data())).collect();
    let graph = |g: &Graph<'_>| {
        let tensors: Vec<_> = inputs
            .iter()
            .enumerate()
            .map(|(i, x)| {
                let (dtype, ne) = x.declare();
                g.input(Name("in", i as u32), dtype, ne)
            })
            .collect();
        let y = build(g, &tensors);
        g.output("out", if y.dtype() == Dtype::F32 { g.cont(y) } else { g.cast(y, Dtype::F32) });
    };
    let mut out = Vec::new();
    executor.run(&0, 512, graph, &data).unwrap().f32("out", &mut out).unwrap();
    out
}

/// As [`run_over`], with one thread and without weights.
pub fn run(inputs: &[In], build: impl for<'g> FnOnce(&Graph<'g>, &[Tensor<'g>]) -> Tensor<'g>) -> Vec<f32> {
    run_over(&no_weights(), 1, inputs, build)
}

/// An executor over no weights, with one thread.
pub fn executor() -> Executor<u32> {
    Executor::new(no_weights(), 1).unwrap()
}

pub fn no_weights() -> Arc<Weights> {
    WeightsBuilder::new(vec![]).build(Device::cpu().unwrap()).unwrap()
}

/// Weights over one map in memory, which is leaked. Each begins aligned, so that none is copied.
pub fn weights(list: &[(Dtype, [i64; 4], Vec<u8>)]) -> (Arc<Weights>, Vec<WeightId>) {
    const ALIGN: usize = 64;
    let n_bytes: usize = list.iter().map(|(_, _, data)| data.len() + ALIGN).sum();
    let mut bytes: Vec<u8> = Vec::with_capacity(n_bytes + ALIGN); // never grows, so the addresses below stay
    let mut ranges = vec![];
    for (_, _, data) in list {
        let end = bytes.as_ptr_range().end;
        bytes.resize(bytes.len() + end.align_offset(ALIGN), 0);
        ranges.push(bytes.len()..bytes.len() + data.len());
        bytes.extend_from_slice(data);
    }
    let mut builder = WeightsBuilder::new(vec![Arc::new(Mapping::Static(Vec::leak(bytes)))]);
    let ids = list
        .iter()
        .zip(ranges)
        .enumerate()
        .map(|(i, ((dtype, ne, _), range))| builder.add(&format!("w{i}"), *dtype, *ne, 0, range).unwrap())
        .collect();
    (builder.build(Device::cpu().unwrap()).unwrap(), ids)
}

/// One weight matrix of random values in `dtype`: its bytes, and the values that they stand for.
pub fn matrix(rng: &mut Rng, dtype: Dtype, n_in: usize, n_out: usize) -> (Vec<u8>, Vec<f32>) {
    let exact = rng.list(n_in * n_out);
    // SAFETY: the id is one that ggml knows; the table is static.
    let traits = unsafe { ggml_sys::ggml_get_type_traits(dtype.id() as ggml_sys::ggml_type) };
    // SAFETY: an entry of the static table.
    let to_float = unsafe { &*traits }.to_float;
    let mut bytes = vec![0u8; dtype.row_bytes(n_in as i64).unwrap() * n_out];
    let (from, into) = (exact.as_ptr(), bytes.as_mut_ptr().cast());
    let (rows, n) = (n_out as i64, n_in as i64);
    // The smallest types are made only with the importance of each column: here all count alike.
    let importance = vec![1f32; n_in];
    // SAFETY: no preconditions beyond a known type.
    let needs = unsafe { ggml_sys::ggml_quantize_requires_imatrix(dtype.id() as ggml_sys::ggml_type) };
    let importance = if needs { importance.as_ptr() } else { std::ptr::null() };
    // SAFETY: `from` has `n_out` rows of `n_in`, `bytes` was sized for as many in `dtype`, `importance` is null or has
    // `n_in` floats, which outlive the call.
    let written =
        unsafe { ggml_sys::ggml_quantize_chunk(dtype.id() as ggml_sys::ggml_type, from, into, 0, rows, n, importance) };
    assert_eq!(written, bytes.len());
    let mut values = exact;
    if let (true, Some(to_float)) = (dtype != Dtype::F32, to_float) {
        // SAFETY: `bytes` holds as many elements as `values`.
        unsafe { to_float(bytes.as_ptr().cast(), values.as_mut_ptr(), values.len() as i64) };
    }
    (bytes, values)
}

/// The largest difference, and the largest value of the reference.
pub fn difference(got: &[f32], want: &[f64]) -> (f64, f64) {
    assert_eq!(got.len(), want.len(), "elements");
    let mut worst = (0.0f64, 0.0f64);
    for (&g, &w) in got.iter().zip(want) {
        assert!(f64::from(g).is_finite(), "{g} where {w} is right");
        worst = (worst.0.max((f64::from(g) - w).abs()), worst.1.max(w.abs()));
    }
    worst
}

/// Fails when a value is further from the reference than `tolerance` times the largest value of the reference.
#[track_caller]
pub fn assert_close(got: &[f32], want: &[f64], tolerance: f64) {
    let (error, scale) = difference(got, want);
    assert!(error <= tolerance * scale, "off by {error:e} of {scale:e}, {tolerance:e} allowed");
}

/// Fails when a bit differs.
#[track_caller]
pub fn assert_same_bits(got: &[f32], want: &[f32], what: &str) {
    assert!(same_bits(got, want), "{what}: bits differ");
}

pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// To IEEE half, to nearest, ties to even.
pub fn to_f16(v: f32) -> u16 {
    let sign = ((v.to_bits() >> 16) & 0x8000) as u16;
    let x = v.abs();
    if x.is_nan() {
        return sign | 0x7e00;
    }
    if x >= 65520.0 {
        return sign | 0x7c00;
    }
    // The distance between halves around x; the division and the scaling are exact, so only one rounding happens.
    let exponent = if x < 6.103_515_6e-5 { -14 } else { (x.to_bits() >> 23) as i32 - 127 };
    let steps = (x / 2f32.powi(exponent - 10)).round_ties_even() as u16;
    sign | (steps + ((exponent + 14) as u16) * 1024)
}

/// From IEEE half.
pub fn from_f16(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from((bits >> 10) & 31), f32::from(bits & 1023));
    let x = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    };
    if bits & 0x8000 != 0 { -x } else { x }
}
