// Enough CUDA for g++ to run kernels on the host, strictly.
//
// Blocks run one after the other. A CUDA thread runs on a stack of its own (a Fiber) until it ends
// or waits; a thread that never waits leaves its stack to the next one, so that kernels without
// barriers are a plain loop. Three orders of threads, warps and blocks (host::Order) make what
// depends on the order show itself as a different result; shared memory begins as garbage that
// differs too.
//
// An error of the launch, with block, thread and line: threads of a block that wait at different
// barriers, or at one that others will never reach; warp operations whose mask names lanes that
// ended, do not exist or wait elsewhere; a shuffle that reads a lane outside its mask; more than
// 48 KiB of static shared memory; an empty grid.
//
// Works with -fsanitize=address,undefined (shared arrays have red zones) and with
// -fsanitize=thread (each CUDA thread is a thread for it; threads of different blocks are ordered
// by nothing but the launch; with -DHOST_ONE_THREAD, which is much quicker, a launch is one thread
// with whoever launched it). Not modelled: speed, coalescing, the memory model between blocks.
#pragma once
#include <sys/mman.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#if !defined(HOST_ONE_THREAD)
#define HOST_THREADS  // Each CUDA thread is a thread for the sanitizer.
#endif
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#define HOST_QUIET __attribute__((no_sanitize("thread")))
#else
#define HOST_QUIET
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
};

static dim3 blockIdx, threadIdx, blockDim, gridDim;

namespace host {

enum Order { FORWARD, BACKWARD, SHUFFLED };
enum State { FRESH, RUNNING, AT_BARRIER, AT_WARP, ENDED };

constexpr unsigned MAX_THREADS = 1024;
constexpr size_t STACK_NBYTES = 64 * 1024;
constexpr size_t SHARED_NBYTES = 48 * 1024;
constexpr size_t ARENA_NBYTES = 128 * 1024;
constexpr size_t RED_ZONE = 64;

struct Fiber {
  char* stack;
#if defined(__x86_64__)
  void* saved;
#else
  ucontext_t saved;
#endif
};

struct Thread {
  State state;
  int line;
  Fiber* fiber;
  unsigned mask;
  unsigned long long value;
  unsigned barriers, warp_operations;
  void* tsan;
  bool is_kept;  // `tsan`, for later launches
};

struct SharedArray {
  const void* key;
  char* memory;
};

static Thread threads[MAX_THREADS];
static unsigned sequence[MAX_THREADS];
static unsigned long long exchanged[MAX_THREADS];
static Fiber fibers[MAX_THREADS];
static unsigned fiber_count;
static Fiber* idle_fibers[MAX_THREADS];
static unsigned idle_count;
static Fiber main_fiber;
static Fiber* current_fiber;
static unsigned current, thread_count, started;
static Order order;
static void (*body)(void*);
static void* body_argument;
static char* arena;
static size_t arena_used, shared_nbytes;
static SharedArray shared_arrays[32];
static unsigned shared_count;
static char message[512];
static std::mutex one_launch;
#if defined(__SANITIZE_ADDRESS__)
static const void* main_bottom;
static size_t main_nbytes;
#endif
#if defined(HOST_THREADS)
static void* main_tsan;
static char launch_begin, launch_end, barrier_sync[2], warp_sync[MAX_THREADS / 32][2];
// Threads of the sanitizer that later launches use again, because to make one takes 0.4 ms. A launch
// uses each once: they would be ordered otherwise.
static constexpr unsigned MAX_KEPT = 256;
static void* kept_tsan[MAX_KEPT];
static unsigned kept_count, kept_used;
#endif

HOST_QUIET static void fail(const char* format, ...) {
  if (message[0]) return;
  int n = snprintf(message, sizeof message, "block (%u, %u, %u), thread %u: ", blockIdx.x,
                   blockIdx.y, blockIdx.z, current);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message + n, sizeof message - n, format, arguments);
  va_end(arguments);
}

