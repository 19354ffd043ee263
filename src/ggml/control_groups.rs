//! The control groups of Linux that hold this process: where their limits stand.
//! Knows nothing of what is limited.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder of limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    /// Of the first version, whose files have other names.
    pub is_v1: bool,
    /// The folder, as a path of this system.
    pub folder: PathBuf,
}

/// The groups that limit this process by `controller` (`cpu`, `memory`), its own and those above it; a folder may be missing.
pub fn control_groups(controller: &str) -> Vec<ControlGroup> {
    control_groups_in(Path::new("/"), controller)
}

/// The same of a system whose files lie under `root`.
pub(crate) fn control_groups_in(root: &Path, controller: &str) -> Vec<ControlGroup> {
    let Ok(groups) = fs::read_to_string(root.join("proc/self/cgroup")) else { return Vec::new() };
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let is_v1 = controllers.split(',').any(|name| name == controller);
        if !is_v1 && !controllers.is_empty() {
            continue;
        }
        let mounts = if is_v1 { [controllers, controller] } else { ["", "unified"] };
        for mount in mounts {
            // In a container the path may be the host's: then only the mount's own folder is there.
            let above = Path::new(path).ancestors();
            let folders = above
                .map(|group| root.join("sys/fs/cgroup").join(mount).join(group.strip_prefix("/").unwrap_or(group)));
            found.extend(folders.map(|folder| ControlGroup { is_v1, folder }));
        }
    }
    found
}
