// Kernels for products of quantised weights with one to eight columns, on GPUs with tensor cores (sm_80 and later).
//
// A warp takes 16 rows of the weight, or fewer warps' worth of a block of 256 values at a time: rows are copied to shared memory
// some blocks ahead, quants are multiplied as bytes on tensor cores, 16 rows with 8 columns at once, and each sum of 32 (or 16)
// products is scaled in F32. So a pass of eight columns costs about what one of one column does, and a column's bits do not
// depend on what stands beside it: the order of sums depends on the weight's shape alone.
#pragma once

#include <cstdint>
#include <cuda_fp16.h>

namespace nextn {

// Values of a block that a warp takes at a time.
constexpr int BLOCK = 256;

// Values of a column that share a scale.
constexpr int SUB = 32;

// Weight rows of a tile.
constexpr int TILE = 16;

// Columns of a tile.
constexpr int MAX_COLUMNS = 8;

// Columns as bytes, in groups of eight: of sub-block s of column c of a group 32 quants at (s * 8 + c) * 32, and the scale and the
// scale times the sum of the quants at s * 8 + c. A group of which fewer columns are there takes as much room.
struct quantised {
    const int8_t * quants;
    const float2 * scales;
};

// What a launch computes. Without ids: w times the first n_tokens columns. With ids: for each slot u of token t the matrix
// number ids[t * ids_stride + u] of w times column t * n_each + u % n_each.
struct products {
    const uint8_t * w;
    const uint8_t * gate;       // of the same shape, or null
    int64_t row_bytes, matrix_bytes;
    int n_blocks, n_rows;
    quantised y;
    int n_tokens;
    const int32_t * ids;        // or null
    int ids_stride, n_used, n_each;
    float * dst;
    int64_t dst_slot, dst_token;    // floats from slot to slot, from token to token (column to column)
    const float * bias, * gate_bias;    // added to each result, laid out as dst, or null; without ids only
    int glu;                    // how a gate acts
    float glu_limit;
    // A matrix beside those of ids, times column t of each token t; or null.
    const uint8_t * shared_w, * shared_gate;
    float * shared_dst;
    int64_t shared_token;
};

static __device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

static __device__ __forceinline__ uint32_t magnitude(float x) {
    return __float_as_uint(x) & 0x7fffffff;
}

// x: column c of token t at t * token + c * each floats, k values each; grid (k / 1024, columns).
static __global__ void quantise(const float * x, int64_t each, int64_t token, int n_each, int8_t * quants, float2 * scales, int k) {
    const int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    const int c = blockIdx.y;
    wait_for_previous();
    let_next_start();
    if (i >= k) {
        return;
    }
    const float4 v = *reinterpret_cast<const float4 *>(x + c / n_each * token + c % n_each * each + i);
    // As bits, of which those of a NaN are the largest: it stays in the scale, and in all products with it.
    uint32_t bits = max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
#pragma unroll
    for (int o = 1; o < SUB / 4; o *= 2) {
        bits = max(bits, __shfl_xor_sync(0xffffffff, bits, o));
    }
    const float most = __uint_as_float(bits);
    const float d = most / 127.0f;
    const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
    const int q[4] = { __float2int_rn(v.x * inverse), __float2int_rn(v.y * inverse), __float2int_rn(v.z * inverse), __float2int_rn(v.w * inverse) };
    int sum = q[0] + q[1] + q[2] + q[3];
#pragma unroll
    for (int o = 1; o < SUB / 4; o *= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, o);
    }
    const int64_t place = (int64_t(c / MAX_COLUMNS) * (k / SUB) + i / SUB) * MAX_COLUMNS + c % MAX_COLUMNS;
    *reinterpret_cast<char4 *>(quants + place * SUB + i % SUB) = make_char4(q[0], q[1], q[2], q[3]);
    if (i % SUB == 0) {
        scales[place] = make_float2(d, d * float(sum));
    }
}

