// Copy items between strided places: scatter of decoded chunks, gather for writes.
//
// copy_strided  one item after the other, neighbours in dst by neighbouring threads
// copy_tiled    for runs whose neighbours in src are not neighbours in dst: square tiles go through
//               shared memory, so that both sides are accessed in whole lines
// copy_indexed  as copy_strided, for dimensions whose items are listed one by one
// write_runs    writes the runs of the first two, for a box of chunks
//
// Grid: copy_strided and copy_indexed: one block for each ITEMS_PER_TILE items of a run.
//       copy_tiled: one block for each TILE x TILE items of the last two dimensions.
//       Runs may have more blocks than that; these do nothing.
//       write_runs: one thread a run.
// Block: THREADS_PER_BLOCK threads.
//
// runs     device pointer, `count` descriptors ordered by first_tile
// count    number of runs, at least 1
// unit     bytes of each unit whose byte order is changed: 2, 4 or 8, at most sizeof(T); 1: none
// offsets  device pointer, byte offsets that the lists of copy_indexed consist of
// box      by value, see Box
// chunks   device pointer, address of each chunk of an array by its number; 0 for those that are
//          decoded to `decoded`, `pitch` bytes for each run
// numbers  device pointer, gets the number of the chunk of each run; null if nobody wants them
//
// Alignment: src, dst, all strides and offsets are multiples of sizeof(T). No place of dst is met
// twice, and no dst overlaps a src.
#include "gs_common.cuh"

namespace gs {

template <class T, int R>
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    copy_strided(const Run<R>* runs, u32 count, u32 unit) {
  const Run<R>& run = owner_of(runs, count, blockIdx.x);
  const u32 first = (blockIdx.x - run.first_tile) * ITEMS_PER_TILE + threadIdx.x;
  const char* src = (const char*)run.src;
  char* dst = (char*)run.dst;
  T items[ITEMS_PER_THREAD];
  i64 to[ITEMS_PER_THREAD];
  // All loads before the first store, so that they are under way together.
#pragma unroll
  for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
    const u32 item = first + k * THREADS_PER_BLOCK;
    if (item < run.items) {
      const Offsets offsets = offsets_of<R>(run, item);
      items[k] = __ldcs((const T*)(src + offsets.src));
      to[k] = offsets.dst;
    }
  }
#pragma unroll
  for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
    if (first + k * THREADS_PER_BLOCK < run.items) {
      *(T*)(dst + to[k]) = swapped(items[k], unit);
    }
  }
}

template <class T, int R>
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    copy_tiled(const Run<R>* runs, u32 count, u32 unit) {
  constexpr u32 SIDE = TILE<T>;
  GS_SHARED(T, tile, SIDE * PITCH<T>);
  const Run<R>& run = owner_of(runs, count, blockIdx.x);
  const Dim& x = run.dim[R - 1];
  const Dim& y = run.dim[R - 2];
  const Tile at = tile_of<R>(run, blockIdx.x - run.first_tile, SIDE);
  if (at.is_beyond) return;
  const u32 column = threadIdx.x % 32;
  const u32 row = threadIdx.x / 32;
  for (u32 i = row; i < SIDE; i += THREADS_PER_BLOCK / 32) {
    for (u32 j = column; j < SIDE; j += 32) {
      if (at.x0 + i < x.extent && at.y0 + j < y.extent) {
        const i64 from = (i64)(at.x0 + i) * x.src_stride + (i64)(at.y0 + j) * y.src_stride;
        tile[i * PITCH<T> + j] = __ldcs((const T*)(at.src + from));
      }
    }
  }
  __syncthreads();
  for (u32 i = row; i < SIDE; i += THREADS_PER_BLOCK / 32) {
    for (u32 j = column; j < SIDE; j += 32) {
      if (at.x0 + j < x.extent && at.y0 + i < y.extent) {
        const i64 to = (i64)(at.x0 + j) * x.dst_stride + (i64)(at.y0 + i) * y.dst_stride;
        *(T*)(at.dst + to) = swapped(tile[j * PITCH<T> + i], unit);
      }
    }
  }
}

