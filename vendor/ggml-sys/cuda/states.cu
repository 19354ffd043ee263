#include "few_columns.cuh"
#include "ggml-impl.h"
#include "nodes.cuh"
#include "states.cuh"
#include "states_kernels.cuh"

#include <cmath>

namespace nextn {

namespace {

bool is_size(int64_t size) {
    return size == 16 || size == 32 || size == 64 || size == 128;
}

int64_t floats(size_t bytes) {
    return int64_t(bytes / sizeof(float));
}

// Floats whose rows follow each other element by element.
bool in_rows(const ggml_tensor * t) {
    return t && t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float);
}

// The same, where rows begin at whole sixteen bytes.
bool in_whole_rows(const ggml_tensor * t) {
    return in_rows(t) && reinterpret_cast<uintptr_t>(t->data) % 16 == 0 && t->nb[1] % 16 == 0 && t->nb[2] % 16 == 0 && t->nb[3] % 16 == 0;
}

bool are_numbers(const ggml_tensor * t, int64_t n) {
    return !t || (t->type == GGML_TYPE_I32 && ggml_is_contiguous(t) && ggml_nelements(t) == n);
}

// States [.., n] of n_values values, the dimension that counts them being dim, and where snapshots go: [n_values, slots, snapshots].
bool fits(const ggml_tensor * all, int dim, const ggml_tensor * into, const ggml_tensor * which, const ggml_tensor * slots, int64_t n_values,
          int64_t n_tokens, int64_t n_sequences) {
    return in_rows(all) && in_rows(into) && floats(all->nb[dim]) >= n_values && into->ne[0] == n_values && into->ne[2] >= 1 &&
        into->ne[2] <= n_tokens && into->ne[3] == 1 && are_numbers(which, n_sequences) && are_numbers(slots, n_sequences) &&
        (which || all->ne[dim] == n_sequences) && (slots || into->ne[1] == n_sequences);
}

kept_states states_of(const ggml_tensor * all, int dim, const ggml_tensor * into, const ggml_tensor * which, const ggml_tensor * slots) {
    return { (const float *) all->data, floats(all->nb[dim]), which ? (const int32_t *) which->data : nullptr, (float *) into->data,
        floats(into->nb[1]), floats(into->nb[2]), slots ? (const int32_t *) slots->data : nullptr, int(into->ne[2]) };
}

bool is_node(const ggml_tensor * node, int kind) {
    return node->op == GGML_OP_CUSTOM && node->op_params[FIRST_PARAMETER] == kind && node->type == GGML_TYPE_F32;
}

// src: inputs [n_channels, n_tokens, n_sequences], states, weights [TAPS, n_channels], where snapshots go, which states, slots.
bool serves_convolution(const ggml_tensor * node) {
    if (!is_node(node, SHORT_CONV)) {
        return false;
    }
    const ggml_tensor * x = node->src[0], * all = node->src[1], * w = node->src[2], * into = node->src[3];
    return in_rows(x) && in_whole_rows(w) && x->ne[3] == 1 && w->ne[0] == TAPS && w->ne[1] == x->ne[0] && ggml_is_contiguous(w) &&
        states_by_number(TAPS - 1, x->ne[0], 0) >= x->ne[1] && ggml_is_contiguous(node) && ggml_are_same_shape(node, x) &&
        x->ne[2] < 65536 && fits(all, 2, into, node->src[4], node->src[5], (TAPS - 1) * x->ne[0], x->ne[1], x->ne[2]) &&
        all->ne[0] == TAPS - 1 && all->nb[1] == (TAPS - 1) * sizeof(float);
}

// src: queries, keys, values, decays, betas, states, where snapshots go, which states, slots.
bool serves_delta_rule(const ggml_tensor * node) {
    if (!is_node(node, DELTA_RULE)) {
        return false;
    }
    const ggml_tensor * q = node->src[0], * k = node->src[1], * v = node->src[2], * decay = node->src[3], * beta = node->src[4];
    const ggml_tensor * all = node->src[5], * into = node->src[6];
    if (!in_whole_rows(q) || !in_whole_rows(k) || !in_rows(v) || !in_rows(decay) || !in_rows(beta)) {
        return false;
    }
    const int64_t size = v->ne[0], n_heads = v->ne[1], n_tokens = v->ne[2], n_sequences = v->ne[3];
    const auto is_gate = [&](const ggml_tensor * t) {
        return t->ne[0] == 1 && t->ne[1] == n_heads && t->ne[2] == n_tokens && t->ne[3] == n_sequences;
    };
    return is_size(size) && n_tokens <= states_by_number(TAPS - 1, 0, size) && ggml_are_same_shape(q, k) && q->ne[0] == size &&
        q->ne[2] == n_tokens && q->ne[3] == n_sequences && n_heads % q->ne[1] == 0 && n_heads < 65536 && n_sequences < 65536 &&
        is_gate(decay) && is_gate(beta) && ggml_is_contiguous(node) && ggml_nelements(node) == ggml_nelements(v) &&
        fits(all, 3, into, node->src[7], node->src[8], size * size * n_heads, n_tokens, n_sequences) && in_whole_rows(all) &&
        in_whole_rows(into) && floats(all->nb[1]) == size && floats(all->nb[2]) == size * size;
}

void convolution_of(ggml_backend_cuda_context & ctx, const ggml_tensor * node, ggml_tensor * dst, bool silu) {
    const ggml_tensor * x = node->src[0];
    convolution p = {};
    p.x = (const float *) x->data;
    p.x_token = floats(x->nb[1]);
    p.x_sequence = floats(x->nb[2]);
    p.weights = (const float4 *) node->src[2]->data;
    p.states = states_of(node->src[1], 2, node->src[3], node->src[4], node->src[5]);
    p.dst = (float *) dst->data;
    p.n_channels = int(x->ne[0]);
    p.n_tokens = int(x->ne[1]);
    p.silu = silu;
    const ggml_cuda_kernel_launch_params params(dim3((p.n_channels + CHANNELS - 1) / CHANNELS, x->ne[2]), dim3(CHANNELS), size_t(0),
        ctx.stream());
    ggml_cuda_kernel_launch(convolve, params, p);
}

template <int SIZE> void launch(const delta_rule & p, int n_sequences, cudaStream_t stream) {
    constexpr int rows = DELTA_ROWS<SIZE> * DELTA_WARPS<SIZE>;
    const ggml_cuda_kernel_launch_params params(dim3(SIZE / rows, p.n_heads, n_sequences), dim3(32 * DELTA_WARPS<SIZE>), size_t(0), stream);
    ggml_cuda_kernel_launch(apply_delta_rule<SIZE>, params, p);
}

void delta_rule_of(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * decay = dst->src[3], * beta = dst->src[4];
    delta_rule p = {};
    // Queries and keys, or what a norm that was left makes them of.
    const ggml_tensor * normed = q->op == GGML_OP_VIEW && is_left(ctx, q->src[0]) ? q->src[0] : nullptr;
    const ggml_tensor * as = normed ? normed->src[0]->src[0] : nullptr;
    const auto data_of = [&](const ggml_tensor * part) {
        const size_t first_head = normed ? ((const char *) part->data - (const char *) normed->data) / normed->nb[1] : 0;
        return normed ? (const float *) ((const char *) as->data + first_head * as->nb[1]) : (const float *) part->data;
    };
    p.q = data_of(q);
    p.q_head = floats((as ? as : q)->nb[1]);
    p.q_token = floats((as ? as : q)->nb[2]);
    p.q_sequence = floats((as ? as : q)->nb[3]);
    p.k = data_of(k);
    p.k_head = floats((as ? as : k)->nb[1]);
    p.k_token = floats((as ? as : k)->nb[2]);
    p.k_sequence = floats((as ? as : k)->nb[3]);
    if (normed) {
        float eps;
        memcpy(&eps, normed->src[0]->op_params, sizeof(eps));
        p.norm_eps = eps * float(q->ne[0]);
    }
    p.v = (const float *) v->data;
    p.v_head = floats(v->nb[1]);
    p.v_token = floats(v->nb[2]);
    p.v_sequence = floats(v->nb[3]);
    p.decay = (const float *) decay->data;
    p.decay_head = floats(decay->nb[1]);
    p.decay_token = floats(decay->nb[2]);
    p.decay_sequence = floats(decay->nb[3]);
    p.beta = (const float *) beta->data;
    p.beta_head = floats(beta->nb[1]);
    p.beta_token = floats(beta->nb[2]);
    p.beta_sequence = floats(beta->nb[3]);
    p.states = states_of(dst->src[5], 3, dst->src[6], dst->src[7], dst->src[8]);
    p.dst = (float *) dst->data;
    p.n_key_heads = int(q->ne[1]);
    p.n_heads = int(v->ne[1]);
    p.n_tokens = int(v->ne[2]);
    p.scale = 1.0f / sqrtf(float(v->ne[0]));
    const int n_sequences = int(v->ne[3]);
    switch (v->ne[0]) {
        case 16: return launch<16>(p, n_sequences, ctx.stream());
        case 32: return launch<32>(p, n_sequences, ctx.stream());
        case 64: return launch<64>(p, n_sequences, ctx.stream());
        default: return launch<128>(p, n_sequences, ctx.stream());
    }
}

}  // namespace

