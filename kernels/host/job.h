// What Python hands to the native core: the constants of an array, and the columns of one window.
//
// All numbers are 64-bit signed integers in the host's byte order, so that both sides agree without
// padding; gpustore/backends/native/job.py writes the same members in the same order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "functions.h"

namespace gpustore {

using i64 = std::int64_t;
using u8 = unsigned char;

// Hash of the declarations that both sides share, and of the functions exported: the package loads no
// library that has another. tests/backends/native/test_declarations.py says what it must be.
constexpr i64 ABI = 18013631049251674;

// The bytes->bytes codec of a chunk; crc32c may follow it.
enum Codec : i64 { RAW, BLOSC, ZSTD, LZ4, GZIP, ZLIB };

// What became of a row. The core finishes rows that are plainly right; Python does the others again
// and words their errors.
enum Status : u8 { UNTOUCHED, DONE, MISSING, NOT_DONE, NO_ROOM };

// What became of a call that takes part in a job: its time was over or the work cancelled first, all
// units are taken, or it has finished the last one, which one call does.
enum Progress : i64 { TAKEN, AGAIN, ENDED };

// Reads a byte that another thread may set meanwhile; null is never set.
inline bool is_set(const u8* byte) { return byte && __atomic_load_n(byte, __ATOMIC_RELAXED); }

// One level of sharding, seen from the cells of the innermost chunks.
struct ShardLevel {
    i64 chunks;               // inner chunks of a shard
    i64 at_end, crc;          // whether the index stands at the end, and ends with a crc32c
    const i64* order;         // array dimension of each encoded dimension
    const i64* count;         // inner chunks along each encoded dimension
    const i64* divisor;       // innermost chunks in one inner chunk, along each array dimension
};

// What does not change from one read of an array to the next.
struct Array {
    const Functions* functions;
    i64 rank, key_rank;       // dimensions of the cells, and of those in a key
    i64 itemsize;             // bytes of an element in memory
    i64 word;                 // bytes that are reversed together; 0 if the byte order is the host's
    i64 offset;               // of the first element in a decoded chunk, in bytes
    i64 nbytes, bound;        // bytes of a decoded chunk; most bytes of an encoded one
    i64 codec, crc;
    const u8* header;         // bytes with which every plain value begins
    i64 header_nbytes;
    i64 parts;                // whether some blocks of a Blosc frame may be decoded alone
    i64 levels;
    const ShardLevel* level;  // outermost first
    const i64* ratio;         // cells along each key dimension that share a key
    const char* separator;    // between the indices of a key
    const u8* fill;           // an element of a missing chunk
    i64 fill_missing;         // whether missing chunks are the fill value, not an error
    i64 bools;                // whether bytes other than 0 and 1 are illegal
    const i64 *shape, *chunk_shape;  // elements of the array and of a chunk along each dimension
    const i64* stride;        // bytes between neighbours in a decoded chunk
};

// Rectangles of elements in two memories, whose strides are the same.
struct CopyRows {
    i64 rows, rank, itemsize;
    i64 unit;                 // bytes that are reversed together; 1 for none
    const i64 *src, *dst;     // first element of each, counted from these two
    i64 src_base, dst_base;
    const i64* chunk;         // further bytes before each in src; null for none
    const i64* count;         // a column for each dimension, so many numbers apart
    i64 count_step;
    const i64 *src_stride, *dst_stride;
};

// Columns of Blosc frames, of their blocks, and of the streams of these (headers.h), one behind the other.
struct FrameColumns {
    i64 rows;                 // frames
    i64 block_room, stream_room;
    i64 block_count, stream_count;  // that are written
    i64* heads;               // 8 columns of so many numbers, then 3 of blocks, 5 of streams
};

inline i64* block_columns(const FrameColumns& frames) { return frames.heads + 8 * frames.rows; }
inline i64* stream_columns(const FrameColumns& frames) { return block_columns(frames) + 3 * frames.block_room; }

// Blosc frames on a device, and the tables by which it decodes them (frame_tables.h).
struct FrameStreams {
    i64 parts;
    const FrameColumns* part;  // frames of one part follow those of another
    const i64 *address, *row; // of each frame
    i64 decoded, joined;      // addresses of what the first frame decodes to, and of its shuffled bytes
    i64 pitch;                // bytes to those of the next frame; all three are multiples of 16
    i64 nbytes, code, typesize, shuffle;  // of all frames; shuffled are bytes (1) or bits (2)
    i64 compressed, stored, blocks;  // streams of both kinds, and blocks
    i64 src_bits;             // that are set in the address of any compressed stream
    i64 most_nbytes, total_nbytes;  // that a compressed stream decodes to, and all of them
    i64 copy_tiles, block_tiles;  // thread blocks for stored streams, and for shuffled blocks
    i64* table;               // of compressed streams: 4 columns, address and bytes of the stream and of the decoded one
    i64* owner;               // of each compressed stream the row; in a second column its decoded bytes
    void *copies, *shuffled;  // descriptors of stored streams and of shuffled blocks
};

// Where values go that are fetched and not placed, decoded if the array has a codec. They lie one
// behind the other in no particular order; one for which no room is left has the status NO_ROOM.
// Several jobs may share memory.
struct Staging {
    u8* memory;
    i64 nbytes, alignment;
    i64 *at, *size;           // of each row
    std::atomic<i64>* used;   // bytes that are taken from the start
    i64 behind;               // bytes behind the frame in a value
    i64* content;             // decoded bytes of each Zstandard frame (headers.h), 0 in doubt; null if values are none
    FrameColumns* frames;     // null if values are no Blosc frames
};

// Takes bytes of shared memory, of which `nbytes` may be used; their start, or -1 if too few are left.
inline i64 take(std::atomic<i64>& used, i64 wanted, i64 alignment, i64 nbytes) {
    i64 start = used.load(std::memory_order_relaxed);
    do {
        if (start > nbytes || wanted > nbytes - start) return -1;
    } while (!used.compare_exchange_weak(start, start + (wanted + alignment - 1) / alignment * alignment));
    return start;
}

// Encoded values in host memory, of which only headers are read.
struct Encoded {
    const u8* memory;
    i64 nbytes, count;        // of the memory, and of the values
    const i64 *start, *size;  // of each value
};

struct Target {
    u8* memory;
    i64 offset, nbytes;       // where dst_start counts from, and the bytes of the memory
};

// Offsets that an index array adds to the elements of region r: entries [begin[r], end[r]).
struct Points {
    const i64 *begin, *end, *src, *dst;
};

struct Job {
    const Array* array;
    i64 directory, resolve;   // descriptor that keys are relative to; flags of openat2, 0 without it
    const char* prefix;       // of all keys
    const char* const* prefixes;  // of the key of each row; null if all have `prefix`
    i64 units;                // groups of rows that share a key
    const i64* unit;          // units + 1 edges in the rows
    i64 rows;
    const i64* cells;         // a column of grid indices for each dimension of the array
    const i64* first;         // rows + 1 edges in the regions; null if each row is one region
    i64 regions, rank;        // and dimensions of the arrays that are filled
    const i64 *src_start, *dst_start;
    const i64* count;         // a column for each of these dimensions
    const i64* target;        // number of the array of each region; null if there is one
    const i64 *src_stride, *dst_stride;  // `rank` numbers for each target
    const Target* out;
    i64 point_sets;
    const Points* points;
    i64 threads;              // that take part, to choose how many units one takes at a time
    Staging* staging;         // null if values are decoded and placed
    const u8* const* values;  // encoded values in memory, null for missing ones; null for files
    const i64* sizes;         // bytes of each of them
    i64* generation;          // device, inode, time of modification in ns and size of each row's file, or null
    u8* status;               // of each row
    std::atomic<i64>* decoded;  // bytes so far, which Python may look at meanwhile
    std::atomic<i64> next;    // unit that is taken next
    std::atomic<i64> finished;  // units that are over
    std::atomic<i64> reads, fetched, missing, left;
};

// Types of elements that the core reduces (downsample.h), and how.
enum Kind : i64 { UINT8, INT8, UINT16, INT16, UINT32, INT32, UINT64, INT64, FLOAT32, FLOAT64 };
enum Method : i64 { MEAN, LEAST, LARGEST, MEDIAN, MODE, GAUSSIAN };

// Blocks along one dimension: elements that there are, blocks, elements of a whole one, elements of the first
// one that lie before those (-1: one more lies before the first block, for GAUSSIAN), and the bytes between
// neighbours in both memories.
struct BlockDim {
    i64 n, cells, factor, before, src, dst;
};

// Blocks of elements, each of which becomes one element.
struct Blocks {
    i64 kind, method, rank;
    const u8* src;
    u8* dst;
    const BlockDim* dim;      // `rank` of them, one at least
};

// Use of an input dimension by an output one: index = offset + stride * (index in the domain).
struct Map {
    i64 input_dimension, offset, stride;  // dimension -1: a constant
};

// One array that a request fills, through strided maps.
struct Item {
    u8* memory;               // of the element of index zero, but for Placed::offset; of a plain item its array
    // An item is plain if its maps are the identity and it fills an array of NumPy in C order without gaps. That is
    // an object which has the address of its elements behind so many bytes (PyArrayObject). 0 for other items.
    i64 header_nbytes;
    // Follow: Placed, unless it is plain; for each dimension of the domain, its first indices and its ends. Unless
    // it is plain, then a Map for each dimension of the array read; and for each of the domain the bytes between
    // neighbours in the array filled.
};

// Where an array that is not plain begins, and its bytes; and the dimensions of its domain.
struct Placed {
    i64 offset, nbytes, rank;
};

// Reads of one array that the core plans by itself, together.
struct Request {
    const Array* array;
    i64 directory, resolve;
    const char* prefix;
    i64 most_rows, threads;
    std::atomic<i64>* decoded;  // as in Job
    i64 count;                // of the items, which follow

    const Item* items() const { return reinterpret_cast<const Item*>(this + 1); }
};

}  // namespace gpustore
