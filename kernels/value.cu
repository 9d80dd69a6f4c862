// Elements of chunks as codecs of values decode them: converted, scaled, looked up, summed, unpacked.
//
// convert_values  a few steps for each element, in registers: the whole of a chain of such codecs
// sum_values      sums of all elements up to each one
// unpack_bits     elements of which some bits were packed without gaps
//
// What a number becomes is settled in integers, as CuPy's options flush denormal numbers of float32
// to zero; sums and quotients are those of float64, rounded once more to narrower types, which gives
// what their own arithmetic gives: float64 has more than twice their bits and two.
//
// Grid: convert_values, unpack_bits: one block for each ITEMS_PER_TILE elements of a run.
//       sum_values: one block for each run and component.
// Block: THREADS_PER_BLOCK threads.
//
// runs       device pointer, `count` descriptors ordered by first_tile
// count      number of runs, at least 1
// src_*      of an element that is read: its bytes (1, 2, 4 or 8), bytes from one to the next, whether
//            its bytes are in opposite order
// dst_*      of one that is written; what lies between one and the next becomes zero
// steps      device pointer, `step_count` steps in order
// words      device pointer, tables and maps of the steps
// result     device pointer, a word for each run: each of its blocks that has met nothing that it
//            must not decode adds 1. What it must not decode: what is an error, NaNs that are not
//            quiet, sums of two NaNs, and conversions to integers that C leaves undefined.
//
// Any alignment. Reads and writes no byte outside the runs. No dst overlaps another or a src.
#include "gs_common.cuh"

