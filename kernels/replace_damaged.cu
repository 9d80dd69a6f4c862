// Replaces streams that a checksum has shown to be damaged by an empty stream, before they are
// decoded. One warp for each stream.
//
// Grid: one block for every THREADS_PER_BLOCK / 32 streams. Block: THREADS_PER_BLOCK threads.
//
// columns          device pointer, whose first 2 columns of `count` are address and size of streams
// count            number of streams, at least 1
// checks           device pointer, 2 columns of `count`: number of the checksum that vouches for a
//                  stream, NONE if none does, and what it must be
// checksums        device pointer: what they are
// empty            device pointer: a whole stream that decodes to nothing (zstd: to one byte)
// empty_nbytes     size of `empty`; zeros fill the rest of a longer replaced stream, a shorter one
//                  gets the beginning of `empty`
//
// Any alignment. Streams do not overlap.
#include "gs_common.cuh"

namespace gs {

constexpr u32 NONE = 0xffffffffu;

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    replace_damaged(const u64* columns, u32 count, const u32* checks, const u32* checksums,
             const u8* empty, u32 empty_nbytes) {
  const u32 stream = blockIdx.x * (THREADS_PER_BLOCK / 32) + threadIdx.x / 32;
  if (stream >= count) return;
  const u32 number = checks[stream];
  if (number == NONE || checksums[number] == checks[(u64)count + stream]) return;
  u8* data = (u8*)columns[stream];
  const u64 nbytes = columns[(u64)count + stream];
  for (u64 i = threadIdx.x % 32; i < nbytes; i += 32) {
    data[i] = i < empty_nbytes ? empty[i] : 0;
  }
}

}  // namespace gs
