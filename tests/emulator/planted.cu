// Kernels with one mistake each, and the same without it, for tests/emulator/test_cuda_on_host.py.
typedef unsigned int u32;
typedef unsigned long long u64;

enum Bug { NONE, GLOBAL, SHARED, MISALIGNED, SHIFT, BARRIER, WARP, EARLY, DIVERGENT, MASK, LANE,
           UNINITIALISED, BLOCKS, ENDED, TOO_MUCH };

// out[i] of a block is in[255 - i]. One block of 256 threads; out and in have 256 words.
template <Bug BUG>
__global__ void reverse(const u32* in, u32* out) {
  GS_SHARED(u32, staged, 256);
  if (BUG == TOO_MUCH) {
    GS_SHARED(u32, more, 48 * 256);
    more[threadIdx.x] = 0;
  }
  const u32 i = threadIdx.x;
  if (BUG == EARLY && i == 200) return;
  if (BUG != UNINITIALISED || i != 7) {
    staged[BUG == SHARED && i == 255 ? 256 : i] = in[BUG == GLOBAL && i == 255 ? 256 : i];
  }
  if (BUG == DIVERGENT) {
    if (i < 128) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if (BUG != BARRIER) {
    __syncthreads();
  }
  out[i] = staged[255 - i];
}

// out[lane] is the sum of in[0 .. lane], each warp by itself, added up in global memory.
template <Bug BUG>
__global__ void running_sum(const u32* in, u32* out) {
  const u32 lane = threadIdx.x % 32;
  u32* mine = out + threadIdx.x - lane;
  u32 sum = in[threadIdx.x];
  mine[lane] = sum;
  for (u32 step = 1; step < 32; step *= 2) {
    if (BUG != WARP) __syncwarp(0xffffffffu);
    const u32 other = lane >= step ? mine[lane - step] : 0;
    if (BUG != WARP) __syncwarp(0xffffffffu);
    sum += other;
    mine[lane] = sum;
  }
}

template <Bug BUG>
__global__ void exchange(const u32* in, u32* out) {
  const u32 lane = threadIdx.x % 32;
  if (BUG == ENDED && lane == 5) return;
  u32 value = in[threadIdx.x];
  if (BUG == MASK && lane == 3) {
    value = __shfl_sync(0xffffu, value, 0);
  } else if (BUG == LANE && lane < 16) {
    value = __shfl_sync(0xffffu, value, 20);
  } else if (BUG != LANE) {
    value = __shfl_xor_sync(0xffffffffu, value, 1);
  }
  out[threadIdx.x] = value;
}

template <Bug BUG>
__global__ void arithmetic(const u32* in, u32* out) {
  const u32 i = threadIdx.x;
  const char* from = (const char*)in + (BUG == MISALIGNED ? 2 : 0);
  const u32 value = i < 255 ? ((const u32*)from)[i] : in[i];
  out[i] = value << (BUG == SHIFT ? blockDim.x / 8 : 3);
}

// Several blocks add to out[0].
template <Bug BUG>
__global__ void add(const u32* in, u32* out) {
  if (threadIdx.x) return;
  if (BUG == BLOCKS) {
    out[0] ^= in[blockIdx.x];
  } else {
    atomicXor(out, in[blockIdx.x]);
  }
}
