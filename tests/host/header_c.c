/* A C11 program that uses nothing but the header. */
#include "fa3.h"

int main(void) {
  static float q[8], k[8], v[8] = {1, 2, 3, 4, 5, 6, 7, 8}, o[8], lse[1];
  fa3_forward_params params = FA3_FORWARD_PARAMS_INIT;
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  fa3_tensor shape = {0, FA3_DTYPE_FP32, 4, {1, 1, 1, 8, 0}, {0, 0, 0, 0, 0}};
  const fa3_tensor rows = {lse, FA3_DTYPE_FP32, 3, {1, 1, 1, 0, 0}, {0, 0, 0, 0, 0}};
  size_t bytes = 0;
  fa3_stream stream = 0;
  int i;

  if (fa3_tensor_pack(&shape) != FA3_OK || shape.stride[3] != 1) return 1;
  params.q = params.k = params.v = params.o = shape;
  params.q.data = q, params.k.data = k, params.v.data = v, params.o.data = o;
  params.lse = rows;
  params.mask = FA3_MASK_CAUSAL_TOP_LEFT;
  params.flags = FA3_FLAG_DETERMINISTIC;
  if (fa3_reference_forward(&params, 1) != FA3_OK) return 2;
  for (i = 0; i < 8; ++i)
    if (o[i] != v[i]) return 3;
  if (lse[0] != 0) return 4;
  if (fa3_forward(&params, 0, 0, stream) != FA3_ERROR_UNSUPPORTED || fa3_last_error_message()[0] == 0) return 5;
  params.q.dtype = params.k.dtype = params.v.dtype = params.o.dtype = FA3_DTYPE_BF16;
  if (fa3_forward_workspace_size(&params, 132, &bytes) != FA3_OK || bytes != FA3_FORWARD_WORKSPACE_BYTES) return 6;
  if (fa3_forward_kernel_info(&params, 132, 0, &info) != FA3_OK || info.kind != FA3_KERNEL_FORWARD) return 7;
  if (info.tiles != 1 || info.pieces != 1 || info.grid != 1 || info.launches != 1 || info.chosen != 1) return 8;
  if (fa3_version() / 10000 != FA3_VERSION_MAJOR || fa3_abi_version() != FA3_ABI_VERSION) return 9;
  return 0;
}
