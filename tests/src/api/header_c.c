/* A C11 program that uses nothing but the header. */
#include "fa3.h"

int main(void) {
  static unsigned char zeros[16], twos[16], o8[16];
  static float mean[16], half = 0.5f;
  static float q[8], k[8], v[8] = {1, 2, 3, 4, 5, 6, 7, 8}, o[8], lse[1];
  fa3_forward_params params = FA3_FORWARD_PARAMS_INIT, fp8 = FA3_FORWARD_PARAMS_INIT;
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  fa3_tensor shape = {0, FA3_DTYPE_FP32, 4, {1, 1, 1, 8, 0}, {0, 0, 0, 0, 0}};
  const fa3_tensor rows = {lse, FA3_DTYPE_FP32, 3, {1, 1, 1, 0, 0}, {0, 0, 0, 0, 0}};
  static unsigned short x[16] = {0x3f80, 0x4000}; /* 1 and 2, as bf16 */
  static unsigned char y[16];
  static float scale[1];
  const fa3_tensor one = {scale, FA3_DTYPE_FP32, 3, {1, 1, 1, 0, 0}, {0, 0, 0, 0, 0}};
  fa3_quantize_params quantization = FA3_QUANTIZE_PARAMS_INIT;
  static float parts[16] = {1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3}, both[2] = {1, 1};
  fa3_combine_params combination = FA3_COMBINE_PARAMS_INIT;
  static unsigned short cache[16];
  static int32_t before[1];
  fa3_append_params append = FA3_APPEND_PARAMS_INIT;
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
  quantization.x = quantization.y = shape;
  quantization.x.dim[3] = quantization.y.dim[3] = 16;
  quantization.x.data = x, quantization.x.dtype = FA3_DTYPE_BF16;
  quantization.y.data = y, quantization.y.dtype = FA3_DTYPE_E4M3;
  quantization.scale = one;
  if (fa3_quantize_workspace_size(&quantization, &bytes) != FA3_OK || bytes != FA3_FORWARD_WORKSPACE_BYTES) return 10;
  if (fa3_reference_quantize(&quantization) != FA3_OK || scale[0] != 2.0f / 448) return 11;
  if (y[0] != 0x76 || y[1] != 0x7e || y[2] != 0) return 12;
  combination.o = params.o;
  combination.o_parts.data = parts, combination.o_parts.dtype = FA3_DTYPE_FP32, combination.o_parts.rank = 5;
  combination.lse_parts.data = both, combination.lse_parts.dtype = FA3_DTYPE_FP32, combination.lse_parts.rank = 4;
  for (i = 0; i < 4; ++i) combination.o_parts.dim[i] = combination.lse_parts.dim[i] = i == 0 ? 2 : 1;
  combination.o_parts.dim[4] = 8;
  if (fa3_tensor_pack(&combination.o_parts) != FA3_OK || fa3_tensor_pack(&combination.lse_parts) != FA3_OK) return 16;
  combination.o.dtype = FA3_DTYPE_FP32;
  if (fa3_reference_combine(&combination) != FA3_OK || o[0] != 2 || o[7] != 2) return 17;
  append.k = append.k_cache = quantization.x, append.k_cache.data = cache;
  append.cache_seqlens.data = before, append.cache_seqlens.dtype = FA3_DTYPE_INT32;
  append.cache_seqlens.rank = 1, append.cache_seqlens.dim[0] = 1;
  if (fa3_append_check(&append) != FA3_OK || fa3_reference_append(&append) != FA3_OK) return 18;
  if (cache[0] != 0x3f80 || cache[1] != 0x4000 || cache[2] != 0) return 19;
  if (fa3_version() / 10000 != FA3_VERSION_MAJOR || fa3_abi_version() != FA3_ABI_VERSION) return 9;

  /* FP8: 1 divided by the scale 1/2 is 2, which is 0x40; 1 + v_mean, divided by o_scale, is 3, which is 0x44. */
  shape.dtype = FA3_DTYPE_E4M3, shape.dim[3] = 16;
  if (fa3_tensor_pack(&shape) != FA3_OK) return 13;
  fp8.q = fp8.k = fp8.v = fp8.o = shape;
  fp8.q.data = fp8.k.data = zeros, fp8.v.data = twos, fp8.o.data = o8;
  for (i = 0; i < 16; ++i) twos[i] = 0x40, mean[i] = 0.5f;
  fp8.v_mean = rows, fp8.v_mean.data = mean, fp8.v_mean.dim[2] = 16;
  fp8.v_mean.stride[2] = 1;
  fp8.q_scale = fp8.k_scale = fp8.v_scale = rows;
  fp8.q_scale.data = fp8.k_scale.data = fp8.v_scale.data = fp8.o_scale.data = &half;
  fp8.o_scale.dtype = FA3_DTYPE_FP32, fp8.o_scale.rank = 1, fp8.o_scale.dim[0] = 1;
  fp8.flags = FA3_FLAG_TWO_LEVEL;
  if (fa3_reference_forward(&fp8, 1) != FA3_OK) return 14;
  for (i = 0; i < 16; ++i)
    if (o8[i] != 0x44) return 15;
  return 0;
}
