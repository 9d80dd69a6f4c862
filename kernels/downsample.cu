// One element for each block of an array: its mean, an element by its rank, or the mean of the block and
// its neighbours with the weights 1, 3, 3, 1 along each halved dimension.
//
// reduce_blocks  the mean: sums in the order of the elements of a block, divided: integers exactly, rounded
//                to the nearest, halves to the even one; floats of up to 32 bits as float32, float64 as it is.
//                Or the smallest, largest, lower median or most frequent element, where -0.0 lies before
//                0.0, which it equals, and NaN behind all; the smallest and the largest leave NaN out
// smooth_blocks  sums along the first halved dimension, then the next one: integers exactly and rounded as
//                the mean, floats as float64. Beyond the edges the last element repeats itself.
//
// A NaN becomes the positive quiet one without more bits. float32 is computed as float64 and rounded by
// integers, so that denormal numbers are not flushed: of a sum or quotient of two that is the same. There
// is no product that a compiler could fuse with a sum.
//
// Grid: one block of threads for each ITEMS_PER_TILE cells, a thread for each cell. THREADS_PER_BLOCK threads.
//
// tables  device pointer, `count` descriptors ordered by first_tile
// count   number of descriptors, at least 1
//
// Any alignment and byte order. No dst overlaps another or a src.
#include "gs_common.cuh"
#include "gs_float.cuh"

