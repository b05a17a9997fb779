-- fa3.h for LuaJIT: structs, constants and functions as they are in C. fa3.h is the manual.
--
--   local fa3 = require("fa3")
--   local params = fa3.new("fa3_forward_params")    -- with its struct_size
--   fa3.check(fa3.lib.fa3_forward_check(params))    -- an error, with the library's words, if it is refused
--
-- Lua has no preprocessor, so the declarations are copied here; tests compare their layout with the header's.
local ffi = require("ffi")

ffi.cdef [[
typedef enum fa3_status {
  FA3_OK = 0,
  FA3_ERROR_INVALID_ARGUMENT = 1,
  FA3_ERROR_UNSUPPORTED = 2,
  FA3_ERROR_WORKSPACE_TOO_SMALL = 3,
  FA3_ERROR_NO_DRIVER = 4,
  FA3_ERROR_NO_CONTEXT = 5,
  FA3_ERROR_WRONG_DEVICE = 6,
  FA3_ERROR_NOT_LOADED = 7,
  FA3_ERROR_CUDA = 8,
  FA3_ERROR_OUT_OF_MEMORY = 9
} fa3_status;

typedef enum fa3_dtype {
  FA3_DTYPE_NONE = 0,
  FA3_DTYPE_BF16 = 1,
  FA3_DTYPE_FP16 = 2,
  FA3_DTYPE_FP32 = 3,
  FA3_DTYPE_E4M3 = 4,
  FA3_DTYPE_E5M2 = 5,
  FA3_DTYPE_INT32 = 6,
  FA3_DTYPE_INT64 = 7
} fa3_dtype;

typedef enum fa3_mask {
  FA3_MASK_NONE = 0,
  FA3_MASK_CAUSAL_TOP_LEFT = 1,
  FA3_MASK_CAUSAL_BOTTOM_RIGHT = 2,
  FA3_MASK_WINDOW = 3,
  FA3_MASK_CHUNK = 4
} fa3_mask;

enum { FA3_MAX_RANK = 5, FA3_SCALE_ROWS = 64, FA3_LATENT_SCALE_COLUMNS = 128, FA3_FORWARD_WORKSPACE_BYTES = 64 };

typedef struct fa3_tensor {
  void* data;
  int32_t dtype;
  int32_t rank;
  int64_t dim[FA3_MAX_RANK];
  int64_t stride[FA3_MAX_RANK];
} fa3_tensor;

typedef struct CUstream_st* fa3_stream;

typedef struct fa3_forward_params {
  size_t struct_size;
  uint64_t flags;
  fa3_tensor q, k, v, o, lse;
  int32_t mask;
  float softmax_scale;
  const char* kernel;
  fa3_tensor q_scale, k_scale, v_scale, o_scale, v_mean, lse_offset;
  int32_t window_left, window_right;
  int32_t max_seqlen_q, max_seqlen_k;
  fa3_tensor sinks;
  fa3_tensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, page_table, cache_batch_idx;
  const void* schedule;
  size_t schedule_bytes;
  float softcap;
  int32_t reserved;
  fa3_tensor alibi_slopes;
  fa3_tensor qv;
} fa3_forward_params;

enum fa3_forward_flags {
  FA3_FLAG_DETERMINISTIC = 1,
  FA3_FLAG_TWO_LEVEL = 2,
  FA3_FLAG_BATCH_INVARIANT = 4,
  FA3_FLAG_CENTERED_K = 8,
  FA3_FLAG_ACCUMULATE = 16
};

typedef struct fa3_backward_params {
  size_t struct_size;
  uint64_t flags;
  fa3_tensor q, k, v, o, lse, dout;
  fa3_tensor dq, dk, dv;
  int32_t mask;
  float softmax_scale;
  const char* kernel;
  fa3_tensor dlse;
  int32_t window_left, window_right;
  fa3_tensor sinks, dsinks;
  fa3_tensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  int32_t max_seqlen_q, max_seqlen_k;
  float softcap;
  int32_t reserved;
  fa3_tensor alibi_slopes;
  fa3_tensor q_scale, k_scale, v_scale, v_mean, lse_offset;
} fa3_backward_params;

typedef struct fa3_quantize_params {
  size_t struct_size;
  uint64_t flags;
  uint64_t seed;
  fa3_tensor x, y, scale, mean, rotary_cos, rotary_sin, k_mean, lse_offset;
  float softmax_scale;
  int32_t reserved;
} fa3_quantize_params;

enum fa3_quantize_flags {
  FA3_QUANTIZE_INCOHERENT = 1,
  FA3_QUANTIZE_ROTARY_INTERLEAVED = 2
};

typedef struct fa3_append_params {
  size_t struct_size;
  uint64_t flags;
  fa3_tensor k, v, k_cache, v_cache;
  fa3_tensor cache_seqlens, cu_seqlens_new, seqused_new;
  fa3_tensor page_table, cache_batch_idx, slot_mapping;
  fa3_tensor q, q_out;
  fa3_tensor rotary_cos, rotary_sin, rotary_positions;
  fa3_tensor k_scale, v_scale, q_scale;
} fa3_append_params;

enum fa3_append_flags {
  FA3_APPEND_ROTARY_INTERLEAVED = 1
};

typedef struct fa3_combine_params {
  size_t struct_size;
  uint64_t flags;
  fa3_tensor o_parts, lse_parts;
  fa3_tensor o, lse;
} fa3_combine_params;

typedef enum fa3_kernel_kind {
  FA3_KERNEL_FORWARD = 1,
  FA3_KERNEL_BACKWARD = 2,
  FA3_KERNEL_PASS = 3
} fa3_kernel_kind;

typedef struct fa3_kernel_info {
  size_t struct_size;
  char name[64];
  int32_t kind;
  int32_t dtype;
  int32_t head_dim;
  int32_t head_dim_v;
  int32_t causal;
  int32_t block_q;
  int32_t block_kv;
  int32_t stages;
  int32_t threads;
  int32_t producer_registers;
  int32_t consumer_registers;
  int32_t shared_memory_bytes;
  int32_t chosen;
  int32_t launches;
  int32_t grid;
  int32_t multiprocessors;
  int64_t tiles;
  int64_t pieces;
} fa3_kernel_info;

fa3_status fa3_tensor_pack(fa3_tensor* tensor);

fa3_status fa3_forward_check(const fa3_forward_params* params);
fa3_status fa3_forward_workspace_size(const fa3_forward_params* params, int32_t multiprocessors, size_t* bytes);
fa3_status fa3_forward(const fa3_forward_params* params, void* workspace, size_t workspace_bytes, fa3_stream stream);
fa3_status fa3_forward_schedule_size(const fa3_forward_params* params, int32_t multiprocessors, size_t* bytes);
fa3_status fa3_forward_schedule(const fa3_forward_params* params, void* schedule, size_t schedule_bytes,
                                fa3_stream stream);
fa3_status fa3_reference_forward(const fa3_forward_params* params, int threads);

fa3_status fa3_backward_check(const fa3_backward_params* params);
fa3_status fa3_backward_workspace_size(const fa3_backward_params* params, size_t* bytes);
fa3_status fa3_backward(const fa3_backward_params* params, void* workspace, size_t workspace_bytes, fa3_stream stream);
fa3_status fa3_reference_backward(const fa3_backward_params* params, int threads);

fa3_status fa3_quantize_check(const fa3_quantize_params* params);
fa3_status fa3_quantize_workspace_size(const fa3_quantize_params* params, size_t* bytes);
fa3_status fa3_quantize(const fa3_quantize_params* params, void* workspace, size_t workspace_bytes, fa3_stream stream);
fa3_status fa3_reference_quantize(const fa3_quantize_params* params);

fa3_status fa3_append_check(const fa3_append_params* params);
fa3_status fa3_append(const fa3_append_params* params, fa3_stream stream);
fa3_status fa3_reference_append(const fa3_append_params* params);
fa3_status fa3_combine_check(const fa3_combine_params* params);
fa3_status fa3_combine(const fa3_combine_params* params, fa3_stream stream);
fa3_status fa3_reference_combine(const fa3_combine_params* params);

fa3_status fa3_forward_kernel_info(const fa3_forward_params* params, int32_t multiprocessors, int32_t launch,
                                   fa3_kernel_info* info);
fa3_status fa3_backward_kernel_info(const fa3_backward_params* params, int32_t multiprocessors, int32_t launch,
                                    fa3_kernel_info* info);
int fa3_kernel_count(void);
fa3_status fa3_kernel_info_at(int index, fa3_kernel_info* info);
fa3_status fa3_preload(void);

int fa3_version(void);
int fa3_abi_version(void);
const char* fa3_status_string(fa3_status status);
const char* fa3_last_error_message(void);
]]

local fa3 = { lib = ffi.load("libfa3.so.1") }

-- A parameter struct: zero, which means "default" or "none", but for its struct_size.
function fa3.new(struct)
  local params = ffi.new(struct)
  params.struct_size = ffi.sizeof(struct)
  return params
end

-- A tensor without gaps. data: an array, or an address; who makes it keeps it, as the tensor does not.
function fa3.tensor(data, dtype, dims)
  local tensor = ffi.new("fa3_tensor", { data = data, dtype = dtype, rank = #dims })
  for i, n in ipairs(dims) do tensor.dim[i - 1] = n end
  fa3.check(fa3.lib.fa3_tensor_pack(tensor))
  return tensor
end

function fa3.check(status)
  if status ~= fa3.lib.FA3_OK then
    error(ffi.string(fa3.lib.fa3_status_string(status)) .. ": " .. ffi.string(fa3.lib.fa3_last_error_message()), 0)
  end
end

return fa3
