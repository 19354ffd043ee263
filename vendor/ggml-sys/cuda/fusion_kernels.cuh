// Kernels that compute what stands between products: norms that leave columns for them, and sums of experts. Each computes a token by
// itself, so its bits do not depend on how many there are.
#pragma once

#include "all_reduce_kernels.cuh"
#include "columns.cuh"

#include <cstdint>

namespace nextn {

// Values of a lane, and the longest row of a norm: one thread block has it in registers.
constexpr int EACH = 8, MAX_NORM = 1024 * EACH;

// A row of n values, eight in each thread of a block: its values / root of the mean of squares * weights become dst, and column c.
static __device__ __forceinline__ void norm_of_row(float (&v)[EACH], const float (&w)[EACH], float * dst, column_block * y, int n, int c, float eps) {
    __shared__ float sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = n / BLOCK;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        sum = fmaf(v[i], v[i], sum);
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, o);
    }
    if (lane == 0) {
        sums[warp] = sum;
    }
    __syncthreads();
    sum = lane < n_warps ? sums[lane] : 0.0f;
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, o);
    }
    const float scale = rsqrtf(sum / n + eps);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] = v[i] * scale * w[i];
    }
    float4 * to = reinterpret_cast<float4 *>(dst);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
    store_values(v, y, n_warps, warp, c, lane);
}

// Norms of rows of n values, a multiple of 256; columns of the same besides. Grid: rows; n / 8 threads.
static __global__ void __launch_bounds__(1024) norm_into_columns(const float * x, const float * weights, float * dst, column_block * y, int n, float eps) {
    const int row = blockIdx.x, at = threadIdx.x * EACH;
    float w[EACH], v[EACH];
    load_values(w, weights + at);
    wait_for_previous();
    let_next_start();
    load_values(v, x + int64_t(row) * n + at);
    norm_of_row(v, w, dst + int64_t(row) * n + at, y, n, row, eps);
}

// dst = norm of each head of x * weights * silu(gate), heads of HEAD values, n values a token; columns of n values besides. Grid: blocks
// of 256 values by four, then tokens.
template <int HEAD>
static __global__ void __launch_bounds__(128) gated_norm_into_columns(const float * x, const float * weights, const float * gate, float * dst,
                                                                     column_block * y, int n, float eps) {
    static_assert(HEAD >= EACH && HEAD <= BLOCK && BLOCK % HEAD == 0, "a warp has whole heads");
    const int lane = threadIdx.x % 32, b = blockIdx.x * 4 + threadIdx.x / 32, n_blocks = n / BLOCK, token = blockIdx.y;
    float w[EACH];
    load_values(w, weights + lane * EACH % HEAD);
    wait_for_previous();
    let_next_start();
    if (b >= n_blocks) {
        return;
    }
    const int64_t at = int64_t(token) * n + b * BLOCK + lane * EACH;
    float v[EACH], g[EACH];
    load_values(v, x + at);
    load_values(g, gate + at);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        sum = fmaf(v[i], v[i], sum);
    }
#pragma unroll
    for (int o = HEAD / EACH / 2; o > 0; o /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, o);
    }
    const float scale = rsqrtf(sum / HEAD + eps);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] = v[i] * scale * w[i] * (g[i] / (1.0f + expf(-g[i])));
    }
    float4 * to = reinterpret_cast<float4 *>(dst + at);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
    store_values(v, y, n_blocks, b, token, lane);
}

// What becomes one row of each token: experts [n, n_used, n_tokens] by their weights, then up to two more rows.
struct expert_sum {
    const float * experts, * weights;
    int64_t weights_token;
    const float * shared;       // [n, n_tokens] or null
    const float * gate;         // weighs that: one for each token, or null
    bool sigmoid;               // not the gate, its sigmoid does
    const float * stream;       // [n, n_tokens] or null
    float * dst;                // [n, n_tokens]
    int n, n_used;
    // A norm of that besides, see norm_into_columns.
    const float * norm_weights;
    float * normed;
    column_block * y;
    float eps;
};

