// Kernels for attention of few queries over cells of F16, or of blocks that are unpacked to F16, on GPUs with tensor cores (sm_80 and
// later).
//
// A thread block takes the queries of a key head and a chunk of cells, 64 at a time; a second kernel adds the chunks of each query in
// their order. Where a chunk begins depends on nothing: the first cells are in small chunks, so that short contexts fill a GPU, later
// ones in large chunks, so that long contexts leave few sums. So a query's bits depend on the cells that it sees alone: not on how many
// queries stand beside it, nor on how many cells behind the last that it sees are there, masked.
#pragma once

#include "cells.cuh"
#include "dependent_launch.cuh"
#include "rotation.cuh"
#include "tensor_cores.cuh"

#include <cuda_fp16.h>

namespace nextn {

// Cells of a step, warps of a thread block.
constexpr int STEP_CELLS = 64, ATTENTION_WARPS = 4;

// Chunks of one step, which come first, and the steps of later ones.
constexpr int SHORT_CHUNKS = 32, LONG_CHUNK = 4;

// The first cell of a chunk, and how many chunks so many cells are in.
__host__ __device__ constexpr int first_cell(int chunk) {
    return STEP_CELLS * (chunk + (chunk > SHORT_CHUNKS ? (chunk - SHORT_CHUNKS) * (LONG_CHUNK - 1) : 0));
}
constexpr int chunks_of(int n_cells) {
    const int n_steps = (n_cells + STEP_CELLS - 1) / STEP_CELLS;
    return n_steps <= SHORT_CHUNKS ? n_steps : SHORT_CHUNKS + (n_steps - SHORT_CHUNKS + LONG_CHUNK - 1) / LONG_CHUNK;
}
static_assert(first_cell(32) == 2048 && first_cell(34) == 2560 && chunks_of(2048) == 32 && chunks_of(2049) == 33 && chunks_of(2368) == 34, "");

// What a launch computes. A column is a query of a token: column c of a key head is head c % group of token c / group.
struct few_queries {
    const float * q;
    int64_t q_token, q_head, q_sequence;    // floats
    kept_cells k, v;
    rotation of_queries, of_sums;       // what becomes of queries first, and of sums of values last
    const int32_t * slots;      // whose cells each sequence reads; null: those of its own number
    const __half * mask;
    int64_t mask_token, mask_sequence;      // halves
    int n_tokens, n_head, n_head_kv, group, n_columns, n_cells, n_chunks;
    float scale, softcap;       // scores are softcap * tanh(scale * q * k / softcap), or scale * q * k if it is 0
    const float * sinks;        // of each head, or null
    float * sums;               // [head_size, n_columns, n_chunks, n_head_kv, n_sequences]: sums of values by weight
    float2 * totals;            // [n_columns, n_chunks, n_head_kv, n_sequences]: the largest exponent, and the sum of weights
    float * dst;                // [head_size, n_head, n_tokens, n_sequences]
};

constexpr float LOG2_E = 1.44269504f;

// Halves of a row in shared memory: 16 bytes more than its values, so that rows begin in different banks.
template <int D> constexpr int ROW = D + 8;
constexpr int WEIGHTS_ROW = STEP_CELLS + 8;

// Bytes of shared memory: keys, values, queries, weights; then what warps tell each other.
template <int D, int GROUPS> constexpr int attention_memory() {
    return (2 * STEP_CELLS + 8 * GROUPS) * ROW<D> * 2 + 8 * GROUPS * WEIGHTS_ROW * 2 + ATTENTION_WARPS * 8 * GROUPS * 4;
}

// Threads of a thread block: of packed cells as many more unpack keys, and as many values.
template <bool PACKED> constexpr int ATTENTION_THREADS = (PACKED ? 3 : 1) * 32 * ATTENTION_WARPS;

// Barriers of those who attend, and of these with those who unpack: keys are there, and were read; values likewise.
enum : int { AMONG_US = 1, KEYS_THERE, KEYS_READ, VALUES_THERE, VALUES_READ };

// Unpacks the cells of a step, which begin at `from`: the tasks of one thread, some of which are read at once.
template <int D> struct unpack_step {
    static constexpr int TASKS = D / 16, THREADS = 32 * ATTENTION_WARPS, EACH = STEP_CELLS * TASKS / THREADS, AT_ONCE = EACH < 4 ? EACH : 4;
    static constexpr int CELLS = THREADS / TASKS;   // that all threads take at once
    const char * from;
    int64_t cell;
    int thread;
    __half * to;
    const __half * places;

    template <int KIND> __device__ __forceinline__ void operator()() const {
        using task_of = nextn::task_of<D, KIND>;
        const int task = thread % TASKS;
#pragma unroll 1
        for (int first = thread / TASKS; first < STEP_CELLS; first += AT_ONCE * CELLS) {
            uint32_t words[AT_ONCE][TASK_WORDS];
            const auto row_of = [&](int i) { return reinterpret_cast<const uint8_t *>(from + (first + i * CELLS) * cell); };
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                task_of::read(words[i], row_of(i), task);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                __half2 values[8];
                task_of::unpack(values, words[i], row_of(i), task, places);
                task_of::write(to + (first + i * CELLS) * ROW<D>, values, task);
            }
        }
    }
};

