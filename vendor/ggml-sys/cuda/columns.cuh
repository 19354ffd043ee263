// Columns as our products take them, and which columns want which matrix.
#pragma once

#include "dependent_launch.cuh"

#include <cstdint>
#include <cuda_fp16.h>

namespace nextn {

// Values of a block that a warp takes at a time.
constexpr int BLOCK = 256;

// Values that share a scale in a weight, or two.
constexpr int SUB = 32;

// Columns of a tile: a group.
constexpr int GROUP = 8;

// Columns as they are multiplied: for each group and each block of values the scaled values, their sums and the scales. Value i
// of four stands at { 0, 2, 1, 3 }[i]. Sums are of 32 scaled values, as two F16 that add up to one: those of sub-blocks 2t and
// 2t + 1, then what these leave out. A group of which fewer columns are there takes as much room.
template <int N> struct block_of_columns {
    static constexpr int COLUMNS = N;

    __half values[BLOCK / SUB][N][SUB];
    struct {
        __half sums[4];
        float scale, again;
    } rest[N][BLOCK / SUB / 2];
};

struct column_block : block_of_columns<GROUP> {};

// n slots (token * n_used + slot) that want the same matrix, from the first on in the order of matrices.
struct chunk {
    int matrix, n, first;
};

static __device__ __forceinline__ uint32_t magnitude(float x) {
    return __float_as_uint(x) & 0x7fffffff;
}

static __device__ __forceinline__ uint32_t bits_of(__half2 x) {
    return *reinterpret_cast<uint32_t *>(&x);
}

static __device__ __forceinline__ __half2 halves_of(uint32_t bits) {
    return *reinterpret_cast<__half2 *>(&bits);
}

// A lane's eight values of block b of column c, of a warp that has the whole block.
template <typename B> static __device__ __forceinline__ void store_values(const float (&v)[8], B * y, int n_blocks, int b, int c, int lane) {
    // As bits, of which those of a NaN are the largest.
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        most = max(most, magnitude(v[i]));
    }
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        most = max(most, __shfl_xor_sync(0xffffffff, most, o));
    }
    // A power of two, so that values keep all bits that F16 has: the largest is between 1 and 2. What is no number stays so.
    const uint32_t exponent = most >> 23;
    const bool plain = exponent == 0 || exponent == 255;
    const float scale = plain ? 1.0f : __uint_as_float(min(exponent, 252u) << 23);
    const float inverse = plain ? 1.0f : __uint_as_float((254 - min(exponent, 252u)) << 23);
    __half2 h[4];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = i / 2 * 4 + i % 2;
        h[i] = __floats2half2_rn(v[at] * inverse, v[at + 2] * inverse);
        const float2 rounded = __half22float2(h[i]);
        sum += rounded.x + rounded.y;
    }
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    B & to = y[int64_t(c / B::COLUMNS) * n_blocks + b];
    const int s = lane / 4, t = lane % 4, place = c % B::COLUMNS;
    *reinterpret_cast<uint4 *>(&to.values[s][place][8 * t]) = make_uint4(bits_of(h[0]), bits_of(h[1]), bits_of(h[2]), bits_of(h[3]));
    const float next = __shfl_down_sync(0xffffffff, sum, 4);
    if (lane % 8 == 0) {
        const __half2 high = __floats2half2_rn(sum, next);
        const float2 in = __half22float2(high);
        const __half2 low = __floats2half2_rn(sum - in.x, next - in.y);
        *reinterpret_cast<uint4 *>(&to.rest[place][s / 2]) = make_uint4(bits_of(high), bits_of(low), __float_as_uint(scale), __float_as_uint(scale));
    }
}

// Eight values from a place that begins at whole sixteen bytes.
static __device__ __forceinline__ void load_values(float (&v)[8], const float * x) {
    const float4 one = reinterpret_cast<const float4 *>(x)[0], two = reinterpret_cast<const float4 *>(x)[1];
    v[0] = one.x; v[1] = one.y; v[2] = one.z; v[3] = one.w;
    v[4] = two.x; v[5] = two.y; v[6] = two.z; v[7] = two.w;
}

// Floats that become columns: column c of token t lies at t * token + c * each floats.
struct float_columns {
    const float * x;
    int64_t each, token;
    int n_each;
    column_block * y;
};

