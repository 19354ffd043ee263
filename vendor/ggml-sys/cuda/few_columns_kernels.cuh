// Kernels for products of quantised weights with few columns, on GPUs with tensor cores (sm_80 and later).
//
// A warp takes 16 rows of the weight and a block of 256 values at a time: rows are copied to shared memory some blocks ahead, and
// become F16 fragments once for all columns, which tensor cores multiply eight at a time. Columns are F16 too, with a scale for
// each block of 256 values. A column's bits do not depend on how many stand beside it, nor on its place: the order of sums
// depends on the weight's shape alone.
#pragma once

#include "columns.cuh"
#include "tensor_cores.cuh"
#include "weights.cuh"

#include <algorithm>

namespace nextn {

// Weight rows of a tile.
constexpr int TILE = 16;

// Columns of a launch, and groups of columns of a chunk.
constexpr int MAX_COLUMNS = 48, MAX_OF_CHUNK = 3;

// Warps of a thread block.
constexpr int WARPS = 4;

// What becomes of a result of one of several matrices.
enum finishing { AS_IT_IS, WITH_BIAS, AS_DECAY, AS_SIGMOID };

// Types of weights, where a launch has several.
enum weight_type { IS_Q4_K, IS_Q5_K, IS_Q6_K, IS_Q8_0, IS_F32 };

// One of several matrices with as many values a row, times the same columns.
struct one_of_several {
    const uint8_t * w;
    int64_t row_bytes;
    int type;
    int n_rows, first;          // its first thread block
    float * dst;
    int64_t dst_token;
    int finishing;
    const float * add, * times; // for each row: WITH_BIAS value + add, AS_DECAY softplus(value + add) * times
};

constexpr int MAX_SEVERAL = 4;

// What a launch computes. Without ids: w times the first n_tokens columns. With ids: for each slot u of token t the matrix
// number ids[t * ids_stride + u] of w times column t * n_each + u % n_each; with chunks these name the matrices and the slots.
struct products {
    const uint8_t * w;
    const uint8_t * gate;       // of the same shape, or null
    int rounds;                 // tiles that a warp takes one after the other
    bool denser;                // a multiprocessor takes more thread blocks, of fewer stages
    int64_t row_bytes, matrix_bytes;
    int n_blocks, n_rows;
    const column_block * y;
    int n_tokens;
    const int32_t * ids;        // or null
    int ids_stride, n_used, n_each;
    const chunk * chunks;       // or null; n_routed of them, of n_groups groups each, of which the last may be empty
    const int * slots;
    int n_groups;
    int n_routed;               // grid rows before those of the shared matrix
    float * dst;
    int64_t dst_slot, dst_token;    // floats from slot to slot, from token to token (column to column)
    // Added to each result: laid out as dst without ids, a column for each matrix with them; or null.
    const float * bias, * gate_bias;
    int glu;                    // how a gate acts
    float glu_limit;
    // A matrix beside those of ids, or alone without ids, times column t of each token t, in groups; or null.
    const uint8_t * shared_w, * shared_gate;
    float * shared_dst;
    int64_t shared_token;
    const column_block * shared_y;      // what it multiplies; null: y
    // Thread blocks that make their column by themselves, each for one slot or one token of the shared matrix: of what.
    bool makes_columns;
    float_columns x, shared_x;
    bool ids_are_there;         // the kernel before has waited for the one that makes them
    // Instead of w, dst and n_rows: several matrices; without ids, gate, bias and a shared matrix.
    int n_several;
    one_of_several several[MAX_SEVERAL];
};

// The matrix of several that a thread block has rows of.
template <typename P> static __device__ __forceinline__ const one_of_several & one_of(const P & p, int block) {
    int which = p.n_several > 0 ? p.n_several - 1 : 0;
    for (; which > 0 && block < p.several[which].first; which--) {
    }
    return p.several[which];
}

// Whether thread blocks with so many groups of columns take several rounds of rows: their sums then have memory of their own.
__host__ __device__ constexpr bool has_rounds(int groups) {
    return groups == 1;
}

// Bytes of shared memory that a thread block needs for stages of rows.
template <typename T, int STAGES, int TILES> constexpr int memory_of_stages = WARPS * STAGES * TILES * TILE * T::WINDOW;

// Bytes that it needs: stages, then the warps' sums, which lie in their place where there is a round alone.
template <typename T, int LANES, int STAGES, int TILES, int GROUPS> __host__ __device__ constexpr int memory_of() {
    const int stages = memory_of_stages<T, STAGES, TILES>;
    const int sums = TILES * WARPS * GROUPS * GROUP * (TILE + 4) * int(sizeof(float));
    return LANES == 1 ? stages : has_rounds(GROUPS) ? stages + sums : stages > sums ? stages : sums;
}

// Grid: tiles of rows, then matrices; block: lanes, then warps: LANES warps share the blocks of a row, with STAGES stages of
// shared memory each. A warp takes a tile, and that of the gate with it (TILES = 2), so that columns are read once for both; then, with
// one group of columns, as many more as there are rounds, whose rows it fetches while it computes those before.
// finish(p, value, gate, in_gate, place, place of the bias) makes the result, that of several matrices finish(one of them, value, row).
// Up to GROUPS groups of columns. OWN: the thread block makes its column.
template <typename T, int LANES, int STAGES, int TILES, int GROUPS, bool OWN, typename F>
static __device__ __forceinline__ void compute_columns(const products & p, const F & finish) {
    constexpr int CHUNKS = T::CHUNKS, ALL = TILE * CHUNKS, EACH = (ALL + 31) / 32, STAGE = TILE * T::WINDOW;
    constexpr bool IN_CHUNKS = T::BYTES % 16 == 0;
    static_assert(LANES == 1 || LANES == WARPS, "a thread block takes the same rows, or each of its warps some");
    static_assert(GROUPS == 1 || !OWN, "a thread block makes one column");
    using columns = block_of_columns<OWN ? 1 : GROUP>;
    extern __shared__ __align__(16) uint8_t memory[];
    const int lane = threadIdx.x, warp = threadIdx.y, part = warp % LANES;
    const int g = lane / 4, t = lane % 4;
    const bool is_shared = p.shared_w && int(blockIdx.y) >= p.n_routed;
    const bool is_routed = p.ids && !is_shared;
    const uint8_t * w = is_shared ? p.shared_w : p.w, * gate = is_shared ? p.shared_gate : p.gate;
    const column_block * y_of = is_shared && p.shared_y ? p.shared_y : p.y;
    constexpr int BEHIND = memory_of<T, LANES, STAGES, TILES, GROUPS>();
    columns * own = reinterpret_cast<columns *>(memory + BEHIND);
    int block = blockIdx.x, n_rows = p.n_rows;
    int64_t row_bytes = p.row_bytes;
    if (p.n_several > 0) {
        const one_of_several & mine = one_of(p, block);
        block -= mine.first;
        n_rows = mine.n_rows;
        row_bytes = mine.row_bytes;
        w = mine.w;
    }
    // Rows of a round. Whole ones, where there are several.
    constexpr int ROUND = WARPS / LANES * TILE;
    constexpr bool ROUNDS = has_rounds(GROUPS);
    const int max_rounds = ROUNDS ? p.rounds : 1;
    const int row0 = block * max_rounds * ROUND + warp / LANES * TILE;
    const int n_rounds = ROUNDS ? min(max_rounds, (n_rows - row0 + ROUND - 1) / ROUND) : 1;
    const bool is_idle = LANES == 1 && row0 >= n_rows;
    if (is_idle && !OWN) {
        return;
    }

    // The columns: n from the first on, or those of slots.
    int first = 0, n = p.n_tokens, matrix = 0;
    float * dst = is_shared ? p.shared_dst : p.dst;
    const int64_t dst_column = is_shared ? p.shared_token : p.dst_token;
    const int * slots = nullptr;
    if (is_shared) {
        constexpr int MOST = GROUPS * columns::COLUMNS;
        first = (blockIdx.y - p.n_routed) * MOST;
        n = min(n - first, MOST);
        dst += first * dst_column;
    }
    if (is_routed) {
        // Who goes where was computed just before.
        if (!OWN || !p.ids_are_there) {
            wait_for_previous();
        }
        if (p.chunks) {
            const chunk & mine = p.chunks[blockIdx.y];
            n = mine.n;
            if (n == 0) {
                return;
            }
            matrix = mine.matrix;
            slots = p.slots + mine.first;
        } else {
            const int token = blockIdx.y / p.n_used, slot = blockIdx.y % p.n_used;
            matrix = p.ids[token * p.ids_stride + slot];
            first = token * p.n_each + slot % p.n_each;
            n = 1;
            dst += slot * p.dst_slot + token * p.dst_token;
        }
        w += matrix * p.matrix_bytes;
        gate = gate ? gate + matrix * p.matrix_bytes : nullptr;
    }

    uint8_t * mine = memory + warp * STAGES * TILES * STAGE;
    const uint32_t to = uint32_t(__cvta_generic_to_shared(mine));
    const int n_mine = p.n_blocks > part && !is_idle ? (p.n_blocks - part + LANES - 1) / LANES : 0;
    // Rows behind the last are the last one again.
    const auto row_of = [&](int i) { return uint32_t(min(i, n_rows - 1 - row0)) * uint32_t(row_bytes); };
    w += row0 * row_bytes + part * T::BYTES;
    gate += gate ? row0 * row_bytes + part * T::BYTES : 0;
    // What the tile's first block lies behind, in whole 16 bytes, and by how much.
    const uint32_t behind[2] = { IN_CHUNKS ? 0 : uint32_t(reinterpret_cast<uintptr_t>(w) & 15), IN_CHUNKS ? 0 : uint32_t(reinterpret_cast<uintptr_t>(gate) & 15) };
    // What each lane copies of a stage: of which row, and which 16 bytes.
    uint32_t row_at[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int chunk = e * 32 + lane;
        row_at[e] = row_of(chunk / CHUNKS) + (IN_CHUNKS ? chunk % CHUNKS * 16 : 0);
    }
    // The warp's blocks, round after round: where the next to fetch lies, how many of its round are left, how many in all.
    [[maybe_unused]] uint32_t at_fetched = 0;
    [[maybe_unused]] int n_of_round = n_mine, n_left = n_mine * n_rounds;
    const auto fetch = [&](int i, int stage) {
        if (ROUNDS ? n_left > 0 : i < n_mine) {
#pragma unroll
            for (int r = 0; r < TILES; r++) {
                const uint8_t * from = (r == 1 ? gate : w) - behind[r];
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    const int chunk = e * 32 + lane;
                    if (ALL % 32 == 0 || chunk < ALL) {
                        const uint32_t begin = behind[r] + (ROUNDS ? at_fetched : i * (LANES * T::BYTES)) + row_at[e];
                        const uint32_t place = IN_CHUNKS ? begin : (begin & ~15) + chunk % CHUNKS * 16;
                        const int at = T::WINDOW == CHUNKS * 16 ? chunk * 16 : chunk / CHUNKS * T::WINDOW + chunk % CHUNKS * 16;
                        copy_16(to + (stage * TILES + r) * STAGE + at, from + place);
                    }
                }
            }
            if (ROUNDS) {
                n_left--;
                at_fetched += LANES * T::BYTES;
                if (--n_of_round == 0) {
                    n_of_round = n_mine;
                    at_fetched += ROUND * uint32_t(row_bytes) - n_mine * (LANES * T::BYTES);
                }
            }
        }
        end_stage();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        fetch(i, i);
    }
    if (!is_routed || (OWN && p.ids_are_there)) {
        // Weights never change, so their first blocks came before what is computed just before this.
        wait_for_previous();
    }
    let_next_start();
    if constexpr (OWN) {
        const float * x = is_shared ? p.shared_x.x + first * p.shared_x.token : p.x.x + first / p.n_each * p.x.token + first % p.n_each * p.x.each;
        for (int b = warp; b < p.n_blocks; b += WARPS) {
            float v[8];
            load_values(v, x + b * BLOCK + 8 * lane);
            store_values(v, own, p.n_blocks, b, 0, lane);
        }
        __syncthreads();
    }

