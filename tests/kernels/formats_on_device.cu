// Compares the instructions that convert with the integer arithmetic, for all 2^32 inputs.
#include "common.cuh"
#include "convert_state/formats.cuh"

__device__ bool is_nan(float x) { return (bits_of(x) & 0x7fffffffu) > INFINITE; }

// wrong[0]: e4m3, wrong[1]: bf16, wrong[2]: int8, wrong[3]: e4m3 decoded
extern "C" __global__ void __launch_bounds__(256)
compare_formats(unsigned long long* wrong) {
    const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    unsigned long long u = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; u < 1ull << 32; u += step) {
        const float x = __uint_as_float(static_cast<unsigned>(u));
        if (u < 256) {
            const unsigned char b = static_cast<unsigned char>(u);
            const float got = E4m3::decode(b), wanted = E4m3::decode_by_integers(b);
            if (bits_of(got) != bits_of(wanted) && !(is_nan(got) && is_nan(wanted)))
                atomicAdd(wrong + 3, 1ull);
        }
        if (is_nan(x)) continue;
        if (E4m3::encode(x) != E4m3::encode_by_integers(x)) atomicAdd(wrong, 1ull);
        if (Bf16::encode(x) != Bf16::encode_by_integers(x)) atomicAdd(wrong + 1, 1ull);
        if (fabsf(x) <= 127.00001f &&
            static_cast<signed char>(Int8::encode(x)) != __float2int_rn(x))
            atomicAdd(wrong + 2, 1ull);
    }
}