template <class T, int R>
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    copy_indexed(const Run<R>* runs, u32 count, u32 unit, const i64* offsets) {
  const Run<R>& run = owner_of(runs, count, blockIdx.x);
  const u32 first = (blockIdx.x - run.first_tile) * ITEMS_PER_TILE + threadIdx.x;
  for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
    u32 item = first + k * THREADS_PER_BLOCK;
    if (item >= run.items) return;
    const char* src = (const char*)run.src;
    char* dst = (char*)run.dst;
#pragma unroll
    for (int d = R - 1; d >= 0; d--) {
      const Dim& dim = run.dim[d];
      const u32 rest = quotient(item, dim.extent, dim.magic, dim.shift);
      const i64 index = item - rest * dim.extent;
      src += dim.indexed & 1 ? offsets[dim.src_stride + index] : index * dim.src_stride;
      dst += dim.indexed & 2 ? offsets[dim.dst_stride + index] : index * dim.dst_stride;
      item = rest;
    }
    *(T*)dst = swapped(__ldcs((const T*)src), unit);
  }
}

// One dimension of a box: items at `first`, `first + step`, ... of an array, in `cells` chunks that
// follow one another from chunk `cell` on. `step` is not 0, nor larger than `chunk`. Numbers of chunks
// grow by `key_step` with each `ratio` chunks, and by `inner_step` with each of these.
struct BoxDim {
  i64 first;
  i64 step;
  i64 extent;
  i64 chunk;
  i64 cell;
  i64 key_step;
  i64 inner_step;
  i64 src_stride;  // Bytes between neighbours in a chunk,
  i64 dst_stride;  // and between items in dst.
  u32 cells;
  u32 ratio;
};

// Items of an array that lie in a box of its chunks, `dim[R - 1]` varying fastest. Unused dimensions
// have one item.
template <int R>
struct Box {
  i64 src;    // First byte in each chunk.
  u64 dst;    // Address of the first item.
  u32 tiles;  // Blocks of each run.
  u32 side;   // Items along a side of a tile for copy_tiled, otherwise 0.
  BoxDim dim[R];
};

// Number of the first item of a dimension in chunk `cell`, which is not the one of item 0.
__device__ __forceinline__ i64 first_item(const BoxDim& dim, i64 cell) {
  const i64 begin = cell * dim.chunk;
  return dim.step > 0 ? (begin - dim.first + dim.step - 1) / dim.step
                      : (dim.first - begin - dim.chunk - dim.step) / -dim.step;
}

template <int R>
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    write_runs(const Box<R> box, u64 first, u32 count, const u64* chunks, Run<R>* runs, u64 decoded,
               u64 pitch, i64* numbers) {
  const u32 i = blockIdx.x * THREADS_PER_BLOCK + threadIdx.x;
  if (i >= count) return;
  Run<R>& run = runs[i];
  u64 rest = first + i;
  i64 number = 0, src = box.src, dst = 0;
  u32 items = 1;
#pragma unroll
  for (int k = R - 1; k >= 0; k--) {
    const BoxDim& dim = box.dim[k];
    const u32 along = rest % dim.cells;
    rest /= dim.cells;
    const i64 next = dim.step > 0 ? 1 : -1;
    const i64 cell = dim.cell + next * along;
    const i64 from = along ? first_item(dim, cell) : 0;
    const i64 to = along + 1 < dim.cells ? first_item(dim, cell + next) : dim.extent;
    number += cell / dim.ratio * dim.key_step + cell % dim.ratio * dim.inner_step;
    src += (dim.first + dim.step * from - cell * dim.chunk) * dim.src_stride;
    dst += from * dim.dst_stride;
    const u32 extent = to - from;
    const u32 steps = box.side && k >= R - 2 ? (extent + box.side - 1) / box.side : extent;
    const u32 shift = steps > 1 ? 31 - __clz(steps - 1) : 0;
    const u32 magic = steps > 1 ? ((1ull << (32 + shift)) + steps - 1) / steps : 0;
    run.dim[k] = Dim{extent, magic, shift, 0, dim.step * dim.src_stride, dim.dst_stride};
    items *= extent;
  }
  if (numbers) numbers[i] = number;
  const u64 chunk = chunks[number];
  run.src = (chunk ? chunk : decoded + i * pitch) + src;
  run.dst = box.dst + dst;
  run.items = items;
  run.first_tile = i * box.tiles;
  run.row = i;
  run.reserved = 0;
}

}  // namespace gs
