// Plans of reads through strided maps: which part of which chunk goes where.
//
// The regions of a read are the product of the runs of all dimensions, as gpustore/planning/chunk_plan.py
// finds them; tests compare the two. Those of several reads are sorted by chunk, so that each chunk is
// decoded once. Small reads are many, and take longer to plan in Python than to read.
#pragma once

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "job.h"

namespace gpustore {

constexpr i64 UNIT_NBYTES = 1 << 20;  // of decoded chunks that are read without a look at the time

// Runs of one dimension of the domain during which no chunk changes. A run has the cell of each
// array dimension that follows it, in the order of `outputs`.
struct Runs {
    std::vector<i64> outputs, cells;
    std::vector<i64> src, dst, count;
    bool is_constant = false;
};

// A job together with all it refers to but the request.
struct PlannedJob {
    Job job = {};
    std::vector<i64> unit, columns, row_cells, first, src_stride, dst_stride;
    std::vector<Target> out;
    std::vector<u8> status;
};

class Planner {
public:
    explicit Planner(const Request& request) : request_(request), array_(*request.array) {}

    // Fills `planned`; false if there are more regions than the request allows, or an index that is
    // not in the array.
    bool plan(PlannedJob& planned) {
        std::vector<std::vector<Runs>> items;
        const Item* item = request_.items();
        for (i64 i = 0; i < request_.count; i++, item = next(*item)) rank_ = std::max(rank_, item->rank);
        item = request_.items();
        for (i64 i = 0; i < request_.count; i++, item = next(*item)) {
            items.emplace_back();
            if (!add_item(*item, items.back(), planned)) return false;
        }
        // Columns of the regions: cells, first bytes in chunk and array, counts, number of the array.
        planned.columns.assign(static_cast<std::size_t>((array_.rank + 2 + rank_ + 1) * regions_), 0);
        i64 at = 0, number = 0;
        for (const std::vector<Runs>& runs : items) at += write_regions(runs, at, number++, planned.columns.data());
        std::vector<i64> keys = {0, regions_};  // edges of the rows that share a key
        if (request_.count > 1 || array_.levels) {
            if (!sort(planned, keys)) return false;
        } else {
            keys.resize(static_cast<std::size_t>(regions_ + 1));
            for (i64 i = 0; i <= regions_; i++) keys[static_cast<std::size_t>(i)] = i;
        }
        const bool merged = !planned.first.empty();
        const i64 rows = merged ? static_cast<i64>(planned.first.size()) - 1 : regions_;
        make_units(keys, planned);
        planned.status.assign(static_cast<std::size_t>(rows), UNTOUCHED);
        Job& job = planned.job;
        job.array = &array_;
        job.directory = request_.directory, job.resolve = request_.resolve, job.prefix = request_.prefix;
        job.units = static_cast<i64>(planned.unit.size()) - 1, job.unit = planned.unit.data();
        job.rows = rows, job.regions = regions_;
        job.cells = merged ? planned.row_cells.data() : planned.columns.data();
        job.first = merged ? planned.first.data() : nullptr;
        job.rank = rank_;
        job.src_start = planned.columns.data() + array_.rank * regions_;
        job.dst_start = job.src_start + regions_, job.count = job.dst_start + regions_;
        job.target = merged ? job.count + rank_ * regions_ : nullptr;
        job.src_stride = planned.src_stride.data(), job.dst_stride = planned.dst_stride.data();
        job.out = planned.out.data();
        job.threads = request_.threads;
        job.status = planned.status.data();
        job.decoded = request_.decoded;
        return true;
    }

private:
    // First indices, extents and strides in the array that is filled.
    const i64* domain(const Item& item) const { return reinterpret_cast<const i64*>(item.maps() + array_.rank); }

    const Item* next(const Item& item) const {
        return reinterpret_cast<const Item*>(domain(item) + 3 * item.rank);
    }

    bool is_inside(i64 dimension, i64 position) const {
        return 0 <= position && position < array_.shape[dimension];
    }

    // Finds the runs of one array that is filled, and counts its regions.
    bool add_item(const Item& item, std::vector<Runs>& runs, PlannedJob& planned) {
        if (!add_constants(item, runs)) return false;
        for (i64 d = 0; d < item.rank; d++)
            if (!add_runs(item, runs, d, planned)) return false;
        for (i64 d = item.rank; d < rank_; d++) planned.src_stride.push_back(0), planned.dst_stride.push_back(0);
        planned.out.push_back(item.out);
        i64 regions = 1;
        for (const Runs& one : runs) {
            const i64 n = static_cast<i64>(one.count.size());
            if (n == 0 || regions > request_.most_rows / n) return false;
            regions *= n;
        }
        regions_ += regions;
        return regions_ <= request_.most_rows;
    }

