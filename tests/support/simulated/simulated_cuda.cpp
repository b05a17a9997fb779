// A driver without a GPU: device memory is host memory, a launch computes attention by the CPU reference from what the
// launch carries (tensor maps and parameter block). With it the GPU test suite runs on the CPU, which tests the suite
// and the host, not the kernels. It refuses what the real driver does, and parameters that contradict each other.
#include <cuda.h>
#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "append.h"
#include "backward.h"
#include "driver_rules.h"
#include "fa3.h"
#include "launched.h"
#include "served.h"
#include "simulated_cuda.h"

namespace {

using fa3::test::Fault;

using Clock = std::chrono::steady_clock;

// A place for a context, used again when that is destroyed: handles come back, ids do not.
struct Context {
  unsigned long long id;  // 0: none here
};
struct Function {
  unsigned long long context_id;
  std::string name;
  unsigned shared = 0;
};
using Launch = fa3::test::Launched;
struct Stream {
  unsigned long long context_id;
  bool capturing = false;
  std::vector<Launch> captured;
};
struct Graph {
  std::vector<Launch> launches;
};
struct Event {
  Clock::time_point time;
};
// What a tensor map holds here, in place of the hardware's encoding.
struct Map {
  uint64_t magic;
  void* data;
  int32_t dtype;
  uint32_t rank;
  // head_dim, seqlen, heads, batch; of V as tiles 256, head_dim / 16, groups of keys, heads, batch; of packed heads
  // head_dim, heads of a K/V head, seqlen, K/V heads, batch
  uint32_t dim[5];
  uint64_t stride[4];  // bytes, of all but the first
  uint32_t box[3];     // of the first
};
constexpr uint64_t magic = 0x5369'6d75'6c61'7465;
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

Context contexts[64], primary;
unsigned long long last_id = 0;
std::mutex lock;  // of these

Fault fault = Fault::none;
int launches_before_fault = 0;

// Of the calling thread. Another one may have destroyed it meanwhile.
thread_local struct {
  Context* context;
  unsigned long long id;
} current{};

CUresult make_current(Context* context) {
  std::lock_guard guard(lock);
  current = {context, context ? context->id : 0};
  return CUDA_SUCCESS;
}

CUresult check_current() {
  std::lock_guard guard(lock);
  if (!current.context) return CUDA_ERROR_INVALID_CONTEXT;
  return current.context->id == current.id ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

template <class Type>
Type* as(const void* handle) {
  return static_cast<Type*>(const_cast<void*>(handle));
}

fa3_dtype dtype_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return FA3_DTYPE_BF16;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16: return FA3_DTYPE_FP16;
    default: return FA3_DTYPE_E4M3;
  }
}
fa3_dtype dtype_of(fa3::Dtype dtype) {
  switch (dtype) {
    case fa3::Dtype::bf16: return FA3_DTYPE_BF16;
    case fa3::Dtype::fp16: return FA3_DTYPE_FP16;
    default: return FA3_DTYPE_E4M3;
  }
}
int element_bytes(int32_t dtype) { return dtype == FA3_DTYPE_E4M3 ? 1 : 2; }

fa3_tensor tensor(const fa3::TensorMap& encoded) {
  Map map;
  std::memcpy(&map, &encoded, sizeof map);
  if (map.magic != magic) std::abort();
  const auto stride = [&](int i) { return i == 0 ? 1 : int64_t(map.stride[i - 1]) / element_bytes(map.dtype); };
  if (map.rank == 5)
    return {map.data, map.dtype, 5, {map.dim[4], map.dim[3], map.dim[2], int64_t{16} * map.dim[1], 16},
            {stride(4), stride(3), stride(2), 16, 1}};
  fa3_tensor t{map.data, map.dtype, 4, {}, {}};
  const int order[4] = {3, 1, 2, 0};  // of the map's dims in (batch, seqlen, heads, head_dim)
  for (int i = 0; i < 4; ++i) t.dim[i] = map.dim[order[i]], t.stride[i] = stride(order[i]);
  return t;
}

