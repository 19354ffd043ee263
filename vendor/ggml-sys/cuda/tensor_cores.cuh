// Instructions of sm_80 and later: products on tensor cores, copies to shared memory that go on beside.
#pragma once

#include <cstdint>

namespace nextn {

// c += a * b: 16 x 16 times 16 x 8, F16 with sums in F32. A column's bits depend on that column alone.
static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

static __device__ __forceinline__ uint32_t shared_address(const void * p) {
    return uint32_t(__cvta_generic_to_shared(p));
}

// 16 x 16 halves of shared memory as mma takes them; each lane names eight halves: those of the first eight rows, of the others,
// then the same eight columns further.
static __device__ __forceinline__ void load_16x16(uint32_t (&a)[4], const void * from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(shared_address(from)) : "memory");
#endif
}

// The same of halves that lie with rows and columns exchanged.
static __device__ __forceinline__ void load_16x16_turned(uint32_t (&a)[4], const void * from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(shared_address(from)) : "memory");
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

// Waits until n threads have come to a barrier of a thread block.
static __device__ __forceinline__ void meet(int barrier, int n) {
    asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(n) : "memory");
}

// Counts as one of those n and goes on: what it wrote can be read by those who wait.
static __device__ __forceinline__ void pass(int barrier, int n) {
    __threadfence_block();
    asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(n) : "memory");
}

}  // namespace nextn
