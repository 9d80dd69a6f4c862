// Copy elements between strided places and convert them: integers and floats to float16, bfloat16
// and float32; and cut patches out of arrays, converted and normalised.
//
// Rounds to nearest, ties to even, as NumPy and ml_dtypes do: float64 to float16 directly; what
// becomes bfloat16 goes through float32. A NaN becomes some NaN, what is too large infinity.
//
// cast_strided  one item after the other, V neighbouring elements each
// cast_tiled    for runs whose neighbours in src are not neighbours in dst: see copy_tiled
// cut_patches   patches of arrays of any types, all of a batch, also where they reach beyond the array
//
// Grid: cast_strided, cut_patches: one block for each ITEMS_PER_TILE items of a run or patch.
//       cast_tiled: one block for each TILE x TILE elements of the last two dimensions.
// Block: THREADS_PER_BLOCK threads.
//
// runs     device pointer, `count` descriptors ordered by first_tile
// count    number of runs, at least 1
// unit     bytes of a source element whose byte order is changed: sizeof(In), or 1: none
// bytewise  whether elements are not aligned (cast_strided with V == 1 only)
// patches  device pointer, `count` descriptors of cut_patches ordered by first_tile
// fills    device pointer, elements that stand for those beyond an array, each at a multiple of 8
//
// Alignment unless bytewise: src and its strides to V * sizeof(In), dst and its strides to
// V * sizeof(Out), both at most to 16 (V is 1 in cast_tiled); those of cut_patches to the largest
// power of two up to 8 that divides the size of an element. No place of dst is met twice, and no dst
// overlaps a src.
#include "gs_common.cuh"
#include "gs_float.cuh"

