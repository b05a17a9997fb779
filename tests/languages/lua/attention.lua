#!/usr/bin/env luajit
-- Attention from LuaJIT: on the CPU, checked against plain double precision, then on a Hopper GPU.
--
--   ../declarations.py lua ../../../include/fa3.h fa3.lua layout.lua
--   LD_LIBRARY_PATH=FOLDER_OF_LIBFA3 luajit attention.lua
package.path = arg[0]:gsub("[^/]*$", "?.lua;", 1) .. package.path
local ffi = require("ffi")
local bit = require("bit")
local fa3 = require("fa3")
local cuda = require("cuda")

if arg[1] == "--layout" then
  require("layout")
  return
end

local batch, seqlen_q, seqlen_k, heads, heads_kv, head_dim = 2, 40, 48, 4, 2, 64
local q_size, kv_size = batch * seqlen_q * heads * head_dim, batch * seqlen_k * heads_kv * head_dim
local lse_size = batch * heads * seqlen_q

-- Arrays begin at multiples of 16 bytes, as tensors must.
ffi.cdef [[typedef struct { __attribute__((aligned(16))) uint16_t x[?]; } bf16_array;]]
local function bf16(n) return ffi.new("bf16_array", n) end
local function fp32(n) return ffi.new("float[?]", n) end

-- ---- numbers ------------------------------------------------------------------------------------------------------

local pun = ffi.new("union { float value; uint32_t bits; }")

local function to_bf16(x) -- the nearest; of two, the even one
  pun.value = x
  return bit.rshift(pun.bits + 0x7fff + bit.band(bit.rshift(pun.bits, 16), 1), 16)
end

local function number(x)
  pun.bits = x * 65536
  return pun.value
end

local state = 1 -- of Lehmer's generator

local function random_numbers(n) -- between -2 and 2
  local array = bf16(n)
  for i = 0, n - 1 do
    state = state * 16807 % 2147483647
    array.x[i] = to_bf16(state / 2147483647 * 4 - 2)
  end
  return array
end

local function checksum(sum, array, n)
  for i = 0, n - 1 do sum = (sum * 31 + array.x[i]) % 2147483647 end
  return sum
end

-- ---- attention, plainly -------------------------------------------------------------------------------------------

-- O and LSE in double precision. A causal mask that ends in the bottom right corner: query i sees key j if
-- j <= i + seqlen_k - seqlen_q.
local function attention(q, k, v)
  local o, lse = ffi.new("double[?]", q_size), ffi.new("double[?]", lse_size)
  for b = 0, batch - 1 do
    for h = 0, heads - 1 do
      for i = 0, seqlen_q - 1 do
        local row, sum = ((b * seqlen_q + i) * heads + h) * head_dim, 0
        for j = 0, i + seqlen_k - seqlen_q do
          local key = ((b * seqlen_k + j) * heads_kv + math.floor(h / (heads / heads_kv))) * head_dim
          local score = 0
          for c = 0, head_dim - 1 do score = score + number(q.x[row + c]) * number(k.x[key + c]) end
          local p = math.exp(score / math.sqrt(head_dim))
          for c = 0, head_dim - 1 do o[row + c] = o[row + c] + p * number(v.x[key + c]) end
          sum = sum + p
        end
        for c = 0, head_dim - 1 do o[row + c] = o[row + c] / sum end
        lse[(b * heads + h) * seqlen_q + i] = math.log(sum)
      end
    end
  end
  return o, lse
end

-- at: arrays of the host, or memory of the device
local function forward(at)
  local lib, params = fa3.lib, fa3.new("fa3_forward_params")
  params.q = fa3.tensor(at.q, lib.FA3_DTYPE_BF16, { batch, seqlen_q, heads, head_dim })
  params.k = fa3.tensor(at.k, lib.FA3_DTYPE_BF16, { batch, seqlen_k, heads_kv, head_dim })
  params.v = fa3.tensor(at.v, lib.FA3_DTYPE_BF16, { batch, seqlen_k, heads_kv, head_dim })
  params.o = fa3.tensor(at.o, lib.FA3_DTYPE_BF16, { batch, seqlen_q, heads, head_dim })
  params.lse = fa3.tensor(at.lse, lib.FA3_DTYPE_FP32, { batch, heads, seqlen_q })
  params.mask = lib.FA3_MASK_CAUSAL_BOTTOM_RIGHT -- softmax_scale 0: 1/sqrt(head_dim)
  return params
