#include "rules.h"

#include <algorithm>
#include <cstring>

#include "judge.h"

namespace fa3::test {

template <class Params>
Params complete(const Params* params) {
  Params p{};
  std::memcpy(&p.struct_size, params, sizeof p.struct_size);
  const size_t size = std::clamp(p.struct_size, sizeof p.struct_size, sizeof p);
  std::memcpy(&p, params, size);
  if constexpr (requires { p.kernel; })
    if (size < offsetof(Params, kernel) + sizeof p.kernel) p.kernel = nullptr;
  if constexpr (requires { p.schedule; })
    if (size < offsetof(Params, schedule_bytes) + sizeof p.schedule_bytes) p.schedule = nullptr, p.schedule_bytes = 0;
  if constexpr (requires { p.softcap; })
    if (size < offsetof(Params, reserved) + sizeof p.reserved) p.softcap = 0, p.reserved = 0;
  return p;
}
template fa3_forward_params complete(const fa3_forward_params*);
template fa3_backward_params complete(const fa3_backward_params*);
template fa3_quantize_params complete(const fa3_quantize_params*);
template fa3_append_params complete(const fa3_append_params*);
template fa3_combine_params complete(const fa3_combine_params*);

Verdict judge(const fa3_quantize_params* params, Mode mode) {
  Judge j;
  const fa3_quantize_params p = complete(params);
  j.wrong_if(!is_sensible(params, offsetof(fa3_quantize_params, mean)), "params->struct_size");
  const bool pointers = mode != Mode::shapes, tiles = p.y.rank == 5;
  j.wrong_if(p.flags & ~uint64_t{FA3_QUANTIZE_INCOHERENT | FA3_QUANTIZE_ROTARY_INTERLEAVED}, "flags");
  j.softmax_scale(p.softmax_scale);
  j.wrong_if(p.reserved != 0, "reserved");
  j.wrong_if(!is_one_of(p.x.dtype, {FA3_DTYPE_BF16, FA3_DTYPE_FP16}), "x");
  j.wrong_if(p.y.dtype != FA3_DTYPE_E4M3, "y");
  j.rank("x", p.x, 4), j.rank("y", p.y, tiles ? 5 : 4);
  const bool rotary = p.rotary_cos.rank != 0, offset = p.lse_offset.rank != 0;
  j.wrong_if((p.rotary_sin.rank != 0) != rotary, rotary ? "rotary_sin" : "rotary_cos");
  j.wrong_if((p.k_mean.rank != 0) != offset, offset ? "k_mean" : "lse_offset");
  if (!j.good()) return j.verdict;

  j.dims("x", p.x), j.dims("y", p.y);
  const int64_t batch = p.x.dim[0], seqlen = p.x.dim[1], heads = p.x.dim[2], head_dim = p.x.dim[3];
  j.head_dim("x", head_dim, 16);
  if (tiles) j.dims_are("y", p.y, {batch, heads, seqlen / 16 + (seqlen % 16 != 0), head_dim, 16});
  else j.dims_are("y", p.y, {batch, seqlen, heads, head_dim});
  if (!j.good()) return j.verdict;
  j.layout("x", p.x, {.rows = true, .pointers = pointers});
  j.layout("y", p.y, {.output = true, .rows = true, .pointers = pointers});
  if (tiles) {
    const bool wrong = p.y.stride[3] != 16 || p.y.stride[4] != 1;
    j.wrong_if(wrong && has_elements(p.y), "y"), j.open_if(wrong, "y");
  }

  j.wrong_if(p.scale.dtype != FA3_DTYPE_FP32, "scale");
  j.rank("scale", p.scale, 3);
  if (!j.good()) return j.verdict;
  const int64_t blocks = seqlen / FA3_SCALE_ROWS + (seqlen % FA3_SCALE_ROWS != 0), *const s = p.scale.dim;
  j.wrong_if(!((s[0] == 1 && s[1] == 1 && s[2] == 1) ||
               (s[0] == batch && s[1] == heads && (s[2] == 1 || s[2] == blocks))),
             "scale");
  if (!j.good()) return j.verdict;
  j.layout("scale", p.scale, {.output = true, .pointers = pointers});
  if (p.mean.rank != 0)
    judge_fp32(j, "mean", p.mean, {batch, heads, head_dim}, {.output = true, .last_1 = true, .pointers = pointers});
  if (rotary) {
    const int64_t half = p.rotary_cos.rank == 2 ? p.rotary_cos.dim[1] : 0;
    const Layout table{.rows = true, .pointers = pointers};
    judge_fp32(j, "rotary_cos", p.rotary_cos, {seqlen, half}, table);
    judge_fp32(j, "rotary_sin", p.rotary_sin, {seqlen, half}, table);
    j.wrong_if(half % 8 != 0 || half > head_dim / 2, "rotary_cos");
  }
  if (offset) {
    const int64_t heads_kv = p.k_mean.rank == 3 ? p.k_mean.dim[1] : 0;
    judge_fp32(j, "k_mean", p.k_mean, {batch, heads_kv, head_dim}, {.last_1 = true, .pointers = pointers});
    judge_fp32(j, "lse_offset", p.lse_offset, {batch, heads, seqlen}, {.output = true, .pointers = pointers});
    if (heads_kv >= 0) j.heads("k_mean", heads, heads_kv);
  }
  j.open_if(seqlen > max_seqlen, "x");
  j.open_if(Wide{batch} * heads * blocks > max_tiles / 2, "x");
  if (pointers)
    j.apart({{"y", &p.y}, {"scale", &p.scale}, {"mean", &p.mean}, {"lse_offset", &p.lse_offset}, {"x", &p.x},
             {"rotary_cos", &p.rotary_cos}, {"rotary_sin", &p.rotary_sin}, {"k_mean", &p.k_mean}},
            4);
  j.verdict.whole = true;
  return j.verdict;
}

Verdict judge(const fa3_combine_params* params, Mode mode) {
  Judge j;
  const fa3_combine_params p = complete(params);
  j.wrong_if(!is_sensible(params, offsetof(fa3_combine_params, lse)), "params->struct_size");
  const bool pointers = mode != Mode::shapes, wants_lse = p.lse.rank != 0;
  j.wrong_if(p.flags != 0, "flags");
  const auto is_o = [](int32_t dtype) { return is_one_of(dtype, {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32}); };
  j.wrong_if(!is_o(p.o_parts.dtype), "o_parts"), j.wrong_if(!is_o(p.o.dtype), "o");
  j.rank("o_parts", p.o_parts, 5), j.rank("o", p.o, 4);
  if (!j.good()) return j.verdict;
  j.dims("o_parts", p.o_parts), j.dims("o", p.o);
  const int64_t* const all = p.o_parts.dim;
  const int64_t parts = all[0], batch = all[1], seqlen = all[2], heads = all[3], head_dim = all[4];
  j.dims_are("o", p.o, {batch, seqlen, heads, head_dim});
  j.head_dim("o_parts", head_dim, 8, 512);
  j.wrong_if(parts > 65536, "o_parts");
  j.wrong_if(seqlen > max_tiles || Wide{batch} * heads > max_tiles, "o_parts");
  if (j.good()) {
    j.layout("o_parts", p.o_parts, {.rows = true, .pointers = pointers});
    j.layout("o", p.o, {.output = true, .rows = true, .pointers = pointers});
  }
  judge_fp32(j, "lse_parts", p.lse_parts, {parts, batch, heads, seqlen}, {.pointers = pointers});
  if (wants_lse) judge_fp32(j, "lse", p.lse, {batch, heads, seqlen}, {.output = true, .pointers = pointers});
  if (pointers) {
    std::vector<Named> tensors{{"o", &p.o}};
    if (wants_lse) tensors.push_back({"lse", &p.lse});
    tensors.insert(tensors.end(), {{"o_parts", &p.o_parts}, {"lse_parts", &p.lse_parts}});
    j.apart(tensors, wants_lse ? 2 : 1);
  }
  j.verdict.whole = true;
  return j.verdict;
}

Verdict judge(const fa3_tensor& tensor) {
  Judge j;
  j.wrong_if(tensor.rank < 1 || tensor.rank > FA3_MAX_RANK, "tensor");
  if (!j.good()) return j.verdict;
  bool empty = false, overflows = false;
  int64_t product = 1;
  for (int i = 0; i < tensor.rank; ++i) {
    j.wrong_if(tensor.dim[i] < 0, "tensor");
    empty |= tensor.dim[i] == 0;
    if (tensor.dim[i] > 0) overflows |= __builtin_mul_overflow(product, tensor.dim[i], &product);
  }
  j.wrong_if(overflows && !empty, "tensor");
  j.open_if(overflows, "tensor");  // without elements there is no number of them to overflow, but strides may
  j.verdict.whole = true;
  return j.verdict;
}

}  // namespace fa3::test