// Steps that cells are called for ahead.
constexpr int STEPS_AHEAD = 2;

// Has the cells of a step come near.
static __device__ __forceinline__ void call_for(const char * from, int64_t cell, int n_bytes, int thread) {
    constexpr int LINE = 128;
    for (int at = thread % 2 * LINE; at < n_bytes; at += 2 * LINE) {
        asm volatile("prefetch.global.L2 [%0];" :: "l"(from + thread / 2 * cell + at));
    }
}
static_assert(STEP_CELLS == 16 * ATTENTION_WARPS, "two threads call for a cell");

// Unpacks keys, or values, of all steps that are seen, of n_most, for those who attend, and fills the places of their kind.
template <int D>
static __device__ __noinline__ void unpack_for_others(int kind, const char * from, int64_t cell, int n_most, int thread, __half * to, __half * places,
                                                      const int * n_seen, int are_there, int were_read) {
    constexpr int THREADS = 32 * ATTENTION_WARPS;
    const int n_bytes = bytes_of(kind, D);
    for (int step = 0; step < STEPS_AHEAD && step < n_most; step++) {
        call_for(from + step * STEP_CELLS * cell, cell, n_bytes, thread);
    }
    if (thread < 32) {
        fill_places(places, kind, D, thread);
    }
    // The places are there; it is known how many steps there are.
    __syncthreads();
    __syncthreads();
    const int n_steps = (*n_seen + STEP_CELLS - 1) / STEP_CELLS;
    for (int step = 0; step < n_steps; step++) {
        if (step + STEPS_AHEAD < n_steps) {
            call_for(from + STEPS_AHEAD * STEP_CELLS * cell, cell, n_bytes, thread);
        }
        if (step > 0) {
            meet(were_read, 2 * THREADS);
        }
        of_kind(kind, unpack_step<D>{ from, cell, thread, to, places });
        pass(are_there, 2 * THREADS);
        from += STEP_CELLS * cell;
    }
}

