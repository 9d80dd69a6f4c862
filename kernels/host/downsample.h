// Blocks of an array, each reduced to one element, with the results of gpustore/backends/host/downsample.py:
// the mean of integers, rounded to the nearest, halves to the even one; the mean of floats, added in the order
// of a block; the smallest, largest, median and most frequent element, where -0.0 lies before 0.0 and NaN
// behind all. A result that is NaN is the positive quiet one without more bits.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "gaussian.h"
#include "place.h"

namespace gpustore {

constexpr i64 MOST_OF_BLOCK = (1 << 15) - 1;  // elements whose sum fits an int32, if they have 16 bits
constexpr i64 FEW = 64;                // elements of a block that are sorted by insertion
constexpr i64 ROW_ELEMENTS = 1 << 12;  // up to which dimensions that stay as they are make one element

// Type in which elements are added.
template <class T>
using Sum = std::conditional_t<std::is_floating_point_v<T>, T,
    std::conditional_t<(sizeof(T) < 4), std::int32_t, std::conditional_t<sizeof(T) == 4, i64, i128>>>;

// Integers in the order of the elements of a type; that of NaN is behind all others.
template <class T>
struct Order {
    using Key = T;
    static constexpr Key NOT_A_NUMBER = std::numeric_limits<T>::max();
    static Key key(T one, Key) { return one; }
    static T value(Key key) { return key; }
};

template <class T, class K>
struct FloatOrder {
    using Key = K;
    static constexpr Key NOT_A_NUMBER = std::numeric_limits<K>::max();
    static Key folded(Key bits) { return bits ^ ((bits >> (8 * sizeof(K) - 1)) & std::numeric_limits<K>::max()); }
    static Key key(T one, Key of_nan) {
        Key bits;
        std::memcpy(&bits, &one, sizeof bits);
        return one != one ? of_nan : folded(bits);
    }
    static T value(Key key) {
        const Key bits = folded(key);
        T one;
        std::memcpy(&one, &bits, sizeof one);
        return one != one ? std::numeric_limits<T>::quiet_NaN() : one;
    }
};
template <> struct Order<float> : FloatOrder<float, std::int32_t> {};
template <> struct Order<double> : FloatOrder<double, i64> {};

// Quotient rounded to the nearest integer, halves to the even one; `shift` is that of a power of two, or -1.
template <class S>
inline S rounded(S total, S count, int shift) {
    if (shift >= 0) return shift ? (total + (count / 2 - 1) + ((total >> shift) & 1)) >> shift : total;
    S quotient = total / count, rest = total % count;
    if (rest < 0) quotient--, rest += count;
    return quotient + (2 * rest > count || (2 * rest == count && (quotient & 1)));
}

// Reductions that need one number a cell while they see the elements. `begin` is the number of no elements.
template <class T>
struct Mean {
    using Number = Sum<T>;
    static constexpr Number begin = 0;
    static Number join(Number a, T b) { return a + Number(b); }
    __attribute__((noinline)) static void finish(const Number* from, T* to, i64 n, i64 count) {
        const Number by = Number(count);
        if constexpr (std::is_floating_point_v<T>) {
            for (i64 i = 0; i < n; i++) {
                const T mean = from[i] / by;
                to[i] = mean != mean ? std::numeric_limits<T>::quiet_NaN() : mean;
            }
        } else {
            const int shift = count & (count - 1) ? -1 : __builtin_ctzll(count);
            if (shift >= 0)
                for (i64 i = 0; i < n; i++) to[i] = T(rounded(from[i], by, shift));
            else
                for (i64 i = 0; i < n; i++) to[i] = T(rounded(from[i], by, -1));
        }
    }
};

template <class T, bool LEAST>
struct Extremum {
    using Number = typename Order<T>::Key;
    static constexpr Number begin = LEAST ? std::numeric_limits<Number>::max() : std::numeric_limits<Number>::min();
    static Number join(Number a, T b) {
        const Number key = Order<T>::key(b, begin);  // NaN is left out
        return LEAST ? std::min(a, key) : std::max(a, key);
    }
    static void finish(const Number* from, T* to, i64 n, i64) {
        for (i64 i = 0; i < n; i++) to[i] = Order<T>::value(from[i]);
    }
};

// Walks the rows of cells along the last dimension, with the rows of elements of each in the order of a block.
class Rows {
public:
    std::vector<const u8*> src;
    u8* dst = nullptr;

