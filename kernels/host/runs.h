// Descriptors of the kernels that copy rectangles (kernels/run.cuh), as gpustore/device/kernels/run.py and
// launch.py make them; tests compare the two. Rectangles for which several descriptors would be needed, or that
// are not legal, are left to Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "job.h"

namespace gpustore {

constexpr int MOST_DIMS = 8;  // of a run: one more than of a rectangle
constexpr i64 MAX_WIDTH = 16, ITEMS_PER_TILE = 1024, TILED_EXTENT = 8, MAX_ITEMS = 0x7fffffff;

struct RunDim {
    std::uint32_t extent, magic, shift, indexed;
    i64 src_stride, dst_stride;
};

struct RunHead {
    i64 src, dst;
    std::uint32_t items, first_tile, row, reserved;
};

// A rectangle as one run of items; the innermost dimension comes first. Its addresses count from those of the
// rectangle, because rectangles of the same counts whose addresses have the same remainder are alike.
struct CopyRun {
    i64 src = 0, dst = 0, items = 1;
    i64 extent[MOST_DIMS], src_stride[MOST_DIMS], dst_stride[MOST_DIMS];
    int dims = 0;
    int kernel = 0;  // twice the number of the width, from 16 bytes down to 1; odd if it is not tiled

    i64 width() const { return MAX_WIDTH >> kernel / 2; }
    bool tiled() const { return kernel % 2 == 0; }
};

class CopyRuns {
public:
    explicit CopyRuns(const CopyRows& rows) : rows_(rows) {}

    // Makes the runs of all rows; false if some are left to Python.
    bool make() {
        if (rows_.rank >= MOST_DIMS || rows_.rows <= 0) return false;
        for (i64 d = 0; d < rows_.rank; d++) {
            if (rows_.src_stride[d] == INT64_MIN || rows_.dst_stride[d] == INT64_MIN) return false;
            order_[d] = static_cast<int>(d);
        }
        std::stable_sort(order_, order_ + rows_.rank, [this](int one, int other) {
            const i64 a = std::llabs(rows_.dst_stride[one]), b = std::llabs(rows_.dst_stride[other]);
            return a != b ? a < b : std::llabs(rows_.src_stride[one]) < std::llabs(rows_.src_stride[other]);
        });
        numbers_.reserve(static_cast<std::size_t>(rows_.rows));
        for (i64 row = 0; row < rows_.rows; row++) {
            if (!row || !is_like(row, row - 1)) {
                CopyRun run;
                if (!merge(row, run) || !widen(row, run)) return false;
                pack(run);
                find_tiles(run);
                int& most = most_[run.kernel / 2];
                most = std::max(most, run.dims);
                runs_.push_back(run);
            }
            numbers_.push_back(static_cast<std::uint32_t>(runs_.size() - 1));
        }
        return true;
    }

    // Writes a table for each kernel that is wanted, one behind the other, and five numbers about it: bytes of
    // an item, whether it is tiled, rank of the kernel, descriptors, thread blocks. Returns the number of
    // tables; 0 if `size` bytes do not hold them or a launch has too many blocks.
    i64 write(i64* heads, u8* out, i64 size) {
        bool wanted[10] = {};
        for (const CopyRun& run : runs_) wanted[run.kernel] = true;
        i64 tables = 0;
        for (int kernel = 0; kernel < 10; kernel++) {
            if (!wanted[kernel]) continue;
            const i64 rank = rank_for(most_[kernel / 2]);
            const i64 dims_nbytes = static_cast<i64>(sizeof(RunDim)) * rank;
            const i64 nbytes = static_cast<i64>(sizeof(RunHead)) + dims_nbytes;
            RunDim dims[MOST_DIMS];
            const CopyRun* known = nullptr;  // whose dimensions these are
            i64 count = 0, blocks = 0, tiles = 0;
            for (i64 row = 0; row < rows_.rows; row++) {
                const CopyRun& run = runs_[numbers_[static_cast<std::size_t>(row)]];
                if (run.kernel != kernel) continue;
                if ((size -= nbytes) < 0 || blocks > MAX_ITEMS) return 0;
                if (known != &run) tiles = find_dims(run, rank, dims), known = &run;
                RunHead head = {src(row), dst(row), static_cast<std::uint32_t>(run.items),
                                static_cast<std::uint32_t>(blocks), static_cast<std::uint32_t>(row), 0};
                if (__builtin_add_overflow(head.src, run.src, &head.src)) return 0;
                if (__builtin_add_overflow(head.dst, run.dst, &head.dst)) return 0;
                std::memcpy(out, &head, sizeof head);
                std::memcpy(out + sizeof head, dims, static_cast<std::size_t>(dims_nbytes));
                out += nbytes, blocks += tiles, count++;
            }
            if (blocks > MAX_ITEMS) return 0;
            const i64 head[] = {MAX_WIDTH >> kernel / 2, kernel % 2 == 0, rank, count, blocks};
            heads = std::copy(head, head + 5, heads);
            tables++;
        }
        return tables;
    }

private:
    // Addresses of the first element of a rectangle.
    i64 src(i64 row) const { return rows_.src_base + rows_.src[row] + (rows_.chunk ? rows_.chunk[row] : 0); }
    i64 dst(i64 row) const { return rows_.dst_base + rows_.dst[row]; }

    i64 count(i64 d, i64 row) const { return rows_.count[d * rows_.count_step + row]; }

    static i64 rank_for(int dims) { return dims <= 4 ? dims : MOST_DIMS; }

    // Whether two rectangles are one run.
    bool is_like(i64 row, i64 other) const {
        if (((src(row) ^ src(other)) | (dst(row) ^ dst(other))) % MAX_WIDTH) return false;
        for (i64 d = 0; d < rows_.rank; d++)
            if (count(d, row) != count(d, other)) return false;
        return true;
    }

