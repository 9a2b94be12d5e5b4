#include "common.cuh"

// One layer of all blocks: a running state, and a checkpoint.
struct alignas(16) Pages {
    i64 running, running_stride;
    i64 kept, kept_stride;
};

constexpr int MAX_THREADS = 512;
constexpr int HELD = 8;  // vectors of four numbers that a thread holds of a head
constexpr int NUMBERS_A_THREAD = 4 * HELD;
constexpr unsigned ALL_LANES = 0xFFFFFFFF;

// --- numbers -------------------------------------------------------------------------------------
//
// By bits, as the Rust codec: each sum and product is rounded once, to nearest, ties to even. They
// are named in PTX, because CuPy compiles with -ftz=true and the compiler fuses what is not named.

constexpr unsigned MAGNITUDE = 0x7FFFFFFF, INFINITE = 0x7F800000, NOT_A_NUMBER = 0x7FC00000;
constexpr unsigned SMALLEST_HEAD = (127 - 100) << 23;

__device__ __forceinline__ float add(float a, float b) {
#ifdef __CUDA_ARCH__
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
#else
    return a + b;
#endif
}

__device__ __forceinline__ float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
#else
    return a * b;
#endif
}

__device__ __forceinline__ float multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    float sum;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
    return sum;
#else
    return __builtin_fmaf(a, b, c);
#endif
}

// 1 / b within a unit in the last place, for b from 1 to 2.
__device__ __forceinline__ float about_inverse(float b) {
#ifdef __CUDA_ARCH__
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
    return inverse;
#else
    return 1 / b;
#endif
}

// A largest magnitude has a mantissa from 1 to 2, times a power of two. The quotients of mantissas
// are rounded as div.rn rounds: the tests try each one. That needs no call for rare exponents.
__device__ __forceinline__ float mantissa_of(unsigned peak) {
    return __uint_as_float((peak & 0x7FFFFF) | 127 << 23);
}

__device__ __forceinline__ unsigned exponent_of(unsigned peak) { return (peak >> 23) - 127; }

// LARGEST / peak, from 2^-100 on.
template <class Format>
__device__ __forceinline__ float factor_of(unsigned peak) {
    const float mantissa = mantissa_of(peak);
    float inverse = about_inverse(mantissa);
    inverse = multiply_add(inverse, multiply_add(-mantissa, inverse, 1), inverse);
    const float about = multiply(Format::LARGEST, inverse);
    const float rest = multiply_add(-mantissa, about, Format::LARGEST);
    const float quotient = multiply_add(rest, inverse, about);
    return __uint_as_float(__float_as_uint(quotient) - (exponent_of(peak) << 23));
}

// peak / LARGEST, from 2^-100 on.
template <class Format>
__device__ __forceinline__ float scale_of(unsigned peak) {
    constexpr float INVERSE = 1 / Format::LARGEST;
    const float mantissa = mantissa_of(peak);
    const float about = multiply(mantissa, INVERSE);
    const float rest = multiply_add(-Format::LARGEST, about, mantissa);
    const float quotient = multiply_add(rest, INVERSE, about);
    return __uint_as_float(__float_as_uint(quotient) + (exponent_of(peak) << 23));
}

// Four numbers of a checkpoint are a value of type Four; of each, `encode` and `decode` take bits.
struct Bfloat16 {
    using Four = uint2;
    static constexpr int NUMBER = 1, BYTES = 2, SCALE_BYTES = 0;
    static constexpr float LARGEST = 0;

    static __device__ unsigned encode(unsigned bits, float) {
        if ((bits & MAGNITUDE) > INFINITE) return bits >> 16 | 0x40;
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    }
    static __device__ unsigned decode(unsigned code, float) { return code << 16; }
};

struct Int8 {
    using Four = unsigned;
    static constexpr int NUMBER = 3, BYTES = 1, SCALE_BYTES = 4;
    static constexpr float LARGEST = 127;

    static __device__ unsigned encode(unsigned bits, float inverse) {
        // Adding 1.5 * 2^23 leaves the nearest whole number in the low byte.
        return __float_as_uint(add(multiply(__uint_as_float(bits), inverse), 12582912.f)) & 0xFF;
    }
    static __device__ unsigned decode(unsigned code, float scale) {
        const float whole = static_cast<float>(static_cast<signed char>(code));
        return __float_as_uint(multiply(whole, scale));
    }
};

struct Float8 {
    using Four = unsigned;
    static constexpr int NUMBER = 2, BYTES = 1, SCALE_BYTES = 4;
    static constexpr float LARGEST = 448;

