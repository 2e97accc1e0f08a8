// Lines of 80 bytes that the checker knows: twelve digits, a blank, and a filler.
#ifndef NUMBERED_H
#define NUMBERED_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 80, DIGITS = 12 };

// Everything of a line but its number.
static void fill_line(char *line) {
    for (int k = DIGITS; k < LINE; k++) line[k] = 'a' + (k - DIGITS) % 26;
    line[DIGITS] = ' ';
    line[LINE - 1] = '\n';
}

static void count_up(char *number) {
    for (int i = DIGITS - 1; i >= 0 && ++number[i] > '9'; i--) number[i] = '0';
}

static void write_all(int fd, const char *from, size_t n) {
    while (n > 0) {
        ssize_t done = write(fd, from, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) {
            perror("write");
            exit(1);
        }
        from += done;
        n -= done;
    }
}

#endif
