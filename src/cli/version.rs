//! What `--version` tells: this program's version and revision, ggml's version, and the backends built in or found.

/// One fact per line, for this program.
pub fn text(program: &str) -> String {
    let build = crate::build_info();
    let revision = if build.revision.is_empty() { String::new() } else { format!(" ({})", build.revision) };
    format!("{program} {}{revision}\nggml {}\nbackends: {}\n", build.version, build.ggml, build.devices.join(", "))
}
