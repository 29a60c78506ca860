// The k rows of a matrix that are nearest to a point, by squared Euclidean distance: distance and WarpSelect in one read.
//
//   nr_rows_K   grid       each warp reads 32 rows at a time, with 8 lanes for each row, and keeps its k nearest rows; K as in ws_runs_K
//   nr_finish   one block  finds the k nearest of these
//
// Compiled for DESCENDING keys of f32, so that the least distance is the greatest item; among equal distances the smaller
// row comes first. NaN is farther than all others.
#include "distances.cuh"
#include "warp_select.cuh"

constexpr u32 WARPS = 4;

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

template <int QUEUE, int THREAD>
__device__ __forceinline__ void nearest_rows(const Nearest& nearest) {
    const float* point = shared_point_of(nearest.point, nearest.width);
    const u32 warp = blockIdx.x * WARPS + threadIdx.x / 32;
    WarpSelect<QUEUE, THREAD> select(nearest.k);
    for (u64 first = u64(warp) * 32;; first += u64(nearest.warps) * 32) {
        const bool last = first >= nearest.rows;
        if (!last) {
            const float distance = sums_of<Singles, SquaredDifference>(nearest.values, nearest.rows, nearest.width, point, first).terms;
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

extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) nr_rows_32(const __grid_constant__ Nearest nearest) { nearest_rows<1, 2>(nearest); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) nr_rows_128(const __grid_constant__ Nearest nearest) { nearest_rows<4, 3>(nearest); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 4) nr_rows_256(const __grid_constant__ Nearest nearest) { nearest_rows<8, 4>(nearest); }
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
