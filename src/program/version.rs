//! What `--version` tells: this program's version and revision, ggml's version, the backends built in or
//! found, what the CPU's was compiled for, and the instruction set of our own CPU kernels.

use std::ffi::OsString;

use clap::Parser;

/// One fact per line, for this program.
pub fn text(program: &str) -> String {
    let build = build_info();
    let revision = if build.revision.is_empty() { String::new() } else { format!(" ({})", build.revision) };
    let (devices, cpu) = (build.devices.join(", "), build.cpu.join(", "));
    let (version, ggml, kernels) = (build.version, build.ggml, build.kernels);
    format!("{program} {version}{revision}\nggml {ggml}\nbackends: {devices}\ncpu: {cpu}\nkernels: {kernels}\n")
}

/// The options of a program out of `words`. Its `--version` tells of the kernels, too; manual pages, which are made where
/// programs are built, do not.
pub fn parse<A: Parser>(words: impl IntoIterator<Item = OsString>) -> A {
    let version = format!("{}\nkernels: {}", env!("CARGO_PKG_VERSION"), ggml::kernels_in_use());
    let matches = A::command().long_version(version).get_matches_from(words);
    A::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut A::command()).exit())
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
    /// The instruction set that our CPU kernels use here, such as `avx2`; `off` where ggml computes.
    pub kernels: String,
}

/// What this build is made of.
pub fn build_info() -> BuildInfo {
    BuildInfo {
        version: env!("CARGO_PKG_VERSION"),
        revision: env!("NEXTN_REVISION"),
        ggml: ggml::version(),
        devices: ggml::Device::all().into_iter().map(ggml::Device::name).collect(),
        cpu: ggml::Device::cpu().map(ggml::Device::features).unwrap_or_default(),
        kernels: ggml::kernels_in_use(),
    }
}
