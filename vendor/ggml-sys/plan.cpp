// Gets a graph ready for one device the way ggml's scheduler does for several: the device's backend may put nodes into an
// order that it can fuse and say which tensors must live longer, and the graph gets a number by which the backend knows it
// again. The scheduler itself keeps one graph at a time; here many are kept over one buffer. Knows nothing of what graphs
// compute. Reads ggml's internal headers: after an upgrade compare with the end of ggml_backend_sched_split_graph.
#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <unordered_map>
#include <vector>

using Kept = std::unordered_map<ggml_tensor *, std::vector<ggml_tensor *>>;

// Gives a graph to plan memory for, in an arena of its own that the caller frees: the same nodes, and after each node that
// something must outlive a view that reads it. Gives null when `graph` itself can be planned.
extern "C" ggml_context * nextn_plan_graph(ggml_backend_t backend, ggml_cgraph * graph, ggml_cgraph ** plan) {
    *plan = graph;
    Kept kept;
    ggml_backend_graph_optimize_params params = {
        [](void * data, ggml_tensor * tensor, ggml_tensor * until) { (*(Kept *) data)[until].push_back(tensor); },
        &kept,
    };
    if (backend->iface.graph_optimize != nullptr) {
        backend->iface.graph_optimize(backend, graph, &params);
    }
    graph->uid = ggml_graph_next_uid();
    if (kept.empty()) {
        return nullptr;
    }

    size_t n_views = 0;
    for (const auto & [until, tensors] : kept) {
        n_views += (tensors.size() + GGML_MAX_SRC - 1) / GGML_MAX_SRC;
    }
    const size_t size = graph->n_nodes + graph->n_leafs + n_views;
    ggml_init_params arena = {
        n_views * ggml_tensor_overhead() + ggml_graph_overhead_custom(size, false) + 256, nullptr, true,
    };
    ggml_context * ctx = ggml_init(arena);
    if (ctx == nullptr) {
        return nullptr;
    }
    ggml_cgraph * longer = ggml_new_graph_custom(ctx, size, false);
    for (int i = 0; i < graph->n_nodes; ++i) {
        longer->nodes[longer->n_nodes++] = graph->nodes[i];
        const auto found = kept.find(graph->nodes[i]);
        if (found == kept.end()) {
            continue;
        }
        const auto & tensors = found->second;
        for (size_t first = 0; first < tensors.size(); first += GGML_MAX_SRC) {
            ggml_tensor * view = ggml_view_tensor(ctx, tensors[first]);
            for (size_t s = 0; s < GGML_MAX_SRC && first + s < tensors.size(); ++s) {
                view->src[s] = tensors[first + s];
            }
            longer->nodes[longer->n_nodes++] = view;
        }
    }
    for (int i = 0; i < graph->n_leafs; ++i) {
        longer->leafs[longer->n_leafs++] = graph->leafs[i];
    }
    *plan = longer;
    return ctx;
}
