// Writing of chunks as files: gather from arrays, encode, and store under the key's lock. The first two
// steps alone encode the inner chunks of a shard. A chunk that is not written whole is decoded first; its
// file is read under the lock, so that nobody changes it meanwhile.
//
// A file is stored as TensorStore does it: the value is written into the lock file of its key
// (gpustore/kvstores/file/lock.py), which then gets the key's name. The lock file must be a new one
// that nobody else has locked; otherwise the row is left to Python, which waits. Where bytes must
// reach the disk, some files are begun before the first is waited for, so that they share commits of
// the file system's journal.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "encode.h"
#include "file.h"
#include "place.h"

namespace gpustore {

// Whether all elements of a box are one value, bit for bit.
template <class T> bool is_filled(const u8* at, const Dimension* dimension, int rank, T value) {
    if (rank == 0) return load<T, false>(at) == value;
    const i64 step = dimension->src, count = dimension->count;
    if (rank > 1) {
        for (i64 i = 0; i < count; i++)
            if (!is_filled<T>(at + i * step, dimension + 1, rank - 1, value)) return false;
        return true;
    }
    constexpr i64 size = sizeof(T), group = 1024;
    for (i64 begin = 0; begin < count; begin += group) {
        const i64 end = std::min(begin + group, count);
        T differs = 0;
        if (step == size)
            for (i64 i = begin; i < end; i++) differs |= static_cast<T>(load<T, false>(at + i * size) ^ value);
        else
            for (i64 i = begin; i < end; i++) differs |= static_cast<T>(load<T, false>(at + i * step) ^ value);
        if (differs) return false;
    }
    return true;
}

inline bool are_filled(const u8* at, const Dimension* dimension, int rank, const u8* fill, i64 itemsize) {
    if (rank == 0) return !std::memcmp(at, fill, static_cast<std::size_t>(itemsize));
    for (i64 i = 0; i < dimension->count; i++)
        if (!are_filled(at + i * dimension->src, dimension + 1, rank - 1, fill, itemsize)) return false;
    return true;
}

// A new file under a key's lock, which has not got the key's name yet.
class NewFile {
public:
    // Creates and locks the lock file of `name`; false if it is there or somebody was faster.
    bool create(i64 directory, const char* name) {
        directory_ = static_cast<int>(directory), name_ = name;
#ifdef F_OFD_SETLK
        const int length = std::snprintf(lock_name_, sizeof lock_name_, "%s.__lock", name);
        const bool is_name = *name && !std::strchr(name, '/') && std::strcmp(name, ".") && std::strcmp(name, "..");
        if (directory < 0 || !is_name || length < 0 || length >= static_cast<int>(sizeof lock_name_)) return false;
        const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
        fd_ = openat(directory_, lock_name_, flags, 0666);
        if (fd_ < 0) return false;
        struct flock lock = {};
        lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET;
        struct stat ours, named;
        // The file is another writer's if that one has locked it, or has taken its name away.
        if (!fcntl(fd_, F_OFD_SETLK, &lock) && !fstat(fd_, &ours) &&
            !fstatat(directory_, lock_name_, &named, AT_SYMLINK_NOFOLLOW) &&
            ours.st_dev == named.st_dev && ours.st_ino == named.st_ino)
            return true;
        close();
#endif
        return false;
    }

    bool write(const u8* bytes, i64 size) {
        while (size > 0) {
            const ssize_t written = ::write(fd_, bytes, static_cast<std::size_t>(size));
            if (written < 0 && errno == EINTR) continue;
            if (written <= 0) return false;
            bytes += written, size -= written;
        }
        return true;
    }

    // Gives the file an exact time: that of some kernels stands still for 10 ms.
    bool stamp() {
        struct timespec now[2];
        return !clock_gettime(CLOCK_REALTIME, now) && (now[1] = now[0], !futimens(fd_, now));
    }

    // Begins to write the bytes to the disk, without waiting.
    void begin_sync() {
#ifdef SYNC_FILE_RANGE_WRITE
        (void)sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);
#endif
    }

    bool sync() {
        int failed;
        do failed = fsync(fd_);
        while (failed && errno == EINTR);
        return !failed;
    }

    // Whether nothing has the name yet.
    bool is_first() const {
        struct stat named;
        return fstatat(directory_, name_, &named, AT_SYMLINK_NOFOLLOW) && errno == ENOENT;
    }

    // Whether the name is that of one version of a file: see File::generation().
    bool replaces(const u8* four) const {
        struct stat named;
        i64 found[4];
        if (fstatat(directory_, name_, &named, AT_SYMLINK_NOFOLLOW) || !S_ISREG(named.st_mode)) return false;
        write_generation(named, found);
        return !std::memcmp(found, four, sizeof found);
    }

