//! The processors that are worth a thread: those that the process may use, one of each physical core, the fast ones where
//! there are two kinds, and no more than a container's quota pays for.
//! Reads what Linux says in files; elsewhere the standard library's number counts. Knows nothing of what computes.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::OnceLock;

use crate::control_groups::{ControlGroup, control_groups_in};

/// Threads to compute with where nobody says how many.
pub fn n_cores() -> usize {
    static FOUND: OnceLock<usize> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let all = || std::thread::available_parallelism().map_or(1, NonZero::get);
        System { root: Path::new("/") }.n_cores().unwrap_or_else(all)
    })
}

/// The processors that this process may use; `None` where the system does not tell.
pub(crate) fn allowed_cpus() -> Option<BTreeSet<usize>> {
    System { root: Path::new("/") }.allowed()
}

/// The files of a system.
struct System<'a> {
    /// Where `/` is.
    root: &'a Path,
}

impl System<'_> {
    /// Processors that the process may use and that are on.
    fn allowed(&self) -> Option<BTreeSet<usize>> {
        let status = self.read("proc/self/status")?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let mut cpus = list(allowed)?;
        if let Some(online) = self.read("sys/devices/system/cpu/online").and_then(|text| list(&text)) {
            cpus.retain(|cpu| online.contains(cpu));
        }
        Some(cpus)
    }

    /// `None` where the files do not tell.
    fn n_cores(&self) -> Option<usize> {
        let cpus = self.allowed()?;
        let fast: BTreeSet<usize> = cpus.iter().copied().filter(|&cpu| self.is_fast(cpu, &cpus)).collect();
        let cores: BTreeSet<String> = fast.iter().map(|&cpu| self.core(cpu)).collect();
        let most = self.quota().unwrap_or(usize::MAX);
        (!cores.is_empty()).then(|| cores.len().min(most))
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// Not one of the slow kind beside a fast one among `cpus`.
    fn is_fast(&self, cpu: usize, cpus: &BTreeSet<usize>) -> bool {
        // Intel's hybrids: each kind has a device of its own.
        if let Some(fast) = self.read("sys/devices/cpu_core/cpus").and_then(|text| list(&text)) {
            return fast.contains(&cpu) || fast.is_disjoint(cpus);
        }
        // ARM's: 1024 is the fastest. Of three kinds the middle one is fast enough.
        let capacity = |cpu: usize| -> Option<usize> { self.of_cpu(cpu, "cpu_capacity")?.trim().parse().ok() };
        let most = cpus.iter().filter_map(|&cpu| capacity(cpu)).max();
        most.zip(capacity(cpu)).is_none_or(|(most, own)| own >= most / 2)
    }

    fn of_cpu(&self, cpu: usize, name: &str) -> Option<String> {
        self.read(format!("sys/devices/system/cpu/cpu{cpu}/{name}"))
    }

    /// What names the core that the processor is a thread of: the list of its threads.
    fn core(&self, cpu: usize) -> String {
        let names = ["topology/core_cpus_list", "topology/thread_siblings_list"];
        let found = names.iter().find_map(|name| self.of_cpu(cpu, name));
        found.map_or_else(|| cpu.to_string(), |threads| threads.trim().to_owned())
    }

    /// Processors that the control groups of this process pay for, begun ones included: with a quota of one and a half,
    /// two threads that sleep a quarter of the time are faster than one that never does.
    fn quota(&self) -> Option<usize> {
        let groups = control_groups_in(self.root, "cpu");
        let share = |group: &ControlGroup| {
            if group.is_v1 { self.share_v1(&group.folder) } else { self.share_v2(&group.folder) }
        };
        let least = groups.iter().filter_map(share).min_by(f64::total_cmp);
        least.map(|share| (share.ceil() as usize).max(1))
    }

    fn share_v2(&self, folder: &Path) -> Option<f64> {
        let text = self.read(folder.join("cpu.max"))?;
        let (quota, period) = text.trim().split_once(' ')?;
        share(quota, period)
    }

    fn share_v1(&self, folder: &Path) -> Option<f64> {
        let number = |name: &str| -> Option<String> { Some(self.read(folder.join(name))?.trim().to_owned()) };
        share(&number("cpu.cfs_quota_us")?, &number("cpu.cfs_period_us")?)
    }
}