HOST_QUIET static void set_current(unsigned thread) {
  current = thread;
  if (thread < blockDim.x) {  // As nearly always: most blocks have one dimension.
    threadIdx = {thread, 0, 0};
    return;
  }
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y,
               thread / blockDim.x / blockDim.y};
}

#if defined(__x86_64__)
// Keeps what the System V ABI lets a callee not change, then goes on with another stack.
extern "C" void gs_host_switch(void** save, void* load) __attribute__((visibility("hidden")));
asm(R"(
.pushsection .text
.type gs_host_switch, @function
gs_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gs_host_switch, . - gs_host_switch
.popsection
)");
#endif

HOST_QUIET static void switch_stack(Fiber* from, Fiber* to) {
#if defined(__x86_64__)
  gs_host_switch(&from->saved, to->saved);
#else
  swapcontext(&from->saved, &to->saved);
#endif
}

HOST_QUIET static void to_main() {
#if defined(__SANITIZE_ADDRESS__)
  void* fake;
  __sanitizer_start_switch_fiber(&fake, main_bottom, main_nbytes);
#endif
#if defined(HOST_THREADS)
  __tsan_switch_to_fiber(main_tsan, 1);
#endif
  switch_stack(current_fiber, &main_fiber);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, &main_bottom, &main_nbytes);
#endif
}

HOST_QUIET static void to_fiber(Fiber* fiber, [[maybe_unused]] void* tsan) {
  current_fiber = fiber;
#if defined(__SANITIZE_ADDRESS__)
  void* fake;
  __sanitizer_start_switch_fiber(&fake, fiber->stack, STACK_NBYTES);
#endif
#if defined(HOST_THREADS)
  __tsan_switch_to_fiber(tsan, 1);
#endif
  switch_stack(&main_fiber, fiber);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

HOST_QUIET static void run_threads() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &main_bottom, &main_nbytes);
#endif
  for (;;) {
    while (started < thread_count && !message[0]) {
      const unsigned thread = sequence[started++];
      set_current(thread);
      threads[thread].state = RUNNING;
#if defined(HOST_THREADS)
      __tsan_acquire(&launch_begin);
      body(body_argument);
      __tsan_release(&launch_end);
      threads[current].state = ENDED;
      break;  // The next CUDA thread is another thread to the sanitizer.
#else
      body(body_argument);
      threads[current].state = ENDED;
#endif
    }
    idle_fibers[idle_count++] = current_fiber;
    to_main();
  }
}

HOST_QUIET static char* map_memory(size_t nbytes) {
  void* memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) abort();
#if defined(HOST_THREADS)
  __tsan_release(&launch_begin);  // To map it was a write, also for threads that were made before.
#endif
  return (char*)memory;
}

HOST_QUIET static Fiber* idle_fiber() {
  if (idle_count > 0) return idle_fibers[--idle_count];
  Fiber* fiber = &fibers[fiber_count++];
  char* memory = map_memory(STACK_NBYTES + 4096);
  mprotect(memory, 4096, PROT_NONE);
  fiber->stack = memory + 4096;
#if defined(__x86_64__)
  void** top = (void**)(fiber->stack + STACK_NBYTES) - 1;
  *--top = (void*)&run_threads;
  for (int i = 0; i < 6; i++) *--top = nullptr;
  fiber->saved = top;
#else
  getcontext(&fiber->saved);
  fiber->saved.uc_stack.ss_sp = fiber->stack;
  fiber->saved.uc_stack.ss_size = STACK_NBYTES;
  fiber->saved.uc_link = nullptr;
  makecontext(&fiber->saved, run_threads, 0);
#endif
  return fiber;
}

HOST_QUIET static void wait_as(State state, int line) {
  const unsigned thread = current;
  Thread& mine = threads[thread];
  mine.state = state;
  mine.line = line;
  mine.fiber = current_fiber;
#if defined(HOST_THREADS)
  // Two places taken in turn: with one, the second phase of a race would look ordered.
  char* place = state == AT_BARRIER ? &barrier_sync[mine.barriers++ & 1]
                                    : &warp_sync[thread / 32][mine.warp_operations++ & 1];
  __tsan_release(place);
#endif
  to_main();
#if defined(HOST_THREADS)
  __tsan_acquire(place);
#endif
  set_current(thread);
  mine.state = RUNNING;
}

