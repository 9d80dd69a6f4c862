// What Python hands to the native core for a write: how an array is encoded, and the rows of one
// thread. gpustore/backends/native/write_job.py writes the same members in the same order.
#pragma once

#include "job.h"

namespace gpustore {

// What does not change from one write of an array to the next.
struct Encoding {
    const Array* array;
    const u8* blank;          // a stored element of a new chunk: all of those beyond the array's edge, too
    i64 blank_nbytes;
    i64 level;                // of Blosc, zstd, gzip and zlib; the acceleration of LZ4
    i64 checksum;             // whether zstd's own follows a frame
    i64 shuffle, typesize, blocksize, compressor;  // of Blosc; `compressor` counts as in encode.h
};

// An array that is written.
struct Source {
    const u8* memory;
    i64 offset, nbytes;       // where dst_start counts from, and the bytes of the memory
    const u8* mask;           // a byte for each element of the memory: 0 if it is not written; null if all are
};

// What lies under the regions of a row, if it is no value in memory: nothing, or the file that it replaces.
enum Under : i64 { NOTHING, STORED };

struct WriteJob {
    const Encoding* encoding;
    i64 rows, regions, rank;
    const i64* first;         // rows + 1 edges in the regions; null if each row is one region
    const i64* source;        // number of the source of each region; null if there is one
    const Source* sources;
    const i64 *src_start, *dst_start;    // bytes in the decoded chunk and in the source, of each region
    const i64* count;         // a column of elements for each dimension
    const i64 *src_stride, *dst_stride;  // `rank` numbers for each source: bytes between neighbours
    const i64* under;         // of each row the address of an encoded value, or one of Under; null: nothing
    const i64* under_nbytes;  // bytes of each of these values
    i64 drops_fill;           // whether chunks that equal the blank one are not stored
    const i64* directory;     // descriptor of each row's directory
    const i64* name;          // where each row's name begins in `names`
    const char* names;        // of the files, each ends with a zero byte
    i64 syncs;                // whether the bytes of a file reach the disk before it has its name
    u8* status;               // of each row; MISSING: the chunk equals the blank one
    i64* stored;              // bytes of each file written, or encoded value
    u8* encoded;              // memory for values that are encoded and not stored
    i64 room, used;           // bytes of it, and of the values in it
    i64* at;                  // of each value in it
    i64 reads, fetched;       // files that were read to be changed, and their bytes
    i64 next, end;            // rows that are worked on
};

}  // namespace gpustore
