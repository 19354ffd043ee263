//! Tensors placed by name: logits are those of one device whatever holds which tensor, and state stays true.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ggml::Device;
use memory::MemoryConfig;
use model::{
    GpuLayers, LoadOptions, MemoryPlan, MemoryPlanner, Model, Placement, TensorOverride, architectures,
    nextn_architectures,
};

use crate::metal::{new_worker, worker};
use crate::support::rig::{Rig, exact};
use crate::support::tiny::{Rng, Spec};

/// Where tensors go: some to the worker, some to the CPU.
#[derive(Clone, Copy)]
enum To {
    Worker,
    Cpu,
}
use To::{Cpu, Worker};

fn placement(layers: GpuLayers, overrides: &[(&str, To)]) -> Placement {
    placement_on(worker(), layers, overrides)
}

fn placement_on(worker: Device, layers: GpuLayers, overrides: &[(&str, To)]) -> Placement {
    let of = |&(pattern, to): &(&str, To)| TensorOverride {
        pattern: pattern.parse().expect("a regular expression"),
        device: match to {
            Worker => worker,
            Cpu => Device::cpu().expect("there is one"),
        },
    };
    Placement { gpus: vec![worker], layers, overrides: overrides.iter().map(of).collect(), ..Placement::default() }
}

fn open(path: &Path, placement: Placement) -> Arc<Model> {
    Model::open(path, &LoadOptions { placement, ..LoadOptions::default() }).expect("a sound file")
}

fn written(dir: &Path, spec: &Spec) -> PathBuf {
    spec.document().write(&dir.join(format!("{}.gguf", spec.arch)))
}

/// Logits of a prompt, of rows one by one, and of rows behind a draft that was kept in part: state that was written wrongly or
/// not at all shows in what follows.
fn logits(model: &Arc<Model>) -> Vec<f32> {
    let mut rng = Rng::new(11);
    let ids: Vec<u32> = (0..32).map(|_| rng.below(256) as u32).collect();
    let mut rig = Rig::new(model, MemoryConfig { n_snapshots: 4, ..exact(2, 256) });
    let (other, slot) = (rig.slot(), rig.slot());
    rig.step(&[(&other, &ids[3..9])]);
    let mut all = rig.in_pieces(&slot, &ids[..22], &[20, 1, 1]);
    all.extend(rig.step_keeping(&[(&slot, &ids[22..26])], 4, &[2]));
    all.extend(rig.in_pieces(&slot, &ids[24..], &[1, 5, 1, 1]));
    all.extend(rig.step(&[(&other, &ids[..1]), (&slot, &ids[..1])]));
    all
}

#[test]
fn logits_are_the_same_wherever_tensors_are_put() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let all = GpuLayers::Count(usize::MAX);
    let cases: [(GpuLayers, &[(&str, To)]); 5] = [
        // A whole layer but its state; all but the states.
        (all, &[(r"blk\.[01]\.", Cpu)]),
        (all, &[(".", Cpu)]),
        // Each layer on both.
        (all, &[("attn_[qk]|conv|ffn_down|_exps|output", Cpu)]),
        (GpuLayers::Count(2), &[(r"blk\.3\..*norm", Cpu), ("attn_q|attn_k|ssm_out|conv|ffn_up|token_embd", Worker)]),
        // State and nothing else on the CPU.
        (GpuLayers::Count(0), &[(r"blk\.2\.", Cpu), (".", Worker)]),
    ];
    for arch in architectures() {
        let spec = Spec { nextn: nextn_architectures().contains(&arch), ..Spec::of(arch) };
        let path = written(dir.path(), &spec);
        let expected = logits(&open(&path, Placement::default()));
        // Of its own: graphs of other tests, and of other architectures, are none of its business.
        let worker = new_worker();
        for (i, (layers, overrides)) in cases.iter().enumerate() {
            // Should the worker end.
            println!("{arch}, case {i}");
            let found = logits(&open(&path, placement_on(worker, *layers, overrides)));
            let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // The worker computes with ggml's kernels: sums in another order.
            assert!(off < 2e-3 && found.len() == expected.len(), "{arch}, case {i}: logits are off by {off}");
        }
    }
}

#[test]
fn bytes_lie_where_the_patterns_say_and_not_twice() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = written(dir.path(), &Spec::of("qwen3moe"));
    let on = |overrides: &[(&str, To)], n_cpu_moe| {
        let placed = placement(GpuLayers::Count(usize::MAX), overrides);
        let model = open(&path, Placement { n_cpu_moe, ..placed });
        (model.weights().bytes_on(worker()), model.weights().bytes_on(Device::cpu().expect("there is one")))
    };
    let (all, none) = on(&[], 0);
    assert_eq!(none, 0);
    let of_experts = on(&[("_exps", Cpu)], 0);
    assert!(of_experts.1 > 0 && of_experts.0 + of_experts.1 == all);
    assert_eq!(of_experts, on(&[], usize::MAX), "as --cpu-moe");
    // A pattern goes before --cpu-moe, and one before the next.
    assert_eq!(on(&[("_exps", Worker)], usize::MAX), (all, 0));
    let first = on(&[(r"blk\.0\..*_exps", Worker), ("_exps", Cpu)], 0);
    assert_eq!(first.1, of_experts.1 / 4 * 3, "the experts of three layers of four");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = written(dir.path(), &Spec::of("qwen3moe"));
    let refused = |placement: Placement| {
        let error = Model::open(&path, &LoadOptions { placement, ..LoadOptions::default() });
        error.expect_err("it cannot be so").to_string()
    };
    let error = refused(placement(GpuLayers::Auto, &[("_exps", Cpu), ("_expz", Worker)]));
    assert!(error.contains("`_expz=RPC") && error.contains("no tensor"), "{error}");
    // More beside the weights than there is memory: nothing is left to what is put there by name.
    let planner = MemoryPlanner::new(|_| MemoryPlan {
        state: exact(1, 256),
        head: None,
        own_head: false,
        draft_words: None,
        n_batch: 1,
        n_out: 1,
        flash_attention: true,
        n_runners: 1,
        beside: usize::MAX / 2,
    });
    let error = refused(Placement { planner, ..placement(GpuLayers::Count(0), &[("_exps", Worker)]) });
    assert!(error.contains("--override-tensor puts") && error.contains("0 MiB are free"), "{error}");
}
