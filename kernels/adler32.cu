// Adler-32 (zlib) of many pieces of memory, large ones by several blocks.
//
// With bytes d[0] ... d[n - 1] the checksum is 1 + sum(d[i]) in the low and n + sum((n - i) d[i]) in
// the high half, both modulo 65521. A block adds the two sums of one segment to the results, from
// which the host makes the checksum: n and the 1 are its to add.
//
// Grid: `count` * `segments` blocks. Block: THREADS_PER_BLOCK threads.
//
// columns         device pointer: count addresses, then count sizes in bytes
// count           number of pieces, at least 1
// segments        segments of each piece, 1 to 65536: the sums are not reduced again
// segment_nbytes  bytes of each segment but the last; segments * segment_nbytes covers every piece
// result          device pointer, two words for each piece, to which the sums are added
//
// Any alignment. Pieces have fewer than 2^32 bytes.
// Source: RFC 1950 8.2.
#include "gs_common.cuh"

namespace gs {

constexpr u32 ADLER_MODULUS = 65521;

// The sum over a block, in its first thread.
__device__ __forceinline__ u32 sum_of_block(u32 value, u32* warps) {
#pragma unroll
  for (u32 step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  u32 sum = 0;
  if (threadIdx.x == 0) {
    for (u32 warp = 0; warp < THREADS_PER_BLOCK / 32; warp++) sum += warps[warp];
  }
  return sum;
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    adler32(const u64* columns, u32 count, u32 segments, u64 segment_nbytes, u32* result) {
  GS_SHARED(u32, low_of_warps, THREADS_PER_BLOCK / 32);
  GS_SHARED(u32, high_of_warps, THREADS_PER_BLOCK / 32);
  const u32 piece = blockIdx.x / segments;
  const u64 nbytes = columns[count + piece];
  const u64 begin = blockIdx.x % segments * segment_nbytes;
  if (begin >= nbytes) return;
  const u64 end = nbytes - begin < segment_nbytes ? nbytes : begin + segment_nbytes;
  const u8* data = (const u8*)columns[piece];
  u32 low = 0;
  u64 high = 0;
  for (u64 i = begin + threadIdx.x; i < end; i += THREADS_PER_BLOCK) {
    const u32 byte = data[i];
    low = (low + byte) % ADLER_MODULUS;
    high = (high + (nbytes - i) * byte) % ADLER_MODULUS;
  }
  // At most 256 numbers below the modulus each.
  low = sum_of_block(low, low_of_warps);
  const u32 weighted = sum_of_block((u32)high, high_of_warps);
  if (threadIdx.x) return;
  atomicAdd(&result[2 * (u64)piece], low % ADLER_MODULUS);
  atomicAdd(&result[2 * (u64)piece + 1], weighted % ADLER_MODULUS);
}

}  // namespace gs
