// Reads of the chunks of a window by any number of threads.
//
// A window is a list of rows, one part of one chunk each, sorted into units of rows that share a
// file. Each thread takes the next units from a shared counter. A row that is not plainly right is
// left alone and told by its status. Every size is checked before memory is touched: a row whose
// numbers do not fit its buffers is left alone too.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>

#include "decode.h"
#include "file.h"
#include "groups.h"
#include "headers.h"
#include "job.h"
#include "place.h"

namespace gpustore {

constexpr i64 TAKEN_NBYTES = 256 << 10;  // of decoded chunks that a thread takes at once
constexpr i64 PARTED_NBYTES = 96 << 10;  // below which a chunk is one block for most encoders
constexpr i64 HEAD_NBYTES = 4096;        // of a Blosc frame: its header and the starts of its blocks
constexpr int KEY_NBYTES = 4096;
constexpr int MAX_LEVELS = 4;

struct Range {
    i64 start, nbytes;
};

// One thread's part of a job: reads, decodes and places chunks, or fetches them for a device.
class Worker {
public:
    Worker(Job& job, Scratch& scratch, const u8* cancelled)
        : job_(job), array_(*job.array), scratch_(scratch), cancelled_(cancelled), decoder_(array_, scratch) {}

    // Works on units until none is left, `nanoseconds` are over, or the work is cancelled.
    Progress work(i64 nanoseconds) {
        using Clock = std::chrono::steady_clock;
        const auto end = Clock::now() + std::chrono::nanoseconds(nanoseconds);
        const i64 share = job_.units / (4 * std::max<i64>(1, job_.threads));
        const i64 most = TAKEN_NBYTES / std::max<i64>(1, array_.nbytes);
        const i64 taken = array_.levels ? 1 : std::max<i64>(1, std::min(most, share));
        bool more = false;
        for (;;) {
            if ((more = is_set(cancelled_))) break;
            const i64 begin = job_.next.fetch_add(taken, std::memory_order_relaxed);
            if (begin >= job_.units) break;
            const i64 stop = std::min(begin + taken, job_.units);
            for (i64 unit = begin; unit < stop; unit++) read_unit(job_.unit[unit], job_.unit[unit + 1]);
            finished_ += stop - begin;
            job_.decoded->fetch_add(decoded_, std::memory_order_relaxed), decoded_ = 0;
            if (nanoseconds && Clock::now() >= end) {
                more = job_.next.load(std::memory_order_relaxed) < job_.units;
                break;
            }
        }
        file_.close();
        scratch_.shrink(Scratch::KEPT_NBYTES);
        if (!finished_) return more ? AGAIN : TAKEN;  // Python may look at the counters already
        job_.reads += reads_, job_.fetched += fetched_, job_.missing += missing_, job_.left += left_;
        // Last: whoever finishes the last unit sees what all have counted.
        if (job_.finished.fetch_add(finished_) + finished_ == job_.units) return ENDED;
        return more ? AGAIN : TAKEN;
    }

private:
    void read_unit(i64 begin, i64 end) {
        if (begin < 0 || begin >= end || end > job_.rows) return;
        const int error = job_.values ? 0 : open(begin);
        const bool missing = error == ENOENT || error == ENOTDIR;
        if (missing) reads_++;
        for (i64 row = begin; row < end; row++) {
            u8 status = NOT_DONE;
            if (missing)
                status = fill(row);
            else if (job_.values)
                status = decode_value(row);
            else if (!error)
                status = read_row(row);
            if (job_.generation && !error && !job_.values) file_.generation(job_.generation + 4 * row);
            left_ += status >= NOT_DONE;
            missing_ += status == MISSING;
            job_.status[row] = status;
        }
    }

    // Opens the file of a row, unless it is a shard that is open: a thread often gets the next unit of
    // the same one. An errno if that fails.
    int open(i64 row) {
        if (array_.levels && opened_ >= 0 && share_key(opened_, row)) return 0;
        opened_ = -1;
        for (int level = 0; level < MAX_LEVELS; level++) index_[level].start = -1;
        const int error = make_key(row) ? file_.open(job_.directory, key_, job_.resolve) : ENAMETOOLONG;
        if (!error) opened_ = row;
        return error;
    }

    const char* prefix_of(i64 row) const { return job_.prefixes ? job_.prefixes[row] : job_.prefix; }

