// Enough of CUDA to run the kernels' sources on the host: a launch is a loop over thread blocks
// and their threads, of which none waits for another.
#pragma once
#include <algorithm>
#include <functional>
#include <iterator>
#include <tuple>
#include <type_traits>
#include <utility>

#define __device__
#define __grid_constant__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct Dim3 { unsigned x, y, z; };

inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

inline void launch(unsigned grid, unsigned threads, const std::function<void()>& body) {
    blockDim = {threads, 1, 1};
    gridDim = {grid, 1, 1};
    for (unsigned b = 0; b < grid; ++b) {
        blockIdx = {b, 0, 0};
        for (unsigned t = 0; t < threads; ++t) {
            threadIdx = {t, 0, 0};
            body();
        }
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
