// Copy elements between strided places and convert them: integers and floats to float16, bfloat16
// and float32.
//
// Rounds to nearest, ties to even, as NumPy and ml_dtypes do: float64 to float16 directly; what
// becomes bfloat16 goes through float32. A NaN becomes some NaN, what is too large infinity.
// Floats are converted as integers, because CuPy's compiler options flush denormal numbers to zero.
//
// cast_strided  one item after the other, V neighbouring elements each
// cast_tiled    for runs whose neighbours in src are not neighbours in dst: see copy_tiled
//
// Grid: cast_strided: one block for each ITEMS_PER_TILE items of a run.
//       cast_tiled: one block for each TILE x TILE elements of the last two dimensions.
// Block: THREADS_PER_BLOCK threads.
//
// runs     device pointer, `count` descriptors ordered by first_tile
// count    number of runs, at least 1
// unit     bytes of a source element whose byte order is changed: sizeof(In), or 1: none
// bytewise  whether elements are not aligned (cast_strided with V == 1 only)
//
// Alignment unless bytewise: src and its strides to V * sizeof(In), dst and its strides to
// V * sizeof(Out), both at most to 16 (V is 1 in cast_tiled). No place of dst is met twice, and no dst overlaps a src.
#include "gs_common.cuh"

namespace gs {

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
struct f32 {
  u32 bits;
};
struct f64 {
  u64 bits;
};

template <int NBYTES>
struct Unsigned;
template <>
struct Unsigned<1> {
  typedef u8 type;
};
template <>
struct Unsigned<2> {
  typedef u16 type;
};
template <>
struct Unsigned<4> {
  typedef u32 type;
};
template <>
struct Unsigned<8> {
  typedef u64 type;
};

// value / 2^shift, to the nearest, ties to even; 1 <= shift < bits of W.
template <class W>
__device__ __forceinline__ W rounded(W value, u32 shift) {
  const W half = (W)1 << (shift - 1);
  const W rest = value & (2 * half - 1);
  const W whole = value >> shift;
  return whole + (rest > half || (rest == half && (whole & 1)));
}

// A float of SM bits of significand and SE of exponent as one of DM and DE bits.
template <class W, int SM, int SE, int DM, int DE>
__device__ __forceinline__ u32 narrowed(W bits) {
  constexpr W INFINITE = (((W)1 << SE) - 1) << SM;
  constexpr u32 NARROW_INFINITE = ((1u << DE) - 1) << DM;
  const u32 sign = (u32)(bits >> (SM + SE)) << (DM + DE);
  const W magnitude = bits & (((W)1 << (SM + SE)) - 1);
  if (magnitude > INFINITE) return sign | NARROW_INFINITE | 1u << (DM - 1);
  if constexpr (SE == DE) {
    return sign | (u32)rounded<W>(magnitude, SM - DM);
  } else {
    constexpr int BIAS = (1 << (SE - 1)) - (1 << (DE - 1));
    const int exponent = (int)(magnitude >> SM) - BIAS;
    if (exponent >= (1 << DE) - 1) return sign | NARROW_INFINITE;
    if (exponent > 0) {
      return sign | (u32)rounded<W>(magnitude - ((W)BIAS << SM), SM - DM);
    }
    const u32 shift = SM - DM + 1 - exponent;
    if (shift > SM + 1) return sign;
    const W significand = (magnitude & (((W)1 << SM) - 1)) | (W)1 << SM;
    return sign | (u32)rounded<W>(significand, shift);
  }
}

__device__ __forceinline__ u32 widened(f16 value) {
  const u32 sign = (u32)(value.bits & 0x8000) << 16;
  const u32 magnitude = value.bits & 0x7fff;
  if (magnitude >= 0x7c00) return sign | 0x7f800000 | (magnitude & 0x3ff) << 13;
  if (magnitude >= 0x400) return sign | ((magnitude << 13) + (112u << 23));
  if (magnitude == 0) return sign;
  const u32 up = (u32)__clz((int)magnitude) - 21;
  return sign | (113 - up) << 23 | (magnitude << up & 0x3ff) << 13;
}

// The bits of a value as float32. Integers are never denormal, so the compiler may convert them.
template <class In>
__device__ __forceinline__ u32 float_bits(In value) {
  return __float_as_uint((float)value);
}
__device__ __forceinline__ u32 float_bits(f16 value) { return widened(value); }
__device__ __forceinline__ u32 float_bits(bf16 value) { return (u32)value.bits << 16; }
__device__ __forceinline__ u32 float_bits(f32 value) { return value.bits; }
__device__ __forceinline__ u32 float_bits(f64 value) {
  return narrowed<u64, 52, 11, 23, 8>(value.bits);
}

template <class In>
__device__ __forceinline__ f16 converted(In value, f16*) {
  return f16{(u16)narrowed<u32, 23, 8, 10, 5>(float_bits(value))};
}
__device__ __forceinline__ f16 converted(f64 value, f16*) {
  return f16{(u16)narrowed<u64, 52, 11, 10, 5>(value.bits)};
}
template <class In>
__device__ __forceinline__ bf16 converted(In value, bf16*) {
  return bf16{(u16)narrowed<u32, 23, 8, 7, 8>(float_bits(value))};
}
template <class In>
__device__ __forceinline__ f32 converted(In value, f32*) {
  return f32{float_bits(value)};
}

template <class T, class U>
__device__ __forceinline__ T with_bits(U bits) {
  union {
    U bits;
    T value;
  } both;
  both.bits = bits;
  return both.value;
}

template <class T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Vector {
  T at[V];
};

template <class In, class Out, int V, int R>
__global__ void __launch_bounds__(THREADS_PER_BLOCK)
    cast_strided(const Run<R>* runs, u32 count, u32 unit, u32 bytewise) {
  typedef typename Unsigned<sizeof(In)>::type Bits;
  typedef typename Unsigned<sizeof(Out)>::type OutBits;
  const Run<R>& run = owner_of(runs, count, blockIdx.x);
  const u32 first = (blockIdx.x - run.first_tile) * ITEMS_PER_TILE + threadIdx.x;
  for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
    const u32 item = first + k * THREADS_PER_BLOCK;
    if (item >= run.items) return;
    const Offsets offsets = offsets_of<R>(run, item);
    const u8* src = (const u8*)run.src + offsets.src;
    u8* dst = (u8*)run.dst + offsets.dst;
    if (V == 1 && bytewise) {
      Bits bits = 0;
      for (u32 i = 0; i < sizeof(In); i++) bits |= (Bits)((Bits)src[i] << (8 * i));
      const Out out = converted(with_bits<In>(swapped(bits, unit)), (Out*)nullptr);
      const OutBits out_bits = with_bits<OutBits>(out);
      for (u32 i = 0; i < sizeof(Out); i++) dst[i] = (u8)(out_bits >> (8 * i));
      continue;
    }
    const Vector<Bits, V> in = *(const Vector<Bits, V>*)src;
    Vector<Out, V> out;
#pragma unroll
    for (int i = 0; i < V; i++) {
      out.at[i] = converted(with_bits<In>(swapped(in.at[i], unit)), (Out*)nullptr);
    }
    *(Vector<Out, V>*)dst = out;
  }
}

