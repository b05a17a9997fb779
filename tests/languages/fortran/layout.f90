!> The layout of module fa3, to be compared with the header's. A field that is not named here is missing there.
module layout
  use fa3
  implicit none
  private
  public :: print_layout

  type(c_ptr) :: start !< of the struct whose fields are printed
  character(:), allocatable :: struct

contains

  subroutine print_layout()
    type(fa3_tensor), target :: tensor
    type(fa3_forward_params), target :: forward
    type(fa3_backward_params), target :: backward
    type(fa3_quantize_params), target :: quantize
    type(fa3_append_params), target :: append
    type(fa3_combine_params), target :: combine
    type(fa3_kernel_info), target :: info

    call begin('fa3_tensor', c_loc(tensor), c_sizeof(tensor))
    call field('data', c_loc(tensor%data), c_sizeof(tensor%data))
    call field('dtype', c_loc(tensor%dtype), c_sizeof(tensor%dtype))
    call field('rank', c_loc(tensor%rank), c_sizeof(tensor%rank))
    call field('dim', c_loc(tensor%dim), c_sizeof(tensor%dim))
    call field('stride', c_loc(tensor%stride), c_sizeof(tensor%stride))

    call begin('fa3_forward_params', c_loc(forward), c_sizeof(forward))
    call field('struct_size', c_loc(forward%struct_size), c_sizeof(forward%struct_size))
    call field('flags', c_loc(forward%flags), c_sizeof(forward%flags))
    call field('q', c_loc(forward%q), c_sizeof(forward%q))
    call field('k', c_loc(forward%k), c_sizeof(forward%k))
    call field('v', c_loc(forward%v), c_sizeof(forward%v))
    call field('o', c_loc(forward%o), c_sizeof(forward%o))
    call field('lse', c_loc(forward%lse), c_sizeof(forward%lse))
    call field('mask', c_loc(forward%mask), c_sizeof(forward%mask))
    call field('softmax_scale', c_loc(forward%softmax_scale), c_sizeof(forward%softmax_scale))
    call field('kernel', c_loc(forward%kernel), c_sizeof(forward%kernel))
    call field('q_scale', c_loc(forward%q_scale), c_sizeof(forward%q_scale))
    call field('k_scale', c_loc(forward%k_scale), c_sizeof(forward%k_scale))
    call field('v_scale', c_loc(forward%v_scale), c_sizeof(forward%v_scale))
    call field('o_scale', c_loc(forward%o_scale), c_sizeof(forward%o_scale))
    call field('v_mean', c_loc(forward%v_mean), c_sizeof(forward%v_mean))
    call field('lse_offset', c_loc(forward%lse_offset), c_sizeof(forward%lse_offset))
    call field('window_left', c_loc(forward%window_left), c_sizeof(forward%window_left))
    call field('window_right', c_loc(forward%window_right), c_sizeof(forward%window_right))
    call field('max_seqlen_q', c_loc(forward%max_seqlen_q), c_sizeof(forward%max_seqlen_q))
    call field('max_seqlen_k', c_loc(forward%max_seqlen_k), c_sizeof(forward%max_seqlen_k))
    call field('sinks', c_loc(forward%sinks), c_sizeof(forward%sinks))
    call field('cu_seqlens_q', c_loc(forward%cu_seqlens_q), c_sizeof(forward%cu_seqlens_q))
    call field('cu_seqlens_k', c_loc(forward%cu_seqlens_k), c_sizeof(forward%cu_seqlens_k))
    call field('seqused_q', c_loc(forward%seqused_q), c_sizeof(forward%seqused_q))
    call field('seqused_k', c_loc(forward%seqused_k), c_sizeof(forward%seqused_k))
    call field('leftpad_k', c_loc(forward%leftpad_k), c_sizeof(forward%leftpad_k))
    call field('page_table', c_loc(forward%page_table), c_sizeof(forward%page_table))
    call field('cache_batch_idx', c_loc(forward%cache_batch_idx), c_sizeof(forward%cache_batch_idx))
    call field('schedule', c_loc(forward%schedule), c_sizeof(forward%schedule))
    call field('schedule_bytes', c_loc(forward%schedule_bytes), c_sizeof(forward%schedule_bytes))
    call field('softcap', c_loc(forward%softcap), c_sizeof(forward%softcap))
    call field('reserved', c_loc(forward%reserved), c_sizeof(forward%reserved))
    call field('alibi_slopes', c_loc(forward%alibi_slopes), c_sizeof(forward%alibi_slopes))
    call field('qv', c_loc(forward%qv), c_sizeof(forward%qv))

    call begin('fa3_backward_params', c_loc(backward), c_sizeof(backward))
    call field('struct_size', c_loc(backward%struct_size), c_sizeof(backward%struct_size))
    call field('flags', c_loc(backward%flags), c_sizeof(backward%flags))
    call field('q', c_loc(backward%q), c_sizeof(backward%q))
    call field('k', c_loc(backward%k), c_sizeof(backward%k))
    call field('v', c_loc(backward%v), c_sizeof(backward%v))
    call field('o', c_loc(backward%o), c_sizeof(backward%o))
    call field('lse', c_loc(backward%lse), c_sizeof(backward%lse))
    call field('dout', c_loc(backward%dout), c_sizeof(backward%dout))
    call field('dq', c_loc(backward%dq), c_sizeof(backward%dq))
    call field('dk', c_loc(backward%dk), c_sizeof(backward%dk))
    call field('dv', c_loc(backward%dv), c_sizeof(backward%dv))
    call field('mask', c_loc(backward%mask), c_sizeof(backward%mask))
    call field('softmax_scale', c_loc(backward%softmax_scale), c_sizeof(backward%softmax_scale))
    call field('kernel', c_loc(backward%kernel), c_sizeof(backward%kernel))
    call field('dlse', c_loc(backward%dlse), c_sizeof(backward%dlse))
    call field('window_left', c_loc(backward%window_left), c_sizeof(backward%window_left))
    call field('window_right', c_loc(backward%window_right), c_sizeof(backward%window_right))
    call field('sinks', c_loc(backward%sinks), c_sizeof(backward%sinks))
    call field('dsinks', c_loc(backward%dsinks), c_sizeof(backward%dsinks))
    call field('cu_seqlens_q', c_loc(backward%cu_seqlens_q), c_sizeof(backward%cu_seqlens_q))
    call field('cu_seqlens_k', c_loc(backward%cu_seqlens_k), c_sizeof(backward%cu_seqlens_k))
    call field('seqused_q', c_loc(backward%seqused_q), c_sizeof(backward%seqused_q))
    call field('seqused_k', c_loc(backward%seqused_k), c_sizeof(backward%seqused_k))
    call field('max_seqlen_q', c_loc(backward%max_seqlen_q), c_sizeof(backward%max_seqlen_q))
    call field('max_seqlen_k', c_loc(backward%max_seqlen_k), c_sizeof(backward%max_seqlen_k))
    call field('softcap', c_loc(backward%softcap), c_sizeof(backward%softcap))
    call field('reserved', c_loc(backward%reserved), c_sizeof(backward%reserved))
    call field('alibi_slopes', c_loc(backward%alibi_slopes), c_sizeof(backward%alibi_slopes))
    call field('q_scale', c_loc(backward%q_scale), c_sizeof(backward%q_scale))
    call field('k_scale', c_loc(backward%k_scale), c_sizeof(backward%k_scale))
    call field('v_scale', c_loc(backward%v_scale), c_sizeof(backward%v_scale))
    call field('v_mean', c_loc(backward%v_mean), c_sizeof(backward%v_mean))
    call field('lse_offset', c_loc(backward%lse_offset), c_sizeof(backward%lse_offset))

    call begin('fa3_quantize_params', c_loc(quantize), c_sizeof(quantize))
    call field('struct_size', c_loc(quantize%struct_size), c_sizeof(quantize%struct_size))
    call field('flags', c_loc(quantize%flags), c_sizeof(quantize%flags))
    call field('seed', c_loc(quantize%seed), c_sizeof(quantize%seed))
    call field('x', c_loc(quantize%x), c_sizeof(quantize%x))
    call field('y', c_loc(quantize%y), c_sizeof(quantize%y))
    call field('scale', c_loc(quantize%scale), c_sizeof(quantize%scale))
    call field('mean', c_loc(quantize%mean), c_sizeof(quantize%mean))
    call field('rotary_cos', c_loc(quantize%rotary_cos), c_sizeof(quantize%rotary_cos))
    call field('rotary_sin', c_loc(quantize%rotary_sin), c_sizeof(quantize%rotary_sin))
    call field('k_mean', c_loc(quantize%k_mean), c_sizeof(quantize%k_mean))
    call field('lse_offset', c_loc(quantize%lse_offset), c_sizeof(quantize%lse_offset))
    call field('softmax_scale', c_loc(quantize%softmax_scale), c_sizeof(quantize%softmax_scale))
    call field('reserved', c_loc(quantize%reserved), c_sizeof(quantize%reserved))

    call begin('fa3_append_params', c_loc(append), c_sizeof(append))
    call field('struct_size', c_loc(append%struct_size), c_sizeof(append%struct_size))
    call field('flags', c_loc(append%flags), c_sizeof(append%flags))
    call field('k', c_loc(append%k), c_sizeof(append%k))
    call field('v', c_loc(append%v), c_sizeof(append%v))
    call field('k_cache', c_loc(append%k_cache), c_sizeof(append%k_cache))
    call field('v_cache', c_loc(append%v_cache), c_sizeof(append%v_cache))
    call field('cache_seqlens', c_loc(append%cache_seqlens), c_sizeof(append%cache_seqlens))
    call field('cu_seqlens_new', c_loc(append%cu_seqlens_new), c_sizeof(append%cu_seqlens_new))
    call field('seqused_new', c_loc(append%seqused_new), c_sizeof(append%seqused_new))
    call field('page_table', c_loc(append%page_table), c_sizeof(append%page_table))
    call field('cache_batch_idx', c_loc(append%cache_batch_idx), c_sizeof(append%cache_batch_idx))
    call field('slot_mapping', c_loc(append%slot_mapping), c_sizeof(append%slot_mapping))
    call field('q', c_loc(append%q), c_sizeof(append%q))
    call field('q_out', c_loc(append%q_out), c_sizeof(append%q_out))
    call field('rotary_cos', c_loc(append%rotary_cos), c_sizeof(append%rotary_cos))
    call field('rotary_sin', c_loc(append%rotary_sin), c_sizeof(append%rotary_sin))
    call field('rotary_positions', c_loc(append%rotary_positions), c_sizeof(append%rotary_positions))
    call field('k_scale', c_loc(append%k_scale), c_sizeof(append%k_scale))
    call field('v_scale', c_loc(append%v_scale), c_sizeof(append%v_scale))
    call field('q_scale', c_loc(append%q_scale), c_sizeof(append%q_scale))

    call begin('fa3_combine_params', c_loc(combine), c_sizeof(combine))
    call field('struct_size', c_loc(combine%struct_size), c_sizeof(combine%struct_size))
    call field('flags', c_loc(combine%flags), c_sizeof(combine%flags))
    call field('o_parts', c_loc(combine%o_parts), c_sizeof(combine%o_parts))
    call field('lse_parts', c_loc(combine%lse_parts), c_sizeof(combine%lse_parts))
    call field('o', c_loc(combine%o), c_sizeof(combine%o))
    call field('lse', c_loc(combine%lse), c_sizeof(combine%lse))

    call begin('fa3_kernel_info', c_loc(info), c_sizeof(info))
    call field('struct_size', c_loc(info%struct_size), c_sizeof(info%struct_size))
    call field('name', c_loc(info%name), c_sizeof(info%name))
    call field('kind', c_loc(info%kind), c_sizeof(info%kind))
    call field('dtype', c_loc(info%dtype), c_sizeof(info%dtype))
    call field('head_dim', c_loc(info%head_dim), c_sizeof(info%head_dim))
    call field('head_dim_v', c_loc(info%head_dim_v), c_sizeof(info%head_dim_v))
    call field('causal', c_loc(info%causal), c_sizeof(info%causal))
    call field('block_q', c_loc(info%block_q), c_sizeof(info%block_q))
    call field('block_kv', c_loc(info%block_kv), c_sizeof(info%block_kv))
    call field('stages', c_loc(info%stages), c_sizeof(info%stages))
    call field('threads', c_loc(info%threads), c_sizeof(info%threads))
    call field('producer_registers', c_loc(info%producer_registers), c_sizeof(info%producer_registers))
    call field('consumer_registers', c_loc(info%consumer_registers), c_sizeof(info%consumer_registers))
    call field('shared_memory_bytes', c_loc(info%shared_memory_bytes), c_sizeof(info%shared_memory_bytes))
    call field('chosen', c_loc(info%chosen), c_sizeof(info%chosen))
    call field('launches', c_loc(info%launches), c_sizeof(info%launches))
    call field('grid', c_loc(info%grid), c_sizeof(info%grid))
    call field('multiprocessors', c_loc(info%multiprocessors), c_sizeof(info%multiprocessors))
    call field('tiles', c_loc(info%tiles), c_sizeof(info%tiles))
    call field('pieces', c_loc(info%pieces), c_sizeof(info%pieces))

    print '(a, i0)', 'const FA3_OK ', FA3_OK
    print '(a, i0)', 'const FA3_ERROR_INVALID_ARGUMENT ', FA3_ERROR_INVALID_ARGUMENT
    print '(a, i0)', 'const FA3_ERROR_UNSUPPORTED ', FA3_ERROR_UNSUPPORTED
    print '(a, i0)', 'const FA3_ERROR_WORKSPACE_TOO_SMALL ', FA3_ERROR_WORKSPACE_TOO_SMALL
    print '(a, i0)', 'const FA3_ERROR_NO_DRIVER ', FA3_ERROR_NO_DRIVER
    print '(a, i0)', 'const FA3_ERROR_NO_CONTEXT ', FA3_ERROR_NO_CONTEXT
    print '(a, i0)', 'const FA3_ERROR_WRONG_DEVICE ', FA3_ERROR_WRONG_DEVICE
    print '(a, i0)', 'const FA3_ERROR_NOT_LOADED ', FA3_ERROR_NOT_LOADED
    print '(a, i0)', 'const FA3_ERROR_CUDA ', FA3_ERROR_CUDA
    print '(a, i0)', 'const FA3_ERROR_OUT_OF_MEMORY ', FA3_ERROR_OUT_OF_MEMORY
    print '(a, i0)', 'const FA3_DTYPE_NONE ', FA3_DTYPE_NONE
    print '(a, i0)', 'const FA3_DTYPE_BF16 ', FA3_DTYPE_BF16
    print '(a, i0)', 'const FA3_DTYPE_FP16 ', FA3_DTYPE_FP16
    print '(a, i0)', 'const FA3_DTYPE_FP32 ', FA3_DTYPE_FP32
    print '(a, i0)', 'const FA3_DTYPE_E4M3 ', FA3_DTYPE_E4M3
    print '(a, i0)', 'const FA3_DTYPE_E5M2 ', FA3_DTYPE_E5M2
    print '(a, i0)', 'const FA3_DTYPE_INT32 ', FA3_DTYPE_INT32
    print '(a, i0)', 'const FA3_DTYPE_INT64 ', FA3_DTYPE_INT64
    print '(a, i0)', 'const FA3_MASK_NONE ', FA3_MASK_NONE
    print '(a, i0)', 'const FA3_MASK_CAUSAL_TOP_LEFT ', FA3_MASK_CAUSAL_TOP_LEFT
    print '(a, i0)', 'const FA3_MASK_CAUSAL_BOTTOM_RIGHT ', FA3_MASK_CAUSAL_BOTTOM_RIGHT
    print '(a, i0)', 'const FA3_MASK_WINDOW ', FA3_MASK_WINDOW
    print '(a, i0)', 'const FA3_MASK_CHUNK ', FA3_MASK_CHUNK
    print '(a, i0)', 'const FA3_FLAG_DETERMINISTIC ', FA3_FLAG_DETERMINISTIC
    print '(a, i0)', 'const FA3_FLAG_TWO_LEVEL ', FA3_FLAG_TWO_LEVEL
    print '(a, i0)', 'const FA3_FLAG_BATCH_INVARIANT ', FA3_FLAG_BATCH_INVARIANT
    print '(a, i0)', 'const FA3_FLAG_CENTERED_K ', FA3_FLAG_CENTERED_K
    print '(a, i0)', 'const FA3_FLAG_ACCUMULATE ', FA3_FLAG_ACCUMULATE
    print '(a, i0)', 'const FA3_QUANTIZE_INCOHERENT ', FA3_QUANTIZE_INCOHERENT
    print '(a, i0)', 'const FA3_QUANTIZE_ROTARY_INTERLEAVED ', FA3_QUANTIZE_ROTARY_INTERLEAVED
    print '(a, i0)', 'const FA3_APPEND_ROTARY_INTERLEAVED ', FA3_APPEND_ROTARY_INTERLEAVED
    print '(a, i0)', 'const FA3_KERNEL_FORWARD ', FA3_KERNEL_FORWARD
    print '(a, i0)', 'const FA3_KERNEL_BACKWARD ', FA3_KERNEL_BACKWARD
    print '(a, i0)', 'const FA3_KERNEL_PASS ', FA3_KERNEL_PASS
    print '(a, i0)', 'const FA3_MAX_RANK ', FA3_MAX_RANK
    print '(a, i0)', 'const FA3_SCALE_ROWS ', FA3_SCALE_ROWS
    print '(a, i0)', 'const FA3_LATENT_SCALE_COLUMNS ', FA3_LATENT_SCALE_COLUMNS
    print '(a, i0)', 'const FA3_FORWARD_WORKSPACE_BYTES ', FA3_FORWARD_WORKSPACE_BYTES
  end subroutine

  subroutine begin(name, at, bytes)
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: at
    integer(c_size_t), intent(in) :: bytes
    struct = name
    start = at
    print '(a, i0)', 'struct ' // name // ' ', bytes
  end subroutine

  subroutine field(name, at, bytes)
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: at
    integer(c_size_t), intent(in) :: bytes
    integer(c_intptr_t) :: offset
    offset = transfer(at, offset) - transfer(start, offset)
    print '(a, i0, 1x, i0)', 'field ' // struct // ' ' // name // ' ', offset, bytes
  end subroutine
end module