// Whether all lanes that the mask of `thread` names wait with it; an error if they never can.
HOST_QUIET static bool lanes_meet(unsigned thread) {
  const unsigned first = thread / 32 * 32, mask = threads[thread].mask;
  const int line = threads[thread].line;
  current = thread;
  if (!(mask >> (thread - first) & 1)) fail("is not in its own mask, line %d", line);
  bool meet = true;
  for (unsigned lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    if (first + lane >= thread_count) {
      fail("the mask of line %d names lane %u, which the block does not have", line, lane);
      return false;
    }
    const Thread& other = threads[first + lane];
    if (other.state == ENDED) fail("line %d waits for lane %u, which has ended", line, lane);
    if (other.state == AT_BARRIER) {
      fail("line %d waits for lane %u, which waits at the barrier of line %d", line, lane,
           other.line);
    }
    if (other.state == AT_WARP && (other.line != line || other.mask != mask)) {
      fail("lanes meet in different warp operations, lines %d and %d", line, other.line);
    }
    meet = meet && other.state == AT_WARP;
  }
  return meet && !message[0];
}

HOST_QUIET static bool resume_warp(unsigned warp) {
  const unsigned first = warp * 32;
  unsigned go = 0;
  for (unsigned lane = 0; lane < 32 && first + lane < thread_count; lane++) {
    const Thread& mine = threads[first + lane];
    if (mine.state != AT_WARP || (go >> lane & 1) || !lanes_meet(first + lane)) continue;
    go |= mine.mask;
  }
  for (unsigned lane = 0; lane < 32; lane++) {
    if (go >> lane & 1) exchanged[first + lane] = threads[first + lane].value;
  }
  for (unsigned i = 0; i < 32 && !message[0]; i++) {
    const unsigned lane = order == BACKWARD ? 31 - i : order == SHUFFLED ? (i * 13 + 5) % 32 : i;
    if (go >> lane & 1) to_fiber(threads[first + lane].fiber, threads[first + lane].tsan);
  }
  return go != 0;
}

HOST_QUIET static void clear_arena() {
#if defined(HOST_THREADS)
  if (arena) munmap(arena, ARENA_NBYTES);  // Also forgets who used it.
  arena = nullptr;
#endif
  if (!arena) {
    arena = map_memory(ARENA_NBYTES);
    arena_used = ARENA_NBYTES;
  }
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(arena, ARENA_NBYTES);
#endif
  const char garbage = order == FORWARD ? (char)0xA5 : order == BACKWARD ? 0x5A : (char)0xFF;
  for (size_t i = 0; i < arena_used; i++) ((volatile char*)arena)[i] = garbage;
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(arena, ARENA_NBYTES);
#endif
  arena_used = shared_nbytes = 0;
  shared_count = 0;
}

#if defined(HOST_THREADS)
// A thread of the sanitizer for a CUDA thread, and whether it stays behind the end of the block.
HOST_QUIET static void* new_tsan(bool* is_kept) {
  *is_kept = kept_used < MAX_KEPT;
  if (!*is_kept) return __tsan_create_fiber(1);
  if (kept_used == kept_count) kept_tsan[kept_count++] = __tsan_create_fiber(1);
  return kept_tsan[kept_used++];
}
#endif

