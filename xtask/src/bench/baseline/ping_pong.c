// ping_pong PROGRAM ROUNDS: sends six bytes through PROGRAM (cat) and waits until they are back. Prints the median.
#include "piped.h"

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void round_trip(struct piped *child) {
    char back[6];
    if (write(child->in, "ping.\n", 6) != 6) die("write");
    for (size_t got = 0; got < sizeof back;) {
        ssize_t n = read(child->out, back + got, sizeof back - got);
        if (n <= 0) die("read");
        got += n;
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: ping_pong PROGRAM ROUNDS\n"), 2;
    long rounds = atol(argv[2]);
    double *took = calloc(rounds > 0 ? rounds : 1, sizeof *took);
    if (rounds < 1 || !took) return fprintf(stderr, "ROUNDS out of range\n"), 2;
    struct piped child = start(argv[1]);
    round_trip(&child); // the first one waits for the program to start
    for (long i = 0; i < rounds; i++) {
        double before = now();
        round_trip(&child);
        took[i] = now() - before;
    }
    close(child.in);
    child.in = -1;
    finish(&child);
    qsort(took, rounds, sizeof *took, by_time);
    printf("median_us %.3f\n", took[rounds / 2] * 1e6);
    return 0;
}
