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

// Items along one side of a tile.
template <class T>
constexpr u32 TILE = sizeof(T) <= 2 ? 64 : 32;

// dim[R - 1] has the neighbours of dst, dim[R - 2] those of src. Their magic and shift divide by the
// number of tiles along them.
template <class T, int R>
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    copy_tiled(const Run<R>* runs, u32 count, u32 unit) {
  constexpr u32 SIDE = TILE<T>;
  constexpr u32 PITCH = SIDE + (sizeof(T) < 4 ? 4 / sizeof(T) : 1);  // keeps columns off one bank
  GS_SHARED(T, tile, SIDE * PITCH);
  const Run<R>& run = owner_of(runs, count, blockIdx.x);
  const Dim& x = run.dim[R - 1];
  const Dim& y = run.dim[R - 2];
  u32 number = blockIdx.x - run.first_tile;
  const u32 tiles_x = (x.extent + SIDE - 1) / SIDE;
  const u32 tiles_y = (y.extent + SIDE - 1) / SIDE;
  u32 rest = quotient(number, tiles_x, x.magic, x.shift);
  const u32 x0 = (number - rest * tiles_x) * SIDE;
  number = rest;
  rest = quotient(number, tiles_y, y.magic, y.shift);
  const u32 y0 = (number - rest * tiles_y) * SIDE;
  number = rest;
  const char* src = (const char*)run.src;
  char* dst = (char*)run.dst;
#pragma unroll
  for (int k = R - 3; k >= 0; k--) {
    const Dim& dim = run.dim[k];
    rest = quotient(number, dim.extent, dim.magic, dim.shift);
    const i64 index = number - rest * dim.extent;
    src += index * dim.src_stride;
    dst += index * dim.dst_stride;
    number = rest;
  }
  const u32 column = threadIdx.x % 32;
  const u32 row = threadIdx.x / 32;
  for (u32 i = row; i < SIDE; i += THREADS_PER_BLOCK / 32) {
    for (u32 j = column; j < SIDE; j += 32) {
      if (x0 + i < x.extent && y0 + j < y.extent) {
        const i64 from = (i64)(x0 + i) * x.src_stride + (i64)(y0 + j) * y.src_stride;
        tile[i * PITCH + j] = __ldcs((const T*)(src + from));
      }
    }
  }
  __syncthreads();
  for (u32 i = row; i < SIDE; i += THREADS_PER_BLOCK / 32) {
    for (u32 j = column; j < SIDE; j += 32) {
      if (x0 + j < x.extent && y0 + i < y.extent) {
        const i64 to = (i64)(x0 + j) * x.dst_stride + (i64)(y0 + i) * y.dst_stride;
        *(T*)(dst + to) = swapped(tile[j * PITCH + i], unit);
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
