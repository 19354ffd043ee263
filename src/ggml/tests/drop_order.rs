//! Who keeps what alive: each owner is dropped before those that read through it, and results stay right.

#[path = "ops/support.rs"]
mod support;

use std::sync::Arc;

use ggml::{Data, Device, Dtype, Executor, Graph, Mapping, Name, StateBuffer, StateSpec, WeightId, WeightsBuilder};
use support::{alone, no_weights};

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// `y = w x` for `w: [2, 3]`.
fn product(executor: &mut Executor<u32>, w: WeightId, x: [f32; 2]) -> Vec<f32> {
    let mut y = Vec::new();
    let build = |g: &Graph<'_>| {
        let x = g.input("x", Dtype::F32, [2, 1, 1, 1]);
        g.output("y", g.mul_mat(g.weight(w), x));
    };
    executor.run(&0, 16, build, &[(Name("x", 0), Data::F32(&x))]).unwrap().f32("y", &mut y).unwrap();
    y
}

/// A file that is mapped, then unlinked: only the map keeps its pages.
fn mapped_file(name: &str, values: &[f32]) -> Arc<Mapping> {
    let path = std::env::temp_dir().join(format!("nextn-{name}-{}", std::process::id()));
    std::fs::write(&path, bytes(values)).unwrap();
    let map = Mapping::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    Arc::new(map)
}

#[test]
fn executors_keep_weights_and_weights_keep_their_maps() {
    let _alone = alone();
    let map = mapped_file("maps", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let watch = Arc::downgrade(&map);
    let mut builder = WeightsBuilder::new(vec![map]);
    let w = builder.add("w", Dtype::F32, [2, 3, 1, 1], 0, 0..24).unwrap();
    let weights = builder.build(Device::cpu().unwrap()).unwrap();
    let mut first: Executor<u32> = Executor::new(Arc::clone(&weights), 1).unwrap();
    let mut second: Executor<u32> = Executor::new(Arc::clone(&weights), 1).unwrap();
    let weak = Arc::downgrade(&weights);
    drop(weights);
    assert_eq!(product(&mut first, w, [10.0, 1.0]), [12.0, 34.0, 56.0]);
    assert_eq!(product(&mut second, w, [1.0, 10.0]), [21.0, 43.0, 65.0]);
    drop(first);
    assert_eq!(product(&mut second, w, [1.0, 1.0]), [3.0, 7.0, 11.0], "the kept graph after its sister is gone");
    assert!(weak.upgrade().is_some() && watch.upgrade().is_some());
    drop(second);
    assert!(weak.upgrade().is_none() && watch.upgrade().is_none(), "the last executor frees weights and map");
}

#[test]
fn executors_may_go_in_either_order() {
    let _alone = alone();
    for newest_first in [false, true] {
        let map = mapped_file("order", &[2.0; 6]);
        let mut builder = WeightsBuilder::new(vec![map]);
        let w = builder.add("w", Dtype::F32, [2, 3, 1, 1], 0, 0..24).unwrap();
        let weights = builder.build(Device::cpu().unwrap()).unwrap();
        let mut kept: Vec<_> = (0..3).map(|_| Executor::<u32>::new(Arc::clone(&weights), 2).unwrap()).collect();
        drop(weights);
        while !kept.is_empty() {
            for executor in &mut kept {
                assert_eq!(product(executor, w, [1.0, 2.0]), [6.0; 3]);
            }
            if newest_first { drop(kept.pop()) } else { drop(kept.remove(0)) }
        }
    }
}

#[test]
fn graphs_keep_the_states_that_they_read() {
    let _alone = alone();
    let mut executor: Executor<u32> = Executor::new(no_weights(), 1).unwrap();
    let spec = StateSpec { name: "s".into(), dtype: Dtype::F32, ne: [2, 1, 1, 1], device: Device::cpu().unwrap() };
    let (mut state, ids) = StateBuffer::new(&[spec]).unwrap();
    state.write(ids[0], 0, &bytes(&[1.0, 2.0])).unwrap();
    let id = ids[0];
    // `state` is gone in the later rounds: the graph of key 0 is kept and is not built again.
    let mut held = Some(state);
    for round in 0..4 {
        let build = |g: &Graph<'_>| {
            let s = g.state(held.as_ref().expect("only the first run builds"), id);
            let x = g.input("x", Dtype::F32, [2, 1, 1, 1]);
            let sum = g.add(s, x);
            g.output("sum", sum);
            g.keep(g.cpy(sum, s));
        };
        let mut sum = Vec::new();
        let inputs = [(Name("x", 0), Data::F32(&[1.0, 10.0]))];
        executor.run(&0, 16, build, &inputs).unwrap().f32("sum", &mut sum).unwrap();
        let n = (round + 1) as f32;
        assert_eq!(sum, [1.0 + n, 2.0 + 10.0 * n]);
        held = None;
    }
    drop(executor);
}

#[test]
fn outputs_of_weights_and_states_are_copies() {
    let _alone = alone();
    let map = mapped_file("outputs", &[1.0, 2.0]);
    let mut builder = WeightsBuilder::new(vec![map]);
    let w = builder.add("w", Dtype::F32, [2, 1, 1, 1], 0, 0..8).unwrap();
    let weights = builder.build(Device::cpu().unwrap()).unwrap();
    let mut executor: Executor<u32> = Executor::new(Arc::clone(&weights), 1).unwrap();
    let spec = StateSpec { name: "s".into(), dtype: Dtype::F32, ne: [2, 1, 1, 1], device: Device::cpu().unwrap() };
    let (mut state, ids) = StateBuffer::new(&[spec]).unwrap();
    state.write(ids[0], 0, &bytes(&[3.0, 4.0])).unwrap();
    let build = |g: &Graph<'_>| {
        g.output("w", g.weight(w));
        g.output("s", g.state(&state, ids[0]));
    };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    {
        let mut out = executor.run(&0, 16, build, &[]).unwrap();
        state.write(ids[0], 0, &bytes(&[9.0, 9.0])).unwrap();
        out.f32("w", &mut a).unwrap();
        out.f32("s", &mut b).unwrap();
    }
    assert_eq!((a, b), (vec![1.0, 2.0], vec![3.0, 4.0]), "the state as the graph saw it");
    assert_eq!(weights.name(w), Some("w"));
}

#[test]
fn data_at_any_address_is_taken() {
    let _alone = alone();
    let values = bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    for shift in 0..40 {
        // 7 bytes of padding in front of the tensor, wherever the data begins: most are copied, some are not.
        let mut data = vec![0; shift + 7];
        data.extend(&values);
        let data: &'static [u8] = &Vec::leak(data)[shift..];
        let mut builder = WeightsBuilder::new(vec![Arc::new(Mapping::Static(data))]);
        let w = builder.add("w", Dtype::F32, [2, 3, 1, 1], 0, 7..31).unwrap();
        let mut executor: Executor<u32> = Executor::new(builder.build(Device::cpu().unwrap()).unwrap(), 1).unwrap();
        assert_eq!(product(&mut executor, w, [10.0, 1.0]), [12.0, 34.0, 56.0], "{shift} bytes on");
    }
}
