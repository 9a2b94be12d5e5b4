// What the block kernels share: the tables of a group, and runs of bytes moved by one warp.
#pragma once

using i64 = long long;

struct alignas(16) Segment {
    i64 base;           // address of the run in block 0
    i64 stride;         // bytes from one block to the next
    i64 bytes;          // length of the run
    i64 record_offset;  // where the run lies in a staging record
};

struct alignas(8) Unit {
    int segment;
    int index;  // which piece of UNIT_BYTES in the segment
};

// Pairs in a kernel's parameters, or where `src` and `dst` point: a short list needs no transfer.
constexpr int INLINE_PAIRS = 256;

struct Pairs {
    const int *src, *dst;
    int inlined[2 * INLINE_PAIRS];
    __device__ int from(int i) const { return src ? src[i] : inlined[i]; }
    __device__ int to(int i) const { return src ? dst[i] : inlined[INLINE_PAIRS + i]; }
};

constexpr int WARP = 32;
constexpr int UNROLL = 8;  // vectors in flight a lane
[[maybe_unused]] constexpr int UNIT_BYTES = WARP * UNROLL * 16;

// Where __CUDA_ARCH__ is missing, the sources are built for the host: the tests run them there.

__device__ __forceinline__ unsigned lane_id() { return threadIdx.x % WARP; }

// --- accesses ------------------------------------------------------------------------------------
//
// Named in PTX as accesses to device memory: where an address was an integer, the compiler does not
// know that. 16, 8, 4, 2 or 1 bytes: uint4, uint2, unsigned, unsigned short, unsigned char. Hints
// that keep a block out of L1 (L1::no_allocate) cost 2 to 3 % of an H100's rate.

template <class V>
__device__ __forceinline__ V load(const V* p) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(V) == 16) {
        V v;
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(p)
                     : "memory");
        return v;
    } else if constexpr (sizeof(V) == 8) {
        V v;
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
        return v;
    } else {
        unsigned v;
        if constexpr (sizeof(V) == 4)
            asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
        else if constexpr (sizeof(V) == 2)
            asm volatile("ld.global.u16 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
        else
            asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
        return static_cast<V>(v);
    }
#else
    return *p;
#endif
}

template <class V>
__device__ __forceinline__ void store(V* p, V v) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(V) == 16)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
                     "r"(v.z), "r"(v.w)
                     : "memory");
    else if constexpr (sizeof(V) == 8)
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
    else if constexpr (sizeof(V) == 4)
        asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
    else if constexpr (sizeof(V) == 2)
        asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "r"(static_cast<unsigned>(v)) : "memory");
    else
        asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(static_cast<unsigned>(v)) : "memory");
#else
    *p = v;
#endif
}

// --- runs of bytes -------------------------------------------------------------------------------

// One round: every lane loads N vectors before it stores the first.
template <int N, class V>
__device__ __forceinline__ void move_round(const V* from, V* to) {
    V held[N];
#pragma unroll
    for (int k = 0; k < N; ++k) held[k] = load(from + k * WARP);
#pragma unroll
    for (int k = 0; k < N; ++k) store(to + k * WARP, held[k]);
}

template <class V>
__device__ __forceinline__ void move_vectors(i64 source, i64 target, int bytes) {
    const V* from = reinterpret_cast<const V*>(source) + lane_id();
    V* to = reinterpret_cast<V*>(target) + lane_id();
    int left = bytes / static_cast<int>(sizeof(V)) - static_cast<int>(lane_id());
#pragma unroll 1
    for (; left > WARP * (UNROLL - 1); left -= WARP * UNROLL) {
        move_round<UNROLL>(from, to);
        from += WARP * UNROLL;
        to += WARP * UNROLL;
    }
    if (left > WARP * (UNROLL / 2 - 1)) {
        move_round<UNROLL / 2>(from, to);
        from += WARP * UNROLL / 2;
        to += WARP * UNROLL / 2;
        left -= WARP * UNROLL / 2;
    }
#pragma unroll 1
    for (; left > 0; left -= WARP) {
        move_round<1>(from, to);
        from += WARP;
        to += WARP;
    }
}

// The widest vector that divides every given address.
__device__ __forceinline__ int vector_bytes(i64 addresses) {
    const int low = static_cast<int>(addresses & 15) | 16;
    return low & -low;
}

// One warp moves `bytes` (at most UNIT_BYTES) between runs that do not overlap.
__device__ __forceinline__ void move_run(i64 source, i64 target, int bytes) {
    const int width = vector_bytes(source | target);
    switch (width) {
        case 16: move_vectors<uint4>(source, target, bytes); break;
        case 8: move_vectors<uint2>(source, target, bytes); break;
        case 4: move_vectors<unsigned>(source, target, bytes); break;
        case 2: move_vectors<unsigned short>(source, target, bytes); break;
        default: move_vectors<unsigned char>(source, target, bytes); break;
    }
    const int done = bytes / width * width;
    const int at = done + static_cast<int>(lane_id());
    if (at < bytes)
        store(reinterpret_cast<unsigned char*>(target + at),
              load(reinterpret_cast<const unsigned char*>(source + at)));
}

__device__ __forceinline__ bool is_block(int id, int num_blocks) {
    return static_cast<unsigned>(id) < static_cast<unsigned>(num_blocks);
}

// The benchmark compiles with this to prove on how many SMs a launch with max_sms ran.
#ifdef RECORD_SMS
extern "C" __device__ unsigned sms_used[32] = {};
__device__ __forceinline__ void record_sm() {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (threadIdx.x == 0) atomicOr(sms_used + sm / 32, 1u << sm % 32);
}
#else
__device__ __forceinline__ void record_sm() {}
#endif

// Calls visit(index) for every index below total, one warp each; the warps of the grid stride over
// them, so that any grid, a few SMs or all, does the whole work.
template <class Visit>
__device__ __forceinline__ void for_each_index(i64 total, Visit visit) {
    record_sm();
    const int warps_a_block = blockDim.x / WARP;
    const i64 step = static_cast<i64>(gridDim.x) * warps_a_block;
    i64 index = static_cast<i64>(blockIdx.x) * warps_a_block + threadIdx.x / WARP;
    for (; index < total; index += step) visit(index);
}

// Calls visit(item, segment, first byte, bytes) for every unit of every listed block.
template <class Visit>
__device__ __forceinline__ void for_each_unit(const Segment* segments, const Unit* units,
                                              int num_units, int num_items, Visit visit) {
    for_each_index(static_cast<i64>(num_units) * num_items, [=](i64 work) {
        const int item = static_cast<int>(work / num_units);
        const Unit unit = units[work - static_cast<i64>(item) * num_units];
        const Segment segment = segments[unit.segment];
        const i64 first = static_cast<i64>(unit.index) * UNIT_BYTES;
        const i64 left = segment.bytes - first;
        visit(item, segment, first, static_cast<int>(left < UNIT_BYTES ? left : UNIT_BYTES));
    });
}