    // Takes the name away from an old file.
    bool make_room() const { return !unlinkat(directory_, name_, 0) || errno == ENOENT; }

    // Some file systems tell only when a file is closed that they have no room; the lock is held on.
    bool flush() const {
        const int copy = fcntl(fd_, F_DUPFD_CLOEXEC, 0);
        return copy >= 0 && !::close(copy);
    }

    bool rename() {
        if (renameat(directory_, lock_name_, directory_, name_)) return false;
        close();
        return true;
    }

    // Removes the file, which is locked until it is gone.
    void remove() {
        unlinkat(directory_, lock_name_, 0);
        close();
    }

private:
    void close() {
        ::close(fd_);
        fd_ = -1;
    }

    int fd_ = -1, directory_ = -1;
    const char* name_ = nullptr;
    char lock_name_[256];
};

class Writer {
public:
    Writer(WriteJob& job, Scratch& scratch, const u8* cancelled)
        : job_(job), encoding_(*job.encoding), array_(*encoding_.array), scratch_(scratch),
          cancelled_(cancelled), encoder_(encoding_, scratch), decoder_(array_, scratch) {}

    // Finds the chunks that equal the fill value. 1 if `nanoseconds` were over first or the write is
    // cancelled, as in work().
    int find_fill(i64 nanoseconds) {
        const auto end = Clock::now() + std::chrono::nanoseconds(nanoseconds);
        while (!is_set(cancelled_) && job_.next < job_.end) {
            const i64 row = job_.next++;
            if (!is_covered(row))
                job_.status[row] = NOT_DONE;
            else if (array_.fill && is_single(row) && is_fill(row))
                job_.status[row] = MISSING;
            if (Clock::now() >= end) break;
        }
        return is_set(cancelled_) || job_.next < job_.end;
    }

    // Writes the rows that are not decided yet. Once the write is cancelled no file gets its name.
    int work(i64 nanoseconds) {
        const auto end = Clock::now() + std::chrono::nanoseconds(nanoseconds);
        while (!is_set(cancelled_) && job_.next < job_.end) {
            const i64 row = job_.next++;
            if (job_.status[row] == UNTOUCHED) begin(row);
            if (begun_ == MOST_BEGUN || begun_nbytes_ >= BEGUN_NBYTES || !job_.syncs) finish();
            if (Clock::now() >= end) break;
        }
        finish();
        scratch_.shrink(Scratch::KEPT_NBYTES);
        return is_set(cancelled_) || job_.next < job_.end;
    }

    // Encodes the rows that are not decided yet into memory.
    int encode(i64 nanoseconds) {
        const auto end = Clock::now() + std::chrono::nanoseconds(nanoseconds);
        while (!is_set(cancelled_) && job_.next < job_.end) {
            const i64 row = job_.next++;
            if (job_.status[row] == UNTOUCHED) encode_row(row);
            if (Clock::now() >= end) break;
        }
        scratch_.shrink(Scratch::KEPT_NBYTES);
        return is_set(cancelled_) || job_.next < job_.end;
    }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr int MOST_BEGUN = 8;
    static constexpr i64 BEGUN_NBYTES = 8 << 20;

    i64 first_region(i64 row) const { return job_.first ? job_.first[row] : row; }
    i64 source_of(i64 region) const { return job_.source ? job_.source[region] : 0; }
    i64 under(i64 row) const { return job_.under ? job_.under[row] : i64(NOTHING); }

    // Whether one region is the whole of a row.
    bool is_single(i64 row) const {
        const i64 region = first_region(row);
        return first_region(row + 1) == region + 1 && under(row) == NOTHING && !job_.sources[source_of(region)].mask;
    }

    Box box_of(i64 region) const {
        Box box;
        const i64 number = source_of(region) * job_.rank;
        for (i64 d = 0; d < job_.rank; d++)
            box.add(job_.count[d * job_.regions + region], job_.src_stride[number + d], job_.dst_stride[number + d]);
        return box;
    }

    const u8* from(i64 region) const {
        const Source& source = job_.sources[source_of(region)];
        return source.memory + source.offset + job_.dst_start[region];
    }

