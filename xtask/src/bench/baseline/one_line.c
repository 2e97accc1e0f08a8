// A static child that prints one line and then sleeps until a signal ends it.
#include "bare_system.h"

void _start(void) {
    call(SYS_WRITE, 1, (long)"ready\n", 6, 0);
    for (;;) wait_for_signal();
}
