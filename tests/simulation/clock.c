/* The clocks of a simulation (LD_PRELOAD). While `simulated_now` is not negative, all clocks of the process show it, in
   nanoseconds, and a wait of C code takes no time. Else they are true. CLOCK_MONOTONIC_RAW and clocks of CPU time always
   are. System calls are made directly, so that it works before the C library is ready. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000
#define WALL_AT_START 1800000000 /* seconds since 1970 */
#define UP_AT_START 100000       /* seconds that the machine has run */

int64_t simulated_now = -1;
int64_t simulated_step = 0; /* by which the wall clock is wrong, in nanoseconds */

static int is_simulated(clockid_t clock) {
    if (simulated_now < 0)
        return 0;
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_MONOTONIC ||
           clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int64_t ns = simulated_now;
    if (!is_simulated(clock))
        return (int)syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        ns += simulated_step + (int64_t)WALL_AT_START * NS;
    else
        ns += (int64_t)UP_AT_START * NS;
    now->tv_sec = ns / NS;
    now->tv_nsec = ns % NS;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int result = clock_gettime(CLOCK_REALTIME, &found);
    (void)zone;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now)
        *now = found.tv_sec;
    return found.tv_sec;
}

int nanosleep(const struct timespec *wanted, struct timespec *left) {
    if (simulated_now >= 0)
        return 0;
    return (int)syscall(SYS_nanosleep, wanted, left);
}
