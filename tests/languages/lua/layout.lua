-- The layout of fa3.lua's declarations, to be compared with the header's. A field that is not named here is missing.
local ffi = require("ffi")
local fa3 = require("fa3")

local structs = {
  fa3_tensor = "data dtype rank dim stride",
  fa3_forward_params = "struct_size flags q k v o lse mask softmax_scale kernel q_scale k_scale v_scale o_scale " ..
    "v_mean lse_offset window_left window_right max_seqlen_q max_seqlen_k sinks cu_seqlens_q cu_seqlens_k seqused_q " ..
    "seqused_k leftpad_k page_table cache_batch_idx schedule schedule_bytes softcap reserved alibi_slopes qv",
  fa3_backward_params = "struct_size flags q k v o lse dout dq dk dv mask softmax_scale kernel dlse window_left " ..
    "window_right sinks dsinks cu_seqlens_q cu_seqlens_k seqused_q seqused_k max_seqlen_q max_seqlen_k softcap " ..
    "reserved alibi_slopes q_scale k_scale v_scale v_mean lse_offset",
  fa3_quantize_params = "struct_size flags seed x y scale mean rotary_cos rotary_sin k_mean lse_offset " ..
    "softmax_scale reserved",
  fa3_append_params = "struct_size flags k v k_cache v_cache cache_seqlens cu_seqlens_new seqused_new page_table " ..
    "cache_batch_idx slot_mapping q q_out rotary_cos rotary_sin rotary_positions k_scale v_scale q_scale",
  fa3_combine_params = "struct_size flags o_parts lse_parts o lse",
  fa3_kernel_info = "struct_size name kind dtype head_dim head_dim_v causal block_q block_kv stages threads " ..
    "producer_registers consumer_registers shared_memory_bytes chosen launches grid multiprocessors tiles pieces",
}
local constants = [[
  FA3_OK FA3_ERROR_INVALID_ARGUMENT FA3_ERROR_UNSUPPORTED FA3_ERROR_WORKSPACE_TOO_SMALL FA3_ERROR_NO_DRIVER
  FA3_ERROR_NO_CONTEXT FA3_ERROR_WRONG_DEVICE FA3_ERROR_NOT_LOADED FA3_ERROR_CUDA FA3_ERROR_OUT_OF_MEMORY
  FA3_DTYPE_NONE FA3_DTYPE_BF16 FA3_DTYPE_FP16 FA3_DTYPE_FP32 FA3_DTYPE_E4M3 FA3_DTYPE_E5M2 FA3_DTYPE_INT32
  FA3_DTYPE_INT64
  FA3_MASK_NONE FA3_MASK_CAUSAL_TOP_LEFT FA3_MASK_CAUSAL_BOTTOM_RIGHT FA3_MASK_WINDOW FA3_MASK_CHUNK
  FA3_FLAG_DETERMINISTIC FA3_FLAG_TWO_LEVEL FA3_FLAG_BATCH_INVARIANT FA3_FLAG_CENTERED_K
  FA3_FLAG_ACCUMULATE
  FA3_QUANTIZE_INCOHERENT FA3_QUANTIZE_ROTARY_INTERLEAVED FA3_APPEND_ROTARY_INTERLEAVED
  FA3_KERNEL_FORWARD FA3_KERNEL_BACKWARD FA3_KERNEL_PASS
  FA3_MAX_RANK FA3_SCALE_ROWS FA3_LATENT_SCALE_COLUMNS FA3_FORWARD_WORKSPACE_BYTES]]

-- Lua's ffi tells where a field begins, not its size; with no padding it ends where the next one begins.
for struct, names in pairs(structs) do
  print("struct " .. struct .. " " .. ffi.sizeof(struct))
  local last, start
  for field in (names .. " end"):gmatch("%S+") do
    local offset = field == "end" and ffi.sizeof(struct) or ffi.offsetof(struct, field)
    if last then print("field " .. struct .. " " .. last .. " " .. start .. " " .. offset - start) end
    last, start = field, offset
  end
end
for name in constants:gmatch("%S+") do print("const " .. name .. " " .. tonumber(fa3.lib[name])) end
