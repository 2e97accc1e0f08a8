// linger LINES silent|chatter MILLISECONDS: writes LINES numbered lines to stdout and as many to stderr, leaves behind a
// child that holds both pipes for a while, and exits at once with status 3. The child is silent, or it writes a line
// that begins with L every millisecond, so that there is never silence.
#include <signal.h>
#include <time.h>

#include "numbered.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void write_lines(int fd, long lines) {
    char line[LINE], number[DIGITS + 1] = "000000000000";
    fill_line(line);
    for (long i = 0; i < lines; i++) {
        memcpy(line, number, DIGITS);
        write_all(fd, line, LINE);
        count_up(number);
    }
}

static void chatter(double seconds) {
    double until = now() + seconds;
    char line[LINE + 1];
    for (unsigned i = 0; now() < until; i++) {
        int n = snprintf(line, sizeof line, "L%u\n", i);
        write_all(1, line, n);
        usleep(1000);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: linger LINES silent|chatter MILLISECONDS\n"), 2;
    long lines = atol(argv[1]);
    double seconds = atol(argv[3]) / 1e3;
    write_lines(1, lines);
    write_lines(2, lines);
    pid_t child = fork();
    if (child < 0) return perror("fork"), 1;
    if (child > 0) _exit(3);
    if (!strcmp(argv[2], "chatter")) chatter(seconds);
    else usleep((useconds_t)(seconds * 1e6));
    _exit(0);
}