int states_by_number(int64_t n_past, int64_t n_channels, int64_t head_size) {
    const bool served = n_past == TAPS - 1 && n_channels < INT32_MAX && (head_size == 0 || is_size(head_size));
    return states_are_on() && served ? MAX_TOKENS : 0;
}

bool takes_states(const ggml_tensor * node) {
    return serves_convolution(node) || serves_delta_rule(node);
}

bool with_states(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    if (serves_convolution(dst)) {
        convolution_of(ctx, dst, dst, false);
        return true;
    }
    if (serves_delta_rule(dst)) {
        delta_rule_of(ctx, dst);
        return true;
    }
    return false;
}

int norm_of_delta_rule(const ggml_cgraph * graph, int i) {
    if (!ggml_can_fuse(graph, i, { GGML_OP_RMS_NORM, GGML_OP_SCALE }) || !ggml_node_has_n_uses(graph, i + 1, 2)) {
        return 0;
    }
    const ggml_tensor * x = graph->nodes[i]->src[0], * norm = graph->nodes[i + 1];
    float scale[2];
    memcpy(scale, norm->op_params, sizeof(scale));
    const bool by_length = fabsf(scale[0] * sqrtf(float(x->ne[0])) - 1.0f) < 1e-6f && scale[1] == 0.0f;
    if (!by_length || !in_whole_rows(x) || !ggml_is_contiguous(norm)) {
        return 0;
    }
    // Its two halves are read by one delta rule and by nobody else.
    const auto is_half = [&](const ggml_tensor * t, int until) {
        if (t->op != GGML_OP_VIEW || t->src[0] != norm || t->nb[1] != norm->nb[1] || t->nb[2] != norm->nb[2] || t->nb[3] != norm->nb[3] ||
            t->view_offs % norm->nb[1] != 0) {
            return false;
        }
        for (int j = i + 2; j < until; j++) {
            if (graph->nodes[j] == t) {
                return ggml_node_get_use_count(graph, j) == 1 && !(t->flags & GGML_TENSOR_FLAG_OUTPUT);
            }
        }
        return false;
    };
    for (int j = i + 2; j < graph->n_nodes && j < i + 96; j++) {
        const ggml_tensor * node = graph->nodes[j];
        if (is_node(node, DELTA_RULE) && is_half(node->src[0], j) && is_half(node->src[1], j)) {
            return serves_delta_rule(node) ? j : 0;
        }
    }
    return 0;
}

int leave_to_delta_rule(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i) {
    const int until = norm_of_delta_rule(graph, i);
    if (until == 0) {
        return 0;
    }
    // What it reads must still be there.
    const ggml_tensor * x = graph->nodes[i]->src[0];
    for (int j = i + 2; j < until; j++) {
        const ggml_tensor * node = graph->nodes[j];
        if (!computes_nothing(node) && !are_apart(node, x)) {
            return 0;
        }
    }
    leave(ctx, graph->nodes[i + 1]);
    return 1;
}

int convolution_and_silu(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i) {
    if (!serves_convolution(graph->nodes[i]) || !ggml_can_fuse(graph, i, { GGML_OP_CUSTOM, GGML_OP_UNARY })) {
        return 0;
    }
    ggml_tensor * silu = graph->nodes[i + 1];
    if (ggml_get_unary_op(silu) != GGML_UNARY_OP_SILU || silu->type != GGML_TYPE_F32 || !ggml_is_contiguous(silu)) {
        return 0;
    }
    convolution_of(ctx, graph->nodes[i], silu, true);
    return 1;
}

}  // namespace nextn