template <int N> static __device__ __forceinline__ void sum_of_experts(const expert_sum & p, int token, int at, float (&sum)[N]) {
    const float * experts = p.experts + int64_t(token) * p.n_used * p.n + at, * weights = p.weights + token * p.weights_token;
    const auto add = [&](const float * from, float by) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const float4 v = *reinterpret_cast<const float4 *>(from + i);
            sum[i] = fmaf(v.x, by, sum[i]);
            sum[i + 1] = fmaf(v.y, by, sum[i + 1]);
            sum[i + 2] = fmaf(v.z, by, sum[i + 2]);
            sum[i + 3] = fmaf(v.w, by, sum[i + 3]);
        }
    };
#pragma unroll 8
    for (int i = 0; i < p.n_used; i++) {
        add(experts + int64_t(i) * p.n, weights[i]);
    }
    const int64_t place = int64_t(token) * p.n + at;
    if (p.shared) {
        const float gate = p.gate ? p.gate[token] : 1.0f;
        add(p.shared + place, p.sigmoid ? 1.0f / (1.0f + expf(-gate)) : gate);
    }
    if (p.stream) {
        add(p.stream + place, 1.0f);
    }
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        *reinterpret_cast<float4 *>(p.dst + place + i) = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    }
}

// Grid: values by four of each thread, then tokens.
static __global__ void __launch_bounds__(128) sum_experts(const expert_sum p) {
    const int at = (blockIdx.x * blockDim.x + threadIdx.x) * 4, token = blockIdx.y;
    wait_for_previous();
    let_next_start();
    if (at >= p.n) {
        return;
    }
    float sum[4] = {};
    sum_of_experts(p, token, at, sum);
}

// Grid: tokens; n / 8 threads, n a multiple of 256.
static __global__ void __launch_bounds__(1024) sum_experts_and_norm(const expert_sum p) {
    const int token = blockIdx.x, at = threadIdx.x * EACH;
    float w[EACH];
    load_values(w, p.norm_weights + at);
    wait_for_previous();
    let_next_start();
    float v[EACH] = {};
    sum_of_experts(p, token, at, v);
    norm_of_row(v, w, p.normed + int64_t(token) * p.n + at, p.y, p.n, token, p.eps);
}

// The sum of x over ranks and the stream, and a norm of that, see norm_into_columns; no norm where `normed` is null.
struct sum_of_ranks {
    const float * x, * stream;  // [n, n_tokens]
    float * dst;                // the same
    int n;
    const float * norm_weights;
    float * normed;
    column_block * y;
    float eps;
    part_in_sum part;
};

// Grid: tokens; n / 8 threads, n a multiple of 256.
static __global__ void __launch_bounds__(1024) sum_ranks_and_norm(const sum_of_ranks p) {
    const int token = blockIdx.x, at = threadIdx.x * EACH;
    const int64_t place = int64_t(token) * p.n + at;
    float w[EACH] = {}, v[EACH], stream[EACH];
    if (p.normed) {
        load_values(w, p.norm_weights + at);
    }
    wait_for_previous();
    let_next_start();
    const uint32_t round = next_round(p.part.made[token]);
    load_values(v, p.x + place);
    send_all(p.part, round, place, v);
    load_values(stream, p.stream + place);
    receive_all(p.part, round, place, v);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] += stream[i];
    }
    float4 * to = reinterpret_cast<float4 *>(p.dst + place);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
    if (p.normed) {
        norm_of_row(v, w, p.normed + place, p.y, p.n, token, p.eps);
    }
    end_of_sum(p.part, round);
}

// dst = x * sigmoid(gate), n values a token; the gate in heads that do not lie side by side. Columns of n values besides. Grid: blocks of
// 256 values by four, then tokens.
static __global__ void __launch_bounds__(128) gate_into_columns(const float * x, const float * gate, int head, int64_t gate_head, int64_t gate_token,
                                                                float * dst, column_block * y, int n) {
    const int lane = threadIdx.x % 32, b = blockIdx.x * 4 + threadIdx.x / 32, n_blocks = n / BLOCK, token = blockIdx.y;
    wait_for_previous();
    let_next_start();
    if (b >= n_blocks) {
        return;
    }
    const int i = b * BLOCK + lane * EACH;
    const int64_t at = int64_t(token) * n + i;
    float v[EACH], g[EACH];
    load_values(v, x + at);
    load_values(g, gate + token * gate_token + i / head * gate_head + i % head);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] = v[i] / (1.0f + expf(-g[i]));
    }
    float4 * to = reinterpret_cast<float4 *>(dst + at);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
    store_values(v, y, n_blocks, b, token, lane);
}

}  // namespace nextn
