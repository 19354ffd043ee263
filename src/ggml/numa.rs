//! Machines whose memory lies in several nodes, each near to some of the processors.

use std::sync::OnceLock;

use ggml_sys as sys;

/// Where ggml's threads run on such a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numa {
    /// On all nodes in turn: for the bandwidth of all.
    Distribute,
    /// On the node that the program has started on.
    Isolate,
    /// Where `numactl` allows it.
    Numactl,
}

impl Numa {
    /// Holds for all threads of this process from now on; to be called before a device computes. Only the first call counts.
    /// False on a machine with one node, where it changes nothing.
    pub fn apply(self) -> bool {
        static DONE: OnceLock<bool> = OnceLock::new();
        *DONE.get_or_init(|| {
            let strategy = match self {
                Numa::Distribute => sys::GGML_NUMA_STRATEGY_DISTRIBUTE,
                Numa::Isolate => sys::GGML_NUMA_STRATEGY_ISOLATE,
                Numa::Numactl => sys::GGML_NUMA_STRATEGY_NUMACTL,
            };
            // SAFETY: reads the system's list of nodes; the cell lets one thread do it, once.
            unsafe { sys::ggml_numa_init(strategy) };
            // SAFETY: no preconditions.
            unsafe { sys::ggml_is_numa() }
        })
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    #[test]
    fn several_nodes_are_told_from_one() {
        let is_node = |name: &str| name.strip_prefix("node").is_some_and(|n| n.parse::<usize>().is_ok());
        let nodes = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
        let n = nodes.filter(|e| is_node(&e.file_name().to_string_lossy())).count();
        assert_eq!(super::Numa::Numactl.apply(), n > 1, "{n} nodes");
        assert_eq!(super::Numa::Distribute.apply(), n > 1, "told again");
    }
}
