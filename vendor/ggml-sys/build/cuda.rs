//! ggml's CUDA backend linked in (feature `cuda`): nvcc over the files that `scripts/build-plugin.sh` compiles too, with the
//! same flags. Architectures by CUDAARCHS ("90", "80;90"), otherwise those of this machine's GPUs.

use crate::files;
use crate::hooks;
use crate::source::Source;
use crate::target::Target;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to compile; also tells cargo to link CUDA's libraries.
///
/// # Errors
/// No nvcc, no architecture, a source that is not as expected.
pub fn groups(source: &Source, target: &Target) -> Result<Vec<cc::Build>, String> {
    let nvcc = std::env::var("NVCC").unwrap_or_else(|_| "nvcc".into());
    let found = Command::new(&nvcc).arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return Err(format!(
            "feature `cuda` needs nvcc, and `{nvcc} --version` does not run: install the CUDA toolkit or set NVCC, or \
             build without the feature and make a plugin with scripts/build-plugin.sh where nvcc is"
        ));
    }
    let archs = architectures()?;
    let folder = patched(source, target)?;
    let mut wanted = Vec::new();
    let instances = folder.join("template-instances");
    for (place, all) in [(&folder, true), (&instances, false)] {
        for path in listed(place)? {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("").to_owned();
            let instance = ["mmq", "fattn-mma", "fattn-tile", "mmf"].iter().any(|start| name.starts_with(start));
            let cache = files::CUDA_CACHES.iter().any(|pair| name == format!("fattn-vec-instance-{pair}.cu"));
            if name.ends_with(".cu") && (all || instance || cache) {
                wanted.push((path, name.starts_with("fattn")));
            }
        }
    }
    // A toolkit puts its libraries beside its compiler.
    let root = Command::new(&nvcc).args(["--dryrun", "-x", "cu", "/dev/null"]).output().map_err(|e| e.to_string())?;
    let told = String::from_utf8_lossy(&root.stderr).into_owned();
    let top = told.lines().find_map(|line| line.trim_start_matches("#$ ").strip_prefix("TOP="));
    for lib in ["lib64", "lib64/stubs", "lib", "lib/stubs"] {
        if let Some(folder) = top.map(|top| Path::new(top.trim()).join(lib)).filter(|folder| folder.is_dir()) {
            println!("cargo::rustc-link-search=native={}", folder.display());
        }
    }
    for library in ["static=cudart_static", "dylib=cublas", "dylib=cuda", "dylib=rt"] {
        println!("cargo::rustc-link-lib={library}");
    }
    let group = |(file, attention): (PathBuf, bool)| {
        // The flags of `compiler::group` are for other compilers than nvcc; cc takes that from NVCC.
        let mut build = cc::Build::new();
        // The changed copy comes before the source: some files include `ggml-cuda/common.cuh`.
        let includes = [target.out_dir.clone(), source.include(), source.src()];
        build.cuda(true).cudart("none").file(file).includes(includes);
        build.opt_level(3).debug(false).define("NDEBUG", None).warnings(false).flag("-w");
        for (name, value) in files::DEFINES {
            build.define(name, value);
        }
        if let Some(name) = files::system_define(&target.os) {
            build.define(name, None);
        }
        build.flags(files::CUDA_FLAGS).define("GGML_CUDA_FA_QUANTS", &*format!("\"{}\"", files::CUDA_CACHES.join(",")));
        for arch in &archs {
            build.flag("-gencode").flag(format!("arch=compute_{arch},code=sm_{arch}"));
        }
        for k in files::CUDA_CACHE_TYPES {
            for v in files::CUDA_CACHE_TYPES {
                let chosen = files::CUDA_CACHES.contains(&format!("{k}-{v}").as_str());
                let name = format!("GGML_CUDA_FA_{k}_{v}").to_uppercase();
                build.define(&name, if chosen { "1" } else { "0" });
            }
        }
        if attention {
            build.define("NEXTN_NO_PDL", None);
        }
        build
    };
    // One group for each file: of several, cc would make parts that need a link of their own for the device.
    Ok(wanted.into_iter().map(group).collect())
}

fn architectures() -> Result<Vec<String>, String> {
    let named = std::env::var("CUDAARCHS").unwrap_or_default();
    let asked = || {
        let query = ["--query-gpu=compute_cap", "--format=csv,noheader"];
        let output = Command::new("nvidia-smi").args(query).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).replace('.', ""))
    };
    let text = if named.is_empty() { asked().unwrap_or_default() } else { named };
    let mut archs: Vec<String> =
        text.split([';', ',', '\n', ' ']).map(str::to_owned).filter(|a| !a.is_empty()).collect();
    archs.sort();
    archs.dedup();
    if archs.is_empty() { Err("set CUDAARCHS, such as 90: there is no GPU here to ask".into()) } else { Ok(archs) }
}

/// A copy of the backend with our kernels beside its files, and in these the lines of `cuda/hooks`: calls of the kernels, and
/// files compiled with NEXTN_NO_PDL do without programmatic dependent launch, since with it attention in captured graphs gives
/// other answers from run to run.
fn patched(source: &Source, target: &Target) -> Result<PathBuf, String> {
    let (from, to) = (source.src().join("ggml-cuda"), target.out_dir.join("ggml-cuda"));
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    println!("cargo::rerun-if-changed={}", own.display());
    let hooks = read(&own.join("hooks"))?;
    for sub in ["", "template-instances", "vendors"] {
        let folder = to.join(sub);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for path in listed(&from.join(sub))?.iter().filter(|path| path.is_file()) {
            let name = path.file_name().expect("files have names");
            let mut text = read(path)?;
            if sub.is_empty() {
                text = hooks::hooked(&text, &hooks, &name.to_string_lossy())
                    .map_err(|e| format!("{}: {e}", path.display()))?;
            }
            write(&folder.join(name), &text)?;
        }
    }
    let is_source = |path: &&PathBuf| path.extension().is_some_and(|of| of == "cu" || of == "cuh");
    for path in listed(&own)?.iter().filter(is_source) {
        write(&to.join(path.file_name().expect("files have names")), &read(path)?)?;
    }
    Ok(to)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn listed(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(wrong)?.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}
