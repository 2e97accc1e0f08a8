// A child with three pipes, started by posix_spawn: what the baselines have in common.
#ifndef PIPED_H
#define PIPED_H

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

struct piped {
    pid_t pid;
    int in, out, err; // our ends
};

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void check(int error, const char *what) {
    if (error) {
        errno = error;
        die(what);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

// Every end is close-on-exec, so no child keeps the pipes of another one open.
static struct piped start(const char *program) {
    int in[2], out[2], err[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) die("pipe2");
    posix_spawn_file_actions_t actions;
    check(posix_spawn_file_actions_init(&actions), "file actions");
    check(posix_spawn_file_actions_adddup2(&actions, in[0], 0), "file actions");
    check(posix_spawn_file_actions_adddup2(&actions, out[1], 1), "file actions");
    check(posix_spawn_file_actions_adddup2(&actions, err[1], 2), "file actions");
    char *argv[] = {(char *)program, NULL};
    struct piped child = {.in = in[1], .out = out[0], .err = err[0]};
    check(posix_spawn(&child.pid, program, &actions, NULL, argv, environ), program);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    close(err[1]);
    return child;
}

static void read_to_end(int fd) {
    char buffer[4096];
    ssize_t n;
    while ((n = read(fd, buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR)) {}
    if (n < 0) die("read");
    close(fd);
}

// Reads what the child still writes, to the end, and takes its status.
static void finish(struct piped *child) {
    read_to_end(child->out);
    read_to_end(child->err);
    close(child->in);
    struct rusage usage;
    while (wait4(child->pid, NULL, 0, &usage) < 0)
        if (errno != EINTR) die("wait4");
}

#endif
