// Waiting as upstream does, spinning without end, as long as the processors are ours; and giving way where others want them
// too: a thread that waits for one without a processor must not keep another busy meanwhile, so it spins a few microseconds
// and then sleeps until it is woken.
// Knows nothing of graphs, nor how one learns that processors are shared.
#include "wait.h"

#include <stddef.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(_WIN32)
#include <windows.h>
#else
#include <sched.h>
#endif

// Rounds of spinning before a thread sleeps: a few microseconds, about what a node's last rows take the others.
#define N_ROUNDS 128

atomic_bool nextn_crowded;

void nextn_set_crowded(bool crowded) {
    atomic_store_explicit(&nextn_crowded, crowded, memory_order_relaxed);
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

static void sleep_while(atomic_int * word, int old) {
#if defined(__linux__)
    // Comes back at once if the word has changed; whoever changes it sees `n_asleep` and wakes.
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
#elif defined(_WIN32)
    (void) word;
    (void) old;
    SwitchToThread();
#else
    (void) word;
    (void) old;
    sched_yield();
#endif
}

void nextn_wait(atomic_int * word, int old, atomic_int * n_asleep) {
    unsigned n_rounds = 0;
    while (atomic_load_explicit(word, memory_order_relaxed) == old) {
        relax();
        if (++n_rounds % N_ROUNDS == 0 && atomic_load_explicit(&nextn_crowded, memory_order_relaxed)) {
            break;
        }
    }
    if (atomic_load_explicit(word, memory_order_relaxed) != old) {
        return;
    }
    atomic_fetch_add(n_asleep, 1);
    while (atomic_load(word) == old) {
        sleep_while(word, old);
    }
    atomic_fetch_sub(n_asleep, 1);
}

void nextn_wake(atomic_int * word, atomic_int * n_asleep) {
    if (atomic_load(n_asleep) > 0) {
#if defined(__linux__)
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#else
        (void) word;
#endif
    }
}