/// `None` without a quota: `max`, or -1.
fn share(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// A list such as `0-3,8`.
fn list(text: &str) -> Option<BTreeSet<usize>> {
    let mut found = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // No kernel has more processors.
        if last < first || last >= 1 << 16 {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::*;

    /// A folder with these files, gone when it is dropped.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, files: &BTreeMap<String, String>) -> Self {
            let root = std::env::temp_dir().join(format!("nextn-cores-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder");
                fs::write(path, text).expect("a file");
            }
            Self(root)
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// `n` processors, each a core of its own; more files over them.
    fn n_cores(name: &str, n: usize, more: &[(&str, &str)]) -> Option<usize> {
        let all = format!("0-{}\n", n - 1);
        let mut files = BTreeMap::from([
            ("proc/self/status".to_owned(), format!("Name:\tx\nCpus_allowed_list:\t{all}")),
            ("sys/devices/system/cpu/online".to_owned(), all),
        ]);
        for cpu in 0..n {
            files.insert(format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"), format!("{cpu}\n"));
        }
        files.extend(more.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
        let files = Files::new(name, &files);
        System { root: &files.0 }.n_cores()
    }

    fn per_cpu(name: &str, values: &[&str]) -> Vec<(String, String)> {
        let path = |cpu| format!("sys/devices/system/cpu/cpu{cpu}/{name}");
        values.iter().enumerate().map(|(cpu, value)| (path(cpu), format!("{value}\n"))).collect()
    }

    fn borrowed(files: &[(String, String)]) -> Vec<(&str, &str)> {
        files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect()
    }

    #[test]
    fn hyper_threads_of_a_core_count_once() {
        let siblings = per_cpu("topology/core_cpus_list", &["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]);
        assert_eq!(n_cores("threads", 8, &borrowed(&siblings)), Some(4));
        assert_eq!(n_cores("cores", 8, &[]), Some(8));
    }

    #[test]
    fn of_two_kinds_of_cores_the_fast_ones_count() {
        let intel = [("sys/devices/cpu_core/cpus", "0-3\n"), ("sys/devices/cpu_atom/cpus", "4-11\n")];
        assert_eq!(n_cores("intel", 12, &intel), Some(4));
        let only_slow = [intel[0], ("proc/self/status", "Cpus_allowed_list:\t6-9\n")];
        assert_eq!(n_cores("slow", 12, &only_slow), Some(4), "only slow ones are allowed");
        let arm = per_cpu("cpu_capacity", &["280", "280", "280", "280", "870", "870", "870", "1024"]);
        assert_eq!(n_cores("arm", 8, &borrowed(&arm)), Some(4));
    }

    #[test]
    fn what_the_process_may_not_use_does_not_count() {
        assert_eq!(n_cores("allowed", 8, &[("proc/self/status", "Cpus_allowed_list:\t1,3-4\n")]), Some(3));
        assert_eq!(n_cores("offline", 8, &[("sys/devices/system/cpu/online", "0-1\n")]), Some(2));
    }

    #[test]
    fn a_quota_bounds_the_threads_wherever_it_stands() {
        for (name, group, file, text, expected) in [
            ("v2", "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max", "150000 100000\n", 2),
            ("parent", "0::/a/b\n", "sys/fs/cgroup/a/cpu.max", "100000 100000\n", 1),
            ("container", "0::/of/the/host\n", "sys/fs/cgroup/cpu.max", "50000 100000\n", 1),
            ("none", "0::/\n", "sys/fs/cgroup/cpu.max", "max 100000\n", 8),
            ("broken", "0::/\n", "sys/fs/cgroup/cpu.max", "x\n", 8),
            ("zero", "0::/\n", "sys/fs/cgroup/cpu.max", "100000 0\n", 8),
        ] {
            let files = [("proc/self/cgroup", group), (file, text)];
            assert_eq!(n_cores(name, 8, &files), Some(expected), "{name}");
        }
        for (name, quota, expected) in [("v1", "250000\n", 3), ("unlimited", "-1\n", 8)] {
            let folder = "sys/fs/cgroup/cpu,cpuacct/box/";
            let (quota_file, period_file) = (format!("{folder}cpu.cfs_quota_us"), format!("{folder}cpu.cfs_period_us"));
            let files = [
                ("proc/self/cgroup", "5:memory:/box\n4:cpu,cpuacct:/box\n"),
                (quota_file.as_str(), quota),
                (period_file.as_str(), "100000\n"),
            ];
            assert_eq!(n_cores(name, 8, &files), Some(expected), "{name}");
        }
    }

    #[test]
    fn lists_that_are_none_tell_nothing() {
        assert_eq!(list("0-2,5\n"), Some(BTreeSet::from([0, 1, 2, 5])));
        for text in ["x", "3-1", "0-99999999999", "1-", "-1"] {
            assert_eq!(list(text), None, "{text}");
        }
        assert_eq!(n_cores("no list", 4, &[("proc/self/status", "Cpus_allowed_list:\tmany\n")]), None);
    }
}