    static __device__ unsigned encode(unsigned bits, float inverse) {
        const unsigned scaled = __float_as_uint(multiply(__uint_as_float(bits), inverse));
        unsigned magnitude = scaled & MAGNITUDE;
        if (magnitude > 0x43E00000) magnitude = 0x43E00000;  // 448
        unsigned code;
        if (magnitude < 0x3C800000)
            // Below 2^-6 the spacing is 2^-9, which adding 2^14 rounds to.
            code = __float_as_uint(add(__uint_as_float(magnitude), 16384.f)) - 0x46800000;
        else
            code = ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
        return (scaled >> 24 & 0x80) | code;
    }
    static __device__ unsigned decode(unsigned code, float scale) {
        const unsigned stored = code & 0x7F;
        unsigned bits;
        if (stored == 0x7F)
            bits = NOT_A_NUMBER;
        else if (stored < 8)
            bits = __float_as_uint(multiply(static_cast<float>(stored), 0.001953125f));
        else
            bits = (stored << 20) + (120 << 23);
        bits |= (code & 0x80) << 24;
        return __float_as_uint(multiply(__uint_as_float(bits), scale));
    }
};

template <class Format>
__device__ __forceinline__ typename Format::Four pack(uint4 codes) {
    if constexpr (Format::BYTES == 2)
        return {codes.x | codes.y << 16, codes.z | codes.w << 16};
    else
        return codes.x | codes.y << 8 | codes.z << 16 | codes.w << 24;
}

template <class Format>
__device__ __forceinline__ uint4 unpack(typename Format::Four packed) {
    if constexpr (Format::BYTES == 2)
        return {packed.x & 0xFFFF, packed.x >> 16, packed.y & 0xFFFF, packed.y >> 16};
    else
        return {packed & 0xFF, packed >> 8 & 0xFF, packed >> 16 & 0xFF, packed >> 24};
}

// --- accesses ------------------------------------------------------------------------------------

// A word of `BYTES`, the lowest byte first, at any address.
template <int BYTES>
__device__ __forceinline__ void store_bytes(i64 address, unsigned word) {
#pragma unroll
    for (int i = 0; i < BYTES; ++i)
        store(reinterpret_cast<unsigned char*>(address + i),
              static_cast<unsigned char>(word >> 8 * i));
}

template <int BYTES>
__device__ __forceinline__ unsigned load_bytes(i64 address) {
    unsigned word = 0;
#pragma unroll
    for (int i = 0; i < BYTES; ++i)
        word |= static_cast<unsigned>(load(reinterpret_cast<const unsigned char*>(address + i)))
                << 8 * i;
    return word;
}

__device__ __forceinline__ unsigned load_number(i64 running, int at) {
    return load(reinterpret_cast<const unsigned*>(running) + at);
}

// The first number of a thread's vectors in the round that begins with number `first`: a warp takes
// eight rows one after another. Vector k begins ROW numbers behind vector k - 1.
constexpr int ROW = WARP * 4;

__device__ __forceinline__ int own_number(int first) {
    return first + static_cast<int>(threadIdx.x / WARP * (HELD * ROW) + lane_id() * 4);
}

// --- heads ---------------------------------------------------------------------------------------

// The largest value of all threads of the block.
__device__ __forceinline__ unsigned largest_of_block(unsigned mine) {
    __shared__ unsigned of_warps[MAX_THREADS / WARP];
    mine = __reduce_max_sync(ALL_LANES, mine);
    if (lane_id() == 0) of_warps[threadIdx.x / WARP] = mine;
    __syncthreads();
    for (unsigned warp = 0; warp < blockDim.x / WARP; ++warp)
        mine = of_warps[warp] > mine ? of_warps[warp] : mine;
    __syncthreads();  // the next head of this block writes them
    return mine;
}

__device__ __forceinline__ unsigned larger(unsigned a, unsigned b) { return a > b ? a : b; }

__device__ __forceinline__ unsigned magnitude_of(uint4 four) {
    return larger(larger(four.x & MAGNITUDE, four.y & MAGNITUDE),
                  larger(four.z & MAGNITUDE, four.w & MAGNITUDE));
}

// The factor that brings numbers to codes, 0 where all codes are 0. Thread 0 stores the scale.
template <class Format>
__device__ __forceinline__ float take_scale(unsigned peak, i64 stored) {
    if constexpr (Format::SCALE_BYTES == 0) {
        return 1;
    } else {
        const bool is_finite = peak < INFINITE, is_kept = is_finite && peak >= SMALLEST_HEAD;
        if (threadIdx.x == 0) {
            const unsigned without = is_finite ? 0 : NOT_A_NUMBER;
            store_bytes<4>(stored, is_kept ? __float_as_uint(scale_of<Format>(peak)) : without);
        }
        return is_kept ? factor_of<Format>(peak) : 0;
    }
}

