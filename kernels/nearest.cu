// The k rows of a matrix that are nearest to a point, by squared Euclidean distance: distance and WarpSelect in one read.
//
//   nr_rows_K   grid       each warp reads 32 rows at a time, with 8 lanes for each row, and keeps its k nearest rows; K as in ws_runs_K
//   nr_finish   one block  finds the k nearest of these
//
// Compiled for DESCENDING keys of f32, so that the least distance is the greatest item; among equal distances the smaller
// row comes first. NaN is farther than all others.
#include "warp_select.cuh"

constexpr u32 WARPS = 4;
constexpr u32 SHARE = 8;  // lanes that share a row

struct Nearest {
    const float* values;  // `width` values for each row, aligned to 16 bytes
    const u8* validity;   // bitmap of rows as in Arrow; null: all are valid
    const float* point;   // `width` values
    Item* found;          // k items of each warp
    Key* out_keys;        // k
    u32* out_rows;        // k
    u32* out_count;       // number of rows found; zeroed
    u64 rows;             // < 2^32 - 1
    u32 width, k, warps, unused;
};

extern "C" __constant__ u32 nr_sizes[4] = {sizeof(Nearest), sizeof(Item), sizeof(Key), WARPS};

// The four values of a row from value `at` on; 0 beyond its end.
__device__ __forceinline__ float4 load_four(const float* row, u32 at, u32 width, bool aligned) {
    if (aligned) return at < width ? __ldcs((const float4*)(row + at)) : make_float4(0, 0, 0, 0);
    return make_float4(at < width ? row[at] : 0, at + 1 < width ? row[at + 1] : 0, at + 2 < width ? row[at + 2] : 0,
                       at + 3 < width ? row[at + 3] : 0);
}

// The distance of row first + lane to the point. Lane l of the 8 of a row adds up values 4 l to 4 l + 3 of each 32, one
// after the other; then lanes 4, 2 and 1 apart add their sums. Every device must add in this order.
__device__ __forceinline__ float distance_of(const Nearest& nearest, const float* point, u64 first) {
    constexpr u32 STEPS = SHARE, ROWS = 32 / SHARE;
    const bool aligned = nearest.width % 4 == 0;
    const u32 share = lane_id() % SHARE, group = lane_id() / SHARE;
    float sums[STEPS];
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) sums[step] = 0;
    for (u32 at = share * 4; at < nearest.width; at += SHARE * 4) {
        const float4 to = *(const float4*)(point + at);
        float4 loaded[STEPS];
#pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            const u64 row = first + step * ROWS + group;
            loaded[step] = row < nearest.rows ? load_four(nearest.values + row * nearest.width, at, nearest.width, aligned)
                                              : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            // Beyond the end of the row both values are 0.
            const float x = loaded[step].x - to.x, y = loaded[step].y - to.y, z = loaded[step].z - to.z, w = loaded[step].w - to.w;
            sums[step] += x * x;
            sums[step] += y * y;
            sums[step] += z * z;
            sums[step] += w * w;
        }
    }
    float own = 0;
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        float sum = sums[step];
#pragma unroll
        for (u32 apart = SHARE / 2; apart; apart /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, apart);
        // Row first + lane was that of group lane % ROWS in step lane / ROWS.
        const float other = __shfl_sync(ALL_LANES, sum, lane_id() % ROWS * SHARE);
        if (lane_id() / ROWS == step) own = other;
    }
    return own;
}

template <int QUEUE, int THREAD>
__device__ __forceinline__ void nearest_rows(const Nearest& nearest) {
    // Values beyond the end of the point are 0.
    extern __shared__ float4 shared_point[];
    float* point = (float*)shared_point;
    const u32 padded = (nearest.width + 3) / 4 * 4;
    for (u32 i = threadIdx.x; i < padded; i += blockDim.x) point[i] = i < nearest.width ? nearest.point[i] : 0;
    __syncthreads();
    const u32 warp = blockIdx.x * WARPS + threadIdx.x / 32;
    WarpSelect<QUEUE, THREAD> select(nearest.k);
    for (u64 first = u64(warp) * 32;; first += u64(nearest.warps) * 32) {
        const bool last = first >= nearest.rows;
        if (!last) {
            const float distance = distance_of(nearest, point, first);
            const u64 row = first + lane_id();
            const bool valid = row < nearest.rows && (!nearest.validity || nearest.validity[row >> 3] >> (row & 7) & 1);
            if (valid) select.offer(item_of(encode(__float_as_uint(distance)), u32(row)));
        }
        if (last || select.must_merge()) select.merge();
        if (last) break;
    }
#pragma unroll
    for (int r = 0; r < QUEUE; ++r) {
        const u32 place = r * 32 + lane_id();
        if (place < nearest.k) nearest.found[u64(warp) * nearest.k + place] = select.queue[r];
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) nr_rows_32(const __grid_constant__ Nearest nearest) { nearest_rows<1, 2>(nearest); }
extern "C" __global__ void __launch_bounds__(WARPS * 32) nr_rows_128(const __grid_constant__ Nearest nearest) { nearest_rows<4, 3>(nearest); }
extern "C" __global__ void __launch_bounds__(WARPS * 32) nr_rows_256(const __grid_constant__ Nearest nearest) { nearest_rows<8, 4>(nearest); }
extern "C" __global__ void __launch_bounds__(WARPS * 32) nr_rows_1024(const __grid_constant__ Nearest nearest) { nearest_rows<32, 8>(nearest); }

extern "C" __global__ void __launch_bounds__(THREADS) nr_finish(const __grid_constant__ Nearest nearest) {
    __shared__ SelectScratch<Item> scratch;
    const u32 count = nearest.warps * nearest.k;
    const Item kth = block_select([&](u32 i) { return nearest.found[i]; }, count, count - nearest.k, Item(0), 8 * sizeof(Item), scratch);
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const Item item = nearest.found[i];
        if (item == 0 || item < kth) continue;
        const u32 at = atomicAdd(nearest.out_count, 1);
        nearest.out_keys[at] = Key(~item_key(item));
        nearest.out_rows[at] = item_index(item);
    }
}
