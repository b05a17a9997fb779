--  fa3.h, declared for Ada: constants, records and functions as they are in C, without their prefix. fa3.h is the
--  manual.
--
--  A fresh record is the header's FA3_..._INIT but for Struct_Size: (Struct_Size => Forward_Params'Size / 8,
--  others => <>).
with Interfaces;   use Interfaces;
with Interfaces.C;
with Interfaces.C.Strings;
with System;

package Fa3 is

   pragma Linker_Options ("-lfa3");
   package C renames Interfaces.C;

   type Status is new C.int;

   OK                        : constant Status := 0;
   Error_Invalid_Argument    : constant Status := 1;
   Error_Unsupported         : constant Status := 2;
   Error_Workspace_Too_Small : constant Status := 3;
   Error_No_Driver           : constant Status := 4;
   Error_No_Context          : constant Status := 5;
   Error_Wrong_Device        : constant Status := 6;
   Error_Not_Loaded          : constant Status := 7;
   Error_CUDA                : constant Status := 8;
   Error_Out_Of_Memory       : constant Status := 9;

   Dtype_None  : constant Integer_32 := 0;
   Dtype_BF16  : constant Integer_32 := 1;
   Dtype_FP16  : constant Integer_32 := 2;
   Dtype_FP32  : constant Integer_32 := 3;
   Dtype_E4M3  : constant Integer_32 := 4;
   Dtype_E5M2  : constant Integer_32 := 5;
   Dtype_Int32 : constant Integer_32 := 6;
   Dtype_Int64 : constant Integer_32 := 7;

   Mask_None                : constant Integer_32 := 0;
   Mask_Causal_Top_Left     : constant Integer_32 := 1;
   Mask_Causal_Bottom_Right : constant Integer_32 := 2;
   Mask_Window              : constant Integer_32 := 3;
   Mask_Chunk               : constant Integer_32 := 4;

   Flag_Deterministic          : constant Unsigned_64 := 1;
   Flag_Two_Level              : constant Unsigned_64 := 2;
   Flag_Batch_Invariant        : constant Unsigned_64 := 4;
   Flag_Centered_K             : constant Unsigned_64 := 8;
   Flag_Accumulate             : constant Unsigned_64 := 16;
   Quantize_Incoherent         : constant Unsigned_64 := 1;
   Quantize_Rotary_Interleaved : constant Unsigned_64 := 2;
   Append_Rotary_Interleaved   : constant Unsigned_64 := 1;

   Kernel_Forward  : constant Integer_32 := 1;
   Kernel_Backward : constant Integer_32 := 2;
   Kernel_Pass     : constant Integer_32 := 3;

   Max_Rank                : constant := 5;
   Scale_Rows              : constant := 64;
   Latent_Scale_Columns    : constant := 128;
   Forward_Workspace_Bytes : constant := 64;

   type Numbers is array (0 .. Max_Rank - 1) of Integer_64 with Convention => C;

   --  A strided view of memory; strides count elements.
   type Tensor is record
      Data   : System.Address := System.Null_Address;
      Dtype  : Integer_32 := 0;
      Rank   : Integer_32 := 0;
      Dim    : Numbers := (others => 0);
      Stride : Numbers := (others => 0);
   end record with Convention => C;

   --  What the forward pass computes. Fields from Q_Scale on are for e4m3 only, those from Window_Left on for windows,
   --  sinks, packed lengths and pages.
   type Forward_Params is record
      Struct_Size     : C.size_t := 0;
      Flags           : Unsigned_64 := 0;
      Q               : Tensor;
      K               : Tensor;
      V               : Tensor;
      O               : Tensor;
      LSE             : Tensor;
      Mask            : Integer_32 := 0;
      Softmax_Scale   : IEEE_Float_32 := 0.0;
      Kernel          : System.Address := System.Null_Address;
      Q_Scale         : Tensor;
      K_Scale         : Tensor;
      V_Scale         : Tensor;
      O_Scale         : Tensor;
      V_Mean          : Tensor;
      LSE_Offset      : Tensor;
      Window_Left     : Integer_32 := 0;
      Window_Right    : Integer_32 := 0;
      Max_Seqlen_Q    : Integer_32 := 0;
      Max_Seqlen_K    : Integer_32 := 0;
      Sinks           : Tensor;
      Cu_Seqlens_Q    : Tensor;
      Cu_Seqlens_K    : Tensor;
      Seqused_Q       : Tensor;
      Seqused_K       : Tensor;
      Leftpad_K       : Tensor;
      Page_Table      : Tensor;
      Cache_Batch_Idx : Tensor;
      Schedule        : System.Address := System.Null_Address;
      Schedule_Bytes  : C.size_t := 0;
      --  Scores that are changed.
      Softcap         : C.C_float := 0.0;
      Reserved        : Interfaces.Integer_32 := 0;
      Alibi_Slopes    : Tensor;
      --  A second query.
      Qv              : Tensor;
   end record with Convention => C;

   --  Gradients of the forward pass.
   type Backward_Params is record
      Struct_Size   : C.size_t := 0;
      Flags         : Unsigned_64 := 0;
      Q             : Tensor;
      K             : Tensor;
      V             : Tensor;
      O             : Tensor;
      LSE           : Tensor;
      Dout          : Tensor;
      DQ            : Tensor;
      DK            : Tensor;
      DV            : Tensor;
      Mask          : Integer_32 := 0;
      Softmax_Scale : IEEE_Float_32 := 0.0;
      Kernel        : System.Address := System.Null_Address;
      Dlse          : Tensor;
      --  Windows, sinks and lengths.
      Window_Left   : Integer_32 := 0;
      Window_Right  : Integer_32 := 0;
      Sinks         : Tensor;
      Dsinks        : Tensor;
      Cu_Seqlens_Q  : Tensor;
      Cu_Seqlens_K  : Tensor;
      Seqused_Q     : Tensor;
      Seqused_K     : Tensor;
      Max_Seqlen_Q  : Integer_32 := 0;
      Max_Seqlen_K  : Integer_32 := 0;
      Softcap       : C.C_float := 0.0;
      Reserved      : Integer_32 := 0;
      Alibi_Slopes  : Tensor;
      --  Of e4m3.
      Q_Scale       : Tensor;
      K_Scale       : Tensor;
      V_Scale       : Tensor;
      V_Mean        : Tensor;
      LSE_Offset    : Tensor;
   end record with Convention => C;

   --  Makes e4m3 tensors with their scales from bf16 or fp16.
   type Quantize_Params is record
      Struct_Size   : C.size_t := 0;
      Flags         : Unsigned_64 := 0;
      Seed          : Unsigned_64 := 0;
      X             : Tensor;
      Y             : Tensor;
      Scale         : Tensor;
      Mean          : Tensor;
      Rotary_Cos    : Tensor;
      Rotary_Sin    : Tensor;
      K_Mean        : Tensor;
      LSE_Offset    : Tensor;
      Softmax_Scale : IEEE_Float_32 := 0.0;
      Reserved      : Integer_32 := 0;
   end record with Convention => C;

   --  Writes new rows of K and V into a cache.
   type Append_Params is record
      Struct_Size      : C.size_t := 0;
      Flags            : Unsigned_64 := 0;
      K                : Tensor;
      V                : Tensor;
      K_Cache          : Tensor;
      V_Cache          : Tensor;
      Cache_Seqlens    : Tensor;
      Cu_Seqlens_New   : Tensor;
      Seqused_New      : Tensor;
      Page_Table       : Tensor;
      Cache_Batch_Idx  : Tensor;
      Slot_Mapping     : Tensor;
      Q                : Tensor;
      Q_Out            : Tensor;
      Rotary_Cos       : Tensor;
      Rotary_Sin       : Tensor;
      Rotary_Positions : Tensor;
      K_Scale          : Tensor;
      V_Scale          : Tensor;
      Q_Scale          : Tensor;
   end record with Convention => C;

   --  Merges results over ranges of the keys.
   type Combine_Params is record
      Struct_Size : C.size_t := 0;
      Flags       : Unsigned_64 := 0;
      O_Parts     : Tensor;
      LSE_Parts   : Tensor;
      O           : Tensor;
      LSE         : Tensor;
   end record with Convention => C;

   --  A kernel, and how a call would run it.
   type Kernel_Info is record
      Struct_Size         : C.size_t := 0;
      Name                : C.char_array (0 .. 63) := (others => C.nul);
      Kind                : Integer_32 := 0;
      Dtype               : Integer_32 := 0;
      Head_Dim            : Integer_32 := 0;
      Head_Dim_V          : Integer_32 := 0;
      Causal              : Integer_32 := 0;
      Block_Q             : Integer_32 := 0;
      Block_KV            : Integer_32 := 0;
      Stages              : Integer_32 := 0;
      Threads             : Integer_32 := 0;
      Producer_Registers  : Integer_32 := 0;
      Consumer_Registers  : Integer_32 := 0;
      Shared_Memory_Bytes : Integer_32 := 0;
      Chosen              : Integer_32 := 0;
      Launches            : Integer_32 := 0;
      Grid                : Integer_32 := 0;
      Multiprocessors     : Integer_32 := 0;
      Tiles               : Integer_64 := 0;
      Pieces              : Integer_64 := 0;
   end record with Convention => C;

   function Tensor_Pack
     (Item : in out Tensor)
      return Status
      with Import, Convention => C, External_Name => "fa3_tensor_pack";

   function Forward_Check
     (Params : Forward_Params)
      return Status
      with Import, Convention => C, External_Name => "fa3_forward_check";

   function Forward_Workspace_Size
     (Params : Forward_Params; Multiprocessors : Integer_32; Bytes : out C.size_t)
      return Status
      with Import, Convention => C, External_Name => "fa3_forward_workspace_size";

   function Forward
     (Params : Forward_Params; Workspace : System.Address; Workspace_Bytes : C.size_t; Stream : System.Address)
      return Status
      with Import, Convention => C, External_Name => "fa3_forward";

   function Forward_Schedule_Size
     (Params : Forward_Params; Multiprocessors : Integer_32; Bytes : out C.size_t)
      return Status
      with Import, Convention => C, External_Name => "fa3_forward_schedule_size";

   function Forward_Schedule
     (Params : Forward_Params; Schedule : System.Address; Schedule_Bytes : C.size_t; Stream : System.Address)
      return Status
      with Import, Convention => C, External_Name => "fa3_forward_schedule";

   function Reference_Forward
     (Params : Forward_Params; Threads : C.int)
      return Status
      with Import, Convention => C, External_Name => "fa3_reference_forward";

   function Backward_Check
     (Params : Backward_Params)
      return Status
      with Import, Convention => C, External_Name => "fa3_backward_check";

   function Backward_Workspace_Size
     (Params : Backward_Params; Bytes : out C.size_t)
      return Status
      with Import, Convention => C, External_Name => "fa3_backward_workspace_size";

   function Backward
     (Params : Backward_Params; Workspace : System.Address; Workspace_Bytes : C.size_t; Stream : System.Address)
      return Status
      with Import, Convention => C, External_Name => "fa3_backward";

   function Reference_Backward
     (Params : Backward_Params; Threads : C.int)
      return Status
      with Import, Convention => C, External_Name => "fa3_reference_backward";

   function Quantize_Check
     (Params : Quantize_Params)
      return Status
      with Import, Convention => C, External_Name => "fa3_quantize_check";

   function Quantize_Workspace_Size
     (Params : Quantize_Params; Bytes : out C.size_t)
      return Status
      with Import, Convention => C, External_Name => "fa3_quantize_workspace_size";

   function Quantize
     (Params : Quantize_Params; Workspace : System.Address; Workspace_Bytes : C.size_t; Stream : System.Address)
      return Status
      with Import, Convention => C, External_Name => "fa3_quantize";

   function Reference_Quantize
     (Params : Quantize_Params)
      return Status
      with Import, Convention => C, External_Name => "fa3_reference_quantize";

   function Append_Check
     (Params : Append_Params)
      return Status
      with Import, Convention => C, External_Name => "fa3_append_check";

   function Append
     (Params : Append_Params; Stream : System.Address)
      return Status
      with Import, Convention => C, External_Name => "fa3_append";

   function Reference_Append
     (Params : Append_Params)
      return Status
      with Import, Convention => C, External_Name => "fa3_reference_append";

   function Combine_Check
     (Params : Combine_Params)
      return Status
      with Import, Convention => C, External_Name => "fa3_combine_check";

   function Combine
     (Params : Combine_Params; Stream : System.Address)
      return Status
      with Import, Convention => C, External_Name => "fa3_combine";

   function Reference_Combine
     (Params : Combine_Params)
      return Status
      with Import, Convention => C, External_Name => "fa3_reference_combine";

   function Forward_Kernel_Info
     (Params : Forward_Params; Multiprocessors, Launch : Integer_32; Info : in out Kernel_Info)
      return Status
      with Import, Convention => C, External_Name => "fa3_forward_kernel_info";

   function Backward_Kernel_Info
     (Params : Backward_Params; Multiprocessors, Launch : Integer_32; Info : in out Kernel_Info)
      return Status
      with Import, Convention => C, External_Name => "fa3_backward_kernel_info";

   function Kernel_Info_At
     (Index : C.int; Info : in out Kernel_Info)
      return Status
      with Import, Convention => C, External_Name => "fa3_kernel_info_at";

   function Preload return Status
      with Import, Convention => C, External_Name => "fa3_preload";

   function Kernel_Count return C.int
      with Import, Convention => C, External_Name => "fa3_kernel_count";

   function Version return C.int
      with Import, Convention => C, External_Name => "fa3_version";

   function ABI_Version return C.int
      with Import, Convention => C, External_Name => "fa3_abi_version";

   function Status_String (Of_Status : Status) return C.Strings.chars_ptr
      with Import, Convention => C, External_Name => "fa3_status_string";

   --  Valid until the calling thread's next call.
   function Last_Error_Message return C.Strings.chars_ptr
      with Import, Convention => C, External_Name => "fa3_last_error_message";

end Fa3;