// n_first columns of one tensor, then those of another; n_blocks blocks each; grid (n_blocks / 4, columns), a warp a block.
static __global__ void __launch_bounds__(128) quantise(const float_columns first, int n_first, const float_columns second, int n_blocks) {
    const int lane = threadIdx.x % 32, b = blockIdx.x * 4 + threadIdx.x / 32;
    const bool in_first = int(blockIdx.y) < n_first;
    const int c = in_first ? blockIdx.y : blockIdx.y - n_first, n_each = in_first ? first.n_each : second.n_each;
    const float * x = (in_first ? first.x : second.x) + c / n_each * (in_first ? first.token : second.token) + c % n_each * (in_first ? first.each : second.each);
    wait_for_previous();
    let_next_start();
    if (b >= n_blocks) {
        return;
    }
    float v[8];
    load_values(v, x + b * BLOCK + 8 * lane);
    store_values(v, in_first ? first.y : second.y, n_blocks, b, c, lane);
}

// dst = made(gate, up), rows of 256 * n_blocks values, and columns of that besides where y is not null; grid as above.
template <typename F> static __global__ void __launch_bounds__(128) gate_rows(const float * up, const float * gate, float * dst, int64_t dst_row,
                                                                              column_block * y, int n_blocks, const F made) {
    const int lane = threadIdx.x % 32, b = blockIdx.x * 4 + threadIdx.x / 32, row = blockIdx.y;
    wait_for_previous();
    let_next_start();
    if (b >= n_blocks) {
        return;
    }
    const int64_t place = (int64_t(row) * n_blocks + b) * BLOCK + 8 * lane;
    float v[8], g[8];
    load_values(v, up + place);
    load_values(g, gate + place);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = made(g[i], v[i]);
    }
    float4 * to = reinterpret_cast<float4 *>(dst + row * dst_row + b * BLOCK + 8 * lane);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
    if (y) {
        store_values(v, y, n_blocks, b, row, lane);
    }
}

// Which slots want which matrix: the slots by their matrix, and chunks of up to `most` of them; those behind the last are empty. One
// thread block; memory for 2 * n_matrices + 64 numbers. Slots of a matrix stand in any order, on which no result depends.
static __global__ void find_chunks(const int32_t * ids, int ids_stride, int n_used, int n_slots, int n_matrices, int most, int * slots, chunk * chunks, int n_chunks) {
    extern __shared__ int counts[];
    int * next = counts + n_matrices, * before_warp = next + n_matrices;
    const int me = threadIdx.x, lane = me % 32, warp = me / 32;
    const auto matrix_of = [&](int slot) { return ids[slot / n_used * ids_stride + slot % n_used]; };
    wait_for_previous();
    let_next_start();
    for (int m = me; m < n_matrices; m += blockDim.x) {
        counts[m] = 0;
    }
    __syncthreads();
    for (int i = me; i < n_slots; i += blockDim.x) {
        if (const int m = matrix_of(i); uint32_t(m) < uint32_t(n_matrices)) {
            atomicAdd(&counts[m], 1);
        }
    }
    __syncthreads();
    // The slots and the chunks of all matrices before: the former in the low half.
    uint64_t before_all = 0;
    for (int first = 0; first < n_matrices; first += blockDim.x) {
        const int m = first + me, n = m < n_matrices ? counts[m] : 0, wanted = (n + most - 1) / most;
        uint64_t sum = uint64_t(wanted) << 32 | n;
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            const uint64_t other = __shfl_up_sync(0xffffffff, sum, o);
            sum += lane >= o ? other : 0;
        }
        uint64_t * warps = reinterpret_cast<uint64_t *>(before_warp);
        if (lane == 31) {
            warps[warp] = sum;
        }
        __syncthreads();
        uint64_t before = before_all;
        for (int i = 0; i < int(blockDim.x) / 32; i++) {
            before += i < warp ? warps[i] : 0;
            before_all += warps[i];
        }
        before += sum - (uint64_t(wanted) << 32 | n);
        if (m < n_matrices) {
            next[m] = uint32_t(before);
            for (int i = 0; i < wanted; i++) {
                chunks[(before >> 32) + i] = { m, min(n - i * most, most), int(uint32_t(before)) + i * most };
            }
        }
        __syncthreads();
    }
    for (int i = me; i < n_slots; i += blockDim.x) {
        if (const int m = matrix_of(i); uint32_t(m) < uint32_t(n_matrices)) {
            slots[atomicAdd(&next[m], 1)] = i;
        }
    }
    for (int i = int(before_all >> 32) + me; i < n_chunks; i += blockDim.x) {
        chunks[i].n = 0;
    }
}

}  // namespace nextn