    // Where the lane's columns are: column g of each group. Behind the last one it is that again.
    const auto column_of = [&](int i) {
        i = min(i, n - 1);
        if (slots) {
            const int slot = slots[i];
            return slot / p.n_used * p.n_each + slot % p.n_used % p.n_each;
        }
        return first + i;
    };
    constexpr int COLUMN_BYTES = sizeof(columns::values[0][0]), LANE_BYTES = T::HALVES ? 8 : 16;
    const uint8_t * all_columns = OWN ? reinterpret_cast<const uint8_t *>(own) : reinterpret_cast<const uint8_t *>(y_of);
    uint32_t column_at[GROUPS];
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        const int c = OWN ? 0 : column_of(j * GROUP + g);
        column_at[j] = (c / GROUP * p.n_blocks + part) * uint32_t(sizeof(columns)) + c % GROUP * COLUMN_BYTES + LANE_BYTES * t;
    }
    // From a block of the warp to its next.
    constexpr uint32_t STEP = LANES * sizeof(columns);
    const auto values_of = [&](int j, int s, uint32_t at_block) {
        const uint8_t * from = all_columns + (column_at[j] + at_block) + s * sizeof(columns::values[0]);
        if (T::HALVES) {
            const uint2 one = at<uint2>(from), two = at<uint2>(from + 32);
            return make_uint4(one.x, one.y, two.x, two.y);
        }
        return at<uint4>(from);
    };
    // Sums of the lane's column, then its scale.
    const auto rest_of = [&](int j, uint32_t at_block) {
        const uint8_t * from = all_columns + (column_at[j] + at_block) + sizeof(columns::values);
        if (T::HALVES) {
            return make_uint4(0, 0, at<uint32_t>(from + (1 - t % 2) * 8), 0);
        }
        return at<uint4>(from);
    };

    // Sums of the first four sub-blocks and of the others are made apart. With one group by turns, so that no product waits for the
    // one before, and with the columns a block ahead; else one after the other.
    constexpr int N_SUB = BLOCK / SUB, AHEAD = GROUPS > 1 ? 2 : OWN ? N_SUB / 2 : N_SUB;
    const auto nth_sub = [](int i) { return GROUPS == 1 ? i % 2 * (N_SUB / 2) + i / 2 : i; };
    uint4 y[AHEAD][GROUPS], rest[GROUPS];
    const auto load = [&](int i, uint32_t at_block) {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            y[i % AHEAD][j] = values_of(j, nth_sub(i % N_SUB), at_block);
        }
    };
    if (GROUPS == 1) {
#pragma unroll
        for (int i = 0; i < AHEAD - 1; i++) {
            load(i, 0);
        }
    }
    const one_of_several & in = one_of(p, blockIdx.x);
    const auto put = [&](int c, int row, float value, float in_gate) {
        if (p.n_several > 0) {
            in.dst[c * in.dst_token + row] = finish(in, value, row);
            return;
        }
        int64_t place;
        if (slots) {
            const int slot = slots[c];
            place = slot % p.n_used * p.dst_slot + slot / p.n_used * p.dst_token + row;
        } else {
            place = c * dst_column + row;
        }
        dst[place] = finish(p, value, TILES == 2, in_gate, place, is_routed ? int64_t(matrix) * p.n_rows + row : first * dst_column + place);
    };
    int stage = 0;
    for (int round = 0; round < n_rounds; round++) {
        float acc[TILES][GROUPS][4] = {};
        for (int i = 0; i < n_mine; i++) {
            [[maybe_unused]] const uint32_t now = i * STEP, next = i + 1 == n_mine ? 0 : now + STEP;
            if (GROUPS > 1) {
                load(0, now);
            }
            wait_stages<STAGES - 2>();
            __syncwarp();
            fetch(i + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
            T weight[TILES];
            const uint8_t * rows[TILES][2];
            // One sum is added before the next begins, unless they are made by turns.
            constexpr int N_SUMS = GROUPS == 1 ? 2 : 1;
            float sum[N_SUMS][TILES][GROUPS][4] = {};
#pragma unroll
            for (int r = 0; r < TILES; r++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    rows[r][h] = mine + (stage * TILES + r) * STAGE + (8 * h + g) * T::WINDOW;
                    if (!IN_CHUNKS) {
                        rows[r][h] += (behind[r] + i * (LANES * T::BYTES) + row_of(8 * h + g)) & 15;
                    }
                }
                weight[r].begin(rows[r], t);
            }
            const auto add = [&](int which) {
#pragma unroll
                for (int r = 0; r < TILES; r++) {
                    const float2 d[2] = { weight[r].scale(rows[r], 0), weight[r].scale(rows[r], 1) };
#pragma unroll
                    for (int j = 0; j < GROUPS; j++) {
                        float less[4] = {};
                        if (T::LEAST && which == 1) {
                            const uint32_t mins[2] = { weight[r].least(0, t), weight[r].least(1, t) }, a[4] = { mins[0], mins[1], mins[0], mins[1] };
                            mma(less, a, rest[j].x, rest[j].y);
                        }
                        // Of columns 2t and 2t + 1.
                        const float scales[2] = { __uint_as_float(__shfl_sync(0xffffffff, rest[j].z, 8 * t)), __uint_as_float(__shfl_sync(0xffffffff, rest[j].z, 8 * t + 4)) };
#pragma unroll
                        for (int o = 0; o < 4; o++) {
                            // Spelled out, so that kernels for different numbers of groups round alike.
                            float & from = sum[which % N_SUMS][r][j][o];
                            const float product = __fmul_rn(d[o / 2].x, from);
                            acc[r][j][o] = fmaf(scales[o % 2], T::LEAST && which == 1 ? fmaf(-d[o / 2].y, less[o], product) : product, acc[r][j][o]);
                            from = 0.0f;
                        }
                    }
                }
            };
#pragma unroll
            for (int i = 0; i < N_SUB; i++) {
                if (GROUPS == 1) {
                    load(i + AHEAD - 1, i + AHEAD - 1 < N_SUB ? now : next);
                } else if (i + 1 < N_SUB) {
                    load(i + 1, now);
                }
                if (i == (GROUPS == 1 ? 0 : N_SUB / 2 - 2)) {
#pragma unroll
                    for (int j = 0; j < GROUPS; j++) {
                        rest[j] = rest_of(j, now);
                    }
                }
                const int s = nth_sub(i);
#pragma unroll
                for (int r = 0; r < TILES; r++) {
                    uint32_t a[2][4];
                    weight[r].fragment(rows[r], t, s, a);
#pragma unroll
                    for (int j = 0; j < GROUPS; j++) {
                        float (&to)[4] = sum[GROUPS == 1 ? s / (N_SUB / 2) : 0][r][j];
                        mma(to, a[0], y[i % AHEAD][j].x, y[i % AHEAD][j].y);
                        mma(to, a[1], y[i % AHEAD][j].z, y[i % AHEAD][j].w);
                    }
                }
                if (GROUPS > 1 && i == N_SUB / 2 - 1) {
                    add(0);
                }
            }
            if (GROUPS == 1) {
                add(0);
            }
            add(1);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }

        const int row1 = row0 + round * ROUND;
        if (LANES == 1) {
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
#pragma unroll
                for (int o = 0; o < 4; o++) {
                    const int row = row1 + g + o / 2 * 8, c = j * GROUP + 2 * t + o % 2;
                    if (row < n_rows && c < n) {
                        put(c, row, acc[0][j][o], acc[TILES - 1][j][o]);
                    }
                }
            }
            continue;
        }
        if (!ROUNDS) {
            wait_stages<0>();
        }
        if (!ROUNDS || round > 0) {
            // What lay here was read.
            __syncthreads();
        }

        // Warp after warp, so that the order is always the same. Sums of w, then those of the gate.
        constexpr int WIDTH = TILE + 4, ROWS = GROUPS * GROUP * WIDTH;
        float * sums = reinterpret_cast<float *>(memory + (ROUNDS ? memory_of_stages<T, STAGES, TILES> : 0));
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
#pragma unroll
            for (int o = 0; o < 4; o++) {
                const int place = warp * ROWS + (j * GROUP + 2 * t + o % 2) * WIDTH + g + o / 2 * 8;
                sums[place] = acc[0][j][o];
                if (TILES == 2) {
                    sums[WARPS * ROWS + place] = acc[TILES - 1][j][o];
                }
            }
        }
        __syncthreads();
        for (int i = warp * 32 + lane; i < TILE * n; i += 32 * WARPS) {
            const int row = i % TILE, c = i / TILE;
            float value = 0.0f, in_gate = 0.0f;
#pragma unroll
            for (int o = 0; o < WARPS; o++) {
                const int place = o * ROWS + c * WIDTH + row;
                value += sums[place];
                if (TILES == 2) {
                    in_gate += sums[WARPS * ROWS + place];
                }
            }
            if (row1 + row < n_rows) {
                put(c, row1 + row, value, in_gate);
            }
        }
    }
}

