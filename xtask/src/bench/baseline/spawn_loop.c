// spawn_loop PROGRAM COUNT THREADS: starts PROGRAM COUNT times with three pipes, reads both outputs to the end and
// waits for it. Prints the CPU time of this process and its children for each, and how many it did in a second.
#include <pthread.h>
#include <stdatomic.h>

#include "piped.h"

static const char *program;
static atomic_long left;

static void *work(void *unused) {
    (void)unused;
    while (atomic_fetch_sub(&left, 1) > 0) {
        struct piped child = start(program);
        finish(&child);
    }
    return NULL;
}

static double cpu(int who) {
    struct rusage u;
    if (getrusage(who, &u)) die("getrusage");
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: spawn_loop PROGRAM COUNT THREADS\n"), 2;
    program = argv[1];
    long count = atol(argv[2]), threads = atol(argv[3]);
    if (count < 1 || threads < 1 || threads > 64) return fprintf(stderr, "COUNT or THREADS out of range\n"), 2;
    left = count;
    double cpu0 = cpu(RUSAGE_SELF) + cpu(RUSAGE_CHILDREN), wall0 = now();
    pthread_t thread[64];
    for (long i = 1; i < threads; i++) check(pthread_create(&thread[i], NULL, work, NULL), "pthread_create");
    work(NULL);
    for (long i = 1; i < threads; i++) check(pthread_join(thread[i], NULL), "pthread_join");
    double wall = now() - wall0, used = cpu(RUSAGE_SELF) + cpu(RUSAGE_CHILDREN) - cpu0;
    printf("cpu_us_per_spawn %.3f\nspawns_per_s %.3f\n", used * 1e6 / count, count / wall);
    return 0;
}
