//! How the threads of ggml's CPU backend wait: upstream's spin, for each other at every barrier and between graphs for a tenth
//! of a second, whoever else wants the processors. Owns the changes of its source that have `wait.c` wait.

use crate::source::Source;
use crate::target::Target;
use std::path::PathBuf;

/// The file that is changed, relative to ggml's `src`.
pub const CHANGED: &str = "ggml-cpu/ggml-cpu.c";

/// Our own file, which waits.
pub const WAIT: &str = "wait.c";

/// Where its header lies.
pub const FOLDER: &str = ".";

/// Writes the changed file; gives its path.
///
/// # Errors
/// A source that is not as the changes expect it, or that cannot be read or written.
pub fn changed(source: &Source, target: &Target) -> Result<PathBuf, String> {
    let original = source.src().join(CHANGED);
    let text = std::fs::read_to_string(&original).map_err(|e| format!("{}: {e}", original.display()))?;
    let changed = target.out_dir.join("ggml-cpu.c");
    let text = with_waits(&text).map_err(|what| format!("{}: {what}", original.display()))?;
    std::fs::write(&changed, text).map_err(|e| format!("{}: {e}", changed.display()))?;
    Ok(changed)
}

/// What stands in ggml's text, and what is to stand there. Each is found once.
const CHANGES: [(&str, &str); 5] = [
    (
        "// Threadpool def\nstruct ggml_threadpool {\n",
        "#include \"wait.h\"\n\n// Threadpool def\nstruct ggml_threadpool {\n    \
         atomic_int GGML_CACHE_ALIGN n_asleep;\n\n",
    ),
    (
        "        threadpool->n_barrier        = 0;\n",
        "        threadpool->n_asleep         = 0;\n        threadpool->n_barrier        = 0;\n",
    ),
    (
        "    while (atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed) == n_passed) {\n        \
         ggml_thread_cpu_relax();\n    }\n",
        "    nextn_wait(&tp->n_barrier_passed, n_passed, &tp->n_asleep);\n",
    ),
    (
        "        atomic_fetch_add_explicit(&tp->n_barrier_passed, 1, memory_order_seq_cst);\n        return;\n",
        "        atomic_fetch_add_explicit(&tp->n_barrier_passed, 1, memory_order_seq_cst);\n        \
         nextn_wake(&tp->n_barrier_passed, &tp->n_asleep);\n        return;\n",
    ),
    (
        "!ggml_graph_compute_thread_ready(state) && i < n_rounds; i++) {\n",
        "!ggml_graph_compute_thread_ready(state) && i < n_rounds && nextn_polls(i); i++) {\n",
    ),
];

fn with_waits(text: &str) -> Result<String, String> {
    let mut text = text.to_owned();
    for (before, after) in CHANGES {
        let found = text.matches(before).count();
        if found != 1 {
            return Err(format!(
                "expected once, found {found} times:\n{before}build/waits.rs changes it; after an upgrade read what became \
                 of it"
            ));
        }
        text = text.replace(before, after);
    }
    Ok(text)
}
