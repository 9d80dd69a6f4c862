// Functions of other libraries that the core calls, by address; null where a library is absent.
//
// gpustore/backends/native/decoders.py finds them, in this order. Every line is one function:
// tests/backends/native/test_decoders.py reads the prototypes here, calls each function with
// them, and compares its results with those of the library's Python package.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpustore {

struct Functions {
    // c-blosc 1: blosc.h
    int (*blosc_decompress_ctx)(const void* src, void* dest, size_t destsize, int threads);
    int (*blosc_compress_ctx)(int clevel, int doshuffle, size_t typesize, size_t nbytes, const void* src, void* dest, size_t destsize, const char* compressor, size_t blocksize, int threads);

    // zstd: zstd.h; contexts are ZSTD_DCtx and ZSTD_CCtx, `parameter` is ZSTD_cParameter
    void* (*ZSTD_createDCtx)();
    size_t (*ZSTD_freeDCtx)(void* context);
    size_t (*ZSTD_decompressDCtx)(void* context, void* dst, size_t dst_capacity, const void* src, size_t src_size);
    unsigned long long (*ZSTD_getFrameContentSize)(const void* src, size_t src_size);
    size_t (*ZSTD_findFrameCompressedSize)(const void* src, size_t src_size);
    void* (*ZSTD_createCCtx)();
    size_t (*ZSTD_freeCCtx)(void* context);
    size_t (*ZSTD_CCtx_setParameter)(void* context, int parameter, int value);
    size_t (*ZSTD_compress2)(void* context, void* dst, size_t dst_capacity, const void* src, size_t src_size);

    // lz4: lz4.h
    int (*LZ4_decompress_safe)(const char* src, char* dst, int src_size, int dst_capacity);
    int (*LZ4_compress_fast)(const char* src, char* dst, int src_size, int dst_capacity, int acceleration);

    // libdeflate: libdeflate.h; contexts are libdeflate_decompressor and libdeflate_compressor
    void* (*libdeflate_alloc_decompressor)();
    void (*libdeflate_free_decompressor)(void* context);
    int (*libdeflate_gzip_decompress_ex)(void* context, const void* src, size_t src_size, void* dst, size_t dst_capacity, size_t* src_used, size_t* dst_used);
    int (*libdeflate_zlib_decompress_ex)(void* context, const void* src, size_t src_size, void* dst, size_t dst_capacity, size_t* src_used, size_t* dst_used);
    void* (*libdeflate_alloc_compressor)(int level);
    void (*libdeflate_free_compressor)(void* context);
    size_t (*libdeflate_gzip_compress)(void* context, const void* src, size_t src_size, void* dst, size_t dst_capacity);
    size_t (*libdeflate_zlib_compress)(void* context, const void* src, size_t src_size, void* dst, size_t dst_capacity);

    // crc32c: crc32c.h
    uint32_t (*crc32c_extend)(uint32_t crc, const uint8_t* data, size_t count);
};

}  // namespace gpustore
