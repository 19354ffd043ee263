// Kernels for a few tokens of recurrent layers whose states lie among others: which one a sequence goes on from, and where it keeps
// its next ones, are numbers in the GPU's memory, so that one captured graph serves all of them.
//
// A state is read whole by the threads that write over it, and no two of them share an element: a sequence may keep a snapshot in the
// place that it has read. A token's bits do not depend on how many come with it.
#pragma once

#include "dependent_launch.cuh"

#include <cstdint>

namespace nextn {

// States of all sequences of a layer.
struct kept_states {
    const float * all;
    int64_t each;               // floats from one state to the next
    const int32_t * which;      // the state of each sequence; null: its own number
    float * into;               // the newest snapshot of the first slot
    int64_t slot, snapshot;     // floats from one slot to the next, from one snapshot to the next older one
    const int32_t * slots;      // the slot of each sequence; null: its own number
    int n_snapshots;

    __device__ const float * read(int sequence) const { return all + (which ? which[sequence] : sequence) * each; }
    __device__ float * write(int sequence) const { return into + (slots ? slots[sequence] : sequence) * slot; }
};

// Inputs of a token's own and of three tokens before it.
constexpr int TAPS = 4, CHANNELS = 128;

struct convolution {
    const float * x;
    int64_t x_token, x_sequence;
    const float4 * weights;     // of each channel, the last on the token itself
    kept_states states;         // [TAPS - 1, n_channels], the oldest first
    float * dst;                // [n_channels, n_tokens, n_sequences]
    int n_channels, n_tokens;
    bool silu;
};

// Grid: channels, then sequences.
static __global__ void __launch_bounds__(CHANNELS) convolve(const convolution p) {
    constexpr int AHEAD = 4;
    const int channel = blockIdx.x * CHANNELS + threadIdx.x, sequence = blockIdx.y;
    wait_for_previous();
    let_next_start();
    if (channel >= p.n_channels) {
        return;
    }
    const float4 w = p.weights[channel];
    const float * past = p.states.read(sequence) + int64_t(channel) * (TAPS - 1);
    float * into = p.states.write(sequence) + int64_t(channel) * (TAPS - 1);
    const float * x = p.x + sequence * p.x_sequence + channel;
    float * dst = p.dst + int64_t(sequence) * p.n_tokens * p.n_channels + channel;
    float a = past[0], b = past[1], c = past[2];
    for (int first = 0; first < p.n_tokens; first += AHEAD) {
        float ahead[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            ahead[i] = first + i < p.n_tokens ? x[(first + i) * p.x_token] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int token = first + i, back = p.n_tokens - 1 - token;
            if (back < 0) {
                break;
            }
            const float now = ahead[i];
            const float sum = fmaf(now, w.w, fmaf(c, w.z, fmaf(b, w.y, __fmul_rn(a, w.x))));
            dst[int64_t(token) * p.n_channels] = p.silu ? __fdiv_rn(sum, __fadd_rn(1.0f, expf(-sum))) : sum;
            a = b;
            b = c;
            c = now;
            if (back < p.states.n_snapshots) {
                float * to = into + back * p.states.snapshot;
                to[0] = a;
                to[1] = b;
                to[2] = c;
            }
        }
    }
}

struct delta_rule {
    const float * q, * k, * v;
    int64_t q_head, q_token, q_sequence, k_head, k_token, k_sequence, v_head, v_token, v_sequence;
    const float * decay, * beta;        // the first as logarithms
    int64_t decay_head, decay_token, decay_sequence, beta_head, beta_token, beta_sequence;
    kept_states states;                 // [size, size, n_heads]: all keys of a value, value after value
    float * dst;                        // [size, n_heads, n_tokens, n_sequences]
    int n_key_heads, n_heads, n_tokens;
    float scale;                        // of outputs
    float norm_eps;                     // over 0: queries and keys are divided by the root of this and the sum of their squares
};

// Threads that share a value's row of keys, rows of a warp, warps of a thread block.
template <int SIZE> constexpr int DELTA_LANES = SIZE >= 32 ? 8 : 4;
template <int SIZE> constexpr int DELTA_ROWS = 32 / DELTA_LANES<SIZE>;
template <int SIZE> constexpr int DELTA_WARPS = SIZE / DELTA_ROWS<SIZE> < 4 ? SIZE / DELTA_ROWS<SIZE> : 4;

static __device__ __forceinline__ float added(float sum, float4 a, float4 b) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Grid: parts of a head's rows, then value heads, then sequences.
template <int SIZE> static __global__ void __launch_bounds__(32 * DELTA_WARPS<SIZE>) apply_delta_rule(const delta_rule p) {
    constexpr int LANES = DELTA_LANES<SIZE>, N = SIZE / LANES / 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = lane % LANES * 4, head = blockIdx.y, sequence = blockIdx.z;
    const int row = (blockIdx.x * DELTA_WARPS<SIZE> + warp) * DELTA_ROWS<SIZE> + lane / LANES, key_head = head % p.n_key_heads;
    const float * q_of = p.q + sequence * p.q_sequence + key_head * p.q_head + part;
    const float * k_of = p.k + sequence * p.k_sequence + key_head * p.k_head + part;
    const float * v_of = p.v + sequence * p.v_sequence + head * p.v_head + row;
    const float * decay_of = p.decay + sequence * p.decay_sequence + head * p.decay_head;
    const float * beta_of = p.beta + sequence * p.beta_sequence + head * p.beta_head;
    const int64_t place = (int64_t(head) * SIZE + row) * SIZE + part;
    float * dst = p.dst + (int64_t(sequence) * p.n_tokens * p.n_heads + head) * SIZE + row;
    wait_for_previous();
    let_next_start();

    struct token {
        float4 q[N], k[N];
        float v, decay, beta;
    };
    const auto fetch = [&](token & to, int t) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            to.k[i] = *reinterpret_cast<const float4 *>(k_of + t * p.k_token + i * LANES * 4);
            to.q[i] = *reinterpret_cast<const float4 *>(q_of + t * p.q_token + i * LANES * 4);
        }
        to.v = v_of[t * p.v_token];
        to.decay = decay_of[t * p.decay_token];
        to.beta = beta_of[t * p.beta_token];
    };
    const float * from = p.states.read(sequence) + place;
    float * into = p.states.write(sequence) + place;
    float4 state[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        state[i] = *reinterpret_cast<const float4 *>(from + i * LANES * 4);
    }
    token next;
    fetch(next, 0);
    for (int t = 0; t < p.n_tokens; t++) {
        const token now = next;
        if (t + 1 < p.n_tokens) {
            fetch(next, t + 1);
        }
        float of_key = 0.0f, of_query = 0.0f, key_query = 0.0f, of_keys = 0.0f, of_queries = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            of_key = added(of_key, state[i], now.k[i]);
            of_query = added(of_query, state[i], now.q[i]);
            key_query = added(key_query, now.k[i], now.q[i]);
            of_keys = added(of_keys, now.k[i], now.k[i]);
            of_queries = added(of_queries, now.q[i], now.q[i]);
        }
