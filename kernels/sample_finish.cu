// The kernels that find the keys of the ranks from counts and copied keys, as sample_select.cu explains, and the kernels that run only on
// several devices.
#include "sample_cells.cuh"
#include "sample_answer.cuh"
#include "sample_deepen.cuh"
#include "sample_lists.cuh"
