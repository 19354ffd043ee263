//! Metal shader sources made whole: each kernel with the headers that it includes, as one text that needs no include path.
//! Follows the embedding of upstream's `src/ggml-metal/CMakeLists.txt`. Pure text work: knows no compiler and no target.

/// The text of `kernels/<kernel>.metal` with its headers in front. `read` gives a file below ggml's `src`.
///
/// # Errors
/// Those of `read`.
pub fn merged(kernel: &str, read: &dyn Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let source = read(&format!("ggml-metal/kernels/{kernel}.metal"))?;
    let mut text = String::new();
    // common.h comes first always, the others where the kernel names them: later ones use what earlier ones declare.
    for (i, header) in SHARED.iter().enumerate() {
        if i == 0 || source.contains(&include(header)) {
            append(&mut text, &read(&format!("ggml-metal/kernels/{header}"))?);
        }
    }
    append(&mut text, &source);

    let mut whole = String::new();
    for line in text.lines() {
        if line.contains("#pragma once") || SHARED.iter().any(|header| line.contains(&include(header))) {
            continue;
        }
        if line.contains("__embed_ggml-common.h__") {
            append(&mut whole, &read("ggml-common.h")?);
        } else if line.contains(&include("ggml-metal-impl.h")) {
            append(&mut whole, &read("ggml-metal/ggml-metal-impl.h")?);
        } else {
            append(&mut whole, line);
        }
    }
    Ok(whole)
}

/// Assembly that puts the file at `path` between `ggml_metallib_<kernel>_start` and `_end`, the symbols that the backend reads.
/// The section's name is at most 16 characters on macOS, so all kernels share it.
pub fn embedding(kernel: &str, path: &str) -> String {
    let path = path.replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        ".section __DATA,__ggml_metallib\n\
         .globl _ggml_metallib_{kernel}_start\n\
         _ggml_metallib_{kernel}_start:\n\
         .incbin \"{path}\"\n\
         .globl _ggml_metallib_{kernel}_end\n\
         _ggml_metallib_{kernel}_end:\n"
    )
}

fn append(text: &mut String, part: &str) {
    text.push_str(part);
    if !part.ends_with('\n') {
        text.push('\n');
    }
}

fn include(header: &str) -> String {
    format!("#include \"{header}\"")
}

/// The kernels' own headers, in the order in which they are put in front.
const SHARED: [&str; 5] = ["common.h", "dequantize.h", "quantize.h", "fa_common.metal", "fa_vec_common.metal"];