namespace gs {

// Types of elements; `bits` says how many bits of an integer count.
constexpr u32 UNSIGNED = 0, SIGNED = 1, FLOAT16 = 2, BFLOAT16 = 3, FLOAT32 = 4, FLOAT64 = 5;

// Methods of reduce_blocks.
constexpr u32 LEAST = 0, LARGEST = 1, MEDIAN = 2, MODE = 3, MEAN = 4;

// Blocks along one dimension. Numbers of elements count from the first one that there is.
struct BlockDim {
  u32 cells;
  u32 magic;
  u32 shift;
  u32 factor;  // Elements of a whole block.
  u32 factor_magic;
  u32 factor_shift;
  i64 size;   // Elements that there are, fewer than 2^31.
  i64 first;  // Number of the first element of the first block, negative if it is not there.
  i64 step;   // Elements from one block to the next.
  i64 src_stride;
  i64 dst_stride;
};

constexpr int MAX_RANK = 33;  // Parts of complex numbers are a dimension.

// Fewer than 2^31 cells; the last of `rank` dimensions varies fastest. Their number is no template
// parameter: the compiler would keep all of them in registers.
struct BlockTable {
  u64 src;
  u64 dst;
  u32 cells;
  u32 first_tile;
  u32 elements;  // Of a whole block, at most 2^30.
  u32 type;
  u32 nbytes;  // Of an element.
  u32 bits;
  u32 method;  // Of smooth_blocks: the number of halved dimensions.
  u32 src_swapped;
  u32 dst_swapped;
  u32 rank;
  BlockDim dim[MAX_RANK];
};

struct Element {
  u64 place;
  bool is_there;
};

// Element of the block of a cell, in the order of the block.
__device__ __forceinline__ Element element_of(const BlockTable& table, u32 cell, u32 element) {
  Element found = {table.src, true};
#pragma unroll 1
  for (u32 d = table.rank; d-- > 0;) {
    const BlockDim& dim = table.dim[d];
    const u32 rest = quotient(cell, dim.cells, dim.magic, dim.shift);
    const u32 next = quotient(element, dim.factor, dim.factor_magic, dim.factor_shift);
    const i64 number = dim.first + (i64)(cell - rest * dim.cells) * dim.step + (element - next * dim.factor);
    found.is_there &= (u64)number < (u64)dim.size;
    found.place += (u64)(number * dim.src_stride);
    cell = rest;
    element = next;
  }
  return found;
}

__device__ __forceinline__ u8* target_of(const BlockTable& table, u32 cell) {
  u64 place = table.dst;
#pragma unroll 1
  for (u32 d = table.rank; d-- > 0;) {
    const BlockDim& dim = table.dim[d];
    const u32 rest = quotient(cell, dim.cells, dim.magic, dim.shift);
    place += (u64)((i64)(cell - rest * dim.cells) * dim.dst_stride);
    cell = rest;
  }
  return (u8*)place;
}

__device__ __forceinline__ u64 word_of(const BlockTable& table, u64 place) {
  return loaded((const u8*)place, table.nbytes, table.src_swapped);
}

__device__ __forceinline__ u64 low_bits(u32 count) { return ~(u64)0 >> (64 - count); }

// An integer with its sign, of the bits that count.
__device__ __forceinline__ i64 integer_of(u64 word, u32 type, u32 bits) {
  const u32 unused = 64 - bits;
  return type == SIGNED ? (i64)(word << unused) >> unused : (i64)(word & low_bits(bits));
}

// A float as float64.
__device__ __forceinline__ double double_of(u64 word, u32 type) {
  u64 bits = word;
  if (type == FLOAT16) bits = doubled(float_bits(f16{(u16)word}));
  if (type == BFLOAT16) bits = doubled(float_bits(bf16{(u16)word}));
  if (type == FLOAT32) bits = doubled((u32)word);
  return __longlong_as_double((i64)bits);
}

__device__ __forceinline__ u64 infinity_of(u32 type) {
  switch (type) {
    case FLOAT16: return 0x7c00;
    case BFLOAT16: return 0x7f80;
    case FLOAT32: return 0x7f800000;
    default: return (u64)0x7ff << 52;
  }
}

// NaN: infinity and the bit below those of the exponent.
__device__ __forceinline__ u64 not_a_number(u32 type) {
  const u64 infinity = infinity_of(type);
  return infinity | (infinity & (0 - infinity)) >> 1;
}

__device__ __forceinline__ u32 as_float32(double value) {
  return float_bits(f64{(u64)__double_as_longlong(value)});
}

// A float64 as a float; through float32 if the host's conversion goes through it, too.
__device__ __forceinline__ u64 float_of(double value, u32 type, bool through_float32) {
  if (value != value) return not_a_number(type);
  const f64 wide = {(u64)__double_as_longlong(value)};
  if (type == FLOAT64) return wide.bits;
  const f32 single = {float_bits(wide)};
  if (type == FLOAT32) return single.bits;
  if (type == BFLOAT16) return converted(single, (bf16*)nullptr).bits;
  return through_float32 ? converted(single, (f16*)nullptr).bits : converted(wide, (f16*)nullptr).bits;
}

// Quotient rounded to the nearest integer, halves to the even one; the total is not negative.
__device__ __forceinline__ i64 divided(i64 total, i64 count) {
  const i64 whole = total / count;
  const i64 rest = total % count;
  return whole + (2 * rest > count || (2 * rest == count && (whole & 1)));
}

// Sum of elements of one type.
struct Sum {
  i64 high = 0, low = 0;  // Of integers: high * 2^32 + low.
  double total = 0;

  __device__ __forceinline__ void add(u64 word, u32 type, u32 bits) {
    if (type == FLOAT64) {
      total += __longlong_as_double((i64)word);
    } else if (type >= FLOAT16) {
      total = __longlong_as_double((i64)doubled(as_float32(total + double_of(word, type))));
    } else {
      const i64 number = integer_of(word, type, bits);
      high += type == SIGNED ? number >> 32 : (i64)((u64)number >> 32);
      low += (u32)number;
    }
  }
  __device__ __forceinline__ u64 mean(u32 count, u32 type, u32 bits) const {
    if (type >= FLOAT16) return float_of(total / count, type, true);
    i64 whole = high / count;
    i64 rest = high % count;
    if (rest < 0) {
      whole--;
      rest += count;
    }
    return (((u64)whole << 32) + (u64)divided((rest << 32) + low, count)) & low_bits(bits);
  }
};

// Order of the elements of a type.
struct Order {
  u32 type;
  u32 bits;
  u64 sign;      // Bit of the sign.
  u64 of_nan;    // Key of NaN.

