// The kernel that adds up over ranks, and what it is called with.
#pragma once

#include "dependent_launch.cuh"

#include <algorithm>
#include <cstdint>

namespace nextn {

constexpr int MAX_RANKS = 8, MAX_BLOCKS = 128, THREADS_OF_SUMS = 256;

// Numbers that a thread block of the kernel below adds up at once.
constexpr int PART = 4 * THREADS_OF_SUMS;

// A rank that does not come for so many nanoseconds has failed.
constexpr uint64_t PATIENCE = 30ull * 1000 * 1000 * 1000;

// Packets lie in so many places by turns, sum after sum.
constexpr int SLOTS = 8;

// Where each rank gets what the others have: for each of SLOTS sums, from each rank, two numbers in a packet, each with the number of the
// sum that it is for behind it. So a packet says by itself whether it is there, and nobody waits for memory that was written before it.
struct places {
    uint4 * packets[MAX_RANKS];
};

// Numbers that there are places for.
constexpr int64_t MOST_AT_ONCE = int64_t(MAX_BLOCKS) * PART;

inline size_t bytes_of_packets(int n_ranks) {
    return size_t(SLOTS) * n_ranks * (MOST_AT_ONCE / 2) * sizeof(uint4);
}

// A rank's part in a sum. `made`: for each thread block the number of the last sum, which is the same for all.
struct part_in_sum {
    places all;
    int rank, n_ranks;
    uint32_t * made;
};

inline __device__ uint64_t nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

inline __device__ void send(uint4 * packet, float a, float b, uint32_t round) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};"
        : : "l"(packet), "r"(__float_as_uint(a)), "r"(round), "r"(__float_as_uint(b)) : "memory");
}

// Two numbers of a sum; NaN if they do not come.
inline __device__ float2 receive(const uint4 * packet, uint32_t round) {
    uint64_t since = 0;
    for (uint32_t n = 1;; n++) {
        uint4 p;
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(p.x), "=r"(p.y), "=r"(p.z), "=r"(p.w) : "l"(packet) : "memory");
        if (p.y == round && p.w == round) {
            return make_float2(__uint_as_float(p.x), __uint_as_float(p.z));
        }
        if (n % 1024 == 0) {
            const uint64_t now = nanoseconds();
            since = since ? since : now;
            if (now - since > PATIENCE) {
                const float none = __int_as_float(0x7fffffff);
                return make_float2(none, none);
            }
        }
    }
}

// Packets have zero that are of no sum.
inline __device__ uint32_t next_round(uint32_t round) {
    return round == UINT32_MAX ? SLOTS : round + 1;
}

// Where rank `to` reads what rank `from` sent of a round, from number `at` on.
inline __device__ uint4 * packet_at(const part_in_sum & p, int to, int from, uint32_t round, int64_t at) {
    return p.all.packets[to] + (int64_t(round % SLOTS) * p.n_ranks + from) * (MOST_AT_ONCE / 2) + at / 2;
}

// A thread of each rank sends what it has to all others, waits for theirs, and adds up in the order of ranks, so that all have the same
// bits: N numbers from `at` on, of MOST_AT_ONCE. What others sent is not overwritten before it was read. A thread sends for the next sum
// of a launch before it has read this one, not before it has read the last one; so what came from it says that it has read what it was
// sent two sums before. And a launch ends when all of it came, so that others have begun with it, and ended the one before. Of sums that
// a rank has ended, others may not have read three at most, and it sends two ahead: five places are enough.
template <int N> inline __device__ void send_all(const part_in_sum & p, uint32_t round, int64_t at, const float (&own)[N]) {
    for (int other = 0; other < p.n_ranks; other++) {
        if (other == p.rank) {
            continue;
        }
        uint4 * to = packet_at(p, other, p.rank, round, at);
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            send(to + i / 2, own[i], own[i + 1], round);
        }
    }
}

template <int N> inline __device__ void receive_all(const part_in_sum & p, uint32_t round, int64_t at, float (&sum)[N]) {
    float own[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        own[i] = sum[i];
    }
    for (int other = 0; other < p.n_ranks; other++) {
        const uint4 * from = packet_at(p, p.rank, other, round, at);
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const float2 v = other == p.rank ? make_float2(own[i], own[i + 1]) : receive(from + i / 2, round);
            sum[i] = other == 0 ? v.x : sum[i] + v.x;
            sum[i + 1] = other == 0 ? v.y : sum[i + 1] + v.y;
        }
    }
}

