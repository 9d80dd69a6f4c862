// Decode blosclz streams and LZ4 blocks, one warp a stream. Every access is checked.
//
// All lanes of a warp parse the same bytes, so that nothing needs to be exchanged; literals and
// matches are copied by all lanes together.
//
// Grid: one block for every THREADS_PER_BLOCK / 32 streams. Block: THREADS_PER_BLOCK threads.
//
// columns   device pointer, 4 columns of `count`: address and size of src, address and size of dst
// count     number of streams, at least 1
// sizes     device pointer, `count` numbers: bytes written to dst
// statuses  device pointer, `count` numbers: 0 decoded, 12 damaged, 18 larger than 2^31 - 1 bytes
//
// A damaged stream may leave anything in its dst, but writes nowhere else. No dst overlaps another or
// a src. Any alignment.
#include "gs_common.cuh"

namespace gs {

constexpr u32 ALL_LANES = 0xffffffffu;
constexpr i32 DECODED = 0, DAMAGED = 12, TOO_LARGE = 18;

struct Stream {
  const u8* src;
  u8* dst;
  u32 src_nbytes;
  u32 dst_nbytes;
  u32 in;   // bytes read
  u32 out;  // bytes written

  __device__ __forceinline__ bool has(u32 nbytes) const { return nbytes <= src_nbytes - in; }

  // Adds the bytes of a long length, up to one that is not 255. False if the stream ends, or the
  // length is larger than dst.
  __device__ __forceinline__ bool extend(u32& length) {
    u32 more;
    do {
      if (!has(1)) return false;
      more = src[in++];
      length += more;
      if (length > dst_nbytes) return false;
    } while (more == 255);
    return true;
  }

  __device__ __forceinline__ bool literals(u32 length) {
    if (!has(length) || length > dst_nbytes - out) return false;
    for (u32 i = threadIdx.x % 32; i < length; i += 32) dst[out + i] = src[in + i];
    in += length;
    out += length;
    return true;
  }

  // Repeats bytes that lie `distance` before the end, also those it writes itself.
  __device__ __forceinline__ bool match(u32 distance, u32 length) {
    if (distance > out || length > dst_nbytes - out) return false;
    __syncwarp(ALL_LANES);  // What the other lanes have written is there.
    const u8* from = dst + out - distance;
    for (u32 i = threadIdx.x % 32; i < length; i += 32) {
      dst[out + i] = from[distance < length ? i % distance : i];
    }
    out += length;
    return true;
  }
};

// The format ends with literals; a match that ends the input is not carried out (as in c-blosc).
__device__ __forceinline__ bool decode_one_blosclz(Stream& stream) {
  if (!stream.has(1)) return false;
  u32 control = stream.src[stream.in++] & 31;
  for (;;) {
    if (control < 32) {
      if (!stream.literals(control + 1)) return false;
      if (!stream.has(1)) return true;
      control = stream.src[stream.in++];
      continue;
    }
    u32 length = (control >> 5) - 1;
    u32 distance = (control & 31) << 8;
    if (length == 6 && !stream.extend(length)) return false;
    if (!stream.has(1)) return false;
    const u32 low = stream.src[stream.in++];
    if (low == 255 && distance == 31 << 8) {
      if (!stream.has(2)) return false;
      distance = (u32)stream.src[stream.in] << 8 | stream.src[stream.in + 1];
      distance += 8191;
      stream.in += 2;
    } else {
      distance += low;
    }
    if (!stream.has(1)) return true;
    control = stream.src[stream.in++];
    if (!stream.match(distance + 1, length + 3)) return false;
  }
}

__device__ __forceinline__ bool decode_one_lz4(Stream& stream) {
  for (;;) {
    if (!stream.has(1)) return false;
    const u32 token = stream.src[stream.in++];
    u32 length = token >> 4;
    if (length == 15 && !stream.extend(length)) return false;
    if (!stream.literals(length)) return false;
    if (!stream.has(1)) return true;
    if (!stream.has(2)) return false;
    const u32 distance = stream.src[stream.in] | (u32)stream.src[stream.in + 1] << 8;
    stream.in += 2;
    length = token & 15;
    if (length == 15 && !stream.extend(length)) return false;
    if (distance == 0 || !stream.match(distance, length + 4)) return false;
  }
}

template <bool IS_LZ4>
__device__ __forceinline__ void decode(const u64* columns, u32 count, u64* sizes, i32* statuses) {
  const u32 number = blockIdx.x * (THREADS_PER_BLOCK / 32) + threadIdx.x / 32;
  if (number >= count) return;
  const u64 src_nbytes = columns[count + number], dst_nbytes = columns[3 * (u64)count + number];
  Stream stream = {(const u8*)columns[number], (u8*)columns[2 * (u64)count + number],
                   (u32)src_nbytes, (u32)dst_nbytes, 0, 0};
  i32 status = TOO_LARGE;
  if (src_nbytes < 1u << 31 && dst_nbytes < 1u << 31) {
    const bool whole = IS_LZ4 ? decode_one_lz4(stream) : decode_one_blosclz(stream);
    status = whole ? DECODED : DAMAGED;
  }
  if (threadIdx.x % 32 == 0) {
    sizes[number] = stream.out;
    statuses[number] = status;
  }
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    decode_blosclz(const u64* columns, u32 count, u64* sizes, i32* statuses) {
  decode<false>(columns, count, sizes, statuses);
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    decode_lz4(const u64* columns, u32 count, u64* sizes, i32* statuses) {
  decode<true>(columns, count, sizes, statuses);
}

}  // namespace gs