    bool share_key(i64 one, i64 other) const {
        if (prefix_of(one) != prefix_of(other)) return false;
        for (i64 k = 0; k < array_.key_rank; k++)
            if (cell(k, one) / array_.ratio[k] != cell(k, other) / array_.ratio[k]) return false;
        return true;
    }

    i64 cell(i64 dimension, i64 row) const { return job_.cells[dimension * job_.rows + row]; }

    bool make_key(i64 row) {
        const char* begin = prefix_of(row);
        const std::size_t prefix = std::strlen(begin), separator = std::strlen(array_.separator);
        if (prefix + static_cast<std::size_t>(array_.key_rank) * (20 + separator) + 1 > KEY_NBYTES)
            return false;
        char* at = key_;
        std::memcpy(at, begin, prefix), at += prefix;
        for (i64 k = 0; k < array_.key_rank; k++) {
            if (k) std::memcpy(at, array_.separator, separator), at += separator;
            i64 index = cell(k, row) / array_.ratio[k];
            if (index < 0) return false;
            char digits[20];
            int count = 0;
            do digits[count++] = static_cast<char>('0' + index % 10);
            while (index /= 10);
            while (count) *at++ = digits[--count];
        }
        *at = 0;
        return at > key_;
    }

    u8 read_row(i64 row) {
        Range range = {0, file_.size()};
        for (i64 level = 0; level < array_.levels; level++) {
            bool absent = false;
            if (!look_up(level, row, range, absent)) return NOT_DONE;
            if (absent) return fill(row);
        }
        if (range.nbytes > array_.bound) return NOT_DONE;
        if (job_.staging) return fetch(row, range);
        if (array_.codec == RAW && !array_.crc && !array_.header_nbytes) return read_raw(row, range) ? DONE : NOT_DONE;
        if (!is_covered(row)) return NOT_DONE;
        if (wants_blocks() && !array_.crc && !array_.header_nbytes) return read_blocks(row, range) ? DONE : NOT_DONE;
        i64 size = range.nbytes;
        u8* encoded = scratch_.take(Scratch::ENCODED, size);
        if (!encoded || !file_.read(encoded, size, range.start)) return NOT_DONE;
        if (array_.crc && !decoder_.strip_checksum(encoded, size)) return NOT_DONE;
        const u8* value = encoded;
        if (!decoder_.strip_header(value, size) || !decode_row(row, value, size)) return NOT_DONE;
        count_read(range.nbytes, array_.nbytes);
        return DONE;
    }

    // Decodes and places a value in memory.
    u8 decode_value(i64 row) {
        const u8* value = job_.values[row];
        i64 size = job_.sizes[row];
        if (!value) return fill(row);
        if (size > array_.bound || !is_covered(row)) return NOT_DONE;
        if (array_.crc && !decoder_.strip_checksum(value, size)) return NOT_DONE;
        if (!decoder_.strip_header(value, size)) return NOT_DONE;
        return decode_row(row, value, size) ? DONE : NOT_DONE;
    }

    // Reads a value into the staging memory, decoded if the array has a codec.
    u8 fetch(i64 row, const Range& range) {
        Staging& staging = *job_.staging;
        const bool decodes = array_.codec != RAW || array_.crc || array_.header_nbytes;
        const i64 nbytes = decodes ? array_.nbytes : range.nbytes;
        const i64 at = take(*staging.used, nbytes, staging.alignment, staging.nbytes);
        if (at < 0) return NO_ROOM;
        u8* out = staging.memory + at;
        if (decodes ? !decode_file(range, out) : !file_.read(out, nbytes, range.start)) return NOT_DONE;
        staging.at[row] = at, staging.size[row] = nbytes;
        const Value frame = {out, nbytes - staging.behind};
        if (staging.content) staging.content[row] = ZstdFrame(frame).content();
        if (staging.frames) {  // Whether they have the right size is asked later.
            BloscFrames frames(*staging.frames);
            frames.read_head(row, frame, std::numeric_limits<i64>::max(), false);
            frames.read_streams(row, frame);
        }
        count_read(range.nbytes, decodes ? nbytes : 0);
        return DONE;
    }

    // Reads an encoded value and decodes all of it.
    bool decode_file(const Range& range, u8* out) {
        i64 size = range.nbytes;
        u8* encoded = scratch_.take(Scratch::ENCODED, size);
        if (!encoded || !file_.read(encoded, size, range.start)) return false;
        if (array_.crc && !decoder_.strip_checksum(encoded, size)) return false;
        const u8* value = encoded;
        return decoder_.strip_header(value, size) && decoder_.decode(value, size, out) && is_legal(out, array_.nbytes);
    }