HOST_QUIET static void run_block() {
  static unsigned random = 12345;
  for (unsigned i = 0; i < thread_count; i++) {
    threads[i] = Thread{};
    sequence[i] = order == BACKWARD ? thread_count - 1 - i : i;
  }
  for (unsigned i = thread_count - 1; order == SHUFFLED && i > 0; i--) {
    random = random * 1664525u + 1013904223u;
    std::swap(sequence[i], sequence[(random >> 8) % (i + 1)]);
  }
  clear_arena();
  started = 0;
  while (started < thread_count && !message[0]) {
    void* tsan = nullptr;
#if defined(HOST_THREADS)
    Thread& next = threads[sequence[started]];
    tsan = next.tsan = new_tsan(&next.is_kept);
#endif
    to_fiber(idle_fiber(), tsan);
  }
  const unsigned warps = (thread_count + 31) / 32;
  while (!message[0]) {
    bool moved = false;
    for (unsigned i = 0; i < warps && !message[0]; i++) {
      const unsigned warp = order == BACKWARD ? warps - 1 - i : i;
      while (!message[0] && resume_warp(warp)) moved = true;
    }
    if (message[0]) break;
    unsigned waiting = 0, ended = 0;
    int line = 0, other = 0;
    for (unsigned i = 0; i < thread_count; i++) {
      if (threads[i].state == ENDED) ended++;
      if (threads[i].state != AT_BARRIER) continue;
      if (waiting++ == 0) {
        line = threads[i].line;
        current = i;
      }
      if (threads[i].line != line) other = threads[i].line;
    }
    if (ended == thread_count) break;
    if (waiting < thread_count) {
      if (moved) continue;
      fail("%u threads wait at the barrier of line %d, %u have ended", waiting, line, ended);
      break;
    }
    if (other) {
      fail("threads wait at different barriers, lines %d and %d", line, other);
      break;
    }
    for (unsigned i = 0; i < thread_count && !message[0]; i++) {
      const Thread& thread = threads[sequence[i]];
      if (thread.state == AT_BARRIER) to_fiber(thread.fiber, thread.tsan);
    }
  }
#if defined(HOST_THREADS)
  for (unsigned i = 0; i < thread_count; i++) {
    if (threads[i].tsan && !threads[i].is_kept) __tsan_destroy_fiber(threads[i].tsan);
  }
#endif
}

HOST_QUIET static int run_grid(dim3 grid, dim3 block, Order how, char* error, size_t error_nbytes) {
  message[0] = 0;
  order = how;
  gridDim = grid;
  blockDim = block;
  thread_count = block.x * block.y * block.z;
  current = 0;
  blockIdx = {0, 0, 0};
  const unsigned long long blocks = (unsigned long long)grid.x * grid.y * grid.z;
  if (!blocks || grid.x > 0x7fffffffu || !thread_count || thread_count > MAX_THREADS) {
    fail("invalid launch configuration, %u x %u x %u blocks of %u threads", grid.x, grid.y, grid.z,
         thread_count);
  }
#if defined(HOST_THREADS)
  main_tsan = __tsan_get_current_fiber();
  __tsan_release(&launch_begin);
  kept_used = 0;
#endif
  for (unsigned long long i = 0; i < blocks && !message[0]; i++) {
    const unsigned long long b = order == BACKWARD ? blocks - 1 - i : i;
    blockIdx = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                (unsigned)(b / grid.x / grid.y)};
    run_block();
  }
#if defined(HOST_THREADS)
  __tsan_acquire(&launch_end);
#endif
  if (!message[0]) return 0;
  for (unsigned i = 0; i < fiber_count; i++) munmap(fibers[i].stack - 4096, STACK_NBYTES + 4096);
  fiber_count = idle_count = 0;
#if defined(HOST_THREADS)
  while (kept_count) __tsan_destroy_fiber(kept_tsan[--kept_count]);
#endif
  snprintf(error, error_nbytes, "%s", message);
  return 1;
}

// The shared array of one declaration: the same memory for all threads of a block.
HOST_QUIET static void* shared_array(const void* key, size_t nbytes) {
  for (unsigned i = 0; i < shared_count; i++) {
    if (shared_arrays[i].key == key) return shared_arrays[i].memory;
  }
  shared_nbytes += nbytes;
  if (shared_nbytes > SHARED_NBYTES || shared_count == 32) {
    fail("%zu bytes of static shared memory, CUDA has %zu", shared_nbytes, SHARED_NBYTES);
    to_main();
  }
  char* memory = arena + arena_used + RED_ZONE;
  arena_used += RED_ZONE + (nbytes + 15) / 16 * 16 + RED_ZONE;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(memory, nbytes);
#endif
  shared_arrays[shared_count++] = {key, memory};
  return memory;
}