// Q of packed heads, if its boxes are as the kernels read them: 64 rows, each query's as many as its packing says.
fa3_tensor packed_tensor(const fa3::TensorMap& encoded, fa3::Packing packing) {
  Map map;
  std::memcpy(&map, &encoded, sizeof map);
  const uint32_t rows = 1u << packing.shift, box_heads = rows < 64 ? rows : 64, heads = map.dim[1];
  const bool same_box = map.box[0] == 64 && map.box[1] == box_heads && map.box[2] == 64 / box_heads;
  const bool least = rows >= heads && rows < 2 * heads;
  const bool nests = heads == 1 || map.dim[3] == 1 || map.stride[2] == heads * map.stride[0];
  if (map.magic != magic || map.rank != 5 || map.dtype == FA3_DTYPE_E4M3 || !same_box || !least || !nests)
    std::abort();
  const auto stride = [&](int i) { return int64_t(map.stride[i - 1]) / 2; };
  return {map.data, map.dtype, 4, {map.dim[4], map.dim[2], int64_t{heads} * map.dim[3], map.dim[0]},
          {stride(4), stride(2), heads == 1 ? stride(3) : stride(1), 1}};
}

// O, as kernels without a map of it know it.
fa3_tensor tensor(const fa3::Output& out, const fa3_tensor& q) {
  return {out.o, dtype_of(out.dtype), 4, {q.dim[0], q.dim[1], q.dim[2], out.head_dim},
          {out.o_stride_batch, out.o_stride_row, out.o_stride_head, 1}};
}

// float32, of three dims; the last stride is `inner`.
fa3_tensor numbers(const float* data, int64_t batch, int64_t heads, int64_t count, int64_t stride_batch,
                   int64_t stride_head, int64_t inner) {
  return {const_cast<float*>(data), FA3_DTYPE_FP32, 3, {batch, heads, count}, {stride_batch, stride_head, inner}};
}

