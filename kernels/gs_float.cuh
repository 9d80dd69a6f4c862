// Floats of 2, 4 and 8 bytes as their bits, and what becomes of them in another type. Conversions work
// on integers, because CuPy's compiler options flush denormal numbers to zero.
#pragma once

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

// A float32 as float64, exactly.
__device__ __forceinline__ u64 doubled(u32 bits) {
  const u64 sign = (u64)(bits >> 31) << 63;
  const u32 magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x7f800000) return sign | (u64)0x7ff << 52 | (u64)(magnitude & 0x7fffff) << 29;
  if (magnitude >= 0x800000) return sign | (((u64)magnitude << 29) + ((u64)896 << 52));
  if (magnitude == 0) return sign;
  const u32 up = (u32)__clz((int)magnitude) - 8;
  return sign | (u64)(897 - up) << 52 | (u64)(magnitude << up & 0x7fffff) << 29;
}

}  // namespace gs
