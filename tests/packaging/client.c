/* A user's program: equal scores, so that O is the mean of V and LSE the logarithm of the number of keys. */
#include <fa3.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static fa3_tensor packed(void* data, int32_t dtype, int32_t rank, int64_t dim1, int64_t dim2, int64_t dim3) {
  fa3_tensor tensor = {data, dtype, rank, {1, dim1, dim2, dim3}, {0}};
  fa3_tensor_pack(&tensor);
  return tensor;
}

int main(void) {
  uint16_t zeros[16] = {0}, v[16], o[16];
  float lse[2];
  for (int i = 0; i < 16; ++i) v[i] = i < 8 ? 0x3f80 : 0x4040; /* 1 and 3 in bf16 */
  fa3_forward_params params = FA3_FORWARD_PARAMS_INIT;
  params.q = params.k = packed(zeros, FA3_DTYPE_BF16, 4, 2, 1, 8);
  params.v = packed(v, FA3_DTYPE_BF16, 4, 2, 1, 8);
  params.o = packed(o, FA3_DTYPE_BF16, 4, 2, 1, 8);
  params.lse = packed(lse, FA3_DTYPE_FP32, 3, 1, 2, 0);
  if (fa3_version() != FA3_VERSION_MAJOR * 10000 + FA3_VERSION_MINOR * 100 + FA3_VERSION_PATCH) return 1;
  if (fa3_reference_forward(&params, 1) != FA3_OK) return fprintf(stderr, "%s\n", fa3_last_error_message()), 2;
  for (int i = 0; i < 16; ++i)
    if (o[i] != 0x4000) return 3;
  if (fabsf(lse[0] - logf(2)) > 1e-6f || fabsf(lse[1] - logf(2)) > 1e-6f) return 4;
  params.k.stride[1] = 9;
  if (fa3_forward_check(&params) != FA3_ERROR_INVALID_ARGUMENT || !strstr(fa3_last_error_message(), "k.stride[1]"))
    return 5;
  if (fa3_preload() == FA3_OK) return 6; /* without a context, with or without a driver */
  printf("libfa3 %d: ok\n", fa3_version());
  return 0;
}
