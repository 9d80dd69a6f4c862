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

// Runs of one dimension of the domain during which no chunk changes; or a constant, which is one run. They are
// parts of columns that all reads share: first of these, and of the cells of the runs, of which each has one for
// each array dimension that follows it.
struct Runs {
    std::size_t begin, count;
    std::size_t outputs_begin, outputs, cells_begin;
    bool is_constant;
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
        find_views();
        const std::size_t count = views_.size(), strides = count * static_cast<std::size_t>(rank_);
        planned.src_stride.assign(strides, 0), planned.dst_stride.assign(strides, 0);
        const std::size_t expected = 2 * count * static_cast<std::size_t>(array_.rank);
        runs_.reserve(expected / 2), planned.out.reserve(count);
        for (auto* column : {&outputs_, &cells_, &srcs_, &dsts_, &counts_}) column->reserve(expected);
        for (std::size_t number = 0; number < count; number++)
            if (!add_item(views_[number], number, planned)) return false;
        // Columns of the regions: cells, first bytes in chunk and array, counts, number of the array.
        planned.columns.assign(static_cast<std::size_t>((array_.rank + 2 + rank_ + 1) * regions_), 0);
        i64 at = 0;
        for (std::size_t number = 0; number < count; number++)
            at += write_regions(views_[number], at, static_cast<i64>(number), planned.columns.data());
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
    // An item of the request, with the maps that it does not give, and its runs.
    struct View {
        Target out;
        i64 rank;
        const i64 *low, *high;
        const Map* maps;
        const i64* stride;  // none: C order without gaps
        std::size_t runs_begin, runs_end;
    };

    void find_views() {
        for (i64 o = 0; o < array_.rank; o++) identity_.push_back({o, 0, 1});
        views_.reserve(static_cast<std::size_t>(request_.count));
        const i64* at = reinterpret_cast<const i64*>(request_.items());
        for (i64 i = 0; i < request_.count; i++) {
            const Item& item = *reinterpret_cast<const Item*>(at);
            at = reinterpret_cast<const i64*>(&item + 1);
            const bool is_plain = item.header_nbytes;
            u8* memory = is_plain ? *reinterpret_cast<u8**>(item.memory + item.header_nbytes) : item.memory;
            views_.push_back({{memory, 0, 0}, array_.rank, nullptr, nullptr, identity_.data(), nullptr, 0, 0});
            View& view = views_.back();  // In place: a copy would wait until what was just written is stored.
            if (!is_plain) {
                const Placed& placed = *reinterpret_cast<const Placed*>(at);
                at = reinterpret_cast<const i64*>(&placed + 1);
                view.out.offset = placed.offset, view.out.nbytes = placed.nbytes, view.rank = placed.rank;
            }
            view.low = at, view.high = at += view.rank, at += view.rank;
            if (!is_plain) {
                view.maps = reinterpret_cast<const Map*>(at), view.stride = at += 3 * array_.rank, at += view.rank;
            }
            rank_ = std::max(rank_, view.rank);
        }
    }

    bool is_inside(i64 dimension, i64 position) const {
        return 0 <= position && position < array_.shape[dimension];
    }

    // Finds the runs of one array that is filled, and counts its regions.
    bool add_item(View& view, std::size_t number, PlannedJob& planned) {
        const i64 rank = view.rank;
        view.runs_begin = runs_.size();
        i64* src_stride = planned.src_stride.data() + number * static_cast<std::size_t>(rank_);
        i64* dst_stride = planned.dst_stride.data() + number * static_cast<std::size_t>(rank_);
        if (!find_strides(view, dst_stride) || !add_constants(view)) return false;
        for (i64 d = 0; d < rank; d++)
            if (!add_runs(view, d, src_stride[d], dst_stride[d])) return false;
        view.runs_end = runs_.size();
        planned.out.push_back(view.out);
        i64 regions = 1;
        for (std::size_t i = view.runs_begin; i < view.runs_end; i++) {
            const i64 n = static_cast<i64>(runs_[i].count);
            if (n == 0 || regions > request_.most_rows / n) return false;
            regions *= n;
        }
        regions_ += regions;
        return regions_ <= request_.most_rows;
    }

    // Finds the bytes between neighbours in the array filled, and of all of it; false if they overflow.
    bool find_strides(View& view, i64* stride) const {
        if (view.stride) return std::copy_n(view.stride, view.rank, stride), true;
        i64& next = view.out.nbytes = array_.itemsize;
        for (i64 d = view.rank - 1; d >= 0; d--) {
            stride[d] = next;
            i64 extent;
            if (__builtin_sub_overflow(view.high[d], view.low[d], &extent)) return false;
            if (__builtin_mul_overflow(next, extent, &next)) return false;
        }
        return true;
    }