fa3_tensor scale(const fa3::ScaleTensor& s, const fa3_tensor& of) {
  return numbers(s.data, of.dim[0], of.dim[2], (of.dim[1] + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS, s.stride_batch,
                 s.stride_head, s.stride_block);
}

// What e4m3 brings beside the tensors.
void add_scales(const fa3::Scales& scales, fa3_forward_params& call) {
  const fa3_tensor &q = call.q, &k = call.k;
  call.q_scale = scale(scales.q, q), call.k_scale = scale(scales.k, k), call.v_scale = scale(scales.v, k);
  if (scales.o) call.o_scale = {const_cast<float*>(scales.o), FA3_DTYPE_FP32, 1, {1}, {1}};
  if (scales.v_mean)
    call.v_mean = numbers(scales.v_mean, k.dim[0], k.dim[2], call.o.dim[3], scales.v_mean_stride_batch,
                          scales.v_mean_stride_head, 1);
  if (scales.lse_offset)
    call.lse_offset = numbers(scales.lse_offset, q.dim[0], q.dim[2], q.dim[1], scales.lse_offset_stride_batch,
                              scales.lse_offset_stride_head, scales.lse_offset_stride_row);
}

// Does the parameter block, which the kernels read beside the maps, say the same as they do?
bool consistent(const Launch& launch, const fa3_forward_params& call) {
  const fa3::ScaledForwardParams& p = launch.forward;
  const fa3::ForwardRow& row = *launch.row->forward();
  const fa3::Output& out = p.output;
  const fa3_tensor &q = call.q, &k = call.k, &v = call.v, &o = call.o;
  const int64_t o_stride[3] = {out.o_stride_batch, out.o_stride_row, out.o_stride_head};
  const int64_t heads = (row.packs_heads() ? k : q).dim[2];
  bool same = p.visible.seqlen_q == q.dim[1] && p.tiles.heads == heads && out.head_dim == o.dim[3];
  same = same && p.tiles.batch_heads == q.dim[0] * heads && p.visible.seqlen_k == k.dim[1];
  same = same && k.dim[0] == q.dim[0] && k.dim[2] * p.heads_per_kv == q.dim[2] && k.dim[3] == q.dim[3];
  if (v.rank == 5) {
    const int64_t dim[5] = {k.dim[0], k.dim[2], (k.dim[1] + 15) / 16, o.dim[3], 16};
    for (int i = 0; i < 5; ++i) same = same && v.dim[i] == dim[i];
  } else {
    for (int i = 0; i < 3; ++i) same = same && v.dim[i] == k.dim[i];
    same = same && v.dim[3] == o.dim[3];
  }
  same = same && q.dim[3] <= row.d && o.dim[3] <= row.dv;
  for (int i = 0; i < 3; ++i) same = same && o.dim[i] == q.dim[i];
  for (int i = 0; i < 3; ++i) same = same && (o.dim[i] == 1 || o.stride[i] == o_stride[i]);
  same = same && out.o == o.data && dtype_of(out.dtype) == o.dtype;
  same = same && q.dtype == dtype_of(row.dtype) && q.dtype == k.dtype && q.dtype == v.dtype;
  same = same && (row.is_8bit() ? (v.rank == 4) == row.transposes_v() : q.dtype == o.dtype);
  const fa3::Scales& scales = p.scales;
  same = same && (row.block_scales() || (scales.k.stride_block == 0 && scales.v.stride_block == 0));
  same = same && (scales.o != nullptr) == (o.dtype == FA3_DTYPE_E4M3) && (out.lse || !scales.lse_offset);
  same = same && p.visible.bounded_right == row.causal() && !p.visible.bounded_left;
  const bool bottom_right = call.mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  same = same && p.visible.right == (bottom_right ? p.visible.seqlen_k - p.visible.seqlen_q : 0);
  return same && std::fabs(p.softmax_scale_log2 - p.softmax_scale * 1.442695f) <= 1e-6f * p.softmax_scale_log2;
}

CUresult write_empty_rows(const fa3::EmptyRowsParams& p) {
  const fa3::Output& out = p.output;
  for (int32_t n = 0; n < p.batch_heads; ++n) {
    const int64_t batch = n / p.heads, head = n - batch * p.heads;
    for (int64_t row = 0; row < p.rows; ++row) {
      const int64_t first = batch * out.o_stride_batch + head * out.o_stride_head + row * out.o_stride_row;
      const size_t bytes = size_t(element_bytes(dtype_of(out.dtype)));
      std::memset(static_cast<char*>(out.o) + first * int64_t(bytes), 0, size_t(out.head_dim) * bytes);
      if (out.lse)
        out.lse[batch * out.lse_stride_batch + head * out.lse_stride_head + row * out.lse_stride_row] = -INFINITY;
    }
  }
  return CUDA_SUCCESS;
}

// From the header's words about tiles.
CUresult tile_v(const Launch& launch) {
  const fa3::TileVParams& p = launch.tile_v;
  if (p.head_dim % 16 != 0 || p.head_dim > launch.row->d || p.groups != (p.keys + 15) / 16)
    return CUDA_ERROR_LAUNCH_FAILED;
  uint8_t* to = p.tiles;
  for (int32_t batch = 0; batch < p.batch; ++batch)
    for (int32_t head = 0; head < p.heads; ++head)
      for (int32_t group = 0; group < p.groups; ++group)
        for (int32_t row = 0; row < p.head_dim; ++row)
          for (int32_t byte = 0; byte < 16; ++byte) {
            const int32_t column = row / 16 * 16 + 2 * (row % 8) + row % 16 / 8;
            const int32_t key = 16 * group + 8 * (byte / 2 % 2) + 2 * (byte / 4) + byte % 2;
            const int64_t at = batch * p.stride_batch + head * p.stride_head + key * p.stride_row + column;
            *to++ = key < p.keys ? p.v[at] : 0;
          }
  return CUDA_SUCCESS;
}

// Of the library that launches: linked to the program, or loaded by it, maybe for itself alone.
template <class Function>
Function library(const char* name) {
  if (void* linked = dlsym(RTLD_DEFAULT, name)) return reinterpret_cast<Function>(linked);
  void* loaded = dlopen(FA3_SONAME, RTLD_LAZY | RTLD_NOLOAD);
  return loaded ? reinterpret_cast<Function>(dlsym(loaded, name)) : nullptr;
}

// The call that the parameter block carries, from its numbers alone. The pass that writes y does all of it.
CUresult quantize(const Launch& launch) {
  const fa3::QuantizeParams& p = launch.quantize;
  using Granularity = fa3::QuantizeParams::Granularity;
  const int64_t batch = p.batch, rows = p.rows, heads = p.heads, d = p.head_dim, blocks = (rows + 63) / 64;
  const auto tensor = [](const void* data, int32_t dtype, std::vector<int64_t> dim, std::vector<int64_t> stride) {
    fa3_tensor t{as<void>(data), dtype, int32_t(dim.size()), {}, {}};
    for (size_t i = 0; i < dim.size(); ++i) t.dim[i] = dim[i], t.stride[i] = stride[i];
    return t;
  };
  fa3_quantize_params call{};
  call.struct_size = sizeof call;
  call.seed = p.seed;
  call.softmax_scale = p.softmax_scale;
  call.flags = uint64_t(p.hadamard ? FA3_QUANTIZE_INCOHERENT : 0);
  if (p.interleaved) call.flags |= FA3_QUANTIZE_ROTARY_INTERLEAVED;
  call.x = tensor(p.x, p.bf16 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, {batch, rows, heads, d},
                  {p.x_stride_batch, p.x_stride_row, p.x_stride_head, 1});
  call.y = p.tiles ? tensor(p.y, FA3_DTYPE_E4M3, {batch, heads, (rows + 15) / 16, d, 16},
                            {p.y_stride_batch, p.y_stride_head, p.y_stride_row, 16, 1})
                   : tensor(p.y, FA3_DTYPE_E4M3, {batch, rows, heads, d},
                            {p.y_stride_batch, p.y_stride_row, p.y_stride_head, 1});
  const bool one = p.scales == Granularity::tensor;
  call.scale = tensor(p.scale, FA3_DTYPE_FP32,
                      {one ? 1 : batch, one ? 1 : heads, p.scales == Granularity::block ? blocks : 1},
                      {p.scale_stride_batch, p.scale_stride_head, p.scale_stride_block});
  if (p.mean)
    call.mean = tensor(p.mean, FA3_DTYPE_FP32, {batch, heads, d}, {p.mean_stride_batch, p.mean_stride_head, 1});
  if (p.rotary_dim) {
    call.rotary_cos = tensor(p.rotary_cos, FA3_DTYPE_FP32, {rows, p.rotary_dim / 2}, {p.cos_stride, 1});
    call.rotary_sin = tensor(p.rotary_sin, FA3_DTYPE_FP32, {rows, p.rotary_dim / 2}, {p.sin_stride, 1});
  }
  if (p.lse_offset) {
    call.k_mean = tensor(p.k_mean, FA3_DTYPE_FP32, {batch, heads / int32_t(p.heads_per_kv), d},
                         {p.k_mean_stride_batch, p.k_mean_stride_head, 1});
    call.lse_offset = tensor(p.lse_offset, FA3_DTYPE_FP32, {batch, heads, rows},
                             {p.lse_stride_batch, p.lse_stride_head, p.lse_stride_row});
  }
  const fa3::PassRow& row = *launch.row->pass();
  const bool measures = row.pass == fa3::Pass::measure, finishes = row.pass == fa3::Pass::finish;
  if (p.blocks != blocks || d > row.d || (finishes && !p.mean) ||
      (p.rotary_dim > 0 && !finishes) != row.has(fa3::Trait::rotates) ||
      (p.mean || p.scales != Granularity::block) != (p.measure != fa3::QuantizeParams::Measure::none))
    return CUDA_ERROR_LAUNCH_FAILED;
  if (measures || finishes) return p.largest ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
  const auto reference = library<decltype(&fa3_reference_quantize)>("fa3_reference_quantize");
  return reference && reference(&call) == FA3_OK ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

// The fault of this launch.
Fault next_fault() {
  return fault == Fault::none || launches_before_fault-- > 0 ? Fault::none : std::exchange(fault, Fault::none);
}

CUresult plan_lengths(const fa3::PlanLengthsPassParams& p) {
  const auto scratch = std::make_unique<fa3::PlanScratch>();
  fa3::plan_lengths(fa3::InTurn(), p.call, p.plan, *scratch);
  return CUDA_SUCCESS;
}

// The same of a combination, whose tiles must hold each row of each head once, and whose shares each part.
CUresult combine(const Launch& launch) {
  const fa3::CombineParams& p = launch.combine;
  constexpr int32_t dtypes[] = {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32};
  const int32_t parts_dtype = dtypes[int(p.parts_dtype)], o_dtype = dtypes[int(p.o_dtype)];
  const int64_t heads = p.heads, batch = p.batch_heads / heads, rows = p.rows;
  const int64_t head_dim = p.pieces * 16 / fa3::bytes_of(p.parts_dtype);
  fa3_combine_params call{};
  call.struct_size = sizeof call;
  call.o_parts = {as<void>(p.o_parts), parts_dtype, 5, {p.parts, batch, rows, heads, head_dim},
                  {p.o_parts_stride_part, p.o_parts_stride_batch, p.o_parts_stride_row, p.o_parts_stride_head, 1}};
  call.lse_parts = {as<void>(p.lse_parts), FA3_DTYPE_FP32, 4, {p.parts, batch, heads, rows},
                    {p.lse_parts_stride_part, p.lse_parts_stride_batch, p.lse_parts_stride_head,
                     p.lse_parts_stride_row}};
  call.o = {p.o, o_dtype, 4, {batch, rows, heads, head_dim}, {p.o_stride_batch, p.o_stride_row, p.o_stride_head, 1}};
  if (p.lse)
    call.lse = {p.lse, FA3_DTYPE_FP32, 3, {batch, heads, rows},
                {p.lse_stride_batch, p.lse_stride_head, p.lse_stride_row}};
  if (!fa3::test::is_complete(p, *launch.row->pass(), launch.grid)) return CUDA_ERROR_LAUNCH_FAILED;
  if (next_fault() == Fault::nothing_done) return CUDA_SUCCESS;
  const auto reference = library<decltype(&fa3_reference_combine)>("fa3_reference_combine");
  return reference && reference(&call) == FA3_OK ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

CUresult append(const Launch& launch) {
  if (!fa3::test::is_complete(launch.append, *launch.row->pass(), launch.grid)) return CUDA_ERROR_LAUNCH_FAILED;
  if (next_fault() == Fault::nothing_done) return CUDA_SUCCESS;
  const fa3_append_params call = fa3::test::call_of(launch.append);
  const auto reference = library<decltype(&fa3_reference_append)>("fa3_reference_append");
  return reference && reference(&call) == FA3_OK ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

// The workspace is the least: no such launch is split.
void do_damage(const Launch& launch, Fault chosen) {
  char* const workspace = reinterpret_cast<char*>(launch.forward.workspace);
  switch (chosen) {
    case Fault::none:
    case Fault::nothing_done: break;
    case Fault::before_workspace: workspace[-1] ^= 1; break;
    case Fault::behind_workspace: workspace[FA3_FORWARD_WORKSPACE_BYTES] ^= 1; break;
    case Fault::last_bit_of_o: *static_cast<char*>(launch.forward.output.o) ^= 1; break;
    case Fault::last_bit_of_lse: *reinterpret_cast<uint32_t*>(launch.forward.output.lse) ^= 1; break;
  }
}

// The maps of a served launch must say the same as its parameter block, and so must those with boxes of fewer rows.
CUresult run_served(const Launch& launch) {
  const fa3::ScaledPlannedForwardParams& p = launch.planned;
  const fa3::ForwardRow& row = *launch.row->forward();
  const fa3::test::ServedTensors t{row.packs_heads() ? packed_tensor(p.q, p.visible.packing) : tensor(p.q), tensor(p.k),
                                   tensor(p.v)};
  const auto map_of = [](const fa3::TensorMap& encoded) {
    Map map;
    std::memcpy(&map, &encoded, sizeof map);
    return map;
  };
  const auto is_with_rows = [&](const fa3::TensorMap& encoded, Map as, int rows) {
    as.box[1] = uint32_t(rows);
    const Map map = map_of(encoded);
    return std::memcmp(&map, &as, sizeof map) == 0;
  };
  const fa3::Output& out = p.output;
  bool same = p.box_rows >= 1 && row.Bc % p.box_rows == 0 && map_of(p.k).box[1] == uint32_t(p.box_rows);
  same = same && is_with_rows(p.v, map_of(p.v), p.box_rows) && (p.page_table || p.box_rows == row.Bc);
  same = same && (!p.page_table || (p.page_size == t.k.dim[1] && p.page_size % p.box_rows == 0));
  for (int i = 0; 1 << i < p.box_rows; ++i) same = same && is_with_rows(p.v_rows[i], map_of(p.v), 1 << i);
  if (!row.o_from_registers()) {
    const fa3_tensor o = tensor(p.o);
    const int64_t strides[3] = {out.o_stride_batch, out.o_stride_row, out.o_stride_head};
    same = same && o.data == out.o && o.dim[3] == out.head_dim;
    for (int i = 0; i < 3; ++i)
      same = same && o.dim[i] == t.q.dim[i] && (o.dim[i] == 1 || o.stride[i] == strides[i]);
    for (int i = 0; 1 << i < fa3::o_box_rows; ++i) same = same && is_with_rows(p.o_rows[i], map_of(p.o), 1 << i);
  }
  if (!same || t.q.dim[3] > row.d || out.head_dim > row.dv) return CUDA_ERROR_LAUNCH_FAILED;
  const Fault chosen = next_fault();
  if (chosen == Fault::nothing_done) return CUDA_SUCCESS;
  if (CUresult result = fa3::test::simulate_served(p, row, t)) return result;
  do_damage(launch, chosen);
  return CUDA_SUCCESS;
}

CUresult run(const Launch& launch) {
  if (!launch.row) return CUDA_ERROR_LAUNCH_FAILED;
  if (const fa3::PassRow* row = launch.row->pass()) {
    switch (row->pass) {
      case fa3::Pass::empty_rows: return write_empty_rows(launch.empty_rows);
      case fa3::Pass::tile_v: return tile_v(launch);
      case fa3::Pass::plan_lengths: return plan_lengths(launch.lengths);
      case fa3::Pass::bwd_prepare: return fa3::test::simulate_prepare(launch.backward, launch.grid);
      case fa3::Pass::bwd_finish: return fa3::test::simulate_finish(launch.backward, *row, launch.grid);
      case fa3::Pass::bwd_sum: return fa3::test::simulate_sum(launch.backward, *row, launch.grid);
      case fa3::Pass::quantize:
      case fa3::Pass::measure:
      case fa3::Pass::finish: return quantize(launch);
      case fa3::Pass::combine: return combine(launch);
      case fa3::Pass::append: return append(launch);
    }
  }
  if (const fa3::BackwardRow* row = launch.row->backward()) {
    if (next_fault() == Fault::nothing_done) return CUDA_SUCCESS;
    const fa3::BackwardParams& b = launch.backward;
    const bool has_dq = !b.rows.dq_sums && b.order.head_tiles > 0;
    const fa3::test::BackwardTensors tensors{tensor(b.q), tensor(b.k), tensor(b.v), tensor(b.dout), tensor(b.dk),
                                             tensor(b.dv), has_dq ? tensor(b.dq) : fa3_tensor{}};
    if (row->gradients == fa3::Gradients::queries)
      return fa3::test::simulate_queries(b, *row, tensors, launch.grid);
    return fa3::test::simulate(b, *row, tensors, launch.grid);
  }
  const fa3::ForwardRow& row = *launch.row->forward();
  if (row.has(fa3::Trait::own_lengths)) return run_served(launch);
  const fa3::ScaledForwardParams& p = launch.forward;
  const fa3::Output& out = p.output;
  fa3_forward_params call{};
  call.struct_size = sizeof call;
  const bool packs_heads = row.packs_heads();
  call.q = packs_heads ? packed_tensor(p.q, p.visible.packing) : tensor(p.q);
  call.k = tensor(p.k);
  call.v = tensor(p.v);
  call.o = row.is_8bit() || packs_heads ? tensor(out, call.q) : tensor(p.o);
  if (row.is_8bit()) add_scales(p.scales, call);
  if (out.lse) {
    call.lse = {out.lse, FA3_DTYPE_FP32, 3, {call.q.dim[0], call.q.dim[2], call.q.dim[1]},
                {out.lse_stride_batch, out.lse_stride_head, out.lse_stride_row}};
  }
  if (row.causal())
    call.mask = p.visible.right == 0 ? FA3_MASK_CAUSAL_TOP_LEFT : FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  call.softmax_scale = p.softmax_scale;
  if (!consistent(launch, call) || !fa3::test::is_complete(launch)) return CUDA_ERROR_LAUNCH_FAILED;
  const Fault chosen = next_fault();
  if (chosen == Fault::nothing_done) return CUDA_SUCCESS;
  static const auto reference = library<decltype(&fa3_reference_forward)>("fa3_reference_forward");
  if (!reference || reference(&call, 1) != FA3_OK) return CUDA_ERROR_LAUNCH_FAILED;
  do_damage(launch, chosen);
  return CUDA_SUCCESS;
}

CUresult replay(const std::vector<Launch>& launches) {
  for (const Launch& launch : launches)
    if (CUresult result = run(launch)) return result;
  return CUDA_SUCCESS;
}

CUresult launch(CUfunction function, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared,
                CUstream stream, void** arguments, void** extra) {
  if (CUresult result = check_current()) return result;
  if (as<Function>(function)->context_id != current.id) return CUDA_ERROR_INVALID_HANDLE;
  if (stream && as<Stream>(stream)->context_id != current.id) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult result = fa3::test::check_launch(grid, block, shared, as<Function>(function)->shared)) return result;
  if (extra) return CUDA_ERROR_INVALID_VALUE;
  const Launch launched(as<Function>(function)->name, arguments[0], grid[0]);
  if (stream && as<Stream>(stream)->capturing) return as<Stream>(stream)->captured.push_back(launched), CUDA_SUCCESS;
  return run(launched);
}

}  // namespace

void fa3::test::simulate(Fault chosen, int after_launches) { fault = chosen, launches_before_fault = after_launches; }

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult, const char** name) { return *name = "simulated error", CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) { return *text = "simulated error", CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int) { return *device = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::strncpy(name, "no GPU: simulated on the CPU", size_t(size) - 1);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* id, int, CUdevice) { return *id = 0, CUDA_SUCCESS; }
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) { return *bytes = size_t(1) << 30, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? 9
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0
           : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? fa3::test::multiprocessors
                                                                       : 1980000;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext* context, CUctxCreateParams*, unsigned, CUdevice) {
  Context* made = nullptr;
  {
    std::lock_guard guard(lock);
    for (Context& place : contexts)
      if (!made && place.id == 0) made = &place;
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    made->id = ++last_id;
  }
  *context = reinterpret_cast<CUcontext>(made);
  return make_current(made);
}
CUresult cuCtxDestroy(CUcontext context) {
  if (current.context == as<Context>(context)) current = {};
  std::lock_guard guard(lock);
  return as<Context>(context)->id = 0, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  std::lock_guard guard(lock);
  if (primary.id == 0) primary.id = ++last_id;
  *context = reinterpret_cast<CUcontext>(&primary);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxReset(CUdevice) {
  std::lock_guard guard(lock);
  return primary.id = 0, CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) { return make_current(as<Context>(context)); }
CUresult cuCtxGetCurrent(CUcontext* context) {
  return *context = reinterpret_cast<CUcontext>(current.context), CUDA_SUCCESS;
}
CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  if (context) return CUDA_ERROR_INVALID_HANDLE;  // it may be of a context that is no more
  return *id = current.id, check_current();
}
CUresult cuCtxGetDevice(CUdevice* device) { return *device = 0, check_current(); }
CUresult cuCtxSynchronize() { return check_current(); }