// Thread blocks of a multiprocessor with a group of columns, those with fewer stages, and those with columns that they make.
constexpr int AT_ONCE = 4, DENSER_AT_ONCE = 5, OWN_AT_ONCE = 5;

// Stages of shared memory where there are more thread blocks, and whether rows of a type are short enough for that.
constexpr int DENSER_STAGES = 3;
template <typename T> constexpr bool CAN_BE_DENSER = T::BYTES <= 144;

template <typename T, int LANES, int STAGES, int TILES, int GROUPS, bool OWN, bool DENSER, typename F>
static __global__ void __launch_bounds__(32 * WARPS, DENSER ? DENSER_AT_ONCE : OWN ? OWN_AT_ONCE : GROUPS + 2 * (TILES - 1) <= 3 ? 4 : GROUPS + 2 * (TILES - 1) <= 5 ? 3 : 2) few_columns(const products p, const F finish) {
    compute_columns<T, LANES, STAGES, TILES, GROUPS, OWN>(p, finish);
}

// Stages of shared memory with one group of columns.
template <typename T> constexpr int STAGES_OF = T::BYTES <= 144 ? 4 : T::BYTES <= 240 ? 3 : 2;

// Several matrices of different types, a group of columns: each block of rows as few_columns takes it.
template <typename F> static __global__ void __launch_bounds__(32 * WARPS, 4) few_columns_of_types(const products p, const F finish) {
    switch (one_of(p, blockIdx.x).type) {
        case IS_Q4_K: return compute_columns<k_quants<false>, WARPS, STAGES_OF<k_quants<false>>, 1, 1, false>(p, finish);
        case IS_Q5_K: return compute_columns<k_quants<true>, WARPS, STAGES_OF<k_quants<true>>, 1, 1, false>(p, finish);
        case IS_Q6_K: return compute_columns<q6_k, WARPS, STAGES_OF<q6_k>, 1, 1, false>(p, finish);
        default: return compute_columns<bytes_with_scales, WARPS, STAGES_OF<bytes_with_scales>, 1, 1, false>(p, finish);
    }
}

