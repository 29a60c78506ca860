// The distance of every vector of a matrix from one point, in `f32`, by one read of the matrix, and the rows that are nearest.
//
//   vd_euclidean_B, vd_cosine_B, vd_product_B   grid       B = 32 or 16 bits of a component: writes the squared Euclidean distance, the
//                                                          cosine distance, or the inner product of every vector
//   vd_least_M_B                                grid       M as above: writes the least value of each chunk of rows
//   vd_kth                                      one block  finds the k-th least of these: at least k rows do not exceed it
//   vd_near_M_B                                 grid       reads the chunks again whose least value is within a bound, and lists their rows
//                                                          that are
//
// The least value is that of the row which comes first. What `f32` cannot tell becomes infinite, so that the host decides about it.
// Compiled for f32 in totalOrder.
#include "distances.cuh"

constexpr u32 WARPS = 4;
#define INFINITE __uint_as_float(0x7f800000u)

struct Distances {
    const void* vectors;  // `width` components for each row, aligned to 16 bytes
    const u8* validity;   // bitmap of rows as in Arrow; null: all are valid
    const u8* mask;       // bitmap of the rows that count; null: all do
    const float* point;   // `width` components
    float* out;           // a value for each row
    u32* unknown;         // number of rows whose value became infinite; zeroed
    u32* greatest;        // bits of the greatest sum of squares of the vectors of the other rows; zeroed
    u64 rows;
    float size;           // root of the sum of squares of the point
    float sign;           // 1, or -1 if the greatest distance comes first
    float null_value;     // value of a row that has no distance: NaN, or -inf if such rows come first
    u32 width;
};

// The rows of the least values.
struct Near {
    Distances distances;  // `out` is not used
    u32* least;           // the key of the least value of each chunk; MAX_KEY if there is none, 0 if one is not known
    u32* open;            // number of chunks in which a value is not known; zeroed
    u32* kth;             // the key that is found
    u64* found;           // `room` items of key and row; rows < 2^32
    u64* count;           // number of rows that were found, also of those without room; zeroed
    u32 chunk;            // rows of a chunk, a multiple of 32
    u32 chunks, k, room;
    float bound;          // the greatest value that is listed
    u32 unused;
};

extern "C" __constant__ u32 vd_sizes[4] = {sizeof(Distances), sizeof(Near), WARPS, sizeof(Key)};

struct Euclidean : SquaredDifference {
    static constexpr bool OF_ANGLES = false;
    static __device__ __forceinline__ float value(const Sums& sums, float) { return sums.terms; }
    static __device__ __forceinline__ bool is_known(const Sums&) { return true; }
};

struct Cosine : Product {
    static constexpr bool OF_ANGLES = true;
    static __device__ __forceinline__ float value(const Sums& sums, float size) { return 1 - sums.terms / (sqrtf(sums.squares) * size); }
    // So that what underflow takes away is small. There is no distance from a vector of zeros.
    static __device__ __forceinline__ bool is_known(const Sums& sums) { return sums.squares >= 1e-30f && sums.squares <= 1e30f; }
};

struct InnerProduct : Product {
    static constexpr bool OF_ANGLES = false;
    static __device__ __forceinline__ float value(const Sums& sums, float) { return sums.terms; }
    static __device__ __forceinline__ bool is_known(const Sums& sums) { return sums.squares < INFINITE; }
};

// Whether all components of a vector are 0.
template <typename Components>
__device__ __forceinline__ bool is_zero(const Distances& ask, u64 row) {
    const typename Components::Stored* vector = (const typename Components::Stored*)ask.vectors + row * ask.width;
    for (u32 i = 0; i < ask.width; ++i)
        if (Components::one(vector + i) != 0) return false;
    return true;
}

// Whether a row counts.
__device__ __forceinline__ bool is_asked(const Distances& ask, u64 row) {
    return row < ask.rows && (!ask.mask || ask.mask[row >> 3] >> (row & 7) & 1);
}

