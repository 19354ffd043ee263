//! ggml's core and its CPU backend: files, definitions and tuning. Owns what upstream's `src/CMakeLists.txt` and
//! `src/ggml-cpu/CMakeLists.txt` say for x86-64 and 64-bit ARM; knows nothing of other backends but their names.

use crate::compiler::Group;
use crate::source::Source;
use crate::target::Target;
use crate::{apple, arm, compiler, files, variants, waits};
use std::path::PathBuf;

/// What to compile, the longest group first.
///
/// # Errors
/// An architecture without a list of files; `ggml-version.h` not writable; ARM features not tellable.
pub fn groups(source: &Source, target: &Target) -> Result<Vec<Group>, String> {
    let arch_files = files::cpu_arch(&target.arch)
        .ok_or_else(|| format!("{}: x86_64 and aarch64 are supported, {} is not", target.triple, target.arch))?;
    let version_folder = version_header(source, target)?;
    let changed = waits::changed(source, target)?;

    let mut groups = Vec::new();
    for cpp in [true, false] {
        let cpu = || {
            let unchanged = files::CPU.iter().chain(&arch_files).filter(|&&file| file != waits::CHANGED);
            let mut cpu = compiler::group(source, target, cpp, unchanged);
            cpu.include(source.src().join("ggml-cpu"));
            if !cpp {
                cpu.file(&changed).include(waits::FOLDER);
            }
            for name in files::CPU_DEFINES {
                cpu.define(name, None);
            }
            cpu
        };
        for variant in variants::of(target) {
            let mut cpu = cpu();
            // Unique symbols stay global in every tool.
            cpu.flags(variant.flags).flag_if_supported("-fno-gnu-unique").out_dir(target.out_dir.join(variant.name));
            groups.push(Group { variant: Some(variant), build: cpu });
        }
        if variants::of(target).is_empty() {
            let mut cpu = cpu();
            cpu.flags(tuning(target)?);
            groups.push(cpu.into());
        }
        let mut base = core(source, target, cpp, false)?;
        base.include(&version_folder);
        if cpp {
            let mut cold = core(source, target, cpp, true)?;
            cold.include(&version_folder);
            groups.push(cold.into());
            base.file(PLAN);
        }
        if !cpp {
            base.file(waits::WAIT);
        }
        if !cpp && !variants::of(target).is_empty() {
            base.file(VARIANTS);
        }
        groups.push(base.into());
    }
    Ok(groups)
}

/// The files of ggml's core that are cold, or those that are not.
fn core(source: &Source, target: &Target, cpp: bool, cold: bool) -> Result<cc::Build, String> {
    let files = files::BASE.iter().chain(&files::REGISTRY).filter(|file| files::COLD.contains(file) == cold);
    let mut core = compiler::group(source, target, cpp, files);
    core.define("GGML_USE_CPU", None).define("GGML_USE_RPC", None);
    if cfg!(feature = "cuda") {
        core.define("GGML_USE_CUDA", None);
    }
    if target.metal() {
        core.define("GGML_USE_METAL", None);
    }
    if target.os == "macos" && apple::linker_is_buggy(&compiler::tool(target, cpp)?) {
        core.define("HAVE_BUGGY_APPLE_LINKER", None);
    }
    if cold {
        core.opt_level(1);
    }
    Ok(core)
}

/// Flags for the CPU backend alone; the core is compiled for the target's baseline, as upstream does.
fn tuning(target: &Target) -> Result<Vec<String>, String> {
    let flags: &[&str] = match (target.arch.as_str(), target.native, target.os.as_str()) {
        ("x86_64", true, _) => &["-march=native"],
        // x86-64 machines and emulators without AVX2 are still about; a package must start on all of them.
        ("x86_64", false, _) => &["-msse4.2", "-mpopcnt"],
        ("aarch64", true, _) => return arm::native_flags(&compiler::tool(target, true)?, &target.out_dir),
        // No Mac has an older 64-bit ARM processor.
        ("aarch64", false, "macos") => &["-mcpu=apple-m1"],
        _ => &[],
    };
    Ok(flags.iter().map(|flag| (*flag).to_owned()).collect())
}

/// Fills `ggml-version.h.in`; gives the folder that the header lies in.
fn version_header(source: &Source, target: &Target) -> Result<PathBuf, String> {
    let template = source.src().join("ggml-version.h.in");
    let text = std::fs::read_to_string(&template).map_err(|e| format!("{}: {e}", template.display()))?;
    let text = text.replace("@GGML_VERSION@", &source.version).replace("@GGML_BUILD_COMMIT@", &source.origin);
    if let Some(line) = text.lines().find(|line| line.contains("@GGML_")) {
        return Err(format!("{}: `{line}` wants a value that this build script does not know", template.display()));
    }
    let folder = target.out_dir.join("version");
    let header = folder.join("ggml-version.h");
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&header, text));
    written.map_err(|e| format!("{}: {e}", header.display()))?;
    Ok(folder)
}

/// Our own file, which needs ggml's internal headers.
const PLAN: &str = "plan.cpp";

/// Our own file, which chooses.
const VARIANTS: &str = "variants.c";
