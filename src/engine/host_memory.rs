//! What memory the machine has left for this process, by what its system tells.
//! Knows nothing of who wants it.

use ggml::ControlGroup;

/// Bytes that can be taken without taking them from others: of the machine, or of a control group that has less. `None` where
/// the system does not say.
pub(crate) fn available() -> Option<usize> {
    let of_machine = meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?);
    let of_groups = ggml::control_groups("memory").into_iter().filter_map(|group| of_group(&group));
    of_machine.into_iter().chain(of_groups).min()
}

/// The line of what is available, in bytes.
fn meminfo(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// What a control group may still take; `None` without a limit.
fn of_group(group: &ControlGroup) -> Option<usize> {
    let number =
        |name: &str| -> Option<usize> { std::fs::read_to_string(group.folder.join(name)).ok()?.trim().parse().ok() };
    let [most, taken] =
        if group.is_v1 { ["memory.limit_in_bytes", "memory.usage_in_bytes"] } else { ["memory.max", "memory.current"] };
    Some(number(most)?.saturating_sub(number(taken)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_the_system_says_and_a_group_without_a_limit_says_nothing() {
        assert_eq!(meminfo("MemTotal: 9 kB\nMemAvailable:   1024 kB\n"), Some(1 << 20));
        assert_eq!(meminfo("MemTotal: 9 kB\n"), None);
        let dir = std::env::temp_dir().join(format!("nextn-group-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        for (is_v1, most, taken) in
            [(false, "memory.max", "memory.current"), (true, "memory.limit_in_bytes", "memory.usage_in_bytes")]
        {
            let group = ControlGroup { is_v1, folder: dir.clone() };
            std::fs::write(dir.join(taken), "100\n").expect("written");
            for (max, left) in [("max\n", None), ("250\n", Some(150)), ("50\n", Some(0))] {
                std::fs::write(dir.join(most), max).expect("written");
                assert_eq!(of_group(&group), left, "{max}");
            }
        }
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
