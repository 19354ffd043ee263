//! Graphs over two devices, a worker in this process and the CPU: they are kept, within bounds, and give what one device
//! gives.

#[path = "ops/support.rs"]
mod support;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, OnceLock, mpsc};

use ggml::{
    Data, Device, Dtype, Executor, Graph, Mapping, Name, StateBuffer, StateSpec, WeightId, Weights, WeightsBuilder,
};
use support::{Rng, alone};

const N: i64 = 64;

/// A device of a worker that runs in this process; it ends with it.
fn worker() -> Device {
    static WORKER: OnceLock<Device> = OnceLock::new();
    *WORKER.get_or_init(|| {
        let (told, address) = mpsc::channel();
        std::thread::spawn(move || {
            let free = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
            let ended = ggml::serve_as_worker(free, &[Device::cpu().unwrap()], 1, |at| told.send(at).unwrap());
            panic!("{ended}");
        });
        let address = address.recv().unwrap();
        ggml::add_worker(&address.to_string()).unwrap()[0]
    })
}

/// Two matrices `[N, N]`, the first on the worker and the second on the CPU, or both there.
fn matrices(split: bool) -> (Arc<Weights>, [WeightId; 2]) {
    let n_bytes = (4 * N * N) as usize;
    let values = Rng::new(3).list(2 * n_bytes / 4);
    let bytes: Vec<u8> = values.iter().flat_map(|v| (v / 8.0).to_le_bytes()).collect();
    let mut builder = WeightsBuilder::new(vec![Arc::new(Mapping::Static(bytes.leak()))]);
    let mut add = |name: &str, at: usize| builder.add(name, Dtype::F32, [N, N, 1, 1], 0, at..at + n_bytes).unwrap();
    let ids = [add("far", 0), add("near", n_bytes)];
    let (cpu, far) = (Device::cpu().unwrap(), if split { worker() } else { Device::cpu().unwrap() });
    (builder.build_on(&[far], |name| if name == "far" { far } else { cpu }).unwrap(), ids)
}

/// Products with both matrices in turn, `depth` times, of `n_rows` rows.
fn chain(g: &Graph<'_>, ids: [WeightId; 2], n_rows: i64, depth: usize) {
    let mut x = g.input("x", Dtype::F32, [N, n_rows, 1, 1]);
    for i in 0..2 * depth {
        x = g.silu(g.mul_mat(g.weight(ids[i % 2]), x));
    }
    g.output("y", x);
}

fn run(
    executor: &mut Executor<(i64, usize)>,
    ids: [WeightId; 2],
    (n_rows, depth): (i64, usize),
    seed: u64,
) -> Vec<f32> {
    let x = Rng::new(seed).list((N * n_rows) as usize);
    let mut y = Vec::new();
    let inputs = [(Name("x", 0), Data::F32(&x))];
    let mut out = executor.run(&(n_rows, depth), 64, |g| chain(g, ids, n_rows, depth), &inputs).unwrap();
    out.f32("y", &mut y).unwrap();
    y
}

#[test]
fn graphs_of_several_keys_in_turns_are_built_once_each_and_give_what_one_device_gives() {
    let _alone = alone();
    let ((split, ids), (whole, ids_of_whole)) = (matrices(true), matrices(false));
    assert_eq!(split.devices().len(), 2);
    let mut executor: Executor<(i64, usize)> = Executor::new(split, 1).unwrap();
    let mut reference: Executor<(i64, usize)> = Executor::new(whole, 1).unwrap();
    // Verification of several widths, and drafts of several depths.
    let keys = [(1, 1), (4, 1), (5, 3), (1, 4), (32, 2), (7, 1)];
    executor.reserve(64, &(100, 1), |g| chain(g, ids, 100, 1)).unwrap();
    let n_reserved = executor.stats().n_builds;
    for cycle in 0..12u64 {
        for (i, &key) in keys.iter().enumerate() {
            let seed = 100 * cycle + i as u64;
            let (y, expected) = (run(&mut executor, ids, key, seed), run(&mut reference, ids_of_whole, key, seed));
            // ggml's own kernels there, ours here: sums in another order.
            let off = y.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-4 && y.len() == expected.len(), "{key:?} in cycle {cycle} is off by {off}");
        }
        assert_eq!(executor.stats().n_builds - n_reserved, keys.len() as u64, "after cycle {cycle}");
    }
}