// Grid: parts of GROUPS * 8 columns of each key head, so that those that read the same cells stand side by side; then chunks, then
// sequences. Cells are F16, or else packed.
template <int D, int GROUPS, bool PACKED>
static __global__ void __launch_bounds__(ATTENTION_THREADS<PACKED>, PACKED && GROUPS < 4 ? 2 : 1) attend(const few_queries p) {
    constexpr int COLUMNS = 8 * GROUPS, THREADS = 32 * ATTENTION_WARPS, DIMS = D / ATTENTION_WARPS;
    static_assert(STEP_CELLS == 16 * ATTENTION_WARPS && DIMS % 16 == 0, "a warp takes 16 cells, then a part of the dimensions");
    extern __shared__ __align__(16) uint8_t memory[];
    __half * keys = reinterpret_cast<__half *>(memory), * values = keys + STEP_CELLS * ROW<D>, * queries = values + STEP_CELLS * ROW<D>;
    __half * weights = queries + COLUMNS * ROW<D>;
    float * told = reinterpret_cast<float *>(weights + COLUMNS * WEIGHTS_ROW);      // [warp][column]
    __shared__ int n_seen;
    __shared__ __half places[PACKED ? 2 : 1][16];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
    const int n_parts = (p.n_columns + COLUMNS - 1) / COLUMNS;
    const int head = blockIdx.x / n_parts, first = blockIdx.x % n_parts * COLUMNS, chunk = blockIdx.y, sequence = blockIdx.z;
    const int cell0 = first_cell(chunk), n_cells = min(first_cell(chunk + 1), p.n_cells) - cell0, n_here = min(COLUMNS, p.n_columns - first);
    const char * k = p.k.data + head * p.k.head + cell0 * p.k.cell, * v = p.v.data + head * p.v.head + cell0 * p.v.cell;
    const __half * mask = p.mask + sequence * p.mask_sequence + cell0;
    const auto token_of = [&](int c) { return min(first + c, p.n_columns - 1) / p.group; };
    const auto fetch = [&](__half * to, const char * from, int64_t each, int step) {
        if constexpr (!PACKED) {
#pragma unroll
            for (int i = 0; i < STEP_CELLS * D / 8 / THREADS; i++) {
                const int n = i * THREADS + thread, cell = n / (D / 8), at = n % (D / 8) * 8;
                copy_16(shared_address(to + cell * ROW<D> + at), from + (step * STEP_CELLS + cell) * each + at * sizeof(__half));
            }
            end_stage();
        }
    };
    // Of those who attend.
    const auto meet_us = [] {
        if constexpr (PACKED) {
            meet(AMONG_US, THREADS);
        } else {
            __syncthreads();
        }
    };

    if (thread == 0) {
        n_seen = 0;
    }
    wait_for_previous();
    let_next_start();
    const int slot = p.slots ? p.slots[sequence] : sequence;
    k += slot * p.k.sequence;
    v += slot * p.v.sequence;
    fetch(keys, k, p.k.cell, 0);
    fetch(values, v, p.v.cell, 0);
    if constexpr (PACKED) {
        if (warp >= ATTENTION_WARPS) {
            const bool is_v = warp >= 2 * ATTENTION_WARPS;
            unpack_for_others<D>(is_v ? p.v.kind : p.k.kind, is_v ? v : k, is_v ? p.v.cell : p.k.cell, n_cells / STEP_CELLS, thread % THREADS,
                is_v ? values : keys, places[is_v], &n_seen, is_v ? VALUES_THERE : KEYS_THERE, is_v ? VALUES_READ : KEYS_READ);
            return;
        }
    }
    __syncthreads();

    // Steps up to the last cell that some query sees.
    {
        const int t0 = token_of(0), t1 = token_of(n_here - 1);
        int last = 0;
        for (int token = t0; token <= t1; token++) {
            for (int i = thread; i < n_cells / 2; i += THREADS) {
                const __half2 both = reinterpret_cast<const __half2 *>(mask + token * p.mask_token)[i];
                if (!__hisinf(__low2half(both)) || !__hisinf(__high2half(both))) {
                    last = max(last, 2 * i + 2);
                }
            }
        }
#pragma unroll
        for (int o = 16; o > 0; o /= 2) {
            last = max(last, __shfl_xor_sync(0xffffffff, last, o));
        }
        if (lane == 0 && last > 0) {
            atomicMax(&n_seen, last);
        }
    }
    // Queries as F16, times the scale, and with it as exponents of two if nothing caps them.
    const float scale = p.softcap == 0.0f ? p.scale * LOG2_E : p.scale / p.softcap;
    const auto query_of = [&](int c) {
        const int column = first + c, token = column / p.group, of = head * p.group + column % p.group;
        return p.q + sequence * p.q_sequence + token * p.q_token + of * p.q_head;
    };
    if (PACKED && p.of_queries.n > 0) {
        for (int c = warp; c < COLUMNS; c += ATTENTION_WARPS) {
            // Of each lane the values that follow each other.
            float q[D / 32] = {};
            if (c < n_here) {
                const float * from = query_of(c) + lane * (D / 32);
#pragma unroll
                for (int i = 0; i < D / 32; i++) {
                    q[i] = __fmul_rn(from[i], scale);
                }
                rotate_by_lanes(q, p.of_queries, lane);
            }
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                queries[c * ROW<D> + lane * (D / 32) + i] = __float2half_rn(q[i]);
            }
        }
    } else {
        for (int i = thread; i < COLUMNS * D / 2; i += THREADS) {
            const int c = i / (D / 2), at = i % (D / 2) * 2;
            __half2 both = __floats2half2_rn(0.0f, 0.0f);
            if (c < n_here) {
                const float2 q = *reinterpret_cast<const float2 *>(query_of(c) + at);
                both = __floats2half2_rn(__fmul_rn(q.x, scale), __fmul_rn(q.y, scale));
            }
            *reinterpret_cast<__half2 *>(queries + c * ROW<D> + at) = both;
        }
    }
    __syncthreads();
    const int n_steps = (n_seen + STEP_CELLS - 1) / STEP_CELLS;

    float largest[GROUPS][2], total[GROUPS][2], sums[DIMS / 16][GROUPS][4] = {};
    int mask_of[GROUPS][2];
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            largest[j][h] = -INFINITY;
            total[j][h] = 0.0f;
            mask_of[j][h] = token_of(8 * j + 2 * t + h) * int(p.mask_token);
        }
    }
    for (int step = 0; step < n_steps; step++) {
        // Element o of four: of cell g + o / 2 * 8 of the warp, column 2 * t + o % 2 of the group.
        float scores[GROUPS][4] = {};
        __half masks[GROUPS][4];
        const int cell = step * STEP_CELLS + warp * 16 + g;
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
#pragma unroll
            for (int o = 0; o < 4; o++) {
                masks[j][o] = mask[mask_of[j][o % 2] + cell + o / 2 * 8];
            }
        }
        if constexpr (PACKED) {
            meet(KEYS_THERE, 2 * THREADS);
        } else {
            wait_stages<1>();
            __syncthreads();
        }
