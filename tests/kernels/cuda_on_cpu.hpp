// Enough of CUDA to run the kernels' sources on the host: a launch is a loop over thread blocks
// and their threads, which take turns at barriers.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __device__
#define __grid_constant__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) alignas(n)

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct Dim3 { unsigned x, y, z; };

inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

inline unsigned max(unsigned a, unsigned b) { return std::max(a, b); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
    unsigned joined = 0;
    for (int i = 0; i < 4; ++i)
        joined |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return joined;
}

// A thread block: one fiber a thread, run in turn up to its next barrier.
struct Block {
    struct Fiber {
        ucontext_t context;
        std::vector<char> stack = std::vector<char>(1 << 16);
        bool done = false;
    };
    ucontext_t scheduler;
    std::vector<Fiber> fibers;
    std::vector<unsigned> offered;  // what each thread gave to the reduction in progress
    std::function<void()> body;
};

inline Block* block = nullptr;

inline void __syncthreads() {
    swapcontext(&block->fibers[threadIdx.x].context, &block->scheduler);
}

inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    block->offered[threadIdx.x] = value;
    __syncthreads();
    const auto first = block->offered.begin() + threadIdx.x / 32 * 32;
    const unsigned largest = *std::max_element(first, first + 32);
    __syncthreads();
    return largest;
}

inline void enter_fiber() {
    block->body();
    block->fibers[threadIdx.x].done = true;
}

inline void run_block(unsigned threads) {
    for (auto& fiber : block->fibers) {
        fiber.done = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack = {fiber.stack.data(), 0, fiber.stack.size()};
        fiber.context.uc_link = &block->scheduler;
        makecontext(&fiber.context, enter_fiber, 0);
    }
    for (bool running = true; running;) {
        running = false;
        for (unsigned t = 0; t < threads; ++t) {
            if (block->fibers[t].done) continue;
            threadIdx = {t, 0, 0};
            swapcontext(&block->scheduler, &block->fibers[t].context);
            running |= !block->fibers[t].done;
        }
    }
}

inline void launch(bool barriers, unsigned grid, unsigned threads, std::function<void()> body) {
    Block state;
    state.body = body;
    state.fibers.resize(barriers ? threads : 0);
    state.offered.resize(threads);
    block = &state;
    blockDim = {threads, 1, 1};
    gridDim = {grid, 1, 1};
    for (unsigned b = 0; b < grid; ++b) {
        blockIdx = {b, 0, 0};
        if (barriers) {
            run_block(threads);
            continue;
        }
        for (unsigned t = 0; t < threads; ++t) {
            threadIdx = {t, 0, 0};
            body();
        }
    }
}

// Runs a kernel on arguments given by address, as a launch passes them.
template <class... A>
void run(void (*kernel)(A...), bool barriers, unsigned grid, unsigned threads, void** values) {
    [&]<size_t... I>(std::index_sequence<I...>) {
        auto arguments = std::make_tuple(*static_cast<std::remove_const_t<A>*>(values[I])...);
        launch(barriers, grid, threads, [&] { std::apply(kernel, arguments); });
    }(std::index_sequence_for<A...>{});
}

// Writes the size of each parameter and returns how many there are.
template <class... A>
int parameter_bytes(void (*)(A...), size_t* sizes) {
    size_t wanted[] = {sizeof(A)...};
    std::copy(std::begin(wanted), std::end(wanted), sizes);
    return sizeof...(A);
}
