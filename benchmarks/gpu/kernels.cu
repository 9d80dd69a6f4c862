// What the probes need on the device: data that are not zeros, a comparison, time, and nothing.
// Grids are any size; n and period count 8-byte words.

typedef unsigned long long word;

__device__ word mixed(word i) {
    i = (i + 1) * 0x9E3779B97F4A7C15ull;
    i = (i ^ (i >> 30)) * 0xBF58476D1CE4E5B9ull;
    i = (i ^ (i >> 27)) * 0x94D049BB133111EBull;
    return i ^ (i >> 31);
}

extern "C" __global__ void random_words(word* out, word n) {
    word step = (word)gridDim.x * blockDim.x;
    for (word i = blockIdx.x * (word)blockDim.x + threadIdx.x; i < n; i += step) out[i] = mixed(i);
}

// Adds to *count the words of found that differ from expected, which repeats after period words.
extern "C" __global__ void count_different(const word* found, const word* expected, word n, word period,
                                           word* count) {
    word step = (word)gridDim.x * blockDim.x, mine = 0;
    for (word i = blockIdx.x * (word)blockDim.x + threadIdx.x; i < n; i += step)
        mine += found[i] != expected[i % period];
    if (mine) atomicAdd(count, mine);
}

extern "C" __global__ void occupy(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

extern "C" __global__ void nothing(int) {}
