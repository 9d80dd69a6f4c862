// Encoding of one chunk by functions of installed libraries, with the arguments that Python's codecs
// hand to the same functions: the bytes are the same.
#pragma once

#include "decode.h"
#include "write_job.h"

namespace gpustore {

class Encoder {
public:
    Encoder(const Encoding& encoding, Scratch& scratch)
        : encoding_(encoding), array_(*encoding.array), functions_(*array_.functions), scratch_(scratch) {}

    // Encodes a whole chunk; null if it fails. The result may be `chunk` itself.
    const u8* encode(const u8* chunk, i64& size) const {
        const i64 n = array_.nbytes;
        const std::size_t in = static_cast<std::size_t>(n);
        size = n;
        if (array_.codec == RAW) return chunk;
        // More than the bound of every codec, apart from Blosc's, which must not have more.
        const i64 room = array_.codec == BLOSC ? n + BLOSC_OVERHEAD : n + n / 128 + 4096;
        u8* out = scratch_.take(Scratch::ENCODED, room);
        if (!out) return nullptr;
        switch (array_.codec) {
            case BLOSC:
                if (encoding_.compressor < 0 || encoding_.compressor >= COMPRESSORS) return nullptr;
                size = functions_.blosc_compress_ctx(
                    static_cast<int>(encoding_.level), static_cast<int>(encoding_.shuffle),
                    static_cast<std::size_t>(encoding_.typesize), in, chunk, out,
                    static_cast<std::size_t>(room), compressor_names()[encoding_.compressor],
                    static_cast<std::size_t>(encoding_.blocksize), 1);
                return size > 0 ? out : nullptr;
            case ZSTD: {
                void* context = scratch_.zstd_encoder(functions_);
                if (!context) return nullptr;
                const int level = 100, checksum = 201;  // ZSTD_c_compressionLevel, ZSTD_c_checksumFlag
                functions_.ZSTD_CCtx_setParameter(context, level, static_cast<int>(encoding_.level));
                functions_.ZSTD_CCtx_setParameter(context, checksum, encoding_.checksum != 0);
                const std::size_t made = functions_.ZSTD_compress2(
                    context, out, static_cast<std::size_t>(room), chunk, in);
                if (made > static_cast<std::size_t>(room)) return nullptr;  // errors are large numbers
                size = static_cast<i64>(made);
                return out;
            }
            case LZ4: {
                const std::uint32_t word = static_cast<std::uint32_t>(n);
                std::memcpy(out, &word, sizeof word);
                const int made = functions_.LZ4_compress_fast(
                    reinterpret_cast<const char*>(chunk), reinterpret_cast<char*>(out) + 4,
                    static_cast<int>(n), static_cast<int>(std::min<i64>(room - 4, MOST_INT)),
                    static_cast<int>(encoding_.level));
                size = made + 4;
                return made > 0 ? out : nullptr;
            }
            case GZIP:
            case ZLIB: {
                void* context = scratch_.deflate_encoder(functions_, encoding_.level);
                auto call = array_.codec == GZIP ? functions_.libdeflate_gzip_compress : functions_.libdeflate_zlib_compress;
                const std::size_t made = context ? call(context, chunk, in, out, static_cast<std::size_t>(room)) : 0;
                size = static_cast<i64>(made);
                return made ? out : nullptr;  // 0: it does not fit
            }
        }
        return nullptr;
    }

    std::uint32_t checksum(const u8* bytes, i64 size) const {
        return functions_.crc32c_extend(0, bytes, static_cast<std::size_t>(size));
    }

private:
    static constexpr i64 BLOSC_OVERHEAD = 16, COMPRESSORS = 5;
    static constexpr i64 MOST_INT = std::numeric_limits<int>::max();

    static const char* const* compressor_names() {
        static const char* const names[COMPRESSORS] = {"blosclz", "lz4", "lz4hc", "zlib", "zstd"};
        return names;
    }

    const Encoding& encoding_;
    const Array& array_;
    const Functions& functions_;
    Scratch& scratch_;
};

}  // namespace gpustore
