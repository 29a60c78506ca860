// From counted cells and copied keys to the keys of the ranks: the other kernels of the sequence in sample_select.cu, and those that
// several devices have beside it.
#include "sample_cells.cuh"
#include "sample_answer.cuh"
#include "sample_deepen.cuh"
#include "sample_lists.cuh"
