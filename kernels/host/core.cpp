// The native core: reads (read.h) and writes (write.h) chunks without the interpreter's lock. Here are
// the functions that the library exports.
#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>

#include "downsample.h"
#include "file.h"
#include "frame_tables.h"
#include "headers.h"
#include "job.h"
#include "plan.h"
#include "read.h"
#include "runs.h"
#include "write.h"

namespace gpustore {
namespace {

constexpr i64 NO_LINKS = 4;     // RESOLVE_NO_SYMLINKS of openat2(2)
constexpr i64 MANY_FILES = 64;  // from which on a second thread is worth its start

// Reads a file whole into memory for `n` bytes, without following links; its status, and its length.
i64 read_file(const char* name, u8* memory, i64 n, i64& nbytes) {
    File file;
    const int error = file.open(AT_FDCWD, name, NO_LINKS);
    nbytes = 0;
    if (error) return error == ENOENT || error == ENOTDIR ? MISSING : NOT_DONE;
    if (file.size() > n || !file.read(memory, file.size(), 0)) return NOT_DONE;
    nbytes = file.size();
    return DONE;
}

// Reads files into the bytes of memory between two positions, one behind the other.
void read_files(i64 count, const char* names, u8* memory, i64 begin, i64 end, i64* three) {
    for (; count > 0; count--, three += 3, names += std::strlen(names) + 1) {
        three[0] = read_file(names, memory + begin, end - begin, three[2]);
        three[1] = begin, begin += three[2];
    }
}

// Stores a value under the lock of its file, in an open directory. `four` integers tell which version of
// the file there must be, which counts as deleted, and null that there must be none. False if nothing was done.
bool store_file(i64 directory, const char* key, const u8* value, i64 nbytes, const u8* four, bool sync) {
    const char* slash = std::strrchr(key, '/');
    const char* name = slash ? slash + 1 : key;
    NewFile file;
    if (!file.create(directory, name)) return false;
    const bool is_plain = four ? file.replaces(four) : file.is_first();
    if (is_plain && file.write(value, nbytes) && file.stamp() && (!sync || file.sync()) && file.flush() &&
        (!four || file.make_room()) && file.rename())
        return true;
    file.remove();
    return false;
}

Scratch& thread_scratch() {
    static thread_local Scratch scratch;
    return scratch;
}

}  // namespace
}  // namespace gpustore

#define EXPORT extern "C" __attribute__((visibility("default")))

// Says which declarations the core was compiled with.
EXPORT std::int64_t gpustore_core_abi() {
    using namespace gpustore;
    static_assert(sizeof(std::atomic<i64>) == sizeof(i64) && sizeof(void*) == sizeof(i64));
    return ABI;
}

// Takes part in a job. 0 nanoseconds are no limit. `cancelled` is a byte that another thread sets
// when the work is no longer wanted, or null.
EXPORT std::int64_t gpustore_core_read(
    gpustore::Job* job, std::int64_t nanoseconds, const unsigned char* cancelled) {
    return gpustore::Worker(*job, gpustore::thread_scratch(), cancelled).work(nanoseconds);
}

// Takes bytes of the memory that jobs fill; their start, or -1 if too few are left.
EXPORT std::int64_t gpustore_core_take(
    std::int64_t* used, std::int64_t wanted, std::int64_t alignment, std::int64_t nbytes) {
    return gpustore::take(*reinterpret_cast<std::atomic<gpustore::i64>*>(used), wanted, alignment, nbytes);
}

// Finds the rows of a write that equal the fill value. Returns 1 if `nanoseconds` were over first, and
// may be called again, or if the write is cancelled, as in gpustore_core_read(); 0 if all rows are
// looked at.
EXPORT std::int64_t gpustore_core_find_fill(
    gpustore::WriteJob* job, std::int64_t nanoseconds, const unsigned char* cancelled) {
    return gpustore::Writer(*job, gpustore::thread_scratch(), cancelled).find_fill(nanoseconds);
}

// Writes the other rows. Returns 1 if `nanoseconds` were over first, and may be called again, or if the
// write is cancelled; 0 if all are written or left. No file is without its name in between.
EXPORT std::int64_t gpustore_core_write(
    gpustore::WriteJob* job, std::int64_t nanoseconds, const unsigned char* cancelled) {
    return gpustore::Writer(*job, gpustore::thread_scratch(), cancelled).work(nanoseconds);
}

