//! Experts in the host's memory with copies on another device: logits are those without copies whichever experts have one, and
//! copies follow what is asked for.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ggml::Device;
use memory::MemoryConfig;
use model::{ExpertCacheSize, GpuLayers, LoadError, LoadOptions, Model, Placement, architectures, nextn_architectures};

use crate::metal::{new_worker, worker};
use crate::support::rig::{Rig, exact};
use crate::support::tiny::{Rng, Spec};

fn placement(worker: Device, expert_cache: ExpertCacheSize) -> Placement {
    Placement {
        gpus: vec![worker],
        layers: GpuLayers::Count(usize::MAX),
        n_cpu_moe: usize::MAX,
        expert_cache,
        ..Placement::default()
    }
}

fn open(path: &Path, placement: Placement) -> Result<Arc<Model>, LoadError> {
    Model::open(path, &LoadOptions { placement, ..LoadOptions::default() })
}

/// Logits of a prompt, of rows one by one and of a draft that was kept in part.
fn logits(model: &Arc<Model>) -> Vec<f32> {
    let mut rng = Rng::new(17);
    let ids: Vec<u32> = (0..40).map(|_| rng.below(256) as u32).collect();
    let mut rig = Rig::new(model, MemoryConfig { n_snapshots: 4, ..exact(1, 256) });
    let slot = rig.slot();
    let mut all = rig.in_pieces(&slot, &ids[..24], &[20, 1, 3]);
    all.extend(rig.step_keeping(&[(&slot, &ids[24..28])], 4, &[2]));
    all.extend(rig.in_pieces(&slot, &ids[26..], &[1, 13]));
    all
}

fn off_by(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Bytes on a CPU: of these models on a worker, their experts'.
fn on_host(model: &Model) -> usize {
    model.weights().bytes_on(Device::cpu().expect("there is one"))
}

#[test]
fn logits_are_the_same_whichever_experts_have_copies() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let mut n_tried = 0;
    for arch in architectures() {
        // As wide as kernels take floats.
        let spec = Spec { nextn: nextn_architectures().contains(&arch), n_ff: 32, ..Spec::of(arch) };
        let path = spec.document().write(&dir.path().join(format!("{arch}.gguf")));
        let worker = new_worker();
        let plain = open(&path, placement(worker, ExpertCacheSize::Off)).expect("a sound file");
        let of_experts = on_host(&plain);
        // Two of six, beside one of zeros and the numbers.
        let size = ExpertCacheSize::Bytes(of_experts * 2 / 3);
        let model = match open(&path, placement(worker, size)) {
            Err(LoadError::NoExpertsToCopy) => continue,
            model => model.expect("room for copies"),
        };
        n_tried += 1;
        // Should the worker end.
        println!("{arch}");
        let expected = logits(&plain);
        let added = model.weights().bytes_on(worker) - plain.weights().bytes_on(worker);
        assert_eq!(added, of_experts / 2, "{arch}: bytes of copies");
        let off = off_by(&logits(&model), &expected);
        // The worker computes with ggml's kernels: sums in another order.
        assert!(off < 2e-3, "{arch}: logits are off by {off}");
        let (n_asked, n_found) = model.weights().expert_uses();
        assert!(n_found > 0 && n_found < n_asked, "{arch}: {n_found} of {n_asked} had copies");

        // Whoever a text asks for has copies in the end; what comes out stays what it was.
        let share = |id: u32| {
            let before = model.weights().expert_uses();
            let mut rig = Rig::new(&model, exact(1, 256));
            let slot = rig.slot();
            rig.step(&[(&slot, &[id; 24])]);
            let after = model.weights().expert_uses();
            (after.1 - before.1) as f64 / (after.0 - before.0) as f64
        };
        let shares = [7, 50, 120, 200].map(|id| (share(id), id));
        let (first, id) = shares.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("four");
        (0..4).for_each(|_| _ = share(id));
        if first > 0.6 {
            // Its router sends all tokens to the same three, two of whom are the first ones.
            continue;
        }
        let long = Instant::now() + Duration::from_secs(60);
        let n_exchanged = model.weights().renew_expert_copies(long);
        assert!(n_exchanged > 0, "{arch}: copies do not follow");
        let last = share(id);
        assert!(last > first, "{arch}: {last} of uses found copies, {first} at first");
        let off = off_by(&logits(&model), &expected);
        assert!(off < 2e-3, "{arch}: logits are off by {off} behind exchanges");
    }
    assert!(n_tried >= 9, "{n_tried} architectures with experts");
}

#[test]
fn what_cannot_be_copied_is_refused_with_what_would_do() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = Spec { n_ff: 32, ..Spec::of("qwen3moe") }.document().write(&dir.path().join("moe.gguf"));
    let refused = |placement: Placement| open(&path, placement).expect_err("it cannot be so").to_string();
    let wanted = ExpertCacheSize::Bytes(1 << 20);
    let error = refused(Placement { n_cpu_moe: 0, ..placement(worker(), wanted) });
    assert!(error.contains("--cpu-moe"), "{error}");
    let error = refused(Placement { gpus: Vec::new(), ..placement(worker(), wanted) });
    assert!(error.contains("--cpu-moe"), "{error}");
    let error = refused(placement(worker(), ExpertCacheSize::Bytes(100)));
    assert!(error.contains("at least 1 MiB"), "{error}");
    let copies = |expert_cache| {
        let model = open(&path, Placement { n_cpu_moe: 0, ..placement(worker(), expert_cache) });
        model.expect("a sound file").weights().has_expert_copies()
    };
    assert!(!copies(ExpertCacheSize::Auto), "there is nothing to copy");
    let model = open(&path, placement(worker(), ExpertCacheSize::Auto)).expect("a sound file");
    let (n_asked, n_found) = (logits(&model), model.weights().expert_uses()).1;
    assert!(n_found * 2 > n_asked, "five of six have copies: {n_found} of {n_asked}");
}
