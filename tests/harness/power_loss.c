/* Notes what a process changes below a folder (LD_PRELOAD), in order, so that power_loss.py can make the disks that a
   loss of power may leave. POWER_LOSS_FOLDER is the folder, POWER_LOSS_NOTES the file of notes; power_loss.py has their
   layout. A system call and its note are one step for all threads: no call returns before its note is written.
   Memory maps are not seen: the store has none. System calls are made directly, to be ready before the C library is. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FILES 4096

struct note {
    uint32_t kind;
    uint32_t size; /* of the text or data after it */
    uint64_t file; /* inode */
    uint64_t offset;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static size_t folder_size;
static int notes = -1;
static char *paths[MAX_FILES]; /* of open files below the folder, from there on */

__attribute__((constructor)) static void begin(void) {
    const char *where = getenv("POWER_LOSS_FOLDER"), *to = getenv("POWER_LOSS_NOTES");
    if (!where || !to || !realpath(where, folder))
        return;
    folder_size = strlen(folder);
    notes = (int)syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static void note(char kind, uint64_t file, uint64_t offset, const void *data, size_t size) {
    struct note head = {(uint32_t)kind, (uint32_t)size, file, offset};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, size}};
    int before = errno;
    if (syscall(SYS_writev, notes, parts, 2) != (long)(sizeof head + size))
        abort();
    errno = before;
}

/* From the folder on; NULL: not below it. */
static const char *inside(const char *path, char *full) {
    if (notes < 0 || !path)
        return NULL;
    if (path[0] != '/') {
        if (!getcwd(full, PATH_MAX))
            return NULL;
        size_t size = strlen(full);
        snprintf(full + size, PATH_MAX - size, "/%s", path);
    } else {
        snprintf(full, PATH_MAX, "%s", path);
    }
    if (strncmp(full, folder, folder_size) || (full[folder_size] && full[folder_size] != '/'))
        return NULL;
    return full[folder_size] ? full + folder_size + 1 : full + folder_size;
}

static uint64_t inode(int file, uint64_t *size, int *is_folder) {
    struct stat found;
    if (fstat(file, &found))
        abort();
    if (size)
        *size = (uint64_t)found.st_size;
    if (is_folder)
        *is_folder = S_ISDIR(found.st_mode);
    return found.st_ino;
}

static const char *known(int file) { return file >= 0 && file < MAX_FILES ? paths[file] : NULL; }

static void forget(int file) {
    if (known(file)) {
        free(paths[file]);
        paths[file] = NULL;
    }
}

static int opened(int at, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    const char *name = inside(path, full);
    struct stat before;
    pthread_mutex_lock(&lock);
    int is_new = name && (flags & O_CREAT) && stat(path, &before);
    int file = (int)syscall(SYS_openat, at, path, flags, mode);
    if (file >= 0) {
        forget(file);
        if (name && file < MAX_FILES) {
            paths[file] = strdup(name);
            if (is_new)
                note('c', inode(file, NULL, NULL), 0, name, strlen(name));
            else if (flags & O_TRUNC)
                note('t', inode(file, NULL, NULL), 0, "", 0);
        }
    }
    pthread_mutex_unlock(&lock);
    return file;
}

#define MODE(flags)                                                                                                    \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & O_CREAT) {                                                                                          \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode = va_arg(more, mode_t);                                                                                   \
        va_end(more);                                                                                                  \
    }

int open(const char *path, int flags, ...) {
    MODE(flags)
    return opened(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(flags)
    return opened(AT_FDCWD, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...) {
    MODE(flags)
    return opened(at, path, flags, mode);
}

int openat64(int at, const char *path, int flags, ...) {
    MODE(flags)
    return opened(at, path, flags, mode);
}

int close(int file) {
    pthread_mutex_lock(&lock);
    forget(file);
    int result = (int)syscall(SYS_close, file);
    pthread_mutex_unlock(&lock);
    return result;
}

ssize_t write(int file, const void *data, size_t size) {
    if (!known(file))
        return syscall(SYS_write, file, data, size);
    pthread_mutex_lock(&lock);
    uint64_t end;
    uint64_t number = inode(file, &end, NULL);
    uint64_t at = fcntl(file, F_GETFL) & O_APPEND ? end : (uint64_t)lseek(file, 0, SEEK_CUR);
    ssize_t result = syscall(SYS_write, file, data, size);
    if (result > 0)
        note('w', number, at, data, (size_t)result);
    pthread_mutex_unlock(&lock);
    return result;
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    if (!known(file))
        return syscall(SYS_pwrite64, file, data, size, at);
    pthread_mutex_lock(&lock);
    ssize_t result = syscall(SYS_pwrite64, file, data, size, at);
    if (result > 0)
        note('w', inode(file, NULL, NULL), (uint64_t)at, data, (size_t)result);
    pthread_mutex_unlock(&lock);
    return result;
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) { return pwrite64(file, data, size, at); }

int ftruncate64(int file, off64_t size) {
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_ftruncate, file, size);
    if (!result && known(file))
        note('t', inode(file, NULL, NULL), (uint64_t)size, "", 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int truncate64(const char *path, off64_t size) {
    char full[PATH_MAX];
    struct stat found;
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_truncate, path, size);
    if (!result && inside(path, full) && !stat(path, &found))
        note('t', found.st_ino, (uint64_t)size, "", 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int truncate(const char *path, off_t size) { return truncate64(path, size); }

static int synced(int file, long call) {
    if (!known(file))
        return (int)syscall(call, file);
    pthread_mutex_lock(&lock);
    int is_folder, result = 0; /* the machine keeps its power: the true call would only take time */
    uint64_t number = inode(file, NULL, &is_folder);
    const char *name = known(file);
    if (is_folder)
        note('d', number, 0, name, strlen(name));
    else
        note('s', number, 0, name, strlen(name));
    pthread_mutex_unlock(&lock);
    return result;
}

int fsync(int file) { return synced(file, SYS_fsync); }

int fdatasync(int file) { return synced(file, SYS_fdatasync); }

/* A change of names: NAME, or NAME zero NAME. */
static void named(char kind, const char *first, const char *second) {
    char a[PATH_MAX], b[PATH_MAX], both[2 * PATH_MAX];
    const char *from = inside(first, a), *to = second ? inside(second, b) : NULL;
    if (!from || (second && !to))
        return;
    size_t size = strlen(from);
    memcpy(both, from, size + 1);
    if (to) {
        strcpy(both + size + 1, to);
        size += 1 + strlen(to);
    }
    note(kind, 0, 0, both, size);
}

#define NAMED(kind, call, first, second)                                                                               \
    pthread_mutex_lock(&lock);                                                                                         \
    int result = (int)(call);                                                                                          \
    if (!result)                                                                                                       \
        named(kind, first, second);                                                                                    \
    pthread_mutex_unlock(&lock);                                                                                       \
    return result

int rename(const char *old, const char *new) { NAMED('r', syscall(SYS_rename, old, new), old, new); }

int link(const char *old, const char *new) { NAMED('l', syscall(SYS_link, old, new), old, new); }

int unlink(const char *path) { NAMED('u', syscall(SYS_unlink, path), path, NULL); }

int mkdir(const char *path, mode_t mode) { NAMED('m', syscall(SYS_mkdir, path, mode), path, NULL); }

int rmdir(const char *path) { NAMED('u', syscall(SYS_rmdir, path), path, NULL); }

/* A note of the test itself. */
void power_loss_mark(uint64_t number) {
    if (notes >= 0)
        note('k', number, 0, "", 0);
}
