// Walsh-Hadamard transforms of runs of values, scaled to keep lengths, with the change of signs of our own types of cells: before the
// transform, and behind it where it is undone.
#pragma once

#include "cells.cuh"

namespace nextn {

struct rotation {
    int n;              // values of a run, a power of two; 0 for none
    bool with_signs;
};

static __device__ __forceinline__ float with_sign(float x, int i) {
    return __uint_as_float(__float_as_uint(x) ^ sign_of(i));
}

template <int EACH> static __device__ __forceinline__ void change_signs(float (&x)[EACH], const rotation & r, int lane) {
    if (r.with_signs) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            x[i] = with_sign(x[i], (lane * EACH + i) % r.n);
        }
    }
}

// Of 32 * EACH values, of which each lane has those that follow each other; `back` undoes it.
template <int EACH> static __device__ __forceinline__ void rotate_by_lanes(float (&x)[EACH], const rotation & r, int lane, bool back = false) {
    if (!back) {
        change_signs(x, r, lane);
    }
#pragma unroll
    for (int half = 1; half < EACH; half *= 2) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (i % (2 * half) < half) {
                const float a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
        }
    }
    for (int half = EACH; half < r.n; half *= 2) {
        const int step = half / EACH;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float other = __shfl_xor_sync(0xffffffff, x[i], step);
            x[i] = lane & step ? other - x[i] : x[i] + other;
        }
    }
    const float scale = 1.0f / sqrtf(float(r.n));
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        x[i] *= scale;
    }
    if (back) {
        change_signs(x, r, lane);
    }
}

// Undoes it for a value of each thread; `beside` has room for all.
static __device__ __forceinline__ float rotate_by_threads(float x, const rotation & r, float * beside) {
    const int i = threadIdx.x;
    for (int half = 1; half < min(r.n, 32); half *= 2) {
        const float other = __shfl_xor_sync(0xffffffff, x, half);
        x = i & half ? other - x : x + other;
    }
    for (int half = 32; half < r.n; half *= 2) {
        __syncthreads();
        beside[i] = x;
        __syncthreads();
        const float other = beside[i ^ half];
        x = i & half ? other - x : x + other;
    }
    x *= 1.0f / sqrtf(float(r.n));
    return r.with_signs ? with_sign(x, i % r.n) : x;
}

}  // namespace nextn
