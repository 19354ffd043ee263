#include "fusions.cuh"
#include "all_reduce.cuh"
#include "attention.cuh"
#include "few_columns.cuh"
#include "few_columns_kernels.cuh"
#include "fusion_kernels.cuh"
#include "nodes.cuh"
#include "states.cuh"
#include "stores.cuh"

#include "ggml-impl.h"

#include <algorithm>

namespace nextn {

namespace {

// Nodes behind one among which those are looked for that can be computed with it.
constexpr int NEAR = 96;

// The next node that computes something; the number of nodes if there is none.
int next_of(const ggml_cgraph * graph, int i) {
    do {
        i++;
    } while (i < graph->n_nodes && computes_nothing(graph->nodes[i]));
    return i;
}

const ggml_tensor * node_at(const ggml_cgraph * graph, int i) {
    return i < graph->n_nodes ? graph->nodes[i] : nullptr;
}

bool is(const ggml_tensor * node, ggml_op op) {
    return node && node->op == op && node->type == GGML_TYPE_F32 && (node->flags & GGML_TENSOR_FLAG_COMPUTE);
}

bool is(const ggml_tensor * node, ggml_unary_op op) {
    return is(node, GGML_OP_UNARY) && ggml_get_unary_op(node) == op;
}

// Only one node reads it, so that it need not be written.
bool is_read_once(const ggml_cgraph * graph, int i) {
    return ggml_node_has_n_uses(graph, i, 1);
}

// n floats of a model in a row.
bool is_vector(const ggml_tensor * t, int64_t n) {
    return t && t->type == GGML_TYPE_F32 && ggml_nelements(t) == n && ggml_is_contiguous(t) && root_of(t)->op == GGML_OP_NONE &&
        reinterpret_cast<uintptr_t>(t->data) % 16 == 0;
}

bool is_rows(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) && reinterpret_cast<uintptr_t>(t->data) % 16 == 0;
}

const float * floats_of(const ggml_tensor * t) {
    return (const float *) t->data;
}

float eps_of(const ggml_tensor * norm) {
    float eps;
    memcpy(&eps, norm->op_params, sizeof(eps));
    return eps;
}

// Of two operands the one that is not this.
const ggml_tensor * other_than(const ggml_tensor * node, const ggml_tensor * one) {
    return node->src[0] == one ? node->src[1] : node->src[1] == one ? node->src[0] : nullptr;
}

// A product that reads this tensor, in columns of k values, comes soon.
bool goes_to_product(const ggml_cgraph * graph, int i, const ggml_tensor * t, int64_t k) {
    for (int j = i + 1; j < graph->n_nodes && j < i + NEAR / 2; j++) {
        const ggml_tensor * node = graph->nodes[j];
        const bool is_product = is(node, GGML_OP_MUL_MAT) || is(node, GGML_OP_MUL_MAT_ID);
        if (is_product && node->src[0]->type != GGML_TYPE_F32 && node->src[0]->ne[0] == k && root_of(node->src[1]) == t && fuses(node)) {
            return true;
        }
    }
    return false;
}

// Norms ---------------------------------------------------------------------------------------------------------------------------

// Nodes i to last as one launch.
struct norm_match {
    int last = 0;
    const ggml_tensor * x, * weights, * gate;
    ggml_tensor * dst;
    float eps;
};

bool match_norm(const ggml_cgraph * graph, int i, norm_match & m) {
    const ggml_tensor * norm = graph->nodes[i], * x = norm->src[0];
    if (!is(norm, GGML_OP_RMS_NORM) || !ggml_can_fuse(graph, i, { GGML_OP_RMS_NORM, GGML_OP_MUL }) || !is_rows(x)) {
        return false;
    }
    ggml_tensor * scaled = graph->nodes[i + 1];
    m.x = x;
    m.eps = eps_of(norm);
    m.weights = other_than(scaled, norm);
    m.dst = scaled;
    m.gate = nullptr;
    m.last = i + 1;
    const int64_t n = x->ne[0];
    if (!is_vector(m.weights, n) || !is_rows(scaled)) {
        return false;
    }
    if (x->ne[2] == 1 && x->ne[3] == 1 && x->ne[1] <= MAX_TOKENS && n % BLOCK == 0 && n <= MAX_NORM && goes_to_product(graph, i, scaled, n)) {
        return true;
    }
    // With a gate behind it: heads of a token.
    const int j = next_of(graph, i + 1), k = next_of(graph, j);
    const ggml_tensor * silu = node_at(graph, j), * product = node_at(graph, k);
    if (!is(silu, GGML_UNARY_OP_SILU) || !is(product, GGML_OP_MUL) || other_than(product, scaled) != silu || !is_read_once(graph, i + 1) ||
        !is_read_once(graph, j) || !ggml_are_same_shape(scaled, silu) || !ggml_are_same_shape(scaled, product)) {
        return false;
    }
    m.gate = silu->src[0];
    m.dst = graph->nodes[k];
    m.last = k;
    return (n == 32 || n == 64 || n == 128 || n == 256) && n * x->ne[1] % BLOCK == 0 && x->ne[2] <= MAX_TOKENS && x->ne[3] == 1 &&
        is_rows(m.gate) && is_rows(m.dst) && goes_to_product(graph, k, m.dst, n * x->ne[1]);
}

bool compute_norm(ggml_backend_cuda_context & ctx, const norm_match & m) {
    const int64_t n = m.x->ne[0] * (m.gate ? m.x->ne[1] : 1), n_tokens = m.gate ? m.x->ne[2] : m.x->ne[1];
    column_block * y = columns_to_be(ctx, m.dst, int(n), int(n_tokens));
    if (!y) {
        return false;
    }
    float * dst = (float *) m.dst->data;
    if (!m.gate) {
        const ggml_cuda_kernel_launch_params params(dim3(n_tokens), dim3(n / EACH), size_t(0), ctx.stream());
        ggml_cuda_kernel_launch(norm_into_columns, params, floats_of(m.x), floats_of(m.weights), dst, y, int(n), m.eps);
        return true;
    }
    const ggml_cuda_kernel_launch_params params(dim3((n / BLOCK + 3) / 4, n_tokens), dim3(128), size_t(0), ctx.stream());
    const auto run = [&](auto kernel) {
        ggml_cuda_kernel_launch(kernel, params, floats_of(m.x), floats_of(m.weights), floats_of(m.gate), dst, y, int(n), m.eps);
    };
    switch (m.x->ne[0]) {
        case 32: run(gated_norm_into_columns<32>); break;
        case 64: run(gated_norm_into_columns<64>); break;
        case 128: run(gated_norm_into_columns<128>); break;
        default: run(gated_norm_into_columns<256>); break;
    }
    return true;
}

// Products with the same columns --------------------------------------------------------------------------------------------------

// A product, or what is added to it, is gated by another one: these are computed together.
bool goes_to_glu(const ggml_cgraph * graph, int i) {
    const ggml_tensor * node = graph->nodes[i];
    const auto comes_of = [&](const ggml_tensor * t) { return t && (t == node || (t->op == GGML_OP_ADD && t->src[0] == node)); };
    for (int j = i + 1; j < graph->n_nodes && j < i + 8; j++) {
        const ggml_tensor * glu = graph->nodes[j];
        if (glu->op == GGML_OP_GLU && (comes_of(glu->src[0]) || comes_of(glu->src[1]))) {
            return true;
        }
    }
    return false;
}

bool is_product_of(const ggml_cgraph * graph, int i, const ggml_tensor * x) {
    const ggml_tensor * node = graph->nodes[i];
    return is(node, GGML_OP_MUL_MAT) && node->src[1] == x && root_of(node->src[0])->op == GGML_OP_NONE && fuses(node) && !goes_to_glu(graph, i);
}

// The product i with what follows it; gives the last node.
int with_what_follows(const ggml_cgraph * graph, int i, part_of_several & part) {
    ggml_tensor * product = graph->nodes[i];
    const int64_t n = product->ne[0];
    part = { product->src[0], product, AS_IT_IS, nullptr, nullptr };
    const int j = next_of(graph, i);
    const ggml_tensor * second = node_at(graph, j);
    if (!second || !is_read_once(graph, i) || second->src[0] != product || !ggml_are_same_shape(second, product)) {
        return i;
    }
    if (is(second, GGML_UNARY_OP_SIGMOID)) {
        // Where experts are chosen by sigmoids, ggml has a kernel for all of that.
        for (int k = j + 1; k < graph->n_nodes && k < j + NEAR / 2; k++) {
            const ggml_tensor * node = graph->nodes[k];
            const bool reads = node->src[0] && root_of(node->src[0]) == second;
            if (reads && (node->op == GGML_OP_ARGSORT || node->op == GGML_OP_GET_ROWS || node->op == GGML_OP_ADD)) {
                return i;
            }
        }
        part.dst = graph->nodes[j];
        part.finishing = AS_SIGMOID;
        return j;
    }
    if (!is(second, GGML_OP_ADD) || !is_vector(second->src[1], n)) {
        return i;
    }
    part.dst = graph->nodes[j];
    part.add = second->src[1];
    part.finishing = WITH_BIAS;
    const int k = next_of(graph, j), l = next_of(graph, k);
    const ggml_tensor * softplus = node_at(graph, k), * times = node_at(graph, l);
    if (is(softplus, GGML_UNARY_OP_SOFTPLUS) && softplus->src[0] == second && is(times, GGML_OP_MUL) && times->src[0] == softplus &&
        is_vector(times->src[1], n) && is_read_once(graph, j) && is_read_once(graph, k)) {
        part.dst = graph->nodes[l];
        part.times = times->src[1];
        part.finishing = AS_DECAY;
        return l;
    }
    return j;
}

// Products from node i on; gives the last node, or -1.
int match_several(const ggml_cgraph * graph, int i, several_products & all) {
    const ggml_tensor * x = graph->nodes[i]->src[1];
    int last = -1;
    for (int j = i; j < graph->n_nodes && int(all.size()) < MAX_SEVERAL && is_product_of(graph, j, x); j = next_of(graph, last)) {
        part_of_several part;
        last = with_what_follows(graph, j, part);
        all.push_back(part);
    }
    const bool is_worth_it = all.size() > 1 || (all.size() == 1 && all[0].finishing != AS_IT_IS);
    return is_worth_it && serves_several(x, all) ? last : -1;
}

// Experts -------------------------------------------------------------------------------------------------------------------------

// A product of routed experts that ends them, and one of a shared expert behind it.
bool are_ends_of_experts(const ggml_tensor * routed, const ggml_tensor * shared) {
    return is(routed, GGML_OP_MUL_MAT_ID) && is(shared, GGML_OP_MUL_MAT) && routed->src[1]->op == GGML_OP_GLU &&
        shared->src[1]->op == GGML_OP_GLU && serves_with_shared(routed, shared);
}

// Between what they multiply and them nothing else is launched.
bool follow_at_once(const ggml_cgraph * graph, int i, const ggml_tensor * routed, const ggml_tensor * shared) {
    const ggml_tensor * gated = shared->src[1];
    for (int j = i - 1; j >= 0 && graph->nodes[j] != routed->src[1]; j--) {
        const ggml_tensor * node = graph->nodes[j];
        if (!computes_nothing(node) && node != gated && node != gated->src[0] && node != gated->src[1]) {
            return false;
        }
    }
    return true;
}

struct sum_match {
    int last = 0;
    const ggml_tensor * experts, * weights, * shared, * gate, * stream;
    bool sigmoid;       // of the gate is still to be made
    ggml_tensor * dst;
    norm_match norm;    // of dst, if its last node is not 0
};

// The norm of a sum, where it follows.
template <typename sum_of> void match_norm_behind(const ggml_cgraph * graph, sum_of & m) {
    const int i = next_of(graph, m.last);
    norm_match norm;
    if (i < graph->n_nodes && match_norm(graph, i, norm) && !norm.gate && norm.x == m.dst) {
        m.norm = norm;
        m.last = norm.last;
    }
}

bool match_sum(const ggml_cgraph * graph, int i, sum_match & m) {
    const ggml_tensor * weighted = graph->nodes[i];
    if (!is(weighted, GGML_OP_MUL) || weighted->ne[3] != 1 || weighted->ne[1] < 2 || weighted->ne[2] > MAX_TOKENS) {
        return false;
    }
    m.experts = weighted->src[0];
    m.weights = weighted->src[1];
    const int64_t n = weighted->ne[0], n_used = weighted->ne[1], n_tokens = weighted->ne[2];
    const bool fits = ggml_are_same_shape(m.experts, weighted) && is_rows(m.experts) && ggml_is_contiguous(weighted) && n % 4 == 0 &&
        m.weights->type == GGML_TYPE_F32 && m.weights->ne[0] == 1 && m.weights->ne[1] == n_used && m.weights->ne[2] == n_tokens &&
        m.weights->ne[3] == 1 && m.weights->nb[1] == sizeof(float) && m.experts->op == GGML_OP_MUL_MAT_ID && fuses(m.experts);
    if (!fits || !ggml_node_has_n_uses(graph, i, int(n_used))) {
        return false;
    }
    // Views of the experts' rows, added one after the other.
    const auto is_expert = [&](const ggml_tensor * t, int which) {
        return t->op == GGML_OP_VIEW && t->src[0] == weighted && t->ne[0] == n && t->ne[1] == n_tokens && t->ne[2] == 1 && t->ne[3] == 1 &&
            t->nb[1] == weighted->nb[2] && t->view_offs == which * weighted->nb[1];
    };
    const ggml_tensor * sum = nullptr;
    int last = i;
    for (int which = 1; which < n_used; which++) {
        const int j = next_of(graph, last);
        const ggml_tensor * add = node_at(graph, j);
        const bool is_next = is(add, GGML_OP_ADD) && is_expert(add->src[1], which) && (sum ? add->src[0] == sum : is_expert(add->src[0], 0)) &&
            (!sum || is_read_once(graph, last));
        if (!is_next) {
            return false;
        }
        sum = add;
        last = j;
    }
    const auto is_row = [&](const ggml_tensor * t) { return t && ggml_are_same_shape(t, sum) && is_rows(t); };
    m.shared = m.gate = m.stream = nullptr;
    // A shared expert by its gate.
    const int j = next_of(graph, last);
    m.sigmoid = is(node_at(graph, j), GGML_UNARY_OP_SIGMOID);
    const int k = m.sigmoid ? next_of(graph, j) : j, l = next_of(graph, k);
    const ggml_tensor * gated = node_at(graph, k), * add = node_at(graph, l);
    if (is(gated, GGML_OP_MUL) && is(add, GGML_OP_ADD) && is_row(gated->src[0]) && gated->src[0] != sum && other_than(add, sum) == gated &&
        is_read_once(graph, last) && is_read_once(graph, k)) {
        const ggml_tensor * by = gated->src[1];
        const bool fits = by->type == GGML_TYPE_F32 && by->ne[0] == 1 && by->ne[1] == n_tokens && ggml_is_contiguous(by);
        const bool follows = !m.sigmoid || (by == graph->nodes[j] && is_read_once(graph, j) && ggml_is_contiguous(by->src[0]));
        if (fits && follows) {
            m.shared = gated->src[0];
            m.gate = m.sigmoid ? by->src[0] : by;
            sum = add;
            last = l;
        }
    }
    // The stream.
    const int o = next_of(graph, last);
    const ggml_tensor * end = node_at(graph, o), * stream = is(end, GGML_OP_ADD) ? other_than(end, sum) : nullptr;
    if (is_row(stream) && stream != sum && is_read_once(graph, last)) {
        m.stream = stream;
        sum = end;
        last = o;
    }
    m.dst = graph->nodes[last];
    m.last = last;
    if (!is_rows(m.dst)) {
        return false;
    }
    match_norm_behind(graph, m);
    return true;
}

bool compute_sum(ggml_backend_cuda_context & ctx, const sum_match & m) {
    const auto data = [](const ggml_tensor * t) { return t ? floats_of(t) : nullptr; };
    expert_sum p = {};
    p.experts = floats_of(m.experts);
    p.weights = floats_of(m.weights);
    p.weights_token = m.weights->nb[2] / sizeof(float);
    p.shared = data(m.shared);
    p.gate = data(m.gate);
    p.sigmoid = m.sigmoid;
    p.stream = data(m.stream);
    p.dst = (float *) m.dst->data;
    p.n = int(m.experts->ne[0]);
    p.n_used = int(m.experts->ne[1]);
    const int n_tokens = int(m.experts->ne[2]);
    if (m.norm.last == 0) {
        const ggml_cuda_kernel_launch_params params(dim3((p.n + 511) / 512, n_tokens), dim3(128), size_t(0), ctx.stream());
        ggml_cuda_kernel_launch(sum_experts, params, p);
        return true;
    }
    p.norm_weights = floats_of(m.norm.weights);
    p.normed = (float *) m.norm.dst->data;
    p.eps = m.norm.eps;
    p.y = columns_to_be(ctx, m.norm.dst, p.n, n_tokens);
    if (!p.y) {
        return false;
    }
    const ggml_cuda_kernel_launch_params params(dim3(n_tokens), dim3(p.n / EACH), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(sum_experts_and_norm, params, p);
    return true;
}

// Sums over ranks -----------------------------------------------------------------------------------------------------------------

struct ranks_match {
    int last = 0;
    const ggml_tensor * sum, * stream;
    ggml_tensor * dst;
    norm_match norm;    // of dst, if its last node is not 0
};

// From node i on: a sum over ranks, the stream, and a norm of that.
bool match_ranks(const ggml_cgraph * graph, int i, ranks_match & m) {
    m.sum = graph->nodes[i];
    if (!is(m.sum, GGML_OP_CUSTOM) || !reduces(m.sum) || !is_read_once(graph, i)) {
        return false;
    }
    const int64_t n = m.sum->ne[0], n_tokens = m.sum->ne[1];
    const bool fits = m.sum->ne[2] == 1 && m.sum->ne[3] == 1 && n_tokens <= MAX_TOKENS && n % BLOCK == 0 && n <= MAX_NORM &&
        n * n_tokens <= MOST_AT_ONCE && is_rows(m.sum->src[0]);
    const int j = next_of(graph, i);
    const ggml_tensor * add = node_at(graph, j);
    m.stream = fits && is(add, GGML_OP_ADD) ? other_than(add, m.sum) : nullptr;
    if (!m.stream || m.stream == m.sum || !ggml_are_same_shape(m.stream, m.sum) || !is_rows(m.stream) || !is_rows(add)) {
        return false;
    }
    m.dst = graph->nodes[j];
    m.last = j;
    match_norm_behind(graph, m);
    return true;
}

bool compute_ranks(ggml_backend_cuda_context & ctx, const ranks_match & m) {
    sum_of_ranks p = {};
    p.x = floats_of(m.sum->src[0]);
    p.stream = floats_of(m.stream);
    p.dst = (float *) m.dst->data;
    p.n = int(m.sum->ne[0]);
    p.part = part_of(m.sum);
    const int n_tokens = int(m.sum->ne[1]);
    if (m.norm.last != 0) {
        p.norm_weights = floats_of(m.norm.weights);
        p.normed = (float *) m.norm.dst->data;
        p.eps = m.norm.eps;
        p.y = columns_to_be(ctx, m.norm.dst, p.n, n_tokens);
        if (!p.y) {
            return false;
        }
    }
    const ggml_cuda_kernel_launch_params params(dim3(n_tokens), dim3(p.n / EACH), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(sum_ranks_and_norm, params, p);
    return true;
}

// Gates of attention --------------------------------------------------------------------------------------------------------------

struct gate_match {
    int last = 0;
    const ggml_tensor * x, * gate;      // the latter [values of a head, heads, tokens]
    ggml_tensor * dst;
};

// From node i on: gates that become one row of each token, their sigmoid, and its product with what attention gives.
bool match_gate(const ggml_cgraph * graph, int i, gate_match & m) {
    const ggml_tensor * cont = graph->nodes[i];
    if (!is(cont, GGML_OP_CONT) || !is_read_once(graph, i)) {
        return false;
    }
    const int j = next_of(graph, i), k = next_of(graph, j);
    const ggml_tensor * sigmoid = node_at(graph, j), * product = node_at(graph, k);
    if (!is(sigmoid, GGML_UNARY_OP_SIGMOID) || root_of(sigmoid->src[0]) != cont || !is_read_once(graph, j) || !is(product, GGML_OP_MUL)) {
        return false;
    }
    // Nobody else reads it by another shape.
    for (int l = i + 1; l < j; l++) {
        if (graph->nodes[l] == sigmoid->src[0] && ggml_node_get_use_count(graph, l) != 1) {
            return false;
        }
    }
    m.x = other_than(product, sigmoid);
    m.gate = cont->src[0];
    m.dst = graph->nodes[k];
    m.last = k;
    const ggml_tensor * gate = m.gate;
    const int64_t n = gate->ne[0] * gate->ne[1];
    const auto is_whole = [](size_t stride) { return stride % 16 == 0; };
    return m.x && gate->type == GGML_TYPE_F32 && gate->nb[0] == sizeof(float) && is_whole(gate->nb[1]) && is_whole(gate->nb[2]) &&
        reinterpret_cast<uintptr_t>(gate->data) % 16 == 0 && gate->ne[0] % EACH == 0 && gate->ne[3] == 1 && gate->ne[2] <= MAX_TOKENS &&
        n % BLOCK == 0 && product->ne[0] == n && product->ne[1] == gate->ne[2] && product->ne[2] == 1 && product->ne[3] == 1 &&
        ggml_are_same_shape(product, m.x) && ggml_are_same_shape(product, sigmoid) && is_rows(m.x) && is_rows(m.dst) &&
        goes_to_product(graph, k, m.dst, n);
}

bool compute_gate(ggml_backend_cuda_context & ctx, const gate_match & m) {
    const int n = int(m.dst->ne[0]), n_tokens = int(m.dst->ne[1]);
    column_block * y = columns_to_be(ctx, m.dst, n, n_tokens);
    if (!y) {
        return false;
    }
    const ggml_cuda_kernel_launch_params params(dim3((n / BLOCK + 3) / 4, n_tokens), dim3(128), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(gate_into_columns, params, floats_of(m.x), floats_of(m.gate), int(m.gate->ne[0]), int64_t(m.gate->nb[1] / sizeof(float)),
        int64_t(m.gate->nb[2] / sizeof(float)), (float *) m.dst->data, y, n);
    return true;
}

// Memory --------------------------------------------------------------------------------------------------------------------------

bool is_among(const ggml_cgraph * graph, int first, int last, const ggml_tensor * t) {
    return std::find(graph->nodes + first, graph->nodes + last + 1, t) != graph->nodes + last + 1;
}

// Calls f with all that nodes first to last read of others.
template <typename F> void each_input(const ggml_cgraph * graph, int first, int last, const F & f) {
    for (int i = first; i <= last; i++) {
        for (ggml_tensor * t : graph->nodes[i]->src) {
            if (t && !is_among(graph, first, last, t) && !(t->view_src && is_among(graph, first, last, t->view_src))) {
                f(t);
            }
        }
    }
}

// What is written does not lie where something is that the launch reads; but element by element it may, where that is allowed.
bool is_safe(const ggml_cgraph * graph, int first, int last, const ggml_tensor * dst, bool in_place) {
    bool safe = true;
    each_input(graph, first, last, [&](const ggml_tensor * t) {
        safe = safe && (are_apart(t, dst) || (in_place && t->data == dst->data && ggml_nelements(t) == ggml_nelements(dst)));
    });
    return safe;
}

// Moves nodes from first to last before node to.
void move(ggml_cgraph * graph, int first, int last, int to) {
    std::rotate(graph->nodes + to, graph->nodes + first, graph->nodes + last + 1);
}

}  // namespace

void arrange(ggml_cgraph * graph, const ggml_backend_graph_optimize_params & params) {
    if (!fusions_are_on()) {
        return;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        ggml_tensor * node = graph->nodes[i];
        part_of_several part;
        if (is(node, GGML_OP_MUL_MAT) && is_product_of(graph, i, node->src[1])) {
            int end = with_what_follows(graph, i, part);
            int n = 1;
            for (int j = end + 1; j < graph->n_nodes && j < i + NEAR && n < MAX_SEVERAL; j++) {
                if (!is_product_of(graph, j, node->src[1])) {
                    continue;
                }
                // With the node that gives its weights another shape.
                const int first = graph->nodes[j - 1] == graph->nodes[j]->src[0] ? j - 1 : j, last = with_what_follows(graph, j, part);
                if (first > end + 1) {
                    move(graph, first, last, end + 1);
                }
                end += last - first + 1;
                j = end;
                n++;
            }
            i = end;
        } else if (is(node, GGML_OP_MUL_MAT_ID) && node->src[1]->op == GGML_OP_GLU) {
            for (int j = i + 1; j < graph->n_nodes && j < i + NEAR && !is(graph->nodes[j], GGML_OP_MUL_MAT_ID); j++) {
                if (are_ends_of_experts(node, graph->nodes[j]) && !is_among(graph, i, j, graph->nodes[j]->src[1])) {
                    move(graph, j, j, i + 1);
                    break;
                }
            }
        }
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        norm_match norm;
        sum_match sum;
        ranks_match ranks;
        gate_match gate;
        several_products all;
        int last = -1;
        if (match_norm(graph, i, norm)) {
            last = norm.last;
        } else if (match_sum(graph, i, sum)) {
            last = sum.last;
        } else if (match_ranks(graph, i, ranks)) {
            last = ranks.last;
        } else if (match_gate(graph, i, gate)) {
            last = gate.last;
        } else if (is(graph->nodes[i], GGML_OP_MUL_MAT)) {
            last = match_several(graph, i, all);
        } else if (const int j = next_of(graph, i); j < graph->n_nodes && are_ends_of_experts(graph->nodes[i], graph->nodes[j])) {
            last = j;
        }
        if (const int until = norm_of_delta_rule(graph, i)) {
            params.add_alloc_dep(params.user_data, graph->nodes[i]->src[0], graph->nodes[until]);
        }
        if (const int until = rotation_of_queries(graph, i)) {
            params.add_alloc_dep(params.user_data, graph->nodes[i]->src[1], graph->nodes[until]);
        }
        if (last >= 0) {
            each_input(graph, i, last, [&](ggml_tensor * t) {
                // Weights and states have their memory.
                if (!(t->view_src ? t->view_src : t)->data) {
                    params.add_alloc_dep(params.user_data, t, graph->nodes[last]);
                }
            });
            i = last;
        }
    }
}

namespace {

// A rotation with the store behind it, or left to the attention that reads what it gives.
int rotated_with_others(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i) {
    if (const int more = rotation_and_store(ctx, graph, i)) {
        return more;
    }
    const int until = rotation_of_queries(graph, i);
    if (until < i + 2) {
        return 0;
    }
    leave(ctx, graph->nodes[i]);
    return 1;
}

// A sum can be computed in the place of its last node, and with it the norm behind it, if there is one.
bool are_safe(const ggml_cgraph * graph, int i, int last, const ggml_tensor * sum, const norm_match & norm) {
    return is_safe(graph, i, last, sum, true) && (norm.last == 0 || (are_apart(sum, norm.dst) && is_safe(graph, i, last, norm.dst, false)));
}

}  // namespace

int fused(ggml_backend_cuda_context & ctx, ggml_cgraph * graph, int i) {
    if (!fusions_are_on() || !ctx.stream_context().concurrent_events.empty()) {
        return 0;
    }
    switch (graph->nodes[i]->op) {
        case GGML_OP_RMS_NORM: {
            if (const int more = leave_to_delta_rule(ctx, graph, i)) {
                return more;
            }
            norm_match m;
            return match_norm(graph, i, m) && is_safe(graph, i, m.last, m.dst, true) && compute_norm(ctx, m) ? m.last - i : 0;
        }
        case GGML_OP_MUL: {
            sum_match m;
            return match_sum(graph, i, m) && are_safe(graph, i, m.last, m.dst, m.norm) && compute_sum(ctx, m) ? m.last - i : 0;
        }
        case GGML_OP_CUSTOM: {
            ranks_match m;
            return match_ranks(graph, i, m) && are_safe(graph, i, m.last, m.dst, m.norm) && compute_ranks(ctx, m) ? m.last - i : 0;
        }
        case GGML_OP_CONT: {
            gate_match m;
            return match_gate(graph, i, m) && is_safe(graph, i, m.last, m.dst, false) && compute_gate(ctx, m) ? m.last - i : 0;
        }
        case GGML_OP_FLASH_ATTN_EXT:
            return attention_and_rotation(ctx, graph, i);
        case GGML_OP_MUL_MAT: {
            if (values_rotated(graph->nodes[i])) {
                return rotated_with_others(ctx, graph, i);
            }
            several_products all;
            const int last = match_several(graph, i, all);
            const bool safe = last >= 0 && std::all_of(all.begin(), all.end(), [&](const part_of_several & part) {
                return is_safe(graph, i, last, part.dst, false);
            });
            if (!safe) {
                return 0;
            }
            compute_several(ctx, graph->nodes[i]->src[1], all);
            return last - i;
        }
        case GGML_OP_MUL_MAT_ID: {
            const int j = next_of(graph, i);
            ggml_tensor * routed = graph->nodes[i], * shared = j < graph->n_nodes ? graph->nodes[j] : nullptr;
            if (!shared || !are_ends_of_experts(routed, shared) || !is_safe(graph, i, j, routed, false) || !is_safe(graph, i, j, shared, false)) {
                return 0;
            }
            compute_with_shared(ctx, routed, shared, comes_of_gated(ctx, routed, shared) && follow_at_once(graph, i, routed, shared));
            return j - i;
        }
        default:
            return 0;
    }
}

}  // namespace nextn
