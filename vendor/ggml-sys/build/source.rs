//! Where ggml's source lies: the folder in GGML_SOURCE_DIR, or the package that `ggml/Cargo.toml` pins.
//! Owns the search and the version; knows nothing of how the files are compiled.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A ggml checkout.
#[derive(Debug)]
pub struct Source {
    /// The folder that holds `include` and `src`.
    pub ggml: PathBuf,
    /// From ggml's CMakeLists.txt, as in `0.28.0`.
    pub version: String,
    /// What `ggml_commit()` will tell: the pinned package, or `GGML_SOURCE_DIR`.
    pub origin: String,
}

impl Source {
    pub fn include(&self) -> PathBuf {
        self.ggml.join("include")
    }

    pub fn src(&self) -> PathBuf {
        self.ggml.join("src")
    }

    /// What a rebuild depends on. A package of a registry never changes, so only a folder of the user's is watched.
    pub fn watched(&self) -> Vec<PathBuf> {
        if self.origin != OVERRIDE {
            return Vec::new();
        }
        let folders = ["CMakeLists.txt", "include", "src"].map(|name| self.ggml.join(name));
        folders.to_vec()
    }
}

/// The manifest that names the package: that of a checkout, or in a published package, whose nested packages are left out, one
/// that is laid out in `folder` from the two files that it carries in their place.
///
/// # Errors
/// Files that are missing or cannot be written.
pub fn pin(folder: &Path) -> Result<PathBuf, String> {
    let own = Path::new("ggml/Cargo.toml");
    if own.is_file() {
        return Ok(own.to_owned());
    }
    let folder = folder.join("pin");
    let lay = |from: &str, to: &str| std::fs::read(from).and_then(|bytes| std::fs::write(folder.join(to), bytes));
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| lay("pin.toml", "Cargo.toml"))
        .and_then(|()| lay("pin.lock", "Cargo.lock"))
        .and_then(|()| std::fs::write(folder.join("lib.rs"), ""));
    written.map_err(|e| format!("{}: {e}; it is to name the package that carries ggml's source", folder.display()))?;
    Ok(folder.join("Cargo.toml"))
}

/// Finds ggml for the target `triple`; `pin` is the manifest that names its package.
///
/// # Errors
/// A folder without ggml's headers, a version that cannot be read, cargo not able to fetch the package.
pub fn locate(pin: &Path, triple: &str) -> Result<Source, String> {
    match std::env::var_os(OVERRIDE) {
        Some(folder) => at(Path::new(&folder), OVERRIDE.to_owned()),
        None => {
            let (package, folder) = pinned(pin, triple)?;
            at(&folder.join("llama.cpp"), package)
        }
    }
}

/// The ggml in `folder`, which is ggml's own checkout or llama.cpp's; `origin` tells who named the folder.
///
/// # Errors
/// As `locate` has for a folder.
pub fn at(folder: &Path, origin: String) -> Result<Source, String> {
    let found = [folder.to_owned(), folder.join("ggml")]
        .into_iter()
        .find(|candidate| candidate.join("include/ggml.h").is_file() && candidate.join("src/ggml.c").is_file());
    let Some(ggml) = found else {
        return Err(format!(
            "no ggml in {} (from {origin}): neither it nor its folder ggml/ holds include/ggml.h and src/ggml.c.\n\
             Set {OVERRIDE} to a checkout of ggml or llama.cpp, or unset it to use the pinned package.",
            folder.display()
        ));
    };
    let ggml = std::path::absolute(&ggml).map_err(|e| format!("{}: {e}", ggml.display()))?;
    let version = version(&ggml.join("CMakeLists.txt"))?;
    Ok(Source { ggml, version, origin })
}

fn version(cmake: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(cmake)
        .map_err(|e| format!("{}: {e}; ggml's version is read there", cmake.display()))?;
    let part = |name: &str| {
        let opening = format!("set(GGML_VERSION_{name} ");
        let value = text.lines().find_map(|line| line.trim().strip_prefix(&opening)?.strip_suffix(')'));
        value.ok_or_else(|| format!("{}: no line `{opening}<number>)`; ggml's version is read there", cmake.display()))
    };
    Ok(format!("{}.{}.{}", part("MAJOR")?, part("MINOR")?, part("PATCH")?))
}

/// The pinned package as `name@version`, and its folder. Cargo fetches it when it is not in the cache.
fn pinned(pin: &Path, triple: &str) -> Result<(String, PathBuf), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["metadata", "--locked", "--format-version", "1", "--filter-platform", triple, "--manifest-path"])
        .arg(pin);
    let output = command.output().map_err(|e| format!("`{command:?}` did not start: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo could not fetch the package that carries ggml's source; it says:\n{}\n\
             Run `cargo fetch --locked --manifest-path {}` once where there is a network, or set {OVERRIDE} to a \
             checkout of ggml.",
            String::from_utf8_lossy(&output.stderr).trim(),
            std::path::absolute(pin).unwrap_or_else(|_| pin.to_owned()).display()
        ));
    }
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("`{command:?}` gave no JSON: {e}"))?;
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let package = packages.iter().find(|package| package["name"] == PACKAGE);
    let manifest = package.and_then(|package| package["manifest_path"].as_str()).map(Path::new);
    let (Some(package), Some(folder)) = (package, manifest.and_then(Path::parent)) else {
        return Err(format!("{} does not depend on {PACKAGE}, which carries ggml's source", pin.display()));
    };
    Ok((format!("{PACKAGE}@{}", package["version"].as_str().unwrap_or("?")), folder.to_owned()))
}

/// Overrides the pinned package.
const OVERRIDE: &str = "GGML_SOURCE_DIR";
const PACKAGE: &str = "llama-cpp-sys-4";