__device__ __forceinline__ void load_held(i64 running, int first, int numbers, uint4 (&held)[HELD]) {
    const int own = own_number(first);
    const auto* from = reinterpret_cast<const uint4*>(running + 4ll * own);
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
        held[k] = uint4{0, 0, 0, 0};
        if (own + k * ROW < numbers) held[k] = load(from + k * WARP);
    }
}

__device__ __forceinline__ unsigned largest_of_held(const uint4 (&held)[HELD]) {
    unsigned largest = 0;
#pragma unroll
    for (int k = 0; k < HELD; ++k) largest = larger(largest, magnitude_of(held[k]));
    return largest;
}

template <class Format>
__device__ __forceinline__ void store_held(i64 codes, int first, int numbers, float factor,
                                           const uint4 (&held)[HELD]) {
    using Four = typename Format::Four;
    const int own = own_number(first);
    auto* to = reinterpret_cast<Four*>(codes + static_cast<i64>(own) * Format::BYTES);
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
        uint4 four{0, 0, 0, 0};
        if (factor != 0)
            four = {Format::encode(held[k].x, factor), Format::encode(held[k].y, factor),
                    Format::encode(held[k].z, factor), Format::encode(held[k].w, factor)};
        if (own + k * ROW < numbers) store(to + k * WARP, pack<Format>(four));
    }
}

// A block of threads keeps a head of whole vectors, aligned on both sides. Without their signs bits
// are ordered as magnitudes are, NaN on top. What is read last is held, so that a head of up to
// `span` numbers is read once.
template <class Format>
__device__ __forceinline__ void keep_vectors(i64 running, i64 stored, int numbers) {
    const i64 codes = stored + Format::SCALE_BYTES;
    const int span = NUMBERS_A_THREAD * static_cast<int>(blockDim.x);
    const int last = (numbers - 1) / span * span;
    uint4 held[HELD];
    unsigned peak = 0;
    if constexpr (Format::SCALE_BYTES != 0)
#pragma unroll 1
        for (int first = 0; first < last; first += span) {
            load_held(running, first, numbers, held);
            peak = larger(peak, largest_of_held(held));
        }
    load_held(running, last, numbers, held);
    if constexpr (Format::SCALE_BYTES != 0)
        peak = largest_of_block(larger(peak, largest_of_held(held)));
    const float factor = take_scale<Format>(peak, stored);
    store_held<Format>(codes, last, numbers, factor, held);
#pragma unroll 1
    for (int first = 0; first < last; first += span) {
        load_held(running, first, numbers, held);
        store_held<Format>(codes, first, numbers, factor, held);
    }
}

template <class Format>
__device__ __forceinline__ void restore_vectors(i64 running, i64 stored, int numbers) {
    using Four = typename Format::Four;
    const i64 codes = stored + Format::SCALE_BYTES;
    const float scale = __uint_as_float(load_bytes<Format::SCALE_BYTES>(stored));
    const int span = NUMBERS_A_THREAD * static_cast<int>(blockDim.x);
#pragma unroll 1
    for (int first = 0; first < numbers; first += span) {
        const int own = own_number(first);
        const auto* from = reinterpret_cast<const Four*>(codes + static_cast<i64>(own) * Format::BYTES);
        auto* to = reinterpret_cast<uint4*>(running + 4ll * own);
        Four held[HELD];
#pragma unroll
        for (int k = 0; k < HELD; ++k) {
            held[k] = Four{};
            if (own + k * ROW < numbers) held[k] = load(from + k * WARP);
        }
#pragma unroll
        for (int k = 0; k < HELD; ++k) {
            const uint4 four = unpack<Format>(held[k]);
            if (own + k * ROW < numbers)
                store(to + k * WARP,
                      uint4{Format::decode(four.x, scale), Format::decode(four.y, scale),
                            Format::decode(four.z, scale), Format::decode(four.w, scale)});
        }
    }
}

// The same for any address and length, number by number.
template <class Format>
__device__ __forceinline__ void keep_numbers(i64 running, i64 stored, int numbers) {
    const i64 codes = stored + Format::SCALE_BYTES;
    const int own = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
    unsigned peak = 0;
    if constexpr (Format::SCALE_BYTES != 0) {
#pragma unroll 4
        for (int at = own; at < numbers; at += step)
            peak = larger(peak, load_number(running, at) & MAGNITUDE);
        peak = largest_of_block(peak);
    }
    const float factor = take_scale<Format>(peak, stored);
#pragma unroll 1
    for (int at = own; at < numbers; at += step) {
        const unsigned code = factor != 0 ? Format::encode(load_number(running, at), factor) : 0;
        store_bytes<Format::BYTES>(codes + static_cast<i64>(at) * Format::BYTES, code);
    }
}