// Four blocks a multiprocessor: for more of them the compiler spills float64 on sm_100.
template <class In, class Out, int R>
__global__ void __launch_bounds__(THREADS_PER_BLOCK, 4)
    cast_tiled(const Run<R>* runs, u32 count, u32 unit) {
  typedef typename Unsigned<sizeof(In)>::type Bits;
  typedef typename Unsigned<sizeof(Out)>::type OutBits;
  constexpr u32 SIDE = TILE<OutBits>;
  GS_SHARED(OutBits, tile, SIDE * PITCH<OutBits>);
  const Run<R>& run = owner_of(runs, count, blockIdx.x);
  const Dim& x = run.dim[R - 1];
  const Dim& y = run.dim[R - 2];
  const Tile at = tile_of<R>(run, blockIdx.x - run.first_tile, SIDE);
  const u32 column = threadIdx.x % 32;
  const u32 row = threadIdx.x / 32;
  for (u32 i = row; i < SIDE; i += THREADS_PER_BLOCK / 32) {
    for (u32 j = column; j < SIDE; j += 32) {
      if (at.x0 + i < x.extent && at.y0 + j < y.extent) {
        const i64 from = (i64)(at.x0 + i) * x.src_stride + (i64)(at.y0 + j) * y.src_stride;
        const Bits bits = swapped(__ldcs((const Bits*)(at.src + from)), unit);
        tile[i * PITCH<OutBits> + j] =
            with_bits<OutBits>(converted(with_bits<In>(bits), (Out*)nullptr));
      }
    }
  }
  __syncthreads();
  for (u32 i = row; i < SIDE; i += THREADS_PER_BLOCK / 32) {
    for (u32 j = column; j < SIDE; j += 32) {
      if (at.x0 + j < x.extent && at.y0 + i < y.extent) {
        const i64 to = (i64)(at.x0 + j) * x.dst_stride + (i64)(at.y0 + i) * y.dst_stride;
        *(OutBits*)(at.dst + to) = tile[j * PITCH<OutBits> + i];
      }
    }
  }
}

}  // namespace gs
