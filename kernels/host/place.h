// Copies of boxes of elements between strided memories, in any order of dimensions.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "job.h"

namespace gpustore {

constexpr int MAX_INPUT_RANK = 32;
constexpr int MAX_RANK = MAX_INPUT_RANK + 1;  // and the one that elements are split into
constexpr i64 MOST = i64(1) << 56;  // bytes or elements, more than any memory has

__extension__ using i128 = __int128;

// One dimension of a box: elements, and the bytes between neighbours in destination and source.
struct Dimension {
    i64 count, dst, src;
};

struct Box {
    int rank = 0;
    Dimension dimension[MAX_RANK];

    void add(i64 count, i64 dst, i64 src) {
        if (count != 1) dimension[rank++] = {count, dst, src};
    }

    // Whether there are elements, and no product or sum of the numbers overflows an i128.
    bool legal() const {
        for (int i = 0; i < rank; i++) {
            const Dimension& d = dimension[i];
            if (d.count <= 0 || d.count > MOST) return false;
            if (d.dst > MOST || d.dst < -MOST || d.src > MOST || d.src < -MOST)
                return false;
        }
        return true;
    }

    i64 elements() const {
        i64 product = 1;
        for (int i = 0; i < rank; i++) product *= dimension[i].count;
        return product;
    }

    // Sorts the dimensions by their step in the destination, and merges those that continue one
    // another in both memories.
    void simplify() {
        // Insertion sort: few dimensions, nearly always sorted already.
        for (int i = 1; i < rank; i++)
            for (int k = i; k > 0 && std::llabs(dimension[k].dst) > std::llabs(dimension[k - 1].dst); k--)
                std::swap(dimension[k], dimension[k - 1]);
        for (int i = rank - 2; i >= 0; i--) {
            Dimension &outer = dimension[i], &inner = dimension[i + 1];
            if (outer.dst != inner.dst * inner.count || outer.src != inner.src * inner.count) continue;
            outer = {outer.count * inner.count, inner.dst, inner.src};
            std::copy(dimension + i + 2, dimension + rank, dimension + i + 1);
            rank--;
        }
    }