// Bytes of shared memory that it needs.
constexpr int memory_of_types() {
    const int sizes[] = { memory_of<k_quants<false>, WARPS, STAGES_OF<k_quants<false>>, 1, 1>(), memory_of<k_quants<true>, WARPS, STAGES_OF<k_quants<true>>, 1, 1>(),
        memory_of<q6_k, WARPS, STAGES_OF<q6_k>, 1, 1>(), memory_of<bytes_with_scales, WARPS, STAGES_OF<bytes_with_scales>, 1, 1>() };
    int most = 0;
    for (const int size : sizes) {
        most = size > most ? size : most;
    }
    return most;
}

// Thread blocks of a launch, of which each takes `rows` rows; several matrices learn which are theirs.
template <typename P> int blocks_of(P & p, int rows) {
    if (p.n_several == 0) {
        return (p.n_rows + rows - 1) / rows;
    }
    int n = 0;
    for (int i = 0; i < p.n_several; i++) {
        p.several[i].first = n;
        n += (p.several[i].n_rows + rows - 1) / rows;
    }
    return n;
}

// Tiles of a block of values that a warp computes at most in all its rounds, and rounds: behind these, and where a round takes long,
// the GPU shares thread blocks out better.
constexpr int MOST_OF_WARP = 16, MAX_ROUNDS = 4;

