// kill_loop PROGRAM COUNT: starts COUNT children, waits for a line of each, then takes the time to kill them all,
// read their pipes to the end and reap them. Prints it.
#include <signal.h>

#include "piped.h"

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: kill_loop PROGRAM COUNT\n"), 2;
    long count = atol(argv[2]);
    struct piped *child = calloc(count > 0 ? count : 1, sizeof *child);
    if (count < 1 || !child) return fprintf(stderr, "COUNT out of range\n"), 2;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files)) die("getrlimit");
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files)) die("setrlimit");
    char line[64];
    for (long i = 0; i < count; i++) {
        child[i] = start(argv[1]);
        if (read(child[i].out, line, sizeof line) <= 0) die("read");
    }
    double before = now();
    for (long i = 0; i < count; i++)
        if (kill(child[i].pid, SIGTERM)) die("kill");
    for (long i = 0; i < count; i++) finish(&child[i]);
    printf("seconds %.6f\n", now() - before);
    return 0;
}
