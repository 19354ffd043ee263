//! What `--version` tells: this program's version and revision, ggml's version, the backends built in or
//! found, and what the CPU's was compiled for.

/// One fact per line, for this program.
pub fn text(program: &str) -> String {
    let build = crate::build_info();
    let revision = if build.revision.is_empty() { String::new() } else { format!(" ({})", build.revision) };
    let (devices, cpu) = (build.devices.join(", "), build.cpu.join(", "));
    format!("{program} {}{revision}\nggml {}\nbackends: {devices}\ncpu: {cpu}\n", build.version, build.ggml)
}
