// producer [LINES]: writes numbered lines, from 0, in blocks of 64 KiB and as fast as it can; without LINES it goes on
// for ever.
#include "numbered.h"

enum { BLOCK = 64 * 1024, LINES = 4096 }; // LINES * LINE is five blocks exactly

static char buffer[LINES * LINE];
static char number[DIGITS + 1] = "000000000000";

int main(int argc, char **argv) {
    long long left = argc > 1 ? atoll(argv[1]) : -1;
    for (long i = 0; i < LINES; i++) fill_line(buffer + i * LINE);
    while (left != 0) {
        long n = left < 0 || left > LINES ? LINES : left;
        for (long i = 0; i < n; i++) {
            memcpy(buffer + i * LINE, number, DIGITS);
            count_up(number);
        }
        for (size_t at = 0, size = n * LINE; at < size; at += BLOCK)
            write_all(1, buffer + at, size - at < BLOCK ? size - at : BLOCK);
        if (left > 0) left -= n;
    }
    return 0;
}