    void count_read(i64 fetched, i64 decoded) { reads_++, fetched_ += fetched, decoded_ += decoded; }

    // Narrows the range of a shard down to that of an inner chunk.
    bool look_up(i64 number, i64 row, Range& range, bool& absent) {
        const ShardLevel& level = array_.level[number];
        Range& known = index_[number];
        const i64 nbytes = 16 * level.chunks, stored = nbytes + (level.crc ? 4 : 0);
        if (stored > range.nbytes) return false;
        u8* index = scratch_.take(Scratch::INDEX + static_cast<int>(number), stored);
        if (!index) return false;
        if (known.start != range.start || known.nbytes != range.nbytes) {
            const i64 at = level.at_end ? range.start + range.nbytes - stored : range.start;
            known.start = -1;
            if (!file_.read(index, stored, at)) return false;
            i64 size = stored;
            if (level.crc && !decoder_.strip_checksum(index, size)) return false;
            if (!is_legal_index(level, index, range.nbytes, stored)) return false;
            known = range;
            reads_++, fetched_ += stored;
        }
        i64 position = 0;
        for (i64 k = 0; k < array_.key_rank; k++) {
            const i64 d = level.order[k];
            position = position * level.count[k] + cell(d, row) / level.divisor[d] % level.count[k];
        }
        if (position < 0 || position >= level.chunks) return false;
        const std::uint64_t start = u64_at(index + 16 * position), length = u64_at(index + 16 * position + 8);
        absent = start == ~0ull && length == ~0ull;
        if (absent) return true;
        range = {range.start + static_cast<i64>(start), static_cast<i64>(length)};
        return true;
    }

    // Whether each entry is missing or lies in the shard beside its index.
    static bool is_legal_index(const ShardLevel& level, const u8* index, i64 shard, i64 stored) {
        const std::uint64_t low = static_cast<std::uint64_t>(level.at_end ? 0 : stored);
        const std::uint64_t high = static_cast<std::uint64_t>(level.at_end ? shard - stored : shard);
        for (i64 i = 0; i < level.chunks; i++) {
            const std::uint64_t start = u64_at(index + 16 * i), length = u64_at(index + 16 * i + 8);
            if (start == ~0ull && length == ~0ull) continue;
            if (start < low || start > high || length == 0 || length > high - start) return false;
        }
        return true;
    }

    i64 first_region(i64 row) const { return job_.first ? job_.first[row] : row; }
    i64 target(i64 region) const { return job_.target ? job_.target[region] : 0; }

    Box box_of(i64 region) const {
        Box box;
        const i64 number = target(region) * job_.rank;
        for (i64 d = 0; d < job_.rank; d++)
            box.add(job_.count[d * job_.regions + region], job_.dst_stride[number + d],
                    job_.src_stride[number + d]);
        return box;
    }

    // Whether all regions of a row lie inside a decoded chunk and inside their arrays.
    bool is_covered(i64 row) {
        low_ = INT64_MAX, high_ = 0;
        if (job_.rank > MAX_INPUT_RANK) return false;
        for (i64 region = first_region(row); region < first_region(row + 1); region++) {
            const Box box = box_of(region);
            if (!box.legal()) return false;
            i128 src_low, src_high, dst_low, dst_high;
            box.reach(&Dimension::src, array_.itemsize, src_low, src_high);
            box.reach(&Dimension::dst, array_.itemsize, dst_low, dst_high);
            if (src_high - src_low > MOST || dst_high - dst_low > MOST) return false;
            for (i64 set = 0; set < job_.point_sets; set++) {
                const Points& points = job_.points[set];
                const i64 begin = points.begin[region], end = points.end[region];
                if (begin >= end) return false;
                widen(points.src, begin, end, src_low, src_high);
                widen(points.dst, begin, end, dst_low, dst_high);
            }
            const Target& out = job_.out[target(region)];
            const i128 src = i128(array_.offset) + job_.src_start[region];
            const i128 dst = i128(out.offset) + job_.dst_start[region];
            if (dst + dst_low < 0 || dst + dst_high > out.nbytes) return false;
            if (src + src_low < 0 || src + src_high > array_.nbytes) return false;
            low_ = std::min(low_, static_cast<i64>(src + src_low));
            high_ = std::max(high_, static_cast<i64>(src + src_high));
        }
        return low_ < high_;
    }

