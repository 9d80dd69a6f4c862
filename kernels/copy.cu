// Copy items between strided places: scatter of decoded chunks, gather for writes.
//
// copy_strided  one item after the other, neighbours in dst by neighbouring threads
// copy_tiled    for runs whose neighbours in src are not neighbours in dst: square tiles go through
//               shared memory, so that both sides are accessed in whole lines
// copy_indexed  as copy_strided, for dimensions whose items are listed one by one
//
// Grid: copy_strided and copy_indexed: one block for each ITEMS_PER_TILE items of a run.
//       copy_tiled: one block for each TILE x TILE items of the last two dimensions.
// Block: THREADS_PER_BLOCK threads.
//
// runs     device pointer, `count` descriptors ordered by first_tile
// count    number of runs, at least 1
// unit     bytes of each unit whose byte order is changed: 2, 4 or 8, at most sizeof(T); 1: none
// offsets  device pointer, byte offsets that the lists of copy_indexed consist of
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

}  // namespace gs