    Rows(const Blocks& blocks, i64 outer) : blocks_(blocks), cell_(outer, 0) {}

    // Whether there is a next row.
    bool next() {
        if (dst) {
            i64 d = i64(cell_.size()) - 1;
            for (; d >= 0 && ++cell_[d] == blocks_.dim[d].cells; d--) cell_[d] = 0;
            if (d < 0) return false;
        }
        src.assign(1, blocks_.src);
        dst = blocks_.dst;
        for (std::size_t d = 0; d < cell_.size(); d++) {
            const BlockDim& dim = blocks_.dim[d];
            const i64 start = cell_[d] * dim.factor - dim.before;
            longer_.clear();
            for (const u8* row : src)
                for (i64 i = std::max<i64>(start, 0); i < std::min(start + dim.factor, dim.n); i++)
                    longer_.push_back(row + i * dim.src);
            src.swap(longer_);
            dst += cell_[d] * dim.dst;
        }
        return true;
    }

private:
    const Blocks& blocks_;
    std::vector<i64> cell_;
    std::vector<const u8*> longer_;
};

// Reduces blocks row by row. A row has `unit` elements side by side at each place along its dimension.
template <class T>
class Downsampler {
public:
    explicit Downsampler(const Blocks& blocks) : blocks_(blocks), rank_(blocks.rank) {
        while (rank_ > 1 && joins(blocks.dim[rank_ - 2], blocks.dim[rank_ - 1])) unit_ *= blocks.dim[--rank_].cells;
        row_ = blocks.dim[rank_ - 1];
        head_ = row_.before ? std::min(row_.factor - row_.before, row_.n) : 0;
        whole_ = (row_.n - head_) / row_.factor;
        tail_ = (row_.n - head_) % row_.factor;
    }

    // Whether the elements of a row lie side by side, and blocks have at most so many elements.
    bool legal(i64 most) const {
        i64 count = 1;
        for (i64 d = 0; d < blocks_.rank; d++) {
            if (blocks_.dim[d].factor > most || (count *= blocks_.dim[d].factor) > most) return false;
            if (blocks_.dim[d].n < 1) return false;
        }
        const i64 nbytes = unit_ * i64(sizeof(T));
        return (row_.src == nbytes || row_.n == 1) && (row_.dst == nbytes || row_.cells == 1);
    }

    template <class Reduction>
    void reduce() {
        using Number = typename Reduction::Number;
        const i64 first = head_ ? unit_ : 0, body = whole_ * unit_, last = tail_ ? unit_ : 0;
        std::vector<Number> numbers(first + body + last);
        for (Rows rows(blocks_, rank_ - 1); rows.next();) {
            std::fill(numbers.begin(), numbers.end(), Reduction::begin);
            for (const u8* src : rows.src) {
                const T* row = reinterpret_cast<const T*>(src);
                Number* into = numbers.data();
                if (head_) into = add<Reduction>(row, into, 1, head_), row += head_ * unit_;
                into = add<Reduction>(row, into, whole_, row_.factor), row += whole_ * row_.factor * unit_;
                if (tail_) add<Reduction>(row, into, 1, tail_);
            }
            const Number* from = numbers.data();
            T* to = reinterpret_cast<T*>(rows.dst);
            for (auto [n, count] : {std::pair(first, head_), {body, row_.factor}, {last, tail_}})
                if (n) Reduction::finish(from, to, n, count * i64(rows.src.size())), from += n, to += n;
        }
    }

    // The lower median, or the smallest of the most frequent elements.
    void rank(bool median) {
        using Key = typename Order<T>::Key;
        std::vector<Key> memory;
        for (Rows rows(blocks_, rank_ - 1); rows.next();) {
            memory.resize(rows.src.size() * row_.factor);
            T* to = reinterpret_cast<T*>(rows.dst);
            i64 begin = 0, end = head_ ? head_ : std::min(row_.factor, row_.n);
            for (; begin < row_.n; begin = end, end = std::min(end + row_.factor, row_.n))
                for (i64 j = 0; j < unit_; j++) {
                    Key *block = memory.data(), *last = block;
                    for (const u8* row : rows.src)
                        for (i64 i = begin; i < end; i++)
                            *last++ = Order<T>::key(reinterpret_cast<const T*>(row)[i * unit_ + j], Order<T>::NOT_A_NUMBER);
                    const Key one = *block;
                    const bool alike = std::all_of(block, last, [one](Key other) { return other == one; });
                    if (!alike) sort(block, last);
                    *to++ = Order<T>::value(alike ? one : median ? block[(last - block - 1) / 2] : mode(block, last));
                }
        }
    }

private:
    // Whether the inner of two dimensions stays as it is, and its elements lie side by side for each of the outer.
    bool joins(const BlockDim& outer, const BlockDim& inner) const {
        const i64 nbytes = unit_ * i64(sizeof(T)), all = nbytes * inner.cells;
        return inner.factor == 1 && inner.cells * unit_ <= ROW_ELEMENTS && inner.src == nbytes &&
               inner.dst == nbytes && outer.src == all && outer.dst == all;
    }

