// The front of ggml's CPU backend where the library holds it several times (build/variants.rs): what this program calls of
// ggml-cpu.h goes to the copy for this processor, always the same one. Owns the choice. Knows nothing of what copies do.
#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What it gives, its name, its parameters, its arguments.
#define FUNCTIONS(f, x) \
    f(x, ggml_backend_t, ggml_backend_cpu_init, (void), ()) \
    f(x, ggml_backend_reg_t, ggml_backend_cpu_reg, (void), ()) \
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
    f(x, struct ggml_threadpool *, ggml_threadpool_new, (struct ggml_threadpool_params * params), (params))

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

// The features that build/variants.rs compiles for.
static bool is_here(const struct variant * v) {
    __builtin_cpu_init();
    if (v == &sse42) {
        return true;
    }
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    if (v == &avx2) {
        return has_avx2;
    }
    return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}

static const struct variant * choose(void) {
    const struct variant * all[] = {
#define ADDRESS(x) &x,
        VARIANTS(ADDRESS)
    };
    const struct variant * best = NULL;
    const char * wanted = getenv("NEXTN_CPU_VARIANT");
    if (wanted != NULL && wanted[0] == '\0') {
        wanted = NULL;
    }
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (!is_here(all[i])) {
            continue;
        }
        if (wanted != NULL && strcmp(wanted, all[i]->name) == 0) {
            return all[i];
        }
        best = best == NULL ? all[i] : best;
    }
    if (wanted != NULL) {
        fprintf(stderr, "NEXTN_CPU_VARIANT=%s: no copy of ggml's CPU kernels that runs here; taking %s of:", wanted, best->name);
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
            if (is_here(all[i])) {
                fprintf(stderr, " %s", all[i]->name);
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
