// Words that every kernel family shares. The only header a kernel file may include.
//
// Compiled by NVRTC (through CuPy), by nvcc, and by g++ behind tests/emulator/cuda_on_host.h, so
// it includes nothing: NVRTC has no C or C++ standard headers.
#pragma once

// A static array in shared memory. The host build has its own.
#ifndef GS_SHARED
#define GS_SHARED(T, name, n) __shared__ T name[n]
#endif

namespace gs {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef uint4 u128;  // CUDA's vector type: 16-byte loads and stores exist for it, not for own structs

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(u128) == 16,
              "item widths");

// Every kernel runs with this many threads a block; each thread handles ITEMS_PER_THREAD items.
constexpr u32 THREADS_PER_BLOCK = 256;
constexpr u32 ITEMS_PER_THREAD = 4;
constexpr u32 ITEMS_PER_TILE = THREADS_PER_BLOCK * ITEMS_PER_THREAD;

// One dimension of a run. Offsets in bytes, signed; `magic` and `shift` replace a division by
// `extent` (see quotient) and are computed on the host. In copy_indexed, `indexed` says which sides
// have a list of offsets (1: src, 2: dst); the stride of such a side is the place of its list.
struct Dim {
  u32 extent;
  u32 magic;
  u32 shift;
  u32 indexed;
  i64 src_stride;
  i64 dst_stride;
};

// One run of fewer than 2^31 items: `dim[R - 1]` varies fastest. Unused dimensions have extent 1.
// `first_tile` is the number of tiles of all earlier descriptors of the batch, so that one launch
// serves a batch of any length.
template <int R>
struct Run {
  u64 src;
  u64 dst;
  u32 items;
  u32 first_tile;
  u32 row;  // Number of the row it is of; not for kernels.
  u32 reserved;
  Dim dim[R];
};

struct Offsets {
  i64 src;
  i64 dst;
};

// dividend / divisor for dividend < 2^31.
__device__ __forceinline__ u32 quotient(u32 dividend, u32 divisor, u32 magic, u32 shift) {
  return divisor == 1 ? dividend : __umulhi(dividend, magic) >> shift;
}

// Byte offsets of item number `item` of the run.
template <int R>
__device__ __forceinline__ Offsets offsets_of(const Run<R>& run, u32 item) {
  Offsets sum = {0, 0};
#pragma unroll
  for (int k = R - 1; k > 0; k--) {
    const Dim& dim = run.dim[k];
    const u32 rest = quotient(item, dim.extent, dim.magic, dim.shift);
    const i64 index = item - rest * dim.extent;
    sum.src += index * dim.src_stride;
    sum.dst += index * dim.dst_stride;
    item = rest;
  }
  sum.src += (i64)item * run.dim[0].src_stride;
  sum.dst += (i64)item * run.dim[0].dst_stride;
  return sum;
}

// Items along one side of a square tile, and how far its rows are apart in shared memory: so that
// columns are not in one bank.
template <class T>
constexpr u32 TILE = sizeof(T) <= 2 ? 64 : 32;
template <class T>
constexpr u32 PITCH = TILE<T> + (sizeof(T) < 4 ? 4 / sizeof(T) : 1);

// One tile of a run: dim[R - 1] has the neighbours of dst, dim[R - 2] those of src. Their magic and
// shift divide by the number of tiles along them.
struct Tile {
  const u8* src;  // Where the two dimensions begin.
  u8* dst;
  u32 x0;  // The first item along dim[R - 1],
  u32 y0;  // and along dim[R - 2].
  bool is_beyond;  // Whether the run has fewer tiles.
};

template <int R>
__device__ __forceinline__ Tile tile_of(const Run<R>& run, u32 number, u32 side) {
  const Dim& x = run.dim[R - 1];
  const Dim& y = run.dim[R - 2];
  const u32 tiles_x = (x.extent + side - 1) / side;
  const u32 tiles_y = (y.extent + side - 1) / side;
  u32 rest = quotient(number, tiles_x, x.magic, x.shift);
  Tile tile;
  tile.x0 = (number - rest * tiles_x) * side;
  number = rest;
  rest = quotient(number, tiles_y, y.magic, y.shift);
  tile.y0 = (number - rest * tiles_y) * side;
  number = rest;
  tile.src = (const u8*)run.src;
  tile.dst = (u8*)run.dst;
#pragma unroll
  for (int k = R - 3; k >= 0; k--) {
    const Dim& dim = run.dim[k];
    rest = quotient(number, dim.extent, dim.magic, dim.shift);
    const i64 index = number - rest * dim.extent;
    tile.src += index * dim.src_stride;
    tile.dst += index * dim.dst_stride;
    number = rest;
  }
  tile.is_beyond = number != 0;
  return tile;
}

// The descriptor that owns tile number `tile`: the last one whose first_tile is not larger.
template <class D>
__device__ __forceinline__ const D& owner_of(const D* descriptors, u32 count, u32 tile) {
  u32 low = 0;
  u32 high = count;
  while (high - low > 1) {
    const u32 middle = low + (high - low) / 2;
    if (descriptors[middle].first_tile <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return descriptors[low];
}

// The bytes of each unit of 1, 2, 4 or 8 bytes in opposite order. `unit` is at most sizeof(T).
__device__ __forceinline__ u8 swapped(u8 item, u32) { return item; }
__device__ __forceinline__ u16 swapped(u16 item, u32 unit) {
  return unit == 1 ? item : (u16)__byte_perm(item, 0, 0x4401);
}
__device__ __forceinline__ u32 swapped(u32 item, u32 unit) {
  return unit == 1 ? item : __byte_perm(item, 0, unit == 2 ? 0x2301 : 0x0123);
}
__device__ __forceinline__ u64 swapped(u64 item, u32 unit) {
  const u64 low = swapped((u32)item, unit), high = swapped((u32)(item >> 32), unit);
  return unit == 8 ? low << 32 | high : high << 32 | low;
}
__device__ __forceinline__ u128 swapped(u128 item, u32 unit) {
  const u32 x = swapped(item.x, unit), y = swapped(item.y, unit);
  const u32 z = swapped(item.z, unit), w = swapped(item.w, unit);
  return unit == 8 ? u128{y, x, w, z} : u128{x, y, z, w};
}

// A word of 1, 2, 4 or 8 bytes at any place, read or written in either byte order.
__device__ __forceinline__ u64 loaded(const u8* place, u32 nbytes, u32 is_swapped) {
  u64 word = 0;
  if ((u64)place % nbytes == 0) {
    switch (nbytes) {
      case 1: word = *place; break;
      case 2: word = *(const u16*)place; break;
      case 4: word = *(const u32*)place; break;
      default: word = *(const u64*)place;
    }
  } else {
    for (u32 i = 0; i < nbytes; i++) word |= (u64)place[i] << (8 * i);
  }
  return is_swapped ? swapped(word, 8) >> (64 - 8 * nbytes) : word;
}

__device__ __forceinline__ void store(u8* place, u64 word, u32 nbytes, u32 is_swapped) {
  if (is_swapped) word = swapped(word, 8) >> (64 - 8 * nbytes);
  if ((u64)place % nbytes == 0) {
    switch (nbytes) {
      case 1: *place = (u8)word; break;
      case 2: *(u16*)place = (u16)word; break;
      case 4: *(u32*)place = (u32)word; break;
      default: *(u64*)place = word;
    }
  } else {
    for (u32 i = 0; i < nbytes; i++) place[i] = (u8)(word >> (8 * i));
  }
}

}  // namespace gs
