!> fa3.h, declared for Fortran: constants, types and functions as they are in C. fa3.h is the manual.
!>
!> A fresh parameter type is the header's FA3_..._INIT but for struct_size, which is c_sizeof(params). Dims are in C's
!> order, the slowest first: q(head_dim, heads, seqlen_q, batch) of Fortran has dims batch, seqlen_q, heads, head_dim.
module fa3
  use, intrinsic :: iso_c_binding
  implicit none
  public

  enum, bind(c) ! fa3_status
    enumerator :: FA3_OK = 0
    enumerator :: FA3_ERROR_INVALID_ARGUMENT = 1
    enumerator :: FA3_ERROR_UNSUPPORTED = 2
    enumerator :: FA3_ERROR_WORKSPACE_TOO_SMALL = 3
    enumerator :: FA3_ERROR_NO_DRIVER = 4
    enumerator :: FA3_ERROR_NO_CONTEXT = 5
    enumerator :: FA3_ERROR_WRONG_DEVICE = 6
    enumerator :: FA3_ERROR_NOT_LOADED = 7
    enumerator :: FA3_ERROR_CUDA = 8
    enumerator :: FA3_ERROR_OUT_OF_MEMORY = 9
  end enum

  integer(c_int32_t), parameter :: FA3_DTYPE_NONE = 0, FA3_DTYPE_BF16 = 1, FA3_DTYPE_FP16 = 2, FA3_DTYPE_FP32 = 3, &
    FA3_DTYPE_E4M3 = 4, FA3_DTYPE_E5M2 = 5, FA3_DTYPE_INT32 = 6, FA3_DTYPE_INT64 = 7
  integer(c_int32_t), parameter :: FA3_MASK_NONE = 0, FA3_MASK_CAUSAL_TOP_LEFT = 1, &
    FA3_MASK_CAUSAL_BOTTOM_RIGHT = 2, FA3_MASK_WINDOW = 3, FA3_MASK_CHUNK = 4
  integer(c_int64_t), parameter :: FA3_FLAG_DETERMINISTIC = 1, FA3_FLAG_TWO_LEVEL = 2, &
    FA3_FLAG_BATCH_INVARIANT = 4, FA3_FLAG_CENTERED_K = 8, FA3_FLAG_ACCUMULATE = 16
  integer(c_int64_t), parameter :: FA3_QUANTIZE_INCOHERENT = 1, FA3_QUANTIZE_ROTARY_INTERLEAVED = 2
  integer(c_int64_t), parameter :: FA3_APPEND_ROTARY_INTERLEAVED = 1
  integer(c_int32_t), parameter :: FA3_KERNEL_FORWARD = 1, FA3_KERNEL_BACKWARD = 2, FA3_KERNEL_PASS = 3
  integer, parameter :: FA3_MAX_RANK = 5, FA3_SCALE_ROWS = 64, FA3_LATENT_SCALE_COLUMNS = 128
  integer, parameter :: FA3_FORWARD_WORKSPACE_BYTES = 64

  !> A strided view of memory; strides count elements.
  type, bind(c) :: fa3_tensor
    type(c_ptr) :: data = c_null_ptr
    integer(c_int32_t) :: dtype = 0
    integer(c_int32_t) :: rank = 0
    integer(c_int64_t) :: dim(FA3_MAX_RANK) = 0
    integer(c_int64_t) :: stride(FA3_MAX_RANK) = 0
  end type

  !> What the forward pass computes. Fields from q_scale on are for e4m3 only, those from window_left on for windows,
  !> sinks, packed lengths and pages.
  type, bind(c) :: fa3_forward_params
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: flags = 0
    type(fa3_tensor) :: q, k, v, o, lse
    integer(c_int32_t) :: mask = 0
    real(c_float) :: softmax_scale = 0
    type(c_ptr) :: kernel = c_null_ptr
    type(fa3_tensor) :: q_scale, k_scale, v_scale, o_scale, v_mean, lse_offset
    integer(c_int32_t) :: window_left = 0
    integer(c_int32_t) :: window_right = 0
    integer(c_int32_t) :: max_seqlen_q = 0
    integer(c_int32_t) :: max_seqlen_k = 0
    type(fa3_tensor) :: sinks
    type(fa3_tensor) :: cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, page_table, cache_batch_idx
    type(c_ptr) :: schedule = c_null_ptr
    integer(c_size_t) :: schedule_bytes = 0
    real(c_float) :: softcap = 0
    integer(c_int32_t) :: reserved = 0
    type(fa3_tensor) :: alibi_slopes
    type(fa3_tensor) :: qv
  end type

  !> Gradients of the forward pass. Fields from window_left on are for windows, sinks and lengths.
  type, bind(c) :: fa3_backward_params
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: flags = 0
    type(fa3_tensor) :: q, k, v, o, lse, dout
    type(fa3_tensor) :: dq, dk, dv
    integer(c_int32_t) :: mask = 0
    real(c_float) :: softmax_scale = 0
    type(c_ptr) :: kernel = c_null_ptr
    type(fa3_tensor) :: dlse
    integer(c_int32_t) :: window_left = 0
    integer(c_int32_t) :: window_right = 0
    type(fa3_tensor) :: sinks, dsinks
    type(fa3_tensor) :: cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k
    integer(c_int32_t) :: max_seqlen_q = 0
    integer(c_int32_t) :: max_seqlen_k = 0
    real(c_float) :: softcap = 0
    integer(c_int32_t) :: reserved = 0
    type(fa3_tensor) :: alibi_slopes
    type(fa3_tensor) :: q_scale, k_scale, v_scale, v_mean, lse_offset
  end type

  !> Makes e4m3 tensors with their scales from bf16 or fp16.
  type, bind(c) :: fa3_quantize_params
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: flags = 0
    integer(c_int64_t) :: seed = 0
    type(fa3_tensor) :: x, y, scale, mean, rotary_cos, rotary_sin, k_mean, lse_offset
    real(c_float) :: softmax_scale = 0
    integer(c_int32_t) :: reserved = 0
  end type

  !> Writes new rows of K and V into a cache.
  type, bind(c) :: fa3_append_params
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: flags = 0
    type(fa3_tensor) :: k, v, k_cache, v_cache
    type(fa3_tensor) :: cache_seqlens, cu_seqlens_new, seqused_new
    type(fa3_tensor) :: page_table, cache_batch_idx, slot_mapping
    type(fa3_tensor) :: q, q_out
    type(fa3_tensor) :: rotary_cos, rotary_sin, rotary_positions
    type(fa3_tensor) :: k_scale, v_scale, q_scale
  end type

  !> Merges results over ranges of the keys.
  type, bind(c) :: fa3_combine_params
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: flags = 0
    type(fa3_tensor) :: o_parts, lse_parts
    type(fa3_tensor) :: o, lse
  end type

  !> A kernel, and how a call would run it.
  type, bind(c) :: fa3_kernel_info
    integer(c_size_t) :: struct_size = 0
    character(kind=c_char) :: name(64) = c_null_char
    integer(c_int32_t) :: kind = 0
    integer(c_int32_t) :: dtype = 0
    integer(c_int32_t) :: head_dim = 0
    integer(c_int32_t) :: head_dim_v = 0
    integer(c_int32_t) :: causal = 0
    integer(c_int32_t) :: block_q = 0
    integer(c_int32_t) :: block_kv = 0
    integer(c_int32_t) :: stages = 0
    integer(c_int32_t) :: threads = 0
    integer(c_int32_t) :: producer_registers = 0
    integer(c_int32_t) :: consumer_registers = 0
    integer(c_int32_t) :: shared_memory_bytes = 0
    integer(c_int32_t) :: chosen = 0
    integer(c_int32_t) :: launches = 0
    integer(c_int32_t) :: grid = 0
    integer(c_int32_t) :: multiprocessors = 0
    integer(c_int64_t) :: tiles = 0
    integer(c_int64_t) :: pieces = 0
  end type

  interface
    integer(c_int) function fa3_tensor_pack(tensor) bind(c)
      import
      type(fa3_tensor), intent(inout) :: tensor
    end function

    integer(c_int) function fa3_forward_check(params) bind(c)
      import
      type(fa3_forward_params), intent(in) :: params
    end function
    integer(c_int) function fa3_forward_workspace_size(params, multiprocessors, bytes) bind(c)
      import
      type(fa3_forward_params), intent(in) :: params
      integer(c_int32_t), value :: multiprocessors
      integer(c_size_t), intent(out) :: bytes
    end function
    integer(c_int) function fa3_forward(params, workspace, workspace_bytes, stream) bind(c)
      import
      type(fa3_forward_params), intent(in) :: params
      type(c_ptr), value :: workspace
      integer(c_size_t), value :: workspace_bytes
      type(c_ptr), value :: stream
    end function
    integer(c_int) function fa3_forward_schedule_size(params, multiprocessors, bytes) bind(c)
      import
      type(fa3_forward_params), intent(in) :: params
      integer(c_int32_t), value :: multiprocessors
      integer(c_size_t), intent(out) :: bytes
    end function
    integer(c_int) function fa3_forward_schedule(params, schedule, schedule_bytes, stream) bind(c)
      import
      type(fa3_forward_params), intent(in) :: params
      type(c_ptr), value :: schedule
      integer(c_size_t), value :: schedule_bytes
      type(c_ptr), value :: stream
    end function
    integer(c_int) function fa3_reference_forward(params, threads) bind(c)
      import
      type(fa3_forward_params), intent(in) :: params
      integer(c_int), value :: threads
    end function

    integer(c_int) function fa3_backward_check(params) bind(c)
      import
      type(fa3_backward_params), intent(in) :: params
    end function
    integer(c_int) function fa3_backward_workspace_size(params, bytes) bind(c)
      import
      type(fa3_backward_params), intent(in) :: params
      integer(c_size_t), intent(out) :: bytes
    end function
    integer(c_int) function fa3_backward(params, workspace, workspace_bytes, stream) bind(c)
      import
      type(fa3_backward_params), intent(in) :: params
      type(c_ptr), value :: workspace
      integer(c_size_t), value :: workspace_bytes
      type(c_ptr), value :: stream
    end function
    integer(c_int) function fa3_reference_backward(params, threads) bind(c)
      import
      type(fa3_backward_params), intent(in) :: params
      integer(c_int), value :: threads
    end function

    integer(c_int) function fa3_quantize_check(params) bind(c)
      import
      type(fa3_quantize_params), intent(in) :: params
    end function
    integer(c_int) function fa3_quantize_workspace_size(params, bytes) bind(c)
      import
      type(fa3_quantize_params), intent(in) :: params
      integer(c_size_t), intent(out) :: bytes
    end function
    integer(c_int) function fa3_quantize(params, workspace, workspace_bytes, stream) bind(c)
      import
      type(fa3_quantize_params), intent(in) :: params
      type(c_ptr), value :: workspace
      integer(c_size_t), value :: workspace_bytes
      type(c_ptr), value :: stream
    end function
    integer(c_int) function fa3_reference_quantize(params) bind(c)
      import
      type(fa3_quantize_params), intent(in) :: params
    end function

    integer(c_int) function fa3_append_check(params) bind(c)
      import
      type(fa3_append_params), intent(in) :: params
    end function
    integer(c_int) function fa3_append(params, stream) bind(c)
      import
      type(fa3_append_params), intent(in) :: params
      type(c_ptr), value :: stream
    end function
    integer(c_int) function fa3_reference_append(params) bind(c)
      import
      type(fa3_append_params), intent(in) :: params
    end function
    integer(c_int) function fa3_combine_check(params) bind(c)
      import
      type(fa3_combine_params), intent(in) :: params
    end function
    integer(c_int) function fa3_combine(params, stream) bind(c)
      import
      type(fa3_combine_params), intent(in) :: params
      type(c_ptr), value :: stream
    end function
    integer(c_int) function fa3_reference_combine(params) bind(c)
      import
      type(fa3_combine_params), intent(in) :: params
    end function

    integer(c_int) function fa3_forward_kernel_info(params, multiprocessors, launch, info) bind(c)
      import
      type(fa3_forward_params), intent(in) :: params
      integer(c_int32_t), value :: multiprocessors, launch
      type(fa3_kernel_info), intent(inout) :: info
    end function
    integer(c_int) function fa3_backward_kernel_info(params, multiprocessors, launch, info) bind(c)
      import
      type(fa3_backward_params), intent(in) :: params
      integer(c_int32_t), value :: multiprocessors, launch
      type(fa3_kernel_info), intent(inout) :: info
    end function
    integer(c_int) function fa3_kernel_count() bind(c)
      import
    end function
    integer(c_int) function fa3_kernel_info_at(index, info) bind(c)
      import
      integer(c_int), value :: index
      type(fa3_kernel_info), intent(inout) :: info
    end function
    integer(c_int) function fa3_preload() bind(c)
      import
    end function

    integer(c_int) function fa3_version() bind(c)
      import
    end function
    integer(c_int) function fa3_abi_version() bind(c)
      import
    end function
    !> A zero-terminated text; see `text`.
    type(c_ptr) function fa3_status_string(status) bind(c)
      import
      integer(c_int), value :: status
    end function
    !> The same; valid until the thread's next call.
    type(c_ptr) function fa3_last_error_message() bind(c)
      import
    end function
  end interface

contains

  !> A text of C's.
  function text(address)
    type(c_ptr), intent(in) :: address
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i
    interface
      integer(c_size_t) function strlen(address) bind(c)
        import
        type(c_ptr), value :: address
      end function
    end interface
    call c_f_pointer(address, letters, [strlen(address)])
    allocate (character(size(letters)) :: text)
    do i = 1, size(letters)
      text(i:i) = letters(i)
    end do
  end function
end module
