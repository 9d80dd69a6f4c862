// Plans of reads through strided maps: which part of which chunk goes where.
//
// The rows are the product of the runs of all dimensions, as gpustore/planning/chunk_plan.py finds
// them; tests compare the two. Reads of few chunks are many, and take longer to plan in Python than
// to read.
#pragma once

#include <algorithm>
#include <new>
#include <numeric>
#include <vector>

#include "job.h"

namespace gpustore {

constexpr i64 UNIT_NBYTES = 1 << 20;  // of decoded chunks that are read without a look at the time

// Runs of one dimension of the domain during which no chunk changes. A run has the cell of each
// array dimension that follows it, in the order of `outputs`.
struct Runs {
    std::vector<i64> outputs, cells;
    std::vector<i64> src, dst, count;
};

// A job together with all it refers to but the request.
struct PlannedJob {
    Job job = {};
    std::vector<i64> unit, columns, src_stride, dst_stride;
    std::vector<u8> status;
};

class Planner {
public:
    explicit Planner(const Request& request) : request_(request), array_(*request.array) {}

    // Fills `planned`; false if there are more rows than the request allows, or an index that is
    // not in the array.
    bool plan(PlannedJob& planned) {
        std::vector<Runs> runs;
        if (!add_constants(runs)) return false;
        for (i64 d = 0; d < request_.rank; d++)
            if (!add_runs(runs, d, planned)) return false;
        i64 rows = 1;
        for (const Runs& one : runs) {
            const i64 n = static_cast<i64>(one.count.size());
            if (n == 0 || rows > request_.most_rows / n) return false;
            rows *= n;
        }
        write_rows(runs, rows, planned);
        make_units(rows, planned);
        planned.status.assign(static_cast<std::size_t>(rows), UNTOUCHED);
        Job& job = planned.job;
        job.array = &array_;
        job.directory = request_.directory, job.resolve = request_.resolve, job.prefix = request_.prefix;
        job.units = static_cast<i64>(planned.unit.size()) - 1, job.unit = planned.unit.data();
        job.rows = job.regions = rows, job.cells = planned.columns.data();
        job.rank = request_.rank;
        job.src_start = job.cells + array_.rank * rows;
        job.dst_start = job.src_start + rows, job.count = job.dst_start + rows;
        job.src_stride = planned.src_stride.data(), job.dst_stride = planned.dst_stride.data();
        job.out = &request_.out;
        job.threads = request_.threads;
        job.status = planned.status.data();
        return true;
    }

private:
    bool is_inside(i64 dimension, i64 position) const {
        return 0 <= position && position < array_.shape[dimension];
    }

    bool add_constants(std::vector<Runs>& runs) const {
        for (i64 o = 0; o < array_.rank; o++) {
            const Map& map = request_.maps()[o];
            if (map.input_dimension >= 0 && map.stride) continue;
            if (!is_inside(o, map.offset)) return false;
            const i64 cell = map.offset / array_.chunk_shape[o];
            const i64 inside = map.offset - cell * array_.chunk_shape[o];
            runs.push_back({{o}, {cell}, {inside * array_.stride[o]}, {0}, {1}});
        }
        return true;
    }

    bool add_runs(std::vector<Runs>& runs, i64 d, PlannedJob& planned) const {
        const Input& input = request_.inputs()[d];
        Runs found;
        i64 src_stride = 0;
        for (i64 o = 0; o < array_.rank; o++) {
            const Map& map = request_.maps()[o];
            if (map.input_dimension != d || !map.stride) continue;
            // Between two positions that are inside nothing overflows.
            i64 first, last;
            if (__builtin_mul_overflow(map.stride, input.low, &first) ||
                __builtin_add_overflow(map.offset, first, &first) ||
                __builtin_mul_overflow(map.stride, input.extent - 1, &last) ||
                __builtin_add_overflow(first, last, &last))
                return false;
            if (!is_inside(o, first) || !is_inside(o, last) || map.stride == INT64_MIN) return false;
            found.outputs.push_back(o);
            if (input.extent > 1) src_stride += array_.stride[o] * map.stride;
        }
        for (i64 at = 0, count; at < input.extent; at += count) {
            if (static_cast<i64>(found.count.size()) == request_.most_rows) return false;
            count = input.extent - at;
            i64 src = 0;
            for (const i64 o : found.outputs) {
                const Map& map = request_.maps()[o];
                const i64 chunk = array_.chunk_shape[o];
                const i64 position = map.offset + map.stride * (input.low + at);
                const i64 cell = position / chunk, inside = position - cell * chunk;
                const i64 end = std::min(chunk, array_.shape[o] - cell * chunk) - 1;
                count = std::min(
                    count, (map.stride > 0 ? (end - inside) / map.stride : inside / -map.stride) + 1);
                found.cells.push_back(cell);
                src += array_.stride[o] * inside;
            }
            found.src.push_back(src), found.dst.push_back(input.dst_stride * at);
            found.count.push_back(count);
        }
        planned.src_stride.push_back(src_stride), planned.dst_stride.push_back(input.dst_stride);
        runs.push_back(std::move(found));
        return true;
    }