namespace gs {

// How a number is stored in the low bits of a word.
struct NumberFormat {
  u32 kind;
  u32 bits;      // All of them, the sign included.
  u32 mantissa;  // Of a float: bits behind the point.
  i32 bias;      // Of its exponent.
};

constexpr u32 UNSIGNED = 0, SIGNED = 1, BOOL = 2, FLOAT = 3;
constexpr u32 FLOAT_OF_ONE_NAN = 4;  // Each NaN becomes the quiet one without more bits.

constexpr u32 LOOK_UP = 0, CONVERT = 1, SCALE = 2, SCALE_INTEGER = 3;
constexpr u32 NEAREST_EVEN = 0, TOWARDS_ZERO = 1, TOWARDS_POSITIVE = 2, TOWARDS_NEGATIVE = 3,
              NEAREST_AWAY = 4;
// What becomes of numbers beyond the largest one.
constexpr u32 FAIL = 0, CLAMP = 1, WRAP = 2, TO_INFINITY = 3;
// As x86 converts floats: the least signed integer of that many bits stands for what is none, but for
// what is too large for unsigned ones, of which there are only those of 64 bits here, 0 does.
constexpr u32 LEAST = 4;

struct ValueStep {
  NumberFormat from;
  NumberFormat to;
  u32 kind;
  u32 rounding;
  u32 beyond;
  u32 map_length;  // Pairs of its map and 1; 0 for none.
  u64 word;        // Where its table or map begins.
  u64 scale;       // Bits of float64, or a number of 64 bits.
  u64 offset;
};

struct ValueRun {
  u64 src;
  u64 dst;
  u64 elements;
  u32 first_tile;
  u32 result;  // Its place there.
};

struct Number {
  u32 kind;
  u32 is_negative;
  i32 exponent;
  u64 magnitude;  // Times 2^exponent; of a NaN the bits behind the point of float64.
};

constexpr u32 FINITE = 0, INFINITE = 1, NOT_A_NUMBER = 2;

__device__ __forceinline__ u64 low_bits(u32 count) {
  return count < 64 ? ((u64)1 << count) - 1 : ~(u64)0;
}

__device__ __forceinline__ u64 infinity_of(const NumberFormat& format) {
  return low_bits(format.bits - 1) & ~low_bits(format.mantissa);
}

__device__ __forceinline__ Number number_of(u64 word, const NumberFormat& format, bool* failed) {
  Number number;
  number.kind = FINITE;
  number.exponent = 0;
  if (format.kind < FLOAT) {
    word &= low_bits(format.bits);
    number.is_negative = format.kind == SIGNED ? (u32)(word >> (format.bits - 1)) : 0;
    number.magnitude = number.is_negative ? (0 - word) & low_bits(format.bits) : word;
    return number;
  }
  const u32 mantissa = format.mantissa;
  number.is_negative = (u32)(word >> (format.bits - 1)) & 1;
  word &= low_bits(format.bits - 1);
  const u64 infinity = infinity_of(format);
  if (word >= infinity) {
    number.kind = word == infinity ? INFINITE : NOT_A_NUMBER;
    number.magnitude = (word & low_bits(mantissa)) << (52 - mantissa);
    if (word > infinity && !(number.magnitude >> 51)) *failed = true;
    return number;
  }
  const i32 field = (i32)(word >> mantissa);
  number.magnitude = (word & low_bits(mantissa)) | (field ? (u64)1 << mantissa : 0);
  number.exponent = (field ? field : 1) - format.bias - (i32)mantissa;
  return number;
}

// magnitude / 2^shift as a whole number.
__device__ __forceinline__ u64 rounded(u64 magnitude, i32 shift, u32 is_negative, u32 rounding) {
  if (shift <= 0) return magnitude << -shift;
  const u64 whole = shift < 64 ? magnitude >> shift : 0;
  const u64 rest = shift < 64 ? magnitude & low_bits(shift) : magnitude;
  // Beyond 64 there is no such bit, and everything is less than half.
  const u64 half = shift <= 64 ? (u64)1 << (shift - 1) : ~(u64)0;
  if (rest == 0) return whole;
  bool up;
  switch (rounding) {
    case NEAREST_EVEN: up = rest > half || (rest == half && (whole & 1)); break;
    case TOWARDS_ZERO: up = false; break;
    case TOWARDS_POSITIVE: up = !is_negative; break;
    case TOWARDS_NEGATIVE: up = is_negative; break;
    default: up = rest >= half;
  }
  if (shift > 64 && (rounding == NEAREST_EVEN || rounding == NEAREST_AWAY)) up = false;
  return whole + up;
}

__device__ __forceinline__ u64 float_of(const Number& number, const NumberFormat& format,
                                        u32 rounding, u32 beyond, bool* failed) {
  const u32 mantissa = format.mantissa;
  const u64 sign = (u64)number.is_negative << (format.bits - 1);
  const u64 infinity = infinity_of(format);
  if (number.kind == NOT_A_NUMBER) {
    const u64 kept = format.kind == FLOAT_OF_ONE_NAN ? (u64)1 << 51 : number.magnitude;
    return sign | infinity | kept >> (52 - mantissa);
  }
  if (number.kind == INFINITE) return sign | infinity;
  if (number.magnitude == 0) return sign;
  const i32 highest = number.exponent + 63 - __clzll((i64)number.magnitude);
  const i32 least = 1 - format.bias;
  const i32 quantum = (highest > least ? highest : least) - (i32)mantissa;
  const u64 significand =
      rounded(number.magnitude, quantum - number.exponent, number.is_negative, rounding);
  // The leading bit of the significand adds one to the exponent, as does a carry.
  const u64 field = (u64)(quantum + (i32)mantissa - least);
  const u64 found = (field << mantissa) + significand;
  if (found < infinity) return sign | found;
  if (beyond == TO_INFINITY) return sign | infinity;
  if (beyond != CLAMP) *failed = true;
  return sign | (infinity - 1);
}

__device__ __forceinline__ u64 integer_of(const Number& number, const NumberFormat& format,
                                          u32 rounding, u32 beyond, bool* failed) {
  if (format.kind == BOOL) return number.kind != FINITE || number.magnitude != 0;
  const u64 high = low_bits(format.bits - (format.kind == SIGNED));
  const u64 least = (u64)1 << (format.bits - 1);
  const u64 low = format.kind == SIGNED || beyond == LEAST ? least : 0;
  const u64 most = number.is_negative ? low : high;
  u64 found = 0;
  bool outside = number.kind != FINITE;
  if (!outside && number.magnitude != 0) {
    if (number.exponent <= 0) {
      found = rounded(number.magnitude, -number.exponent, number.is_negative, rounding);
    } else if (number.exponent < 64) {
      found = number.magnitude << number.exponent;
      outside = number.magnitude >> (64 - number.exponent) != 0;
    } else {
      outside = true;
    }
    outside |= found > most;
  }
  if (outside && beyond == LEAST) {
    const bool too_large = !number.is_negative && number.kind != NOT_A_NUMBER;
    found = format.kind == UNSIGNED && too_large ? 0 : least;
  } else if (outside && beyond != WRAP) {
    if (beyond != CLAMP || number.kind == NOT_A_NUMBER) *failed = true;
    found = most;
  }
  if (number.kind != FINITE && beyond == WRAP) *failed = true;
  return (number.is_negative ? 0 - found : found) & low_bits(format.bits);
}

__device__ __forceinline__ u64 converted(u64 word, const NumberFormat& from, const NumberFormat& to,
                                         u32 rounding, u32 beyond, bool* failed) {
  const Number number = number_of(word, from, failed);
  return to.kind < FLOAT ? integer_of(number, to, rounding, beyond, failed)
                         : float_of(number, to, rounding, beyond, failed);
}

// word / scale + offset, each rounded to the format. NaNs stay as they are.
__device__ __forceinline__ u64 scaled(u64 word, const ValueStep& step, bool* failed) {
  const NumberFormat wide = {FLOAT, 64, 52, 1023};
  const Number number = number_of(word, step.from, failed);
  if (number.kind == NOT_A_NUMBER) return float_of(number, step.from, 0, TO_INFINITY, failed);
  u64 bits = float_of(number, wide, 0, TO_INFINITY, failed);
  const double scale = __longlong_as_double((i64)step.scale);
  bits = (u64)__double_as_longlong(__ddiv_rn(__longlong_as_double((i64)bits), scale));
  word = converted(bits, wide, step.from, NEAREST_EVEN, TO_INFINITY, failed);
  bits = converted(word, step.from, wide, NEAREST_EVEN, TO_INFINITY, failed);
  const double offset = __longlong_as_double((i64)step.offset);
  bits = (u64)__double_as_longlong(__dadd_rn(__longlong_as_double((i64)bits), offset));
  word = converted(bits, wide, step.from, NEAREST_EVEN, TO_INFINITY, failed);
  const bool overflows = (word & infinity_of(step.from)) == infinity_of(step.from);
  if (overflows && number.kind == FINITE && step.beyond == FAIL) *failed = true;
  return word;
}

// The same for integers, which must be multiples of the scale and stay in range.
__device__ __forceinline__ u64 scaled_integer(u64 word, const ValueStep& step, bool* failed) {
  const u32 unused = 64 - step.from.bits;
  if (step.from.kind != SIGNED) {
    word &= low_bits(step.from.bits);
    const u64 quotient = word / step.scale;
    const u64 sum = quotient + step.offset;
    if (quotient * step.scale != word || sum < quotient || sum > low_bits(step.from.bits)) {
      *failed = true;
    }
    return sum;
  }
  const i64 value = (i64)(word << unused) >> unused;
  const i64 scale = (i64)step.scale;
  // The quotient of the least number and -1 is no number.
  const bool is_least = scale == -1 && value == (i64)((u64)-1 << (step.from.bits - 1));
  const i64 quotient = is_least ? 0 : value / scale;
  const u64 sum = (u64)quotient + step.offset;
  const bool overflows = (((u64)quotient ^ sum) & (step.offset ^ sum)) >> 63;
  const bool fits = (i64)(sum << unused) >> unused == (i64)sum;
  if (is_least || overflows || !fits || (u64)quotient * step.scale != (u64)value) *failed = true;
  return sum;
}

// A map of a step begins with whether it has NaN and what NaN becomes; then come its pairs.
__device__ __forceinline__ bool is_mapped(u64* word, const ValueStep& step, const u64* map) {
  if (map[0] && step.from.kind >= FLOAT) {
    if ((*word & low_bits(step.from.bits - 1)) > infinity_of(step.from)) {
      *word = map[1];
      return true;
    }
  }
  for (u32 i = 0; i + 1 < step.map_length; i++) {
    if (map[2 + 2 * i] == *word) {
      *word = map[3 + 2 * i];
      return true;
    }
  }
  return false;
}

__device__ __forceinline__ u64 decoded(u64 word, const ValueStep& step, const u64* words,
                                       bool* failed) {
  const u64* table = words + step.word;
  switch (step.kind) {
    case LOOK_UP:
      // Behind the 256 words are bits that say which of them are legal.
      if (!(table[256 + word / 64] >> (word % 64) & 1)) *failed = true;
      return table[word];
    case CONVERT:
      if (step.map_length && is_mapped(&word, step, table)) return word;
      return converted(word, step.from, step.to, step.rounding, step.beyond, failed);
    case SCALE: return scaled(word, step, failed);
    default: return scaled_integer(word, step, failed);
  }
}

// Adds 1 to the result of a run unless a thread of the block has failed. All threads of the block.
__device__ __forceinline__ void report(bool failed, u32* result) {
  GS_SHARED(u32, failures, 1);
  if (threadIdx.x == 0) failures[0] = 0;
  __syncthreads();
  if (failed) atomicAdd(failures, 1u);
  __syncthreads();
  if (threadIdx.x == 0 && failures[0] == 0) atomicAdd(result, 1u);
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    convert_values(const ValueRun* runs, u32 count, u32 src_nbytes, u32 src_stride, u32 src_swapped,
                   u32 dst_nbytes, u32 dst_stride, u32 dst_swapped, const ValueStep* steps,
                   u32 step_count, const u64* words, u32* result) {
  const ValueRun& run = owner_of(runs, count, blockIdx.x);
  const u64 first = (u64)(blockIdx.x - run.first_tile) * ITEMS_PER_TILE + threadIdx.x;
  bool failed = false;
  for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
    const u64 element = first + k * THREADS_PER_BLOCK;
    if (element >= run.elements) break;
    u64 word = loaded((const u8*)run.src + element * src_stride, src_nbytes, src_swapped);
    for (u32 i = 0; i < step_count; i++) word = decoded(word, steps[i], words, &failed);
    u8* place = (u8*)run.dst + element * dst_stride;
    store(place, word, dst_nbytes, dst_swapped);
    for (u32 i = dst_nbytes; i < dst_stride; i += dst_nbytes) {
      store(place + i, 0, dst_nbytes, dst_swapped);
    }
  }
  report(failed, &result[run.result]);
}

// The sum of the values of all lanes up to this one.
__device__ __forceinline__ u64 summed_in_warp(u64 value) {
  const u32 lane = threadIdx.x % 32;
#pragma unroll
  for (u32 step = 1; step < 32; step *= 2) {
    const u64 before = __shfl_sync(0xffffffffu, value, (lane - step) % 32);
    if (lane >= step) value += before;
  }
  return value;
}

// A sum of two float64 that are numbers of a narrower format, as a number of that.
__device__ __forceinline__ u64 summed(u64 sum, u64 value, const NumberFormat& format,
                                      bool* failed) {
  const u64 infinity = (u64)0x7ff << 52;
  const bool is_nan = (sum & low_bits(63)) > infinity;
  if ((value & low_bits(63)) > infinity) {
    if (is_nan) *failed = true;
    return value;
  }
  if (is_nan) return sum;
  u64 found = (u64)__double_as_longlong(
      __dadd_rn(__longlong_as_double((i64)sum), __longlong_as_double((i64)value)));
  const u64 magnitude = found & low_bits(63);
  if (magnitude > infinity) *failed = true;
  if (magnitude >= infinity || format.bits == 64) return found;
  // Sums below the least normal number are exact, so that rounding leaves them alone.
  const u32 drop = 52 - format.mantissa;
  found += low_bits(drop - 1) + (found >> drop & 1);
  found &= ~low_bits(drop);
  const u64 largest = (u64)(format.bias + 1023) << 52 | (low_bits(format.mantissa) << drop);
  return (found & low_bits(63)) > largest ? (found & (u64)1 << 63) | infinity : found;
}

// format     of what is summed: of an integer its bits, or a float
// components  1, or 2 of complex numbers; elements of the runs count all of them
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    sum_values(const ValueRun* runs, u32 count, u32 nbytes, u32 is_swapped, u32 components,
               u32 kind, u32 bits, u32 mantissa, u32 bias, u32* result) {
  GS_SHARED(u64, tile, ITEMS_PER_TILE);
  GS_SHARED(u64, of_warps, THREADS_PER_BLOCK / 32);
  const NumberFormat wide = {FLOAT, 64, 52, 1023};
  const NumberFormat format = {kind, bits, mantissa, (i32)bias};
  const ValueRun& run = owner_of(runs, count, blockIdx.x);
  const u32 component = blockIdx.x - run.first_tile;
  const u64 elements = run.elements / components;
  const u32 stride = nbytes * components;
  const u8* src = (const u8*)run.src + component * nbytes;
  u8* dst = (u8*)run.dst + component * nbytes;
  const u32 warp = threadIdx.x / 32;
  bool failed = false;
  u64 sum = 0;
  for (u64 begin = 0; begin < elements; begin += ITEMS_PER_TILE) {
    const u64 left = elements - begin;
    const u32 length = left < ITEMS_PER_TILE ? (u32)left : ITEMS_PER_TILE;
    for (u32 i = threadIdx.x; i < ITEMS_PER_TILE; i += THREADS_PER_BLOCK) {
      u64 word = i < length ? loaded(src + (begin + i) * stride, nbytes, is_swapped) : 0;
      if (kind >= FLOAT) word = converted(word, format, wide, NEAREST_EVEN, TO_INFINITY, &failed);
      tile[i] = word;
    }
    __syncthreads();
    if (kind >= FLOAT) {
      // Floating-point sums depend on their order: NumPy's is from the first to the last.
      if (threadIdx.x == 0) {
        for (u32 i = 0; i < length; i++) {
          sum = begin + i ? summed(sum, tile[i], format, &failed) : tile[i];
          tile[i] = sum;
        }
      }
    } else {
      u64 mine[ITEMS_PER_THREAD];
      u64 value = 0;
#pragma unroll
      for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
        value += tile[threadIdx.x * ITEMS_PER_THREAD + k];
        mine[k] = value;
      }
      const u64 inside = summed_in_warp(value);
      if (threadIdx.x % 32 == 31) of_warps[warp] = inside;
      __syncthreads();
      u64 before = sum + inside - value;
      for (u32 i = 0; i < THREADS_PER_BLOCK / 32; i++) {
        before += i < warp ? of_warps[i] : 0;
        sum += of_warps[i];
      }
#pragma unroll
      for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
        tile[threadIdx.x * ITEMS_PER_THREAD + k] = before + mine[k];
      }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < length; i += THREADS_PER_BLOCK) {
      u64 word = tile[i];
      if (kind >= FLOAT) word = converted(word, wide, format, NEAREST_EVEN, TO_INFINITY, &failed);
      store(dst + (begin + i) * stride, word, nbytes, is_swapped);
    }
    // Each thread reads and writes the same part of the tile here and above.
  }
  report(failed, &result[run.result]);
}

