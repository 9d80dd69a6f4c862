// Words that every kernel family shares. The only header a kernel file may include.
//
// Compiled by NVRTC (through CuPy), by nvcc, and by g++ behind tests/emulator/cuda_on_host.h, so
// it includes nothing: NVRTC has no C or C++ standard headers.
#pragma once

namespace gs {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef uint4 u128;  // CUDA's vector type: 16-byte loads and stores exist for it, not for own structs

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(u128) == 16,
              "item widths");

// Every kernel runs with this many threads a block; each thread handles ITEMS_PER_THREAD items.
constexpr u32 THREADS_PER_BLOCK = 256;
constexpr u32 ITEMS_PER_THREAD = 4;
constexpr u32 ITEMS_PER_TILE = THREADS_PER_BLOCK * ITEMS_PER_THREAD;

// One dimension of a strided run. Offsets in bytes, signed; `magic` and `shift` replace a division
// by `extent` (see quotient) and are computed on the host.
struct Dim {
  u32 extent;
  u32 magic;
  u32 shift;
  u32 reserved;
  i64 src_stride;
  i64 dst_stride;
};

// One strided run of at most 2^31 - 1 items: `dim[R - 1]` varies fastest. Unused dimensions have
// extent 1. `first_tile` is the number of tiles of all earlier descriptors of the batch, so that
// one launch serves a batch of any length.
template <int R>
struct Run {
  u64 src;
  u64 dst;
  u32 items;
  u32 first_tile;
  u32 reserved[2];
  Dim dim[R];
};

struct Offsets {
  i64 src;
  i64 dst;
};

// dividend / extent for dividend < 2^31.
__device__ __forceinline__ u32 quotient(u32 dividend, const Dim& dim) {
  return dim.extent == 1 ? dividend : __umulhi(dividend, dim.magic) >> dim.shift;
}

// Byte offsets of item number `item` of the run.
template <int R>
__device__ __forceinline__ Offsets offsets_of(const Run<R>& run, u32 item) {
  Offsets sum = {0, 0};
#pragma unroll
  for (int k = R - 1; k > 0; k--) {
    const u32 rest = quotient(item, run.dim[k]);
    const i64 index = item - rest * run.dim[k].extent;
    sum.src += index * run.dim[k].src_stride;
    sum.dst += index * run.dim[k].dst_stride;
    item = rest;
  }
  sum.src += (i64)item * run.dim[0].src_stride;
  sum.dst += (i64)item * run.dim[0].dst_stride;
  return sum;
}

// The run that owns tile number `tile`: the last one whose first_tile is not larger.
template <int R>
__device__ __forceinline__ const Run<R>& run_of_tile(const Run<R>* runs, u32 count, u32 tile) {
  u32 low = 0;
  u32 high = count;
  while (high - low > 1) {
    const u32 middle = low + (high - low) / 2;
    if (runs[middle].first_tile <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return runs[low];
}

}  // namespace gs
