// The front of ggml's CPU backend where the library holds it several times (build/variants.rs): what this program calls of
// ggml-cpu.h goes to the copy for this processor, always the same one. Owns the choice. Knows nothing of what copies do.
#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <cpuid.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What it gives, its name, its parameters, its arguments.
#define FUNCTIONS(f, x) \
    f(x, ggml_backend_t, ggml_backend_cpu_init, (void), ()) \
    f(x, ggml_backend_reg_t, ggml_backend_cpu_reg, (void), ()) \
    f(x, void, ggml_backend_cpu_set_abort_callback, \
      (ggml_backend_t backend, ggml_abort_callback callback, void * data), (backend, callback, data)) \
    f(x, void, ggml_backend_cpu_set_n_threads, (ggml_backend_t backend, int n), (backend, n)) \
    f(x, void, ggml_backend_cpu_set_threadpool, (ggml_backend_t backend, ggml_threadpool_t pool), (backend, pool)) \
    f(x, bool, ggml_backend_is_cpu, (ggml_backend_t backend), (backend)) \
    f(x, int, ggml_cpu_has_avx2, (void), ()) \
    f(x, int, ggml_cpu_has_fma, (void), ()) \
    f(x, void, ggml_cpu_init, (void), ()) \
    f(x, const struct ggml_type_traits_cpu *, ggml_get_type_traits_cpu, (enum ggml_type type), (type)) \
    f(x, bool, ggml_is_numa, (void), ()) \
    f(x, void, ggml_numa_init, (enum ggml_numa_strategy strategy), (strategy)) \
    f(x, void, ggml_threadpool_free, (struct ggml_threadpool * pool), (pool)) \
    f(x, struct ggml_threadpool *, ggml_threadpool_new, (struct ggml_threadpool_params * params), (params)) \
    f(x, void, ggml_threadpool_pause, (struct ggml_threadpool * pool), (pool))

// The best first.
#define VARIANTS(v) v(avx512) v(avx2) v(sse42)

#define MEMBER(x, type, name, parameters, arguments) type (* name) parameters;
#define DECLARATION(x, type, name, parameters, arguments) type name ## _ ## x parameters;
#define VALUE(x, type, name, parameters, arguments) .name = name ## _ ## x,

struct variant {
    const char * name;
    FUNCTIONS(MEMBER, )
};

#define DECLARATIONS(x) FUNCTIONS(DECLARATION, x)
VARIANTS(DECLARATIONS)

#define TABLE(x) static const struct variant x = { .name = #x, FUNCTIONS(VALUE, x) };
VARIANTS(TABLE)

// The registers that the system saves for each thread: without them instructions are there and of no use.
static uint64_t saved_registers(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t) high << 32 | low;
}

static bool all(uint64_t bits, uint64_t wanted) {
    return (bits & wanted) == wanted;
}

// The features that build/variants.rs compiles for, asked of the processor: what compilers have for it
// (__builtin_cpu_supports) answers no to everything where their run-time library has not filled its table.
static bool is_here(const struct variant * v) {
    if (v == &sse42) {
        return true;
    }
    enum { FMA = 1 << 12, OSXSAVE = 1 << 27, AVX = 1 << 28, F16C = 1 << 29 };
    enum { BMI = 1 << 3, AVX2 = 1 << 5, BMI2 = 1 << 8, F = 1 << 16, DQ = 1 << 17, CD = 1 << 28, BW = 1 << 30 };
    enum { VBMI = 1 << 1, VNNI = 1 << 11 };
    const uint32_t VL = UINT32_C(1) << 31;
    const uint64_t YMM = 0x6, ZMM = 0xe6;
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !all(ecx, FMA | OSXSAVE | AVX | F16C) || !all(saved_registers(), YMM)) {
        return false;
    }
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !all(ebx, BMI | AVX2 | BMI2)) {
        return false;
    }
    return v == &avx2 || (all(ebx, F | DQ | CD | BW | VL) && all(ecx, VBMI | VNNI) && all(saved_registers(), ZMM));
}

static const struct variant * choose(void) {
    const struct variant * copies[] = {
#define ADDRESS(x) &x,
        VARIANTS(ADDRESS)
    };
    const struct variant * best = NULL;
    const char * wanted = getenv("NEXTN_CPU_VARIANT");
    if (wanted != NULL && wanted[0] == '\0') {
        wanted = NULL;
    }
    for (size_t i = 0; i < sizeof(copies) / sizeof(copies[0]); i++) {
        if (!is_here(copies[i])) {
            continue;
        }
        if (wanted != NULL && strcmp(wanted, copies[i]->name) == 0) {
            return copies[i];
        }
        best = best == NULL ? copies[i] : best;
    }
    if (wanted != NULL) {
        fprintf(stderr, "NEXTN_CPU_VARIANT=%s: no copy of ggml's CPU kernels that runs here; taking %s of:", wanted, best->name);
        for (size_t i = 0; i < sizeof(copies) / sizeof(copies[0]); i++) {
            if (is_here(copies[i])) {
                fprintf(stderr, " %s", copies[i]->name);
            }
        }
        fputc('\n', stderr);
    }
    return best;
}

static const struct variant * chosen;

// Before any function of the program runs, so that no two threads choose, or see the variable differently.
__attribute__((constructor)) static void choose_once(void) {
    chosen = choose();
}

#define FRONT(x, type, name, parameters, arguments) \
    type name parameters { \
        return chosen->name arguments; \
    }
FUNCTIONS(FRONT, )
