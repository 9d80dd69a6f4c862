// Byte shuffle and bit shuffle of Blosc and numcodecs, done and undone, many blocks a launch.
//
// A shuffled block of n elements of t bytes has all first bytes, then all second bytes, ... (t planes
// of n bytes); a bit-shuffled one all bits 0 of the first bytes, then all bits 1, ... (8 t planes of
// n / 8 bytes, the first element in bit 0). What follows the last whole element is not touched here,
// nor are blocks that were never shuffled: the host copies both.
//
// unshuffle<T>, bit_unshuffle<T>       elements of T bytes; n is a multiple of 4, of 8
// unshuffle_any, bit_unshuffle_any     elements of any size; n is anything, a multiple of 8
// shuffle<T>, bit_shuffle<T>, shuffle_any, bit_shuffle_any     the same in the other direction
//
// Grid: one block for each tile of elements: 1024 (<T>), 128 (any), 2048 (all of the bits).
// Block: THREADS_PER_BLOCK threads.
//
// blocks  device pointer, `count` descriptors ordered by first_tile
// count   number of blocks, at least 1
//
// Alignment of unshuffle<T>: src to 4, dst to 4 T but at most 16 bytes. Of bit_unshuffle<T>: dst to
// 8 T but at most 16 bytes. Of shuffle<T> and bit_shuffle<T>: src and dst the other way round. Of the
// others: any. No dst overlaps another or a src.
#include "gs_common.cuh"

namespace gs {

struct ShuffledBlock {
  u64 src;
  u64 dst;
  u64 elements;
  u32 typesize;
  u32 first_tile;
};

template <int NBYTES>
struct alignas(NBYTES < 16 ? NBYTES : 16) Words {
  u32 at[NBYTES / 4];
};

// Word i of four gets byte i of each of the four.
__device__ __forceinline__ void transpose_bytes(u32& a, u32& b, u32& c, u32& d) {
  const u32 ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  const u32 cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab_low, cd_low, 0x5410);
  b = __byte_perm(ab_low, cd_low, 0x7632);
  c = __byte_perm(ab_high, cd_high, 0x5410);
  d = __byte_perm(ab_high, cd_high, 0x7632);
}

// Each thread: four elements, one word of each plane.
template <int T>
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    unshuffle(const ShuffledBlock* blocks, u32 count) {
  const ShuffledBlock& block = owner_of(blocks, count, blockIdx.x);
  const u64 element = (u64)(blockIdx.x - block.first_tile) * (4 * THREADS_PER_BLOCK) +
                      4 * threadIdx.x;
  if (element >= block.elements) return;
  const char* src = (const char*)block.src + element;
  u32 planes[T];
#pragma unroll
  for (int j = 0; j < T; j++) planes[j] = __ldcs((const u32*)(src + j * block.elements));
  Words<4 * T> out;
  if constexpr (T == 2) {
    out.at[0] = __byte_perm(planes[0], planes[1], 0x5140);
    out.at[1] = __byte_perm(planes[0], planes[1], 0x7362);
  } else {
#pragma unroll
    for (int j = 0; j < T; j += 4) {
      transpose_bytes(planes[j], planes[j + 1], planes[j + 2], planes[j + 3]);
#pragma unroll
      for (int i = 0; i < 4; i++) out.at[(i * T + j) / 4] = planes[j + i];
    }
  }
  *(Words<4 * T>*)((char*)block.dst + element * T) = out;
}

