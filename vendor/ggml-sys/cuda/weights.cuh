// Types of weights: how their blocks lie, and how values become F16 fragments for tensor cores.
#pragma once

#include "columns.cuh"

namespace nextn {

template <typename T> static __device__ __forceinline__ T at(const void * p) {
    return *reinterpret_cast<const T *>(p);
}

static __device__ __forceinline__ float2 two_halves(uint32_t bits) {
    return __half22float2(halves_of(bits));
}

// The F16 numbers 1024 + x, for x below 1024 in each half: these bits or x.
constexpr uint32_t MAGIC = 0x64006400;

// Byte i of a word, twice as the last bits of an F16 number whose other bits these are: 0x6400 of 1024 + x.
static __device__ __forceinline__ uint32_t behind(uint32_t word, int i, uint32_t high) {
    return __byte_perm(word, high << 16 | high, i | i << 8 | 0x5050);
}

static __device__ __forceinline__ __half2 constant(float x) {
    return __float2half2_rn(x);
}

// How a type's blocks lie, and the fragments of one block of rows g and g + 8 (in shared memory). For each sub-block of 32 values
// fragment() gives what two products of 16 values take: lane 4g + t has 8t to 8t + 7 of both rows (HALVES: 4t to 4t + 3 of the
// first 16, then of the others); of four sub-blocks the first comes first. A block's product is then the sum of these times
// scale(), less that of least() with the sums.

// Q4_K, and Q5_K with its fifth bits: value = d * scale * quant - dmin * min, eight of these for 32 values each. Fragments are
// scale * quant / SMALL, which F16 has exactly: quants are taken as the bits that they are, numbers below F16's normal ones.
template <bool FIVE> struct k_quants {
    static constexpr int BYTES = FIVE ? 176 : 144;
    static constexpr int WINDOW = BYTES;
    static constexpr int CHUNKS = BYTES / 16;
    static constexpr int QUANTS = BYTES - 128;
    static constexpr bool HALVES = false;
    static constexpr bool LEAST = true;
    static constexpr float SMALL = 1 << 19;

    uint4 head[2];
    uint2 fifth[2];
    uint2 quants[2][2];

    __device__ __forceinline__ void begin(const uint8_t * const (&rows)[2], int t) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            head[r] = at<uint4>(rows[r]);
            if (FIVE) {
                fifth[r] = at<uint2>(rows[r] + 16 + 8 * t);
            }
        }
    }

    // Scales or mins of sub-blocks 4 * half to 4 * half + 3.
    __device__ __forceinline__ uint32_t scales(int r, int half) const {
        const uint4 & h = head[r];
        return half == 0 ? h.y & 0x3f3f3f3f : (h.w & 0x0f0f0f0f) | ((h.y >> 2) & 0x30303030);
    }

    __device__ __forceinline__ uint32_t mins(int r, int half) const {
        const uint4 & h = head[r];
        return half == 0 ? h.z & 0x3f3f3f3f : ((h.w >> 4) & 0x0f0f0f0f) | ((h.z >> 2) & 0x30303030);
    }

    static __device__ __forceinline__ uint32_t moved(uint32_t x, int left) {
        return left >= 0 ? x << left : x >> -left;
    }

    __device__ __forceinline__ void fragment(const uint8_t * const (&rows)[2], int t, int s, uint32_t (&a)[2][4]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint2 & both = quants[s / 4][r];
            if (s % 2 == 0) {
                both = at<uint2>(rows[r] + QUANTS + s / 2 * 32 + 8 * t);
            }
            // Quants are 2^24 times too small, those of odd sub-blocks stand four bits higher: factors are 32 and 2 times the scale,
            // behind 32,768 and 2,048, of which they are the last bits.
            const uint32_t bits = behind(scales(r, s / 4), s % 4, s % 2 == 0 ? 0x7800 : 0x6800);
            const __half2 factor = __hsub2(halves_of(bits), constant(s % 2 == 0 ? 32768.0f : 2048.0f));
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    const uint32_t mask = s % 2 == 0 ? 0x000f000f : 0x00f000f0;
                    uint32_t q = (i == 0 ? both.x : both.y) >> (8 * odd) & mask;
                    if (FIVE) {
                        const int bit = s % 2 == 0 ? 4 : 8;
                        q |= moved(i == 0 ? fifth[r].x : fifth[r].y, bit - s - 8 * odd) & (0x00010001 << bit);
                    }
                    a[i][r + 2 * odd] = bits_of(__hmul2(halves_of(q), factor));
                }
            }
        }
    }

    // The mins of sub-blocks 2t and 2t + 1.
    __device__ __forceinline__ uint32_t least(int r, int t) const {
        const uint32_t word = t < 2 ? mins(r, 0) : mins(r, 1);
        return bits_of(__hsub2(halves_of(__byte_perm(word, MAGIC, t % 2 == 0 ? 0x5150 : 0x5352)), constant(1024.0f)));
    }

    __device__ __forceinline__ float2 scale(const uint8_t * const (&)[2], int r) const {
        const float2 both = two_halves(head[r].x);
        return make_float2(both.x * SMALL, both.y);
    }
};

