// What Python hands to the native core for a write: how an array is encoded, and the rows of one
// thread. gpustore/backends/native/write_job.py writes the same members in the same order.
#pragma once

#include "job.h"

namespace gpustore {

// What does not change from one write of an array to the next.
struct Encoding {
    const Array* array;       // its `fill` is an element of a missing chunk, and of cells beyond the edge
    i64 level;                // of Blosc, zstd, gzip and zlib; the acceleration of LZ4
    i64 checksum;             // whether zstd's own follows a frame
    i64 shuffle, typesize, blocksize, compressor;  // of Blosc; `compressor` counts as in encode.h
};

struct WriteJob {
    const Encoding* encoding;
    const u8* memory;         // the array that is written
    i64 offset, nbytes;       // where dst_start counts from, and the bytes of the memory
    i64 rows, rank;
    const i64 *src_start, *dst_start;    // bytes in the decoded chunk and in the array
    const i64* count;         // a column of elements for each dimension
    const i64 *src_stride, *dst_stride;  // `rank` numbers: bytes between neighbours
    const i64* directory;     // descriptor of each row's directory
    const i64* name;          // where each row's name begins in `names`
    const char* names;        // of the files, each ends with a zero byte
    i64 syncs;                // whether the bytes of a file reach the disk before it has its name
    u8* status;               // of each row; MISSING: the chunk equals the fill value
    i64* stored;              // bytes of each file written, or encoded value
    u8* encoded;              // memory for values that are encoded and not stored
    i64 room, used;           // bytes of it, and of the values in it
    i64* at;                  // of each value in it
    i64 next, end;            // rows that are worked on
};

}  // namespace gpustore
