// Exact selection of many ranks in one read (SampleSelect with a two-level cell table), control on the device:
//
//   ss_draw      8192 thr.   a small sample
//   ss_plan      one block   the sample -> cells: each range of keys gets a power of two of them by its mass
//   ss_sample    grid        a large sample, counted into the cells
//   ss_brackets  one block   cells that hold each rank with near certainty are flagged; heavy keys found
//   ss_count     grid        the one read: counts all cells, copies out the keys of flagged ones
//   ss_resolve   one block   exact cell of each rank; cells whose keys are still to be copied are flagged again
//   ss_extract   grid        the second read; returns at once if no cell is left over
//   ss_refine    grid        copied keys -> one list a wanted cell
//   ss_select    block/rank  the key of the rank in its list; a list that is not complete leaves the rank open
//   ss_deepen    cooperative counts narrower and narrower intervals of the open ranks until their keys fit or are alone
//
// The counts are exact, so a rank that a sample misled, or whose keys did not fit, is known to be open: never a wrong
// answer. Heavy keys are counted, never copied.
//
// Those that read the column are here, ss_resolve and those after ss_extract in sample_finish.cu: two compilations at a time take
// half as long as one of all.
#include "sample_cells.cuh"
#include "sample_plan.cuh"
#include "sample_read.cuh"
