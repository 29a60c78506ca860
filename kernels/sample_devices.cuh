// A column on several devices, each with some of the rows. Each device runs the kernels of one device over its own rows. Where a kernel
// needs numbers of all devices, it reads them in the memory of the others, after an event has said that they are there:
//
//   ss_draw                  samples               -> ss_plan
//   ss_sample                counts of samples     -> ss_brackets
//   ss_count                 counts of all keys    -> ss_resolve, ss_extract, ss_refine: each device has its keys of each list
//   ss_tally     block/list  counts of the parts of a list -> ss_narrow: finds the part that holds the rank
//   ss_narrow    block/rank  the keys of that part -> ss_finish: finds the key of the rank
//
// So lists stay where they are. All devices decide alike, because they decide from the same numbers, in an order that no race changes. Only
// the ranks of ss_finish are divided among the devices. If a device had no room for the list of a rank, the rank stays open.
#pragma once
#include "sample_cells.cuh"

// Calls put(i, from[i]) for each i below `count`, by all threads of a block, with many loads at once, as the memory of another device is
// far.
template <class T, class Put>
__device__ __forceinline__ void each_of(const T* from, u64 count, Put put) {
    each_at<8>([&](u64 i) { return from[i]; }, count, put);
}

// Collects the sampled keys of all devices, in the order of devices; by one block.
__device__ void take_samples(const Query& query) {
    Control& control = *query.control;
    u32 before = 0;
    for (u32 device = 0; device < query.devices; ++device) {
        const Control& other = *query.controls[device];
        const u32 count = other.drawn_keys;
        each_of(other.drawn, count, [&](u64 i, Key key) { control.sample[before + i] = key; });
        before += count;
    }
    if (threadIdx.x == 0) control.samples = before;
    __syncthreads();
}

// Adds the counts of the samples of the other devices to `sampled`; by one block, in which each thread has its own places.
__device__ void add_samples(const Query& query, u32* sampled) {
    Control& control = *query.control;
    for (u32 device = 0; device < query.devices; ++device) {
        const Control& other = *query.controls[device];
        if (device != query.device) each_of(other.sampled, control.cells, [&](u64 cell, u32 count) { sampled[cell] += count; });
        if (threadIdx.x != 0) continue;
        control.all_repeats += other.repeats;
        control.all_pairs += other.pairs;
    }
}

// Adds up the counts of all devices, in `counts` and for the kernels that follow; by one block, in which each thread has its own places.
// Returns false, to all threads, if heavy keys are not the same on all devices, which should not happen with any data.
__device__ bool add_counts(const Query& query, u64* counts) {
    Control& control = *query.control;
    bool differ = false;
    each_of(control.counts, control.cells, [&](u64 cell, u64 count) { counts[cell] = count; });
    if (control.heavies)
        each_of(control.heavy_counts, HEAVY_SLOTS, [&](u64 slot, u64 count) { control.all_heavy_counts[slot] = count; });
    for (u32 device = 0; device < query.devices; ++device) {
        if (device == query.device) continue;
        const Control& other = *query.controls[device];
        each_of(other.counts, control.cells, [&](u64 cell, u64 count) { counts[cell] += count; });
        differ |= other.heavies != control.heavies;
        if (control.heavies == 0) continue;
        each_of(other.heavy_counts, HEAVY_SLOTS, [&](u64 slot, u64 count) { control.all_heavy_counts[slot] += count; });
        each_of(other.heavy, HEAVY_SLOTS, [&](u64 slot, Key key) { differ |= key != control.heavy[slot]; });
    }
    for (u32 cell = threadIdx.x; cell < control.cells; cell += THREADS) control.all_counts[cell] = counts[cell];
    return !__syncthreads_or(differ);
}