#pragma unroll
        for (int d = 0; d < D; d += 16) {
            uint32_t a[4];
            load_16x16(a, keys + (warp * 16 + lane % 16) * ROW<D> + d + lane / 16 * 8);
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                const __half * q = queries + (8 * j + g) * ROW<D> + d + 2 * t;
                mma(scores[j], a, *reinterpret_cast<const uint32_t *>(q), *reinterpret_cast<const uint32_t *>(q + 8));
            }
        }
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            float most[2] = { -INFINITY, -INFINITY };
#pragma unroll
            for (int o = 0; o < 4; o++) {
                float & s = scores[j][o];
                if (p.softcap != 0.0f) {
                    s = __fmul_rn(p.softcap * LOG2_E, tanhf(s));
                }
                const float m = __half2float(masks[j][o]);
                // What is masked may be no number.
                s = isinf(m) ? -INFINITY : fmaf(m, LOG2_E, s);
                most[o % 2] = fmaxf(most[o % 2], s);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
#pragma unroll
                for (int o = 4; o < 32; o *= 2) {
                    most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffff, most[h], o));
                }
                if (g == 0) {
                    told[warp * COLUMNS + 8 * j + 2 * t + h] = most[h];
                }
            }
        }
        meet_us();
        // All warps have read the keys.
        if (step + 1 < n_steps) {
            fetch(keys, k, p.k.cell, step + 1);
            if constexpr (PACKED) {
                pass(KEYS_READ, 2 * THREADS);
            }
        }
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            float again[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float most = largest[j][h];
#pragma unroll
                for (int w = 0; w < ATTENTION_WARPS; w++) {
                    most = fmaxf(most, told[w * COLUMNS + 8 * j + 2 * t + h]);
                }
                // Nothing seen yet: any number will do.
                const float from = most == -INFINITY ? 0.0f : most;
                again[h] = exp2f(largest[j][h] - from);
                float sum = 0.0f;
#pragma unroll
                for (int o = h; o < 4; o += 2) {
                    const __half weight = __float2half_rn(exp2f(scores[j][o] - from));
                    weights[(8 * j + 2 * t + h) * WEIGHTS_ROW + warp * 16 + g + o / 2 * 8] = weight;
                    sum = __fadd_rn(sum, __half2float(weight));
                }
                total[j][h] = fmaf(total[j][h], again[h], sum);
                largest[j][h] = most;
            }
#pragma unroll
            for (int i = 0; i < DIMS / 16; i++) {
#pragma unroll
                for (int o = 0; o < 4; o++) {
                    sums[i][j][o] = __fmul_rn(sums[i][j][o], again[o % 2]);
                }
            }
        }
        if constexpr (PACKED) {
            meet(VALUES_THERE, 2 * THREADS);
        } else {
            if (step + 1 < n_steps) {
                wait_stages<1>();
            } else {
                wait_stages<0>();
            }
            __syncthreads();
        }
#pragma unroll
        for (int c = 0; c < STEP_CELLS; c += 16) {
            uint32_t b[GROUPS][2];
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                const __half * from = weights + (8 * j + g) * WEIGHTS_ROW + c + 2 * t;
                b[j][0] = *reinterpret_cast<const uint32_t *>(from);
                b[j][1] = *reinterpret_cast<const uint32_t *>(from + 8);
            }
