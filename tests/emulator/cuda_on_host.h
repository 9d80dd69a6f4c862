// Just enough CUDA for g++ to run kernels without barriers or shared memory on the host.
//
// Blocks and threads run one after another, forwards or backwards, so that a kernel whose threads
// write the same place shows up as a result that depends on the order. Speed, alignment and memory
// faults are not modelled.
#pragma once
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(n)

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
};

static dim3 blockIdx, threadIdx, blockDim, gridDim;

static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a * b) >> 32);
}

namespace host {

template <class... Parameters, size_t... Index>
void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, bool backwards,
            void** arguments, std::index_sequence<Index...>) {
  std::tuple<Parameters...> values;
  (std::memcpy(&std::get<Index>(values), arguments[Index], sizeof(Parameters)), ...);
  gridDim = {blocks, 1, 1};
  blockDim = {threads, 1, 1};
  for (unsigned b = 0; b < blocks; b++) {
    blockIdx = {backwards ? blocks - 1 - b : b, 0, 0};
    for (unsigned t = 0; t < threads; t++) {
      threadIdx = {backwards ? threads - 1 - t : t, 0, 0};
      kernel(std::get<Index>(values)...);
    }
  }
}

template <class... Parameters>
void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, bool backwards,
            void** arguments) {
  launch(kernel, blocks, threads, backwards, arguments, std::index_sequence_for<Parameters...>{});
}

}  // namespace host
