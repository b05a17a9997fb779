!> Attention from Fortran: on the CPU, checked against plain double precision, then on a Hopper GPU.
!>
!>   ../declarations.py fortran ../../../include/fa3.h fa3.f90 layout.f90
!>   gfortran fa3.f90 cuda.f90 layout.f90 attention.f90 -o attention -lfa3
program attention
  use fa3
  use cuda
  use layout
  implicit none

  integer, parameter :: batch = 2, seqlen_q = 40, seqlen_k = 48, heads = 4, heads_kv = 2, head_dim = 64
  integer, parameter :: real64 = c_double, int16 = c_int16_t, int32 = c_int32_t, int64 = c_int64_t

  type problem !< all of it on the host, or all on the device
    type(c_ptr) :: q, k, v, o, lse
  end type

  ! bf16, as what it is in memory: 16 bits
  integer(int16), allocatable, target :: q(:, :, :, :), k(:, :, :, :), v(:, :, :, :), o(:, :, :, :)
  real(c_float), allocatable, target :: lse(:, :, :)
  integer(int64) :: state = 1 !< of Lehmer's generator
  character(8) :: argument
  type(problem) :: host

  call get_command_argument(1, argument)
  if (argument == '--layout') then
    call print_layout()
    stop
  end if
  allocate (q(head_dim, heads, seqlen_q, batch), o(head_dim, heads, seqlen_q, batch))
  allocate (k(head_dim, heads_kv, seqlen_k, batch), v(head_dim, heads_kv, seqlen_k, batch))
  allocate (lse(seqlen_q, heads, batch))
  call random_numbers(q, size(q))
  call random_numbers(k, size(k))
  call random_numbers(v, size(v))
  host = problem(c_loc(q), c_loc(k), c_loc(v), c_loc(o), c_loc(lse))
  call on_cpu()
  call on_gpu()