// As many rounds of `rows` rows that thread blocks take one after the other as have them all run at once.
template <int LANES, int TILES, bool OWN, bool DENSER = false> int rounds_of(products & p, int n_matrices, int n_multiprocessors) {
    constexpr int rows = WARPS / LANES * TILE;
    bool whole = p.n_several > 0 || p.n_rows % rows == 0;
    for (int i = 0; i < p.n_several; i++) {
        whole = whole && p.several[i].n_rows % rows == 0;
    }
    const int at_once = n_multiprocessors * (OWN ? OWN_AT_ONCE : DENSER ? DENSER_AT_ONCE : AT_ONCE), n = blocks_of(p, rows) * n_matrices;
    const int of_round = (p.n_blocks + LANES - 1) / LANES * TILES;
    return whole ? std::clamp((n + at_once - 1) / at_once, 1, std::clamp(MOST_OF_WARP / of_round, 1, MAX_ROUNDS)) : 1;
}

// Blocks of a row from which on it pays to compute a gate apart.
constexpr int LONG_ROW = 20;

// Whether a matrix of n tiles and its gate are computed as two, and the gate acts in a launch behind it: thread blocks that take tiles of
// both do not all run at once, and denser ones that take two rounds of either do.
inline bool is_gate_apart(int n, int n_blocks, int n_multiprocessors) {
    return n_blocks >= LONG_ROW && n > AT_ONCE * n_multiprocessors && n <= DENSER_AT_ONCE * n_multiprocessors;
}

