// Opening and reading of files: links are never followed, nothing blocks, short reads are failures.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "job.h"

namespace gpustore {

// Writes down what tells one version of a file from another.
inline void write_generation(const struct stat& status, i64* four) {
#ifdef __APPLE__
    const timespec& time = status.st_mtimespec;
#else
    const timespec& time = status.st_mtim;
#endif
    four[0] = static_cast<i64>(status.st_dev), four[1] = static_cast<i64>(status.st_ino);
    four[2] = time.tv_sec * 1'000'000'000 + time.tv_nsec, four[3] = status.st_size;
}

class File {
public:
    File() = default;
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File() { close(); }

    // Opens a regular file; an errno otherwise, and EINVAL for anything else.
    int open(i64 directory, const char* key, i64 resolve) {
        close();
        // O_NONBLOCK: opening a FIFO returns at once instead of waiting for a writer.
        const int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC, at = static_cast<int>(directory);
        fd_ = resolve ? open_resolved(at, key, flags, resolve) : walk(at, key, flags);
        if (fd_ < 0) return errno;
        if (fstat(fd_, &status_) || !S_ISREG(status_.st_mode)) return close(), EINVAL;
        size_ = status_.st_size;
        return 0;
    }

    i64 size() const { return size_; }

    void generation(i64* four) const { write_generation(status_, four); }

    // Reads exactly `n` bytes at `offset`, which must lie inside the file.
    bool read(u8* to, i64 n, i64 offset) const {
        if (offset < 0 || n < 0 || offset > size_ || n > size_ - offset) return false;
        while (n > 0) {
            const ssize_t got = pread(fd_, to, static_cast<std::size_t>(n), offset);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return false;
            to += got, offset += got, n -= got;
        }
        return true;
    }

    void close() {
        if (fd_ >= 0) ::close(fd_);
        fd_ = -1;
    }

private:
    static int open_resolved(int directory, const char* key, int flags, i64 resolve) {
#ifdef __linux__
        struct { std::uint64_t flags, mode, resolve; } how = {
            static_cast<std::uint64_t>(flags), 0, static_cast<std::uint64_t>(resolve)};
        const long number = 437;  // openat2: the same on every architecture
        return static_cast<int>(syscall(number, directory, key, &how, sizeof how));
#else
        (void)directory, (void)key, (void)flags, (void)resolve;
        return errno = ENOSYS, -1;
#endif
    }

    // Opens a path below a directory where there is no openat2: one component after the other, none
    // of them a link.
    static int walk(int directory, const char* path, int flags) {
#ifdef O_PATH
        const int step = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
#else
        const int step = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
#endif
        for (int at = directory;;) {
            const char* end = std::strchr(path, '/');
            const std::size_t n = end ? static_cast<std::size_t>(end - path) : std::strlen(path);
            char name[256];
            int next = -1, error = EINVAL;
            if (n > 0 && n < sizeof name) {
                std::memcpy(name, path, n), name[n] = 0;
                if (std::strcmp(name, ".") && std::strcmp(name, "..")) {
                    next = openat(at, name, end ? step : flags | O_NOFOLLOW);
                    error = next < 0 ? errno : 0;
                    // A link is not a missing directory.
                    if (error == ENOTDIR && end && is_link(at, name)) error = ELOOP;
                }
            }
            if (at != directory) ::close(at);
            if (error || !end) return errno = error, next;
            at = next, path = end + 1;
        }
    }

    static bool is_link(int directory, const char* name) {
        struct stat status;
        return fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) || S_ISLNK(status.st_mode);
    }

    int fd_ = -1;
    i64 size_ = 0;
    struct stat status_ = {};
};

}  // namespace gpustore