    // Whether the regions of a row lie inside the chunk and inside their arrays.
    bool is_covered(i64 row) const {
        if (job_.rank > MAX_INPUT_RANK) return false;
        for (i64 region = first_region(row); region < first_region(row + 1); region++) {
            const Source& source = job_.sources[source_of(region)];
            Box box = box_of(region);
            if (!box.legal()) return false;
            i128 low, high, elements = 1;
            for (int i = 0; i < box.rank; i++) {
                elements *= box.dimension[i].count;
                // Otherwise elements of the chunk lie upon each other.
                if (!box.dimension[i].dst || elements * array_.itemsize > array_.nbytes) return false;
            }
            box.reach(&Dimension::dst, array_.itemsize, low, high);
            const i128 first = i128(array_.offset) + job_.src_start[region];
            if (first + low < 0 || first + high > array_.nbytes) return false;
            box.reach(&Dimension::src, array_.itemsize, low, high);
            const i128 start = i128(source.offset) + job_.dst_start[region];
            if (start + low < 0 || start + high > source.nbytes) return false;
            if (source.mask && !is_run(box)) return false;
        }
        return true;
    }

    // Whether elements lie one behind the other in both memories; simplifies the box.
    bool is_run(Box& box) const {
        box.simplify();
        const Dimension& d = box.dimension[0];
        return box.rank == 0 || (box.rank == 1 && d.dst == array_.itemsize && d.src == array_.itemsize);
    }

    bool is_fill(i64 row) const {
        const i64 region = first_region(row);
        Box box = box_of(region);
        for (int i = 0; i < box.rank; i++) box.dimension[i].dst = box.dimension[i].src;
        box.simplify();
        const u8* at = from(region);
        const Dimension* d = box.dimension;
        switch (array_.itemsize) {
            case 1: return is_filled(at, d, box.rank, load<std::uint8_t, false>(array_.fill));
            case 2: return is_filled(at, d, box.rank, load<std::uint16_t, false>(array_.fill));
            case 4: return is_filled(at, d, box.rank, load<std::uint32_t, false>(array_.fill));
            case 8: return is_filled(at, d, box.rank, load<std::uint64_t, false>(array_.fill));
            default: return are_filled(at, d, box.rank, array_.fill, array_.itemsize);
        }
    }

    // Whether all stored elements of a chunk are blank, bit for bit.
    bool is_blank(const u8* chunk) const {
        const std::size_t n = static_cast<std::size_t>(encoding_.blank_nbytes), all = static_cast<std::size_t>(array_.nbytes);
        return all >= n && !std::memcmp(chunk, encoding_.blank, n) && !std::memcmp(chunk, chunk + n, all - n);
    }

    void fill(u8* chunk) const {
        Box all;
        all.add(array_.nbytes / encoding_.blank_nbytes, encoding_.blank_nbytes, 0);
        copy_box(chunk, encoding_.blank, all, encoding_.blank_nbytes, 0);
    }

    // Decodes what lies under a row; false if it is not plainly right.
    bool decode(i64 row, u8* chunk) {
        const i64 below = under(row);
        if (below == NOTHING) return fill(chunk), true;
        const u8* value = reinterpret_cast<const u8*>(below);
        i64 size = below == STORED ? 0 : job_.under_nbytes[row];
        if (below == STORED) {
            File file;
            const int error = file.open(job_.directory[row], job_.names + job_.name[row], 0);
            job_.reads++;
            if (error == ENOENT) return fill(chunk), true;
            size = file.size();
            u8* encoded = error || size > array_.bound ? nullptr : scratch_.take(Scratch::ENCODED, size);
            if (!encoded || !file.read(encoded, size, 0)) return false;
            value = encoded, job_.fetched += size;
        }
        if (size < 0 || size > array_.bound) return false;
        if (array_.crc && !decoder_.strip_checksum(value, size)) return false;
        return decoder_.strip_header(value, size) && decoder_.decode(value, size, chunk) &&
               are_legal(array_, chunk, array_.nbytes);
    }

    // Whether regions have all bytes of a chunk together, as those of all fields of records do.
    bool covers(i64 begin, i64 end) {
        static const u8 ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
        i64 most = 0;
        for (i64 region = begin; region < end; region++) {
            if (job_.sources[source_of(region)].mask) return false;
            most += box_of(region).elements() * array_.itemsize;
        }
        if (most < array_.nbytes || array_.itemsize > i64(sizeof ones)) return false;
        u8* written = scratch_.take(Scratch::PARTS, array_.nbytes);
        if (!written) return false;
        std::memset(written, 0, static_cast<std::size_t>(array_.nbytes));
        for (i64 region = begin; region < end; region++) {
            Box box = box_of(region);
            for (int i = 0; i < box.rank; i++) box.dimension[i].src = 0;
            copy_box(written + array_.offset + job_.src_start[region], ones, box, array_.itemsize, 0);
        }
        return !std::memchr(written, 0, static_cast<std::size_t>(array_.nbytes));
    }

