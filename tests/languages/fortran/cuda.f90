!> The little of the CUDA driver that is needed here, found when the program runs.
module cuda
  use, intrinsic :: iso_c_binding
  implicit none
  private
  public :: load_cuda, device_memory, device_copy, copy_to_host, device_free

  abstract interface
    integer(c_int) function init_function(flags) bind(c)
      import
      integer(c_int), value :: flags
    end function
    integer(c_int) function device_function(device, ordinal) bind(c)
      import
      integer(c_int), intent(out) :: device
      integer(c_int), value :: ordinal
    end function
    integer(c_int) function retain_function(context, device) bind(c)
      import
      type(c_ptr), intent(out) :: context
      integer(c_int), value :: device
    end function
    integer(c_int) function current_function(context) bind(c)
      import
      type(c_ptr), value :: context
    end function
    integer(c_int) function alloc_function(address, bytes) bind(c)
      import
      type(c_ptr), intent(out) :: address
      integer(c_size_t), value :: bytes
    end function
    integer(c_int) function free_function(address) bind(c)
      import
      type(c_ptr), value :: address
    end function
    integer(c_int) function copy_function(to, from, bytes) bind(c)
      import
      type(c_ptr), value :: to, from
      integer(c_size_t), value :: bytes
    end function
  end interface

  interface
    type(c_ptr) function dlopen(file, mode) bind(c)
      import
      character(kind=c_char), intent(in) :: file(*)
      integer(c_int), value :: mode
    end function
    type(c_funptr) function dlsym(library, name) bind(c)
      import
      type(c_ptr), value :: library
      character(kind=c_char), intent(in) :: name(*)
    end function
  end interface

  procedure(alloc_function), pointer :: cu_mem_alloc
  procedure(free_function), pointer :: cu_mem_free
  procedure(copy_function), pointer :: cu_memcpy_to_device, cu_memcpy_to_host

contains

  !> Makes the first device's primary context current. why: empty, or why it could not.
  subroutine load_cuda(why)
    character(:), allocatable, intent(out) :: why
    integer(c_int), parameter :: rtld_now = 2
    procedure(init_function), pointer :: cu_init
    procedure(device_function), pointer :: cu_device_get
    procedure(retain_function), pointer :: cu_primary_context
    procedure(current_function), pointer :: cu_set_current
    type(c_ptr) :: library, context
    integer(c_int) :: device

    why = ''
    library = dlopen('libcuda.so.1' // c_null_char, rtld_now)
    if (.not. c_associated(library)) then
      why = 'libcuda.so.1 cannot be loaded'
      return
    end if
    call c_f_procpointer(find('cuInit'), cu_init)
    call c_f_procpointer(find('cuDeviceGet'), cu_device_get)
    call c_f_procpointer(find('cuDevicePrimaryCtxRetain'), cu_primary_context)
    call c_f_procpointer(find('cuCtxSetCurrent'), cu_set_current)
    call c_f_procpointer(find('cuMemAlloc_v2'), cu_mem_alloc)
    call c_f_procpointer(find('cuMemFree_v2'), cu_mem_free)
    call c_f_procpointer(find('cuMemcpyHtoD_v2'), cu_memcpy_to_device)
    call c_f_procpointer(find('cuMemcpyDtoH_v2'), cu_memcpy_to_host)
    if (why /= '') return
    if (cu_init(0) /= 0) then
      why = 'the driver finds no device'
    else if (cu_device_get(device, 0) /= 0) then
      why = 'the driver finds no device'
    else if (cu_primary_context(context, device) /= 0) then
      why = 'the device has no context'
    else if (cu_set_current(context) /= 0) then
      why = 'the device has no context'
    end if

  contains

    type(c_funptr) function find(name)
      character(*), intent(in) :: name
      find = dlsym(library, name // c_null_char)
      if (.not. c_associated(find)) why = 'the driver has no ' // name
    end function
  end subroutine

  subroutine check(call, error)
    character(*), intent(in) :: call
    integer(c_int), intent(in) :: error
    if (error == 0) return
    print '(a, i0)', 'failed: ' // call // ': CUDA error ', error
    error stop 1
  end subroutine

  type(c_ptr) function device_memory(bytes)
    integer(c_size_t), intent(in) :: bytes
    call check('cuMemAlloc', cu_mem_alloc(device_memory, bytes))
  end function

  type(c_ptr) function device_copy(from, bytes)
    type(c_ptr), intent(in) :: from
    integer(c_size_t), intent(in) :: bytes
    device_copy = device_memory(bytes)
    call check('cuMemcpyHtoD', cu_memcpy_to_device(device_copy, from, bytes))
  end function

  !> Waits for what was enqueued on the default stream.
  subroutine copy_to_host(to, from, bytes)
    type(c_ptr), intent(in) :: to, from
    integer(c_size_t), intent(in) :: bytes
    call check('cuMemcpyDtoH', cu_memcpy_to_host(to, from, bytes))
  end subroutine

  subroutine device_free(address)
    type(c_ptr), intent(in) :: address
    call check('cuMemFree', cu_mem_free(address))
  end subroutine
end module
