#include "run.h"

#include <dlfcn.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "append.h"
#include "backward.h"
#include "fa3.h"
#include "maps.h"
#include "planned.h"
#include "planned_backward.h"
#include "simulated_cuda.h"
#include "widen.h"

namespace fa3::test {
namespace {

Fault fault = Fault::none;
int launches_before_fault = 0;

void* writable(const void* data) { return const_cast<void*>(data); }

// float32, of three dims; the last stride is `inner`.
fa3_tensor numbers(const float* data, int64_t batch, int64_t heads, int64_t count, int64_t stride_batch,
                   int64_t stride_head, int64_t inner) {
  return {const_cast<float*>(data), FA3_DTYPE_FP32, 3, {batch, heads, count}, {stride_batch, stride_head, inner}};
}

fa3_tensor scale(const ScaleTensor& s, const fa3_tensor& of) {
  return numbers(s.data, of.dim[0], of.dim[2], (of.dim[1] + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS, s.stride_batch,
                 s.stride_head, s.stride_block);
}

// What e4m3 brings beside the tensors.
void add_scales(const Scales& scales, fa3_forward_params& call) {
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
bool consistent(const Launched& launch, const fa3_forward_params& call) {
  const auto& p = launch.forward;
  const ForwardRow& row = *launch.row->forward();
  const Output& out = p.output;
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
  const Scales& scales = p.scales;
  same = same && (row.block_scales() || (scales.k.stride_block == 0 && scales.v.stride_block == 0));
  same = same && (scales.o != nullptr) == (o.dtype == FA3_DTYPE_E4M3) && (out.lse || !scales.lse_offset);
  same = same && p.visible.bounded_right == row.causal() && !p.visible.bounded_left;
  const bool bottom_right = call.mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  same = same && p.visible.right == (bottom_right ? p.visible.seqlen_k - p.visible.seqlen_q : 0);
  return same && std::fabs(p.softmax_scale_log2 - p.softmax_scale * 1.442695f) <= 1e-6f * p.softmax_scale_log2;
}

CUresult write_empty_rows(const EmptyRowsParams& p) {
  const Output& out = p.output;
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
CUresult tile_v(const Launched& launch) {
  const TileVParams& p = launch.tile_v;
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
CUresult quantize(const Launched& launch) {
  const QuantizeParams& p = launch.quantize;
  using Granularity = QuantizeParams::Granularity;
  const int64_t batch = p.batch, rows = p.rows, heads = p.heads, d = p.head_dim, blocks = (rows + 63) / 64;
  const auto tensor = [](const void* data, int32_t dtype, std::vector<int64_t> dim, std::vector<int64_t> stride) {
    fa3_tensor t{writable(data), dtype, int32_t(dim.size()), {}, {}};
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
  const PassRow& row = *launch.row->pass();
  const bool measures = row.pass == Pass::measure, finishes = row.pass == Pass::finish;
  if (p.blocks != blocks || d > row.d || (finishes && !p.mean) ||
      (p.rotary_dim > 0 && !finishes) != row.has(Trait::rotates) ||
      (p.mean || p.scales != Granularity::block) != (p.measure != QuantizeParams::Measure::none))
    return CUDA_ERROR_LAUNCH_FAILED;
  if (measures || finishes) return p.largest ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
  const auto reference = library<decltype(&fa3_reference_quantize)>("fa3_reference_quantize");
  return reference && reference(&call) == FA3_OK ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

// The fault of this launch.
Fault next_fault() {
  return fault == Fault::none || launches_before_fault-- > 0 ? Fault::none : std::exchange(fault, Fault::none);
}

CUresult plan_forward(const PlanForwardPassParams& p) {
  const auto scratch = std::make_unique<PlanScratch>();
  plan_forward(InTurn(), p.call, p.plan, *scratch);
  return CUDA_SUCCESS;
}

// The same of a combination, whose tiles must hold each row of each head once, and whose shares each part.
CUresult combine(const Launched& launch) {
  const CombineParams& p = launch.combine;
  constexpr int32_t dtypes[] = {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32};
  const int32_t parts_dtype = dtypes[int(p.parts_dtype)], o_dtype = dtypes[int(p.o_dtype)];
  const int64_t heads = p.heads, batch = p.batch_heads / heads, rows = p.rows;
  const int64_t head_dim = p.pieces * 16 / bytes_of(p.parts_dtype);
  fa3_combine_params call{};
  call.struct_size = sizeof call;
  call.o_parts = {writable(p.o_parts), parts_dtype, 5, {p.parts, batch, rows, heads, head_dim},
                  {p.o_parts_stride_part, p.o_parts_stride_batch, p.o_parts_stride_row, p.o_parts_stride_head, 1}};
  call.lse_parts = {writable(p.lse_parts), FA3_DTYPE_FP32, 4, {p.parts, batch, heads, rows},
                    {p.lse_parts_stride_part, p.lse_parts_stride_batch, p.lse_parts_stride_head,
                     p.lse_parts_stride_row}};
  call.o = {p.o, o_dtype, 4, {batch, rows, heads, head_dim}, {p.o_stride_batch, p.o_stride_row, p.o_stride_head, 1}};
  if (p.lse)
    call.lse = {p.lse, FA3_DTYPE_FP32, 3, {batch, heads, rows},
                {p.lse_stride_batch, p.lse_stride_head, p.lse_stride_row}};
  if (!is_complete(p, *launch.row->pass(), launch.grid)) return CUDA_ERROR_LAUNCH_FAILED;
  if (next_fault() == Fault::nothing_done) return CUDA_SUCCESS;
  const auto reference = library<decltype(&fa3_reference_combine)>("fa3_reference_combine");
  return reference && reference(&call) == FA3_OK ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

CUresult append(const Launched& launch) {
  if (!is_complete(launch.append, *launch.row->pass(), launch.grid)) return CUDA_ERROR_LAUNCH_FAILED;
  if (next_fault() == Fault::nothing_done) return CUDA_SUCCESS;
  const fa3_append_params call = call_of(launch.append);
  const auto reference = library<decltype(&fa3_reference_append)>("fa3_reference_append");
  return reference && reference(&call) == FA3_OK ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

// The workspace is the least: no such launch is split.
void do_damage(const Launched& launch, Fault chosen) {
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

// The maps of a planned launch must say the same as its parameter block, and so must those with boxes of fewer rows.
CUresult run_planned(const Launched& launch) {
  const auto& p = launch.planned;
  const ForwardRow& row = *launch.row->forward();
  const auto packed = [&](const TensorMap& map) { return packed_tensor(map, p.visible.packing, row.q_rows()); };
  const PlannedTensors t{row.packs_heads() ? packed(p.q) : tensor(p.q), tensor(p.k), tensor(p.v),
                         row.has(Trait::qv) ? packed(launch.planned.qv) : fa3_tensor{}};
  const auto is_with_rows = [&](const TensorMap& encoded, Map as, int rows) {
    as.box[1] = uint32_t(rows);
    const Map map = map_of(encoded);
    return std::memcmp(&map, &as, sizeof map) == 0;
  };
  const Output& out = p.output;
  bool same = p.box_rows >= 1 && row.stage_keys() % p.box_rows == 0 && map_of(p.k).box[1] == uint32_t(p.box_rows);
  same = same && is_with_rows(p.v, map_of(p.v), p.box_rows) && (p.page_table || p.box_rows == row.stage_keys());
  same = same && (!p.page_table || (p.page_size == t.k.dim[1] && p.page_size % p.box_rows == 0));
  if (row.is_latent()) {
    const LatentScales& scales = launch.planned.latent_scales;
    same = same && t.v.dtype == FA3_DTYPE_E4M3 && map_of(p.v).box[0] == 128;
    same = same && scales.batches == t.v.dim[0] && scales.rows == t.v.dim[1];
  } else {
    for (int i = 0; 1 << i < p.box_rows; ++i) same = same && is_with_rows(p.v_rows[i], map_of(p.v), 1 << i);
  }
  if (!row.o_from_registers()) {
    const fa3_tensor o = tensor(p.o);
    const int64_t strides[3] = {out.o_stride_batch, out.o_stride_row, out.o_stride_head};
    same = same && o.data == out.o && o.dim[3] == out.head_dim;
    for (int i = 0; i < 3; ++i)
      same = same && o.dim[i] == t.q.dim[i] && (o.dim[i] == 1 || o.stride[i] == strides[i]);
    for (int i = 0; 1 << i < o_box_rows; ++i) same = same && is_with_rows(p.o_rows[i], map_of(p.o), 1 << i);
  }
  // The second query has q's rows, and V's columns.
  for (int i = 0; i < 3 && row.has(Trait::qv); ++i) same = same && t.qv.dim[i] == t.q.dim[i];
  if (row.has(Trait::qv)) same = same && t.qv.dim[3] == out.head_dim && map_of(launch.planned.qv).box[0] == 64;
  if (!same || t.q.dim[3] > row.d || out.head_dim > row.dv) return CUDA_ERROR_LAUNCH_FAILED;
  const Fault chosen = next_fault();
  if (chosen == Fault::nothing_done) return CUDA_SUCCESS;
  if (CUresult result = simulate_planned(launch, t)) return result;
  do_damage(launch, chosen);
  return CUDA_SUCCESS;
}

}  // namespace

void simulate(Fault chosen, int after_launches) { fault = chosen, launches_before_fault = after_launches; }

CUresult run(const Launched& launch) {
  if (!launch.row) return CUDA_ERROR_LAUNCH_FAILED;
  if (const PassRow* row = launch.row->pass()) {
    const bool planned = row->has(Trait::planned);
    switch (row->pass) {
      case Pass::empty_rows: return write_empty_rows(launch.empty_rows);
      case Pass::tile_v: return tile_v(launch);
      case Pass::plan_forward: return plan_forward(launch.lengths);
      case Pass::add_parts: return simulate_add_parts(launch.planned);
      case Pass::bwd_prepare:
        return planned ? simulate_prepare_planned(launch.planned_backward, launch.grid)
                       : simulate_prepare(launch.backward, launch.grid);
      case Pass::bwd_finish:
        return planned ? simulate_finish_planned(launch.planned_backward, *row, launch.grid)
                       : simulate_finish(launch.backward, *row, launch.grid);
      case Pass::plan_backward: return simulate_plan_backward(launch.backward_list);
      case Pass::bwd_key_means: return simulate_key_means(launch.centered_backward, *row, launch.grid);
      case Pass::widen: return simulate_widen(launch.widen, launch.grid);
      case Pass::quantize:
      case Pass::measure:
      case Pass::finish: return quantize(launch);
      case Pass::combine: return combine(launch);
      case Pass::append: return append(launch);
    }
  }
  if (const BackwardRow* row = launch.row->backward()) {
    if (next_fault() == Fault::nothing_done) return CUDA_SUCCESS;
    if (row->has(Trait::planned))
      return row->gradients == Gradients::queries
                 ? simulate_queries_of_lengths(launch.transformed_backward, launch.centered_backward, *row, launch.grid)
                 : simulate_lengths(launch.transformed_backward, launch.centered_backward, *row, launch.grid);
    const BackwardParams& b = launch.backward;
    const bool has_dq = !b.rows.dq_sums && b.order.head_tiles > 0;
    const BackwardTensors tensors{tensor(b.q), tensor(b.k), tensor(b.v), tensor(b.dout), tensor(b.dk),
                                             tensor(b.dv), has_dq ? tensor(b.dq) : fa3_tensor{}};
    if (row->gradients == Gradients::queries)
      return simulate_queries(b, *row, tensors, launch.grid);
    return simulate(b, *row, tensors, launch.grid);
  }
  const ForwardRow& row = *launch.row->forward();
  if (row.has(Trait::planned)) return run_planned(launch);
  const auto& p = launch.forward;
  const Output& out = p.output;
  fa3_forward_params call{};
  call.struct_size = sizeof call;
  const bool packs_heads = row.packs_heads();
  call.q = packs_heads ? packed_tensor(p.q, p.visible.packing, row.q_rows()) : tensor(p.q);
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
  if (!consistent(launch, call) || !is_complete(launch)) return CUDA_ERROR_LAUNCH_FAILED;
  const Fault chosen = next_fault();
  if (chosen == Fault::nothing_done) return CUDA_SUCCESS;
  static const auto reference = library<decltype(&fa3_reference_forward)>("fa3_reference_forward");
  if (!reference || reference(&call, 1) != FA3_OK) return CUDA_ERROR_LAUNCH_FAILED;
  do_damage(launch, chosen);
  return CUDA_SUCCESS;
}

}  // namespace fa3::test
