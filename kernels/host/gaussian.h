// Blocks of an array and their neighbours, weighed by 1, 3, 3, 1 along each halved dimension, with the results
// of gpustore/backends/host/gaussian.py: sums along the first halved dimension, then the next one; integers
// exactly, rounded to the nearest, halves to the even one; floats as double. Beyond the edges the last element
// repeats itself.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "job.h"

namespace gpustore {

constexpr i64 MOST_HALVED = 4;  // dimensions whose sums of 16 bits fit an int32

template <class T>
class Smoother {
public:
    using Sum = std::conditional_t<std::is_floating_point_v<T>, double, std::conditional_t<(sizeof(T) < 4), std::int32_t, i64>>;

    explicit Smoother(const Blocks& blocks) : blocks_(blocks), last_(blocks.rank - 1), row_(blocks.dim[last_]) {}

    // Whether dimensions stay or are halved, and the elements of a row lie side by side.
    bool legal() const {
        for (i64 d = 0; d < blocks_.rank; d++) {
            const BlockDim& dim = blocks_.dim[d];
            if (dim.n < 1 || dim.cells < 1 || dim.factor < 1 || dim.factor > 2) return false;
            if (dim.before < -1 || dim.before >= dim.factor || (dim.factor == 1 && dim.before)) return false;
            if (dim.factor == 1 && dim.cells > dim.n) return false;
        }
        return halved() <= MOST_HALVED && (row_.src == sizeof(T) || row_.n == 1) && (row_.dst == sizeof(T) || row_.cells == 1);
    }

    void run() {
        const i64 width = row_.factor == 2 ? 2 * row_.cells + 2 : row_.cells;
        first_ = row_.factor == 2 ? -1 - row_.before : 0;
        rows_.assign(static_cast<std::size_t>(last_ + 1), std::vector<Sum>(static_cast<std::size_t>(row_.n)));
        others_ = rows_;
        std::vector<Sum> padded(static_cast<std::size_t>(width));
        cell_.assign(static_cast<std::size_t>(last_), 0);
        for (bool more = true; more; more = next()) {
            u8* dst = blocks_.dst;
            for (i64 d = 0; d < last_; d++) dst += cell_[d] * blocks_.dim[d].dst;
            const Sum* sums = along(last_ - 1, blocks_.src);
            // What lies beyond the edges is the same as there.
            const i64 low = std::clamp<i64>(-first_, 0, width), high = std::clamp<i64>(row_.n - first_, low, width);
            std::fill_n(padded.begin(), low, sums[0]);
            std::copy_n(sums + first_ + low, high - low, padded.begin() + low);
            std::fill(padded.begin() + high, padded.end(), sums[row_.n - 1]);
            finish(padded.data(), reinterpret_cast<T*>(dst));
        }
    }

private:
    i64 halved() const {
        return std::count_if(blocks_.dim, blocks_.dim + blocks_.rank, [](const BlockDim& d) { return d.factor == 2; });
    }

    bool next() {
        i64 d = last_ - 1;
        for (; d >= 0 && ++cell_[d] == blocks_.dim[d].cells; d--) cell_[d] = 0;
        return d >= 0;
    }

    // Sums over the dimensions up to `d` of a row of elements, as many as there are.
    const Sum* along(i64 d, const u8* src) {
        Sum* to = rows_[d + 1].data();
        const i64 n = row_.n;
        if (d < 0) {
            const T* from = reinterpret_cast<const T*>(src);
            for (i64 i = 0; i < n; i++) to[i] = Sum(from[i]);
            return to;
        }
        const BlockDim& dim = blocks_.dim[d];
        if (dim.factor == 1) return along(d - 1, src + cell_[d] * dim.src);
        Sum* outer = others_[d + 1].data();
        const auto tap = [&](i64 number) {
            const i64 at = std::clamp<i64>(2 * cell_[d] - dim.before - 1 + number, 0, dim.n - 1);
            return along(d - 1, src + at * dim.src);
        };
        std::copy_n(tap(0), n, outer);
        std::copy_n(tap(1), n, to);
        add(tap(2), to);
        add(tap(3), outer);
        for (i64 i = 0; i < n; i++) to[i] = weighed(to[i], outer[i]);
        return to;
    }

    __attribute__((noinline)) void add(const Sum* __restrict from, Sum* __restrict to) const {
        for (i64 i = 0; i < row_.n; i++) to[i] += from[i];
    }

    // No product, which a compiler could fuse with the sum; a float times 3 is rounded once all the same.
    static Sum weighed(Sum inner, Sum outer) { return inner + inner + inner + outer; }

    void finish(const Sum* __restrict sums, T* __restrict to) const {
        const int shift = int(3 * halved());
        const i64 cells = row_.cells;
        for (i64 i = 0; i < cells; i++) {
            Sum total = sums[i];
            if (row_.factor == 2) total = weighed(sums[2 * i + 1] + sums[2 * i + 2], sums[2 * i] + sums[2 * i + 3]);
            if constexpr (std::is_floating_point_v<T>) {
                const double mean = total / double(1 << shift);
                to[i] = mean != mean ? std::numeric_limits<T>::quiet_NaN() : T(mean);
            } else {
                to[i] = T(shift ? (total + ((total >> shift) & 1) + ((Sum(1) << (shift - 1)) - 1)) >> shift : total);
            }
        }
    }

    const Blocks& blocks_;
    const i64 last_;
    const BlockDim& row_;
    i64 first_ = 0;  // number of the first element of a row with a weight
    std::vector<i64> cell_;
    std::vector<std::vector<Sum>> rows_, others_;  // sums over the dimensions up to each one
};

// Returns whether the blocks were reduced.
template <class T>
bool smooth(const Blocks& blocks) {
    Smoother<T> found(blocks);
    return found.legal() && (found.run(), true);
}

}  // namespace gpustore
