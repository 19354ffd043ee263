// Kernels that write cells as rotated and rounded, read many of them as F16, and rotate rows of floats.
#pragma once

#include "cells.cuh"
#include "dependent_launch.cuh"
#include "rotation.cuh"

#include <cfloat>

namespace nextn {

// Warps of a thread block; each has a part of a row: 32 * EACH values, which are rotated together.
constexpr int CELL_WARPS = 4;

struct stored_rows {
    const float * from;
    int64_t from_row;       // floats
    char * into;
    int64_t into_row;       // bytes
    const void * ids;       // the row of `into` for each
    bool wide_ids;          // of 64 bits, else of 32
    int kind, n_parts;
    rotation how;
};

// The largest number that a group of our own types may have: its length fits an F16.
constexpr float MOST_OF_GROUP = 5000.0f;

// The sum, or the largest, of what N lanes that follow each other have.
template <int N> static __device__ __forceinline__ float sum_of(float x) {
#pragma unroll
    for (int o = 1; o < N; o *= 2) {
        x += __shfl_xor_sync(0xffffffff, x, o);
    }
    return x;
}
template <int N> static __device__ __forceinline__ float most_of(float x) {
#pragma unroll
    for (int o = 1; o < N; o *= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, o));
    }
    return x;
}

// Rounds a group, a warp's values, of BITS bits each: a block of src/kernels/turbo.rs.
template <int BITS, int EACH> static __device__ void pack_group(char * to, const float (&x)[EACH], uint8_t * codes, int lane) {
    constexpr int KIND = BITS == 3 ? CELLS_TURBO3 : CELLS_TURBO4, N = 32 * EACH;
    float length = 0.0f, kept = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        length = fmaf(x[i], x[i], length);
    }
    length = sqrtf(sum_of<32>(length));
    const float of_unit = length > 0.0f ? 1.0f / length : 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float y = x[i] * of_unit;
        int code = 0;
#pragma unroll
        for (int above = 1; above < 1 << BITS; above++) {
            code += y > 0.5f * (place_of(KIND, above - 1, N) + place_of(KIND, above, N));
        }
        const float place = place_of(KIND, code, N);
        kept = fmaf(place, place, kept);
        codes[lane * EACH + i] = uint8_t(code);
    }
    kept = sum_of<32>(kept);
    __syncwarp();
    for (int i = lane; i < N / 8 * BITS; i += 32) {
        // A byte has bits of up to four codes.
        uint32_t bits = 0;
        for (int code = 8 * i / BITS; code <= (8 * i + 7) / BITS; code++) {
            const int at = code * BITS - 8 * i;
            bits |= at >= 0 ? uint32_t(codes[code]) << at : uint32_t(codes[code]) >> -at;
        }
        to[i] = char(bits);
    }
    if (lane == 0) {
        // The places are shorter or longer than what they stand for.
        *reinterpret_cast<__half *>(to + N / 8 * BITS) = __float2half_rn(fminf(length / sqrtf(kept), 65504.0f));
    }
}

// Rounds blocks of 32 values as ggml does, of which 32 / EACH lanes have those that follow each other.
template <int EACH> static __device__ void round_blocks(char * to, const float (&x)[EACH], int kind, int lane) {
    constexpr int LANES = 32 / EACH;
    const int mine = lane % LANES;
    float most = -FLT_MAX, least = FLT_MAX;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        most = fmaxf(most, x[i]);
        least = fminf(least, x[i]);
    }
    most = most_of<LANES>(most);
    least = -most_of<LANES>(-least);
    const float furthest = most >= -least ? most : least;
    const bool has_fifth = kind == CELLS_Q5_0 || kind == CELLS_Q5_1, has_least = kind == CELLS_Q4_1 || kind == CELLS_Q5_1;
    const float steps = has_fifth ? 31.0f : 15.0f;
    const float d = kind == CELLS_Q8_0 ? fmaxf(most, -least) / 127.0f : has_least ? (most - least) / steps :
        kind == CELLS_IQ4_NL ? furthest / -127.0f : furthest / (has_fifth ? -16.0f : -8.0f);
    const float by = d ? 1.0f / d : 0.0f;
    char * block = to + lane / LANES * bytes_of(kind, 32);
    if (kind == CELLS_Q8_0) {
#pragma unroll
        for (int i = 0; i < EACH; i += 2) {
            const char2 two = make_char2(char(roundf(x[i] * by)), char(roundf(x[i + 1] * by)));
            *reinterpret_cast<char2 *>(block + 2 + mine * EACH + i) = two;
        }
        if (mine == 0) {
            *reinterpret_cast<__half *>(block) = __float2half_rn(d);
        }
        return;
    }
    uint32_t codes[EACH], fifth = 0;
    float kept = d;
    if (kind == CELLS_IQ4_NL) {
        float with = 0.0f, of_places = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int code = 0;
#pragma unroll
            for (int above = 1; above < 16; above++) {
                code += x[i] * by > 0.5f * (place_of(CELLS_IQ4_NL, above - 1, 0) + place_of(CELLS_IQ4_NL, above, 0));
            }
            codes[i] = uint32_t(code);
            const float place = place_of(kind, code, 0), weight = x[i] * x[i];
            with = fmaf(weight * place, x[i], with);
            of_places = fmaf(weight * place, place, of_places);
        }
        with = sum_of<LANES>(with);
        of_places = sum_of<LANES>(of_places);
        kept = of_places > 0.0f ? with / of_places : d;
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float at = has_least ? (x[i] - least) * by + 0.5f : x[i] * by + (has_fifth ? 16.5f : 8.5f);
            codes[i] = uint32_t(fminf(at, steps));
            fifth |= codes[i] >> 4 << (mine * EACH + i);
        }
    }
    // The first half of a block in lower nibbles, the second in upper ones.
    uint32_t bytes[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint32_t beyond = __shfl_down_sync(0xffffffff, codes[i], LANES / 2);
        bytes[i] = (codes[i] & 15) | (beyond & 15) << 4;
    }
