#include "common.cuh"
#include "convert_state/formats.cuh"

// A thread block converts one head after another. The 8-bit formats need a head's largest
// magnitude before its first value can be written: the head waits in registers meanwhile, so that
// device memory is read once.

struct Layer {
    i64 heads, elements;
    i64 state, state_block, state_head;
    i64 packed, packed_block, packed_head;
    i64 scales, scales_block;
};

struct Head {
    i64 layer, index;
};

constexpr int MAX_THREADS = 1024;
constexpr float SMALLEST_HEAD = 0x1p-100f;

// pairs.from(i) is a block of the float32 side, pairs.to(i) the one of the packed side.
#define HEAD_ARGUMENTS                                                                             \
    const Layer *layers, const Head *heads, int num_heads, const __grid_constant__ Pairs pairs,    \
        int num_items, int num_slots, int num_blocks, int vectorised

struct Place {
    const Layer* layer;
    i64 state, packed, scale;
    bool valid;
};

struct Work {
    const Layer* layers;
    const Head* heads;
    const Pairs& pairs;
    int num_heads, num_items, num_slots, num_blocks;

    __device__ __forceinline__ i64 total() const { return static_cast<i64>(num_heads) * num_items; }
    __device__ __forceinline__ Place operator[](i64 work) const {
        const int item = static_cast<int>(work / num_heads);
        const Head head = heads[work - static_cast<i64>(item) * num_heads];
        const Layer* layer = layers + head.layer;
        const int slot = pairs.from(item), block = pairs.to(item);
        return {layer, layer->state + slot * layer->state_block + head.index * layer->state_head,
                layer->packed + block * layer->packed_block + head.index * layer->packed_head,
                layer->scales + block * layer->scales_block + head.index * 4,
                is_block(slot, num_slots) && is_block(block, num_blocks)};
    }
};

#define WORK Work{layers, heads, pairs, num_heads, num_items, num_slots, num_blocks}

// --- a head waits in registers -------------------------------------------------------------------

// Calls use(i, from[i]) for the values of this thread; each round reads four before it uses one.
template <class In, class Use>
__device__ __forceinline__ void in_rounds(const In* from, int count, Use use) {
    constexpr int ROUND = 4;
    const int threads = blockDim.x;
    int i = threadIdx.x;
#pragma unroll 1
    for (; i + (ROUND - 1) * threads < count; i += ROUND * threads) {
        In held[ROUND];
#pragma unroll
        for (int k = 0; k < ROUND; ++k) held[k] = load_value(from + i + k * threads);
#pragma unroll
        for (int k = 0; k < ROUND; ++k) use(i + k * threads, held[k]);
    }
#pragma unroll 1
    for (; i < count; i += threads) use(i, load_value(from + i));
}

// The larger magnitude; NaN where either is.
__device__ __forceinline__ float larger(float peak, float x) {
#ifdef __CUDA_ARCH__
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(peak), "f"(fabsf(x)));
    return result;
#else
    const unsigned a = bits_of(peak), b = bits_of(x) & 0x7fffffffu;
    return __uint_as_float(a > b ? a : b);
#endif
}

__device__ __forceinline__ float larger(float peak, float4 x) {
    return larger(larger(larger(larger(peak, x.x), x.y), x.z), x.w);
}

// Without a sign the bit pattern orders floats by magnitude, NaN above infinity. `parity` keeps the
// warps of one head from the entries that slower warps still read of the head before.
__device__ __forceinline__ unsigned largest_in_block(float mine, int parity) {
    __shared__ unsigned of_warp[2][MAX_THREADS / WARP];
    const unsigned warp = __reduce_max_sync(0xffffffffu, bits_of(mine));
    if (lane_id() == 0) of_warp[parity][threadIdx.x / WARP] = warp;
    __syncthreads();
    const bool used = lane_id() < blockDim.x / WARP;
    return __reduce_max_sync(0xffffffffu, used ? of_warp[parity][lane_id()] : 0u);
}

// Writes the scale of a head by its largest magnitude; returns the factor of its values, 0 if they
// are stored as zeros.
template <class Format>
__device__ __forceinline__ float scale_head(const Place& at, unsigned peak_bits) {
    const float peak = __uint_as_float(peak_bits);
    const bool finite = peak_bits < INFINITE;
    const bool usable = finite && peak >= SMALLEST_HEAD;
    if (threadIdx.x == 0) {
        const float empty = finite ? 0.0f : __uint_as_float(NOT_A_NUMBER);
        store_value(reinterpret_cast<float*>(at.scale),
                    usable ? __fdiv_rn(peak, Format::LARGEST) : empty);
    }
    return usable ? __fdiv_rn(Format::LARGEST, peak) : 0.0f;
}

constexpr int HELD = 8;  // vectors of four values that a thread holds of a head

