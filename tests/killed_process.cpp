// Stands before functions of the C library that change files, and kills the process at one of them.
// Each call is a moment, and in the middle of a `write` is another one: half of its bytes are there.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

std::atomic<long> moments{0}; // that are left; none are counted at 0

bool is_last() { return moments.load() > 0 && moments.fetch_sub(1) == 1; }

void die() {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

void moment() {
    if (is_last()) die();
}

bool is_file(int fd) {
    struct stat status;
    return !fstat(fd, &status) && S_ISREG(status.st_mode);
}

} // namespace

// Dies at the n-th moment from now on.
EXPORT void die_at_moment(long n) { moments = n; }

// The function behind this one. Pipes, terminals and sockets do not count.
#define NEXT(name) static const auto next = reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name))

#define WRITE(name, parameters, arguments, half)                                                             \
    EXPORT ssize_t name parameters {                                                                         \
        NEXT(name);                                                                                          \
        if (is_file(fd)) {                                                                                   \
            moment();                                                                                        \
            if (is_last()) {                                                                                 \
                half;                                                                                        \
                die();                                                                                       \
            }                                                                                                \
        }                                                                                                    \
        return next arguments;                                                                               \
    }

#define CHANGE(name, parameters, arguments)                                                                  \
    EXPORT int name parameters {                                                                             \
        NEXT(name);                                                                                          \
        moment();                                                                                            \
        return next arguments;                                                                               \
    }

WRITE(write, (int fd, const void* bytes, size_t size), (fd, bytes, size), (void)!next(fd, bytes, size / 2))
WRITE(pwrite, (int fd, const void* bytes, size_t size, off_t at), (fd, bytes, size, at),
      (void)!next(fd, bytes, size / 2, at))
WRITE(pwrite64, (int fd, const void* bytes, size_t size, off64_t at), (fd, bytes, size, at),
      (void)!next(fd, bytes, size / 2, at))
WRITE(writev, (int fd, const iovec* parts, int count), (fd, parts, count), (void)!next(fd, parts, count / 2))
WRITE(pwritev, (int fd, const iovec* parts, int count, off_t at), (fd, parts, count, at),
      (void)!next(fd, parts, count / 2, at))
WRITE(pwritev64, (int fd, const iovec* parts, int count, off64_t at), (fd, parts, count, at),
      (void)!next(fd, parts, count / 2, at))
CHANGE(ftruncate, (int fd, off_t size), (fd, size))
CHANGE(ftruncate64, (int fd, off64_t size), (fd, size))
CHANGE(fsync, (int fd), (fd))
CHANGE(fdatasync, (int fd), (fd))
CHANGE(futimens, (int fd, const timespec* times), (fd, times))
CHANGE(link, (const char* from, const char* to), (from, to))
CHANGE(linkat, (int from_fd, const char* from, int to_fd, const char* to, int flags),
       (from_fd, from, to_fd, to, flags))
CHANGE(rename, (const char* from, const char* to), (from, to))
CHANGE(renameat, (int from_fd, const char* from, int to_fd, const char* to), (from_fd, from, to_fd, to))
CHANGE(unlink, (const char* path), (path))
CHANGE(unlinkat, (int fd, const char* path, int flags), (fd, path, flags))
