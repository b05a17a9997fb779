--  The layout of package Fa3, to be compared with the header's. A field that is not named here is missing there.
with Ada.Text_IO; use Ada.Text_IO;
with Fa3;         use Fa3;

procedure Layout is

   A_Tensor : Fa3.Tensor;
   A_Forward_Params : Fa3.Forward_Params;
   A_Backward_Params : Fa3.Backward_Params;
   A_Quantize_Params : Fa3.Quantize_Params;
   A_Append_Params : Fa3.Append_Params;
   A_Combine_Params : Fa3.Combine_Params;
   A_Kernel_Info : Fa3.Kernel_Info;

   function Image (Number : Long_Long_Integer) return String is
      Text : constant String := Number'Image;
   begin
      return Text (Text'First + 1 .. Text'Last);
   end Image;

   procedure Struct (Name : String; Bits : Long_Long_Integer) is
   begin
      Put_Line ("struct " & Name & " " & Image (Bits / 8));
   end Struct;

   procedure Field (Name : String; Position, Bits : Long_Long_Integer) is
   begin
      Put_Line ("field " & Name & " " & Image (Position) & " " & Image (Bits / 8));
   end Field;

   procedure Put (Name : String; Value : Long_Long_Integer) is
   begin
      Put_Line ("const FA3_" & Name & " " & Image (Value));
   end Put;