// Encodes the other rows into memory; returns as gpustore_core_write().
EXPORT std::int64_t gpustore_core_encode(
    gpustore::WriteJob* job, std::int64_t nanoseconds, const unsigned char* cancelled) {
    return gpustore::Writer(*job, gpustore::thread_scratch(), cancelled).encode(nanoseconds);
}

// Plans reads; null if the core does not plan them. The request must outlive the job.
EXPORT gpustore::PlannedJob* gpustore_core_plan(const gpustore::Request* request) {
    gpustore::PlannedJob* planned = nullptr;
    try {
        planned = new gpustore::PlannedJob();
        if (gpustore::Planner(*request).plan(*planned)) return planned;
    } catch (const std::bad_alloc&) {
    }
    delete planned;
    return nullptr;
}

// Writes the descriptors of copies on a device (runs.h); returns the number of tables, 0 if they are left to
// Python.
EXPORT std::int64_t gpustore_core_copy_runs(
    const gpustore::CopyRows* rows, std::int64_t* heads, unsigned char* out, std::int64_t size) {
    try {
        gpustore::CopyRuns runs(*rows);
        return runs.make() ? runs.write(heads, out, size) : 0;
    } catch (const std::bad_alloc&) {
        return 0;
    }
}

// Copies rectangles between memories of the host.
EXPORT void gpustore_core_copy(const gpustore::CopyRows* rows) {
    using namespace gpustore;
    for (i64 row = 0; row < rows->rows; row++) {
        Box box;
        for (i64 d = 0; d < rows->rank; d++)
            box.add(rows->count[d * rows->count_step + row], rows->dst_stride[d], rows->src_stride[d]);
        const i64 src = rows->src_base + rows->src[row] + (rows->chunk ? rows->chunk[row] : 0);
        const i64 dst = rows->dst_base + rows->dst[row];
        copy_box(reinterpret_cast<u8*>(dst), reinterpret_cast<const u8*>(src), box, rows->itemsize, 0);
    }
}

// Reduces blocks of elements to one element each; 0 if they are left to Python.
EXPORT std::int64_t gpustore_core_downsample(const gpustore::Blocks* blocks) {
    try {
        return gpustore::downsample(*blocks);
    } catch (const std::bad_alloc&) {
        return 0;
    }
}

// Plans one read into one array and writes its regions down, one a chunk: edges of the units, the columns
// of RowTable (gpustore/planning/row_table.py), and the bytes between neighbours in a decoded chunk. Returns
// the number of units; 0 if the core does not plan the read, or `size` numbers do not hold it.
EXPORT std::int64_t gpustore_core_table(
    const gpustore::Request* request, std::int64_t* words, std::int64_t size) {
    using namespace gpustore;
    PlannedJob* planned = gpustore_core_plan(request);
    if (!planned) return 0;
    const Job& job = planned->job;
    const i64 rows = job.rows, rank = request->array->rank, columns = rank + 2 + job.rank;
    i64 units = job.units;
    if (job.regions != rows || units + 1 + columns * rows + job.rank > size) {
        units = 0;
    } else {
        words = std::copy_n(job.unit, units + 1, words);
        words = std::copy_n(job.cells, rank * rows, words);
        words = std::copy_n(job.src_start, (2 + job.rank) * rows, words);
        std::copy_n(job.src_stride, job.rank, words);
    }
    delete planned;
    return units;
}

// Returns the number of chunks that planned reads meet.
EXPORT std::int64_t gpustore_core_rows(const gpustore::PlannedJob* planned) { return planned->job.rows; }

// Takes part in a planned read, as gpustore_core_read().
EXPORT std::int64_t gpustore_core_read_planned(
    gpustore::PlannedJob* planned, std::int64_t nanoseconds, const unsigned char* cancelled) {
    return gpustore_core_read(&planned->job, nanoseconds, cancelled);
}