template <class Format>
__device__ __forceinline__ void encode_held(const Place& at, int parity) {
    using Stored = typename Format::Stored;
    const int count = static_cast<int>(at.layer->elements) / 4;
    const float4* from = reinterpret_cast<const float4*>(at.state) + threadIdx.x;
    Four<Stored>* to = reinterpret_cast<Four<Stored>*>(at.packed) + threadIdx.x;
    const int threads = blockDim.x;
    const int mine = count - static_cast<int>(threadIdx.x);
    float4 held[HELD];
#pragma unroll
    for (int k = 0; k < HELD; ++k)
        held[k] = k * threads < mine ? load_value(from + k * threads) : float4{};
    float peak = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; ++k) peak = larger(peak, held[k]);
    const float factor = scale_head<Format>(at, largest_in_block(peak, parity));
#pragma unroll
    for (int k = 0; k < HELD; ++k)
        if (k * threads < mine)
            store_value(to + k * threads,
                        factor > 0.0f ? Format::encode_four(held[k], factor) : Four<Stored>{});
}

// A head that registers do not hold, or whose addresses are odd, is read a second time, from L2.
template <class Format>
__device__ __forceinline__ void encode_twice_read(const Place& at, int parity) {
    using Stored = typename Format::Stored;
    const int count = static_cast<int>(at.layer->elements);
    const float* from = reinterpret_cast<const float*>(at.state);
    Stored* to = reinterpret_cast<Stored*>(at.packed);
    float peak = 0.0f;
    in_rounds(from, count, [&](int, float x) { peak = larger(peak, x); });
    const float factor = scale_head<Format>(at, largest_in_block(peak, parity));
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        store_value(to + i, factor > 0.0f ? Format::encode(__fmul_rn(load_value(from + i), factor))
                                          : Stored{});
}

template <class Format>
__device__ __forceinline__ void encode_heads(const Work& work, bool vectorised) {
    const int most = HELD * 4 * static_cast<int>(blockDim.x);
    int parity = 0;
    for (i64 at = blockIdx.x; at < work.total(); at += gridDim.x) {
        const Place place = work[at];
        if (!place.valid) continue;
        if (vectorised && place.layer->elements <= most)
            encode_held<Format>(place, parity);
        else
            encode_twice_read<Format>(place, parity);
        parity ^= 1;
    }
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
encode_int8(HEAD_ARGUMENTS) { encode_heads<Int8>(WORK, vectorised); }

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
encode_float8_e4m3fn(HEAD_ARGUMENTS) { encode_heads<E4m3>(WORK, vectorised); }

// --- no scale has to be found: values stream through registers -----------------------------------

template <class In, class Out, class Convert>
__device__ __forceinline__ void stream(const In* from, Out* to, int count, Convert convert) {
    in_rounds(from, count, [=](int i, In x) { store_value(to + i, convert(x)); });
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
encode_bfloat16(HEAD_ARGUMENTS) {
    const Work work = WORK;
    for (i64 at = blockIdx.x; at < work.total(); at += gridDim.x) {
        const Place place = work[at];
        if (!place.valid) continue;
        const float* values = reinterpret_cast<const float*>(place.state);
        Bf16::Stored* out = reinterpret_cast<Bf16::Stored*>(place.packed);
        const int count = static_cast<int>(place.layer->elements);
        if (vectorised)
            stream(reinterpret_cast<const float4*>(values),
                   reinterpret_cast<Four<Bf16::Stored>*>(out), count / 4,
                   [](float4 x) { return Bf16::encode_four(x, 1.0f); });
        else
            stream(values, out, count, [](float x) { return Bf16::encode(x); });
    }
}

template <class Format, bool SCALED>
__device__ __forceinline__ void decode_heads(const Work& work, bool vectorised) {
    using Stored = typename Format::Stored;
    for (i64 at = blockIdx.x; at < work.total(); at += gridDim.x) {
        const Place place = work[at];
        if (!place.valid) continue;
        const Stored* values = reinterpret_cast<const Stored*>(place.packed);
        float* out = reinterpret_cast<float*>(place.state);
        const int count = static_cast<int>(place.layer->elements);
        const float scale = SCALED ? load_value(reinterpret_cast<const float*>(place.scale)) : 1.0f;
        const auto decode = [=](Stored x) {
            return SCALED ? __fmul_rn(Format::decode(x), scale) : Format::decode(x);
        };
        if (vectorised)
            stream(reinterpret_cast<const Four<Stored>*>(values), reinterpret_cast<float4*>(out),
                   count / 4, [=](Four<Stored> x) {
                       return float4{decode(x.v[0]), decode(x.v[1]), decode(x.v[2]),
                                     decode(x.v[3])};
                   });
        else
            stream(values, out, count, decode);
    }
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
decode_int8(HEAD_ARGUMENTS) { decode_heads<Int8, true>(WORK, vectorised); }

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
decode_float8_e4m3fn(HEAD_ARGUMENTS) { decode_heads<E4m3, true>(WORK, vectorised); }

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
decode_bfloat16(HEAD_ARGUMENTS) { decode_heads<Bf16, false>(WORK, vectorised); }
