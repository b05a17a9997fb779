/* A C11 program that uses nothing but the header. */
#include "fa3.h"

int main(void) {
  static float q[8], k[8], v[8] = {1, 2, 3, 4, 5, 6, 7, 8}, o[8], lse[1];
  fa3_forward_params params = FA3_FORWARD_PARAMS_INIT;
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  const fa3_tensor shape = {0, FA3_DTYPE_FP32, 4, {1, 1, 1, 8, 0}, {0, 0, 0, 0, 0}};
  const fa3_tensor rows = {lse, FA3_DTYPE_FP32, 3, {1, 1, 1, 0, 0}, {0, 0, 0, 0, 0}};
  size_t bytes = 0;
  fa3_stream stream = 0;
  int i;

  params.q = params.k = params.v = params.o = shape;
  params.q.data = q, params.k.data = k, params.v.data = v, params.o.data = o;
  params.lse = rows;
  params.mask = FA3_MASK_CAUSAL_TOP_LEFT;
  params.flags = FA3_FLAG_DETERMINISTIC;
  if (fa3_reference_forward(&params, 1) != FA3_OK) return 1;
  for (i = 0; i < 8; ++i)
    if (o[i] != v[i]) return 2;
  if (lse[0] != 0) return 3;
  if (fa3_forward(&params, 0, 0, stream) != FA3_ERROR_UNSUPPORTED || fa3_last_error_message()[0] == 0) return 4;
  params.q.dtype = params.k.dtype = params.v.dtype = params.o.dtype = FA3_DTYPE_BF16;
  if (fa3_forward_workspace_size(&params, &bytes) != FA3_OK || bytes != FA3_FORWARD_WORKSPACE_BYTES) return 5;
  if (fa3_forward_kernel_info(&params, &info) != FA3_OK || info.tiles != 1) return 6;
  if (fa3_version() / 10000 != FA3_VERSION_MAJOR || fa3_abi_version() != FA3_ABI_VERSION) return 7;
  return 0;
}
