//! Cuts the rules of Metal's `supports_op` out of the pinned ggml and compiles them for this machine: they are plain C,
//! and so the test of our graphs follows every upgrade by itself. Stops where a function is not found.

use std::path::{Path, PathBuf};

/// Functions, by file and by the beginning of the line that opens them.
const RULES: &[(&str, &[&str])] = &[
    ("ggml-metal-impl.h", &["#define OP_LIGHTNING_INDEXER_DK "]),
    (
        "ggml-metal-common.cpp",
        &[
            "static bool ggml_metal_fwht_supported_size(",
            "bool ggml_metal_op_mul_mat_use_fwht(",
            "bool ggml_metal_op_mul_mat_use_mm(",
            "bool ggml_metal_op_mul_mat_id_use_mm(",
        ],
    ),
    ("ggml-metal-device.m", &["static bool ggml_metal_supports_mul_mat_op(", "bool ggml_metal_device_supports_op("]),
];

/// What the rules ask of the device, and their names: on a Mac ggml's own are in the same program.
const BEFORE: &str = "
#include \"ggml.h\"
#include \"ggml-impl.h\"

#define ggml_metal_op_mul_mat_use_fwht   nextn_metal_op_mul_mat_use_fwht
#define ggml_metal_op_mul_mat_use_mm     nextn_metal_op_mul_mat_use_mm
#define ggml_metal_op_mul_mat_id_use_mm  nextn_metal_op_mul_mat_id_use_mm
#define ggml_metal_device_supports_op    nextn_metal_device_supports_op

struct nextn_metal_device {
    struct {
        bool has_simdgroup_mm;
        bool has_simdgroup_reduction;
        bool has_bfloat;
        size_t max_theadgroup_memory_size;
    } props;
};
typedef struct nextn_metal_device * ggml_metal_device_t;
";

/// The processors of Macs since 2020, of Metal's family Apple7 and later.
const AFTER: &str = "
bool nextn_metal_supports(bool has_bfloat, const struct ggml_tensor * op) {
    struct nextn_metal_device device = { { true, true, has_bfloat, 32768 } };
    return ggml_metal_device_supports_op(&device, op);
}
";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Where nothing is compiled (DOCS_RS) there is no source.
    let Some(root) = std::env::var_os("DEP_GGML_ROOT") else { return };
    let source = Path::new(&root).join("src");
    let mut text = BEFORE.to_owned();
    for (file, openings) in RULES {
        let path = source.join("ggml-metal").join(file);
        println!("cargo::rerun-if-changed={}", path.display());
        let found = std::fs::read_to_string(&path).map_err(|e| e.to_string());
        let found =
            found.and_then(|all| openings.iter().map(|opening| cut(&all, opening)).collect::<Result<String, _>>());
        match found {
            Ok(parts) => text.push_str(&parts),
            Err(what) => {
                println!("cargo::error={}: {what}", path.display());
                std::process::exit(1);
            }
        }
    }
    text.push_str(AFTER);
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let file = out.join("metal_rules.c");
    std::fs::write(&file, text).expect("cargo's folder is writable");
    let mut build = cc::Build::new();
    build.std("gnu11").file(file).include(Path::new(&root).join("include")).include(source).warnings(false);
    // A property that the rules ask for and this file does not know is an error here.
    build.flag_if_supported("-Werror=implicit-function-declaration").compile("nextn_metal_rules");
}

/// A definition: one line, or all lines up to a brace at the beginning of one.
fn cut(all: &str, opening: &str) -> Result<String, String> {
    let mut lines = all.lines().skip_while(|line| !line.starts_with(opening)).peekable();
    if lines.peek().is_none() {
        return Err(format!(
            "`{opening}` is not there: upstream changed how Metal tells what it computes; change RULES"
        ));
    }
    let n = if opening.starts_with('#') { 1 } else { usize::MAX };
    let mut part = String::new();
    for line in lines.take(n) {
        part.push_str(line);
        part.push('\n');
        if line == "}" {
            break;
        }
    }
    Ok(part)
}