// The value of a row; infinite, and counted, if it is not known.
template <typename Components, typename Measure>
__device__ __forceinline__ float value_of(const Distances& ask, const Sums& sums, u64 row, u32& unknown, float& greatest) {
    if (ask.validity && !(ask.validity[row >> 3] >> (row & 7) & 1)) return ask.null_value;
    const float value = Measure::value(sums, ask.size);
    if (fabsf(value) < INFINITE && Measure::is_known(sums)) {
        greatest = fmaxf(greatest, sums.squares);
        return value * ask.sign;
    }
    // The sum of squares may be 0 by underflow.
    if (Measure::OF_ANGLES && sums.squares == 0 && is_zero<Components>(ask, row)) return ask.null_value;
    ++unknown;
    return INFINITE;
}

// Adds what the lanes of a warp found to the counters.
__device__ __forceinline__ void count_unknown(const Distances& ask, u32 unknown, float greatest) {
#pragma unroll
    for (u32 apart = 16; apart; apart /= 2) {
        unknown += __shfl_xor_sync(ALL_LANES, unknown, apart);
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL_LANES, greatest, apart));
    }
    if (lane_id() != 0) return;
    if (unknown) atomicAdd(ask.unknown, unknown);
    // Numbers from 0 on have the order of their bits.
    if (greatest > 0) atomicMax(ask.greatest, __float_as_uint(greatest));
}

template <typename Components, typename Measure>
__device__ __forceinline__ void write_distances(const Distances& ask) {
    const float* point = shared_point_of(ask.point, ask.width);
    const u64 warps = u64(gridDim.x) * WARPS;
    u32 unknown = 0;
    float greatest = 0;
    for (u64 first = (u64(blockIdx.x) * WARPS + threadIdx.x / 32) * 32; first < ask.rows; first += warps * 32) {
        const u64 row = first + lane_id();
        const bool asked = is_asked(ask, row);
        // Nobody looks at the values of other rows.
        if (!__any_sync(ALL_LANES, asked)) continue;
        const Sums sums = sums_of<Components, Measure>(ask.vectors, ask.rows, ask.width, point, first);
        if (asked) __stcs(ask.out + row, value_of<Components, Measure>(ask, sums, row, unknown, greatest));
    }
    count_unknown(ask, unknown, greatest);
}

template <typename Components, typename Measure>
__device__ __forceinline__ void least_of_chunks(const Near& near) {
    const Distances& ask = near.distances;
    const float* point = shared_point_of(ask.point, ask.width);
    u32 unknown = 0;
    float greatest = 0;
    for (u32 chunk = blockIdx.x * WARPS + threadIdx.x / 32; chunk < near.chunks; chunk += gridDim.x * WARPS) {
        const u64 end = min(ask.rows, u64(chunk + 1) * near.chunk);
        Key least = MAX_KEY;
        bool known = true;
        for (u64 first = u64(chunk) * near.chunk; first < end; first += 32) {
            const u64 row = first + lane_id();
            const bool asked = is_asked(ask, row);
            if (!__any_sync(ALL_LANES, asked)) continue;
            const Sums sums = sums_of<Components, Measure>(ask.vectors, ask.rows, ask.width, point, first);
            if (!asked) continue;
            const float value = value_of<Components, Measure>(ask, sums, row, unknown, greatest);
            if (fabsf(value) < INFINITE) least = min(least, encode(__float_as_uint(value)));
            // A NaN comes behind all others, and is none of the first if k rows have a distance.
            else if (value == value) known = false;
        }
#pragma unroll
        for (u32 apart = 16; apart; apart /= 2) least = min(least, __shfl_xor_sync(ALL_LANES, least, apart));
        known = __all_sync(ALL_LANES, known);
        if (lane_id() == 0) near.least[chunk] = known ? least : 0;
        if (lane_id() == 0 && !known) atomicAdd(near.open, 1);
    }
    count_unknown(ask, unknown, greatest);
}

extern "C" __global__ void __launch_bounds__(THREADS) vd_kth(const __grid_constant__ Near near) {
    __shared__ SelectScratch<Key> scratch;
    // The keys of chunks that are not known come first, and say nothing.
    const u32 rank = *near.open + near.k - 1;
    Key kth = MAX_KEY;
    if (rank < near.chunks) kth = block_select([&](u32 i) { return near.least[i]; }, near.chunks, rank, Key(0), 8 * sizeof(Key), scratch);
    if (threadIdx.x == 0) *near.kth = kth;
}