#pragma unroll
        for (int o = LANES / 2; o > 0; o /= 2) {
            of_key = __fadd_rn(of_key, __shfl_xor_sync(0xffffffff, of_key, o));
            of_query = __fadd_rn(of_query, __shfl_xor_sync(0xffffffff, of_query, o));
            key_query = __fadd_rn(key_query, __shfl_xor_sync(0xffffffff, key_query, o));
        }
        float by_key = 1.0f;
        if (p.norm_eps > 0.0f) {
#pragma unroll
            for (int o = LANES / 2; o > 0; o /= 2) {
                of_keys = __fadd_rn(of_keys, __shfl_xor_sync(0xffffffff, of_keys, o));
                of_queries = __fadd_rn(of_queries, __shfl_xor_sync(0xffffffff, of_queries, o));
            }
            by_key = rsqrtf(of_keys + p.norm_eps);
            const float by_query = rsqrtf(of_queries + p.norm_eps);
            of_key = __fmul_rn(of_key, by_key);
            of_query = __fmul_rn(of_query, by_query);
            key_query = __fmul_rn(__fmul_rn(key_query, by_key), by_query);
        }
        const float decay = expf(now.decay), update = __fmul_rn(fmaf(-decay, of_key, now.v), now.beta), change = __fmul_rn(update, by_key);
        // The new state times the query, without another sum over the row.
        if (part == 0) {
            dst[int64_t(t) * p.n_heads * SIZE] = __fmul_rn(fmaf(update, key_query, __fmul_rn(decay, of_query)), p.scale);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            state[i].x = fmaf(now.k[i].x, change, __fmul_rn(state[i].x, decay));
            state[i].y = fmaf(now.k[i].y, change, __fmul_rn(state[i].y, decay));
            state[i].z = fmaf(now.k[i].z, change, __fmul_rn(state[i].z, decay));
            state[i].w = fmaf(now.k[i].w, change, __fmul_rn(state[i].w, decay));
        }
        const int back = p.n_tokens - 1 - t;
        if (back < p.states.n_snapshots) {
            float * to = into + back * p.states.snapshot;
#pragma unroll
            for (int i = 0; i < N; i++) {
                *reinterpret_cast<float4 *>(to + i * LANES * 4) = state[i];
            }
        }
    }
}

}  // namespace nextn
