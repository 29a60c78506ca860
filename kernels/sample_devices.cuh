// A column on several devices, each with some of the rows. Each device runs the kernels of one device over its own rows; where they
// need what all devices know they read it in the others' memory, once an event has said that it is there:
//
//   ss_draw                  samples               -> ss_plan
//   ss_sample                counts of samples     -> ss_brackets
//   ss_count                 counts of all keys    -> ss_resolve, ss_extract, ss_refine: each device has its keys of each list
//   ss_tally     block/list  counts of a list's parts -> ss_narrow: the part of a list that holds the rank
//   ss_narrow    block/rank  the keys of that part -> ss_finish: the key of the rank
//
// So lists stay where they are. What a device decides follows from numbers that all devices have alike, in an order that no race
// changes, so that all decide the same; ss_finish alone is dealt out. A rank whose list a device had no room for is left open.
#pragma once
#include "sample_cells.cuh"

// Calls put(i, from[i]) for each i below `count`, by all threads of a block; another device's memory is far.
template <class T, class Put>
__device__ __forceinline__ void each_of(const T* from, u64 count, Put put) {
    each_at<8>([&](u64 i) { return from[i]; }, count, put);
}

// The sampled keys of all devices, in the order of devices; by one block.
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

// Adds what the other devices have sampled to `sampled`; by one block, whose threads have each their own places.
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

// What all devices have counted, in `counts` and for the kernels that come; by one block, whose threads have each their own places.
// False, for all threads: heavy keys are not the same on all devices, which no data should bring about.
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
