//! A portable build holds several copies of ggml's CPU backend: each computes, is what it says, and gives what others give.

use std::process::Command;

use ggml::{Data, Device, Dtype, Executor, Name, WeightsBuilder};

/// Copies, and a feature that the one before lacks.
const VARIANTS: [(&str, &str); 3] = [("sse42", "SSE3"), ("avx2", "AVX2"), ("avx512", "AVX512")];

/// Set for the processes that this test starts.
const VARIABLE: &str = "NEXTN_CPU_VARIANT";

fn main() {
    if cfg!(not(all(target_arch = "x86_64", target_os = "linux"))) {
        println!("test copies_of_the_cpu_backend ... ignored, one serves all processors of this target");
        return;
    }
    if std::env::var_os(VARIABLE).is_some() {
        return child();
    }
    let this = std::env::current_exe().expect("this program");
    let run = |variant: &str| {
        let ended = Command::new(&this).env(VARIABLE, variant).output().expect("it starts");
        assert!(ended.status.success(), "{variant}: {}, {}", ended.status, String::from_utf8_lossy(&ended.stderr));
        let text = String::from_utf8(ended.stdout).expect("text");
        let (features, sums) = text.split_once('\n').expect("two lines");
        let features: Vec<String> = features.split(' ').map(str::to_owned).collect();
        let sums: Vec<f32> = sums.split_whitespace().map(|s| s.parse().expect("a number")).collect();
        (features, sums)
    };
    let has = |features: &[String], name: &str| features.iter().any(|f| f == name);
    let (best, expected) = run("");
    assert_eq!(expected.len(), 24);
    let mut n_tried = 0;
    for (i, (variant, feature)) in VARIANTS.iter().enumerate() {
        if !has(&best, feature) {
            continue;
        }
        let (features, sums) = run(variant);
        assert!(has(&features, feature), "{variant}: {features:?}");
        for (_, of_better) in &VARIANTS[i + 1..] {
            assert!(!has(&features, of_better), "{variant}: {features:?}");
        }
        for (sum, expected) in sums.iter().zip(&expected) {
            assert!((sum - expected).abs() < 1e-3 * expected.abs().max(1.0), "{variant}: {sums:?}, {expected:?}");
        }
        n_tried += 1;
    }
    assert!(n_tried > 0, "the lowest is everywhere");
    let wrong = Command::new(&this).env(VARIABLE, "avx-512").output().expect("it starts");
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(wrong.status.success() && said.contains("avx-512") && said.contains("sse42"), "{}, {said}", wrong.status);
    println!("test copies_of_the_cpu_backend, {n_tried} of {} ... ok", VARIANTS.len());
}

/// Prints what the copy in use was compiled for, and a product and a normalisation by its kernels.
fn child() {
    let cpu = Device::cpu().expect("a CPU");
    println!("{}", cpu.features().join(" "));
    let weights = WeightsBuilder::new(vec![]).build(cpu).expect("no weights");
    let mut executor = Executor::new(weights, 2).expect("a stream");
    let a: Vec<f32> = (0..64 * 6).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect();
    let b: Vec<f32> = (0..64 * 4).map(|i| ((i * 53 % 89) as f32 - 44.0) / 30.0).collect();
    let inputs = [(Name("a", 0), Data::F32(&a)), (Name("b", 0), Data::F32(&b))];
    let build = |g: &ggml::Graph<'_>| {
        let a = g.input("a", Dtype::F32, [64, 6, 1, 1]);
        let b = g.input("b", Dtype::F32, [64, 4, 1, 1]);
        g.output("product", g.mul_mat(g.rms_norm(a, 1e-6), b));
    };
    let mut sums = Vec::new();
    executor.run(&0, 16, build, &inputs).expect("a graph that runs").f32("product", &mut sums).expect("an output");
    println!("{}", sums.iter().map(f32::to_string).collect::<Vec<_>>().join(" "));
}