    // The bytes of a chunk as they are before encoding; null if it is left to Python.
    const u8* gather(i64 row) {
        const i64 begin = first_region(row), end = first_region(row + 1);
        bool is_whole = false;
        if (is_single(row)) {
            Box box = box_of(begin);
            is_whole = box.elements() * array_.itemsize == array_.nbytes;
            if (is_whole && !array_.word && is_run(box)) return from(begin);
        }
        u8* chunk = scratch_.take(Scratch::DECODED, array_.nbytes);
        if (!chunk || !(is_whole || covers(begin, end) || decode(row, chunk))) return nullptr;
        for (i64 region = begin; region < end; region++) {
            u8* to = chunk + array_.offset + job_.src_start[region];
            const u8* mask = job_.sources[source_of(region)].mask;
            if (mask)
                copy_masked(to, from(region), mask + (from(region) - job_.sources[source_of(region)].memory) / array_.itemsize,
                    box_of(region).elements(), array_.itemsize, array_.word);
            else
                copy_box(to, from(region), box_of(region), array_.itemsize, array_.word);
        }
        return chunk;
    }

    // The encoded bytes of a row, without a header before them and a checksum behind them; null if it is not
    // plain, or not to be stored, as its status then says.
    const u8* encoded(i64 row, i64& size) {
        job_.status[row] = NOT_DONE;
        if (!is_covered(row)) return nullptr;
        const u8* chunk = gather(row);
        if (chunk && job_.drops_fill && !(array_.fill && is_single(row)) && is_blank(chunk)) {
            job_.status[row] = MISSING;
            return nullptr;
        }
        const u8* found = chunk ? encoder_.encode(chunk, size) : nullptr;
        return found && size + array_.header_nbytes + 4 * array_.crc <= array_.bound ? found : nullptr;
    }

    void encode_row(i64 row) {
        i64 size = 0;
        const u8* bytes = encoded(row, size);
        const i64 header = array_.header_nbytes, more = header + 4 * array_.crc;
        if (!bytes || job_.used < 0 || job_.used > job_.room || size + more > job_.room - job_.used) return;
        u8* to = job_.encoded + job_.used;
        if (header) std::memcpy(to, array_.header, static_cast<std::size_t>(header));
        std::memcpy(to + header, bytes, static_cast<std::size_t>(size));
        if (array_.crc) store(to + header + size, encoder_.checksum(bytes, size));
        job_.at[row] = job_.used, job_.stored[row] = size + more;
        job_.used += size + more;
        job_.status[row] = DONE;
    }

    // Encodes a row and writes it into a new file, unless its status says why not.
    void begin(i64 row) {
        i64 size = 0;
        NewFile& file = file_[begun_];
        const bool reads = under(row) == STORED;
        const auto create = [&] { return file.create(job_.directory[row], job_.names + job_.name[row]); };
        if (reads && !create()) return void(job_.status[row] = NOT_DONE);
        const u8* bytes = encoded(row, size);
        if (!bytes || is_set(cancelled_)) {  // Encoding may have taken long. Python deletes blank chunks.
            if (reads) file.remove();
            job_.status[row] = NOT_DONE;
            return;
        }
        if (!reads && !create()) return;
        const i64 header = array_.header_nbytes;
        bool ok = (!header || file.write(array_.header, header)) && file.write(bytes, size);
        if (array_.crc) {
            const std::uint32_t checksum = encoder_.checksum(bytes, size);
            ok = ok && file.write(reinterpret_cast<const u8*>(&checksum), sizeof checksum);
            size += sizeof checksum;
        }
        size += header;
        if (!ok || !file.stamp()) return file.remove();
        if (job_.syncs) file.begin_sync();
        row_[begun_] = row, size_[begun_] = size;
        begun_++, begun_nbytes_ += size;
    }

    // Gives all files that are begun their names, unless the write is cancelled.
    void finish() {
        bool synced[MOST_BEGUN];
        for (int i = 0; i < begun_; i++)
            synced[i] = !is_set(cancelled_) && (!job_.syncs || file_[i].sync());
        for (int i = 0; i < begun_; i++) {
            const bool done = synced[i] && !is_set(cancelled_) && file_[i].rename();
            if (!done) file_[i].remove();
            job_.status[row_[i]] = done ? DONE : NOT_DONE;
            if (done) job_.stored[row_[i]] = size_[i];
        }
        begun_ = 0, begun_nbytes_ = 0;
    }

    WriteJob& job_;
    const Encoding& encoding_;
    const Array& array_;
    Scratch& scratch_;
    const u8* const cancelled_;
    const Encoder encoder_;
    const Decoder decoder_;
    NewFile file_[MOST_BEGUN];
    i64 row_[MOST_BEGUN], size_[MOST_BEGUN];
    int begun_ = 0;
    i64 begun_nbytes_ = 0;
};

}  // namespace gpustore