// Q8_0: eight times a half d and 32 bytes; value = d * byte, rounded to F16.
struct bytes_with_scales {
    static constexpr int BYTES = 272;
    static constexpr int WINDOW = BYTES;
    static constexpr int CHUNKS = BYTES / 16;
    static constexpr bool HALVES = false;
    static constexpr bool LEAST = false;

    __device__ __forceinline__ void begin(const uint8_t * const (&)[2], int) {}

    __device__ __forceinline__ void fragment(const uint8_t * const (&rows)[2], int t, int s, uint32_t (&a)[2][4]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint8_t * from = rows[r] + 34 * s;
            const __half2 d = __half2half2(at<__half>(from));
            from += 2 + 8 * t;
            uint32_t v[2];
            if (s % 2 == 1) {
                v[0] = at<uint32_t>(from);
                v[1] = at<uint32_t>(from + 4);
            } else {
                const uint32_t x = at<uint32_t>(from - 2), z = at<uint32_t>(from + 2);
                v[0] = __funnelshift_r(x, z, 16);
                v[1] = __funnelshift_r(z, at<uint16_t>(from + 6), 16);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                // With 128 more, so without a sign.
                v[i] ^= 0x80808080;
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    // 1024 + 128 + byte.
                    const uint32_t q = __byte_perm(v[i], MAGIC, odd == 0 ? 0x5250 : 0x5351);
                    a[i][r + 2 * odd] = bits_of(__hmul2(__hsub2(halves_of(q), constant(1152.0f)), d));
                }
            }
        }
    }

    __device__ __forceinline__ uint32_t least(int, int) const { return 0; }

    __device__ __forceinline__ float2 scale(const uint8_t * const (&)[2], int) const { return make_float2(1.0f, 0.0f); }
};

// Q6_K: four bits of each value, then two bits, then sixteen signed scales, then d; value = d * scale * (quant - 32), of which
// fragments are scale * (quant - 32) / SMALL, rounded to F16, of quants as of Q4_K. A block has 210 bytes and begins at an even one,
// so the windows that are copied begin at the 16 bytes in which it begins: 14 times 16 bytes contain it.
struct q6_k {
    static constexpr int BYTES = 210;
    static constexpr int WINDOW = 240;
    static constexpr int CHUNKS = 14;
    static constexpr bool HALVES = true;
    static constexpr bool LEAST = false;
    static constexpr float SMALL = 1 << 16;

    uint32_t low[2][2][4], high[2][2][2], scales[2][2][2];

    static __device__ __forceinline__ uint32_t word(const uint8_t * p, int i) {
        // p lies on an even address.
        const int behind = reinterpret_cast<uintptr_t>(p) & 2, shift = behind * 8;
        const uint8_t * even = p - behind;
        return __funnelshift_r(at<uint32_t>(even + i), at<uint32_t>(even + i + 4), shift);
    }

    __device__ __forceinline__ void begin(const uint8_t * const (&)[2], int) {}

    __device__ __forceinline__ void fragment(const uint8_t * const (&rows)[2], int t, int s, uint32_t (&a)[2][4]) {
        const int n = s / 4, j = s % 4;
        if (j == 0) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    low[n][r][i] = word(rows[r], 64 * n + 16 * i + 4 * t);
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    high[n][r][i] = word(rows[r], 128 + 32 * n + 16 * i + 4 * t);
                    // With 128 more, so without a sign.
                    scales[n][r][i] = word(rows[r], 192 + 8 * n + 4 * i) ^ 0x80808080;
                }
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t both = scales[n][r][j / 2];
                const __half2 scale = __hsub2(halves_of(behind(both, 2 * (j % 2) + h, 0x6400)), constant(1024.0f + 128));
                // The quants of the third and fourth sub-block stand four bits higher.
                const __half2 factor = __hmul2(scale, constant(j < 2 ? 256.0f : 16.0f)), less = __hmul2(scale, constant(-32 / SMALL));
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    const uint32_t four = low[n][r][2 * (j % 2) + h] >> (8 * odd) & (j < 2 ? 0x000f000f : 0x00f000f0);
                    const uint32_t two = k_quants<true>::moved(high[n][r][h], (j < 2 ? 4 : 8) - 2 * j - 8 * odd) & (j < 2 ? 0x00300030 : 0x03000300);
                    a[h][r + 2 * odd] = bits_of(__hfma2(halves_of(four | two), factor, less));
                }
            }
        }
    }

    __device__ __forceinline__ uint32_t least(int, int) const { return 0; }

    __device__ __forceinline__ float2 scale(const uint8_t * const (&rows)[2], int r) const {
        return make_float2(__half2float(at<__half>(rows[r] + 208)) * SMALL, 0.0f);
    }
};

}  // namespace nextn