// Writes down what was done (reads, fetched, decoded, missing, left) and, unless `left` is null, a 1 for
// each item of which something was left. Forgets the read, on which no thread works any more.
EXPORT void gpustore_core_end(gpustore::PlannedJob* planned, std::int64_t* counts, unsigned char* left) {
    using namespace gpustore;
    const Job& job = planned->job;
    counts[0] = job.reads, counts[1] = job.fetched, counts[2] = *job.decoded;
    counts[3] = job.missing, counts[4] = job.left;
    for (i64 row = 0; left && row < job.rows; row++) {
        if (job.status[row] == DONE || job.status[row] == MISSING) continue;
        const i64 begin = job.first ? job.first[row] : row, end = job.first ? job.first[row + 1] : row + 1;
        for (i64 region = begin; region < end; region++) left[job.target ? job.target[region] : 0] = 1;
    }
    delete planned;
}

// Plans and reads on this thread alone. Returns 0 if the core does not plan the read.
EXPORT std::int64_t gpustore_core_read_now(const gpustore::Request* request, std::int64_t* counts) {
    gpustore::PlannedJob* planned = gpustore_core_plan(request);
    if (!planned) return 0;
    gpustore_core_read(&planned->job, 0, nullptr);
    gpustore_core_end(planned, counts, nullptr);
    return 1;
}

// Reads the headers of Zstandard frames. `content` gets the decoded bytes of each, 0 for a frame that is left to
// Python.
EXPORT void gpustore_core_zstd_frames(const gpustore::Encoded* frames, std::int64_t* content) {
    using namespace gpustore;
    for (i64 number = 0; number < frames->count; number++) {
        Value frame;
        content[number] = find(*frames, number, frame) ? ZstdFrame(frame).content() : 0;
    }
}

// Reads the heads of Blosc frames; BloscFrames describes the columns.
EXPORT void gpustore_core_blosc_heads(
    const gpustore::Encoded* frames, std::int64_t decoded_max, std::int64_t exact, gpustore::FrameColumns* columns) {
    using namespace gpustore;
    BloscFrames found(*columns);
    for (i64 number = 0; number < frames->count; number++) {
        Value frame = {nullptr, 0};
        find(*frames, number, frame);
        found.read_head(number, frame, decoded_max, exact);
    }
}

// Finds the blocks and streams of Blosc frames whose heads were read.
EXPORT void gpustore_core_blosc_streams(const gpustore::Encoded* frames, gpustore::FrameColumns* columns) {
    using namespace gpustore;
    BloscFrames found(*columns);
    for (i64 number = 0; number < frames->count; number++) {
        Value frame;
        if (find(*frames, number, frame)) found.read_streams(number, frame);
    }
}

// Counts what the tables of Blosc frames have; returns 0 if they are left to Python.
EXPORT std::int64_t gpustore_core_count_frames(gpustore::FrameStreams* frames) {
    return gpustore::FrameTables(*frames).count();
}

// Writes the tables of Blosc frames, for which there is room as counted.
EXPORT void gpustore_core_write_frames(gpustore::FrameStreams* frames) { gpustore::FrameTables(*frames).write(); }

// Reads files whole into memory; their names end in 0 each. The three integers of each file are its
// status, its first byte in the memory and its length. A second thread reads half of many files.
EXPORT void gpustore_core_read_files(std::int64_t count, const char* names, unsigned char* memory,
    std::int64_t nbytes, std::int64_t* three, std::int64_t threads) {
    using namespace gpustore;
    const i64 here = threads > 1 && count >= MANY_FILES ? count / 2 : count;
    const char* others = names;
    for (i64 file = 0; file < here; file++) others += std::strlen(others) + 1;
    const i64 middle = here < count ? nbytes / 2 : nbytes;
    const auto read_others = [=] { read_files(count - here, others, memory, middle, nbytes, three + 3 * here); };
    std::thread helper;
    try {
        if (here < count) helper = std::thread(read_others);
    } catch (const std::system_error&) {
        read_others();
    }
    read_files(here, names, memory, 0, middle, three);
    if (helper.joinable()) helper.join();
}

// Stores a value as a new file, or in place of one version of it; 0 if nothing was done.
EXPORT std::int64_t gpustore_core_store_file(std::int64_t directory, const char* key,
    const unsigned char* value, std::int64_t nbytes, const unsigned char* four, std::int64_t sync) {
    return gpustore::store_file(directory, key, value, nbytes, four, sync);
}