// All thread blocks have read the number of the last sum: it is now this one, for those that this launch does without, too.
inline __device__ void end_of_sum(const part_in_sum & p, uint32_t round) {
    __syncthreads();
    if (threadIdx.x == 0) {
        p.made[blockIdx.x] = round;
    }
    if (blockIdx.x == 0) {
        for (int block = gridDim.x + threadIdx.x; block < MAX_BLOCKS; block += blockDim.x) {
            p.made[block] = round;
        }
    }
}

inline __device__ void load_four(float (&v)[4], const float * from) {
    const float4 all = *reinterpret_cast<const float4 *>(from);
    v[0] = all.x;
    v[1] = all.y;
    v[2] = all.z;
    v[3] = all.w;
}

// y: the sum of x, n numbers, over all ranks.
static __global__ void __launch_bounds__(THREADS_OF_SUMS) add_up(const float * x, float * y, int64_t n, const part_in_sum p) {
    wait_for_previous();
    let_next_start();
    const int64_t at = int64_t(blockIdx.x) * PART + 4 * threadIdx.x, step = int64_t(gridDim.x) * PART;
    uint32_t round = next_round(p.made[blockIdx.x]);
    float v[4], next[4];
    if (at < n) {
        load_four(v, x + at);
        send_all(p, round, at, v);
    }
    for (int64_t first = 0; first < n; first += step) {
        const uint32_t after = next_round(round);
        const int64_t here = first + at;
        if (here + step < n) {
            load_four(next, x + here + step);
            send_all(p, after, at, next);
        }
        if (here < n) {
            receive_all(p, round, at, v);
            *reinterpret_cast<float4 *>(y + here) = make_float4(v[0], v[1], v[2], v[3]);
        }
        if (first + step < n) {
            round = after;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = next[i];
        }
    }
    end_of_sum(p, round);
}

// y: the rows of x of all ranks, columns of n_rows rows each: `each` rows of the first, of the second and so on, and again. n numbers
// of x; n_rows and each are multiples of four.
static __global__ void __launch_bounds__(THREADS_OF_SUMS) gather_rows(const float * x, float * y, int64_t n, int n_rows, int each, const part_in_sum p) {
    wait_for_previous();
    let_next_start();
    const int64_t at = int64_t(blockIdx.x) * PART + 4 * threadIdx.x, step = int64_t(gridDim.x) * PART;
    uint32_t round = next_round(p.made[blockIdx.x]);
    const auto put = [&](int64_t i, int from, const float (&v)[4]) {
        const int64_t column = i / n_rows;
        const int row = int(i - column * n_rows);
        const int64_t place = (column * n_rows + row / each * each) * p.n_ranks + from * each + row % each;
        *reinterpret_cast<float4 *>(y + place) = make_float4(v[0], v[1], v[2], v[3]);
    };
    const auto give = [&](int64_t i, uint32_t to) {
        float v[4];
        load_four(v, x + i);
        send_all(p, to, at, v);
        put(i, p.rank, v);
    };
    if (at < n) {
        give(at, round);
    }
    for (int64_t first = 0; first < n; first += step) {
        const uint32_t after = next_round(round);
        const int64_t here = first + at;
        if (here + step < n) {
            give(here + step, after);
        }
        for (int other = 0; here < n && other < p.n_ranks; other++) {
            if (other != p.rank) {
                const uint4 * from = packet_at(p, p.rank, other, round, at);
                const float2 a = receive(from, round), b = receive(from + 1, round);
                const float v[4] = { a.x, a.y, b.x, b.y };
                put(here, other, v);
            }
        }
        if (first + step < n) {
            round = after;
        }
    }
    end_of_sum(p, round);
}

// Thread blocks for n numbers.
inline int blocks_of_sum(int64_t n) {
    return int(std::min<int64_t>(MAX_BLOCKS, (n + PART - 1) / PART));
}

}  // namespace nextn
