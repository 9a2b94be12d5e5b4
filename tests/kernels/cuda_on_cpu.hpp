// Enough of CUDA to run the kernels' sources on the host: a launch is a loop over thread blocks
// and their threads. Where THREADS_WAIT is defined a thread has a stack of its own, and gives way to
// the others at each barrier.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef THREADS_WAIT
#include <ucontext.h>
#endif

#define __device__
#define __grid_constant__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct Dim3 { unsigned x, y, z; };

inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }

#ifdef THREADS_WAIT

struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
};

inline std::vector<Thread> threads_of_block(1024);
inline ucontext_t scheduler;
inline const std::function<void()>* body_of_threads;

inline void run_thread() {
    (*body_of_threads)();
    threads_of_block[threadIdx.x].done = true;
}

inline void __syncthreads() { swapcontext(&threads_of_block[threadIdx.x].context, &scheduler); }

inline unsigned __reduce_max_sync(unsigned, unsigned mine) {
    static unsigned values[1024];
    const unsigned first = threadIdx.x / 32 * 32;
    values[threadIdx.x] = mine;
    __syncthreads();
    mine = *std::max_element(values + first, values + first + 32);
    __syncthreads();
    return mine;
}

// Runs the threads of a block from barrier to barrier. All must come to the same number of them.
inline void run_block(unsigned threads, const std::function<void()>& body) {
    body_of_threads = &body;
    for (unsigned t = 0; t < threads; ++t) {
        Thread& thread = threads_of_block[t];
        thread.stack.resize(1 << 16);
        thread.done = false;
        getcontext(&thread.context);
        thread.context.uc_stack = {thread.stack.data(), 0, thread.stack.size()};
        thread.context.uc_link = &scheduler;
        makecontext(&thread.context, run_thread, 0);
    }
    for (unsigned done = 0; done < threads;) {
        done = 0;
        for (unsigned t = 0; t < threads; ++t) {
            threadIdx = {t, 0, 0};
            swapcontext(&scheduler, &threads_of_block[t].context);
            done += threads_of_block[t].done;
        }
        if (done && done < threads) {
            std::fprintf(stderr, "%u of %u threads wait at a barrier for ever\n", threads - done,
                         threads);
            std::abort();
        }
    }
}

#else

inline void run_block(unsigned threads, const std::function<void()>& body) {
    for (unsigned t = 0; t < threads; ++t) {
        threadIdx = {t, 0, 0};
        body();
    }
}

#endif

inline void launch(unsigned grid, unsigned threads, const std::function<void()>& body) {
    blockDim = {threads, 1, 1};
    gridDim = {grid, 1, 1};
    for (unsigned b = 0; b < grid; ++b) {
        blockIdx = {b, 0, 0};
        run_block(threads, body);
    }
}

// Runs a kernel on arguments given by address, as a launch passes them.
template <class... A>
void run(void (*kernel)(A...), unsigned grid, unsigned threads, void** values) {
    [&]<size_t... I>(std::index_sequence<I...>) {
        auto arguments = std::make_tuple(*static_cast<std::remove_const_t<A>*>(values[I])...);
        launch(grid, threads, [&] { std::apply(kernel, arguments); });
    }(std::index_sequence_for<A...>{});
}

// Writes the size of each parameter and returns how many there are.
template <class... A>
int parameter_bytes(void (*)(A...), size_t* sizes) {
    size_t wanted[] = {sizeof(A)...};
    std::copy(std::begin(wanted), std::end(wanted), sizes);
    return sizeof...(A);
}