end

local function workspace_size(params, multiprocessors)
  local bytes = ffi.new("size_t[1]")
  fa3.check(fa3.lib.fa3_forward_workspace_size(params, multiprocessors, bytes))
  return tonumber(bytes[0])
end

-- ---- on the CPU ---------------------------------------------------------------------------------------------------

local function on_cpu(host)
  local sum = checksum(checksum(checksum(0, host.q, q_size), host.k, kv_size), host.v, kv_size)
  print("inputs: checksum " .. sum)
  local params = forward(host)
  fa3.check(fa3.lib.fa3_reference_forward(params, 0))
  local o, lse = attention(host.q, host.k, host.v)
  for i = 0, q_size - 1 do -- half a unit in the last of bf16's 8 bits is at most 2^-8 of the number
    local right = math.abs(number(host.o.x[i]) - o[i]) <= math.abs(o[i]) / 256 + 1e-6
    assert(right, "O is not as in double precision")
  end
  for i = 0, lse_size - 1 do
    local right = math.abs(host.lse[i] - lse[i]) <= 1e-6 * math.max(1, math.abs(lse[i]))
    assert(right, "LSE is not as in double precision")
  end
  print("cpu: O and LSE as in double precision")

  params.k.stride[1] = params.k.stride[1] + 1
  local accepted, refusal = pcall(fa3.check, fa3.lib.fa3_forward_check(params))
  assert(not accepted, "a wrong stride was accepted")
  print("refused: " .. refusal)
  params.k.stride[1] = params.k.stride[1] - 1

  fa3.check(fa3.lib.fa3_forward_check(params))
  print("workspace: " .. workspace_size(params, 132) .. " bytes on 132 multiprocessors")
end

-- ---- on the GPU ---------------------------------------------------------------------------------------------------

local function on_gpu(host)
  local found, why = pcall(function()
    cuda.load()
    return workspace_size(forward(host), 0)
  end)
  if not found then
    print("no Hopper GPU: " .. why)
    return
  end
  local bytes = why
  local device = {
    q = cuda.copy(host.q), k = cuda.copy(host.k), v = cuda.copy(host.v),
    o = cuda.memory(ffi.sizeof(host.o)), lse = cuda.memory(ffi.sizeof(host.lse)),
  }
  local workspace = cuda.memory(bytes)
  fa3.check(fa3.lib.fa3_forward(forward(device), workspace, bytes, nil))

  local o, lse, largest = cuda.to_host(bf16(q_size), device.o), cuda.to_host(fp32(lse_size), device.lse), 0
  for i = 0, q_size - 1 do largest = math.max(largest, math.abs(number(host.o.x[i]))) end
  for i = 0, q_size - 1 do -- a few roundings to bf16, which has 8 bits, may lie between them
    assert(math.abs(number(o.x[i]) - number(host.o.x[i])) <= largest / 64, "O is not as on the CPU")
  end
  for i = 0, lse_size - 1 do
    assert(math.abs(lse[i] - host.lse[i]) <= 1e-4, "LSE is not as on the CPU")
  end
  print("gpu: O and LSE as on the CPU")
end

local host = { q = random_numbers(q_size), k = random_numbers(kv_size), v = random_numbers(kv_size) }
host.o, host.lse = bf16(q_size), fp32(lse_size)
local right, problem = pcall(function()
  on_cpu(host)
  on_gpu(host)
end)
if not right then
  print("failed: " .. tostring(problem))
  os.exit(1)
end
