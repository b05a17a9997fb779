-- The little of the CUDA driver that is needed here, found when the program runs.
local ffi = require("ffi")

ffi.cdef [[
int cuInit(unsigned flags);
int cuDeviceGet(int* device, int ordinal);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxSetCurrent(void* context);
int cuMemAlloc_v2(void** address, size_t bytes);
int cuMemFree_v2(void* address);
int cuMemcpyHtoD_v2(void* to, const void* from, size_t bytes);
int cuMemcpyDtoH_v2(void* to, const void* from, size_t bytes);
]]

local cuda, lib = {}, nil

local function check(call, result)
  if result ~= 0 then error(call .. ": CUDA error " .. result, 0) end
end

-- Makes the first device's primary context current; an error without one.
function cuda.load()
  lib = ffi.load("libcuda.so.1")
  local device, context = ffi.new("int[1]"), ffi.new("void*[1]")
  check("cuInit", lib.cuInit(0))
  check("cuDeviceGet", lib.cuDeviceGet(device, 0))
  check("cuDevicePrimaryCtxRetain", lib.cuDevicePrimaryCtxRetain(context, device[0]))
  check("cuCtxSetCurrent", lib.cuCtxSetCurrent(context[0]))
end

-- Memory of the device, freed when nobody refers to it any more.
function cuda.memory(bytes)
  local address = ffi.new("void*[1]")
  check("cuMemAlloc", lib.cuMemAlloc_v2(address, bytes))
  return ffi.gc(address[0], lib.cuMemFree_v2)
end

function cuda.copy(array)
  local memory = cuda.memory(ffi.sizeof(array))
  check("cuMemcpyHtoD", lib.cuMemcpyHtoD_v2(memory, array, ffi.sizeof(array)))
  return memory
end

-- Waits for what was enqueued on the default stream.
function cuda.to_host(array, memory)
  check("cuMemcpyDtoH", lib.cuMemcpyDtoH_v2(array, memory, ffi.sizeof(array)))
  return array
end

return cuda
