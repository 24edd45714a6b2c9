/* A disk that answers late: loaded into a process with LD_PRELOAD, it lets every read of a table file wait.
 *
 * A file that lies under $ASYNCSTATE_SLOWREAD_FOLDER and whose name ends in ".sst" is remembered when it is opened.
 * Each pread of it sleeps for $ASYNCSTATE_SLOWREAD_NS nanoseconds on the thread that reads, then is made. Readers
 * share nothing but a counter, so any number of them wait side by side, as on a network volume.
 * slowread_count() tells how many reads there were, with a latency of 0 too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define FILES 65536

static atomic_long reads;
static atomic_bool is_table[FILES]; /* by file descriptor */
static char folder[4096];
static size_t folder_length;
static struct timespec latency;

static int (*real_open)(const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_pread)(int, void *, size_t, off_t);

long slowread_count(void) { return atomic_load(&reads); }

__attribute__((constructor)) static void configure(void) {
    real_open = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    real_close = (int (*)(int))dlsym(RTLD_NEXT, "close");
    real_pread = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
    const char *given = getenv("ASYNCSTATE_SLOWREAD_FOLDER");
    const char *nanoseconds = getenv("ASYNCSTATE_SLOWREAD_NS");
    if (given == NULL || strlen(given) >= sizeof folder)
        return;
    strcpy(folder, given);
    folder_length = strlen(folder);
    long long wait = nanoseconds == NULL ? 0 : atoll(nanoseconds);
    latency.tv_sec = wait / 1000000000;
    latency.tv_nsec = wait % 1000000000;
    prctl(PR_SET_TIMERSLACK, 1UL); /* by default a sleep may end 50 us late; threads inherit this */
}

static int opened(const char *path, int fd) {
    size_t length = strlen(path);
    if (fd >= 0 && fd < FILES)
        atomic_store(&is_table[fd], folder_length > 0 && length > folder_length + 4 &&
                                        memcmp(path, folder, folder_length) == 0 &&
                                        memcmp(path + length - 4, ".sst", 4) == 0);
    return fd;
}

static int opened_with(const char *path, int flags, va_list arguments) {
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, int) : 0;
    return opened(path, real_open(path, flags | O_LARGEFILE, mode));
}

int open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    int fd = opened_with(path, flags, arguments);
    va_end(arguments);
    return fd;
}

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    int fd = opened_with(path, flags, arguments);
    va_end(arguments);
    return fd;
}

int close(int fd) {
    if (fd >= 0 && fd < FILES)
        atomic_store(&is_table[fd], 0);
    return real_close(fd);
}

static void wait_for_device(int fd) {
    if (fd < 0 || fd >= FILES || !atomic_load(&is_table[fd]))
        return;
    atomic_fetch_add(&reads, 1);
    struct timespec left = latency;
    while ((left.tv_sec || left.tv_nsec) && clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) != 0)
        ; /* a signal came: sleep for what is left */
}

ssize_t pread(int fd, void *buffer, size_t bytes, off_t at) {
    wait_for_device(fd);
    return real_pread(fd, buffer, bytes, at);
}

ssize_t pread64(int fd, void *buffer, size_t bytes, off64_t at) {
    wait_for_device(fd);
    return real_pread(fd, buffer, bytes, at);
}