  // A number that is larger for larger elements.
  __device__ __forceinline__ u64 key(u64 word) const {
    if (type == UNSIGNED) return word & low_bits(bits);
    if (type == SIGNED) return (word ^ sign) & low_bits(bits);
    if ((word & (sign - 1)) > infinity_of(type)) return of_nan;
    return word & sign ? ~word & low_bits(bits) : word | sign;
  }
  __device__ __forceinline__ u64 word(u64 key) const {
    if (type == UNSIGNED) return key;
    if (type == SIGNED) return (key ^ sign) & low_bits(bits);
    if (key == of_nan) return not_a_number(type);
    return key & sign ? key ^ sign : ~key & low_bits(bits);
  }
  // Whether elements are equal, as zeros of both signs are, and NaN is to none.
  __device__ __forceinline__ bool are_equal(u64 one, u64 other) const {
    if (type < FLOAT16) return one == other;
    return one != of_nan && one + (one == sign - 1) == other + (other == sign - 1);
  }
};

__global__ void __launch_bounds__(THREADS_PER_BLOCK, 4)
    reduce_blocks(const BlockTable* tables, u32 count) {
  const BlockTable& table = owner_of(tables, count, blockIdx.x);
  const u32 method = table.method;
  const u64 none = method == LARGEST ? 0 : ~(u64)0;
  const Order order = {table.type, table.bits, (u64)1 << (table.bits - 1), none};
  const u32 first = (blockIdx.x - table.first_tile) * ITEMS_PER_TILE + threadIdx.x;
  for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
    const u32 cell = first + k * THREADS_PER_BLOCK;
    if (cell >= table.cells) return;
    u64 found = none;
    u32 met = 0;
    Sum sum;
    for (u32 i = 0; i < table.elements; i++) {
      const Element element = element_of(table, cell, i);
      if (!element.is_there) continue;
      const u64 word = word_of(table, element.place);
      met++;
      if (method == MEAN) {
        sum.add(word, table.type, table.bits);
        continue;
      }
      const u64 key = order.key(word);
      if (method == LARGEST ? key > found : key < found) found = key;
    }
    u32 most = 0;
    // Each element is compared with the others: blocks are small, and a sorted copy would need memory.
    for (u32 i = 0; i < table.elements && (method == MEDIAN || method == MODE); i++) {
      const Element one = element_of(table, cell, i);
      if (!one.is_there) continue;
      u64 key = order.key(word_of(table, one.place));
      u64 smallest = key;
      u32 less = 0, equal = 0;
      for (u32 j = method == MODE ? i : 0; j < table.elements; j++) {
        const Element other = element_of(table, cell, j);
        if (!other.is_there) continue;
        const u64 there = order.key(word_of(table, other.place));
        if (method == MEDIAN) {
          less += there < key;
          equal += there == key;
        } else if (i == j || order.are_equal(key, there)) {
          equal++;
          if (there < smallest) smallest = there;
        }
      }
      if (method == MEDIAN) {
        const u32 rank = (met - 1) / 2;
        if (less <= rank && rank < less + equal) {
          found = key;
          break;
        }
      } else if (equal > most || (equal == most && smallest < found)) {
        most = equal;
        found = smallest;
      }
    }
    const u64 word = method == MEAN ? sum.mean(met, table.type, table.bits) : order.word(found);
    store(target_of(table, cell), word, table.nbytes, table.dst_swapped);
  }
}

// A sum of weighed elements: of integers, or the bits of one of floats.
struct Weighed {
  i64 word;