// Through shared memory, at most 64 planes at a time, so that both sides are accessed in lines.
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    unshuffle_any(const ShuffledBlock* blocks, u32 count) {
  constexpr u32 ELEMENTS = 128, PLANES = 64, PITCH = PLANES + 1;
  GS_SHARED(u8, tile, ELEMENTS * PITCH);
  const ShuffledBlock& block = owner_of(blocks, count, blockIdx.x);
  const u64 first = (u64)(blockIdx.x - block.first_tile) * ELEMENTS;
  const u64 left = block.elements - first;
  const u32 elements = left < ELEMENTS ? (u32)left : ELEMENTS;
  const u8* src = (const u8*)block.src + first;
  u8* dst = (u8*)block.dst + first * block.typesize;
  for (u32 plane = 0; plane < block.typesize; plane += PLANES) {
    const u32 planes = block.typesize - plane < PLANES ? block.typesize - plane : PLANES;
    for (u32 i = threadIdx.x; i < ELEMENTS * planes; i += THREADS_PER_BLOCK) {
      const u32 element = i % ELEMENTS, j = i / ELEMENTS;
      if (element < elements) {
        tile[element * PITCH + j] = src[(plane + j) * block.elements + element];
      }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < elements * planes; i += THREADS_PER_BLOCK) {
      const u32 element = i / planes, j = i % planes;
      dst[(u64)element * block.typesize + plane + j] = tile[element * PITCH + j];
    }
    __syncthreads();
  }
}

// Bit j of byte i becomes bit i of byte j. Source: Warren, Hacker's Delight, section 7-3.
__device__ __forceinline__ u64 transpose_bits(u64 x) {
  u64 swap = (x ^ (x >> 7)) & 0x00aa00aa00aa00aaull;
  x ^= swap ^ (swap << 7);
  swap = (x ^ (x >> 14)) & 0x0000cccc0000ccccull;
  x ^= swap ^ (swap << 14);
  swap = (x ^ (x >> 28)) & 0x00000000f0f0f0f0ull;
  return x ^ swap ^ (swap << 28);
}

// Byte j of eight elements, element i in byte i, from their eight planes of bits.
__device__ __forceinline__ u64 gather_bits(const u8* src, u64 plane_nbytes, u32 j) {
  u64 x = 0;
#pragma unroll
  for (u32 bit = 0; bit < 8; bit++) {
    x |= (u64)src[(8 * j + bit) * plane_nbytes] << (8 * bit);
  }
  return transpose_bits(x);
}

// Each thread: eight elements, one byte of each plane of bits.
template <int T>
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    bit_unshuffle(const ShuffledBlock* blocks, u32 count) {
  const ShuffledBlock& block = owner_of(blocks, count, blockIdx.x);
  const u64 group = (u64)(blockIdx.x - block.first_tile) * THREADS_PER_BLOCK + threadIdx.x;
  if (8 * group >= block.elements) return;
  u64 words[T] = {};
#pragma unroll
  for (int j = 0; j < T; j++) {
    const u64 x = gather_bits((const u8*)block.src + group, block.elements / 8, j);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int to = i * T + j;
      words[to / 8] |= (x >> (8 * i) & 0xff) << (8 * (to % 8));
    }
  }
  Words<8 * T> out;
#pragma unroll
  for (int j = 0; j < T; j++) {
    out.at[2 * j] = (u32)words[j];
    out.at[2 * j + 1] = (u32)(words[j] >> 32);
  }
  *(Words<8 * T>*)((char*)block.dst + group * 8 * T) = out;
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    bit_unshuffle_any(const ShuffledBlock* blocks, u32 count) {
  const ShuffledBlock& block = owner_of(blocks, count, blockIdx.x);
  const u64 group = (u64)(blockIdx.x - block.first_tile) * THREADS_PER_BLOCK + threadIdx.x;
  if (8 * group >= block.elements) return;
  u8* dst = (u8*)block.dst + group * 8 * block.typesize;
  for (u32 j = 0; j < block.typesize; j++) {
    const u64 x = gather_bits((const u8*)block.src + group, block.elements / 8, j);
    for (u32 i = 0; i < 8; i++) dst[(u64)i * block.typesize + j] = (u8)(x >> (8 * i));
  }
}