CUresult cuMemAlloc(CUdeviceptr* pointer, size_t bytes) {
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  *pointer = reinterpret_cast<CUdeviceptr>(memory);
  return memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFree(CUdeviceptr pointer) { return std::free(reinterpret_cast<void*>(pointer)), CUDA_SUCCESS; }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  return std::memcpy(to, reinterpret_cast<void*>(from), bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
  return std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), CUDA_SUCCESS;
}
CUresult cuMemsetD8(CUdeviceptr to, unsigned char byte, size_t bytes) {
  return std::memset(reinterpret_cast<void*>(to), byte, bytes), CUDA_SUCCESS;
}
CUresult cuMemGetInfo(size_t* free, size_t* total) { return *free = *total = size_t(1) << 30, CUDA_SUCCESS; }

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  return *stream = reinterpret_cast<CUstream>(new Stream{current.id, false, {}}), check_current();
}
CUresult cuStreamDestroy(CUstream stream) { return delete as<Stream>(stream), CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const bool capturing = stream && as<Stream>(stream)->capturing;
  *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  return as<Stream>(stream)->capturing = true, CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  as<Stream>(stream)->capturing = false;
  *graph = reinterpret_cast<CUgraph>(new Graph{std::exchange(as<Stream>(stream)->captured, {})});
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  return *executable = reinterpret_cast<CUgraphExec>(new Graph(*as<Graph>(graph))), CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream) { return replay(as<Graph>(executable)->launches); }
CUresult cuGraphExecDestroy(CUgraphExec executable) { return delete as<Graph>(executable), CUDA_SUCCESS; }
CUresult cuGraphDestroy(CUgraph graph) { return delete as<Graph>(graph), CUDA_SUCCESS; }