    bool add_constants(const View& view) {
        for (i64 o = 0; o < array_.rank; o++) {
            const Map& map = view.maps[o];
            if (map.input_dimension >= 0 && map.stride) continue;
            if (!is_inside(o, map.offset)) return false;
            const i64 cell = map.offset / array_.chunk_shape[o];
            const i64 inside = map.offset - cell * array_.chunk_shape[o];
            runs_.push_back({counts_.size(), 1, outputs_.size(), 1, cells_.size(), true});
            outputs_.push_back(o), cells_.push_back(cell);
            srcs_.push_back(inside * array_.stride[o]), dsts_.push_back(0), counts_.push_back(1);
        }
        return true;
    }

    bool add_runs(const View& view, i64 d, i64& src_stride, i64 dst_stride) {
        const i64 low = view.low[d], extent = view.high[d] - low;
        runs_.push_back({counts_.size(), 0, outputs_.size(), 0, cells_.size(), false});
        Runs& found = runs_.back();
        for (i64 o = 0; o < array_.rank; o++) {
            const Map& map = view.maps[o];
            if (map.input_dimension != d || !map.stride) continue;
            // Between two positions that are inside nothing overflows.
            i64 first, last;
            if (__builtin_mul_overflow(map.stride, low, &first) ||
                __builtin_add_overflow(map.offset, first, &first) ||
                __builtin_mul_overflow(map.stride, extent - 1, &last) ||
                __builtin_add_overflow(first, last, &last))
                return false;
            if (!is_inside(o, first) || !is_inside(o, last) || map.stride == INT64_MIN) return false;
            outputs_.push_back(o), found.outputs++;
            if (extent > 1) src_stride += array_.stride[o] * map.stride;
        }
        for (i64 at = 0, count; at < extent; at += count) {
            if (static_cast<i64>(found.count) == request_.most_rows) return false;
            count = extent - at;
            i64 src = 0;
            for (std::size_t i = 0; i < found.outputs; i++) {
                const i64 o = outputs_[found.outputs_begin + i];
                const Map& map = view.maps[o];
                const i64 chunk = array_.chunk_shape[o];
                const i64 position = map.offset + map.stride * (low + at);
                const i64 cell = position / chunk, inside = position - cell * chunk;
                const i64 end = std::min(chunk, array_.shape[o] - cell * chunk) - 1;
                const i64 steps = map.stride == 1 ? end - inside
                                  : map.stride > 0 ? (end - inside) / map.stride
                                                   : inside / -map.stride;
                count = std::min(count, steps + 1);
                cells_.push_back(cell);
                src += array_.stride[o] * inside;
            }
            srcs_.push_back(src), dsts_.push_back(dst_stride * at), counts_.push_back(count);
            found.count++;
        }
        return true;
    }

    // Writes the product of the runs of one array down, in C order of the runs; returns its size.
    i64 write_regions(const View& view, i64 begin, i64 number, i64* columns) const {
        i64 regions = 1;
        for (std::size_t k = view.runs_begin; k < view.runs_end; k++) regions *= static_cast<i64>(runs_[k].count);
        i64* src = columns + array_.rank * regions_ + begin;
        i64 *dst = src + regions_, *count = dst + regions_;
        for (i64 d = 0; d < rank_; d++) std::fill_n(count + d * regions_, regions, 1);
        std::fill_n(count + rank_ * regions_, regions, number);
        i64 repeat = regions;  // regions during which a run stays
        for (std::size_t k = view.runs_begin; k < view.runs_end; k++) {
            const Runs& one = runs_[k];
            repeat /= static_cast<i64>(one.count);
            for (i64 row = 0; row < regions;)
                for (std::size_t i = 0; i < one.count; i++)
                    for (const i64 end = row + repeat; row < end; row++) {
                        src[row] += srcs_[one.begin + i], dst[row] += dsts_[one.begin + i];
                        for (std::size_t j = 0; j < one.outputs; j++)
                            columns[outputs_[one.outputs_begin + j] * regions_ + begin + row] =
                                cells_[one.cells_begin + i * one.outputs + j];
                        if (!one.is_constant) count[row] = counts_[one.begin + i];
                    }
            if (!one.is_constant) count += regions_;
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
    std::vector<Map> identity_;
    std::vector<View> views_;
    std::vector<Runs> runs_;
    std::vector<i64> outputs_, cells_;       // columns of all runs
    std::vector<i64> srcs_, dsts_, counts_;
};

}  // namespace gpustore
