// Decoding of one chunk by functions of installed libraries. Every function returns false at the
// least doubt: the caller leaves the row to Python, which knows what is wrong.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "job.h"

namespace gpustore {

inline std::uint32_t u32_at(const u8* at) {  // little-endian hosts only, as Python checks
    std::uint32_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

inline std::uint64_t u64_at(const u8* at) {
    std::uint64_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// Memory and contexts of one thread, kept for its next chunk.
class Scratch {
public:
    static constexpr i64 KEPT_NBYTES = 64 << 20;  // that a thread keeps between jobs, of all uses

    enum Use { ENCODED, DECODED, PARTS, INDEX, USES = INDEX + 4 };

    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() {
        shrink(0);
        if (zstd_) free_zstd_(zstd_);
        if (zstd_encoder_) free_zstd_encoder_(zstd_encoder_);
        if (deflate_) free_deflate_(deflate_);
        if (deflate_encoder_) free_deflate_encoder_(deflate_encoder_);
    }

    // Uninitialised memory of at least `nbytes` bytes, null if there is none.
    u8* take(int use, i64 nbytes) {
        if (nbytes > nbytes_[use] || !memory_[use]) {
            std::free(memory_[use]);
            const i64 page = nbytes >= HUGE_PAGE ? HUGE_PAGE : 4096;
            const i64 rounded = (nbytes + nbytes / 8 + page) / page * page;
            memory_[use] = static_cast<u8*>(
                std::aligned_alloc(static_cast<std::size_t>(page), static_cast<std::size_t>(rounded)));
            nbytes_[use] = memory_[use] ? rounded : 0;
        }
        return memory_[use];
    }

    // Gives back memory, the largest pieces first, until at most `most` bytes are left.
    void shrink(i64 most) {
        i64 kept = 0;
        for (const i64 nbytes : nbytes_) kept += nbytes;
        while (kept > most) {
            const auto largest = std::max_element(nbytes_, nbytes_ + USES) - nbytes_;
            std::free(memory_[largest]);
            kept -= nbytes_[largest];
            memory_[largest] = nullptr, nbytes_[largest] = 0;
        }
    }

    void* zstd(const Functions& functions) {
        if (!zstd_) free_zstd_ = functions.ZSTD_freeDCtx, zstd_ = functions.ZSTD_createDCtx();
        return zstd_;
    }

    void* zstd_encoder(const Functions& functions) {
        if (!zstd_encoder_) {
            free_zstd_encoder_ = functions.ZSTD_freeCCtx;
            zstd_encoder_ = functions.ZSTD_createCCtx();
        }
        return zstd_encoder_;
    }

    void* deflate(const Functions& functions) {
        if (!deflate_) {
            free_deflate_ = functions.libdeflate_free_decompressor;
            deflate_ = functions.libdeflate_alloc_decompressor();
        }
        return deflate_;
    }

    // For one level; an encoder for another one is freed.
    void* deflate_encoder(const Functions& functions, i64 level) {
        if (deflate_encoder_ && level != deflate_level_) {
            free_deflate_encoder_(deflate_encoder_);
            deflate_encoder_ = nullptr;
        }
        if (!deflate_encoder_) {
            free_deflate_encoder_ = functions.libdeflate_free_compressor;
            deflate_encoder_ = functions.libdeflate_alloc_compressor(static_cast<int>(level));
            deflate_level_ = level;
        }
        return deflate_encoder_;
    }

private:
    static constexpr i64 HUGE_PAGE = 2 << 20;
    u8* memory_[USES] = {};
    i64 nbytes_[USES] = {};
    void *zstd_ = nullptr, *zstd_encoder_ = nullptr, *deflate_ = nullptr, *deflate_encoder_ = nullptr;
    i64 deflate_level_ = 0;
    std::size_t (*free_zstd_)(void*) = nullptr;
    std::size_t (*free_zstd_encoder_)(void*) = nullptr;
    void (*free_deflate_)(void*) = nullptr;
    void (*free_deflate_encoder_)(void*) = nullptr;
};

constexpr unsigned long long UNKNOWN_SIZE = ~0ull;  // zstd.h: ZSTD_CONTENTSIZE_UNKNOWN

// Header of a Blosc 1 frame. Source: c-blosc 1.21, README_CHUNK_FORMAT.rst and blosc.c.
struct BloscHeader {
    static constexpr i64 NBYTES = 16;
    u8 flags = 0;
    i64 typesize = 0, nbytes = 0, blocksize = 0, cbytes = 0;

    bool read(const u8* frame, i64 size) {
        if (size < NBYTES || frame[0] != 2) return false;
        flags = frame[2], typesize = frame[3];
        const i64 most = std::numeric_limits<std::int32_t>::max();
        nbytes = u32_at(frame + 4), blocksize = u32_at(frame + 8), cbytes = u32_at(frame + 12);
        const int code = flags >> 5;
        if (flags & 0x08 || (flags & 0x05) == 0x05 || code > 4) return false;
        if (cbytes != size || !typesize || nbytes <= 0 || nbytes > most) return false;
        if (blocksize <= 0 || blocksize > nbytes) return false;
        if (is_stored()) return cbytes == nbytes + NBYTES;
        return blocks() <= (cbytes - NBYTES) / 4;
    }

    bool is_stored() const { return flags & 0x02; }
    bool has_decoder() const { return flags >> 5 != 2; }  // the library has no Snappy
    i64 blocks() const { return (nbytes + blocksize - 1) / blocksize; }
    i64 table_end() const { return is_stored() ? NBYTES : NBYTES + 4 * blocks(); }

    i64 splits(i64 block_nbytes) const {
        if (flags & 0x10 || typesize > 16 || block_nbytes != blocksize) return 1;
        return block_nbytes / typesize >= 128 ? typesize : 1;
    }
};

// Some blocks of a frame, and the bytes of the frame in which they lie.
struct BloscBlocks {
    BloscHeader header;
    i64 first = 0, last = 0, begin = 0, end = 0;
};

// Whether decoded bytes are elements: bools are 0 or 1.
inline bool are_legal(const Array& array, const u8* bytes, i64 nbytes) {
    if (!array.bools) return true;
    u8 every = 0;
    for (i64 i = 0; i < nbytes; i++) every |= bytes[i];
    return every <= 1;
}

class Decoder {
public:
    Decoder(const Array& array, Scratch& scratch)
        : array_(array), functions_(*array.functions), scratch_(scratch) {}

    // Removes the crc32c behind an encoded chunk.
    bool strip_checksum(const u8* encoded, i64& size) const {
        if (size < 4) return false;
        size -= 4;
        return functions_.crc32c_extend(0, encoded, static_cast<std::size_t>(size)) ==
               u32_at(encoded + size);
    }

    // Removes the header before an encoded chunk.
    bool strip_header(const u8*& encoded, i64& size) const {
        const i64 nbytes = array_.header_nbytes;
        if (!nbytes) return true;
        if (size < nbytes || std::memcmp(encoded, array_.header, static_cast<std::size_t>(nbytes))) return false;
        encoded += nbytes, size -= nbytes;
        return true;
    }

    // Decodes a whole chunk of exactly `nbytes` bytes.
    bool decode(const u8* encoded, i64 size, u8* out) const {
        const std::size_t n = static_cast<std::size_t>(array_.nbytes);
        const std::size_t in = static_cast<std::size_t>(size);
        const i64 most = std::numeric_limits<int>::max();
        switch (array_.codec) {
            case RAW:
                if (size != array_.nbytes) return false;
                std::memcpy(out, encoded, n);
                return true;
            case BLOSC: {
                BloscHeader header;
                return header.read(encoded, size) && header.has_decoder() && header.nbytes == array_.nbytes &&
                       decode_frame(header, encoded, out);
            }
            case ZSTD: {
                const unsigned long long stated = functions_.ZSTD_getFrameContentSize(encoded, in);
                // Of one frame without its size, Python's decoder takes a window of up to 128 MiB.
                const bool fits = stated == n || (stated == UNKNOWN_SIZE && size > 5 && encoded[5] <= 17 << 3 &&
                                                  functions_.ZSTD_findFrameCompressedSize(encoded, in) == in);
                void* context = fits ? scratch_.zstd(functions_) : nullptr;
                return context && functions_.ZSTD_decompressDCtx(context, out, n, encoded, in) == n;
            }
            case LZ4:
                return size >= 5 && size <= most && array_.nbytes <= most && u32_at(encoded) == n &&
                       functions_.LZ4_decompress_safe(
                           reinterpret_cast<const char*>(encoded) + 4, reinterpret_cast<char*>(out),
                           static_cast<int>(size - 4), static_cast<int>(n)) == static_cast<int>(n);
            case GZIP:
            case ZLIB: {
                auto call = array_.codec == GZIP ? functions_.libdeflate_gzip_decompress_ex : functions_.libdeflate_zlib_decompress_ex;
                void* context = scratch_.deflate(functions_);
                std::size_t used = 0, made = 0;
                return context && call(context, encoded, in, out, n, &used, &made) == 0 && used == in &&
                       made == n;
            }
        }
        return false;
    }

    // Finds the blocks of a frame that hold the bytes [low, high) of the chunk. Looks at the header
    // and at as many starts of blocks as it counts; false if there is any doubt.
    bool find_blocks(const u8* frame, i64 size, i64 low, i64 high, BloscBlocks& found) const {
        BloscHeader& header = found.header;
        if (!header.read(frame, size) || !header.has_decoder() || header.nbytes != array_.nbytes) return false;
        if (header.is_stored()) {
            found.begin = BloscHeader::NBYTES + low, found.end = BloscHeader::NBYTES + high;
            return true;
        }
        const i64 blocks = header.blocks();
        i64 first = low / header.blocksize, last = (high + header.blocksize - 1) / header.blocksize;
        // The short last block alone would make a frame shorter than its blocks.
        if (last == blocks && header.nbytes % header.blocksize)
            first = std::min(first, std::max<i64>(0, blocks - 2));
        found.first = first, found.last = last;
        found.begin = BloscHeader::NBYTES, found.end = size;
        if (first == 0 && last == blocks) return true;
        // Encoders with several threads store blocks in any order.
        const auto start = [&](i64 block) -> i64 { return u32_at(frame + BloscHeader::NBYTES + 4 * block); };
        i64 least = size, most = 0;
        for (i64 block = first; block < last; block++)
            least = std::min(least, start(block)), most = std::max(most, start(block));
        if (least < header.table_end() || most >= size) return false;
        found.begin = least;
        for (i64 block = 0; block < blocks; block++)
            if (start(block) > most) found.end = std::min(found.end, start(block));
        return true;
    }

    // Decodes blocks that were found. `begin` is the position of the first of their bytes in the
    // whole chunk; null if there is any doubt.
    const u8* decode_blocks(const u8* frame, i64 size, const BloscBlocks& found, i64& begin) const {
        BloscHeader header = found.header;
        begin = 0;
        if (header.is_stored()) return frame + BloscHeader::NBYTES;
        const i64 first = found.first, last = found.last;
        u8* out = scratch_.take(Scratch::DECODED, array_.nbytes);
        if (!out) return nullptr;
        if (first == 0 && last == header.blocks()) return decode_frame(header, frame, out) ? out : nullptr;
        u8* taken = scratch_.take(Scratch::PARTS, size);
        i64 end = BloscHeader::NBYTES + 4 * (last - first);
        if (!taken || end > size) return nullptr;
        for (i64 block = first; block < last; block++) {
            put32(taken + BloscHeader::NBYTES + 4 * (block - first), end);
            const i64 nbytes = std::min(header.blocksize, header.nbytes - block * header.blocksize);
            i64 at = u32_at(frame + BloscHeader::NBYTES + 4 * block);
            for (i64 left = header.splits(nbytes); left > 0; left--) {
                if (at < found.begin || at > found.end - 4) return nullptr;
                const i64 length = u32_at(frame + at);
                if (length <= 0 || length > found.end - at - 4 || length + 4 > size - end) return nullptr;
                std::memcpy(taken + end, frame + at, static_cast<std::size_t>(length + 4));
                at += length + 4, end += length + 4;
            }
        }
        begin = first * header.blocksize;
        header.nbytes = std::min(last * header.blocksize, header.nbytes) - begin;
        header.cbytes = end;
        taken[0] = 2, taken[1] = 1, taken[2] = header.flags, taken[3] = static_cast<u8>(header.typesize);
        put32(taken + 4, header.nbytes), put32(taken + 8, header.blocksize), put32(taken + 12, end);
        return decode_frame(header, taken, out) ? out : nullptr;
    }

private:
    bool decode_frame(const BloscHeader& header, const u8* frame, u8* out) const {
        if (header.is_stored()) {
            std::memcpy(out, frame + BloscHeader::NBYTES, static_cast<std::size_t>(header.nbytes));
            return true;
        }
        const std::size_t n = static_cast<std::size_t>(header.nbytes);
        return functions_.blosc_decompress_ctx(frame, out, n, 1) == static_cast<int>(header.nbytes);
    }

    static void put32(u8* at, i64 value) {
        const std::uint32_t word = static_cast<std::uint32_t>(value);
        std::memcpy(at, &word, sizeof word);
    }

    const Array& array_;
    const Functions& functions_;
    Scratch& scratch_;
};

}  // namespace gpustore
