// Waiting that costs nothing while the processors are ours, and little where others want them too. A thread that waits for
// one without a processor must not keep another busy meanwhile: it spins only as long as a wait usually takes, then sleeps
// until it is woken. Who has waited long three times in a row has found out that the processors are shared: then all threads
// of the pool spin a few microseconds only, until no wait was long for a while.
// Owns these times. Knows nothing of graphs. On Linux; elsewhere a thread yields instead of sleeping.
#include "wait.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// A wait at a barrier that is longer is no matter of a few rows more: nanoseconds.
#define LONG_WAIT 500000

// Spinning at a barrier and between graphs where processors are shared.
#define SPIN_SHARED 4000
#define POLL_SHARED 20000

// Between graphs where they are not: about what the host needs for sampling.
#define POLL 1000000

// Three long waits in such a time tell that processors are shared, for as long again. One alone tells nothing: a system has
// work of its own, and a prompt parts that take one thread longer.
#define MEMORY 60000000

static atomic_ullong n_long_waits;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

int64_t nextn_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

uint64_t nextn_long_waits(void) {
    return atomic_load_explicit(&n_long_waits, memory_order_relaxed);
}

static void sleep_while(atomic_int * word, int old) {
#if defined(__linux__)
    // Comes back at once if the word has changed; whoever changes it sees `n_asleep` and wakes.
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
#else
    (void) word;
    (void) old;
    sched_yield();
#endif
}

static bool is_shared(struct nextn_waits * waits, int64_t now) {
    return now < atomic_load_explicit(&waits->shared_until, memory_order_relaxed);
}

// Threads that end a long wait at the same time may lose one of two: there are more.
static void has_waited_long(struct nextn_waits * waits, int64_t now) {
    const int64_t last = atomic_load_explicit(&waits->last, memory_order_relaxed);
    const int64_t first = atomic_exchange_explicit(&waits->last_but_one, last, memory_order_relaxed);
    atomic_store_explicit(&waits->last, now, memory_order_relaxed);
    if (now - first < MEMORY || is_shared(waits, now)) {
        atomic_store_explicit(&waits->shared_until, now + MEMORY, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&n_long_waits, 1, memory_order_relaxed);
}

void nextn_wait(struct nextn_waits * waits, atomic_int * word, int old) {
    // Most waits are shorter than asking for the time.
    for (int i = 0; i < 64; i++) {
        if (atomic_load_explicit(word, memory_order_relaxed) != old) {
            return;
        }
        relax();
    }
    const int64_t start = nextn_now();
    const int64_t end = start + (is_shared(waits, start) ? SPIN_SHARED : LONG_WAIT);
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(word, memory_order_relaxed) != old) {
                return;
            }
            relax();
        }
    } while (nextn_now() < end);

    atomic_fetch_add(&waits->n_asleep, 1);
    while (atomic_load(word) == old) {
        sleep_while(word, old);
    }
    atomic_fetch_sub(&waits->n_asleep, 1);
    const int64_t now = nextn_now();
    if (now - start >= LONG_WAIT) {
        has_waited_long(waits, now);
    }
}

void nextn_wake(struct nextn_waits * waits, atomic_int * word) {
    if (atomic_load(&waits->n_asleep) > 0) {
#if defined(__linux__)
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#else
        (void) word;
#endif
    }
}

int64_t nextn_poll_end(struct nextn_waits * waits) {
    const int64_t now = nextn_now();
    return now + (is_shared(waits, now) ? POLL_SHARED : POLL);
}