    // Lowest and highest byte of the elements in one of the memories, from the first element on. T is
    // wide enough for any numbers where nobody has checked them yet.
    template <class T> void reach(i64 Dimension::*step, i64 itemsize, T& low, T& high) const {
        low = high = 0;
        for (int i = 0; i < rank; i++) {
            const T end = static_cast<T>(dimension[i].*step) * (dimension[i].count - 1);
            (end < 0 ? low : high) += end;
        }
        high += itemsize;
    }
};

template <class T> T reversed(T value) {
    if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
    if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
    if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
    return value;
}

template <class T, bool SWAP> T load(const u8* from) {
    T value;
    std::memcpy(&value, from, sizeof value);  // elements need not be aligned
    return SWAP ? reversed(value) : value;
}

template <class T> void store(u8* to, T value) { std::memcpy(to, &value, sizeof value); }

constexpr i64 LINE_NBYTES = 64, VECTOR_NBYTES = 16;  // of a line of the cache, and of a vector
constexpr i64 SHORT_NBYTES = 256;                    // of a run that is copied faster without a call of memcpy

// Copies bytes that lie together.
inline void copy_run(u8* dst, const u8* src, i64 nbytes) {
    constexpr i64 step = VECTOR_NBYTES;
    if (nbytes < step || nbytes > SHORT_NBYTES)
        return void(std::memcpy(dst, src, static_cast<std::size_t>(nbytes)));
    for (i64 at = 0; at + step <= nbytes; at += step) std::memcpy(dst + at, src + at, step);
    if (nbytes % step) std::memcpy(dst + nbytes - step, src + nbytes - step, step);
}

// Copies lines of equally many bytes: whole vectors, and the last bytes once more as a vector. The
// number of vectors is a constant, as lines of 16 to 256 bytes are many and a loop over their vectors
// takes longer than these.
template <int VECTORS> void copy_lines(u8* dst, const u8* src, const Dimension& lines, i64 nbytes) {
    constexpr i64 step = VECTOR_NBYTES;
    for (i64 i = 0; i < lines.count; i++) {
        u8* to = dst + i * lines.dst;
        const u8* from = src + i * lines.src;
        for (i64 k = 0; k < VECTORS; k++) std::memcpy(to + k * step, from + k * step, step);
        std::memcpy(to + nbytes - step, from + nbytes - step, step);
    }
}

template <int... I>
void copy_short_lines(u8* dst, const u8* src, const Dimension& lines, i64 nbytes, std::integer_sequence<int, I...>) {
    using Copy = void (*)(u8*, const u8*, const Dimension&, i64);
    static constexpr Copy copies[] = {copy_lines<I + 1>...};
    copies[nbytes / VECTOR_NBYTES - 1](dst, src, lines, nbytes);
}

inline void copy_lines(u8* dst, const u8* src, const Dimension& lines, i64 nbytes) {
    constexpr int most = SHORT_NBYTES / VECTOR_NBYTES;
    if (VECTOR_NBYTES <= nbytes && nbytes <= SHORT_NBYTES)
        return copy_short_lines(dst, src, lines, nbytes, std::make_integer_sequence<int, most>());
    for (i64 i = 0; i < lines.count; i++)
        std::memcpy(dst + i * lines.dst, src + i * lines.src, static_cast<std::size_t>(nbytes));
}

template <class T, bool SWAP> void copy_line(u8* dst, const u8* src, const Dimension& along) {
    const i64 size = sizeof(T), n = along.count;
    if (along.src == 0) {
        const T value = load<T, SWAP>(src);
        if (along.dst == size)
            for (i64 i = 0; i < n; i++) store<T>(dst + i * size, value);
        else
            for (i64 i = 0; i < n; i++) store<T>(dst + i * along.dst, value);
    } else if (along.dst == size && along.src == size) {
        if constexpr (SWAP)
            for (i64 i = 0; i < n; i++) store<T>(dst + i * size, load<T, SWAP>(src + i * size));
        else
            copy_run(dst, src, n * size);
    } else if (along.dst == size) {
        for (i64 i = 0; i < n; i++) store<T>(dst + i * size, load<T, SWAP>(src + i * along.src));
    } else {
        for (i64 i = 0; i < n; i++) store<T>(dst + i * along.dst, load<T, SWAP>(src + i * along.src));
    }
}

// Elements of two vectors in turns, from element FIRST of both on.
template <std::size_t FIRST, class V, std::size_t... I> V zip(V one, V other, std::index_sequence<I...>) {
    constexpr std::size_t n = sizeof...(I);
#ifdef __clang__
    return __builtin_shufflevector(one, other, (FIRST + I / 2 + I % 2 * n)...);
#else
    return __builtin_shuffle(one, other, V{(FIRST + I / 2 + I % 2 * n)...});
#endif
}

template <class T> using Tile = T[LINE_NBYTES / sizeof(T)][LINE_NBYTES / sizeof(T)];

// Writes the first rows and columns of a tile as columns and rows, `step` bytes apart.
template <class T> void transpose(const Tile<T>& tile, i64 rows, i64 columns, u8* to, i64 step) {
    constexpr i64 size = sizeof(T), n = VECTOR_NBYTES / size;
    constexpr auto lanes = std::make_index_sequence<static_cast<std::size_t>(n)>();
    typedef T V __attribute__((vector_size(VECTOR_NBYTES)));
    const i64 whole_rows = rows / n * n;
    for (i64 column = 0; column < columns; column += n) {
        const i64 wanted = std::min(n, columns - column);
        for (i64 row = 0; row < whole_rows; row += n) {
            V one[n], other[n];
            for (i64 i = 0; i < n; i++) std::memcpy(&one[i], &tile[row + i][column], sizeof(V));
            for (i64 stage = n; stage > 1; stage /= 2) {
                for (i64 i = 0; i < n / 2; i++) {
                    other[2 * i] = zip<0>(one[i], one[i + n / 2], lanes);
                    other[2 * i + 1] = zip<n / 2>(one[i], one[i + n / 2], lanes);
                }
                std::copy(other, other + n, one);
            }
            u8* at = to + column * step + row * size;
            if (wanted == n)
                for (i64 i = 0; i < n; i++) std::memcpy(at + i * step, &one[i], sizeof(V));
            else
                for (i64 i = 0; i < wanted; i++) std::memcpy(at + i * step, &one[i], sizeof(V));
        }
    }
    for (i64 column = 0; column < columns; column++)
        for (i64 row = whole_rows; row < rows; row++) store<T>(to + column * step + row * size, tile[row][column]);
}

// A transpose: `across` follows the source, `along` the destination. Tiles of whole cache lines pass
// through a buffer, because neighbours at a multiple of a large power of two share few lines of the
// cache and would push each other out.
template <class T, bool SWAP>
void copy_tiles(u8* dst, const u8* src, const Dimension& across, const Dimension& along) {
    constexpr i64 size = sizeof(T), edge = LINE_NBYTES / size;
    Tile<T> tile;
    for (i64 a = 0; a < along.count; a += edge) {
        const i64 rows = std::min(edge, along.count - a);
        for (i64 c = 0; c < across.count; c += edge) {
            const i64 columns = std::min(edge, across.count - c);
            const u8* from = src + a * along.src + c * size;
            for (i64 i = 0; i < rows; i++) {
                copy_run(reinterpret_cast<u8*>(tile[i]), from + i * along.src, columns * size);
                if constexpr (SWAP)
                    for (i64 k = 0; k < columns; k++) tile[i][k] = reversed(tile[i][k]);
            }
            transpose<T>(tile, rows, columns, dst + a * size + c * across.dst, across.dst);
        }
    }
}

template <class T, bool SWAP>
void copy_typed(u8* dst, const u8* src, const Dimension* dimension, int rank) {
    const i64 size = sizeof(T);
    if (rank == 0) return store<T>(dst, load<T, SWAP>(src));
    if (rank == 1) return copy_line<T, SWAP>(dst, src, dimension[0]);
    if (rank == 2 && dimension[1].dst == size && dimension[0].src == size && dimension[1].src != 0)
        return copy_tiles<T, SWAP>(dst, src, dimension[0], dimension[1]);
    if (rank == 2 && !SWAP && dimension[1].dst == size && dimension[1].src == size)
        return copy_lines(dst, src, dimension[0], dimension[1].count * size);
    for (i64 i = 0; i < dimension->count; i++)
        copy_typed<T, SWAP>(dst + i * dimension->dst, src + i * dimension->src, dimension + 1, rank - 1);
}

inline void copy_bytes(u8* dst, const u8* src, const Dimension* dimension, int rank, i64 itemsize) {
    if (rank == 0) return void(std::memcpy(dst, src, static_cast<std::size_t>(itemsize)));
    if (rank == 1 && dimension->dst == itemsize && dimension->src == itemsize)
        return copy_run(dst, src, dimension->count * itemsize);
    for (i64 i = 0; i < dimension->count; i++)
        copy_bytes(dst + i * dimension->dst, src + i * dimension->src, dimension + 1, rank - 1, itemsize);
}

// Copies a box of elements of `itemsize` bytes. `word` bytes of each are reversed together, 0: none.
inline void copy_box(u8* dst, const u8* src, Box box, i64 itemsize, i64 word) {
    box.simplify();
    // The dimension along which the source is contiguous comes next to the innermost.
    for (int i = 0; i + 2 < box.rank; i++)
        if (box.dimension[i].src == itemsize && box.dimension[box.rank - 1].dst == itemsize) {
            std::rotate(box.dimension + i, box.dimension + i + 1, box.dimension + box.rank - 1);
            break;
        }
    if (word && word < itemsize) {
        box.dimension[box.rank++] = {itemsize / word, word, word};
        itemsize = word;
    } else if (!word && box.rank > 1) {  // Few bytes that lie together are one element, as those of a field of records.
        const Dimension& last = box.dimension[box.rank - 1];
        const i64 run = last.count * itemsize;
        const bool is_run = last.dst == itemsize && last.src == itemsize;
        if (is_run && (run == 2 || run == 4 || run == 8)) itemsize = run, box.rank--;
    }
    const Dimension* d = box.dimension;
    const int rank = box.rank;
    switch (itemsize) {
        case 1: return copy_typed<std::uint8_t, false>(dst, src, d, rank);
        case 2: return word ? copy_typed<std::uint16_t, true>(dst, src, d, rank)
                            : copy_typed<std::uint16_t, false>(dst, src, d, rank);
        case 4: return word ? copy_typed<std::uint32_t, true>(dst, src, d, rank)
                            : copy_typed<std::uint32_t, false>(dst, src, d, rank);
        case 8: return word ? copy_typed<std::uint64_t, true>(dst, src, d, rank)
                            : copy_typed<std::uint64_t, false>(dst, src, d, rank);
        default: return copy_bytes(dst, src, d, rank, itemsize);
    }
}

template <class T, bool SWAP> void copy_masked(u8* dst, const u8* src, const u8* mask, i64 n) {
    constexpr i64 size = sizeof(T);
    for (i64 i = 0; i < n; i++)
        store<T>(dst + i * size, mask[i] ? load<T, SWAP>(src + i * size) : load<T, false>(dst + i * size));
}

// Copies a run of elements, but for those whose byte of the mask is 0.
inline void copy_masked(u8* dst, const u8* src, const u8* mask, i64 n, i64 itemsize, i64 word) {
    if (word == 0 || word == itemsize) switch (itemsize) {
        case 1: return copy_masked<std::uint8_t, false>(dst, src, mask, n);
        case 2: return word ? copy_masked<std::uint16_t, true>(dst, src, mask, n)
                            : copy_masked<std::uint16_t, false>(dst, src, mask, n);
        case 4: return word ? copy_masked<std::uint32_t, true>(dst, src, mask, n)
                            : copy_masked<std::uint32_t, false>(dst, src, mask, n);
        case 8: return word ? copy_masked<std::uint64_t, true>(dst, src, mask, n)
                            : copy_masked<std::uint64_t, false>(dst, src, mask, n);
    }
    for (i64 i = 0; i < n; i++)
        if (mask[i]) copy_box(dst + i * itemsize, src + i * itemsize, Box(), itemsize, word);
}

}  // namespace gpustore