  __device__ __forceinline__ Weighed plus(Weighed other, bool is_float) const {
    if (!is_float) return {word + other.word};
    return {__double_as_longlong(__longlong_as_double(word) + __longlong_as_double(other.word))};
  }
};

constexpr u32 HALVED = 3;  // Dimensions that may be halved: the first ones of a table.

// Weighed sum over the first D of the halved dimensions, from an element on.
template <int D>
struct Weights {
  static __device__ __forceinline__ Weighed sum(const BlockTable& table, i32 z, i32 y, i32 x, u64 place) {
    const bool is_float = table.type >= FLOAT16;
    const BlockDim& dim = table.dim[D - 1];
    const u32 taps = dim.factor == 2 ? 4 : 1;
    Weighed outer = {0}, inner = {0};
#pragma unroll 1
    for (u32 tap = 0; tap < taps; tap++) {
      const i32 last = (i32)dim.size - 1;
      i32 number = (D == 1 ? z : D == 2 ? y : x) + (i32)tap;
      number = number < 0 ? 0 : number < last ? number : last;
      const Weighed here = Weights<D - 1>::sum(table, z, y, x, place + (u64)(number * dim.src_stride));
      if (tap == 0) outer = here;
      if (tap == 1) inner = here;
      if (tap == 2) inner = inner.plus(here, is_float);
      if (tap == 3) outer = outer.plus(here, is_float);
    }
    if (taps == 1) return outer;
    return inner.plus(inner, is_float).plus(inner, is_float).plus(outer, is_float);
  }
};

template <>
struct Weights<0> {
  static __device__ __forceinline__ Weighed sum(const BlockTable& table, i32, i32, i32, u64 place) {
    const u64 word = word_of(table, place);
    if (table.type < FLOAT16) return {integer_of(word, table.type, table.bits)};
    return {__double_as_longlong(double_of(word, table.type))};
  }
};

__device__ __forceinline__ u64 mean_of(Weighed sum, u32 halved, u32 type, u32 bits) {
  const u32 shift = 3 * halved;
  if (type >= FLOAT16) return float_of(__longlong_as_double(sum.word) / (double)(1u << shift), type, false);
  if (halved == 0) return (u64)sum.word & low_bits(bits);
  const i64 half = (i64)1 << (shift - 1);
  return (u64)((sum.word + half - 1 + ((sum.word >> shift) & 1)) >> shift) & low_bits(bits);
}

// The first element with a weight along a dimension; what is left of the number of a cell.
__device__ __forceinline__ i32 first_of(const BlockDim& dim, u32& cell) {
  const u32 rest = quotient(cell, dim.cells, dim.magic, dim.shift);
  const i64 number = dim.first + (i64)(cell - rest * dim.cells) * dim.step;
  cell = rest;
  return (i32)(dim.factor == 2 ? number - 1 : number);
}

__global__ void __launch_bounds__(THREADS_PER_BLOCK, 4)
    smooth_blocks(const BlockTable* tables, u32 count) {
  const BlockTable& table = owner_of(tables, count, blockIdx.x);
  const u32 start = (blockIdx.x - table.first_tile) * ITEMS_PER_TILE + threadIdx.x;
  for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
    const u32 cell = start + k * THREADS_PER_BLOCK;
    if (cell >= table.cells) return;
    u64 place = table.src;
    u32 left = cell;
#pragma unroll 1
    for (u32 d = table.rank; d-- > HALVED;) {
      const i32 number = first_of(table.dim[d], left);
      place += (u64)(number * table.dim[d].src_stride);
    }
    const i32 x = first_of(table.dim[2], left);
    const i32 y = first_of(table.dim[1], left);
    const i32 z = first_of(table.dim[0], left);
    const Weighed sum = Weights<HALVED>::sum(table, z, y, x, place);
    const u64 word = mean_of(sum, table.method, table.type, table.bits);
    store(target_of(table, cell), word, table.nbytes, table.dst_swapped);
  }
}

}  // namespace gs
