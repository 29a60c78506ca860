// Copies the values of some rows, one after the other. One compilation serves all types, because values are treated as bytes.
#include "common.cuh"

struct Gather {
    const u8* values;    // `stride` bytes each, of which the first `width` are copied
    const u8* validity;  // bitmap as in Arrow; null: all are valid
    const u64* rows;
    u8* out;        // count * width
    u8* out_valid;  // count, 0 or 1; null where all are valid
    u64 count;
    u32 stride, width;
};

extern "C" __constant__ u32 ga_sizes[4] = {sizeof(Gather), 0, 0, 0};

// Notes whether value `i` of the answer, of row `row`, is valid.
__device__ __forceinline__ void note_valid(const Gather& gather, u64 i, u64 row) {
    if (gather.out_valid) gather.out_valid[i] = gather.validity[row >> 3] >> (row & 7) & 1;
}

extern "C" __global__ void __launch_bounds__(THREADS) ga_values(const __grid_constant__ Gather gather) {
    const u64 threads = u64(gridDim.x) * THREADS;
    for (u64 i = u64(blockIdx.x) * THREADS + threadIdx.x; i < gather.count; i += threads) {
        const u64 row = gather.rows[i];
        const u8* value = gather.values + row * gather.stride;
        u8* out = gather.out + i * gather.width;
        // Widths are powers of two, and both buffers are aligned to them.
        switch (gather.width) {
            case 1: *out = *value; break;
            case 2: *(u16*)out = *(const u16*)value; break;
            case 4: *(u32*)out = *(const u32*)value; break;
            case 8: *(u64*)out = *(const u64*)value; break;
            default: *(uint4*)out = *(const uint4*)value; break;
        }
        note_valid(gather, i, row);
    }
}

// Copies values of any even width, such as vectors, in place of those of ga_values: a warp for each value.
extern "C" __global__ void __launch_bounds__(THREADS) ga_wide_values(const __grid_constant__ Gather gather) {
    const u64 warps = u64(gridDim.x) * (THREADS / 32);
    for (u64 i = u64(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32; i < gather.count; i += warps) {
        const u64 row = gather.rows[i];
        const u16* value = (const u16*)(gather.values + row * gather.stride);
        u16* out = (u16*)(gather.out + i * gather.width);
        for (u32 at = lane_id(); at < gather.width / 2; at += 32) out[at] = value[at];
        if (lane_id() == 0) note_valid(gather, i, row);
    }
}
