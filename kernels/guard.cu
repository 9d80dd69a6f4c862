// Fill the guards around outputs of decoders, and find those that were written since. One warp each.
//
// Grid: one block for every THREADS_PER_BLOCK / 32 guards. Block: THREADS_PER_BLOCK threads.
//
// columns  device pointer: count addresses, then count sizes in bytes
// count    number of guards, at least 1
// value    what each of their bytes is
// result   device pointer, a word for each guard: the bits in which its bytes differ, 0 if none does
//
// Any alignment. Guards do not overlap.
#include "gs_common.cuh"

namespace gs {

// The guard of this warp; past the last one if there is none.
__device__ __forceinline__ u32 guard_of_warp() {
  return blockIdx.x * (THREADS_PER_BLOCK / 32) + threadIdx.x / 32;
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    fill_guards(const u64* columns, u32 count, u32 value) {
  const u32 guard = guard_of_warp();
  if (guard >= count) return;
  u8* data = (u8*)columns[guard];
  const u64 nbytes = columns[(u64)count + guard];
  for (u64 i = threadIdx.x % 32; i < nbytes; i += 32) data[i] = (u8)value;
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    check_guards(const u64* columns, u32 count, u32 value, u32* result) {
  const u32 guard = guard_of_warp();
  if (guard >= count) return;
  const u8* data = (const u8*)columns[guard];
  const u64 nbytes = columns[(u64)count + guard];
  u32 found = 0;
  for (u64 i = threadIdx.x % 32; i < nbytes; i += 32) found |= data[i] ^ value;
#pragma unroll
  for (u32 step = 16; step > 0; step /= 2) found |= __shfl_down_sync(0xffffffffu, found, step);
  if (threadIdx.x % 32 == 0) result[guard] = found;
}

}  // namespace gs
