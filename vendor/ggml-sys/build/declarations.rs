//! `bindings.rs`: which headers it declares, how it is made, and whether the committed one fits the source at hand.
//! Owns the list of headers; knows nothing of compiling ggml.

use crate::source::Source;
use sha2::{Digest, Sha256};
use std::path::Path;

/// Compares the hashes that `bindings` carries with the headers of `source`.
///
/// # Errors
/// A header that is missing or is not the one that `bindings` was made from.
#[cfg(not(feature = "buildtime-bindgen"))]
pub fn check(bindings: &Path, source: &Source) -> Result<(), String> {
    let text = std::fs::read_to_string(bindings).map_err(|e| {
        format!(
            "{}: {e}; make it with scripts/bindings.sh, or build with feature buildtime-bindgen",
            bindings.display()
        )
    })?;
    for header in HEADERS {
        let found = sha256(source, header)?;
        let line = text.lines().map(str::trim).find(|line| line.starts_with(&format!("(\"{header}\", \"")));
        let expected = line.and_then(|line| line.split('"').nth(3)).unwrap_or("no hash");
        if found != expected {
            return Err(format!(
                "{header}: the declarations were made from SHA-256 {expected}, ggml {} ({}) has {found}.\n\
                 Their structs and functions may differ, so nothing is built. Use the pinned ggml (unset \
                 GGML_SOURCE_DIR), or make fresh declarations: scripts/bindings.sh to keep them, feature \
                 buildtime-bindgen for one build; both need libclang.",
                source.version, source.origin
            ));
        }
    }
    Ok(())
}

/// Writes `bindings.rs` for the headers of `source` into `out_dir`.
///
/// # Errors
/// No libclang, or headers that it cannot read.
#[cfg(feature = "buildtime-bindgen")]
pub fn generate(source: &Source, out_dir: &Path) -> Result<(), String> {
    let includes: String = HEADERS.iter().map(|header| format!("#include \"{header}\"\n")).collect();
    let bindings = bindgen::Builder::default()
        .header_contents("headers.h", &includes)
        .clang_arg(format!("-I{}", source.include().display()))
        .allowlist_function("(ggml|gguf)_.*")
        .allowlist_type("(ggml|gguf)_.*")
        .allowlist_var("(GGML|GGUF)_.*")
        // C's FILE differs between systems; without it one file serves every 64-bit target.
        .blocklist_function("ggml_fopen|gguf_init_from_file_ptr|gguf_write_to_file_ptr")
        .blocklist_type("FILE|_IO_.*|__.*")
        .prepend_enum_name(false)
        .generate_comments(false)
        .use_core()
        .rust_target(bindgen::RustTarget::stable(88, 0).map_err(|e| e.to_string())?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .disable_header_comment()
        .generate()
        .map_err(|e| {
            format!("bindgen: {e}; it needs libclang (Debian: libclang-dev, Fedora: clang-devel, macOS: Xcode)")
        })?;
    let text = format!("{}\n{bindings}", opening(source)?);
    let path = out_dir.join("bindings.rs");
    std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Says how the file was made, and from what.
#[cfg(feature = "buildtime-bindgen")]
fn opening(source: &Source) -> Result<String, String> {
    let mut hashes = String::new();
    for header in HEADERS {
        hashes.push_str(&format!("    (\"{header}\", \"{}\"),\n", sha256(source, header)?));
    }
    Ok(format!(
        "// Declarations of ggml {version}, made by bindgen; do not edit. `scripts/bindings.sh` makes this file again,\n\
         // `scripts/bindings.sh --check` proves that it is what bindgen makes of the pinned headers.\n\n\
         pub const BINDINGS_VERSION: &str = \"{version}\";\n\
         pub const HEADERS_SHA256: [(&str, &str); {n}] = [\n{hashes}];\n",
        version = source.version,
        n = HEADERS.len(),
    ))
}

fn sha256(source: &Source, header: &str) -> Result<String, String> {
    let path = source.include().join(header);
    let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}; the declarations need it", path.display()))?;
    Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// ggml's public headers for the core and for the backends that this project builds or loads.
const HEADERS: [&str; 9] = [
    "ggml.h",
    "ggml-alloc.h",
    "ggml-backend.h",
    "ggml-cpu.h",
    "gguf.h",
    "ggml-metal.h",
    "ggml-cuda.h",
    "ggml-vulkan.h",
    "ggml-rpc.h",
];