// Each thread: four elements, one word of each plane.
template <int T>
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    shuffle(const ShuffledBlock* blocks, u32 count) {
  const ShuffledBlock& block = owner_of(blocks, count, blockIdx.x);
  const u64 first = 4 * ((u64)(blockIdx.x - block.first_tile) * THREADS_PER_BLOCK + threadIdx.x);
  if (first >= block.elements) return;
  const Words<4 * T> in = *(const Words<4 * T>*)((const char*)block.src + first * T);
  u32 planes[T];
  if constexpr (T == 2) {
    planes[0] = __byte_perm(in.at[0], in.at[1], 0x6420);
    planes[1] = __byte_perm(in.at[0], in.at[1], 0x7531);
  } else {
#pragma unroll
    for (int j = 0; j < T; j += 4) {
#pragma unroll
      for (int i = 0; i < 4; i++) planes[j + i] = in.at[(i * T + j) / 4];
      transpose_bytes(planes[j], planes[j + 1], planes[j + 2], planes[j + 3]);
    }
  }
  char* dst = (char*)block.dst + first;
#pragma unroll
  for (int j = 0; j < T; j++) *(u32*)(dst + j * block.elements) = planes[j];
}

// Through shared memory, as unshuffle_any.
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    shuffle_any(const ShuffledBlock* blocks, u32 count) {
  constexpr u32 ELEMENTS = 128, PLANES = 64, PITCH = PLANES + 3;
  GS_SHARED(u8, tile, ELEMENTS * PITCH);
  const ShuffledBlock& block = owner_of(blocks, count, blockIdx.x);
  const u64 begin = (u64)(blockIdx.x - block.first_tile) * ELEMENTS;
  const u32 elements = block.elements - begin < ELEMENTS ? (u32)(block.elements - begin) : ELEMENTS;
  const u8* src = (const u8*)block.src + begin * block.typesize;
  u8* dst = (u8*)block.dst + begin;
  for (u32 plane = 0; plane < block.typesize; plane += PLANES) {
    const u32 planes = block.typesize - plane < PLANES ? block.typesize - plane : PLANES;
    for (u32 k = threadIdx.x; k < elements * planes; k += THREADS_PER_BLOCK) {
      const u32 i = k / planes, j = k % planes;
      tile[i * PITCH + j] = src[(u64)i * block.typesize + plane + j];
    }
    __syncthreads();
    for (u32 k = threadIdx.x; k < ELEMENTS * planes; k += THREADS_PER_BLOCK) {
      const u32 i = k % ELEMENTS, j = k / ELEMENTS;
      if (i < elements) dst[(plane + j) * block.elements + i] = tile[i * PITCH + j];
    }
    __syncthreads();
  }
}

// The planes of bits of byte j of eight elements, element i in byte i of `bytes`.
__device__ __forceinline__ void scatter_bits(u8* dst, u64 plane_nbytes, u32 j, u64 bytes) {
  const u64 x = transpose_bits(bytes);
#pragma unroll
  for (u32 bit = 0; bit < 8; bit++) dst[(8 * j + bit) * plane_nbytes] = (u8)(x >> (8 * bit));
}

// Each thread: eight elements, one byte of each plane of bits.
template <int T>
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    bit_shuffle(const ShuffledBlock* blocks, u32 count) {
  const ShuffledBlock& block = owner_of(blocks, count, blockIdx.x);
  const u64 group = (u64)(blockIdx.x - block.first_tile) * THREADS_PER_BLOCK + threadIdx.x;
  if (group >= block.elements / 8) return;
  const Words<8 * T> in = *(const Words<8 * T>*)((const char*)block.src + group * 8 * T);
#pragma unroll
  for (int j = 0; j < T; j++) {
    u64 bytes = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int from = i * T + j;
      bytes |= (u64)(in.at[from / 4] >> (8 * (from % 4)) & 0xff) << (8 * i);
    }
    scatter_bits((u8*)block.dst + group, block.elements / 8, j, bytes);
  }
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    bit_shuffle_any(const ShuffledBlock* blocks, u32 count) {
  const ShuffledBlock& block = owner_of(blocks, count, blockIdx.x);
  const u64 group = (u64)(blockIdx.x - block.first_tile) * THREADS_PER_BLOCK + threadIdx.x;
  if (group >= block.elements / 8) return;
  const u8* src = (const u8*)block.src + group * 8 * block.typesize;
  for (u32 j = 0; j < block.typesize; j++) {
    u64 bytes = 0;
    for (u32 i = 0; i < 8; i++) bytes |= (u64)src[(u64)i * block.typesize + j] << (8 * i);
    scatter_bits((u8*)block.dst + group, block.elements / 8, j, bytes);
  }
}

}  // namespace gs
