//! What this machine is, and how fast it reads memory: what a measurement needs beside it to mean anything.
//! Reads /proc where there is one; what is not known is left out.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use serde_json::{Value, json};

/// The machine as far as it says.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) n_cores: usize,
    /// Instruction sets that matter for speed.
    pub(super) features: Vec<&'static str>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) available_bytes: Option<u64>,
    pub(super) os: String,
}

impl Machine {
    pub(super) fn this() -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = |key: &str| {
            let line = meminfo.lines().find(|line| line.starts_with(key))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|n| n * 1024)
        };
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |key: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let cpu = field("model name").or_else(|| field("CPU part").map(|part| format!("CPU part {part}")));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: cpu.unwrap_or_else(|| format!("unknown {}", std::env::consts::ARCH)),
            n_cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            features: features(),
            memory_bytes: kib("MemTotal:"),
            available_bytes: kib("MemAvailable:"),
            os: format!("{} {} {}", std::env::consts::OS, kernel.trim(), std::env::consts::ARCH).replace("  ", " "),
        }
    }

    pub(super) fn line(&self) -> String {
        let memory = self.memory_bytes.map_or(String::new(), |n| format!(", {:.1} GiB", n as f64 / GIB));
        format!("{}, {} cores{memory}, {}", self.cpu, self.n_cores, self.os)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "cpu": self.cpu,
            "n_cores": self.n_cores,
            "features": self.features,
            "memory_bytes": self.memory_bytes,
            "os": self.os,
        })
    }
}

/// Version, revision, ggml and devices of this program.
pub(super) fn build() -> Value {
    let b = program::version::build_info();
    json!({ "version": b.version, "revision": b.revision, "ggml": b.ggml, "devices": b.devices, "debug": cfg!(debug_assertions) })
}

/// A line to stand under tables.
pub(super) fn build_line() -> String {
    let b = program::version::build_info();
    format!("nextn {} {}, ggml {}{DEBUG}", b.version, b.revision, b.ggml)
}

/// What a build without optimisation adds to a line about itself.
pub(super) const DEBUG: &str = if cfg!(debug_assertions) { ", DEBUG BUILD: not for figures" } else { "" };

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("avxvnni", is_x86_feature_detected!("avxvnni")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ]
    .into_iter()
    .filter(|f| f.1)
    .map(|f| f.0)
    .collect()
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<&'static str> {
    [
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
        ("sve", std::arch::is_aarch64_feature_detected!("sve")),
    ]
    .into_iter()
    .filter(|f| f.1)
    .map(|f| f.0)
    .collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

/// Bytes a second that `n_threads` threads read together from memory, each its own part from front to back: the best of
/// several passes, after one that brings the pages in.
pub(super) fn bandwidth(n_threads: usize, n_bytes: usize) -> f64 {
    let n_words = (n_bytes / 8 / n_threads).max(LANES);
    let start = &std::sync::Barrier::new(n_threads);
    let seconds: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads)
            .map(|thread| {
                scope.spawn(move || {
                    let words = vec![thread as u64 + 1; n_words];
                    let pass = |_| {
                        start.wait();
                        let begin = Instant::now();
                        black_box(sum(black_box(&words)));
                        begin.elapsed().as_secs_f64()
                    };
                    (0..=PASSES).map(pass).skip(1).collect()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("adding numbers does not panic")).collect()
    });
    // A pass is over when the last thread is.
    let slowest = |pass: usize| seconds.iter().map(|s| s[pass]).fold(0.0, f64::max);
    let best = (0..PASSES).map(slowest).fold(f64::INFINITY, f64::min);
    (n_words * 8 * n_threads) as f64 / best.max(1e-9)
}

/// Eight sums at once, so that the adding is not what takes the time.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; LANES];
    for chunk in words.as_chunks::<LANES>().0 {
        for (sum, &word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(word);
        }
    }
    sums.iter().fold(0, |a, &b| a.wrapping_add(b))
}

const LANES: usize = 64;
const PASSES: usize = 6;

/// Bytes that a measurement of memory reads: far more than caches hold.
pub(super) const BANDWIDTH_BYTES: usize = 512 << 20;

pub(super) const GIB: f64 = (1u64 << 30) as f64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_memory_takes_time() {
        let rate = bandwidth(2, 8 << 20);
        assert!(rate.is_finite() && rate > 1e6, "{rate}");
        assert!(Machine::this().n_cores > 0);
    }
}
