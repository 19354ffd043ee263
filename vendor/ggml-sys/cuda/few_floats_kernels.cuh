// Kernel for products of small F32 matrices (router, decay, beta) with any number of columns. A thread block takes a row, or two,
// and up to eight columns; each of its 256 threads sums every 256th four values of a column in their order, so a column's bits do
// not depend on how many stand beside it, nor on its place.
#pragma once

#include "dependent_launch.cuh"
#include "few_columns_kernels.cuh"

#include <cstdint>

namespace nextn {

// Columns and threads of a thread block.
constexpr int FLOAT_COLUMNS = 8, FLOAT_THREADS = 256;

// What a launch computes: w times n columns; k values a row, a multiple of 4.
struct float_products {
    const float * w;
    const float * gate;         // of the same shape, or null
    int64_t row;                // floats from row to row
    int k, n_rows, n;
    const float * x;
    int64_t column;             // floats from column to column
    float * dst;
    int64_t dst_column;
    const float * bias, * gate_bias;    // laid out as dst, or null
    int glu;                    // how a gate acts
    float glu_limit;
    // Instead of w, dst and n_rows: several matrices, packed; without gate and bias. Their w are floats.
    int n_several;
    one_of_several several[MAX_SEVERAL];
};

// Grid: rows (by ROWS, or one with its gate's), then columns by FLOAT_COLUMNS. finish(p, value, in_gate, place) makes the
// result, that of several matrices finish(one of them, value, row).
template <int ROWS, int COLUMNS, typename F>
static __global__ void __launch_bounds__(FLOAT_THREADS) few_floats(const float_products p, const F finish) {
    int block = blockIdx.x, n_rows = p.n_rows;
    const float * w_of = p.w;
    if (p.n_several > 0) {
        const one_of_several & mine = one_of(p, block);
        block -= mine.first;
        n_rows = mine.n_rows;
        w_of = reinterpret_cast<const float *>(mine.w);
    }
    const int first_row = block * (p.gate ? 1 : ROWS), first = blockIdx.y * FLOAT_COLUMNS, n = min(p.n - first, COLUMNS);
    const float4 * rows[ROWS];
    const float4 * columns[COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const bool in_gate = p.gate && r == 1;
        const int row = in_gate ? first_row : min(first_row + r, n_rows - 1);
        rows[r] = reinterpret_cast<const float4 *>((in_gate ? p.gate : w_of) + row * p.row);
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        columns[c] = reinterpret_cast<const float4 *>(p.x + (first + min(c, n - 1)) * p.column);
    }
    wait_for_previous();
    let_next_start();
    float sums[ROWS][COLUMNS] = {};
#pragma unroll(COLUMNS > 4 ? 2 : 4)
    for (int i = threadIdx.x; i < p.k / 4; i += FLOAT_THREADS) {
        float4 w[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            w[r] = rows[r][i];
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float4 x = columns[c][i];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                // Spelled out, so that kernels for different numbers of columns round alike.
                sums[r][c] = fmaf(w[r].w, x.w, fmaf(w[r].z, x.z, fmaf(w[r].y, x.y, fmaf(w[r].x, x.x, sums[r][c]))));
            }
        }
    }
    __shared__ float parts[FLOAT_THREADS / 32][ROWS][COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
            for (int o = 16; o > 0; o /= 2) {
                sums[r][c] = __fadd_rn(sums[r][c], __shfl_xor_sync(0xffffffff, sums[r][c], o));
            }
            if (threadIdx.x % 32 == 0) {
                parts[threadIdx.x / 32][r][c] = sums[r][c];
            }
        }
    }
    __syncthreads();
    const int r = threadIdx.x / COLUMNS, c = threadIdx.x % COLUMNS;
    if (r >= (p.gate ? 1 : ROWS) || c >= n || first_row + r >= n_rows) {
        return;
    }
    const auto sum = [&](int r) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < FLOAT_THREADS / 32; i++) {
            sum = __fadd_rn(sum, parts[i][r][c]);
        }
        return sum;
    };
    if (p.n_several > 0) {
        const one_of_several & of = one_of(p, blockIdx.x);
        of.dst[(first + c) * of.dst_token + first_row + r] = finish(of, sum(r), first_row + r);
        return;
    }
    const int64_t place = (first + c) * p.dst_column + first_row + r;
    p.dst[place] = finish(p, sum(r), p.gate ? sum(ROWS - 1) : 0.0f, place);
}

// Calls run<ROWS, COLUMNS>() with the kernel for a launch.
template <typename F> void chosen(const float_products & p, const F & run) {
    const bool two = p.gate || p.n_rows >= 128;
    if (p.n == 1) {
        return p.gate ? run.template operator()<2, 1>() : run.template operator()<1, 1>();
    }
    if (p.n == 2) {
        return two ? run.template operator()<2, 2>() : run.template operator()<1, 2>();
    }
    if (p.n <= 4) {
        return two ? run.template operator()<2, 4>() : run.template operator()<1, 4>();
    }
    return two ? run.template operator()<2, 8>() : run.template operator()<1, 8>();
}

}  // namespace nextn
