// CRC-32C (Castagnoli) and CRC-32 (gzip) of many pieces of memory, large ones by several blocks.
//
// The register of a CRC is linear: that of a whole is the sum (xor) of those of its parts, each begun
// at zero and moved on over the bytes behind it, and of the initial register moved on over all bytes.
// A block computes this for one segment and adds it to the result, which begins as 0xffffffff, the
// final complement. Zeros in front change nothing in a register that begins at zero, so a segment is
// filled up in front to whole rows of 4096 bytes, 16 bytes a thread.
//
// Grid: `count` * `segments` blocks. Block: THREADS_PER_BLOCK threads.
//
// columns         device pointer: count addresses, then count sizes in bytes
// count           number of pieces, at least 1
// segments        segments of each piece, at least 1
// segment_nbytes  bytes of each segment but the last; segments * segment_nbytes covers every piece
// result          device pointer, count words, all 0xffffffff before
//
// Any alignment; 16-byte loads lie within the piece.
#include "gs_common.cuh"

namespace gs {

constexpr u32 CRC32C = 0x82f63b78u, CRC32 = 0xedb88320u;  // Bits reversed: bit 31 is x^0.
constexpr u32 ONE = 0x80000000u;
constexpr u32 ROW_NBYTES = 16 * THREADS_PER_BLOCK;

// a * b modulo the polynomial.
template <u32 POLYNOMIAL>
__device__ constexpr u32 product(u32 a, u32 b) {
  u32 sum = 0;
  for (int i = 0; i < 32; i++) {
    if (a & ONE) sum ^= b;
    a <<= 1;
    b = (b >> 1) ^ (b & 1 ? POLYNOMIAL : 0);
  }
  return sum;
}

// at[k] = x^(8 * 2^k): moves a register on over 2^k zero bytes.
template <u32 POLYNOMIAL>
struct Powers {
  u32 at[64];
  __device__ constexpr Powers() : at() {
    at[0] = ONE >> 8;
    for (int k = 1; k < 64; k++) at[k] = product<POLYNOMIAL>(at[k - 1], at[k - 1]);
  }
};
template <u32 POLYNOMIAL>
__device__ constexpr Powers<POLYNOMIAL> POWERS{};

template <u32 POLYNOMIAL>
__device__ constexpr u32 moved_on(u32 crc, u64 nbytes) {
  for (int k = 0; nbytes; k++, nbytes >>= 1) {
    if (nbytes & 1) crc = product<POLYNOMIAL>(crc, POWERS<POLYNOMIAL>.at[k]);
  }
  return crc;
}

// A row without the 16 bytes that the slices stand for.
template <u32 POLYNOMIAL>
constexpr u32 REST_OF_ROW = moved_on<POLYNOMIAL>(ONE, ROW_NBYTES - 16);

__device__ __forceinline__ u32 over_8_bytes(const u32* slices, u32 low, u32 high) {
  return slices[7 * 256 + (low & 255)] ^ slices[6 * 256 + (low >> 8 & 255)] ^
         slices[5 * 256 + (low >> 16 & 255)] ^ slices[4 * 256 + (low >> 24)] ^
         slices[3 * 256 + (high & 255)] ^ slices[2 * 256 + (high >> 8 & 255)] ^
         slices[256 + (high >> 16 & 255)] ^ slices[high >> 24];
}

template <u32 POLYNOMIAL>
__device__ __forceinline__ void add_segment(const u64* columns, u32 count, u32 segments,
                                            u64 segment_nbytes, u32* result) {
  GS_SHARED(u32, slices, 8 * 256);   // [k][byte]: the byte, with k bytes behind it
  GS_SHARED(u32, rows, 4 * 256);     // [k][byte]: byte k of a register, moved on over the rest of a row
  GS_SHARED(u32, warps, THREADS_PER_BLOCK / 32);
  const u32 piece = blockIdx.x / segments;
  const u64 nbytes = columns[count + piece];
  const u64 begin = blockIdx.x % segments * segment_nbytes;
  const bool is_first = begin == 0;
  if (begin >= nbytes && !is_first) return;
  const u64 length = nbytes - begin < segment_nbytes ? nbytes - begin : segment_nbytes;
  const u64 address = columns[piece] + begin;

  const u32 thread = threadIdx.x;
  u32 entry = thread;
  for (int i = 0; i < 8; i++) entry = (entry >> 1) ^ (entry & 1 ? POLYNOMIAL : 0);
  slices[thread] = entry;
  for (int k = 0; k < 4; k++) {
    rows[k * 256 + thread] = product<POLYNOMIAL>(thread << (8 * k), REST_OF_ROW<POLYNOMIAL>);
  }
  __syncthreads();
  for (int k = 1; k < 8; k++) {
    entry = (entry >> 8) ^ slices[entry & 255];
    slices[k * 256 + thread] = entry;
  }
  __syncthreads();

  // Slots of 16 bytes, aligned; the first may begin before the segment.
  const u64 before = address & 15;
  const u64 slots = (before + length) / 16;
  const u64 padding = (0 - slots) & (THREADS_PER_BLOCK - 1);
  u32 crc = 0;
  for (u64 slot = thread; slot < slots + padding; slot += THREADS_PER_BLOCK) {
    u128 data = {0, 0, 0, 0};
    if (slot == padding && before) {
      u64 low = 0, high = 0;
      for (u64 i = before; i < 16; i++) {
        const u64 byte = ((const u8*)address)[i - before];
        if (i < 8) {
          low |= byte << (8 * i);
        } else {
          high |= byte << (8 * (i - 8));
        }
      }
      data = {(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
    } else if (slot >= padding) {
      data = __ldcs((const u128*)(address - before) + (slot - padding));
    }
    crc = rows[crc & 255] ^ rows[256 + (crc >> 8 & 255)] ^ rows[512 + (crc >> 16 & 255)] ^
          rows[768 + (crc >> 24)];
    crc = over_8_bytes(slices, data.x ^ crc, data.y);
    crc = over_8_bytes(slices, data.z ^ crc, data.w);
  }

  // Neighbours are added pairwise: the left one moves on over what the right one stands for.
#pragma unroll
  for (u32 step = 0; step < 5; step++) {
    const u32 right = __shfl_down_sync(0xffffffffu, crc, 1u << step);
    crc = product<POLYNOMIAL>(crc, POWERS<POLYNOMIAL>.at[4 + step]) ^ right;
  }
  if (thread % 32 == 0) warps[thread / 32] = crc;
  __syncthreads();
  if (thread) return;
  for (u32 warp = 1; warp < THREADS_PER_BLOCK / 32; warp++) {
    crc = product<POLYNOMIAL>(crc, POWERS<POLYNOMIAL>.at[9]) ^ warps[warp];
  }
  for (u64 i = slots ? 16 * slots - before : 0; i < length; i++) {
    crc = (crc >> 8) ^ slices[(crc ^ ((const u8*)address)[i]) & 255];
  }
  crc = moved_on<POLYNOMIAL>(crc, nbytes - begin - length);
  if (is_first) crc ^= moved_on<POLYNOMIAL>(0xffffffffu, nbytes);
  atomicXor(&result[piece], crc);
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    crc32c(const u64* columns, u32 count, u32 segments, u64 segment_nbytes, u32* result) {
  add_segment<CRC32C>(columns, count, segments, segment_nbytes, result);
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    crc32(const u64* columns, u32 count, u32 segments, u64 segment_nbytes, u32* result) {
  add_segment<CRC32>(columns, count, segments, segment_nbytes, result);
}

}  // namespace gs
