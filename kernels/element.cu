// Bytes with bits that no legal element has: found, or cleared where they lie. Elements of one byte,
// or records that have such elements among others.
//
// Grid: `count` * `segments` blocks. Block: THREADS_PER_BLOCK threads.
//
// columns         device pointer: count addresses, then count sizes in bytes
// count           number of pieces, at least 1
// segments        segments of each piece
// segment_nbytes  bytes of each segment but the last; segments * segment_nbytes covers every piece
// illegal         the bits, in each of its four bytes; of records: device pointer, the bits of each byte
// period          bytes of a record; pieces begin with one
// result          device pointer, a word for each piece: each of its segments without such bits adds 1
//
// Any alignment. Pieces to be cleared may overlap: all threads write the same.
#include "gs_common.cuh"

namespace gs {

// Whether this thread has met such bits in its share of `nbytes` bytes. All threads of the block.
template <bool CLEARS>
__device__ __forceinline__ u32 found_bits(u8* data, u64 nbytes, u32 illegal) {
  const u64 apart = -(u64)data % 16;
  const u64 head = apart < nbytes ? apart : nbytes;
  const u64 items = (nbytes - head) / 16;
  u32 found = 0;
  for (u64 i = threadIdx.x; i < items; i += THREADS_PER_BLOCK) {
    u128* place = (u128*)(data + head) + i;
    u128 item = *place;
    const u32 bits = (item.x | item.y | item.z | item.w) & illegal;
    found |= bits;
    if (CLEARS && bits) {
      *place = u128{item.x & ~illegal, item.y & ~illegal, item.z & ~illegal, item.w & ~illegal};
    }
  }
  // Fewer than 16 bytes on either side.
  if (threadIdx.x < nbytes - 16 * items) {
    u8* place = data + (threadIdx.x < head ? threadIdx.x : 16 * items + threadIdx.x);
    const u8 byte = *place;
    found |= byte & illegal;
    if (CLEARS && byte & illegal) *place = (u8)(byte & ~illegal);
  }
  return found;
}

// The segment of this block: its bytes and their number, which may be 0.
__device__ __forceinline__ u8* segment_of(const u64* columns, u32 count, u32 segments,
                                          u64 segment_nbytes, u64* nbytes) {
  const u32 piece = blockIdx.x / segments;
  const u64 begin = blockIdx.x % segments * segment_nbytes;
  const u64 end = columns[count + piece];
  const u64 left = begin < end ? end - begin : 0;
  *nbytes = left < segment_nbytes ? left : segment_nbytes;
  return (u8*)columns[piece] + begin;
}

// The same where the bits are those of the place in a record.
template <bool CLEARS>
__device__ __forceinline__ u32 found_in_records(u8* data, u64 begin, u64 nbytes, const u8* illegal,
                                                u32 period) {
  const u32 step = THREADS_PER_BLOCK % period;
  u32 place = (u32)((begin + threadIdx.x) % period);
  u32 found = 0;
  for (u64 i = threadIdx.x; i < nbytes; i += THREADS_PER_BLOCK) {
    const u32 bits = data[i] & illegal[place];
    found |= bits;
    if (CLEARS && bits) data[i] = (u8)(data[i] ^ bits);
    place += step;
    if (place >= period) place -= period;
  }
  return found;
}

// Adds 1 to `result` if no thread of the block has found anything.
__device__ __forceinline__ void add_legal(u32 found, u32* of_warps, u32* result) {
#pragma unroll
  for (u32 step = 16; step > 0; step /= 2) found |= __shfl_down_sync(0xffffffffu, found, step);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = found;
  __syncthreads();
  if (threadIdx.x) return;
  for (u32 warp = 1; warp < THREADS_PER_BLOCK / 32; warp++) found |= of_warps[warp];
  if (!found) atomicAdd(result, 1u);
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    check_bits(const u64* columns, u32 count, u32 segments, u64 segment_nbytes, u32 illegal,
               u32* result) {
  GS_SHARED(u32, of_warps, THREADS_PER_BLOCK / 32);
  u64 nbytes;
  u8* data = segment_of(columns, count, segments, segment_nbytes, &nbytes);
  if (nbytes == 0) return;
  add_legal(found_bits<false>(data, nbytes, illegal), of_warps, &result[blockIdx.x / segments]);
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    check_records(const u64* columns, u32 count, u32 segments, u64 segment_nbytes,
                  const u8* illegal, u32 period, u32* result) {
  GS_SHARED(u32, of_warps, THREADS_PER_BLOCK / 32);
  u64 nbytes;
  u8* data = segment_of(columns, count, segments, segment_nbytes, &nbytes);
  if (nbytes == 0) return;
  const u64 begin = blockIdx.x % segments * segment_nbytes;
  const u32 found = found_in_records<false>(data, begin, nbytes, illegal, period);
  add_legal(found, of_warps, &result[blockIdx.x / segments]);
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    clear_bits(const u64* columns, u32 count, u32 segments, u64 segment_nbytes, u32 illegal) {
  u64 nbytes;
  u8* data = segment_of(columns, count, segments, segment_nbytes, &nbytes);
  found_bits<true>(data, nbytes, illegal);
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    clear_records(const u64* columns, u32 count, u32 segments, u64 segment_nbytes,
                  const u8* illegal, u32 period) {
  u64 nbytes;
  u8* data = segment_of(columns, count, segments, segment_nbytes, &nbytes);
  const u64 begin = blockIdx.x % segments * segment_nbytes;
  found_in_records<true>(data, begin, nbytes, illegal, period);
}

}  // namespace gs