namespace gs {

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

// How the elements of a patch are read and written: as they are, as numbers, or (written) as bool.
constexpr u32 COPIED = 0, UNSIGNED = 1, SIGNED = 2, FLOAT16 = 3, BFLOAT16 = 4, FLOAT32 = 5,
              FLOAT64 = 6, BOOL = 7;

// One dimension of a patch. Indices are those of the array; `extent` elements from `first` on are
// taken. Those outside of [0, size) are mirrored at the first and last element, or filled.
struct PatchDim {
  u32 extent;
  u32 magic;
  u32 shift;
  u32 reserved;
  i64 src_stride;
  i64 dst_stride;
  i64 first;
  i64 size;
};

// A patch of fewer than 2^31 elements; dim[R - 1] varies fastest, unused dimensions have extent 1.
template <int R>
struct Patch {
  u64 src;  // Where the element of index zero is, or would be: only what is taken need be there.
  u64 dst;
  u64 offset;  // Bits of float64: elements become (x - offset) * scale. A scale of 0: they stay.
  u64 scale;
  u32 items;
  u32 first_tile;
  u32 source;
  u32 target;
  u32 src_nbytes;  // Of an element.
  u32 dst_nbytes;
  u32 fill;  // Byte of `fills` where its element begins.
  u32 is_mirrored;
  PatchDim dim[R];
};

__device__ __forceinline__ u64 loaded(const u8* place, u32 nbytes) {
  switch (nbytes) {
    case 1: return *place;
    case 2: return *(const u16*)place;
    case 4: return *(const u32*)place;
    default: return *(const u64*)place;
  }
}

__device__ __forceinline__ void store(u8* place, u64 word, u32 nbytes) {
  switch (nbytes) {
    case 1: *place = (u8)word; break;
    case 2: *(u16*)place = (u16)word; break;
    case 4: *(u32*)place = (u32)word; break;
    default: *(u64*)place = word;
  }
}

// The bits of a number as float32. `word` has all bits of an integer, with its sign.
__device__ __forceinline__ u32 as_float32(u64 word, u32 source) {
  switch (source) {
    case UNSIGNED: return float_bits(word);
    case SIGNED: return float_bits((i64)word);
    case FLOAT16: return float_bits(f16{(u16)word});
    case BFLOAT16: return float_bits(bf16{(u16)word});
    default: return (u32)word;
  }
}

__device__ __forceinline__ u64 as_float64(u64 word, u32 source) {
  switch (source) {
    case UNSIGNED: return (u64)__double_as_longlong((double)word);
    case SIGNED: return (u64)__double_as_longlong((double)(i64)word);
    case FLOAT64: return word;
    default: return doubled(as_float32(word, source));
  }
}

template <int R>
__device__ __forceinline__ u64 element_of(u64 word, const Patch<R>& patch) {
  const u32 source = patch.source, target = patch.target;
  if (source == SIGNED) {
    const u32 unused = 64 - 8 * patch.src_nbytes;
    word = (u64)((i64)(word << unused) >> unused);
  }
  if (target == BOOL) return word != 0;
  if (target <= SIGNED) return word;
  if (patch.scale || source == FLOAT64 || target == FLOAT64) {
    u64 bits = as_float64(word, source);
    if (patch.scale) {
      const double apart = __longlong_as_double((i64)bits) - __longlong_as_double((i64)patch.offset);
      bits = (u64)__double_as_longlong(apart * __longlong_as_double((i64)patch.scale));
    }
    if (target == FLOAT64) return bits;
    if (target == FLOAT16) return converted(f64{bits}, (f16*)nullptr).bits;
    if (target == BFLOAT16) return converted(f64{bits}, (bf16*)nullptr).bits;
    return converted(f64{bits}, (f32*)nullptr).bits;
  }
  const f32 value = {as_float32(word, source)};
  if (target == FLOAT16) return converted(value, (f16*)nullptr).bits;
  if (target == BFLOAT16) return converted(value, (bf16*)nullptr).bits;
  return value.bits;
}

// The index of the element that stands for one outside of [0, size).
__device__ __forceinline__ i64 mirrored(i64 index, i64 size) {
  if (size == 1) return 0;
  const i64 period = 2 * (size - 1);
  const i64 rest = index % period;
  const i64 place = rest < 0 ? rest + period : rest;
  return place < size ? place : period - place;
}

// Four blocks a multiprocessor, as for cast_tiled.
template <int R>
__global__ void __launch_bounds__(THREADS_PER_BLOCK, 4)
    cut_patches(const Patch<R>* patches, u32 count, const u8* fills) {
  const Patch<R>& patch = owner_of(patches, count, blockIdx.x);
  const u32 first = (blockIdx.x - patch.first_tile) * ITEMS_PER_TILE + threadIdx.x;
  for (u32 k = 0; k < ITEMS_PER_THREAD; k++) {
    u32 item = first + k * THREADS_PER_BLOCK;
    if (item >= patch.items) return;
    i64 from = 0;
    u8* dst = (u8*)patch.dst;
    bool is_inside = true;
#pragma unroll
    for (int d = R - 1; d >= 0; d--) {
      const PatchDim& dim = patch.dim[d];
      const u32 rest = quotient(item, dim.extent, dim.magic, dim.shift);
      const i64 number = item - rest * dim.extent;
      i64 index = dim.first + number;
      if ((u64)index >= (u64)dim.size) {
        is_inside = patch.is_mirrored;
        index = mirrored(index, dim.size);
      }
      from += index * dim.src_stride;
      dst += number * dim.dst_stride;
      item = rest;
    }
    const u8* src = is_inside ? (const u8*)(patch.src + (u64)from) : fills + patch.fill;
    if (patch.source != COPIED) {
      store(dst, element_of(loaded(src, patch.src_nbytes), patch), patch.dst_nbytes);
      continue;
    }
    const u32 lowest = patch.src_nbytes & (0 - patch.src_nbytes);
    const u32 unit = lowest < 8 ? lowest : 8;
    for (u32 i = 0; i < patch.src_nbytes; i += unit) store(dst + i, loaded(src + i, unit), unit);
  }
}

}  // namespace gs
