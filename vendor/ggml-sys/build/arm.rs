//! What this 64-bit ARM machine can do. `-mcpu=native` alone misses features with some compilers and claims some that do not
//! run, so each is tried, as upstream's `src/ggml-cpu/CMakeLists.txt` does. Knows nothing of ggml's files.

use std::path::Path;
use std::process::{Command, Stdio};

/// `-mcpu=<this one>` with `+feature` for those that ran here and `+nofeature` for those that did not.
/// The compiler `tool` is tried; the programs are written into `out_dir`.
///
/// # Errors
/// A program that cannot be written.
pub fn native_flags(tool: &cc::Tool, out_dir: &Path) -> Result<Vec<String>, String> {
    let compiles = |flag: &str, code: &str, program: Option<&Path>| -> Result<bool, String> {
        let file = out_dir.join("arm.cpp");
        std::fs::write(&file, code).map_err(|e| format!("{}: {e}", file.display()))?;
        let mut command = tool.to_command();
        command.arg(flag).arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        match program {
            Some(program) => command.arg("-o").arg(program),
            None => command.arg("-c").arg("-o").arg(file.with_extension("o")),
        };
        Ok(command.status().is_ok_and(|status| status.success()))
    };

    let cpu = explicit(tool);
    let mut flag = cpu.clone();
    let mut undefined = Vec::new();
    let program = out_dir.join("arm-probe");
    for (feature, name, code) in PROBES {
        let with = format!("{cpu}+{feature}");
        let without = format!("{cpu}+no{feature}");
        // The status of a program that meets an unknown instruction is a signal, so it counts as not able.
        let runs = compiles(&with, code, Some(&program))?
            && Command::new(&program).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
        if runs {
            flag.push_str(&format!("+{feature}"));
        } else if compiles(&without, "int main() { return 0; }\n", None)? {
            flag.push_str(&format!("+no{feature}"));
            undefined.push(format!("-U__ARM_FEATURE_{name}"));
        }
    }
    undefined.push(flag);
    Ok(undefined)
}

/// What the compiler itself makes of `-mcpu=native`: GCC resolves it into a list that `+feature` can be added to.
fn explicit(tool: &cc::Tool) -> String {
    let mut command = tool.to_command();
    command.args(["-mcpu=native", "-E", "-v", "-x", "c++", "-"]).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success());
    let said = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    said.and_then(|said| resolved(&said)).unwrap_or_else(|| "-mcpu=native".to_owned())
}

/// The first `-march=` or else `-mcpu=` in what a compiler `said` of its own call that is not `native` itself.
pub fn resolved(said: &str) -> Option<String> {
    let value = |option: &str| {
        let mut words = said.split(|c: char| c.is_whitespace() || c == '\'');
        let named = |word: &&str| word.strip_prefix(option).is_some_and(|name| !name.is_empty() && name != "native");
        words.find(named).map(str::to_owned)
    };
    value("-march=").or_else(|| value("-mcpu="))
}

/// Flag, the macro that ggml looks at, a program that uses the feature.
const PROBES: [(&str, &str, &str); 4] = [
    (
        "dotprod",
        "DOTPROD",
        "#include <arm_neon.h>\n\
         int main() { int8x16_t a = vdupq_n_s8(1); volatile int x = 0; \
         int32x4_t s = vdotq_s32(vdupq_n_s32(x), a, a); return vgetq_lane_s32(s, 0) == 4 ? 0 : 1; }\n",
    ),
    (
        "i8mm",
        "MATMUL_INT8",
        "#include <arm_neon.h>\n\
         int main() { int8x16_t a = vdupq_n_s8(1); volatile int x = 0; \
         int32x4_t s = vmmlaq_s32(vdupq_n_s32(x), a, a); return vgetq_lane_s32(s, 0) == 8 ? 0 : 1; }\n",
    ),
    (
        "sve",
        "SVE",
        "#include <arm_sve.h>\n\
         int main() { volatile float x = 1; svbool_t all = svptrue_b32(); \
         return svaddv_f32(all, svdup_n_f32(x)) > 0 ? 0 : 1; }\n",
    ),
    (
        "sme",
        "SME",
        "#include <arm_sme.h>\n\
         __arm_locally_streaming static void stream() { __asm__ volatile(\"smstart; smstop;\"); }\n\
         int main() { stream(); return 0; }\n",
    ),
];