// The bits of 1.5 * 2^23: an integer of up to 22 bits added to them makes the float that is that much larger.
constexpr int MAGIC = 0x4b400000;

static __device__ __forceinline__ float of_magic(int bits) {
    return __int_as_float(bits) - 12582912.0f;
}

static __device__ __forceinline__ void mma_32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

static __device__ __forceinline__ void mma_16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b));
#endif
}

static __device__ __forceinline__ void copy_16(uint32_t to, const void * from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
#endif
}

static __device__ __forceinline__ void end_stage() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N> static __device__ __forceinline__ void wait_stages() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
#endif
}

template <typename T> static __device__ __forceinline__ T at(const void * p) {
    return *reinterpret_cast<const T *>(p);
}

static __device__ __forceinline__ float byte_of(uint32_t word, int i) {
    return float((word >> (8 * i)) & 0xff);
}

static __device__ __forceinline__ float2 two_halves(uint32_t bits) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&bits));
}

// A lane's part of a block of the columns: lanes 4g + t have quants of column g, of which the sub-blocks' lanes have eight each
// (8t to 8t + 7; HALVES: 4t to 4t + 3 of the first 16 and of the others), and scales and sums of columns 2t and 2t + 1.
template <bool HALVES> struct lane_columns {
    uint2 q[BLOCK / SUB];
    float4 scale[BLOCK / SUB];

    // From where the block's first sub-block begins for this lane; of a single column all lanes have the one scale.
    __device__ __forceinline__ void load(const int8_t * quants, const float2 * scales, bool single, int t) {
#pragma unroll
        for (int s = 0; s < BLOCK / SUB; s++) {
            const int8_t * from = quants + s * MAX_COLUMNS * SUB;
            q[s] = HALVES ? make_uint2(at<uint32_t>(from + 4 * t), at<uint32_t>(from + 16 + 4 * t)) : at<uint2>(from + 8 * t);
            if (single) {
                const float2 one = scales[s * MAX_COLUMNS];
                scale[s] = make_float4(one.x, one.y, one.x, one.y);
            } else {
                scale[s] = at<float4>(scales + s * MAX_COLUMNS);
            }
        }
    }
};

// How a type's blocks lie, and one block of rows g and g + 8 (in shared memory) times the columns, added to acc: results of row
// g and columns 2t and 2t + 1, then of row g + 8.

// Q4_K, and Q5_K with its fifth bits: value = d * scale * quant - dmin * min, eight of these for 32 values each.
template <bool FIVE> struct k_quants {
    static constexpr int BYTES = FIVE ? 176 : 144;
    static constexpr int WINDOW = BYTES;
    static constexpr int QUANTS = BYTES - 128;
    static constexpr bool HALVES = false;

    static __device__ __forceinline__ void step(const uint8_t * const (&rows)[2], const lane_columns<HALVES> & y, int t, float (&acc)[4]) {
        uint4 head[2];
        uint2 fifth[2] = {};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            head[r] = at<uint4>(rows[r]);
            if (FIVE) {
                fifth[r] = at<uint2>(rows[r] + 16 + 8 * t);
            }
        }
        float a[4] = {}, u[4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t scales[2], mins[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint4 h = head[r];
                scales[r] = half == 0 ? h.y & 0x3f3f3f3f : (h.w & 0x0f0f0f0f) | ((h.y >> 2) & 0x30303030);
                mins[r] = half == 0 ? h.z & 0x3f3f3f3f : ((h.w >> 4) & 0x0f0f0f0f) | ((h.z >> 2) & 0x30303030);
            }
#pragma unroll
            for (int s = 0; s < 4; s++) {
                const int shift = 4 * (s % 2);
                uint32_t v[4];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint2 x = at<uint2>(rows[r] + QUANTS + (half * 2 + s / 2) * 32 + 8 * t);
                    v[r] = (x.x >> shift) & 0x0f0f0f0f;
                    v[r + 2] = (x.y >> shift) & 0x0f0f0f0f;
                    if (FIVE) {
                        v[r] |= ((fifth[r].x >> (half * 4 + s)) & 0x01010101) << 4;
                        v[r + 2] |= ((fifth[r].y >> (half * 4 + s)) & 0x01010101) << 4;
                    }
                }
                int c[4] = { MAGIC, MAGIC, MAGIC, MAGIC };
                const uint2 b = y.q[half * 4 + s];
                const float4 ds = y.scale[half * 4 + s];
                mma_32(c, v, b.x, b.y);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float scale = byte_of(scales[r], s), least = byte_of(mins[r], s);
                    a[2 * r] += of_magic(c[2 * r]) * (scale * ds.x);
                    a[2 * r + 1] += of_magic(c[2 * r + 1]) * (scale * ds.z);
                    u[2 * r] += least * ds.y;
                    u[2 * r + 1] += least * ds.w;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 d = two_halves(head[i / 2].x);
            acc[i] += d.x * a[i] - d.y * u[i];
        }
    }
};