    // Drops dimensions of one element and merges those without a gap on both sides.
    bool merge(i64 row, CopyRun& run) const {
        run.extent[0] = rows_.itemsize, run.src_stride[0] = run.dst_stride[0] = 1;
        run.dims = 1;
        for (i64 k = 0; k < rows_.rank; k++) {
            const i64 d = order_[k], count = this->count(d, row);
            i64 src = rows_.src_stride[d], dst = rows_.dst_stride[d], reach;
            if (count < 1) return false;
            if (count == 1) continue;
            if (!dst) return false;
            if (dst < 0) {
                if (__builtin_mul_overflow(src, count - 1, &reach) || __builtin_add_overflow(run.src, reach, &run.src))
                    return false;
                if (__builtin_mul_overflow(dst, count - 1, &reach) || __builtin_add_overflow(run.dst, reach, &run.dst))
                    return false;
                src = -src, dst = -dst;
            }
            const int last = run.dims - 1;
            i64 src_next, dst_next;
            if (__builtin_mul_overflow(run.src_stride[last], run.extent[last], &src_next)) return false;
            if (__builtin_mul_overflow(run.dst_stride[last], run.extent[last], &dst_next)) return false;
            if (src_next == src && dst_next == dst) {
                if (__builtin_mul_overflow(run.extent[last], count, &run.extent[last])) return false;
                continue;
            }
            run.extent[run.dims] = count, run.src_stride[run.dims] = src, run.dst_stride[run.dims] = dst;
            run.dims++;
        }
        return true;
    }

    // Chooses the widest items that divide all distances; false where bytes would be copied backwards.
    bool widen(i64 row, CopyRun& run) const {
        const i64 src = this->src(row) % MAX_WIDTH + run.src % MAX_WIDTH;
        const i64 dst = this->dst(row) % MAX_WIDTH + run.dst % MAX_WIDTH;
        i64 every = run.extent[0] | src | dst | MAX_WIDTH;
        for (int k = 1; k < run.dims; k++) every |= run.src_stride[k] | run.dst_stride[k];
        const i64 width = every & -every;
        if (width < rows_.unit) return false;
        run.extent[0] /= width;
        run.src_stride[0] = run.dst_stride[0] = width;
        for (int k = 0; k < run.dims; k++)
            if (__builtin_mul_overflow(run.items, run.extent[k], &run.items) || run.items > MAX_ITEMS) return false;
        run.kernel = 2 * __builtin_ctzll(static_cast<unsigned long long>(MAX_WIDTH / width)) + 1;
        return true;
    }

    static void pack(CopyRun& run) {
        int dims = 0;
        for (int k = 0; k < run.dims; k++) {
            if (run.extent[k] == 1) continue;
            run.extent[dims] = run.extent[k];
            run.src_stride[dims] = run.src_stride[k], run.dst_stride[dims] = run.dst_stride[k];
            dims++;
        }
        if (!dims) run.extent[0] = 1, run.src_stride[0] = run.dst_stride[0] = run.width(), dims = 1;
        run.dims = dims;
    }

    // Whether neighbours in dst are far apart in src, but near across: along another dimension, which becomes
    // the second one.
    static void find_tiles(CopyRun& run) {
        int nearest = -1;
        for (int k = 0; k < run.dims; k++)
            if (run.extent[k] >= TILED_EXTENT &&
                (nearest < 0 || std::llabs(run.src_stride[k]) < std::llabs(run.src_stride[nearest])))
                nearest = k;
        if (nearest < 1 || run.extent[0] < TILED_EXTENT || run.dst_stride[0] != run.width()) return;
        if (std::llabs(run.src_stride[nearest]) != run.width()) return;
        std::swap(run.extent[1], run.extent[nearest]);
        std::swap(run.src_stride[1], run.src_stride[nearest]);
        std::swap(run.dst_stride[1], run.dst_stride[nearest]);
        run.kernel--;
    }

    // Finds the dimensions of a run for the kernel, outermost first, and returns its thread blocks.
    static i64 find_dims(const CopyRun& run, i64 rank, RunDim* dims) {
        const i64 side = run.width() <= 2 ? 64 : 32;
        i64 tiles = 1;
        for (i64 k = 0; k < rank; k++) {
            RunDim& dim = dims[rank - 1 - k];
            if (k >= run.dims) {
                dim = {1, 0, 0, 0, 0, 0};
                continue;
            }
            const i64 extent = run.extent[k];
            const i64 steps = run.tiled() && k < 2 ? (extent + side - 1) / side : extent;
            tiles *= steps;
            std::uint32_t magic = 0, shift = 0;
            if (steps > 1) {
                const auto divisor = static_cast<std::uint64_t>(steps);
                shift = static_cast<std::uint32_t>(63 - __builtin_clzll(divisor - 1));
                magic = static_cast<std::uint32_t>(((std::uint64_t(1) << (32 + shift)) + divisor - 1) / divisor);
            }
            dim = {static_cast<std::uint32_t>(extent), magic, shift, 0, run.src_stride[k], run.dst_stride[k]};
        }
        return run.tiled() ? tiles : (tiles + ITEMS_PER_TILE - 1) / ITEMS_PER_TILE;
    }

    const CopyRows& rows_;
    int order_[MOST_DIMS];
    int most_[5] = {};  // dimensions, by the number of the width
    std::vector<CopyRun> runs_;  // of rectangles that are alike and follow one another
    std::vector<std::uint32_t> numbers_;  // of the run of each rectangle
};

}  // namespace gpustore