    static void widen(const i64* offsets, i64 begin, i64 end, i128& low, i128& high) {
        const auto [least, most] = std::minmax_element(offsets + begin, offsets + end);
        low += *least, high += *most;
    }

    // Where a row that covers a whole chunk goes if its bytes lie there as they lie in the chunk.
    u8* contiguous(i64 row) const {
        const i64 region = first_region(row);
        if (job_.point_sets || array_.word || first_region(row + 1) != region + 1) return nullptr;
        if (array_.offset + job_.src_start[region]) return nullptr;
        Box box = box_of(region);
        box.simplify();
        const i64 itemsize = array_.itemsize;
        if (box.rank > 1 || box.elements() * itemsize != array_.nbytes) return nullptr;
        if (box.rank && (box.dimension[0].dst != itemsize || box.dimension[0].src != itemsize)) return nullptr;
        const Target& out = job_.out[target(region)];
        return out.memory + out.offset + job_.dst_start[region];
    }

    // Whether the blocks of a Blosc frame that the regions of a row need are decoded alone.
    bool wants_blocks() const {
        return array_.parts && array_.nbytes >= PARTED_NBYTES && high_ - low_ <= array_.nbytes / 2;
    }

    bool decode_blocks(i64 row, const u8* encoded, i64 size, const BloscBlocks& blocks) {
        i64 begin = 0;
        const u8* part = decoder_.decode_blocks(encoded, size, blocks, begin);
        if (!part || !is_legal(part + (low_ - begin), high_ - low_)) return false;
        copy_row(row, part, begin);
        return true;
    }

    // Reads header, starts of blocks and wanted blocks of a Blosc frame.
    bool read_blocks(i64 row, const Range& range) {
        const i64 size = range.nbytes;
        u8* encoded = scratch_.take(Scratch::ENCODED, size);
        i64 head = std::min(size, HEAD_NBYTES);
        BloscBlocks blocks;
        if (!encoded || !file_.read(encoded, head, range.start)) return false;
        if (!blocks.header.read(encoded, size)) return false;
        const i64 more = blocks.header.table_end() - head;
        if (more > 0 && !file_.read(encoded + head, more, range.start + head)) return false;
        head += std::max<i64>(0, more);
        if (!decoder_.find_blocks(encoded, size, low_, high_, blocks)) return false;
        const i64 begin = std::max(head, blocks.begin), missing = std::max<i64>(0, blocks.end - begin);
        if (!file_.read(encoded + begin, missing, range.start + begin)) return false;
        if (!decode_blocks(row, encoded, size, blocks)) return false;
        count_read(head + missing, array_.nbytes);
        return true;
    }

    bool decode_row(i64 row, const u8* encoded, i64 size) {
        if (u8* out = contiguous(row))
            return decoder_.decode(encoded, size, out) && is_legal(out, array_.nbytes);
        if (array_.codec == RAW) {
            if (size != array_.nbytes || !is_legal(encoded, size)) return false;
            copy_row(row, encoded, 0);
            return true;
        }
        if (wants_blocks()) {
            BloscBlocks blocks;
            return decoder_.find_blocks(encoded, size, low_, high_, blocks) &&
                   decode_blocks(row, encoded, size, blocks);
        }
        u8* decoded = scratch_.take(Scratch::DECODED, array_.nbytes);
        if (!decoded || !decoder_.decode(encoded, size, decoded)) return false;
        if (!is_legal(decoded, array_.nbytes)) return false;
        copy_row(row, decoded, 0);
        return true;
    }

    bool is_legal(const u8* bytes, i64 nbytes) const { return are_legal(array_, bytes, nbytes); }

    // Copies all regions of a row from decoded bytes, the first of which is `begin` in the chunk.
    void copy_row(i64 row, const u8* decoded, i64 begin) {
        for (i64 region = first_region(row); region < first_region(row + 1); region++) {
            const Target& out = job_.out[target(region)];
            const u8* src = decoded + array_.offset + job_.src_start[region] - begin;
            u8* dst = out.memory + out.offset + job_.dst_start[region];
            copy_points(0, region, dst, src, box_of(region), array_.word);
        }
    }

    // In the order of the request, so that of elements written twice the last one stays.
    void copy_points(i64 set, i64 region, u8* dst, const u8* src, const Box& box, i64 word) {
        if (set == job_.point_sets) return copy_box(dst, src, box, array_.itemsize, word);
        const Points& points = job_.points[set];
        for (i64 i = points.begin[region]; i < points.end[region]; i++)
            copy_points(set + 1, region, dst + points.dst[i], src + points.src[i], box, word);
    }