    bool add_constants(const Item& item, std::vector<Runs>& runs) const {
        for (i64 o = 0; o < array_.rank; o++) {
            const Map& map = item.maps()[o];
            if (map.input_dimension >= 0 && map.stride) continue;
            if (!is_inside(o, map.offset)) return false;
            const i64 cell = map.offset / array_.chunk_shape[o];
            const i64 inside = map.offset - cell * array_.chunk_shape[o];
            runs.push_back({{o}, {cell}, {inside * array_.stride[o]}, {0}, {1}, true});
        }
        return true;
    }

    bool add_runs(const Item& item, std::vector<Runs>& runs, i64 d, PlannedJob& planned) const {
        const i64 *domain = this->domain(item), low = domain[d], extent = domain[item.rank + d];
        const i64 dst_stride = domain[2 * item.rank + d];
        Runs found;
        i64 src_stride = 0;
        for (i64 o = 0; o < array_.rank; o++) {
            const Map& map = item.maps()[o];
            if (map.input_dimension != d || !map.stride) continue;
            // Between two positions that are inside nothing overflows.
            i64 first, last;
            if (__builtin_mul_overflow(map.stride, low, &first) ||
                __builtin_add_overflow(map.offset, first, &first) ||
                __builtin_mul_overflow(map.stride, extent - 1, &last) ||
                __builtin_add_overflow(first, last, &last))
                return false;
            if (!is_inside(o, first) || !is_inside(o, last) || map.stride == INT64_MIN) return false;
            found.outputs.push_back(o);
            if (extent > 1) src_stride += array_.stride[o] * map.stride;
        }
        for (i64 at = 0, count; at < extent; at += count) {
            if (static_cast<i64>(found.count.size()) == request_.most_rows) return false;
            count = extent - at;
            i64 src = 0;
            for (const i64 o : found.outputs) {
                const Map& map = item.maps()[o];
                const i64 chunk = array_.chunk_shape[o];
                const i64 position = map.offset + map.stride * (low + at);
                const i64 cell = position / chunk, inside = position - cell * chunk;
                const i64 end = std::min(chunk, array_.shape[o] - cell * chunk) - 1;
                count = std::min(
                    count, (map.stride > 0 ? (end - inside) / map.stride : inside / -map.stride) + 1);
                found.cells.push_back(cell);
                src += array_.stride[o] * inside;
            }
            found.src.push_back(src), found.dst.push_back(dst_stride * at);
            found.count.push_back(count);
        }
        planned.src_stride.push_back(src_stride), planned.dst_stride.push_back(dst_stride);
        runs.push_back(std::move(found));
        return true;
    }

    // Writes the product of the runs of one array down, in C order of the runs; returns its size.
    i64 write_regions(const std::vector<Runs>& runs, i64 begin, i64 number, i64* columns) const {
        i64 regions = 1, constants = 0;
        for (const Runs& one : runs) {
            regions *= static_cast<i64>(one.count.size());
            constants += one.is_constant;
        }
        i64* src = columns + array_.rank * regions_ + begin;
        i64 *dst = src + regions_, *count = dst + regions_;
        for (i64 d = 0; d < rank_; d++) std::fill_n(count + d * regions_, regions, 1);
        std::fill_n(count + rank_ * regions_, regions, number);
        i64 repeat = regions;  // regions during which a run stays
        for (i64 k = 0; k < static_cast<i64>(runs.size()); k++) {
            const Runs& one = runs[static_cast<std::size_t>(k)];
            const i64 n = static_cast<i64>(one.count.size());
            const i64 outputs = static_cast<i64>(one.outputs.size());
            repeat /= n;
            for (i64 row = 0; row < regions;)
                for (i64 i = 0; i < n; i++)
                    for (const i64 end = row + repeat; row < end; row++) {
                        src[row] += one.src[static_cast<std::size_t>(i)];
                        dst[row] += one.dst[static_cast<std::size_t>(i)];
                        for (i64 j = 0; j < outputs; j++)
                            columns[one.outputs[static_cast<std::size_t>(j)] * regions_ + begin + row] =
                                one.cells[static_cast<std::size_t>(i * outputs + j)];
                        if (k >= constants)
                            count[(k - constants) * regions_ + row] = one.count[static_cast<std::size_t>(i)];
                    }
        }
        return regions;
    }

    // A region, and the numbers of its key and its chunk.
    struct Place {
        i64 key, cell, region;
    };

