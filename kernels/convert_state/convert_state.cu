#include "common.cuh"

// One thread block converts one head. The 8-bit formats need the head's largest magnitude before
// the first value can be written; the head waits in shared memory meanwhile, so that device
// memory is read once. A head that does not fit there is read again, from L2.

struct Layer {
    i64 heads, elements;
    i64 state, state_block, state_head;
    i64 packed, packed_block, packed_head;
    i64 scales, scales_block;
};

struct Head {
    i64 layer, index;
};

constexpr int THREADS = 256;
constexpr int BLOCKS_AN_SM = 3;  // as many heads of 64 KiB as shared memory holds
constexpr unsigned INFINITE = 0x7f800000u;
constexpr unsigned NOT_A_NUMBER = 0x7fc00000u;
constexpr float SMALLEST_HEAD = 0x1p-100f;

__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }

// Without the sign the bit pattern orders floats by magnitude, NaN above infinity.
__device__ __forceinline__ unsigned magnitude_bits(float x) { return bits_of(x) & 0x7fffffffu; }

// --- formats: encode a scaled value, decode a stored one ----------------------------------------

struct Bf16 {
    using Stored = unsigned short;
    static __device__ __forceinline__ Stored encode(float x) {
        const unsigned u = bits_of(x);
        if ((u & 0x7fffffffu) > INFINITE) return static_cast<Stored>((u >> 16) | 0x40u);
        return static_cast<Stored>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
    static __device__ __forceinline__ float decode(Stored b) {
        return __uint_as_float(static_cast<unsigned>(b) << 16);
    }
};

struct Int8 {
    using Stored = signed char;
    static constexpr float LARGEST = 127.0f;
    static __device__ __forceinline__ Stored encode(float x) {
        return static_cast<Stored>(__float2int_rn(fminf(fmaxf(x, -LARGEST), LARGEST)));
    }
    static __device__ __forceinline__ float decode(Stored b) { return static_cast<float>(b); }
};

// Integer arithmetic, because sm_80 has no conversion to e4m3.
struct E4m3 {
    using Stored = unsigned char;
    static constexpr float LARGEST = 448.0f;
    static __device__ __forceinline__ Stored encode(float x) {
        const unsigned sign = (bits_of(x) >> 24) & 0x80u;
        const float magnitude = fminf(fabsf(x), LARGEST);
        const unsigned u = bits_of(magnitude);
        // Below 2^-6 the spacing is 2^-9: adding 2^14 rounds to it, half to even.
        const unsigned tiny = bits_of(magnitude + 0x1p14f) - bits_of(0x1p14f);
        const unsigned normal = ((u + 0x7ffffu + ((u >> 20) & 1u)) >> 20) - (120u << 3);
        return static_cast<Stored>(sign | (magnitude < 0x1p-6f ? tiny : normal));
    }
    static __device__ __forceinline__ float decode(Stored b) {
        const unsigned magnitude = b & 0x7fu;
        const float normal = __uint_as_float((magnitude << 20) + (120u << 23));
        const float tiny = static_cast<float>(magnitude) * 0x1p-9f;
        float x = magnitude < 8u ? tiny : normal;
        if (magnitude == 0x7fu) x = __uint_as_float(NOT_A_NUMBER);
        return b & 0x80u ? -x : x;
    }
};

template <class T>
struct alignas(4 * sizeof(T)) Four {
    T v[4];
};

// --- reading a head ------------------------------------------------------------------------------

__device__ __forceinline__ void fetch16(float* shared, const float* global) {
#ifdef __CUDA_ARCH__
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
#else
    for (int i = 0; i < 4; ++i) shared[i] = global[i];
#endif
}

__device__ __forceinline__ void fetch_wait() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    __syncthreads();
}

__device__ __forceinline__ unsigned largest_in_block(unsigned mine) {
    __shared__ unsigned of_warp[THREADS / WARP];
    mine = __reduce_max_sync(0xffffffffu, mine);
    if (lane_id() == 0) of_warp[threadIdx.x / WARP] = mine;
    __syncthreads();
    unsigned all = 0;
    for (int i = 0; i < THREADS / WARP; ++i) all = max(all, of_warp[i]);
    return all;
}