// Q8_0: eight times a half d and 32 bytes; value = d * byte.
struct bytes_with_scales {
    static constexpr int BYTES = 272;
    static constexpr int WINDOW = BYTES;
    static constexpr bool HALVES = false;

    static __device__ __forceinline__ void step(const uint8_t * const (&rows)[2], const lane_columns<HALVES> & y, int t, float (&acc)[4]) {
#pragma unroll
        for (int s = 0; s < 8; s++) {
            const uint2 b = y.q[s];
            const float4 ds = y.scale[s];
            uint32_t v[4];
            float d[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint8_t * from = rows[r] + 34 * s;
                d[r] = __half2float(at<__half>(from));
                from += 2 + 8 * t;
                if (s % 2 == 1) {
                    v[r] = at<uint32_t>(from);
                    v[r + 2] = at<uint32_t>(from + 4);
                } else {
                    const uint32_t x = at<uint32_t>(from - 2), z = at<uint32_t>(from + 2);
                    v[r] = __funnelshift_r(x, z, 16);
                    v[r + 2] = __funnelshift_r(z, at<uint16_t>(from + 6), 16);
                }
            }
            int c[4] = { MAGIC, MAGIC, MAGIC, MAGIC };
            mma_32(c, v, b.x, b.y);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                acc[2 * r] += of_magic(c[2 * r]) * (d[r] * ds.x);
                acc[2 * r + 1] += of_magic(c[2 * r + 1]) * (d[r] * ds.z);
            }
        }
    }
};

// Q6_K: four bits of each value, then two bits, then sixteen signed scales, then d; value = d * scale * (quant - 32). A block
// has 210 bytes, so the windows that are copied begin at the 16 bytes in which it begins.
struct q6_k {
    static constexpr int BYTES = 210;
    static constexpr int WINDOW = 240;
    static constexpr bool HALVES = true;

    static __device__ __forceinline__ uint32_t word(const uint8_t * p, int i) {
        // p lies on an even address.
        const uint8_t * even = reinterpret_cast<const uint8_t *>(reinterpret_cast<uintptr_t>(p) & ~uintptr_t(3));
        const int shift = (reinterpret_cast<uintptr_t>(p) & 2) * 8;
        return __funnelshift_r(at<uint32_t>(even + i), at<uint32_t>(even + i + 4), shift);
    }

