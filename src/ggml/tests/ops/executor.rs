//! The executor's promises: errors that name the place, inputs on every run, graphs that share memory, state that stays.

use std::sync::Arc;

use ggml::{Data, Device, Dtype, Error, Executor, Mapping, Name, StateBuffer, StateSpec, WeightsBuilder};

use crate::support::executor;

const NO_NAME: Name = Name("b", 0);

fn f32s<const N: usize>(values: [f32; N]) -> &'static [u8] {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    // Over-aligned by hand: the mapping takes any address, but only aligned ones are used without a copy.
    Vec::leak(bytes)
}

#[test]
fn the_first_error_names_layer_op_and_shapes() {
    let mut executor = executor();
    let error = executor
        .reserve(16, &0, |g| {
            g.layer(17);
            let a = g.input("a", Dtype::F32, [2, 4, 1, 1]);
            let b = g.input("b", Dtype::F32, [3, 3, 1, 1]);
            let c = g.mul_mat(a, b);
            g.layer(18);
            g.output("c", g.reshape(c, [99]));
        })
        .unwrap_err();
    assert_eq!(error.to_string(), "layer 17: mul_mat: `a` [2, 4, 1, 1] does not fit `b` [3, 3, 1, 1]");
}

#[test]
fn a_graph_larger_than_planned_is_an_error() {
    let error = executor().reserve(4, &0, |g| {
        let mut x = g.input("a", Dtype::F32, [2, 1, 1, 1]);
        for _ in 0..40 {
            x = g.scale(x, 2.0);
        }
        g.output("x", x);
    });
    assert!(matches!(error, Err(Error::TooManyNodes { max: 4, .. })), "{error:?}");
}

#[test]
fn every_run_brings_every_input_in_its_size_and_type() {
    let mut executor = executor();
    let build = |g: &ggml::Graph<'_>| {
        let a = g.input("a", Dtype::F32, [2, 1, 1, 1]);
        let b = g.input("b", Dtype::F32, [2, 1, 1, 1]);
        g.output("sum", g.add(a, b));
    };
    let mut run = |inputs: &[(Name, Data<'_>)]| {
        let mut sum = Vec::new();
        executor.run(&1, 16, build, inputs)?.f32("sum", &mut sum)?;
        Ok::<_, Error>(sum)
    };
    let (a, b) = ((Name("a", 0), Data::F32(&[1.0, 2.0])), (NO_NAME, Data::F32(&[10.0, 20.0])));
    for _ in 0..3 {
        assert_eq!(run(&[a, b]).unwrap(), [11.0, 22.0]);
    }
    assert!(run(&[a]).unwrap_err().to_string().contains("`b`: is not given"));
    assert!(run(&[a, (NO_NAME, Data::F32(&[1.0]))]).unwrap_err().to_string().contains("takes 8 bytes"));
    assert!(run(&[a, (NO_NAME, Data::I32(&[1, 2]))]).unwrap_err().to_string().contains("of i32"));
    assert!(run(&[a, b, (Name("c", 0), Data::F32(&[]))]).unwrap_err().to_string().contains("`c`"));
}

#[test]
fn kept_graphs_alternate_over_one_buffer_and_survive_its_growth() {
    let mut executor = executor();
    for round in 0..3 {
        for n in [4i64, 64, 8, 4096] {
            let values: Vec<f32> = (0..n).map(|i| (i + round) as f32).collect();
            let build = |g: &ggml::Graph<'_>| {
                let a = g.input("a", Dtype::F32, [n, 1, 1, 1]);
                g.output("y", g.add(g.scale(a, 3.0), a));
            };
            let mut y = Vec::new();
            let inputs = [(Name("a", 0), Data::F32(&values))];
            executor.run(&(n as u32), 16, build, &inputs).unwrap().f32("y", &mut y).unwrap();
            let expected: Vec<f32> = values.iter().map(|v| v * 4.0).collect();
            assert_eq!(y, expected, "{n} elements, round {round}");
        }
    }
    assert_eq!(executor.stats().n_runs, 12);
    assert!(executor.stats().n_builds < 12, "the last rounds reuse graphs");
}

#[test]
fn weights_lie_over_the_map_and_outlive_the_builder() {
    let map = Arc::new(Mapping::Static(f32s([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])));
    let mut builder = WeightsBuilder::new(vec![map]);
    assert!(builder.add("outside", Dtype::F32, [2, 1, 1, 1], 0, 20..28).is_err());
    assert!(builder.add("too short", Dtype::F32, [3, 1, 1, 1], 0, 0..8).is_err());
    assert!(builder.add("no such file", Dtype::F32, [2, 1, 1, 1], 1, 0..8).is_err());
    let w = builder.add("w", Dtype::F32, [2, 3, 1, 1], 0, 0..24).unwrap();
    let mut executor: Executor<u32> = Executor::new(builder.build(Device::cpu().unwrap()).unwrap(), 1).unwrap();
    let mut y = Vec::new();
    let build = |g: &ggml::Graph<'_>| {
        let x = g.input("x", Dtype::F32, [2, 1, 1, 1]);
        g.output("y", g.mul_mat(g.weight(w), x));
    };
    executor.run(&0, 16, build, &[(Name("x", 0), Data::F32(&[10.0, 1.0]))]).unwrap().f32("y", &mut y).unwrap();
    assert_eq!(y, [12.0, 34.0, 56.0]);
}