/// A worker forgets all graphs when it has 1,024, and when a buffer is freed; its client counts along.
#[test]
fn a_worker_computes_more_graphs_than_it_remembers_and_old_ones_again() {
    let _alone = alone();
    let ((split, ids), (whole, ids_of_whole)) = (matrices(true), matrices(false));
    let mut reference: Executor<(i64, usize)> = Executor::new(whole, 1).unwrap();
    for cycle in 0..14 {
        // Its graphs and their buffers end with it.
        let mut executor: Executor<(i64, usize)> = Executor::new(Arc::clone(&split), 1).unwrap();
        for key in (1..=80).chain(1..=80).map(|n_rows| (n_rows, 1)) {
            let (y, expected) = (run(&mut executor, ids, key, 5), run(&mut reference, ids_of_whole, key, 5));
            let off = y.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-4 && y.len() == expected.len(), "{key:?} in cycle {cycle} is off by {off}");
        }
    }
}

#[test]
fn what_graphs_keep_to_themselves_is_bounded_and_large_ones_share() {
    let _alone = alone();
    let (weights, ids) = matrices(true);
    let mut executor: Executor<u64> = Executor::new(weights, 1).unwrap();
    // Much memory and little work: one product repeated over many rows, and their sums.
    let mut run = |key: u64, n: i64| {
        let build = |g: &Graph<'_>| {
            let x = g.mul_mat(g.weight(ids[1]), g.mul_mat(g.weight(ids[0]), g.input("x", Dtype::F32, [N, 1, 1, 1])));
            let many = g.repeat(x, g.input("like", Dtype::F16, [N, n, 1, 1]));
            g.output("y", g.sum_rows(many));
        };
        let like = vec![0; (N * n) as usize];
        let inputs = [(Name("x", 0), Data::F32(&[1.0; N as usize][..])), (Name("like", 0), Data::F16(&like))];
        let mut y = Vec::new();
        executor.run(&key, 64, build, &inputs).unwrap().f32("y", &mut y).unwrap();
        assert!(y.len() == n as usize && y.iter().all(|v| v.to_bits() == y[0].to_bits()), "{key}");
        (executor.buffer_bytes() >> 20, executor.stats().n_builds)
    };
    // About 50 MiB each: five of them fit into what all may have.
    let n = 200_000;
    for key in 0..12 {
        let (mib, _) = run(key, n);
        assert!(mib <= 256, "{mib} MiB after {} graphs", key + 1);
    }
    let (_, n_builds) = run(11, n);
    assert_eq!(run(10, n).1, n_builds, "the last ones are kept");
    // Two that need more than one may have: they share, and leave the others alone.
    let (mib, n_builds) = run(100, 2 * n);
    assert!(mib <= 256 + 110, "{mib} MiB");
    assert_eq!(run(101, 2 * n), (mib, n_builds + 1));
    assert_eq!(run(100, 2 * n), (mib, n_builds + 2), "one at a time");
    assert_eq!(run(11, n).1, n_builds + 2);
}

#[test]
fn states_on_two_devices_are_written_by_graphs_in_turns() {
    let _alone = alone();
    let (weights, ids) = matrices(true);
    let spec = |name: &str, device| StateSpec { name: name.into(), dtype: Dtype::F32, ne: [N, 2, 1, 1], device };
    let (state, rows) = StateBuffer::new(&[spec("far", worker()), spec("near", Device::cpu().unwrap())]).unwrap();
    let mut executor: Executor<i64> = Executor::new(weights, 1).unwrap();
    for cycle in 0..6 {
        for at in [0i64, 1] {
            let build = |g: &Graph<'_>| {
                let x = g.input("x", Dtype::F32, [N, 1, 1, 1]);
                let to = g.input("at", Dtype::I64, [1, 1, 1, 1]);
                for (matrix, row) in ids.into_iter().zip(&rows) {
                    let y = g.mul_mat(g.weight(matrix), x);
                    g.keep(g.set_rows(g.state(&state, *row), y, to));
                }
            };
            let x = [(10 * cycle + at) as f32; N as usize];
            executor.run(&at, 64, build, &[(Name("x", 0), Data::F32(&x)), (Name("at", 0), Data::I64(&[at]))]).unwrap();
        }
    }
    assert_eq!(executor.stats().n_builds, 2);
    for row in rows {
        let mut bytes = [0; 8 * N as usize];
        state.read(row, 0, &mut bytes).unwrap();
        let v: Vec<f32> = bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        // The last cycle wrote products with 50 and 51.
        assert!(v[..64].iter().zip(&v[64..]).all(|(a, b)| (a / 50.0 - b / 51.0).abs() < 1e-5), "{row:?}");
    }
}
