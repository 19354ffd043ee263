//! ggml's CPU backend several times in one library, each copy for processors that have more, so that a package is as fast
//! as a build for one machine. Owns the levels and how the copies are kept apart: a copy becomes one object in which all
//! names are local but those of `variants.c`, which chooses. Inline functions of C++ too, of which a linker would otherwise
//! keep one for all copies, with instructions that an older processor lacks. Knows nothing of ggml's files.

use crate::compiler;
use crate::target::Target;
use std::path::PathBuf;
use std::process::Command;

/// One copy.
#[derive(Debug, PartialEq, Eq)]
pub struct Variant {
    /// As `variants.c` knows it.
    pub name: &'static str,
    pub flags: &'static [&'static str],
}

/// Nehalem of 2008, Haswell of 2013, Ice Lake of 2019 with Zen 4 of 2022, and all after them.
const X86_64: [Variant; 3] = [
    Variant { name: "sse42", flags: &["-msse4.2", "-mpopcnt"] },
    Variant { name: "avx2", flags: &["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mpopcnt"] },
    Variant {
        name: "avx512",
        flags: &[
            "-mavx2",
            "-mfma",
            "-mf16c",
            "-mbmi",
            "-mbmi2",
            "-mpopcnt",
            "-mavx512f",
            "-mavx512cd",
            "-mavx512bw",
            "-mavx512dq",
            "-mavx512vl",
            "-mavx512vbmi",
            "-mavx512vnni",
        ],
    },
];

/// The functions of `variants.c`.
const FUNCTIONS: [&str; 15] = [
    "ggml_backend_cpu_init",
    "ggml_backend_cpu_reg",
    "ggml_backend_cpu_set_abort_callback",
    "ggml_backend_cpu_set_n_threads",
    "ggml_backend_cpu_set_threadpool",
    "ggml_backend_is_cpu",
    "ggml_cpu_has_avx2",
    "ggml_cpu_has_fma",
    "ggml_cpu_init",
    "ggml_get_type_traits_cpu",
    "ggml_is_numa",
    "ggml_numa_init",
    "ggml_threadpool_free",
    "ggml_threadpool_new",
    "ggml_threadpool_pause",
];

/// The copies of this build, none if there is one for all.
pub fn of(target: &Target) -> &'static [Variant] {
    let many = cfg!(feature = "portable") && target.arch == "x86_64" && target.os == "linux";
    if many { &X86_64 } else { &[] }
}

/// Makes one object of a copy's objects.
///
/// # Errors
/// Binutils are missing, or do not do that.
pub fn join(variant: &Variant, objects: &[PathBuf], target: &Target) -> Result<PathBuf, String> {
    let joined = target.out_dir.join(format!("cpu-{}.o", variant.name));
    let mut link = program(target, "ld")?;
    run(link.args(["-r", "--force-group-allocation", "-o"]).arg(&joined).args(objects))?;
    // Two calls, since one would look for the names to keep among the new ones.
    let keep = FUNCTIONS.map(|name| format!("--keep-global-symbol={name}"));
    run(program(target, "objcopy")?.args(keep).arg(&joined))?;
    let rename = FUNCTIONS.map(|name| format!("--redefine-sym={name}={name}_{}", variant.name));
    run(program(target, "objcopy")?.args(rename).arg(&joined))?;
    Ok(joined)
}

/// A program that belongs to the compiler.
fn program(target: &Target, name: &str) -> Result<Command, String> {
    let mut ask = compiler::tool(target, true)?.to_command();
    let output = ask.arg(format!("-print-prog-name={name}")).output().map_err(|e| format!("{ask:?}: {e}"))?;
    let path = String::from_utf8_lossy(&output.stdout);
    Ok(Command::new(if path.trim().is_empty() { name } else { path.trim() }))
}

fn run(command: &mut Command) -> Result<(), String> {
    let what = match command.output() {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => format!("{}, {}", output.status, String::from_utf8_lossy(&output.stderr).trim()),
        Err(e) => e.to_string(),
    };
    let program = command.get_program().display();
    Err(format!(
        "`{program}`, which joins the copies of the CPU backend of a portable build: {what}\n\
         Install GNU binutils, or build without the feature `portable`."
    ))
}