// Calls run<LANES, STAGES, TILES, GROUPS, OWN, DENSER>() with the kernel for a launch: the order of sums follows from the shape alone,
// all else from the number of columns. A block of rows takes WARPS / LANES tiles.
template <typename T, typename F> void chosen(const products & p, const F & run) {
    constexpr int STAGES = STAGES_OF<T>;
    const bool is_short = p.n_blocks < WARPS;
    if (p.makes_columns) {
        return is_short ? run.template operator()<1, 3, 1, 1, true>() : run.template operator()<WARPS, STAGES, 1, 1, true>();
    }
    const int n_groups = p.chunks ? p.n_groups : p.ids || is_short ? 1 : (p.n_tokens + GROUP - 1) / GROUP;
    if (is_short) {
        switch (n_groups) {
            case 1: return p.gate ? run.template operator()<1, 2, 2, 1>() : run.template operator()<1, 3, 1, 1>();
            case 2: return run.template operator()<1, 3, 1, 2>();
            default: return run.template operator()<1, 3, 1, 3>();
        }
    }
    if (p.gate) {
        switch (n_groups) {
            case 1: return run.template operator()<WARPS, 2, 2, 1>();
            case 2: return run.template operator()<WARPS, 2, 2, 2>();
            case 3: return run.template operator()<WARPS, 2, 2, 3>();
            case 4: return run.template operator()<WARPS, 2, 2, 4>();
            case 5: return run.template operator()<WARPS, 2, 2, 5>();
            default: return run.template operator()<WARPS, 2, 2, 6>();
        }
    }
    switch (n_groups) {
        case 1:
            if constexpr (CAN_BE_DENSER<T>) {
                if (p.denser) {
                    return run.template operator()<WARPS, DENSER_STAGES, 1, 1, false, true>();
                }
            }
            return run.template operator()<WARPS, STAGES, 1, 1>();
        case 2: return run.template operator()<WARPS, 3, 1, 2>();
        case 3: return run.template operator()<WARPS, 3, 1, 3>();
        case 4: return run.template operator()<WARPS, 3, 1, 4>();
        case 5: return run.template operator()<WARPS, 3, 1, 5>();
        default: return run.template operator()<WARPS, 3, 1, 6>();
    }
}

}  // namespace nextn