#pragma unroll
            for (int i = 0; i < DIMS / 16; i++) {
                uint32_t a[4];
                load_16x16_turned(a, values + (c + lane % 8 + lane / 16 * 8) * ROW<D> + warp * DIMS + 16 * i + lane / 8 % 2 * 8);
#pragma unroll
                for (int j = 0; j < GROUPS; j++) {
                    mma(sums[i][j], a, b[j][0], b[j][1]);
                }
            }
        }
        if (step + 1 < n_steps) {
            if constexpr (PACKED) {
                pass(VALUES_READ, 2 * THREADS);
            } else {
                __syncthreads();
                fetch(values, v, p.v.cell, step + 1);
            }
        }
    }
    wait_stages<0>();

    // Totals of all cells: of the warp's, then of the warps in their order.
    meet_us();
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int o = 4; o < 32; o *= 2) {
                total[j][h] = __fadd_rn(total[j][h], __shfl_xor_sync(0xffffffff, total[j][h], o));
            }
            if (g == 0) {
                told[warp * COLUMNS + 8 * j + 2 * t + h] = total[j][h];
            }
        }
    }
    meet_us();
    const int64_t place = (int64_t(sequence * p.n_head_kv + head) * p.n_chunks + chunk) * p.n_columns + first;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int c = 8 * j + 2 * t + h;
            if (c >= n_here) {
                continue;
            }
            if (warp == 0 && g == 0) {
                float sum = 0.0f;
#pragma unroll
                for (int w = 0; w < ATTENTION_WARPS; w++) {
                    sum = __fadd_rn(sum, told[w * COLUMNS + c]);
                }
                p.totals[place + c] = make_float2(largest[j][h], sum);
            }
            if (n_steps > 0) {
#pragma unroll
                for (int i = 0; i < DIMS / 16; i++) {
                    float * to = p.sums + (place + c) * D + warp * DIMS + 16 * i + g;
                    to[0] = sums[i][j][h];
                    to[8] = sums[i][j][2 + h];
                }
            }
        }
    }
}

// Adds the chunks of a column. Grid: columns, then key heads, then sequences; a thread for each dimension.
template <int D> static __global__ void __launch_bounds__(D) add_chunks(const few_queries p) {
    const int column = blockIdx.x, head = blockIdx.y, sequence = blockIdx.z, d = threadIdx.x;
    const int token = column / p.group, of = head * p.group + column % p.group;
    const int64_t place = int64_t(sequence * p.n_head_kv + head) * p.n_chunks * p.n_columns + column;
    wait_for_previous();
    let_next_start();
    const float2 * totals = p.totals + place;
    float most = -INFINITY;
    for (int i = d % 32; i < p.n_chunks; i += 32) {
        most = fmaxf(most, totals[int64_t(i) * p.n_columns].x);
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, o));
    }
    const float sink = p.sinks ? p.sinks[of] * LOG2_E : -INFINITY;
    most = fmaxf(most, sink);
    const float from = most == -INFINITY ? 0.0f : most;
    float total = exp2f(sink - from), sum = 0.0f;
    const float * sums = p.sums + place * D + d;
#pragma unroll 8
    for (int i = 0; i < p.n_chunks; i++) {
        const float2 of_chunk = totals[int64_t(i) * p.n_columns];
        // Of a chunk of which nothing is seen there may be no sums. A total that is no number is seen.
        const bool is_seen = of_chunk.y != 0.0f;
        const float value = is_seen ? sums[int64_t(i) * p.n_columns * D] : 0.0f;
        const float weight = is_seen ? exp2f(of_chunk.x - from) : 0.0f;
        total = fmaf(of_chunk.y, weight, total);
        sum = fmaf(value, weight, sum);
    }
    float result = total == 0.0f ? 0.0f : __fdiv_rn(sum, total);
    if (p.of_sums.n > 0) {
        __shared__ float beside[D];
        result = rotate_by_threads(result, p.of_sums, beside);
    }
    p.dst[((int64_t(sequence) * p.n_tokens + token) * p.n_head + of) * D + d] = result;
}

// Calls run<GROUPS>() with the kernel for so many columns: thread blocks take few as long as they all run at once, since a block takes
// the longer the more it has, and else so many that cells are read seldom.
template <typename F> void chosen_groups(const few_queries & p, int n_sequences, int n_at_once, const F & run) {
    const auto are_at_once = [&](int groups) {
        return int64_t((p.n_columns + 8 * groups - 1) / (8 * groups)) * p.n_head_kv * p.n_chunks * n_sequences <= n_at_once;
    };
    if (p.n_columns <= 8 || are_at_once(1)) {
        return run.template operator()<1>();
    }
    if (p.n_columns <= 16 || are_at_once(2)) {
        return run.template operator()<2>();
    }
    return run.template operator()<4>();
}

}  // namespace nextn