    static __device__ __forceinline__ void step(const uint8_t * const (&rows)[2], const lane_columns<HALVES> & y, int t, float (&acc)[4]) {
        float a[4] = {};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint32_t low[2][4], high[2][2], scales[2][2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    low[r][i] = word(rows[r], 64 * n + 16 * i + 4 * t);
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    high[r][i] = word(rows[r], 128 + 32 * n + 16 * i + 4 * t);
                    scales[r][i] = word(rows[r], 192 + 8 * n + 4 * i);
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int s = 4 * n + j;
                const float4 ds = y.scale[s];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint32_t v[2];
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const uint32_t four = (low[r][2 * (j % 2) + h] >> (4 * (j / 2))) & 0x0f0f0f0f;
                        const uint32_t two = ((high[r][h] >> (2 * j)) & 0x03030303) << 4;
                        // Less 32 in each byte, without borrowing from its neighbour.
                        v[r] = ((four | two | 0x80808080) - 0x20202020) ^ 0x80808080;
                    }
                    int c[4] = { MAGIC, MAGIC, MAGIC, MAGIC };
                    mma_16(c, v[0], v[1], h == 0 ? y.q[s].x : y.q[s].y);
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const float scale = float(int8_t(scales[r][j / 2] >> (8 * (2 * (j % 2) + h))));
                        a[2 * r] += of_magic(c[2 * r]) * (scale * ds.x);
                        a[2 * r + 1] += of_magic(c[2 * r + 1]) * (scale * ds.z);
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            acc[i] += __half2float(at<__half>(rows[i / 2] + 208)) * a[i];
        }
    }
};