    // Sorts by numbers from 0 to `count` - 1; places of the same number stay in their order.
    static void sort_by(i64 Place::*number, i64 count, std::vector<Place>& places) {
        if (count > 4 * static_cast<i64>(places.size())) {
            const auto is_less = [number](const Place& one, const Place& other) { return one.*number < other.*number; };
            return std::stable_sort(places.begin(), places.end(), is_less);
        }
        std::vector<i64> next(static_cast<std::size_t>(count));
        for (const Place& one : places) next[static_cast<std::size_t>(one.*number)]++;
        i64 begin = 0;
        for (i64& one : next) begin += std::exchange(one, begin);
        std::vector<Place> sorted(places.size());
        for (const Place& one : places) sorted[static_cast<std::size_t>(next[static_cast<std::size_t>(one.*number)]++)] = one;
        places.swap(sorted);
    }

    // Sorts the regions by key and chunk; those of one chunk become a row. False if the numbers of the
    // chunks would overflow.
    bool sort(PlannedJob& planned, std::vector<i64>& keys) const {
        const i64* cells = planned.columns.data();
        std::vector<Place> order(static_cast<std::size_t>(regions_));
        for (i64 i = 0; i < regions_; i++) order[static_cast<std::size_t>(i)] = {0, 0, i};
        i64 keys_count = 1, cells_count = 1;
        bool shares_keys = array_.key_rank < array_.rank;  // whether several chunks may share one
        for (i64 o = 0; o < array_.key_rank; o++) shares_keys |= array_.ratio[o] != 1;
        for (i64 o = 0; o < array_.rank; o++) {
            const i64* column = cells + o * regions_;
            const auto [least, most] = std::minmax_element(column, column + regions_);
            const i64 low = *least, extent = *most - low + 1;
            const i64 ratio = o < array_.key_rank ? array_.ratio[o] : 1;
            const i64 first = low / ratio, keys_extent = *most / ratio - first + 1;
            if (__builtin_mul_overflow(cells_count, extent, &cells_count)) return false;
            if (o < array_.key_rank) keys_count *= keys_extent;
            for (Place& one : order) {
                const i64 cell = column[one.region];
                one.cell = one.cell * extent + (cell - low);
                if (shares_keys && o < array_.key_rank) one.key = one.key * keys_extent + (cell / ratio - first);
            }
        }
        sort_by(&Place::cell, cells_count, order);
        if (shares_keys) sort_by(&Place::key, keys_count, order);
        keys = {0};
        planned.first = {0};
        std::vector<i64> row = {order[0].region};  // a region of each row
        for (i64 i = 1; i < regions_; i++) {
            const Place &one = order[static_cast<std::size_t>(i)], &before = order[static_cast<std::size_t>(i - 1)];
            if (one.cell == before.cell) continue;
            if (!shares_keys || one.key != before.key) keys.push_back(static_cast<i64>(row.size()));
            planned.first.push_back(i), row.push_back(one.region);
        }
        planned.first.push_back(regions_);
        const i64 rows = static_cast<i64>(row.size());
        keys.push_back(rows);
        planned.row_cells.resize(static_cast<std::size_t>(array_.rank * rows));
        for (i64 o = 0; o < array_.rank; o++)
            for (i64 i = 0; i < rows; i++)
                planned.row_cells[static_cast<std::size_t>(o * rows + i)] =
                    cells[o * regions_ + row[static_cast<std::size_t>(i)]];
        std::vector<i64> sorted(planned.columns.size());
        const i64 columns = static_cast<i64>(sorted.size()) / regions_;
        for (i64 c = array_.rank; c < columns; c++)
            for (i64 i = 0; i < regions_; i++)
                sorted[static_cast<std::size_t>(c * regions_ + i)] =
                    cells[c * regions_ + order[static_cast<std::size_t>(i)].region];
        planned.columns.swap(sorted);
        return true;
    }

    // Splits the rows into units for all threads, each of one key.
    void make_units(const std::vector<i64>& keys, PlannedJob& planned) const {
        const i64 units = static_cast<i64>(keys.size()) - 1;
        // Several for each thread, as one may begin later; they stay with a shard that is open.
        const i64 wanted = request_.threads > 1 ? 8 * request_.threads : 1;
        const i64 fewest = (wanted + units - 1) / units;
        const i64 most = std::max<i64>(1, UNIT_NBYTES / std::max<i64>(1, array_.nbytes));
        planned.unit = {0};
        for (i64 u = 0; u < units; u++) {
            const i64 begin = keys[static_cast<std::size_t>(u)], end = keys[static_cast<std::size_t>(u + 1)];
            const i64 pieces = std::max(fewest, (end - begin + most - 1) / most);
            for (i64 i = 1; i <= pieces; i++) {
                const i64 cut = begin + (end - begin) * i / pieces;
                if (cut > planned.unit.back()) planned.unit.push_back(cut);
            }
        }
    }

    const Request& request_;
    const Array& array_;
    i64 rank_ = 0;     // largest of the domains
    i64 regions_ = 0;  // of all arrays
};

}  // namespace gpustore
