//! `nextn` the library: every floor of the house under one name, for Rust programs.
#![forbid(unsafe_code)]

pub use api;
pub use constrain;
pub use convert;
pub use engine;
pub use ggml;
pub use gguf;
pub use memory;
pub use model;
pub use session;
pub use speculate;
pub use text;

#[doc(hidden)]
pub mod bench;
#[doc(hidden)]
pub mod cli;
pub mod embedded;
#[doc(hidden)]
pub mod extract;
#[doc(hidden)]
pub mod server;
mod shell;
#[doc(hidden)]
pub mod short;

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
