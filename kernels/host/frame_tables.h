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
        const i64 rows = frames_.rows, *heads = frames_.heads;
        if (!rows) return false;
        for (int k = 0; k < HEADS; k++, heads += frames_.head_step)
            if (std::any_of(heads, heads + rows, [=](i64 one) { return one != *heads; })) return false;
        const i64 *nbytes = frames_.heads, *typesize = nbytes + frames_.head_step, *code = typesize + frames_.head_step;
        const i64 *stored = code + frames_.head_step, *bytes = stored + frames_.head_step,
                  *bits = bytes + frames_.head_step;
        if (*stored || !*nbytes) return false;
        frames_.code = *code, frames_.typesize = *typesize, frames_.shuffle = *bits ? BITS : *bytes ? BYTES : NONE;
        if (frames_.shuffle && !count_blocks(*typesize, *bits)) return false;
        return count_streams();
    }

    void write() const {
        const i64 rows = frames_.rows, step = frames_.stream_step;
        const i64 *frame = frames_.stream, *src = frame + step, *src_nbytes = src + step, *dst = src_nbytes + step,
                  *dst_nbytes = dst + step;
        const i64 into = frames_.shuffle ? frames_.joined : frames_.decoded;
        i64 *from = frames_.table, *size = from + frames_.compressed, *to = size + frames_.compressed,
            *room = to + frames_.compressed, *owner = frames_.owner, *sizes = owner + frames_.compressed;
        ByteRange* copy = static_cast<ByteRange*>(frames_.copies);
        i64 tiles = 0;
        for (i64 i = 0; i < frames_.streams; i++) {
            if (frame[i] < 0 || frame[i] >= rows) continue;
            const i64 begin = frames_.address[frame[i]] + src[i], end = into + frame[i] * frames_.pitch + dst[i];
            if (src_nbytes[i] == dst_nbytes[i]) {
                *copy++ = {begin, end, src_nbytes[i], static_cast<std::uint32_t>(tiles), 0};
                tiles += copy_tiles(end, src_nbytes[i]);
            } else {
                *from++ = begin, *size++ = src_nbytes[i], *to++ = end, *room++ = *sizes++ = dst_nbytes[i];
                *owner++ = frames_.row[frame[i]];
            }
        }
        if (!frames_.shuffle) return;
        const i64 *whose = frames_.block, *offset = whose + frames_.block_step, *nbytes = offset + frames_.block_step;
        const auto typesize = static_cast<std::uint32_t>(frames_.typesize);
        ShuffledBlock* block = static_cast<ShuffledBlock*>(frames_.shuffled);
        tiles = 0;
        for (i64 i = 0; i < frames_.blocks; i++) {
            const i64 at = whose[i] * frames_.pitch + offset[i], elements = nbytes[i] / frames_.typesize;
            *block++ = {frames_.joined + at, frames_.decoded + at, elements, typesize, static_cast<std::uint32_t>(tiles)};
            tiles += block_tiles(elements);
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

    static constexpr int HEADS = 6;
    static constexpr i64 NONE = 0, BYTES = 1, BITS = 2;
    static constexpr i64 LINE_NBYTES = 16, COPY_NBYTES = 16 * 1024, BYTE_TILE = 1024, BIT_TILE = 2048;
    static constexpr i64 MAX_TILES = 0x7fffffff;

    static i64 copy_tiles(i64 dst, i64 nbytes) { return (nbytes + dst % LINE_NBYTES + COPY_NBYTES - 1) / COPY_NBYTES; }

    i64 block_tiles(i64 elements) const {
        const i64 tile = frames_.shuffle == BITS ? BIT_TILE : BYTE_TILE;
        return (elements + tile - 1) / tile;
    }

    // Whether the fast kernels take all blocks whole.
    bool count_blocks(i64 typesize, i64 bits) {
        const bool fast = typesize == 2 || typesize == 4 || typesize == 8 || typesize == 16 || (bits && typesize == 1);
        const i64 *whose = frames_.block, *offset = whose + frames_.block_step, *nbytes = offset + frames_.block_step;
        if (!fast || (frames_.joined | frames_.decoded | frames_.pitch) % LINE_NBYTES) return false;
        frames_.block_tiles = 0;
        for (i64 i = 0; i < frames_.blocks; i++) {
            const i64 elements = nbytes[i] / typesize;
            if (whose[i] < 0 || whose[i] >= frames_.rows || offset[i] % LINE_NBYTES || nbytes[i] % typesize ||
                elements < 1 || elements % (bits ? 8 : 4))
                return false;
            if ((frames_.block_tiles += block_tiles(elements)) > MAX_TILES) return false;
        }
        return frames_.blocks > 0;
    }

    bool count_streams() {
        const i64 step = frames_.stream_step, into = frames_.shuffle ? frames_.joined : frames_.decoded;
        const i64 *frame = frames_.stream, *src = frame + step, *src_nbytes = src + step, *dst = src_nbytes + step,
                  *dst_nbytes = dst + step;
        frames_.compressed = frames_.stored = frames_.copy_tiles = frames_.most_nbytes = 0;
        for (i64 i = 0; i < frames_.streams; i++) {
            if (frame[i] < 0 || frame[i] >= frames_.rows) return false;
            if (src_nbytes[i] == dst_nbytes[i]) {
                frames_.stored++;
                frames_.copy_tiles += copy_tiles(into + frame[i] * frames_.pitch + dst[i], src_nbytes[i]);
                if (frames_.copy_tiles > MAX_TILES) return false;
                continue;
            }
            if ((frames_.address[frame[i]] + src[i]) % frames_.alignment) return false;
            frames_.compressed++;
            frames_.most_nbytes = std::max(frames_.most_nbytes, dst_nbytes[i]);
        }
        return true;
    }

    FrameStreams& frames_;
};

}  // namespace gpustore
