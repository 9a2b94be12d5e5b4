#include "common.cuh"
#include "convert_state/formats.cuh"

// A thread block converts one head after another. The 8-bit formats need a head's largest
// magnitude before its first value can be written: the heads wait in shared memory meanwhile, so
// that device memory is read once, and the next ones are on their way while one is encoded.

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

// --- a head waits in shared memory ---------------------------------------------------------------
//
// Every thread fetches, measures and encodes the same values, so a stage needs no barrier of its
// own; the threads meet once a head, for its largest magnitude.

__device__ __forceinline__ void fetch16(float4* shared, const float4* global) {
#ifdef __CUDA_ARCH__
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
#else
    *shared = *global;
#endif
}

__device__ __forceinline__ void fetch_commit() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `pending` of this thread's latest groups are still on their way.
__device__ __forceinline__ void fetch_wait(int pending) {
#ifdef __CUDA_ARCH__
    switch (pending) {
        case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
        case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
        default: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    }
#endif
}

__device__ __forceinline__ void fetch_head(const Place& at, float* stage, bool vectorised) {
    const int count = static_cast<int>(at.layer->elements);
    if (vectorised) {
        const float4* from = reinterpret_cast<const float4*>(at.state);
        float4* to = reinterpret_cast<float4*>(stage);
        for (int i = threadIdx.x; i < count / 4; i += blockDim.x) fetch16(to + i, from + i);
    } else {
        const float* from = reinterpret_cast<const float*>(at.state);
        for (int i = threadIdx.x; i < count; i += blockDim.x) stage[i] = load_value(from + i);
    }
}

// Reads a head where it lies: in shared memory, or in device memory.
template <bool STASHED>
struct Reader {
    template <class T>
    __device__ __forceinline__ T operator()(const T* p) const {
        if constexpr (STASHED) return *p;
        return load_value(p);
    }
};

// Calls use(i, from[i]) for the values of this thread; each round reads four before it uses one.
template <class In, class Read, class Use>
__device__ __forceinline__ void in_rounds(const In* from, int count, Read read, Use use) {
    constexpr int ROUND = 4;
    const int threads = blockDim.x;
    int i = threadIdx.x;
#pragma unroll 1
    for (; i + (ROUND - 1) * threads < count; i += ROUND * threads) {
        In held[ROUND];
#pragma unroll
        for (int k = 0; k < ROUND; ++k) held[k] = read(from + i + k * threads);
#pragma unroll
        for (int k = 0; k < ROUND; ++k) use(i + k * threads, held[k]);
    }
#pragma unroll 1
    for (; i < count; i += threads) use(i, read(from + i));
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

template <bool STASHED>
__device__ __forceinline__ float peak_of(const float* values, int count, bool vectorised) {
    const Reader<STASHED> read;
    float peak = 0.0f;
    if (vectorised)
        in_rounds(reinterpret_cast<const float4*>(values), count / 4, read, [&](int, float4 x) {
            peak = larger(larger(larger(larger(peak, x.x), x.y), x.z), x.w);
        });
    else
        in_rounds(values, count, read, [&](int, float x) { peak = larger(peak, x); });
    return peak;
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

template <class Format, bool STASHED>
__device__ __forceinline__ void encode_head(const Place& at, const float* values, bool vectorised,
                                            int parity) {
    using Stored = typename Format::Stored;
    const Reader<STASHED> read;
    const int count = static_cast<int>(at.layer->elements);
    const unsigned peak_bits = largest_in_block(peak_of<STASHED>(values, count, vectorised), parity);
    const float peak = __uint_as_float(peak_bits);
    const bool finite = peak_bits < INFINITE;
    const bool usable = finite && peak >= SMALLEST_HEAD;
    if (threadIdx.x == 0) {
        const float empty = finite ? 0.0f : __uint_as_float(NOT_A_NUMBER);
        store_value(reinterpret_cast<float*>(at.scale),
                    usable ? __fdiv_rn(peak, Format::LARGEST) : empty);
    }
    const float factor = usable ? __fdiv_rn(Format::LARGEST, peak) : 0.0f;
    if (vectorised) {
        const float4* fours = reinterpret_cast<const float4*>(values);
        Four<Stored>* to = reinterpret_cast<Four<Stored>*>(at.packed);
        if (usable)
            in_rounds(fours, count / 4, read, [=](int i, float4 x) {
                store_value(to + i, Format::encode_four(x, factor));
            });
        else
            for (int i = threadIdx.x; i < count / 4; i += blockDim.x)
                store_value(to + i, Four<Stored>{});
    } else {
        Stored* to = reinterpret_cast<Stored*>(at.packed);
        in_rounds(values, count, read, [=](int i, float x) {
            store_value(to + i, usable ? Format::encode(__fmul_rn(x, factor)) : Stored{});
        });
    }
}

// `stages` heads of at most `stage_bytes` are in shared memory or on their way there; with none,
// for heads that do not fit, they are read from memory and a second time from L2.
template <class Format>
__device__ __forceinline__ void encode_heads(const Work& work, bool vectorised, int stages,
                                             int stage_bytes) {
    DYNAMIC_SHARED(float, stash);
    const i64 total = work.total();
    int parity = 0;
    if (stages == 0) {
        for (i64 at = blockIdx.x; at < total; at += gridDim.x) {
            const Place place = work[at];
            if (!place.valid) continue;
            encode_head<Format, false>(place, reinterpret_cast<const float*>(place.state),
                                vectorised, parity);
            parity ^= 1;
        }
        return;
    }
    const auto fetch = [&](i64 at, int stage) {
        if (at < total) {
            const Place place = work[at];
            if (place.valid)
                fetch_head(place, stash + static_cast<i64>(stage) * (stage_bytes / 4), vectorised);
        }
        fetch_commit();  // also without a head: the count of groups is what is waited for
    };
    i64 next = blockIdx.x;
    for (int stage = 0; stage < stages; ++stage, next += gridDim.x) fetch(next, stage);
    int stage = 0;
    for (i64 at = blockIdx.x; at < total; at += gridDim.x, next += gridDim.x) {
        fetch_wait(stages - 1);
        const Place place = work[at];
        if (place.valid) {
            encode_head<Format, true>(place, stash + static_cast<i64>(stage) * (stage_bytes / 4),
                                vectorised, parity);
            parity ^= 1;
        }
        fetch(next, stage);
        stage = stage + 1 == stages ? 0 : stage + 1;
    }
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
encode_int8(HEAD_ARGUMENTS, int stages, int stage_bytes) {
    encode_heads<Int8>(WORK, vectorised, stages, stage_bytes);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
encode_float8_e4m3fn(HEAD_ARGUMENTS, int stages, int stage_bytes) {
    encode_heads<E4m3>(WORK, vectorised, stages, stage_bytes);
}

// --- no scale has to be found: values stream through registers -----------------------------------

template <class In, class Out, class Convert>
__device__ __forceinline__ void stream(const In* from, Out* to, int count, Convert convert) {
    in_rounds(from, count, Reader<false>(), [=](int i, In x) { store_value(to + i, convert(x)); });
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