CUresult cuEventCreate(CUevent* event, unsigned) {
  return *event = reinterpret_cast<CUevent>(new Event{}), CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) { return delete as<Event>(event), CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream) { return as<Event>(event)->time = Clock::now(), CUDA_SUCCESS; }
CUresult cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent stop) {
  *milliseconds = std::chrono::duration<float, std::milli>(as<Event>(stop)->time - as<Event>(start)->time).count();
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void*) {
  if (CUresult result = check_current()) return result;
  return *module = reinterpret_cast<CUmodule>(new Function{current.id, {}, 0}), CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { return delete as<Function>(module), CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  as<Function>(module)->name = name;
  return *function = reinterpret_cast<CUfunction>(module), CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (as<Function>(function)->context_id != current.id) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
      unsigned(value) > fa3::test::most_shared_memory)
    return CUDA_ERROR_INVALID_VALUE;
  return as<Function>(function)->shared = unsigned(value), CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* encoded, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* dim, const cuuint64_t* stride, const cuuint32_t* box,
                                const cuuint32_t* element_stride, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (rank != 4 && rank != 5) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = fa3::test::check_tensor_map(encoded, type, rank, data, dim, stride, box, element_stride,
                                                    interleave, swizzle))
    return result;
  Map map{magic, data, dtype_of(type), rank, {}, {}, {box[0], box[1], box[2]}};
  for (cuuint32_t i = 0; i < rank; ++i) map.dim[i] = uint32_t(dim[i]);
  for (cuuint32_t i = 0; i + 1 < rank; ++i) map.stride[i] = stride[i];
  std::memcpy(encoded, &map, sizeof map);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** arguments,
                        void** extra) {
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, arguments, extra);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  if (CUresult result = fa3::test::check_attributes(*config)) return result;
  const CUlaunchConfig& c = *config;
  return launch(function, {c.gridDimX, c.gridDimY, c.gridDimZ}, {c.blockDimX, c.blockDimY, c.blockDimZ},
                c.sharedMemBytes, c.hStream, arguments, extra);
}
}
