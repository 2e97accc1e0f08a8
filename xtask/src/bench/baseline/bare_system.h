// System calls without a C library, for children that are as small as a program can be.
#ifndef BARE_SYSTEM_H
#define BARE_SYSTEM_H

#if defined(__x86_64__)
enum { SYS_WRITE = 1, SYS_POLL = 7, SYS_EXIT = 231 };

static long call(long number, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

// Sleeps until a signal comes.
static inline void wait_for_signal(void) { call(SYS_POLL, 0, 0, -1, 0); }
#elif defined(__aarch64__)
enum { SYS_WRITE = 64, SYS_PPOLL = 73, SYS_EXIT = 94 };

static long call(long number, long a, long b, long c, long d) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}

// Sleeps until a signal comes.
static inline void wait_for_signal(void) { call(SYS_PPOLL, 0, 0, 0, 0); }
#else
#error "no system calls known for this processor"
#endif

#endif
