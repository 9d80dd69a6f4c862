// Find pieces of memory that repeat one pattern and hold nothing else: chunks of fill values.
//
// Grid: `count` * `segments` blocks. Block: THREADS_PER_BLOCK threads.
//
// columns         device pointer: count addresses, then count sizes in bytes
// count           number of pieces, at least 1
// segments        segments of each piece
// segment_nbytes  bytes of each segment but the last, a multiple of 16; segments * segment_nbytes
//                 covers every piece
// pattern         device pointer: the pattern 16 times, so `period` items of 16 bytes
// period          bytes of the pattern; pieces begin with its first byte
// result          device pointer, a word for each piece: each of its segments that is equal adds 1
//
// Alignment of pieces and pattern: 16 bytes.
#include "gs_common.cuh"

namespace gs {

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    compare_pattern(const u64* columns, u32 count, u32 segments, u64 segment_nbytes,
                    const u128* pattern, u32 period, u32* result) {
  GS_SHARED(u32, of_warps, THREADS_PER_BLOCK / 32);
  const u32 piece = blockIdx.x / segments;
  const u64 begin = blockIdx.x % segments * segment_nbytes;
  const u64 end = columns[count + piece];
  if (begin >= end) return;
  const u64 nbytes = end - begin < segment_nbytes ? end - begin : segment_nbytes;
  const u8* data = (const u8*)columns[piece] + begin;
  const u64 items = nbytes / 16;
  const u32 step = THREADS_PER_BLOCK % period;
  u32 place = (u32)((begin / 16 + threadIdx.x) % period);
  u32 differs = 0;
  for (u64 i = threadIdx.x; i < items && !differs; i += THREADS_PER_BLOCK) {
    const u128 item = __ldcs((const u128*)data + i);
    const u128 wanted = pattern[place];
    differs = (item.x ^ wanted.x) | (item.y ^ wanted.y) | (item.z ^ wanted.z) |
              (item.w ^ wanted.w);
    place += step;
    if (place >= period) place -= period;
  }
  // Fewer than 16 bytes at the end.
  if (threadIdx.x < nbytes - 16 * items) {
    const u64 at = 16 * items + threadIdx.x;
    differs |= data[at] ^ ((const u8*)pattern)[(begin + at) % (16 * (u64)period)];
  }
#pragma unroll
  for (u32 lanes = 16; lanes > 0; lanes /= 2) {
    differs |= __shfl_down_sync(0xffffffffu, differs, lanes);
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = differs;
  __syncthreads();
  if (threadIdx.x) return;
  for (u32 warp = 1; warp < THREADS_PER_BLOCK / 32; warp++) differs |= of_warps[warp];
  if (!differs) atomicAdd(&result[piece], 1u);
}

}  // namespace gs