// Lists the rows of a group of 32 that are within the bound, or whose value is not known.
template <typename Components, typename Measure>
__device__ __forceinline__ void list_group(const Near& near, const float* point, u64 first) {
    const Distances& ask = near.distances;
    const u64 row = first + lane_id();
    const Sums sums = sums_of<Components, Measure>(ask.vectors, ask.rows, ask.width, point, first);
    u32 unknown = 0;
    float greatest = 0;
    float value = 0;
    bool listed = is_asked(ask, row);
    if (listed) {
        value = value_of<Components, Measure>(ask, sums, row, unknown, greatest);
        listed = value <= near.bound || value == INFINITE;
    }
    const u32 all = __ballot_sync(ALL_LANES, listed);
    u64 at = 0;
    if (lane_id() == 0 && all) at = atomicAdd(near.count, u64(__popc(all)));
    at = __shfl_sync(ALL_LANES, at, 0) + __popc(all & lanes_below());
    if (listed && at < near.room) near.found[at] = u64(encode(__float_as_uint(value))) << 32 | u32(row);
}

template <typename Components, typename Measure>
__device__ __forceinline__ void near_rows(const Near& near) {
    const Distances& ask = near.distances;
    const float* point = shared_point_of(ask.point, ask.width);
    const u64 warps = u64(gridDim.x) * WARPS, groups = (ask.rows + 31) / 32;
    const Key bound = encode(__float_as_uint(near.bound));
    // Groups of one chunk go to different warps.
    for (u64 base = u64(blockIdx.x) * WARPS + threadIdx.x / 32; base < groups; base += 32 * warps) {
        const u64 own = base + lane_id() * warps;
        u32 asked = __ballot_sync(ALL_LANES, own < groups && near.least[own * 32 / near.chunk] <= bound);
        for (; asked; asked &= asked - 1) list_group<Components, Measure>(near, point, (base + (__ffs(asked) - 1) * warps) * 32);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_euclidean_32(const __grid_constant__ Distances ask) { write_distances<Singles, Euclidean>(ask); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_euclidean_16(const __grid_constant__ Distances ask) { write_distances<Halves, Euclidean>(ask); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_cosine_32(const __grid_constant__ Distances ask) { write_distances<Singles, Cosine>(ask); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_cosine_16(const __grid_constant__ Distances ask) { write_distances<Halves, Cosine>(ask); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_product_32(const __grid_constant__ Distances ask) { write_distances<Singles, InnerProduct>(ask); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_product_16(const __grid_constant__ Distances ask) { write_distances<Halves, InnerProduct>(ask); }

extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_least_euclidean_32(const __grid_constant__ Near near) { least_of_chunks<Singles, Euclidean>(near); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_least_euclidean_16(const __grid_constant__ Near near) { least_of_chunks<Halves, Euclidean>(near); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_least_cosine_32(const __grid_constant__ Near near) { least_of_chunks<Singles, Cosine>(near); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_least_cosine_16(const __grid_constant__ Near near) { least_of_chunks<Halves, Cosine>(near); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_least_product_32(const __grid_constant__ Near near) { least_of_chunks<Singles, InnerProduct>(near); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) vd_least_product_16(const __grid_constant__ Near near) { least_of_chunks<Halves, InnerProduct>(near); }

extern "C" __global__ void __launch_bounds__(WARPS * 32) vd_near_euclidean_32(const __grid_constant__ Near near) { near_rows<Singles, Euclidean>(near); }
extern "C" __global__ void __launch_bounds__(WARPS * 32) vd_near_euclidean_16(const __grid_constant__ Near near) { near_rows<Halves, Euclidean>(near); }
extern "C" __global__ void __launch_bounds__(WARPS * 32) vd_near_cosine_32(const __grid_constant__ Near near) { near_rows<Singles, Cosine>(near); }
extern "C" __global__ void __launch_bounds__(WARPS * 32) vd_near_cosine_16(const __grid_constant__ Near near) { near_rows<Halves, Cosine>(near); }
extern "C" __global__ void __launch_bounds__(WARPS * 32) vd_near_product_32(const __grid_constant__ Near near) { near_rows<Singles, InnerProduct>(near); }
extern "C" __global__ void __launch_bounds__(WARPS * 32) vd_near_product_16(const __grid_constant__ Near near) { near_rows<Halves, InnerProduct>(near); }
