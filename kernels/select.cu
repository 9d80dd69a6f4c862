// Tables by which some chunks of an array are decoded, selected from those of all its chunks.
//
// first_entries   adds up the entries, and the thread blocks, of the chunks before each
// select_entries  writes the entries of the chunks
//
// Grid: first_entries: one block for each part; select_entries: one thread an entry.
// Block: THREADS_PER_BLOCK threads.
//
// numbers  device pointer, number of the chunk of each of `rows` rows, at least 1
// begins   device pointer, `pitch` sums of each part: those of all chunks before each, by number
// first    device pointer, `rows` sums of each part: those of all rows before each
// entries  device pointer, entries of all chunks of a part, in the order of their numbers
// out      device pointer, entries of all rows, `count` of them
// form     COLUMNS: out are four columns, as a CodecBatch has them; otherwise the number of the first
//          bit in `last` of the number of the first thread block, 0 or 32
//
// Alignment: 8 bytes. No sum of entries or of thread blocks is 2^31 or more.
#include "gs_common.cuh"

namespace gs {

// A sum: entries in the low 32 bits, thread blocks in the high ones.
typedef u64 Sum;

// What a decoder or a kernel reads of one stream or block: two addresses and two words.
struct Entry {
  u64 src;
  u64 dst;
  u64 nbytes;
  u64 last;
};

// Scratch memory with `pitch` bytes for each row.
struct Region {
  u64 address;
  u64 pitch;
};

constexpr int REGIONS = 8;

struct Regions {
  Region at[REGIONS];
};

constexpr u32 COLUMNS = 64;

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    first_entries(const i64* numbers, u32 rows, const Sum* begins, u64 pitch, Sum* first) {
  GS_SHARED(Sum, sums, THREADS_PER_BLOCK);
  begins += blockIdx.x * pitch;
  first += (u64)blockIdx.x * rows;
  const u32 each = (rows + THREADS_PER_BLOCK - 1) / THREADS_PER_BLOCK;
  const u32 begin = threadIdx.x * each;
  const u32 end = begin + each < rows ? begin + each : rows;
  Sum sum = 0;
  for (u32 i = begin; i < end; i++) sum += begins[numbers[i] + 1] - begins[numbers[i]];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (u32 apart = 1; apart < THREADS_PER_BLOCK; apart *= 2) {
    const Sum before = threadIdx.x >= apart ? sums[threadIdx.x - apart] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  sum = sums[threadIdx.x] - sum;
  for (u32 i = begin; i < end; i++) {
    first[i] = sum;
    sum += begins[numbers[i] + 1] - begins[numbers[i]];
  }
}

// An address as it is, or a place in the part of a region that belongs to a row: bit 62 is set, bits
// 56 to 61 are the number of the region, the others the offset.
__device__ __forceinline__ u64 placed(u64 address, const Regions& regions, u64 row) {
  if (!(address >> 62)) return address;
  const u64 number = address >> 56 & (REGIONS - 1);
  u64 place = address & ((1ull << 56) - 1);
#pragma unroll  // An index that is not constant would need a copy of all on the stack.
  for (u32 k = 0; k < REGIONS; k++) {
    if (k == number) place += regions.at[k].address + row * regions.at[k].pitch;
  }
  return place;
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    select_entries(const i64* numbers, u32 rows, const Sum* begins, const Sum* first,
                   const Entry* entries, u32 count, const Regions regions, u32 form, u64* out) {
  const u32 i = blockIdx.x * THREADS_PER_BLOCK + threadIdx.x;
  if (i >= count) return;
  // The last row whose first entry is not behind this one; rows before it may have none.
  u32 row = 0;
  u32 high = rows;
  while (high - row > 1) {
    const u32 middle = row + (high - row) / 2;
    if ((u32)first[middle] <= i) {
      row = middle;
    } else {
      high = middle;
    }
  }
  const Sum all = begins[numbers[row]], here = first[row];
  Entry entry = entries[(u32)all + (i - (u32)here)];
  entry.src = placed(entry.src, regions, row);
  entry.dst = placed(entry.dst, regions, row);
  if (form == COLUMNS) {
    out[i] = entry.src;
    out[count + i] = entry.nbytes;
    out[2ull * count + i] = entry.dst;
    out[3ull * count + i] = entry.last;
    return;
  }
  const u32 blocks = (u32)(entry.last >> form) - (u32)(all >> 32) + (u32)(here >> 32);
  const u64 others = entry.last & (form ? 0xffffffffull : 0xffffffff00000000ull);
  entry.last = others | (u64)blocks << form;
  ((Entry*)out)[i] = entry;
}

}  // namespace gs