#[test]
fn graphs_compute_with_numbers_that_were_replaced() {
    let map = Arc::new(Mapping::Static(f32s([1.0, 2.0, 3.0, 4.0])));
    let mut builder = WeightsBuilder::new(vec![map]);
    let a = builder.add("a", Dtype::F32, [2, 1, 1, 1], 0, 0..8).unwrap();
    let b = builder.add("b", Dtype::F32, [2, 1, 1, 1], 0, 8..16).unwrap();
    assert_eq!(builder.replaceable(|name| name == "b"), 1);
    let weights = builder.build(Device::cpu().unwrap()).unwrap();
    let mut executor: Executor<u32> = Executor::new(Arc::clone(&weights), 1).unwrap();
    let mut sum = || {
        let mut y = Vec::new();
        let build = |g: &ggml::Graph<'_>| {
            let x = g.input("x", Dtype::F32, [2, 1, 1, 1]);
            g.output("y", g.add(g.mul_mat(g.weight(a), x), g.mul_mat(g.weight(b), x)));
        };
        executor.run(&0, 16, build, &[(Name("x", 0), Data::F32(&[10.0, 1.0]))]).unwrap().f32("y", &mut y).unwrap();
        y[0]
    };
    assert_eq!(sum(), 12.0 + 34.0);
    let of = |numbers: [f32; 2]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (new, short) = (of([5.0, 6.0]), vec![0; 4]);
    assert!(weights.replace(&[(b, &new), (a, &new)]).is_err(), "`a` lies over the map");
    assert!(weights.replace(&[(b, &new), (b, &short)]).is_err());
    assert_eq!(sum(), 12.0 + 34.0, "what is refused changes nothing");
    weights.replace(&[(b, &new)]).unwrap();
    assert_eq!(sum(), 12.0 + 56.0, "the graph that was built before sees them");
    assert_eq!(weights.replaceable().collect::<Vec<_>>(), [b]);
    let mut read = [0; 8];
    weights.read(b, 0, &mut read).unwrap();
    assert_eq!(read, *new);
}

#[test]
fn state_keeps_what_a_graph_writes() {
    let mut executor = executor();
    let spec = StateSpec { name: "s".into(), dtype: Dtype::F32, ne: [2, 3, 1, 1], device: Device::cpu().unwrap() };
    let (mut state, ids) = StateBuffer::new(&[spec]).unwrap();
    state.write(ids[0], 0, &7f32.to_le_bytes()).unwrap();
    let build = |g: &ggml::Graph<'_>| {
        let s = g.state(&state, ids[0]);
        let row = g.input("row", Dtype::F32, [2, 1, 1, 1]);
        let at = g.input("at", Dtype::I64, [1, 1, 1, 1]);
        g.keep(g.set_rows(s, row, at));
    };
    for (at, v) in [(1, 1.0), (2, 2.0)] {
        let inputs = [(Name("row", 0), Data::F32(&[v, v])), (Name("at", 0), Data::I64(&[at]))];
        executor.run(&0, 16, build, &inputs).unwrap();
    }
    let mut bytes = [0; 24];
    state.read(ids[0], 0, &mut bytes).unwrap();
    let values: Vec<f32> = bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(values, [7.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
    assert!(state.read(ids[0], 20, &mut [0; 8]).is_err());
    assert!(state.zero(ids[0], 0, 25).is_err());
}

#[test]
fn executors_compute_over_shared_weights_in_several_threads() {
    let map = Arc::new(Mapping::Static(f32s([2.0; 64])));
    let mut builder = WeightsBuilder::new(vec![map]);
    let w = builder.add("w", Dtype::F32, [8, 8, 1, 1], 0, 0..256).unwrap();
    let weights = builder.build(Device::cpu().unwrap()).unwrap();
    let threads: Vec<_> = (0..2)
        .map(|t| {
            let mut executor: Executor<u32> = Executor::new(Arc::clone(&weights), 1).unwrap();
            std::thread::spawn(move || {
                for i in 0..200 {
                    let x = [(i + t) as f32; 8];
                    let mut y = Vec::new();
                    let build = |g: &ggml::Graph<'_>| {
                        let x = g.input("x", Dtype::F32, [8, 1, 1, 1]);
                        g.output("y", g.mul_mat(g.weight(w), x));
                    };
                    executor.run(&0, 16, build, &[(Name("x", 0), Data::F32(&x))]).unwrap().f32("y", &mut y).unwrap();
                    assert_eq!(y, [(i + t) as f32 * 16.0; 8]);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
