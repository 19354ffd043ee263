//! What `--version` tells: this program's version and revision, ggml's version, the backends built in or
//! found, and what the CPU's was compiled for.

/// One fact per line, for this program.
pub fn text(program: &str) -> String {
    let build = build_info();
    let revision = if build.revision.is_empty() { String::new() } else { format!(" ({})", build.revision) };
    let (devices, cpu) = (build.devices.join(", "), build.cpu.join(", "));
    format!("{program} {}{revision}\nggml {}\nbackends: {devices}\ncpu: {cpu}\n", build.version, build.ggml)
}

/// What this build is made of.
#[derive(Clone, Debug)]
pub struct BuildInfo {
    /// The program's version.
    pub version: &'static str,
    /// The git revision it was built from; empty outside a checkout.
    pub revision: &'static str,
    /// ggml's version.
    pub ggml: &'static str,
    /// Devices that can compute here, by ggml's names.
    pub devices: Vec<String>,
    /// What ggml's CPU kernels that serve here were compiled for, such as `AVX2`.
    pub cpu: Vec<String>,
}

/// What this build is made of.
pub fn build_info() -> BuildInfo {
    BuildInfo {
        version: env!("CARGO_PKG_VERSION"),
        revision: env!("NEXTN_REVISION"),
        ggml: ggml::version(),
        devices: ggml::Device::all().into_iter().map(ggml::Device::name).collect(),
        cpu: ggml::Device::cpu().map(ggml::Device::features).unwrap_or_default(),
    }
}