// Grid: tiles of rows, then matrices; block: lanes, then WARPS warps that share the blocks of a row, with STAGES stages of
// shared memory each. finish(p, value, gate, at, in_gate) makes the result.
template <typename T, int WARPS, int STAGES, typename F>
static __global__ void __launch_bounds__(32 * WARPS) few_columns(const products p, const F finish) {
    constexpr int CHUNKS = T::WINDOW / 16, ALL = TILE * CHUNKS, EACH = (ALL + 31) / 32, STAGE = TILE * T::WINDOW;
    extern __shared__ __align__(16) uint8_t memory[];
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int g = lane / 4, t = lane % 4;
    const int row0 = blockIdx.x * TILE;
    const bool is_shared = p.shared_w && blockIdx.y + 1 == gridDim.y;
    const bool is_routed = p.ids && !is_shared;

    const uint8_t * w = is_shared ? p.shared_w : p.w, * gate = is_shared ? p.shared_gate : p.gate;
    int first = 0, n = p.n_tokens;
    float * dst = is_shared ? p.shared_dst : p.dst;
    const int64_t dst_column = is_shared ? p.shared_token : p.dst_token;
    if (is_routed) {
        // Who goes where was computed just before.
        wait_for_previous();
        const int token = blockIdx.y / p.n_used, slot = blockIdx.y % p.n_used;
        const int64_t matrix = p.ids[token * p.ids_stride + slot] * p.matrix_bytes;
        w += matrix;
        gate = gate ? gate + matrix : nullptr;
        first = token * p.n_each + slot % p.n_each;
        n = 1;
        dst += slot * p.dst_slot + token * p.dst_token;
    }

    uint8_t * mine = memory + warp * STAGES * STAGE;
    const uint32_t to = uint32_t(__cvta_generic_to_shared(mine));
    // The warp's blocks: those of w, then those of the gate.
    const int n_mine = p.n_blocks > warp ? (p.n_blocks - warp + WARPS - 1) / WARPS : 0;
    const int n_all = gate ? 2 * n_mine : n_mine;
    // What each lane copies of a stage: of which row, from its beginning, and which 16 bytes.
    uint32_t row_at[EACH];
    int chunk_at[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int chunk = e * 32 + lane;
        row_at[e] = uint32_t(min(chunk / CHUNKS, p.n_rows - 1 - row0)) * uint32_t(p.row_bytes);
        chunk_at[e] = chunk % CHUNKS * 16;
    }
    w += row0 * p.row_bytes + warp * T::BYTES;
    gate += gate ? row0 * p.row_bytes + warp * T::BYTES : 0;
    const auto fetch = [&](int i, int stage) {
        if (i < n_all) {
            const bool in_gate = i >= n_mine;
            const uintptr_t from = reinterpret_cast<uintptr_t>(in_gate ? gate : w) + (in_gate ? i - n_mine : i) * (WARPS * T::BYTES);
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                if (ALL % 32 == 0 || e * 32 + lane < ALL) {
                    const uintptr_t begin = from + row_at[e];
                    const uintptr_t place = (T::BYTES % 16 == 0 ? begin : begin & ~uintptr_t(15)) + chunk_at[e];
                    // The last bytes of a window may lie behind the block, and that of the last row behind the weight.
                    if (T::BYTES % 16 == 0 || place < begin + T::BYTES) {
                        copy_16(to + stage * STAGE + (e * 32 + lane) * 16, reinterpret_cast<const void *>(place));
                    }
                }
            }
        }
        end_stage();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        fetch(i, i);
    }
    if (!is_routed) {
        // Weights never change, so their first blocks came before what is computed just before this.
        wait_for_previous();
    }
    let_next_start();

    constexpr int EACH_BLOCK = BLOCK / SUB * MAX_COLUMNS;
    const bool single = n == 1;
    const int64_t group = (int64_t(first / MAX_COLUMNS) * p.n_blocks + warp) * EACH_BLOCK + first % MAX_COLUMNS;
    const int8_t * quants = p.y.quants + (group + min(g, n - 1)) * SUB;
    const float2 * scales = p.y.scales + group + (single ? 0 : 2 * min(t, (n - 1) / 2));
    const uint32_t my_rows[2] = { min(g, p.n_rows - 1 - row0) * uint32_t(p.row_bytes), min(g + 8, p.n_rows - 1 - row0) * uint32_t(p.row_bytes) };
    float acc[4] = {}, of_up[4] = {};
    int stage = 0;
    for (int i = 0; i < n_all; i++) {
        const bool in_gate = i >= n_mine;
        const int nth = in_gate ? i - n_mine : i;
        lane_columns<T::HALVES> y;
        y.load(quants + nth * (WARPS * EACH_BLOCK * SUB), scales + nth * (WARPS * EACH_BLOCK), single, t);
        wait_stages<STAGES - 2>();
        __syncwarp();
        fetch(i + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
        if (i == n_mine) {
#pragma unroll
            for (int o = 0; o < 4; o++) {
                of_up[o] = acc[o];
                acc[o] = 0.0f;
            }
        }
        const uint8_t * rows[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            rows[r] = mine + stage * STAGE + (8 * r + g) * T::WINDOW;
            if (T::BYTES % 16 != 0) {
                rows[r] += (reinterpret_cast<uintptr_t>(in_gate ? gate : w) + nth * (WARPS * T::BYTES) + my_rows[r]) & 15;
            }
        }
        T::step(rows, y, t, acc);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    wait_stages<0>();
    __syncthreads();

    // Warp after warp, so that the order is always the same.
    constexpr int WIDTH = TILE + 4;
    float * part = reinterpret_cast<float *>(memory);
#pragma unroll
    for (int o = 0; o < 4; o++) {
        const int place = (warp * MAX_COLUMNS + 2 * t + o % 2) * WIDTH + g + o / 2 * 8;
        if (gate) {
            part[place] = of_up[o];
            part[WARPS * MAX_COLUMNS * WIDTH + place] = acc[o];
        } else {
            part[place] = acc[o];
        }
    }
    __syncthreads();
    for (int i = warp * 32 + lane; i < TILE * n; i += 32 * WARPS) {
        const int row = i % TILE, c = i / TILE;
        float value = 0.0f, in_gate = 0.0f;
#pragma unroll
        for (int o = 0; o < WARPS; o++) {
            value += part[(o * MAX_COLUMNS + c) * WIDTH + row];
            if (gate) {
                in_gate += part[WARPS * MAX_COLUMNS * WIDTH + (o * MAX_COLUMNS + c) * WIDTH + row];
            }
        }
        if (row0 + row < p.n_rows) {
            const int64_t place = c * dst_column + row0 + row;
            dst[place] = finish(p, value, gate != nullptr, in_gate, place);
        }
    }
}

}  // namespace nextn
