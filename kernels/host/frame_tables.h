// Tables by which a device decodes Blosc frames, as gpustore/codecs/blosc/device.py makes them; tests compare the
// two. Frames that are not all alike are left to Python.
#pragma once

#include <algorithm>
#include <cstdint>

#include "job.h"

namespace gpustore {

class FrameTables {
public:
    explicit FrameTables(FrameStreams& frames) : frames_(frames) {}

    // Counts what is written; false if frames are stored, or differ in size, compressor, elements or shuffle, or
    // blocks or streams do not lie where kernels and decoders need them.
    bool count() {
        const FrameColumns& first = frames_.part[0];
        if (!first.rows) return false;
        i64 head[HEADS];
        for (i64 k = 0; k < HEADS; k++) head[k] = first.heads[k * first.rows];
        const auto [nbytes, typesize, code, stored, bytes, bits] = head;
        if (stored || !nbytes) return false;
        frames_.nbytes = nbytes, frames_.code = code, frames_.typesize = typesize, frames_.shuffle = bits ? BITS : bytes ? BYTES : NONE;
        frames_.compressed = frames_.stored = frames_.blocks = frames_.src_bits = 0;
        frames_.most_nbytes = frames_.total_nbytes = frames_.copy_tiles = frames_.block_tiles = 0;
        const bool fast = typesize == 2 || typesize == 4 || typesize == 8 || typesize == 16 || (bits && typesize == 1);
        if (frames_.shuffle && !fast) return false;
        i64 before = 0;
        for (i64 number = 0; number < frames_.parts; number++) {
            const FrameColumns& part = frames_.part[number];
            for (i64 k = 0; k < HEADS; k++) {
                const i64 *column = part.heads + k * part.rows, one = head[k];
                if (std::any_of(column, column + part.rows, [=](i64 other) { return other != one; })) return false;
            }
            if (frames_.shuffle && !count_blocks(part)) return false;
            if (!count_streams(part, before)) return false;
            before += part.rows;
        }
        return true;
    }

    void write() const {
        i64 *from = frames_.table, *size = from + frames_.compressed, *to = size + frames_.compressed,
            *room = to + frames_.compressed, *owner = frames_.owner, *sizes = owner + frames_.compressed;
        auto* copy = static_cast<ByteRange*>(frames_.copies);
        auto* block = static_cast<ShuffledBlock*>(frames_.shuffled);
        i64 before = 0, copy_tile = 0, block_tile = 0;
        for (i64 number = 0; number < frames_.parts; number++) {
            const FrameColumns& part = frames_.part[number];
            for (i64 i = 0; i < part.stream_count; i++) {
                const Stream one(part, i);
                const i64 frame = before + one.frame, begin = frames_.address[frame] + one.src;
                const i64 end = output() + frame * frames_.pitch + one.dst;
                if (one.src_nbytes == one.dst_nbytes) {
                    *copy++ = {begin, end, one.src_nbytes, static_cast<std::uint32_t>(copy_tile), 0};
                    copy_tile += copy_tiles(end, one.src_nbytes);
                } else {
                    *from++ = begin, *size++ = one.src_nbytes, *to++ = end, *room++ = *sizes++ = one.dst_nbytes;
                    *owner++ = frames_.row[frame];
                }
            }
            for (i64 i = 0; frames_.shuffle && i < part.block_count; i++) {
                const Block one(part, i);
                const i64 at = (before + one.frame) * frames_.pitch + one.offset;
                const i64 elements = one.nbytes / frames_.typesize;
                *block++ = {frames_.joined + at, frames_.decoded + at, elements,
                            static_cast<std::uint32_t>(frames_.typesize), static_cast<std::uint32_t>(block_tile)};
                block_tile += block_tiles(elements);
            }
            before += part.rows;
        }
    }

private:
    struct ByteRange {
        i64 src, dst, nbytes;
        std::uint32_t first_tile, reserved;
    };
    struct ShuffledBlock {
        i64 src, dst, elements;
        std::uint32_t typesize, first_tile;
    };

    struct Stream {
        Stream(const FrameColumns& part, i64 i) {
            const i64 *column = stream_columns(part) + i, step = part.stream_room;
            frame = column[0], src = column[step], src_nbytes = column[2 * step];
            dst = column[3 * step], dst_nbytes = column[4 * step];
        }
        i64 frame, src, src_nbytes, dst, dst_nbytes;
    };
    struct Block {
        Block(const FrameColumns& part, i64 i) {
            const i64 *column = block_columns(part) + i, step = part.block_room;
            frame = column[0], offset = column[step], nbytes = column[2 * step];
        }
        i64 frame, offset, nbytes;
    };

    static constexpr i64 HEADS = 6;
    static constexpr i64 NONE = 0, BYTES = 1, BITS = 2;
    static constexpr i64 LINE_NBYTES = 16, COPY_NBYTES = 16 * 1024, BYTE_TILE = 1024, BIT_TILE = 2048;
    static constexpr i64 MAX_TILES = 0x7fffffff;

    // Where streams are decompressed to.
    i64 output() const { return frames_.shuffle ? frames_.joined : frames_.decoded; }

    static i64 copy_tiles(i64 dst, i64 nbytes) { return (nbytes + dst % LINE_NBYTES + COPY_NBYTES - 1) / COPY_NBYTES; }

    i64 block_tiles(i64 elements) const {
        const i64 tile = frames_.shuffle == BITS ? BIT_TILE : BYTE_TILE;
        return (elements + tile - 1) / tile;
    }

    // Whether the fast kernels take all blocks whole.
    bool count_blocks(const FrameColumns& part) {
        const i64 typesize = frames_.typesize, several = frames_.shuffle == BITS ? 8 : 4;
        for (i64 i = 0; i < part.block_count; i++) {
            const Block one(part, i);
            const i64 elements = one.nbytes / typesize;
            if (one.frame < 0 || one.frame >= part.rows || one.offset % LINE_NBYTES) return false;
            if (one.nbytes % typesize || elements < 1 || elements % several) return false;
            if ((frames_.block_tiles += block_tiles(elements)) > MAX_TILES) return false;
        }
        frames_.blocks += part.block_count;
        return true;
    }

    bool count_streams(const FrameColumns& part, i64 before) {
        for (i64 i = 0; i < part.stream_count; i++) {
            const Stream one(part, i);
            if (one.frame < 0 || one.frame >= part.rows) return false;
            const i64 frame = before + one.frame;
            if (one.src_nbytes == one.dst_nbytes) {
                frames_.stored++;
                frames_.copy_tiles += copy_tiles(one.dst, one.src_nbytes);
                if (frames_.copy_tiles > MAX_TILES) return false;
                continue;
            }
            frames_.src_bits |= frames_.address[frame] + one.src;
            frames_.compressed++;
            frames_.most_nbytes = std::max(frames_.most_nbytes, one.dst_nbytes);
            frames_.total_nbytes += one.dst_nbytes;
        }
        return true;
    }

    FrameStreams& frames_;
};

}  // namespace gpustore
