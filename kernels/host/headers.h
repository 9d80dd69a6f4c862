// Headers of encoded values that a device decodes, read before it does: the checks of
// gpustore/codecs/zstd/columns.py, zstd/blocks.py and blosc/columns.py, which word the reasons against
// values that are left here.
#pragma once

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "decode.h"

namespace gpustore {

// A value in host memory.
struct Value {
    const u8* at;
    i64 nbytes;

    // Little-endian integer of at most 8 bytes; bytes behind `end` count as 0.
    std::uint64_t uint(i64 position, int width, i64 end) const {
        std::uint64_t found = 0;
        for (int k = 0; k < width && position + k < end; k++)
            found |= static_cast<std::uint64_t>(at[position + k]) << (8 * k);
        return found;
    }
};

// Finds a value; false if it does not lie in the memory.
inline bool find(const Encoded& values, i64 number, Value& value) {
    const i64 start = values.start[number], size = values.size[number];
    if (start < 0 || size < 0 || start > values.nbytes || size > values.nbytes - start) return false;
    value = {values.memory + start, size};
    return true;
}

// Walks one Zstandard frame. Source: RFC 8878 3.1.1.
class ZstdFrame {
public:
    explicit ZstdFrame(const Value& value) : value_(value) {}

    // Content size in bytes; 0 for a frame that is not plainly right.
    i64 content() {
        i64 position = 0;
        if (!read_header(position)) return 0;
        i64 room = content_, more = 0;  // bytes that blocks do not say they have, or may have besides
        for (i64 blocks = 1;; blocks++) {
            const i64 header = static_cast<i64>(value_.uint(position, 3, value_.nbytes));
            const i64 kind = header >> 1 & 3, size = header >> 3;
            if (kind == RESERVED || size > block_max_) return 0;
            if (content_ < (blocks - FEW_BLOCKS) * MEAN_BLOCK_NBYTES) return 0;
            const i64 begin = position + 3;
            position = begin + (kind == RUN ? 1 : size);
            const bool last = header & 1;
            if (last ? position != value_.nbytes : position + 3 > value_.nbytes) return 0;
            i64 least = size;
            if (kind == COMPRESSED) {
                bool exact = false;
                if (size < 2 || !read_block(begin, position, least, exact)) return 0;
                if (!exact) more += block_max_ - least;
            }
            if ((room -= least) < 0) return 0;
            if (last) return room > more ? 0 : content_;
        }
    }

private:
    static constexpr i64 RUN = 1, COMPRESSED = 2, RESERVED = 3;
    static constexpr i64 BLOCK_NBYTES = 128 << 10, WINDOW_NBYTES = 8 << 20;
    static constexpr i64 FEW_BLOCKS = 64, MEAN_BLOCK_NBYTES = 1024;

    bool read_header(i64& position) {
        const u8* at = value_.at;
        if (value_.nbytes < 9 || u32_at(at) != 0xFD2FB528u) return false;
        const int descriptor = at[4], single = descriptor >> 5 & 1, kind = descriptor >> 6;
        if (descriptor & 0x0F) return false;
        const int width = kind ? 1 << kind : single;
        position = 6 - single;
        if (!width || position + width + 3 > value_.nbytes) return false;
        const std::uint64_t content = value_.uint(position, width, value_.nbytes) + (width == 2 ? 256 : 0);
        if (!content || content >> 56) return false;
        content_ = static_cast<i64>(content);
        i64 window = content_;
        if (!single) window = (i64{1} << (10 + (at[5] >> 3))) / 8 * (8 + (at[5] & 7));
        if (window > std::max(content_, WINDOW_NBYTES)) return false;
        block_max_ = std::min(window, BLOCK_NBYTES);
        position += width;
        return true;
    }

