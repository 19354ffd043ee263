// How the threads of ggml's CPU backend wait for each other and for the next graph. Included by the changed ggml-cpu.c
// (build/waits.rs), which has a `struct nextn_waits` in each of its pools.
#pragma once

#include <stdatomic.h>
#include <stdint.h>

struct nextn_waits {
    // Threads that sleep at the barrier.
    atomic_int n_asleep;
    // When the last two long waits ended, and until when threads are to give way soon. On the clock of `nextn_now`.
    _Atomic int64_t last;
    _Atomic int64_t last_but_one;
    _Atomic int64_t shared_until;
};

// Nanoseconds of a clock that never goes back.
int64_t nextn_now(void);

// Waits while `word` is `old`: spins, then sleeps.
void nextn_wait(struct nextn_waits * waits, atomic_int * word, int old);

// Wakes all that wait for `word`, which has just changed.
void nextn_wake(struct nextn_waits * waits, atomic_int * word);

// When a thread that waits for the next graph is to go to sleep, on the clock of `nextn_now`.
int64_t nextn_poll_end(struct nextn_waits * waits);

// Long waits at barriers in this process so far: a thread had lost its processor, or had much more to do than others.
uint64_t nextn_long_waits(void);
