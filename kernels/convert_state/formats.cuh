// The packed formats: encode scaled float32 values, decode stored ones.
#pragma once

constexpr unsigned INFINITE = 0x7f800000u;
constexpr unsigned NOT_A_NUMBER = 0x7fc00000u;

__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }

template <class T>
struct alignas(4 * sizeof(T)) Four {
    T v[4];
};

struct Bf16 {
    using Stored = unsigned short;
    static __device__ __forceinline__ Stored encode_by_integers(float x) {
        const unsigned u = bits_of(x);
        if ((u & 0x7fffffffu) > INFINITE) return static_cast<Stored>((u >> 16) | 0x40u);
        return static_cast<Stored>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
    static __device__ __forceinline__ Stored encode(float x) {
#ifdef __CUDA_ARCH__
        Stored b;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(x));
        return b;
#else
        return encode_by_integers(x);
#endif
    }
    static __device__ __forceinline__ Four<Stored> encode_four(float4 x, float) {
#ifdef __CUDA_ARCH__
        unsigned low, high;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(x.y), "f"(x.x));
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(x.w), "f"(x.z));
        return {{static_cast<Stored>(low), static_cast<Stored>(low >> 16),
                 static_cast<Stored>(high), static_cast<Stored>(high >> 16)}};
#else
        return {{encode(x.x), encode(x.y), encode(x.z), encode(x.w)}};
#endif
    }
    static __device__ __forceinline__ float decode(Stored b) {
        return __uint_as_float(static_cast<unsigned>(b) << 16);
    }
};

// Four bytes, the lowest of each word.
__device__ __forceinline__ Four<unsigned char> low_bytes(unsigned a, unsigned b, unsigned c,
                                                         unsigned d) {
    union {
        unsigned word;
        Four<unsigned char> bytes;
    } joined;
    joined.word = __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
    return joined.bytes;
}

struct Int8 {
    using Stored = unsigned char;  // two's complement
    static constexpr float LARGEST = 127.0f;
    // Adding 1.5 * 2^23 leaves the nearest integer, half to even, in the low byte. A scaled value
    // exceeds 127 by rounding only, so nothing is clamped.
    static __device__ __forceinline__ unsigned rounded(float x) {
        return bits_of(__fadd_rn(x, 12582912.0f));
    }
    static __device__ __forceinline__ Stored encode(float x) {
        return static_cast<Stored>(rounded(x));
    }
    static __device__ __forceinline__ Four<Stored> encode_four(float4 x, float factor) {
        return low_bytes(rounded(__fmul_rn(x.x, factor)), rounded(__fmul_rn(x.y, factor)),
                         rounded(__fmul_rn(x.z, factor)), rounded(__fmul_rn(x.w, factor)));
    }
    static __device__ __forceinline__ float decode(Stored b) {
        return static_cast<float>(static_cast<signed char>(b));
    }
};

struct E4m3 {
    using Stored = unsigned char;
    static constexpr float LARGEST = 448.0f;

    // Integer arithmetic, because sm_80 has no conversion to e4m3.
    static __device__ __forceinline__ unsigned encode_by_integers(float x) {
        const unsigned sign = (bits_of(x) >> 24) & 0x80u;
        const float magnitude = fminf(fabsf(x), LARGEST);
        const unsigned u = bits_of(magnitude);
        // Below 2^-6 the spacing is 2^-9: adding 2^14 rounds to it, half to even.
        const unsigned tiny = bits_of(__fadd_rn(magnitude, 0x1p14f)) - bits_of(0x1p14f);
        const unsigned normal = ((u + 0x7ffffu + ((u >> 20) & 1u)) >> 20) - (120u << 3);
        return sign | (magnitude < 0x1p-6f ? tiny : normal);
    }
    // From sm_89 on one instruction converts two values.
    static __device__ __forceinline__ unsigned encode_word(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
        unsigned word;
        asm("{ .reg .b16 low, high;\n"
            "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
            "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
            "mov.b32 %0, {low, high}; }"
            : "=r"(word)
            : "f"(a), "f"(b), "f"(c), "f"(d));
        return word;
#else
        return __byte_perm(encode_by_integers(a) | encode_by_integers(b) << 8,
                           encode_by_integers(c) | encode_by_integers(d) << 8, 0x5410);
#endif
    }
    static __device__ __forceinline__ Stored encode(float x) {
        return static_cast<Stored>(encode_word(x, 0.0f, 0.0f, 0.0f));
    }
    static __device__ __forceinline__ Four<Stored> encode_four(float4 x, float factor) {
        union {
            unsigned word;
            Four<Stored> bytes;
        } joined;
        joined.word = encode_word(__fmul_rn(x.x, factor), __fmul_rn(x.y, factor),
                                  __fmul_rn(x.z, factor), __fmul_rn(x.w, factor));
        return joined.bytes;
    }
    static __device__ __forceinline__ float decode_by_integers(Stored b) {
        const unsigned magnitude = b & 0x7fu;
        const float normal = __uint_as_float((magnitude << 20) + (120u << 23));
        const float tiny = static_cast<float>(magnitude) * 0x1p-9f;
        float x = magnitude < 8u ? tiny : normal;
        if (magnitude == 0x7fu) x = __uint_as_float(NOT_A_NUMBER);
        return b & 0x80u ? -x : x;
    }
    static __device__ __forceinline__ float decode(Stored b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
        unsigned halves;
        float x;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(b)));
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<unsigned short>(halves)));
        return x;
#else
        return decode_by_integers(b);
#endif
    }
};