    // Reads the headers in a compressed block: a lower bound of its decoded bytes, and whether it is exact.
    bool read_block(i64 start, i64 end, i64& least, bool& exact) {
        static constexpr int PLAIN_HEADER[] = {1, 2, 1, 3}, PLAIN_BITS[] = {5, 12, 5, 20};
        static constexpr int PACKED_HEADER[] = {3, 3, 4, 5}, PACKED_BITS[] = {10, 10, 14, 18};
        const i64 header = static_cast<i64>(value_.uint(start, 5, end));
        const int kind = header & 3, form = header >> 2 & 3;
        const bool plain = kind <= 1, treeless = kind == 3;
        const int bits = plain ? PLAIN_BITS[form] : PACKED_BITS[form];
        const i64 mask = (i64{1} << bits) - 1;
        const i64 literals = header >> (plain && form % 2 == 0 ? 3 : 4) & mask;
        const i64 stored = !plain ? header >> (4 + bits) & mask : kind == 0 ? literals : 1;
        const i64 begin = start + (plain ? PLAIN_HEADER[form] : PACKED_HEADER[form]);
        const i64 sequences = begin + stored;
        if (sequences >= end || literals > block_max_) return false;
        if (!plain && !has_streams(begin, sequences, literals, treeless, form > 0)) return false;
        if (treeless && !had_tree_) return false;
        had_tree_ |= !plain;
        i64 count = 0;
        if (!read_sequences(sequences, end, count)) return false;
        least = literals + 3 * count, exact = !count;
        return least <= block_max_;
    }

    // Whether Huffman streams of literals lie between two positions.
    bool has_streams(i64 begin, i64 end, i64 literals, bool treeless, bool four) const {
        const i64 first = static_cast<i64>(value_.uint(begin, 1, end));
        const i64 tree = treeless ? 0 : 1 + (first < 128 ? first : (first - 126) / 2);
        const i64 jumps = begin + tree;
        if (!literals || (!treeless && !first) || jumps >= end) return false;
        if (four) {
            const std::uint64_t sizes = value_.uint(jumps, 6, end);
            i64 last = jumps + 6;
            for (int k = 0; k < 3; k++) {
                const i64 size = static_cast<i64>(sizes >> (16 * k) & 0xFFFF);
                last += size;
                if (!size || last >= end || !value_.at[last - 1]) return false;
            }
            if (literals < 6) return false;
        }
        return value_.at[end - 1] != 0;  // its highest bit says where a stream ends
    }

    bool read_sequences(i64 start, i64 end, i64& count) {
        const std::uint64_t header = value_.uint(start, 4, end);
        const i64 first = header & 0xFF, second = header >> 8 & 0xFF, third = header >> 16 & 0xFF;
        count = first < 128 ? first : first < 255 ? ((first - 128) << 8) + second : second + (third << 8) + 0x7F00;
        if (!count) return !first && start + 1 == end;
        const int count_nbytes = 1 + (first >= 128) + (first == 255);
        const int modes = header >> (8 * count_nbytes) & 0xFF;
        i64 tables = 0;
        bool repeats = false;
        for (int k = 2; k < 8; k += 2) {
            const int mode = modes >> k & 3;
            tables += mode == 1 || mode == 2;
            repeats |= mode == 3;
        }
        if (modes & 3 || start + count_nbytes + 1 + tables + 1 > end) return false;
        if (!value_.at[end - 1] || (repeats && !had_sequences_)) return false;
        had_sequences_ = true;
        return true;
    }

    const Value& value_;
    i64 content_ = 0, block_max_ = 0;
    bool had_tree_ = false, had_sequences_ = false;
};

// Frames of Blosc 1, their blocks, and the streams of these. Source: as BloscHeader.
class BloscFrames {
public:
    // `heads` are columns of `rows` numbers: decoded bytes (0 for a frame that is not plainly right), typesize,
    // compressor, whether the frame is stored and its bytes or bits are shuffled, blocks, streams. Columns of
    // blocks: number of the frame, first byte and bytes of the decoded block. Columns of streams: number of the
    // frame, first byte and bytes of the stream in the frame, and of what it decodes to.
    explicit BloscFrames(FrameColumns& columns) : columns_(columns) {
        i64* heads = columns.heads;
        for (i64** column : {&nbytes_, &typesize_, &code_, &stored_, &bytes_, &bits_, &blocks_, &streams_})
            *column = heads, heads += columns.rows;
    }

