// Reads of parts of an uncompressed chunk.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "place.h"

namespace gpustore {

constexpr i64 GROUP_NBYTES = 256 << 10;  // of a raw chunk that are read at once
constexpr i64 READ_NBYTES = 4 << 10;     // that are copied from the page cache while a read begins
constexpr i64 GAP_NBYTES = 6 << 10;      // of a short gap: a further read, and its copy, take longer

// Reads of a region of a raw chunk: groups of positions along the dimension whose neighbours are
// furthest apart. Gaps are not read if they are longer than what is wanted, and not short.
struct Groups {
    Box box;           // of one position
    int widest = 0;    // the dimension
    Dimension along = {1, 0, 0};
    i64 step = 0, low = 0, high = 0, positions = 1;

    Groups(const Box& region, i64 itemsize) : box(region) {
        if (!box.rank) box.dimension[box.rank++] = along;
        for (int i = 1; i < box.rank; i++)
            if (std::llabs(box.dimension[i].src) > std::llabs(box.dimension[widest].src)) widest = i;
        along = box.dimension[widest];
        box.dimension[widest].count = 1;
        box.reach(&Dimension::src, itemsize, low, high);
        step = std::llabs(along.src);
        if (!step)
            positions = along.count;
        else if (step - (high - low) <= std::max(high - low, GAP_NBYTES))
            positions = std::max<i64>(1, GROUP_NBYTES / step);
    }

    i64 reads() const { return (along.count + positions - 1) / positions; }
    i64 nbytes() const { return reads() * (high - low) + (along.count - reads()) * step; }

    // Bytes that could be read at once in the time that these reads take.
    i64 cost() const { return nbytes() + READ_NBYTES * reads(); }
};

}  // namespace gpustore