template <class Format>
__device__ __forceinline__ void restore_numbers(i64 running, i64 stored, int numbers) {
    const i64 codes = stored + Format::SCALE_BYTES;
    const float scale = __uint_as_float(load_bytes<Format::SCALE_BYTES>(stored));
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < numbers; at += static_cast<int>(blockDim.x)) {
        const unsigned code = load_bytes<Format::BYTES>(codes + static_cast<i64>(at) * Format::BYTES);
        store(reinterpret_cast<unsigned*>(running) + at, Format::decode(code, scale));
    }
}

template <class Format, bool KEEPS>
__device__ __forceinline__ void convert_head(i64 running, i64 kept, int head, int numbers) {
    const i64 stored_bytes = static_cast<i64>(numbers) * Format::BYTES + Format::SCALE_BYTES;
    const i64 from = running + static_cast<i64>(head) * numbers * 4;
    const i64 stored = kept + head * stored_bytes;
    const i64 codes = stored + Format::SCALE_BYTES;
    const bool has_vectors = !((from & 15) | (codes & (4 * Format::BYTES - 1)) | (numbers & 3));
    if (KEEPS) {
        if (has_vectors)
            keep_vectors<Format>(from, stored, numbers);
        else
            keep_numbers<Format>(from, stored, numbers);
    } else {
        if (has_vectors)
            restore_vectors<Format>(from, stored, numbers);
        else
            restore_numbers<Format>(from, stored, numbers);
    }
}

// --- states --------------------------------------------------------------------------------------

// A block of threads takes a head of a layer, or a unit a warp of the bytes before the heads.
template <bool KEEPS>
__device__ __forceinline__ void convert(const Pages* pages, int num_layers, int pieces,
                                        const Pairs& pairs, int num_items, int num_running,
                                        int num_kept, i64 num_same, int heads, int numbers,
                                        int format) {
    const i64 total = static_cast<i64>(num_items) * num_layers * pieces;
#pragma unroll 1
    for (i64 work = blockIdx.x; work < total; work += gridDim.x) {
        const i64 page = work / pieces;
        const int piece = static_cast<int>(work - page * pieces);
        const int item = static_cast<int>(page / num_layers);
        const Pages layer = pages[page - static_cast<i64>(item) * num_layers];
        const int from = pairs.from(item), to = pairs.to(item);
        const int running_id = KEEPS ? from : to, kept_id = KEEPS ? to : from;
        if (!is_block(running_id, num_running) || !is_block(kept_id, num_kept)) continue;
        const i64 running = layer.running + running_id * layer.running_stride;
        const i64 kept = layer.kept + kept_id * layer.kept_stride;
        if (piece >= heads) {
            const i64 warps = blockDim.x / WARP, warp = threadIdx.x / WARP;
            const i64 first = ((piece - heads) * warps + warp) * UNIT_BYTES;
            const i64 left = num_same - first;
            if (left <= 0) continue;
            const int bytes = static_cast<int>(left < UNIT_BYTES ? left : UNIT_BYTES);
            if (KEEPS)
                move_run(running + first, kept + first, bytes);
            else
                move_run(kept + first, running + first, bytes);
            continue;
        }
        const i64 heads_running = running + num_same, heads_kept = kept + num_same;
        if (format == Bfloat16::NUMBER)
            convert_head<Bfloat16, KEEPS>(heads_running, heads_kept, piece, numbers);
        else if (format == Float8::NUMBER)
            convert_head<Float8, KEEPS>(heads_running, heads_kept, piece, numbers);
        else
            convert_head<Int8, KEEPS>(heads_running, heads_kept, piece, numbers);
    }
}

extern "C" __global__ void __launch_bounds__(512, 2)
keep_states(const Pages* pages, int num_layers, int pieces, const __grid_constant__ Pairs pairs,
            int num_items, int num_running, int num_kept, i64 num_same, int heads, int numbers,
            int format) {
    convert<true>(pages, num_layers, pieces, pairs, num_items, num_running, num_kept, num_same,
                  heads, numbers, format);
}

extern "C" __global__ void __launch_bounds__(512, 2)
restore_states(const Pages* pages, int num_layers, int pieces, const __grid_constant__ Pairs pairs,
               int num_items, int num_running, int num_kept, i64 num_same, int heads, int numbers,
               int format) {
    convert<false>(pages, num_layers, pieces, pairs, num_items, num_running, num_kept, num_same,
                   heads, numbers, format);
}
