// Keys and values as KV caches keep them, and how 16 of them are unpacked. ggml's types, and two of our own: src/kernels/turbo.rs says
// what those are.
#pragma once

#include <cstdint>
#include <cuda_fp16.h>

namespace nextn {

enum cell_kind : int { CELLS_F16, CELLS_Q8_0, CELLS_Q5_1, CELLS_Q5_0, CELLS_Q4_1, CELLS_Q4_0, CELLS_IQ4_NL, CELLS_TURBO4, CELLS_TURBO3, CELLS_NONE };

// Cells of all sequences, strides in bytes.
struct kept_cells {
    const char * data;
    int64_t cell, head, sequence;
    int kind;       // of F16 all strides are multiples of 16, of others of 2
};

// Values of a group of our own types: the larger where it divides a head.
__host__ __device__ constexpr int group_of(int head_size) { return head_size % 128 == 0 ? 128 : 64; }

// Bytes of a head of D values.
__host__ __device__ constexpr int bytes_of(int kind, int d) {
    switch (kind) {
        case CELLS_F16: return 2 * d;
        case CELLS_Q8_0: return d / 32 * 34;
        case CELLS_Q5_1: return d / 32 * 24;
        case CELLS_Q5_0: return d / 32 * 22;
        case CELLS_Q4_1: return d / 32 * 20;
        case CELLS_Q4_0: case CELLS_IQ4_NL: return d / 32 * 18;
        case CELLS_TURBO4: return d / group_of(d) * (group_of(d) / 2 + 2);
        case CELLS_TURBO3: return d / group_of(d) * (group_of(d) / 8 * 3 + 2);
        default: return 0;
    }
}

// The place of a code: for our own types those of src/kernels/turbo.rs, of groups of unit length.
static __device__ float place_of(int kind, int code, int head_size) {
    constexpr int of_iq4_nl[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
    constexpr float of_turbo3[4] = { 0.24509418f, 0.7560053f, 1.3439093f, 2.1519458f };
    constexpr float of_turbo4[8] = { 0.12839503f, 0.3880483f, 0.6567591f, 0.94234046f, 1.2562312f, 1.6180464f, 2.0690172f, 2.7325896f };
    if (kind == CELLS_IQ4_NL) {
        return float(of_iq4_nl[code]);
    }
    const float unit = 1.0f / sqrtf(float(group_of(head_size)));
    if (kind == CELLS_TURBO3) {
        const int i = code % 8;
        return (i < 4 ? -of_turbo3[3 - i] : of_turbo3[i - 4]) * unit;
    }
    return (code < 8 ? -of_turbo4[7 - code] : of_turbo4[code - 8]) * unit;
}

// 16 places of a kind that has them, by lanes 0 to 15.
static __device__ void fill_places(__half * places, int kind, int head_size, int lane) {
    if (lane < 16) {
        places[lane] = __float2half_rn(place_of(kind, lane, head_size));
    }
}

static __device__ __forceinline__ uint32_t bits_at(const uint8_t * from) {
    return *reinterpret_cast<const uint16_t *>(from);
}

static __device__ __forceinline__ __half2 as_halves(uint32_t bits) {
    return *reinterpret_cast<const __half2 *>(&bits);
}

// The lower half of a word, or the upper one, twice.
static __device__ __forceinline__ __half2 lower(uint32_t word) { return as_halves(__byte_perm(word, 0, 0x1010)); }
static __device__ __forceinline__ __half2 upper(uint32_t word) { return as_halves(__byte_perm(word, 0, 0x3232)); }

// Bits that an even address is off from those of words.
static __device__ __forceinline__ uint32_t bits_off(const uint8_t * from) {
    return 8 * (uint32_t(reinterpret_cast<uintptr_t>(from)) & 2);
}

// The words that hold N words from an even address on; the last one only if it holds some of them: behind memory there is none.
template <int N> static __device__ __forceinline__ void words_at(uint32_t * to, const uint8_t * from) {
    const uint32_t off = bits_off(from);
    const uint32_t * words = reinterpret_cast<const uint32_t *>(from - off / 8);
#pragma unroll
    for (int i = 0; i < N; i++) {
        to[i] = words[i];
    }
    to[N] = off ? words[N] : 0;
}

// 1024 and a number below it are F16 with that number as their last bits.
constexpr uint32_t FROM_1024 = 0x64006400;

// Bytes i and j of a word, each a number, less `less`.
template <int LESS> static __device__ __forceinline__ __half2 numbers_of(uint32_t word, uint32_t which) {
    return __hsub2(as_halves(__byte_perm(word, FROM_1024, which)), __float2half2_rn(1024.0f + LESS));
}

// Values of task i of a head: of blocks of 32 with nibbles, eight from `first` on and eight 16 further; otherwise 16 in order.
template <int KIND> constexpr bool IN_NIBBLES = KIND == CELLS_Q5_1 || KIND == CELLS_Q5_0 || KIND == CELLS_Q4_1 || KIND == CELLS_Q4_0 || KIND == CELLS_IQ4_NL;

template <int KIND> static __device__ __forceinline__ int first_of(int task) {
    return IN_NIBBLES<KIND> ? task / 2 * 32 + task % 2 * 8 : 16 * task;
}
template <int KIND> constexpr int SECOND = IN_NIBBLES<KIND> ? 16 : 8;

// What a task of a head of D at `row` reads, and the 16 values that it makes of it. F16 is not read before it is needed.
constexpr int TASK_WORDS = 6;

template <int D, int KIND> struct task_of {
    static constexpr bool has_least = KIND == CELLS_Q5_1 || KIND == CELLS_Q4_1, has_fifth = KIND == CELLS_Q5_1 || KIND == CELLS_Q5_0;
    static constexpr int head = (has_least ? 4 : 2) + (has_fifth ? 4 : 0);
    static constexpr int bits = KIND == CELLS_TURBO4 ? 4 : 3, group = group_of(D), code_bytes = group / 8 * bits;

    static __device__ __forceinline__ const uint8_t * block_of(const uint8_t * row, int task) {
        return KIND == CELLS_Q8_0 ? row + task / 2 * 34 : IN_NIBBLES<KIND> ? row + task / 2 * (head + 16) :
            row + 16 * task / group * (code_bytes + 2);
    }

    static __device__ __forceinline__ const uint8_t * codes_of(const uint8_t * row, int task) {
        const uint8_t * block = block_of(row, task);
        return KIND == CELLS_Q8_0 ? block + 2 + task % 2 * 16 : IN_NIBBLES<KIND> ? block + head + 8 * (task % 2) :
            block + 16 * task % group / 8 * bits;
    }

    static __device__ __forceinline__ void read(uint32_t (&words)[TASK_WORDS], const uint8_t * row, int task) {
        if constexpr (KIND == CELLS_F16) {
            return;
        }
        const uint8_t * block = block_of(row, task);
        words_at<KIND == CELLS_Q8_0 ? 4 : 2>(words, codes_of(row, task));
        if (has_fifth) {
            words_at<1>(words + 3, block + head - 4);
        }
        words[5] = bits_at(IN_NIBBLES<KIND> || KIND == CELLS_Q8_0 ? block : block + code_bytes) | (has_least ? bits_at(block + 2) << 16 : 0);
    }

    static __device__ __forceinline__ void unpack(__half2 (&to)[8], const uint32_t (&words)[TASK_WORDS], const uint8_t * row, int task, const __half * places) {
        const uint32_t off = bits_off(codes_of(row, task));
        const __half2 d = lower(words[5]);
        if constexpr (KIND == CELLS_F16) {
            const uint4 * from = reinterpret_cast<const uint4 *>(row) + 2 * task;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 four = from[i];
                to[4 * i] = as_halves(four.x);
                to[4 * i + 1] = as_halves(four.y);
                to[4 * i + 2] = as_halves(four.z);
                to[4 * i + 3] = as_halves(four.w);
            }
        } else if constexpr (KIND == CELLS_Q8_0) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t above = __funnelshift_r(words[i], words[i + 1], off) ^ 0x80808080;
                to[2 * i] = __hmul2(d, numbers_of<128>(above, 0x5150));
                to[2 * i + 1] = __hmul2(d, numbers_of<128>(above, 0x5352));
            }
        } else if constexpr (IN_NIBBLES<KIND>) {
            const uint32_t fifth = has_fifth ? __funnelshift_r(words[3], words[4], bits_off(block_of(row, task) + head - 4)) : 0;
#pragma unroll
            for (int second = 0; second < 2; second++) {
                // The fifth bits of these eight values.
                const uint32_t above = fifth >> (16 * second + 8 * (task % 2));
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t codes = (__funnelshift_r(words[i], words[i + 1], off) >> (4 * second)) & 0x0f0f0f0f;
                    __half2 * pairs = to + 4 * second + 2 * i;
                    if constexpr (KIND == CELLS_IQ4_NL) {
                        pairs[0] = __hmul2(d, __halves2half2(places[codes & 15], places[codes >> 8 & 15]));
                        pairs[1] = __hmul2(d, __halves2half2(places[codes >> 16 & 15], places[codes >> 24]));
                    } else {
                        if (has_fifth) {
                            // Bit j of four to bit 8 * j + 4.
                            codes |= (((above >> (4 * i) & 15) * 0x00204081) & 0x01010101) << 4;
                        }
                        constexpr int less = has_least ? 0 : has_fifth ? 16 : 8;
                        const __half2 a = numbers_of<less>(codes, 0x5150), b = numbers_of<less>(codes, 0x5352), least = upper(words[5]);
                        pairs[0] = has_least ? __hfma2(d, a, least) : __hmul2(d, a);
                        pairs[1] = has_least ? __hfma2(d, b, least) : __hmul2(d, b);
                    }
                }
            }
        } else {
            // Of 3 bits the last two bytes are those of somebody else.
            const uint32_t low = __funnelshift_r(words[0], words[1], off), high = __funnelshift_r(words[1], words[2], off);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int at = 2 * i * bits;
                const uint32_t both = at >= 32 ? high >> (at - 32) : __funnelshift_r(low, high, at);
                to[i] = __hmul2(d, __halves2half2(places[both & ((1 << bits) - 1)], places[both >> bits & ((1 << bits) - 1)]));
            }
        }
    }

    // Writes them where a head's values begin.
    static __device__ __forceinline__ void write(__half * to, const __half2 (&values)[8], int task) {
        const auto four = [&](int i) {
            const uint32_t * bits = reinterpret_cast<const uint32_t *>(values) + i;
            return make_uint4(bits[0], bits[1], bits[2], bits[3]);
        };
        uint4 * first = reinterpret_cast<uint4 *>(to + first_of<KIND>(task));
        first[0] = four(0);
        first[SECOND<KIND> / 8] = four(4);
    }
};

// Calls run<KIND>() for a kind that is unpacked.
template <typename F> static __device__ __forceinline__ void of_kind(int kind, const F & run) {
    switch (kind) {
        case CELLS_F16: return run.template operator()<CELLS_F16>();
        case CELLS_Q8_0: return run.template operator()<CELLS_Q8_0>();
        case CELLS_Q5_1: return run.template operator()<CELLS_Q5_1>();
        case CELLS_Q5_0: return run.template operator()<CELLS_Q5_0>();
        case CELLS_Q4_1: return run.template operator()<CELLS_Q4_1>();
        case CELLS_Q4_0: return run.template operator()<CELLS_Q4_0>();
        case CELLS_IQ4_NL: return run.template operator()<CELLS_IQ4_NL>();
        case CELLS_TURBO4: return run.template operator()<CELLS_TURBO4>();
        default: return run.template operator()<CELLS_TURBO3>();
    }
}

// Signs of our own types, bit by bit.
static __device__ __forceinline__ uint32_t sign_of(int i) {
    constexpr uint32_t words[4] = { 0x5cedc834, 0xf39cc060, 0x7f4a7c15, 0x9e3779b9 };
    return (words[i / 32 % 4] >> (i % 32) & 1) << 31;
}

}  // namespace nextn