#pragma unroll
    for (int o = 1; o < LANES; o *= 2) {
        fifth |= __shfl_xor_sync(0xffffffff, fifth, o);
    }
    const int head = (has_least ? 4 : 2) + (has_fifth ? 4 : 0);
    if (mine < LANES / 2) {
#pragma unroll
        for (int i = 0; i < EACH; i += 2) {
            *reinterpret_cast<uint16_t *>(block + head + mine * EACH + i) = uint16_t(bytes[i] | bytes[i + 1] << 8);
        }
    }
    if (mine == 0) {
        __half * halves = reinterpret_cast<__half *>(block);
        halves[0] = __float2half_rn(kept);
        if (has_least) {
            halves[1] = __float2half_rn(least);
        }
        if (has_fifth) {
            uint16_t * both = reinterpret_cast<uint16_t *>(block + head - 4);
            both[0] = uint16_t(fifth);
            both[1] = uint16_t(fifth >> 16);
        }
    }
}

// Grid: parts of a row by CELL_WARPS, rows.
template <int EACH> static __global__ void __launch_bounds__(32 * CELL_WARPS) store_rotated(const stored_rows p) {
    __shared__ uint8_t codes[CELL_WARPS][32 * EACH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = blockIdx.x * CELL_WARPS + warp, row = blockIdx.y;
    wait_for_previous();
    let_next_start();
    if (part >= p.n_parts) {
        return;
    }
    const float * from = p.from + row * p.from_row + (part * 32 + lane) * EACH;
    float x[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i += 2) {
        const float2 two = *reinterpret_cast<const float2 *>(from + i);
        x[i] = two.x;
        x[i + 1] = two.y;
    }
    if (p.how.with_signs) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            // What is no number is kept as zero.
            x[i] = x[i] != x[i] ? 0.0f : fminf(fmaxf(x[i], -MOST_OF_GROUP), MOST_OF_GROUP);
        }
    }
    rotate_by_lanes(x, p.how, lane);
    const int64_t id = p.wide_ids ? static_cast<const int64_t *>(p.ids)[row] : static_cast<const int32_t *>(p.ids)[row];
    char * to = p.into + id * p.into_row + part * bytes_of(p.kind, 32 * EACH);
    if constexpr (EACH == 2 || EACH == 4) {
        if (p.kind == CELLS_TURBO3) {
            return pack_group<3>(to, x, codes[warp], lane);
        }
        if (p.kind == CELLS_TURBO4) {
            return pack_group<4>(to, x, codes[warp], lane);
        }
    }
round_blocks(to, x, p.kind, lane);
}

// Tasks of cells.cuh that a thread block of read_cells takes.
constexpr int CELL_TASKS = 256;

// Cells as F16 [D, n_cells, n_head, n_sequences], dense. Grid: tasks of a head's cells by CELL_TASKS, heads, sequences.
template <int D> struct read_task {
    const uint8_t * row;
    __half * to;
    int task;
    const __half * places;

    template <int KIND> __device__ void operator()() const {
        uint32_t words[TASK_WORDS] = {};
        __half2 values[8];
        task_of<D, KIND>::read(words, row, task);
        task_of<D, KIND>::unpack(values, words, row, task, places);
        task_of<D, KIND>::write(to, values, task);
    }
};

template <int D> static __global__ void __launch_bounds__(CELL_TASKS) read_cells(const kept_cells cells, const int32_t * slots, __half * to, int n_cells) {
    __shared__ __half places[16];
    fill_places(places, cells.kind, D, threadIdx.x);
    wait_for_previous();
    let_next_start();
    __syncthreads();
    const int i = blockIdx.x * CELL_TASKS + threadIdx.x, cell = i / (D / 16), head = blockIdx.y, sequence = blockIdx.z;
    if (cell >= n_cells) {
        return;
    }
    const int slot = slots ? slots[sequence] : sequence;
    const char * row = cells.data + slot * cells.sequence + head * cells.head + cell * cells.cell;
    __half * place = to + ((int64_t(sequence) * gridDim.y + head) * n_cells + cell) * D;
    of_kind(cells.kind, read_task<D>{ reinterpret_cast<const uint8_t *>(row), place, i % (D / 16), places });
}

// Rotates rows of D floats [D, n_rows, n_more, n_sequences], or undoes it; strides in floats. Grid: rows by CELL_WARPS, more, sequences.
struct rotated_rows {
    const float * from;
    int64_t from_row, from_more, from_sequence;
    float * to;         // dense
    int n_rows;
    rotation how;
    bool back;
};

template <int D> static __global__ void __launch_bounds__(32 * CELL_WARPS) rotate_rows(const rotated_rows p) {
    constexpr int EACH = D / 32;
    const int lane = threadIdx.x % 32, row = blockIdx.x * CELL_WARPS + threadIdx.x / 32;
    wait_for_previous();
    let_next_start();
    if (row >= p.n_rows) {
        return;
    }
    const float * from = p.from + row * p.from_row + blockIdx.y * p.from_more + blockIdx.z * p.from_sequence + lane * EACH;
    float * to = p.to + ((int64_t(blockIdx.z) * gridDim.y + blockIdx.y) * p.n_rows + row) * D + lane * EACH;
    float x[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        x[i] = from[i];
    }
    rotate_by_lanes(x, p.how, lane, p.back);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        to[i] = x[i];
    }
}

}  // namespace nextn