// Converts groups of four values; each thread loads a round of four before it stores the first.
template <class In, class Out, class Convert>
__device__ __forceinline__ void stream(const In* from, Out* to, int count, Convert convert) {
    constexpr int ROUND = 4;
    int i = threadIdx.x;
#pragma unroll 1
    for (; i + (ROUND - 1) * THREADS < count; i += ROUND * THREADS) {
        In held[ROUND];
#pragma unroll
        for (int k = 0; k < ROUND; ++k) held[k] = from[i + k * THREADS];
#pragma unroll
        for (int k = 0; k < ROUND; ++k) to[i + k * THREADS] = convert(held[k]);
    }
#pragma unroll 1
    for (; i < count; i += THREADS) to[i] = convert(from[i]);
}

template <class Format>
__device__ __forceinline__ Four<typename Format::Stored> encode_four(float4 x, float factor) {
    return {{Format::encode(x.x * factor), Format::encode(x.y * factor),
             Format::encode(x.z * factor), Format::encode(x.w * factor)}};
}

template <class Format>
__device__ __forceinline__ float4 decode_four(Four<typename Format::Stored> x, float factor) {
    return {Format::decode(x.v[0]) * factor, Format::decode(x.v[1]) * factor,
            Format::decode(x.v[2]) * factor, Format::decode(x.v[3]) * factor};
}

struct Place {
    const Layer* layer;
    i64 state, packed, scale;
    bool valid;
};

__device__ __forceinline__ Place locate(const Layer* layers, const Head* heads, int num_heads,
                                        const int* slots, const int* blocks, int num_slots,
                                        int num_blocks) {
    const int item = blockIdx.x / num_heads;
    const Head head = heads[blockIdx.x - item * num_heads];
    const Layer* layer = layers + head.layer;
    const i64 slot = slots[item];
    const i64 block = blocks[item];
    return {layer, layer->state + slot * layer->state_block + head.index * layer->state_head,
            layer->packed + block * layer->packed_block + head.index * layer->packed_head,
            layer->scales + block * layer->scales_block + head.index * 4,
            slot >= 0 && slot < num_slots && block >= 0 && block < num_blocks};
}

template <class Format, bool STASHED>
__device__ __forceinline__ void encode_scaled(const Place& at, bool vectorised) {
    using Stored = typename Format::Stored;
    DYNAMIC_SHARED(float, stash);
    const float* global = reinterpret_cast<const float*>(at.state);
    const float* values = STASHED ? stash : global;
    Stored* out = reinterpret_cast<Stored*>(at.packed);
    const int count = static_cast<int>(at.layer->elements);
    if (STASHED) {
        if (vectorised) {
            for (int i = 4 * threadIdx.x; i < count; i += 4 * THREADS)
                fetch16(stash + i, global + i);
        } else {
            for (int i = threadIdx.x; i < count; i += THREADS) stash[i] = global[i];
        }
        fetch_wait();
    }
    unsigned peak_bits = 0;
    if (vectorised) {
        for (int i = 4 * threadIdx.x; i < count; i += 4 * THREADS) {
            const float4 x = *reinterpret_cast<const float4*>(values + i);
            peak_bits = max(peak_bits, max(max(magnitude_bits(x.x), magnitude_bits(x.y)),
                                           max(magnitude_bits(x.z), magnitude_bits(x.w))));
        }
    } else {
        for (int i = threadIdx.x; i < count; i += THREADS)
            peak_bits = max(peak_bits, magnitude_bits(values[i]));
    }
    peak_bits = largest_in_block(peak_bits);
    const float peak = __uint_as_float(peak_bits);
    const bool finite = peak_bits < INFINITE;
    const bool usable = finite && peak >= SMALLEST_HEAD;
    const float inverse = usable ? __fdiv_rn(Format::LARGEST, peak) : 0.0f;
    if (threadIdx.x == 0) {
        const float empty = finite ? 0.0f : __uint_as_float(NOT_A_NUMBER);
        *reinterpret_cast<float*>(at.scale) = usable ? __fdiv_rn(peak, Format::LARGEST) : empty;
    }
    const auto convert = [=](float4 x) {
        return usable ? encode_four<Format>(x, inverse) : Four<Stored>{};
    };
    if (vectorised)
        stream(reinterpret_cast<const float4*>(values), reinterpret_cast<Four<Stored>*>(out),
               count / 4, convert);
    else
        stream(values, out, count,
               [=](float x) { return usable ? Format::encode(x * inverse) : Stored{}; });
}

