//! A process may end while threads of it compute: it ends with its own code.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ggml::{Data, Device, Dtype, Executor, Name, WeightsBuilder};

/// Set for the processes that this test starts: the microseconds after which they end.
const CHILD: &str = "NEXTN_TEST_END_AFTER";

fn main() {
    if let Ok(wait) = std::env::var(CHILD) {
        return child(wait.parse().expect("a number"));
    }
    let this = std::env::current_exe().expect("this program");
    for i in 0..100 {
        let ended = Command::new(&this).env(CHILD, (i * 37 % 1000).to_string()).output().expect("it starts");
        assert!(ended.status.success(), "{i}: {}, {}", ended.status, String::from_utf8_lossy(&ended.stderr));
    }
    println!("test processes_end_under_threads_that_compute ... ok");
}

/// Ends while other threads build and compute graphs.
fn child(wait: u64) {
    let weights = WeightsBuilder::new(vec![]).build(Device::cpu().expect("a CPU")).expect("no weights");
    for _ in 0..3 {
        let weights = Arc::clone(&weights);
        std::thread::spawn(move || {
            let mut executor = Executor::new(weights, 1).expect("a stream");
            for key in 0.. {
                let a = [1.0; 256];
                let inputs = [(Name("a", 0), Data::F32(&a))];
                let build = |g: &ggml::Graph<'_>| {
                    let a = g.input("a", Dtype::F32, [16, 16, 1, 1]);
                    g.output("product", g.mul_mat(a, a));
                };
                executor.run(&(key / 4), 16, build, &inputs).expect("a graph that runs");
            }
        });
    }
    std::thread::sleep(Duration::from_micros(wait));
}
