// Fill device memory, contiguous or strided, with one item pattern of 1, 2, 4, 8 or 16 bytes.
//
// Used for missing chunks (fill value) and for `out` before a sparse read.
//
// Grid: one block for each tile of ITEMS_PER_TILE items, summed over all runs of the batch.
// Block: THREADS_PER_BLOCK threads. Neighbouring threads write neighbouring items.
//
// runs     device pointer, `count` descriptors ordered by first_tile; src and src_stride unused
// count    number of runs, at least 1
// pattern  the bytes of one item, in the stored byte order
//
// Alignment: dst and all dst_stride are multiples of sizeof(T). Runs must not overlap each other.
#include "gs_common.cuh"

namespace gs {

template <class T, int R>
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    fill_strided(const Run<R>* runs, u32 count, T pattern) {
  const Run<R>& run = owner_of(runs, count, blockIdx.x);
  const u32 tile = blockIdx.x - run.first_tile;
  char* dst = (char*)run.dst;
#pragma unroll
  for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
    const u32 item = tile * ITEMS_PER_TILE + k * THREADS_PER_BLOCK + threadIdx.x;
    if (item < run.items) {
      *(T*)(dst + offsets_of<R>(run, item).dst) = pattern;
    }
  }
}

}  // namespace gs