    // Writes the product of the runs down, in C order of the runs.
    void write_rows(const std::vector<Runs>& runs, i64 rows, PlannedJob& planned) const {
        const i64 constants = static_cast<i64>(runs.size()) - request_.rank;
        planned.columns.assign(static_cast<std::size_t>((array_.rank + 2 + request_.rank) * rows), 0);
        i64* cells = planned.columns.data();
        i64* src = cells + array_.rank * rows;
        i64 *dst = src + rows, *count = dst + rows;
        i64 repeat = rows;  // rows during which a run stays
        for (i64 k = 0; k < static_cast<i64>(runs.size()); k++) {
            const Runs& one = runs[static_cast<std::size_t>(k)];
            const i64 n = static_cast<i64>(one.count.size());
            const i64 outputs = static_cast<i64>(one.outputs.size());
            repeat /= n;
            for (i64 row = 0; row < rows; row++) {
                const i64 i = row / repeat % n;
                src[row] += one.src[static_cast<std::size_t>(i)];
                dst[row] += one.dst[static_cast<std::size_t>(i)];
                for (i64 j = 0; j < outputs; j++)
                    cells[one.outputs[static_cast<std::size_t>(j)] * rows + row] =
                        one.cells[static_cast<std::size_t>(i * outputs + j)];
                if (k >= constants)
                    count[(k - constants) * rows + row] = one.count[static_cast<std::size_t>(i)];
            }
        }
    }

    // Sorts the rows by key, if some share one, and splits them into units for all threads.
    void make_units(i64 rows, PlannedJob& planned) const {
        std::vector<i64> edges = {0};
        if (array_.levels) {
            std::vector<i64> order(static_cast<std::size_t>(rows));
            std::iota(order.begin(), order.end(), 0);
            const i64* cells = planned.columns.data();
            auto key = [&](i64 k, i64 row) { return cells[k * rows + row] / array_.ratio[k]; };
            std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) {
                for (i64 k = 0; k < array_.key_rank; k++)
                    if (key(k, a) != key(k, b)) return key(k, a) < key(k, b);
                return false;
            });
            for (i64 i = 1; i < rows; i++)
                for (i64 k = 0; k < array_.key_rank; k++)
                    if (key(k, order[static_cast<std::size_t>(i)]) !=
                        key(k, order[static_cast<std::size_t>(i - 1)])) {
                        edges.push_back(i);
                        break;
                    }
            std::vector<i64> sorted(planned.columns.size());
            const i64 columns = static_cast<i64>(sorted.size()) / rows;
            for (i64 c = 0; c < columns; c++)
                for (i64 i = 0; i < rows; i++)
                    sorted[static_cast<std::size_t>(c * rows + i)] =
                        cells[c * rows + order[static_cast<std::size_t>(i)]];
            planned.columns.swap(sorted);
        } else {
            for (i64 i = 1; i < rows; i++) edges.push_back(i);
        }
        edges.push_back(rows);
        const i64 units = static_cast<i64>(edges.size()) - 1;
        const i64 wanted = request_.threads > 1 ? 2 * request_.threads : 1;
        const i64 fewest = (wanted + units - 1) / units;
        const i64 most = std::max<i64>(1, UNIT_NBYTES / std::max<i64>(1, array_.nbytes));
        planned.unit = {0};
        for (i64 u = 0; u < units; u++) {
            const i64 begin = edges[static_cast<std::size_t>(u)], end = edges[static_cast<std::size_t>(u + 1)];
            const i64 pieces = std::max(fewest, (end - begin + most - 1) / most);
            for (i64 i = 1; i <= pieces; i++) {
                const i64 cut = begin + (end - begin) * i / pieces;
                if (cut > planned.unit.back()) planned.unit.push_back(cut);
            }
        }
    }

    const Request& request_;
    const Array& array_;
};

}  // namespace gpustore
