// Copy byte ranges of any length and alignment: stored streams, streams that need alignment, tails.
//
// Grid: one block for each STREAM_TILE bytes of a range. Block: THREADS_PER_BLOCK threads, each
// writes some aligned 16 bytes of dst.
//
// ranges  device pointer, `count` descriptors ordered by first_tile
// count   number of ranges, at least 1
//
// Any alignment. Reads and writes no byte outside the ranges. No dst overlaps another or a src.
#include "gs_common.cuh"

namespace gs {

constexpr u32 STREAM_TILE = 16 * ITEMS_PER_TILE;

struct ByteRange {
  u64 src;
  u64 dst;
  u64 nbytes;
  u32 first_tile;
  u32 reserved;
};

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    copy_stream(const ByteRange* ranges, u32 count) {
  const ByteRange& range = owner_of(ranges, count, blockIdx.x);
  const char* src = (const char*)range.src;
  char* dst = (char*)range.dst;
  const i64 nbytes = (i64)range.nbytes;
  // Lines of 16 bytes, aligned in dst; the first may begin before the range, the last end behind.
  const i64 before = (i64)(range.dst & 15);
  const i64 tile = (i64)(blockIdx.x - range.first_tile) * STREAM_TILE;
  for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
    const i64 line = tile + 16 * (i64)(k * THREADS_PER_BLOCK + threadIdx.x) - before;
    if (line >= nbytes) return;
    const u32 apart = (u32)((range.src + (u64)line) & 3);
    if (line - apart >= 0 && line + 16 + (apart ? 4 - apart : 0) <= nbytes) {
      const u32* words = (const u32*)(src + line - apart);
      u128 value;
      if (((u64)words & 15) == 0 && apart == 0) {
        value = __ldcs((const u128*)words);
      } else {
        value = u128{__ldcs(words), __ldcs(words + 1), __ldcs(words + 2), __ldcs(words + 3)};
        if (apart) {
          const u32 last = __ldcs(words + 4);
          value.x = __funnelshift_r(value.x, value.y, 8 * apart);
          value.y = __funnelshift_r(value.y, value.z, 8 * apart);
          value.z = __funnelshift_r(value.z, value.w, 8 * apart);
          value.w = __funnelshift_r(value.w, last, 8 * apart);
        }
      }
      *(u128*)(dst + line) = value;
    } else {
      for (i64 i = line < 0 ? 0 : line; i < line + 16 && i < nbytes; i++) dst[i] = src[i];
    }
  }
}

}  // namespace gs