// nbytes    of an element: 1, 2, 4 or 8
// nbits     that are stored of each, 1 to 8 * nbytes
// place     of the lowest of them; the bits below become 0
// sign      bits up to which the highest stored one is repeated, from 0; 0: none is
// is_big    whether the first bit of a byte is its highest; only where nbits is 1
// padding   where the byte is that counts the bits of padding: 0 nowhere, 1 in front, 2 at the end
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    unpack_bits(const ValueRun* runs, u32 count, u32 nbytes, u32 nbits, u32 place, u32 sign,
                u32 is_big, u32 padding, u32* result) {
  const ValueRun& run = owner_of(runs, count, blockIdx.x);
  const u64 first = (u64)(blockIdx.x - run.first_tile) * ITEMS_PER_TILE + threadIdx.x;
  const u8* packed = (const u8*)run.src + (padding == 1);
  const u64 stored = low_bits(nbits);
  bool failed = false;
  if (padding && first == 0) {
    const u64 packed_nbytes = (run.elements * nbits + 7) / 8;
    const u8 found = padding == 1 ? packed[-1] : packed[packed_nbytes];
    failed = found != 8 * packed_nbytes - run.elements * nbits;
  }
  for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
    const u64 element = first + k * THREADS_PER_BLOCK;
    if (element >= run.elements) break;
    const u8* src = packed + element * nbits / 8;
    const u32 bit = (u32)(element * nbits % 8);
    const u32 apart = is_big ? 7 - bit : bit;
    u64 word = (u64)src[0] >> apart;
    for (u32 have = 8 - apart, i = 1; have < nbits; have += 8, i++) word |= (u64)src[i] << have;
    word &= stored;
    if (sign > place + nbits && word >> (nbits - 1)) word |= low_bits(sign - place) & ~stored;
    store((u8*)run.dst + element * nbytes, word << place, nbytes, 0);
  }
  report(failed, &result[run.result]);
}

}  // namespace gs
