// How the threads of ggml's CPU backend wait for each other and for the next graph. Included by the changed ggml-cpu.c
// (build/waits.rs).
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// Whether other programs want the processors too, as `nextn_set_crowded` has said last.
extern atomic_bool nextn_crowded;

void nextn_set_crowded(bool crowded);

// Waits while `word` is `old`. Whoever sleeps meanwhile is counted in `n_asleep`.
void nextn_wait(atomic_int * word, int old, atomic_int * n_asleep);

// Wakes all that wait for `word`, which has just changed.
void nextn_wake(atomic_int * word, atomic_int * n_asleep);

// Whether a thread that waits for the next graph is to spin on, after so many rounds.
static inline bool nextn_polls(uint64_t n_rounds) {
    return n_rounds < 512 || !atomic_load_explicit(&nextn_crowded, memory_order_relaxed);
}