    // Adds the elements of neighbouring cells; returns where the numbers of the next cell are.
    template <class Reduction>
    __attribute__((noinline)) typename Reduction::Number* add(const T* __restrict row, typename Reduction::Number* __restrict into,
        i64 cells, i64 factor) const {
        const i64 n = cells * unit_, unit = factor == 1 ? n : unit_;  // elements that stay side by side
        if (factor == 2 && unit == 1) {
            for (i64 i = 0; i < cells; i++)
                into[i] = Reduction::join(Reduction::join(into[i], row[2 * i]), row[2 * i + 1]);
        } else if (unit == 1) {
            for (i64 i = 0; i < cells; i++, row += factor) {
                auto number = into[i];
                for (i64 p = 0; p < factor; p++) number = Reduction::join(number, row[p]);
                into[i] = number;
            }
        } else {
            for (i64 i = 0; i < n; i += unit)
                for (i64 p = 0; p < factor; p++, row += unit)
                    for (i64 j = 0; j < unit; j++) into[i + j] = Reduction::join(into[i + j], row[j]);
        }
        return into + n;
    }

    template <class Key>
    static void sort(Key* begin, Key* end) {
        if (end - begin > FEW) return std::sort(begin, end);
        for (Key* next = begin + 1; next < end; next++) {
            const Key one = *next;
            Key* to = next;
            for (; to > begin && one < to[-1]; to--) *to = to[-1];
            *to = one;
        }
    }

    // The smallest of the most frequent ones, of sorted elements.
    template <class Key>
    static Key mode(const Key* begin, const Key* end) {
        Key found = *begin;
        for (i64 most = 0; begin < end;) {
            const Key* next = begin + 1;
            // Zeros of both signs are equal, no NaN is.
            while (next < end && Order<T>::value(*next) == Order<T>::value(*begin)) next++;
            if (next - begin > most) most = next - begin, found = *begin;
            begin = next;
        }
        return found;
    }

    const Blocks& blocks_;
    i64 rank_, unit_ = 1;  // dimensions that are walked; elements that stay side by side
    BlockDim row_;         // the last of them
    i64 head_, whole_, tail_;  // elements of a first cut block, whole blocks, elements of a last cut one
};

// Returns whether the blocks were reduced.
template <class T>
bool downsample(const Blocks& blocks) {
    if (blocks.method == GAUSSIAN) {
        if constexpr (sizeof(T) < 8 || std::is_floating_point_v<T>) return smooth<T>(blocks);
        return false;
    }
    Downsampler<T> found(blocks);
    if (!found.legal(MOST_OF_BLOCK)) return false;
    if (blocks.method == MEAN) return found.template reduce<Mean<T>>(), true;
    if (blocks.method == LEAST) return found.template reduce<Extremum<T, true>>(), true;
    if (blocks.method == LARGEST) return found.template reduce<Extremum<T, false>>(), true;
    return found.rank(blocks.method == MEDIAN), true;
}

inline bool downsample(const Blocks& blocks) {
    switch (blocks.kind) {
        case UINT8: return downsample<u8>(blocks);
        case INT8: return downsample<std::int8_t>(blocks);
        case UINT16: return downsample<std::uint16_t>(blocks);
        case INT16: return downsample<std::int16_t>(blocks);
        case UINT32: return downsample<std::uint32_t>(blocks);
        case INT32: return downsample<std::int32_t>(blocks);
        case UINT64: return downsample<std::uint64_t>(blocks);
        case INT64: return downsample<i64>(blocks);
        case FLOAT32: return downsample<float>(blocks);
        case FLOAT64: return downsample<double>(blocks);
    }
    return false;
}

}  // namespace gpustore