    void read_head(i64 frame, const Value& value, i64 decoded_max, bool exact) {
        BloscHeader header;
        const bool right = header.read(value.at, value.nbytes) && header.nbytes <= decoded_max &&
                           (!exact || header.nbytes == decoded_max) && fits(header, value.at);
        nbytes_[frame] = right ? header.nbytes : 0;
        typesize_[frame] = header.typesize;
        code_[frame] = header.flags >> 5;
        stored_[frame] = right && header.is_stored();
        bytes_[frame] = header.flags & 0x01 && header.typesize > 1;
        bits_[frame] = (header.flags & 0x04) != 0;
        blocks_[frame] = streams_[frame] = 0;
        if (!right || header.is_stored()) return;
        const i64 blocks = header.blocks(), last = header.nbytes - (blocks - 1) * header.blocksize;
        blocks_[frame] = blocks;
        streams_[frame] = (blocks - 1) * header.splits(header.blocksize) + header.splits(last);
    }

    // Walks the streams of a frame whose head was read; it is not plainly right if there is no room for them.
    void read_streams(i64 frame, const Value& value) {
        const i64 blocks = blocks_[frame], streams = streams_[frame];
        i64 &block = columns_.block_count, &stream = columns_.stream_count;
        if (!blocks) return;
        BloscHeader header;
        if (blocks > columns_.block_room - block || streams > columns_.stream_room - stream ||
            !header.read(value.at, value.nbytes) || !walk(header, value)) {
            nbytes_[frame] = blocks_[frame] = streams_[frame] = 0;
            return;
        }
        std::fill_n(block_columns(columns_) + block, blocks, frame);
        std::fill_n(stream_columns(columns_) + stream, streams, frame);
        block += blocks, stream += streams;
    }

private:
    static bool fits(const BloscHeader& header, const u8* frame) {
        if (header.is_stored()) return true;
        // Of a block: its offset, the length of its stream, a byte of it.
        if (frame[1] != 1 || header.blocks() * 9 > header.cbytes - BloscHeader::NBYTES) return false;
        return header.blocksize % header.splits(header.blocksize) == 0;
    }

    bool walk(const BloscHeader& header, const Value& value) const {
        const i64 begin = header.table_end(), block_room = columns_.block_room, stream_room = columns_.stream_room;
        i64* block = block_columns(columns_) + block_room + columns_.block_count;
        i64* const streams = stream_columns(columns_) + stream_room + columns_.stream_count;
        i64* stream = streams;
        i64 end = begin;  // of the streams so far
        bool ascending = true;
        for (i64 offset = 0; offset < header.nbytes; offset += header.blocksize, block++) {
            const i64 nbytes = std::min(header.blocksize, header.nbytes - offset);
            const i64 splits = header.splits(nbytes), share = nbytes / splits;
            block[0] = offset, block[block_room] = nbytes;
            i64 position = u32_at(value.at + BloscHeader::NBYTES + 4 * (offset / header.blocksize));
            for (i64 k = 0; k < splits; k++, stream++) {
                if (position < begin || position > value.nbytes - 4) return false;
                const i64 length = u32_at(value.at + position);
                ascending &= position >= end;
                position += 4;
                if (!length || length > value.nbytes - position) return false;
                end = position + length;
                stream[0] = position, stream[stream_room] = length;
                stream[2 * stream_room] = offset + k * share, stream[3 * stream_room] = share;
                position = end;
            }
        }
        // Encoders with several threads store blocks in any order.
        return ascending || are_apart(streams, streams + stream_room, stream - streams);
    }

    // Whether streams with their lengths in front of them do not lie in each other.
    static bool are_apart(const i64* begin, const i64* nbytes, i64 count) try {
        std::vector<std::pair<i64, i64>> taken;
        for (i64 i = 0; i < count; i++) taken.push_back({begin[i] - 4, begin[i] + nbytes[i]});
        std::sort(taken.begin(), taken.end());
        for (std::size_t i = 1; i < taken.size(); i++)
            if (taken[i - 1].second > taken[i].first) return false;
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }

    FrameColumns& columns_;
    i64 *nbytes_, *typesize_, *code_, *stored_, *bytes_, *bits_, *blocks_, *streams_;
};

}  // namespace gpustore
