// Sums over the components of the vectors of a matrix and of one point: a warp reads 32 vectors at a time, 8 lanes for each.
#pragma once
#include "common.cuh"

constexpr u32 SHARE = 8;  // lanes that share a vector

__device__ __forceinline__ float widened(u32 half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(u16(half)));
    return value;
}

// Components of 32 bits, four in 16 bytes.
struct Singles {
    typedef float Stored;
    static constexpr u32 PER = 4;
    static __device__ __forceinline__ void load(const float* at, float (&out)[PER]) {
        const float4 loaded = __ldcs((const float4*)at);
        out[0] = loaded.x;
        out[1] = loaded.y;
        out[2] = loaded.z;
        out[3] = loaded.w;
    }
    static __device__ __forceinline__ float one(const float* at) { return *at; }
};

// Components of 16 bits, eight in 16 bytes, widened without rounding.
struct Halves {
    typedef u16 Stored;
    static constexpr u32 PER = 8;
    static __device__ __forceinline__ void load(const u16* at, float (&out)[PER]) {
        const uint4 loaded = __ldcs((const uint4*)at);
        const u32 pairs[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
        for (u32 i = 0; i < PER; ++i) out[i] = widened(pairs[i / 2] >> 16 * (i % 2) & 0xffff);
    }
    static __device__ __forceinline__ float one(const u16* at) { return widened(*at); }
};

// (a - b)^2.
struct SquaredDifference {
    static constexpr bool SQUARES = false;
    static __device__ __forceinline__ float term(float a, float b) {
        const float apart = a - b;
        return apart * apart;
    }
};

// a b, and beside it the sum of a a.
struct Product {
    static constexpr bool SQUARES = true;
    static __device__ __forceinline__ float term(float a, float b) { return a * b; }
};

struct Sums {
    float terms;
    float squares;  // 0 where the measure does not need them
};

// The sum of all lanes of a vector; lane l of the warp gets that of vector l.
__device__ __forceinline__ float sum_of_lanes(const float (&sums)[SHARE]) {
    constexpr u32 ROWS = 32 / SHARE;
    float own = 0;
#pragma unroll
    for (u32 step = 0; step < SHARE; ++step) {
        float sum = sums[step];
#pragma unroll
        for (u32 apart = SHARE / 2; apart; apart /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, apart);
        // Vector l of the 32 was that of group l % ROWS in step l / ROWS.
        const float other = __shfl_sync(ALL_LANES, sum, lane_id() % ROWS * SHARE);
        if (lane_id() / ROWS == step) own = other;
    }
    return own;
}

// The sums of vector first + lane and `point`, which is padded with zeros to a multiple of 8 components. Lane l of the 8 of a vector adds
// up PER components from component PER l on, of each 8 PER, one after the other; then lanes 4, 2 and 1 apart add their sums. Every device
// must add in this order. ALIGNED: `width` is a multiple of PER. Beyond the last vector the sums are any numbers.
template <typename Components, typename Terms, bool ALIGNED>
__device__ __forceinline__ Sums sums_in(const void* values, u64 rows, u32 width, const float* point, u64 first) {
    constexpr u32 STEPS = SHARE, ROWS = 32 / SHARE, PER = Components::PER;
    const u32 share = lane_id() % SHARE, group = lane_id() / SHARE;
    const typename Components::Stored* vectors = (const typename Components::Stored*)values;
    float terms[STEPS], squares[STEPS];
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) terms[step] = squares[step] = 0;
    for (u32 at = share * PER; at < width; at += SHARE * PER) {
        float loaded[STEPS][PER];
#pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            const typename Components::Stored* from = vectors + min(first + step * ROWS + group, rows - 1) * width + at;
            if (ALIGNED) {
                Components::load(from, loaded[step]);
            } else {
                // Beyond the end of a vector both components are 0.
#pragma unroll
                for (u32 i = 0; i < PER; ++i) loaded[step][i] = at + i < width ? Components::one(from + i) : 0;
            }
        }
#pragma unroll
        for (u32 i = 0; i < PER; ++i) {
            const float to = point[at + i];
#pragma unroll
            for (u32 step = 0; step < STEPS; ++step) {
                const float component = loaded[step][i];
                terms[step] += Terms::term(component, to);
                if (Terms::SQUARES) squares[step] += component * component;
            }
        }
    }
    return Sums{sum_of_lanes(terms), Terms::SQUARES ? sum_of_lanes(squares) : 0};
}

// As above, for any width.
template <typename Components, typename Terms>
__device__ __forceinline__ Sums sums_of(const void* values, u64 rows, u32 width, const float* point, u64 first) {
    return width % Components::PER == 0 ? sums_in<Components, Terms, true>(values, rows, width, point, first)
                                        : sums_in<Components, Terms, false>(values, rows, width, point, first);
}

// Copies a point to shared memory, and pads it with zeros to a multiple of 8 components. All threads of the block call it.
__device__ __forceinline__ const float* shared_point_of(const float* point, u32 width) {
    extern __shared__ float4 shared_point[];
    float* copy = (float*)shared_point;
    const u32 padded = (width + 7) / 8 * 8;
    for (u32 i = threadIdx.x; i < padded; i += blockDim.x) copy[i] = i < width ? point[i] : 0;
    __syncthreads();
    return copy;
}
