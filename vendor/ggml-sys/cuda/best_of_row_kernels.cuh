// A thread block for each row. Loads of a thread stand together, so that a row is not waited for element by element.
#pragma once

#include "dependent_launch.cuh"

#include <cfloat>
#include <cstdint>

namespace nextn {

constexpr int BEST_THREADS = 1024, BEST_LOADS = 4;

struct best_place {
    // As ggml's: a row without a number above has the place -1.
    float value = -FLT_MAX;
    int place = -1;

    // Of equal ones the first.
    __device__ void meet(float other, int at) {
        if (other > value || (other == value && uint32_t(at) < uint32_t(place))) {
            value = other;
            place = at;
        }
    }
    __device__ void meet_warp() {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            meet(__shfl_xor_sync(~0u, value, offset), __shfl_xor_sync(~0u, place, offset));
        }
    }
};

// Grid: rows, of n times four elements.
static __global__ void __launch_bounds__(BEST_THREADS) best_of_rows(const float4 * x, int32_t * dst, int n) {
    __shared__ best_place of_warps[32];
    wait_for_previous();
    let_next_start();
    const float4 * row = x + int64_t(blockIdx.x) * n;
    best_place best;
    for (int first = threadIdx.x; first < n; first += BEST_THREADS * BEST_LOADS) {
        float4 four[BEST_LOADS];
#pragma unroll
        for (int i = 0; i < BEST_LOADS; i++) {
            const int at = first + i * BEST_THREADS;
            four[i] = at < n ? row[at] : make_float4(-FLT_MAX, -FLT_MAX, -FLT_MAX, -FLT_MAX);
        }
#pragma unroll
        for (int i = 0; i < BEST_LOADS; i++) {
            const float elements[4] = { four[i].x, four[i].y, four[i].z, four[i].w };
#pragma unroll
            for (int j = 0; j < 4; j++) {
                // A thread's places rise, so the first of equal ones stays.
                if (elements[j] > best.value) {
                    best.value = elements[j];
                    best.place = 4 * (first + i * BEST_THREADS) + j;
                }
            }
        }
    }
    best.meet_warp();
    if (threadIdx.x % 32 == 0) {
        of_warps[threadIdx.x / 32] = best;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        best = of_warps[threadIdx.x];
        best.meet_warp();
        if (threadIdx.x == 0) {
            dst[blockIdx.x] = best.place;
        }
    }
}

}  // namespace nextn
