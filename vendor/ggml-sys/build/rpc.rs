//! ggml's RPC backend: layers on devices of other machines, over TCP. Follows upstream's `src/ggml-rpc/CMakeLists.txt` without
//! RDMA. Owns two changes to its source: a worker that goes away is an error that can be asked for, not the end of the
//! process, and graphs that a worker has forgotten are sent to it again.

use crate::source::Source;
use crate::target::Target;
use crate::{compiler, files};

/// What to compile.
///
/// # Errors
/// A source that is not as the change expects it, or that cannot be read or written.
pub fn groups(source: &Source, target: &Target) -> Result<Vec<cc::Build>, String> {
    let original = source.src().join(CHANGED);
    let text = std::fs::read_to_string(&original).map_err(|e| format!("{}: {e}", original.display()))?;
    let changed = target.out_dir.join("ggml-rpc.cpp");
    let text = with_losses(&text).map_err(|what| format!("{}: {what}", original.display()))?;
    std::fs::write(&changed, text).map_err(|e| format!("{}: {e}", changed.display()))?;

    let mut group = compiler::group(source, target, true, files::RPC.iter().filter(|&&file| file != CHANGED));
    group.include(source.src().join("ggml-rpc")).file(changed);
    Ok(vec![group])
}

const CHANGED: &str = "ggml-rpc/ggml-rpc.cpp";

/// The backend's text, in which a connection that breaks is remembered: what was asked for is zeros from then on, and
/// `nextn_rpc_lost` tells. A worker forgets all graphs when a buffer is freed: so does its client, which would otherwise ask
/// for one that is not there and lose the connection; and so does the worker wholly, which would otherwise go on counting them and
/// reach the number at which it forgets all earlier than its client. Also what the protocol's version is.
fn with_losses(text: &str) -> Result<String, String> {
    let changes = [
        (
            1,
            "class rpc_dispatcher {\npublic:\n",
            "class rpc_dispatcher {\npublic:\n    std::atomic_bool lost = false;\n    \
             template <typename Free> void forget_graphs(Free free) {\n        \
             std::lock_guard<std::mutex> lock(graph_mutex);\n        \
             graph_uids.clear();\n        free();\n    }\n",
        ),
        (
            1,
            "    ctx->dispatcher->send(RPC_CMD_FREE_BUFFER, request, sizeof(*request));\n",
            "    ctx->dispatcher->forget_graphs([&] { ctx->dispatcher->send(RPC_CMD_FREE_BUFFER, request, sizeof(*request)); });\n",
        ),
        (
            1,
            "        for (auto & sg : sgs) {\n            sg.second.graph = nullptr;\n        }\n",
            "        sgs.clear();\n",
        ),
        (
            1,
            "        if (msg_ptr->cmd != RPC_CMD_NONE) {\n",
            "        if (lost) {\n            \
             if (msg_ptr->output) memset(msg_ptr->output, 0, msg_ptr->output_size);\n        \
             } else if (msg_ptr->cmd != RPC_CMD_NONE) {\n",
        ),
        (
            2,
            "                RPC_STATUS_ASSERT(status);\n",
            "                if (!status) {\n                    lost = true;\n                    \
             if (msg_ptr->output) memset(msg_ptr->output, 0, msg_ptr->output_size);\n                }\n",
        ),
    ];
    let mut text = text.to_owned();
    for (times, before, after) in changes {
        let found = text.matches(before).count();
        if found != times {
            return Err(format!(
                "expected {times} times, found {found} times:\n{before}build/rpc.rs changes it; after an upgrade read \
                 what became of it"
            ));
        }
        text = text.replace(before, after);
    }
    text.push_str(
        "\nextern \"C\" bool nextn_rpc_lost(ggml_backend_t backend) {\n    \
         return ggml_backend_is_rpc(backend) && ((ggml_backend_rpc_context *) backend->context)->dispatcher->lost;\n}\n\
         extern \"C\" uint32_t nextn_rpc_version(void) {\n    \
         return RPC_PROTO_MAJOR_VERSION << 8 | RPC_PROTO_MINOR_VERSION;\n}\n",
    );
    Ok(text)
}
