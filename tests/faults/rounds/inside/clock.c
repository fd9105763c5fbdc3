/* A clock that can be set apart from the machine's: loaded into a broker (LD_PRELOAD), it adds the seconds
 * that lie in the file VERBATIM_CLOCK, a number of 64 bits, to what the process is told of the time of day.
 * Clocks that only go forward are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none;
static volatile int64_t *apart = &none;
static int (*of_libc)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    of_libc = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *name = getenv("VERBATIM_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) apart = found;
    close(file);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = of_libc ? of_libc(which, now) : (int)syscall(SYS_clock_gettime, which, now);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *apart;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exactly;
    clock_gettime(CLOCK_REALTIME, &exactly);
    now->tv_sec = exactly.tv_sec;
    now->tv_usec = exactly.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exactly;
    clock_gettime(CLOCK_REALTIME, &exactly);
    if (where) *where = exactly.tv_sec;
    return exactly.tv_sec;
}
