// Exact selection of many ranks in one read: SampleSelect with a two-level cell table, controlled by the device.
//
//   ss_draw      8192 thr.   draws a small sample
//   ss_plan      one block   makes cells: each range of keys gets a power of two of them, by its share of the sample
//   ss_sample    grid        counts a large sample by cells
//   ss_brackets  one block   flags the cells that hold each rank with near certainty, and finds heavy keys
//   ss_count     grid        the one read: counts all cells, and copies the keys of flagged ones
//   ss_resolve   one block   finds the exact cell of each rank, and flags cells whose keys are still to be copied
//   ss_extract   grid        the second read; returns at once if no cell was flagged
//   ss_refine    grid        distributes the copied keys to lists, one for each cell that holds a rank
//   ss_select    block/rank  selects the key of the rank in its list; if the list is not complete, the rank stays open
//   ss_deepen    cooperative counts narrower and narrower intervals around open ranks, until their keys fit or are all equal
//
// The counts are exact. So if a sample misled, or if keys did not fit, the rank is known to be open, and there is never a wrong answer.
// Heavy keys are counted, never copied.
//
// The kernels that read the column are in this file; ss_resolve and those after ss_extract are in sample_finish.cu. Two compilations at
// the same time take half as long as one of all kernels.
#include "sample_cells.cuh"
#include "sample_plan.cuh"
#include "sample_read.cuh"
