/* Records what a process does to the files of one directory, makes one of these operations fail, or kills the
 * process at one.
 *
 * Loaded with LD_PRELOAD. Environment:
 *   SHIM_DIR    only files directly in this directory are observed
 *   SHIM_TRACE  operations are appended to this file, in the order in which they were carried out
 *   SHIM_FAIL   "N:ERRNO:COUNT": operations N to N + COUNT - 1 on the database fail, counted from 1; if ERRNO is
 *               0, the process is killed instead, before the operation
 *   SHIM_COUNT  at exit, the number of operations on the database is written to this file
 *
 * A record is one write to a file opened with O_APPEND, so that records of several processes do not mix:
 *   u32 length of what follows, u8 kind, u16 length of the name, name, u64 offset, data
 * SQLite's locks order the writes of several processes to one place of a file. A write is recorded while
 * its process holds the lock; a sync is recorded twice, before and after.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE = 'w', TRUNCATE = 't', SYNC_BEGIN = 'b', SYNC_END = 's', UNLINK = 'u' };

#define MAX_FILES 4096

static char *names[MAX_FILES]; /* of observed files, by descriptor */
static char directory[PATH_MAX];
static size_t directory_length;
static int trace = -1;
static int injecting;
static long fail_from, fail_count, fail_errno, operations;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static ssize_t real_write(int fd, const void *data, size_t length) {
    REAL(write);
    return real(fd, data, length);
}

__attribute__((constructor)) static void start(void) {
    const char *given = getenv("SHIM_DIR");
    if (!given || !realpath(given, directory)) return;
    directory_length = strlen(directory);
    const char *path = getenv("SHIM_TRACE");
    if (path) trace = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    const char *fail = getenv("SHIM_FAIL");
    injecting = fail && sscanf(fail, "%ld:%ld:%ld", &fail_from, &fail_errno, &fail_count) == 3;
}

__attribute__((destructor)) static void finish(void) {
    const char *path = getenv("SHIM_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "%ld", operations);
    fclose(file);
}

/* The name of a path in the directory, or NULL if it is elsewhere. */
static const char *observed(const char *path) {
    if (!directory_length || strncmp(path, directory, directory_length)) return NULL;
    if (path[directory_length] == 0) return ".";
    if (path[directory_length] != '/') return NULL;
    const char *name = path + directory_length + 1;
    return *name && !strchr(name, '/') ? name : NULL;
}

static const char *name_of(int fd) {
    return fd >= 0 && fd < MAX_FILES ? names[fd] : NULL;
}

static void record(enum kind kind, const char *name, uint64_t offset, const void *data, size_t length) {
    if (trace < 0) return;
    uint16_t name_length = strlen(name);
    uint32_t total = 1 + 2 + name_length + 8 + length;
    char *buffer = malloc(4 + total), *at = buffer;
    if (!buffer) abort();
    memcpy(at, &total, 4), at += 4;
    *at++ = kind;
    memcpy(at, &name_length, 2), at += 2;
    memcpy(at, name, name_length), at += name_length;
    memcpy(at, &offset, 8), at += 8;
    if (length) memcpy(at, data, length);
    if (real_write(trace, buffer, 4 + total) != (ssize_t)(4 + total)) abort();
    free(buffer);
}

/* Whether this operation is to fail, with errno set. Counts those on the database and its log. */
static int fails(const char *name) {
    size_t length = strlen(name);
    int database = length >= 3 && strstr(name, ".db");
    if (!database) return 0;
    pthread_mutex_lock(&lock);
    long number = ++operations;
    pthread_mutex_unlock(&lock);
    if (!injecting || number < fail_from || number >= fail_from + fail_count) return 0;
    if (!fail_errno) kill(getpid(), SIGKILL);
    errno = fail_errno;
    return 1;
}

static int opened(int fd, const char *path) {
    char whole[PATH_MAX];
    if (fd < 0 || fd >= MAX_FILES || !directory_length) return fd;
    int saved = errno;
    const char *name = realpath(path, whole) ? observed(whole) : NULL;
    free(names[fd]);
    names[fd] = name ? strdup(name) : NULL;
    errno = saved;
    return fd;
}

#define OPEN(function) \
    int function(const char *path, int flags, ...) { \
        REAL(function); \
        va_list arguments; \
        va_start(arguments, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0; \
        va_end(arguments); \
        return opened(real(path, flags, mode), path); \
    }

OPEN(open)
OPEN(open64)

int close(int fd) {
    REAL(close);
    if (name_of(fd)) {
        free(names[fd]);
        names[fd] = NULL;
    }
    return real(fd);
}

static ssize_t written(int fd, const void *data, ssize_t length, off64_t offset) {
    if (length > 0) record(WRITE, name_of(fd), offset, data, length);
    return length;
}

ssize_t write(int fd, const void *data, size_t length) {
    const char *name = name_of(fd);
    if (!name) return real_write(fd, data, length);
    if (fails(name)) return -1;
    int appends = fcntl(fd, F_GETFL) & O_APPEND;
    off64_t offset = lseek64(fd, 0, appends ? SEEK_END : SEEK_CUR);
    return written(fd, data, real_write(fd, data, length), offset);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    REAL(pwrite);
    const char *name = name_of(fd);
    if (!name) return real(fd, data, length, offset);
    if (fails(name)) return -1;
    return written(fd, data, real(fd, data, length, offset), offset);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    REAL(pwrite64);
    const char *name = name_of(fd);
    if (!name) return real(fd, data, length, offset);
    if (fails(name)) return -1;
    return written(fd, data, real(fd, data, length, offset), offset);
}

#define SYNC(function) \
    int function(int fd) { \
        REAL(function); \
        const char *name = name_of(fd); \
        if (!name) return real(fd); \
        if (fails(name)) return -1; \
        record(SYNC_BEGIN, name, gettid(), NULL, 0); \
        int result = real(fd); \
        if (!result) record(SYNC_END, name, gettid(), NULL, 0); \
        return result; \
    }

SYNC(fsync)
SYNC(fdatasync)

#define TRUNCATE_WITH(function, type) \
    int function(int fd, type length) { \
        REAL(function); \
        const char *name = name_of(fd); \
        if (!name) return real(fd, length); \
        if (fails(name)) return -1; \
        int result = real(fd, length); \
        if (!result) record(TRUNCATE, name, length, NULL, 0); \
        return result; \
    }

TRUNCATE_WITH(ftruncate, off_t)
TRUNCATE_WITH(ftruncate64, off64_t)

int unlink(const char *path) {
    REAL(unlink);
    char whole[PATH_MAX];
    const char *name = directory_length && realpath(path, whole) ? observed(whole) : NULL;
    int result = real(path);
    if (!result && name) record(UNLINK, name, 0, NULL, 0);
    return result;
}