begin
   Struct ("fa3_tensor", Fa3.Tensor'Size);
   Field ("fa3_tensor data", A_Tensor.Data'Position, A_Tensor.Data'Size);
   Field ("fa3_tensor dtype", A_Tensor.Dtype'Position, A_Tensor.Dtype'Size);
   Field ("fa3_tensor rank", A_Tensor.Rank'Position, A_Tensor.Rank'Size);
   Field ("fa3_tensor dim", A_Tensor.Dim'Position, A_Tensor.Dim'Size);
   Field ("fa3_tensor stride", A_Tensor.Stride'Position, A_Tensor.Stride'Size);

   Struct ("fa3_forward_params", Fa3.Forward_Params'Size);
   Field ("fa3_forward_params struct_size", A_Forward_Params.Struct_Size'Position, A_Forward_Params.Struct_Size'Size);
   Field ("fa3_forward_params flags", A_Forward_Params.Flags'Position, A_Forward_Params.Flags'Size);
   Field ("fa3_forward_params q", A_Forward_Params.Q'Position, A_Forward_Params.Q'Size);
   Field ("fa3_forward_params k", A_Forward_Params.K'Position, A_Forward_Params.K'Size);
   Field ("fa3_forward_params v", A_Forward_Params.V'Position, A_Forward_Params.V'Size);
   Field ("fa3_forward_params o", A_Forward_Params.O'Position, A_Forward_Params.O'Size);
   Field ("fa3_forward_params lse", A_Forward_Params.LSE'Position, A_Forward_Params.LSE'Size);
   Field ("fa3_forward_params mask", A_Forward_Params.Mask'Position, A_Forward_Params.Mask'Size);
   Field ("fa3_forward_params softmax_scale",
          A_Forward_Params.Softmax_Scale'Position, A_Forward_Params.Softmax_Scale'Size);
   Field ("fa3_forward_params kernel", A_Forward_Params.Kernel'Position, A_Forward_Params.Kernel'Size);
   Field ("fa3_forward_params q_scale", A_Forward_Params.Q_Scale'Position, A_Forward_Params.Q_Scale'Size);
   Field ("fa3_forward_params k_scale", A_Forward_Params.K_Scale'Position, A_Forward_Params.K_Scale'Size);
   Field ("fa3_forward_params v_scale", A_Forward_Params.V_Scale'Position, A_Forward_Params.V_Scale'Size);
   Field ("fa3_forward_params o_scale", A_Forward_Params.O_Scale'Position, A_Forward_Params.O_Scale'Size);
   Field ("fa3_forward_params v_mean", A_Forward_Params.V_Mean'Position, A_Forward_Params.V_Mean'Size);
   Field ("fa3_forward_params lse_offset", A_Forward_Params.LSE_Offset'Position, A_Forward_Params.LSE_Offset'Size);
   Field ("fa3_forward_params window_left", A_Forward_Params.Window_Left'Position, A_Forward_Params.Window_Left'Size);
   Field ("fa3_forward_params window_right",
          A_Forward_Params.Window_Right'Position, A_Forward_Params.Window_Right'Size);
   Field ("fa3_forward_params max_seqlen_q",
          A_Forward_Params.Max_Seqlen_Q'Position, A_Forward_Params.Max_Seqlen_Q'Size);
   Field ("fa3_forward_params max_seqlen_k",
          A_Forward_Params.Max_Seqlen_K'Position, A_Forward_Params.Max_Seqlen_K'Size);
   Field ("fa3_forward_params sinks", A_Forward_Params.Sinks'Position, A_Forward_Params.Sinks'Size);
   Field ("fa3_forward_params cu_seqlens_q",
          A_Forward_Params.Cu_Seqlens_Q'Position, A_Forward_Params.Cu_Seqlens_Q'Size);
   Field ("fa3_forward_params cu_seqlens_k",
          A_Forward_Params.Cu_Seqlens_K'Position, A_Forward_Params.Cu_Seqlens_K'Size);
   Field ("fa3_forward_params seqused_q", A_Forward_Params.Seqused_Q'Position, A_Forward_Params.Seqused_Q'Size);
   Field ("fa3_forward_params seqused_k", A_Forward_Params.Seqused_K'Position, A_Forward_Params.Seqused_K'Size);
   Field ("fa3_forward_params leftpad_k", A_Forward_Params.Leftpad_K'Position, A_Forward_Params.Leftpad_K'Size);
   Field ("fa3_forward_params page_table", A_Forward_Params.Page_Table'Position, A_Forward_Params.Page_Table'Size);
   Field ("fa3_forward_params cache_batch_idx",
          A_Forward_Params.Cache_Batch_Idx'Position, A_Forward_Params.Cache_Batch_Idx'Size);
   Field ("fa3_forward_params schedule", A_Forward_Params.Schedule'Position, A_Forward_Params.Schedule'Size);
   Field ("fa3_forward_params schedule_bytes",
          A_Forward_Params.Schedule_Bytes'Position, A_Forward_Params.Schedule_Bytes'Size);
   Field ("fa3_forward_params softcap", A_Forward_Params.Softcap'Position, A_Forward_Params.Softcap'Size);
   Field ("fa3_forward_params reserved", A_Forward_Params.Reserved'Position, A_Forward_Params.Reserved'Size);
   Field ("fa3_forward_params alibi_slopes",
          A_Forward_Params.Alibi_Slopes'Position, A_Forward_Params.Alibi_Slopes'Size);
   Field ("fa3_forward_params qv", A_Forward_Params.Qv'Position, A_Forward_Params.Qv'Size);

   Struct ("fa3_backward_params", Fa3.Backward_Params'Size);
   Field ("fa3_backward_params struct_size",
          A_Backward_Params.Struct_Size'Position, A_Backward_Params.Struct_Size'Size);
   Field ("fa3_backward_params flags", A_Backward_Params.Flags'Position, A_Backward_Params.Flags'Size);
   Field ("fa3_backward_params q", A_Backward_Params.Q'Position, A_Backward_Params.Q'Size);
   Field ("fa3_backward_params k", A_Backward_Params.K'Position, A_Backward_Params.K'Size);
   Field ("fa3_backward_params v", A_Backward_Params.V'Position, A_Backward_Params.V'Size);
   Field ("fa3_backward_params o", A_Backward_Params.O'Position, A_Backward_Params.O'Size);
   Field ("fa3_backward_params lse", A_Backward_Params.LSE'Position, A_Backward_Params.LSE'Size);
   Field ("fa3_backward_params dout", A_Backward_Params.Dout'Position, A_Backward_Params.Dout'Size);
   Field ("fa3_backward_params dq", A_Backward_Params.DQ'Position, A_Backward_Params.DQ'Size);
   Field ("fa3_backward_params dk", A_Backward_Params.DK'Position, A_Backward_Params.DK'Size);
   Field ("fa3_backward_params dv", A_Backward_Params.DV'Position, A_Backward_Params.DV'Size);
   Field ("fa3_backward_params mask", A_Backward_Params.Mask'Position, A_Backward_Params.Mask'Size);
   Field ("fa3_backward_params softmax_scale",
          A_Backward_Params.Softmax_Scale'Position, A_Backward_Params.Softmax_Scale'Size);
   Field ("fa3_backward_params kernel", A_Backward_Params.Kernel'Position, A_Backward_Params.Kernel'Size);
   Field ("fa3_backward_params dlse", A_Backward_Params.Dlse'Position, A_Backward_Params.Dlse'Size);
   Field ("fa3_backward_params window_left",
          A_Backward_Params.Window_Left'Position, A_Backward_Params.Window_Left'Size);
   Field ("fa3_backward_params window_right",
          A_Backward_Params.Window_Right'Position, A_Backward_Params.Window_Right'Size);
   Field ("fa3_backward_params sinks", A_Backward_Params.Sinks'Position, A_Backward_Params.Sinks'Size);
   Field ("fa3_backward_params dsinks", A_Backward_Params.Dsinks'Position, A_Backward_Params.Dsinks'Size);
   Field ("fa3_backward_params cu_seqlens_q",
          A_Backward_Params.Cu_Seqlens_Q'Position, A_Backward_Params.Cu_Seqlens_Q'Size);
   Field ("fa3_backward_params cu_seqlens_k",
          A_Backward_Params.Cu_Seqlens_K'Position, A_Backward_Params.Cu_Seqlens_K'Size);
   Field ("fa3_backward_params seqused_q", A_Backward_Params.Seqused_Q'Position, A_Backward_Params.Seqused_Q'Size);
   Field ("fa3_backward_params seqused_k", A_Backward_Params.Seqused_K'Position, A_Backward_Params.Seqused_K'Size);
   Field ("fa3_backward_params max_seqlen_q",
          A_Backward_Params.Max_Seqlen_Q'Position, A_Backward_Params.Max_Seqlen_Q'Size);
   Field ("fa3_backward_params max_seqlen_k",
          A_Backward_Params.Max_Seqlen_K'Position, A_Backward_Params.Max_Seqlen_K'Size);
   Field ("fa3_backward_params softcap", A_Backward_Params.Softcap'Position, A_Backward_Params.Softcap'Size);
   Field ("fa3_backward_params reserved", A_Backward_Params.Reserved'Position, A_Backward_Params.Reserved'Size);
   Field ("fa3_backward_params alibi_slopes",
          A_Backward_Params.Alibi_Slopes'Position, A_Backward_Params.Alibi_Slopes'Size);
   Field ("fa3_backward_params q_scale",
          A_Backward_Params.Q_Scale'Position,
          A_Backward_Params.Q_Scale'Size);
   Field ("fa3_backward_params k_scale",
          A_Backward_Params.K_Scale'Position,
          A_Backward_Params.K_Scale'Size);
   Field ("fa3_backward_params v_scale",
          A_Backward_Params.V_Scale'Position,
          A_Backward_Params.V_Scale'Size);
   Field ("fa3_backward_params v_mean",
          A_Backward_Params.V_Mean'Position,
          A_Backward_Params.V_Mean'Size);
   Field ("fa3_backward_params lse_offset",
          A_Backward_Params.LSE_Offset'Position,
          A_Backward_Params.LSE_Offset'Size);

   Struct ("fa3_quantize_params", Fa3.Quantize_Params'Size);
   Field ("fa3_quantize_params struct_size",
          A_Quantize_Params.Struct_Size'Position, A_Quantize_Params.Struct_Size'Size);
   Field ("fa3_quantize_params flags", A_Quantize_Params.Flags'Position, A_Quantize_Params.Flags'Size);
   Field ("fa3_quantize_params seed", A_Quantize_Params.Seed'Position, A_Quantize_Params.Seed'Size);
   Field ("fa3_quantize_params x", A_Quantize_Params.X'Position, A_Quantize_Params.X'Size);
   Field ("fa3_quantize_params y", A_Quantize_Params.Y'Position, A_Quantize_Params.Y'Size);
   Field ("fa3_quantize_params scale", A_Quantize_Params.Scale'Position, A_Quantize_Params.Scale'Size);
   Field ("fa3_quantize_params mean", A_Quantize_Params.Mean'Position, A_Quantize_Params.Mean'Size);
   Field ("fa3_quantize_params rotary_cos", A_Quantize_Params.Rotary_Cos'Position, A_Quantize_Params.Rotary_Cos'Size);
   Field ("fa3_quantize_params rotary_sin", A_Quantize_Params.Rotary_Sin'Position, A_Quantize_Params.Rotary_Sin'Size);
   Field ("fa3_quantize_params k_mean", A_Quantize_Params.K_Mean'Position, A_Quantize_Params.K_Mean'Size);
   Field ("fa3_quantize_params lse_offset", A_Quantize_Params.LSE_Offset'Position, A_Quantize_Params.LSE_Offset'Size);
   Field ("fa3_quantize_params softmax_scale",
          A_Quantize_Params.Softmax_Scale'Position, A_Quantize_Params.Softmax_Scale'Size);
   Field ("fa3_quantize_params reserved", A_Quantize_Params.Reserved'Position, A_Quantize_Params.Reserved'Size);

   Struct ("fa3_append_params", Fa3.Append_Params'Size);
   Field ("fa3_append_params struct_size", A_Append_Params.Struct_Size'Position, A_Append_Params.Struct_Size'Size);
   Field ("fa3_append_params flags", A_Append_Params.Flags'Position, A_Append_Params.Flags'Size);
   Field ("fa3_append_params k", A_Append_Params.K'Position, A_Append_Params.K'Size);
   Field ("fa3_append_params v", A_Append_Params.V'Position, A_Append_Params.V'Size);
   Field ("fa3_append_params k_cache", A_Append_Params.K_Cache'Position, A_Append_Params.K_Cache'Size);
   Field ("fa3_append_params v_cache", A_Append_Params.V_Cache'Position, A_Append_Params.V_Cache'Size);
   Field ("fa3_append_params cache_seqlens",
          A_Append_Params.Cache_Seqlens'Position, A_Append_Params.Cache_Seqlens'Size);
   Field ("fa3_append_params cu_seqlens_new",
          A_Append_Params.Cu_Seqlens_New'Position, A_Append_Params.Cu_Seqlens_New'Size);
   Field ("fa3_append_params seqused_new", A_Append_Params.Seqused_New'Position, A_Append_Params.Seqused_New'Size);
   Field ("fa3_append_params page_table", A_Append_Params.Page_Table'Position, A_Append_Params.Page_Table'Size);
   Field ("fa3_append_params cache_batch_idx",
          A_Append_Params.Cache_Batch_Idx'Position, A_Append_Params.Cache_Batch_Idx'Size);
   Field ("fa3_append_params slot_mapping", A_Append_Params.Slot_Mapping'Position, A_Append_Params.Slot_Mapping'Size);
   Field ("fa3_append_params q", A_Append_Params.Q'Position, A_Append_Params.Q'Size);
   Field ("fa3_append_params q_out", A_Append_Params.Q_Out'Position, A_Append_Params.Q_Out'Size);
   Field ("fa3_append_params rotary_cos", A_Append_Params.Rotary_Cos'Position, A_Append_Params.Rotary_Cos'Size);
   Field ("fa3_append_params rotary_sin", A_Append_Params.Rotary_Sin'Position, A_Append_Params.Rotary_Sin'Size);
   Field ("fa3_append_params rotary_positions",
          A_Append_Params.Rotary_Positions'Position, A_Append_Params.Rotary_Positions'Size);
   Field ("fa3_append_params k_scale", A_Append_Params.K_Scale'Position, A_Append_Params.K_Scale'Size);
   Field ("fa3_append_params v_scale", A_Append_Params.V_Scale'Position, A_Append_Params.V_Scale'Size);
   Field ("fa3_append_params q_scale", A_Append_Params.Q_Scale'Position, A_Append_Params.Q_Scale'Size);

   Struct ("fa3_combine_params", Fa3.Combine_Params'Size);
   Field ("fa3_combine_params struct_size", A_Combine_Params.Struct_Size'Position, A_Combine_Params.Struct_Size'Size);
   Field ("fa3_combine_params flags", A_Combine_Params.Flags'Position, A_Combine_Params.Flags'Size);
   Field ("fa3_combine_params o_parts", A_Combine_Params.O_Parts'Position, A_Combine_Params.O_Parts'Size);
   Field ("fa3_combine_params lse_parts", A_Combine_Params.LSE_Parts'Position, A_Combine_Params.LSE_Parts'Size);
   Field ("fa3_combine_params o", A_Combine_Params.O'Position, A_Combine_Params.O'Size);
   Field ("fa3_combine_params lse", A_Combine_Params.LSE'Position, A_Combine_Params.LSE'Size);

   Struct ("fa3_kernel_info", Fa3.Kernel_Info'Size);
   Field ("fa3_kernel_info struct_size", A_Kernel_Info.Struct_Size'Position, A_Kernel_Info.Struct_Size'Size);
   Field ("fa3_kernel_info name", A_Kernel_Info.Name'Position, A_Kernel_Info.Name'Size);
   Field ("fa3_kernel_info kind", A_Kernel_Info.Kind'Position, A_Kernel_Info.Kind'Size);
   Field ("fa3_kernel_info dtype", A_Kernel_Info.Dtype'Position, A_Kernel_Info.Dtype'Size);
   Field ("fa3_kernel_info head_dim", A_Kernel_Info.Head_Dim'Position, A_Kernel_Info.Head_Dim'Size);
   Field ("fa3_kernel_info head_dim_v", A_Kernel_Info.Head_Dim_V'Position, A_Kernel_Info.Head_Dim_V'Size);
   Field ("fa3_kernel_info causal", A_Kernel_Info.Causal'Position, A_Kernel_Info.Causal'Size);
   Field ("fa3_kernel_info block_q", A_Kernel_Info.Block_Q'Position, A_Kernel_Info.Block_Q'Size);
   Field ("fa3_kernel_info block_kv", A_Kernel_Info.Block_KV'Position, A_Kernel_Info.Block_KV'Size);
   Field ("fa3_kernel_info stages", A_Kernel_Info.Stages'Position, A_Kernel_Info.Stages'Size);
   Field ("fa3_kernel_info threads", A_Kernel_Info.Threads'Position, A_Kernel_Info.Threads'Size);
   Field ("fa3_kernel_info producer_registers",
          A_Kernel_Info.Producer_Registers'Position, A_Kernel_Info.Producer_Registers'Size);
   Field ("fa3_kernel_info consumer_registers",
          A_Kernel_Info.Consumer_Registers'Position, A_Kernel_Info.Consumer_Registers'Size);
   Field ("fa3_kernel_info shared_memory_bytes",
          A_Kernel_Info.Shared_Memory_Bytes'Position, A_Kernel_Info.Shared_Memory_Bytes'Size);
   Field ("fa3_kernel_info chosen", A_Kernel_Info.Chosen'Position, A_Kernel_Info.Chosen'Size);
   Field ("fa3_kernel_info launches", A_Kernel_Info.Launches'Position, A_Kernel_Info.Launches'Size);
   Field ("fa3_kernel_info grid", A_Kernel_Info.Grid'Position, A_Kernel_Info.Grid'Size);
   Field ("fa3_kernel_info multiprocessors",
          A_Kernel_Info.Multiprocessors'Position, A_Kernel_Info.Multiprocessors'Size);
   Field ("fa3_kernel_info tiles", A_Kernel_Info.Tiles'Position, A_Kernel_Info.Tiles'Size);
   Field ("fa3_kernel_info pieces", A_Kernel_Info.Pieces'Position, A_Kernel_Info.Pieces'Size);

   Put ("OK", Long_Long_Integer (OK));
   Put ("ERROR_INVALID_ARGUMENT", Long_Long_Integer (Error_Invalid_Argument));
   Put ("ERROR_UNSUPPORTED", Long_Long_Integer (Error_Unsupported));
   Put ("ERROR_WORKSPACE_TOO_SMALL", Long_Long_Integer (Error_Workspace_Too_Small));
   Put ("ERROR_NO_DRIVER", Long_Long_Integer (Error_No_Driver));
   Put ("ERROR_NO_CONTEXT", Long_Long_Integer (Error_No_Context));
   Put ("ERROR_WRONG_DEVICE", Long_Long_Integer (Error_Wrong_Device));
   Put ("ERROR_NOT_LOADED", Long_Long_Integer (Error_Not_Loaded));
   Put ("ERROR_CUDA", Long_Long_Integer (Error_CUDA));
   Put ("ERROR_OUT_OF_MEMORY", Long_Long_Integer (Error_Out_Of_Memory));
   Put ("DTYPE_NONE", Long_Long_Integer (Dtype_None));
   Put ("DTYPE_BF16", Long_Long_Integer (Dtype_BF16));
   Put ("DTYPE_FP16", Long_Long_Integer (Dtype_FP16));
   Put ("DTYPE_FP32", Long_Long_Integer (Dtype_FP32));
   Put ("DTYPE_E4M3", Long_Long_Integer (Dtype_E4M3));
   Put ("DTYPE_E5M2", Long_Long_Integer (Dtype_E5M2));
   Put ("DTYPE_INT32", Long_Long_Integer (Dtype_Int32));
   Put ("DTYPE_INT64", Long_Long_Integer (Dtype_Int64));
   Put ("MASK_NONE", Long_Long_Integer (Mask_None));
   Put ("MASK_CAUSAL_TOP_LEFT", Long_Long_Integer (Mask_Causal_Top_Left));
   Put ("MASK_CAUSAL_BOTTOM_RIGHT", Long_Long_Integer (Mask_Causal_Bottom_Right));
   Put ("MASK_WINDOW", Long_Long_Integer (Mask_Window));
   Put ("MASK_CHUNK", Long_Long_Integer (Mask_Chunk));
   Put ("FLAG_DETERMINISTIC", Long_Long_Integer (Flag_Deterministic));
   Put ("FLAG_TWO_LEVEL", Long_Long_Integer (Flag_Two_Level));
   Put ("FLAG_BATCH_INVARIANT", Long_Long_Integer (Flag_Batch_Invariant));
   Put ("FLAG_CENTERED_K", Long_Long_Integer (Flag_Centered_K));
   Put ("FLAG_ACCUMULATE", Long_Long_Integer (Flag_Accumulate));
   Put ("QUANTIZE_INCOHERENT", Long_Long_Integer (Quantize_Incoherent));
   Put ("QUANTIZE_ROTARY_INTERLEAVED", Long_Long_Integer (Quantize_Rotary_Interleaved));
   Put ("APPEND_ROTARY_INTERLEAVED", Long_Long_Integer (Append_Rotary_Interleaved));
   Put ("KERNEL_FORWARD", Long_Long_Integer (Kernel_Forward));
   Put ("KERNEL_BACKWARD", Long_Long_Integer (Kernel_Backward));
   Put ("KERNEL_PASS", Long_Long_Integer (Kernel_Pass));
   Put ("MAX_RANK", Max_Rank);
   Put ("SCALE_ROWS", Scale_Rows);
   Put ("LATENT_SCALE_COLUMNS", Latent_Scale_Columns);
   Put ("FORWARD_WORKSPACE_BYTES", Forward_Workspace_Bytes);
end Layout;
