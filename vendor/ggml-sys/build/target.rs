//! For what machine the library is built. Owns the reading of cargo's variables; knows nothing of ggml's files.

use std::path::PathBuf;

/// One build's target, as cargo tells it to the build script.
pub struct Target {
    pub triple: String,
    /// `CARGO_CFG_TARGET_ARCH`: `x86_64`, `aarch64`, ...
    pub arch: String,
    /// `CARGO_CFG_TARGET_OS`: `linux`, `macos`, ...
    pub os: String,
    pub out_dir: PathBuf,
    /// The library may use every instruction of this machine.
    pub native: bool,
}

impl Target {
    pub fn of_build_script() -> Target {
        let triple = variable("TARGET");
        Target {
            native: !cfg!(feature = "portable") && triple == variable("HOST"),
            triple,
            arch: variable("CARGO_CFG_TARGET_ARCH"),
            os: variable("CARGO_CFG_TARGET_OS"),
            out_dir: PathBuf::from(variable("OUT_DIR")),
        }
    }

    pub fn metal(&self) -> bool {
        self.os == "macos"
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: cargo sets it for every build script"))
}