template <class T>
HOST_QUIET static unsigned long long bits_of(T value) {
  static_assert(sizeof(T) <= 8, "a warp exchanges at most 8 bytes");
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

// Meets the lanes of `mask`; what each brought is in exchanged[first lane of the warp + lane].
HOST_QUIET static const unsigned long long* meet(int line, unsigned mask, unsigned long long value) {
  threads[current].mask = mask;
  threads[current].value = value;
  wait_as(AT_WARP, line);
  return &exchanged[current / 32 * 32];
}

enum Shuffle { FROM, DOWN, XOR };

template <Shuffle HOW, class T>
HOST_QUIET static T shuffle(int line, unsigned mask, T value, unsigned by) {
  const unsigned long long* brought = meet(line, mask, bits_of(value));
  const unsigned lane = current % 32;
  unsigned from = HOW == FROM ? by % 32 : HOW == XOR ? lane ^ by : lane + by;
  if (from > 31) from = lane;
  if (!(mask >> from & 1)) {
    fail("the shuffle of line %d reads lane %u, which is not in its mask", line, from);
    to_main();
  }
  memcpy(&value, &brought[from], sizeof value);
  return value;
}

template <class T>
constexpr bool loadable = std::is_arithmetic_v<T> || std::is_same_v<T, uint4>;

template <class... Parameters>
struct Call {
  void (*kernel)(Parameters...);
  void** arguments;

  template <size_t... Index>
  HOST_QUIET void invoke(std::index_sequence<Index...>) {
    kernel(*(std::decay_t<Parameters>*)arguments[Index]...);
  }
  HOST_QUIET static void run(void* self) {
    ((Call*)self)->invoke(std::index_sequence_for<Parameters...>{});
  }
};

template <class... Parameters>
int launch(void (*kernel)(Parameters...), unsigned blocks, unsigned block_threads, Order how,
           void** arguments, char* error, size_t error_nbytes) {
  std::lock_guard<std::mutex> lock(one_launch);
  Call<Parameters...> call{kernel, arguments};
  body = &Call<Parameters...>::run;
  body_argument = &call;
  return run_grid({blocks, 1, 1}, {block_threads, 1, 1}, how, error, error_nbytes);
}

// Writes the size of each parameter, at most 16, and returns how many there are.
template <class... Parameters>
unsigned parameter_sizes(void (*)(Parameters...), unsigned* sizes) {
  const unsigned all[] = {(unsigned)sizeof(std::decay_t<Parameters>)...};
  static_assert(sizeof...(Parameters) <= 16, "parameters");
  memcpy(sizes, all, sizeof all);
  return sizeof...(Parameters);
}

}  // namespace host

#define __syncthreads() host::wait_as(host::AT_BARRIER, __LINE__)
#define __syncwarp(mask) ((void)host::meet(__LINE__, mask, 0))
#define __shfl_sync(...) host::shuffle<host::FROM>(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) host::shuffle<host::DOWN>(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) host::shuffle<host::XOR>(__LINE__, __VA_ARGS__)
#define GS_SHARED(T, name, n)        \
  static const char name##_key = 0; \
  T* const name = (T*)host::shared_array(&name##_key, sizeof(T) * (n))

template <class T>
static inline T __ldcs(const T* address) {
  static_assert(host::loadable<T>, "CUDA has no streaming load of this type");
  return *address;
}

static inline unsigned atomicXor(unsigned* address, unsigned value) {
  return __atomic_fetch_xor(address, value, __ATOMIC_RELAXED);
}

static inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a * b) >> 32);
}

static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long bytes = (unsigned long long)high << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {
    result |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return result;
}

static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}

static inline int __clzll(long long value) {
  return value ? __builtin_clzll((unsigned long long)value) : 64;
}

static inline long long __double_as_longlong(double value) {
  long long bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline double __longlong_as_double(long long bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }

static inline int __clz(int value) { return value ? __builtin_clz((unsigned)value) : 32; }

static inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