    // Reads what is wanted of an uncompressed chunk.
    bool read_raw(i64 row, const Range& range) {
        if (range.nbytes != array_.nbytes || !is_covered(row)) return false;
        if (u8* out = contiguous(row)) {
            if (!file_.read(out, range.nbytes, range.start) || !is_legal(out, range.nbytes)) return false;
            count_read(range.nbytes, array_.nbytes);
            return true;
        }
        if (2 * (high_ - low_) > array_.nbytes) low_ = 0, high_ = array_.nbytes;
        if (reads_apart(row)) return read_groups(row, range);
        const i64 span = high_ - low_;
        u8* bytes = scratch_.take(Scratch::ENCODED, span);
        if (!bytes || !file_.read(bytes, span, range.start + low_) || !is_legal(bytes, span)) return false;
        copy_row(row, bytes, low_);
        count_read(span, span);
        return true;
    }

    // Whether the regions of a row are read group by group, as that is faster than to read all between
    // the outermost bytes, or fits the processor's cache.
    bool reads_apart(i64 row) const {
        const i64 begin = first_region(row), end = first_region(row + 1), span = high_ - low_;
        if (job_.point_sets) return false;
        if (end - begin == 1 && span > GROUP_NBYTES) return true;
        i64 cost = 0;
        for (i64 region = begin; region < end && 2 * cost < span; region++) {
            const Groups groups(box_of(region), array_.itemsize);
            cost += groups.cost();
        }
        return 2 * cost < span;
    }

    bool read_groups(i64 row, const Range& range) {
        i64 fetched = 0;
        for (i64 region = first_region(row); region < first_region(row + 1); region++) {
            Groups groups(box_of(region), array_.itemsize);
            const Dimension& along = groups.along;
            const i64 low = groups.low, high = groups.high, step = groups.step;
            const Target& out = job_.out[target(region)];
            const i64 src = array_.offset + job_.src_start[region];
            u8* dst = out.memory + out.offset + job_.dst_start[region];
            for (i64 first = 0; first < along.count; first += groups.positions) {
                const i64 count = std::min(groups.positions, along.count - first);
                const i64 here = src + first * along.src;
                const i64 begin = here + low - (along.src < 0 ? step * (count - 1) : 0);
                const i64 span = high - low + step * (count - 1);
                u8* bytes = scratch_.take(Scratch::ENCODED, span);
                if (!bytes || !file_.read(bytes, span, range.start + begin) || !is_legal(bytes, span))
                    return false;
                groups.box.dimension[groups.widest].count = count;
                copy_box(dst + first * along.dst, bytes + (here - begin), groups.box, array_.itemsize, array_.word);
                fetched += span;
            }
        }
        count_read(fetched, high_ - low_);
        return true;
    }

    // Writes the fill value to all regions of a row.
    u8 fill(i64 row) {
        if (job_.staging) return MISSING;
        if (!array_.fill_missing || !array_.fill || !is_covered(row)) return NOT_DONE;
        for (i64 region = first_region(row); region < first_region(row + 1); region++) {
            Box box = box_of(region);
            for (int i = 0; i < box.rank; i++) box.dimension[i].src = 0;
            const Target& out = job_.out[target(region)];
            fill_points(0, region, out.memory + out.offset + job_.dst_start[region], box);
        }
        return MISSING;
    }

    void fill_points(i64 set, i64 region, u8* dst, const Box& box) {
        if (set == job_.point_sets) return copy_box(dst, array_.fill, box, array_.itemsize, 0);
        const Points& points = job_.points[set];
        for (i64 i = points.begin[region]; i < points.end[region]; i++)
            fill_points(set + 1, region, dst + points.dst[i], box);
    }

    Job& job_;
    const Array& array_;
    Scratch& scratch_;
    const u8* const cancelled_;
    const Decoder decoder_;
    File file_;
    Range index_[MAX_LEVELS];   // shards whose index is in scratch memory
    i64 low_ = 0, high_ = 0;    // bytes of the decoded chunk that the regions of a row need
    i64 opened_ = -1;           // row whose file is open
    i64 finished_ = 0, reads_ = 0, fetched_ = 0, decoded_ = 0, missing_ = 0, left_ = 0;
    char key_[KEY_NBYTES];
};

}  // namespace gpustore
