//! What large bodies take of memory. Alone in its program: the peak that is read is that of the whole process.
#![cfg(target_os = "linux")]

#[path = "api/support.rs"]
#[allow(dead_code)]
mod support;

use bytes::Bytes;
use support::App;

/// The highest resident memory of this process so far.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux tells it");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

fn zeros(n: usize) -> Bytes {
    format!("{{\"max_tokens\":1,\"prompt\":[{}0]}}", "0,".repeat(n - 1)).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_take_a_bounded_amount_of_memory() {
    let app = App::new();
    let (status, _) = app.raw("/v1/completions", zeros(2)).await;
    assert_eq!(status.as_u16(), 200);
    // The first is the longest list that is read; the other is as long as a body may be.
    for (n_ids, expected) in [(1_000_000, 400), (4_190_000, 413)] {
        let (before, body) = (peak_mib(), zeros(n_ids));
        let all = futures_util::future::join_all((0..4).map(|_| app.raw("/v1/completions", body.clone()))).await;
        for (status, answer) in all {
            assert_eq!(status.as_u16(), expected, "{}", String::from_utf8_lossy(&answer));
        }
        let grown = peak_mib() - before;
        assert!(grown < 128, "{n_ids} ids, four times at once: {grown} MiB");
    }
    // What is read as JSON takes more, and is read one after the other.
    let (before, body) = (peak_mib(), format!("{{\"messages\":[{}0]}}", "0,".repeat(1_000_000)));
    let all = (0..4).map(|_| app.raw("/v1/chat/completions", body.clone()));
    assert!(futures_util::future::join_all(all).await.iter().all(|(status, _)| status.as_u16() == 400));
    let grown = peak_mib() - before;
    assert!(grown < 256, "a million messages, four times at once: {grown} MiB");
}