// --- kernels -------------------------------------------------------------------------------------

// slots[i] is a block of the float32 side, blocks[i] the one of the packed side it pairs with.
#define HEAD_ARGUMENTS                                                                           \
    const Layer *layers, const Head *heads, int num_heads, const int *slots, const int *blocks,  \
        int num_slots, int num_blocks, int vectorised

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AN_SM)
encode_int8(HEAD_ARGUMENTS, int stashed) {
    const Place at = locate(layers, heads, num_heads, slots, blocks, num_slots, num_blocks);
    if (!at.valid) return;
    if (stashed)
        encode_scaled<Int8, true>(at, vectorised);
    else
        encode_scaled<Int8, false>(at, vectorised);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AN_SM)
encode_float8_e4m3fn(HEAD_ARGUMENTS, int stashed) {
    const Place at = locate(layers, heads, num_heads, slots, blocks, num_slots, num_blocks);
    if (!at.valid) return;
    if (stashed)
        encode_scaled<E4m3, true>(at, vectorised);
    else
        encode_scaled<E4m3, false>(at, vectorised);
}

extern "C" __global__ void __launch_bounds__(THREADS)
encode_bfloat16(HEAD_ARGUMENTS, int) {
    const Place at = locate(layers, heads, num_heads, slots, blocks, num_slots, num_blocks);
    if (!at.valid) return;
    const float* values = reinterpret_cast<const float*>(at.state);
    Bf16::Stored* out = reinterpret_cast<Bf16::Stored*>(at.packed);
    const int count = static_cast<int>(at.layer->elements);
    if (vectorised)
        stream(reinterpret_cast<const float4*>(values),
               reinterpret_cast<Four<Bf16::Stored>*>(out), count / 4,
               [](float4 x) { return encode_four<Bf16>(x, 1.0f); });
    else
        stream(values, out, count, [](float x) { return Bf16::encode(x); });
}

template <class Format>
__device__ __forceinline__ void decode_head(const Place& at, float scale, bool vectorised) {
    using Stored = typename Format::Stored;
    const Stored* values = reinterpret_cast<const Stored*>(at.packed);
    float* out = reinterpret_cast<float*>(at.state);
    const int count = static_cast<int>(at.layer->elements);
    if (vectorised)
        stream(reinterpret_cast<const Four<Stored>*>(values), reinterpret_cast<float4*>(out),
               count / 4, [=](Four<Stored> x) { return decode_four<Format>(x, scale); });
    else
        stream(values, out, count, [=](Stored x) { return Format::decode(x) * scale; });
}

extern "C" __global__ void __launch_bounds__(THREADS)
decode_int8(HEAD_ARGUMENTS, int) {
    const Place at = locate(layers, heads, num_heads, slots, blocks, num_slots, num_blocks);
    if (at.valid) decode_head<Int8>(at, *reinterpret_cast<const float*>(at.scale), vectorised);
}

extern "C" __global__ void __launch_bounds__(THREADS)
decode_float8_e4m3fn(HEAD_ARGUMENTS, int) {
    const Place at = locate(layers, heads, num_heads, slots, blocks, num_slots, num_blocks);
    if (at.valid) decode_head<E4m3>(at, *reinterpret_cast<const float*>(at.scale), vectorised);
}

extern "C" __global__ void __launch_bounds__(THREADS)
decode_bfloat16(HEAD_ARGUMENTS, int) {
    const Place at = locate(layers, heads, num_heads, slots, blocks, num_slots, num_blocks);
    if (at.valid) decode_head<Bf16>(at, 1.0f, vectorised);
}