contains

  subroutine expect(right, what)
    logical, intent(in) :: right
    character(*), intent(in) :: what
    if (right) return
    print '(a)', 'failed: ' // what
    error stop 1
  end subroutine

  !> Every function of the library returns a status, and the reason in words stays for this thread's next call.
  subroutine check(status)
    integer(c_int), intent(in) :: status
    call expect(status == FA3_OK, refusal(status))
  end subroutine

  function refusal(status)
    integer(c_int), intent(in) :: status
    character(:), allocatable :: refusal
    refusal = text(fa3_status_string(status)) // ': ' // text(fa3_last_error_message())
  end function

  ! ---- numbers -----------------------------------------------------------------------------------------------------

  !> The nearest; of two, the even one.
  elemental integer(int16) function to_bf16(x)
    real(c_float), intent(in) :: x
    integer(int64) :: bits
    bits = iand(int(transfer(x, 0_int32), int64), int(z'ffffffff', int64))
    bits = shiftr(bits + int(z'7fff', int64) + iand(shiftr(bits, 16), 1_int64), 16)
    to_bf16 = int(merge(bits - 65536, bits, bits > 32767), int16)
  end function

  elemental real(real64) function number(x)
    integer(int16), intent(in) :: x
    number = transfer(shiftl(int(x, int32), 16), 0.0_c_float)
  end function

  subroutine random_numbers(x, n) !< between -2 and 2
    integer, intent(in) :: n
    integer(int16), intent(out) :: x(n)
    integer :: i
    do i = 1, n
      state = mod(state * 16807, 2147483647_int64)
      x(i) = to_bf16(real(state / 2147483647.0_real64 * 4 - 2, c_float))
    end do
  end subroutine

  integer(int64) function checksum(x, n, sum_before)
    integer, intent(in) :: n
    integer(int16), intent(in) :: x(n)
    integer(int64), intent(in) :: sum_before
    integer :: i
    checksum = sum_before
    do i = 1, n
      checksum = mod(checksum * 31 + modulo(int(x(i), int64), 65536_int64), 2147483647_int64)
    end do
  end function

  ! ---- attention, plainly ------------------------------------------------------------------------------------------

  !> O and LSE of one head in double precision. A causal mask that ends in the bottom right corner: query i sees key j
  !> if j <= i + seqlen_k - seqlen_q.
  subroutine plain_head(q, k, v, o, lse)
    real(real64), intent(in) :: q(head_dim, seqlen_q), k(head_dim, seqlen_k), v(head_dim, seqlen_k)
    real(real64), intent(out) :: o(head_dim, seqlen_q), lse(seqlen_q)
    real(real64) :: p(seqlen_k)
    integer :: i, keys
    do i = 1, seqlen_q
      keys = i + seqlen_k - seqlen_q
      p(:keys) = exp(matmul(q(:, i), k(:, :keys)) / sqrt(real(head_dim, real64)))
      o(:, i) = matmul(v(:, :keys), p(:keys)) / sum(p(:keys))
      lse(i) = log(sum(p(:keys)))
    end do
  end subroutine

  subroutine plain(o, lse)
    real(real64), intent(out) :: o(head_dim, heads, seqlen_q, batch), lse(seqlen_q, heads, batch)
    integer :: b, h, kv
    do b = 1, batch
      do h = 1, heads
        kv = (h - 1) / (heads / heads_kv) + 1
        call plain_head(number(q(:, h, :, b)), number(k(:, kv, :, b)), number(v(:, kv, :, b)), o(:, h, :, b), &
          lse(:, h, b))
      end do
    end do
  end subroutine

  ! ---- parameters --------------------------------------------------------------------------------------------------

  type(fa3_tensor) function packed(at, dtype, dims) !< without gaps
    type(c_ptr), intent(in) :: at
    integer(c_int32_t), intent(in) :: dtype
    integer, intent(in) :: dims(:)
    packed%data = at
    packed%dtype = dtype
    packed%rank = size(dims)
    packed%dim(:size(dims)) = dims
    call check(fa3_tensor_pack(packed))
  end function

  type(fa3_forward_params) function forward(at)
    type(problem), intent(in) :: at
    forward%struct_size = c_sizeof(forward)
    forward%q = packed(at%q, FA3_DTYPE_BF16, [batch, seqlen_q, heads, head_dim])
    forward%k = packed(at%k, FA3_DTYPE_BF16, [batch, seqlen_k, heads_kv, head_dim])
    forward%v = packed(at%v, FA3_DTYPE_BF16, [batch, seqlen_k, heads_kv, head_dim])
    forward%o = packed(at%o, FA3_DTYPE_BF16, [batch, seqlen_q, heads, head_dim])
    forward%lse = packed(at%lse, FA3_DTYPE_FP32, [batch, heads, seqlen_q])
    forward%mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT ! softmax_scale 0: 1/sqrt(head_dim)
  end function

  ! ---- on the CPU --------------------------------------------------------------------------------------------------

  subroutine on_cpu()
    real(real64), allocatable :: exact(:, :, :, :), exact_lse(:, :, :)
    type(fa3_forward_params) :: params
    integer(c_size_t) :: bytes
    integer(c_int) :: status

    print '(a, i0)', 'inputs: checksum ', checksum(v, size(v), checksum(k, size(k), checksum(q, size(q), 0_int64)))
    params = forward(host)
    call check(fa3_reference_forward(params, 0))
    allocate (exact(head_dim, heads, seqlen_q, batch), exact_lse(seqlen_q, heads, batch))
    call plain(exact, exact_lse)
    ! half a unit in the last of bf16's 8 bits is at most 2^-8 of the number
    call expect(all(abs(number(o) - exact) <= abs(exact) / 256 + 1e-6_real64), 'O is not as in double precision')
    call expect(all(abs(lse - exact_lse) <= 1e-6_real64 * max(1.0_real64, abs(exact_lse))), &
      'LSE is not as in double precision')
    print '(a)', 'cpu: O and LSE as in double precision'

    params%k%stride(2) = params%k%stride(2) + 1
    status = fa3_forward_check(params)
    call expect(status /= FA3_OK, 'a wrong stride was accepted')
    print '(a)', 'refused: ' // refusal(status)
    params%k%stride(2) = params%k%stride(2) - 1

    call check(fa3_forward_check(params))
    call check(fa3_forward_workspace_size(params, 132, bytes))
    print '(a, i0, a)', 'workspace: ', bytes, ' bytes on 132 multiprocessors'
  end subroutine

  ! ---- on the GPU --------------------------------------------------------------------------------------------------

  subroutine on_gpu()
    integer(int16), allocatable, target :: device_o(:, :, :, :)
    real(c_float), allocatable, target :: device_lse(:, :, :)
    character(:), allocatable :: why
    type(fa3_forward_params) :: params
    type(problem) :: device
    type(c_ptr) :: workspace
    integer(c_size_t) :: bytes, q_bytes, kv_bytes, lse_bytes

    call load_cuda(why)
    params = forward(host)
    if (why == '') then
      if (fa3_forward_workspace_size(params, 0, bytes) /= FA3_OK) why = text(fa3_last_error_message())
    end if
    if (why /= '') then
      print '(a)', 'no Hopper GPU: ' // why
      return
    end if
    q_bytes = 2 * size(q)
    kv_bytes = 2 * size(k)
    lse_bytes = 4 * size(lse)
    device%q = device_copy(host%q, q_bytes)
    device%k = device_copy(host%k, kv_bytes)
    device%v = device_copy(host%v, kv_bytes)
    device%o = device_memory(q_bytes)
    device%lse = device_memory(lse_bytes)
    workspace = device_memory(bytes)
    params = forward(device)
    call check(fa3_forward(params, workspace, bytes, c_null_ptr))

    allocate (device_o, mold=o)
    allocate (device_lse, mold=lse)
    call copy_to_host(c_loc(device_o), device%o, q_bytes)
    call copy_to_host(c_loc(device_lse), device%lse, lse_bytes)
    ! a few roundings to bf16, which has 8 bits, may lie between them
    call expect(all(abs(number(device_o) - number(o)) <= maxval(abs(number(o))) / 64), 'O is not as on the CPU')
    call expect(all(abs(device_lse - lse) <= 1e-4), 'LSE is not as on the CPU')
    print '(a)', 'gpu: O and LSE as on the CPU'
    call device_free(device%q)
    call device_free(device%k)
    call device_free(device%v)
    call device_free(device%o)
    call device_free(device%lse)
    call device_free(workspace)
  end subroutine
end program
