#include "rules.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>

namespace fa3::test {
namespace {

constexpr Wide two_to_40 = Wide{1} << 40;
constexpr int64_t max_seqlen = INT32_MAX - 1024, max_tiles = INT32_MAX - 65536;

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
bool is_one_of(int32_t dtype, std::initializer_list<int32_t> dtypes) {
  return std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
}

// How a tensor has to lie in memory.
struct Layout {
  bool output = false;
  bool rows = false;   // last stride 1, aligned to 16 bytes, the others in units of 16 bytes
  bool last_1 = false;  // last stride 1, and nothing else of that
  bool host = false;   // fa3_reference_forward's and _backward's freedom: any strides of either sign
  int64_t max_stride = INT64_MAX;
  bool pointers = true;
};

struct Named {
  const char* name;
  const fa3_tensor* tensor;
};

class Judge {
 public:
  Verdict verdict;

  void wrong_if(bool condition, const char* name) {
    if (condition) verdict.wrong.push_back(name);
  }
  void open_if(bool condition, const char* name) {
    if (condition) verdict.open.push_back(name);
  }
  bool good() const { return verdict.wrong.empty(); }

  void rank(const char* name, const fa3_tensor& t, int rank) { wrong_if(t.rank != rank, name); }

  // Of a tensor whose rank is right.
  void dims(const char* name, const fa3_tensor& t) {
    for (int i = 0; i < t.rank; ++i) wrong_if(t.dim[i] < 0 || t.dim[i] > INT32_MAX, name);
  }
  void dims_are(const char* name, const fa3_tensor& t, std::initializer_list<int64_t> expected) {
    int i = 0;
    for (int64_t n : expected) wrong_if(t.dim[i++] != n, name);
  }

  void softmax_scale(float scale) {
    wrong_if(!(scale >= 0) || std::isinf(scale), "softmax_scale");
    open_if(scale > 0x1.6p127f, "softmax_scale");  // beyond what exponentials to the base 2 can be scaled by
  }

  void head_dim(const char* name, int64_t n, int unit, int64_t most = 256) {
    wrong_if(n < unit || n % unit != 0 || n > most, name);
  }

  void heads(const char* name, int64_t heads, int64_t heads_kv) {
    wrong_if(heads_kv == 0 ? heads != 0 : heads % heads_kv != 0, name);
  }

  void layout(const char* name, const fa3_tensor& t, const Layout& l) {
    if (!has_known_dims(t)) return;
    const bool empty = !has_elements(t);
    const auto refuse_if = [&](bool condition) { empty ? open_if(condition, name) : wrong_if(condition, name); };
    const int bytes = element_bytes(t.dtype), unit = 16 / bytes;
    const bool device_rows = l.rows && !l.host;
    std::vector<std::pair<Wide, Wide>> steps;  // size of the stride, dim
    for (int i = 0; i < t.rank; ++i) {
      if (t.dim[i] <= 1) continue;
      const Wide stride = t.stride[i], size = stride < 0 ? -stride : stride;
      const bool last = i == t.rank - 1;
      if (last && (device_rows || (l.last_1 && !l.host))) refuse_if(stride != 1);
      else if (device_rows) refuse_if(stride % unit != 0);
      refuse_if(stride < 0 && !l.host);
      refuse_if(stride == 0 && l.output);
      refuse_if(stride > l.max_stride);
      refuse_if(size * t.dim[i] * bytes >= two_to_40);
      steps.push_back({size, t.dim[i]});
    }
    if (l.output) {
      std::sort(steps.begin(), steps.end());
      Wide span = 0;
      for (const auto& [size, dim] : steps) {
        refuse_if(size <= span);
        span += (dim - 1) * size;
      }
    }
    if (!l.pointers) return;
    const uintptr_t data = reinterpret_cast<uintptr_t>(t.data);
    refuse_if(data == 0);
    refuse_if(data % (device_rows ? 16 : bytes) != 0);
    if (empty) return;
    Wide low, high;
    reach(t, low, high);
    refuse_if(Wide{data} + low < 0 || Wide{data} + high >= Wide{1} << 64);
  }

  // The first `outputs` are written.
  void apart(const std::vector<Named>& tensors, size_t outputs) {
    const bool strides_are_right = good();
    for (size_t i = 0; i < outputs; ++i)
      for (size_t j = i + 1; j < tensors.size(); ++j) {
        const fa3_tensor &a = *tensors[i].tensor, &b = *tensors[j].tensor;
        if (!has_elements(a) || !has_elements(b) || !has_known_dims(a) || !has_known_dims(b)) continue;
        Wide low_a, high_a, low_b, high_b;
        const Wide data_a = reinterpret_cast<uintptr_t>(a.data), data_b = reinterpret_cast<uintptr_t>(b.data);
        reach(a, low_a, high_a), reach(b, low_b, high_b);
        if (data_a + high_a <= data_b + low_b || data_b + high_b <= data_a + low_a) continue;
        wrong_if(strides_are_right && share_a_byte(a, b), tensors[i].name);
        open_if(true, tensors[i].name);
      }
  }

 private:
  static bool has_known_dims(const fa3_tensor& t) {
    return std::all_of(t.dim, t.dim + t.rank, [](int64_t n) { return n >= 0 && n <= INT32_MAX; });
  }

  // By looking at every element, if they are few; false otherwise, as for those that are apart.
  static bool share_a_byte(const fa3_tensor& a, const fa3_tensor& b) {
    Wide elements[] = {1, 1};
    for (int i = 0; i < a.rank; ++i) elements[0] *= a.dim[i];
    for (int i = 0; i < b.rank; ++i) elements[1] *= b.dim[i];
    if (elements[0] > 2048 || elements[1] > 2048) return false;
    std::vector<int64_t> of_a = places(a), of_b = places(b);
    const int64_t distance =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(b.data) - reinterpret_cast<uintptr_t>(a.data));
    const int64_t bytes_a = element_bytes(a.dtype), bytes_b = element_bytes(b.dtype);
    std::sort(of_a.begin(), of_a.end()), std::sort(of_b.begin(), of_b.end());
    for (size_t i = 0, j = 0; i < of_a.size() && j < of_b.size();) {
      const int64_t begin_a = of_a[i], begin_b = of_b[j] + distance;
      if (begin_a + bytes_a <= begin_b) ++i;
      else if (begin_b + bytes_b <= begin_a) ++j;
      else return true;
    }
    return false;
  }
};

// struct_size, and whether what lies beyond this version's struct is zero.
template <class Params>
bool is_sensible(const Params* params, size_t minimum) {
  size_t size;
  std::memcpy(&size, params, sizeof size);
  if (size < minimum || size > 4096) return false;
  const char* const bytes = reinterpret_cast<const char*>(params);
  return std::all_of(bytes + std::min(size, sizeof *params), bytes + size, [](char byte) { return byte == 0; });
}

const fa3_kernel_info* kernel_named(const char* name) {
  static const std::map<std::string, fa3_kernel_info> kernels = [] {
    std::map<std::string, fa3_kernel_info> all;
    for (int i = 0; i < fa3_kernel_count(); ++i) {
      fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
      if (fa3_kernel_info_at(i, &info) == FA3_OK) all[info.name] = info;
    }
    return all;
  }();
  const auto found = kernels.find(name);
  return found == kernels.end() ? nullptr : &found->second;
}

template <class Params>
void judge_kernel(Judge& j, const Params& p, fa3_kernel_kind kind) {
  const fa3_tensor &q = p.q, &v = p.v;
  const char* const name = p.kernel;
  if (name == nullptr) return;
  const fa3_kernel_info* const found = kernel_named(name);
  if (found == nullptr) return j.wrong_if(true, "params->kernel");
  const fa3_kernel_info& info = *found;
  j.wrong_if(info.kind != kind || info.dtype != q.dtype || info.head_dim < q.dim[3] || info.head_dim_v < v.dim[3] ||
                 (info.causal != 0) != (p.mask != FA3_MASK_NONE),
             "params->kernel");
  j.wrong_if(std::strstr(name, "fa3_bwdshort") == name && p.k.dim[1] > info.block_kv, "params->kernel");
  // Which scales and which V a kernel of e4m3 takes, its name tells, the header does not.
  j.open_if(q.dtype == FA3_DTYPE_E4M3, "params->kernel");
  // Rows of packed heads are counted, too: up to a power of two for each query.
  const Wide rows = p.k.dim[2] ? Wide{2} * q.dim[1] * (q.dim[2] / p.k.dim[2]) : 0;
  j.open_if(std::strstr(name, "packed") && rows > max_seqlen, "params->kernel");
  if (kind != FA3_KERNEL_BACKWARD) return;
  // The second kernel of two is not named, and the paper's own order of sums is any.
  j.open_if(std::strstr(name, "queries") || ((p.flags & FA3_FLAG_DETERMINISTIC) && !info.chosen), "params->kernel");
  j.open_if((p.flags & FA3_FLAG_DETERMINISTIC) && !info.chosen, "params->flags");
}

// What the kernels count in 32 bits. Tiles are of 32 to 256 rows.
void judge_sizes(Judge& j, const fa3_tensor& q, const fa3_tensor& k) {
  j.wrong_if(q.dim[1] > max_seqlen, "q");
  j.wrong_if(k.dim[1] > max_seqlen, "k");
  const Wide heads = Wide{q.dim[0]} * q.dim[2];
  j.wrong_if(heads * divided_up(q.dim[1], 256) > max_tiles, "q");
  j.open_if(heads * divided_up(q.dim[1], 32) > max_tiles / 2, "q");
  j.open_if(heads * divided_up(q.dim[1], 32) > max_tiles / 2, "params->kernel");
}

void judge_scale(Judge& j, const char* name, const fa3_tensor& t, const fa3_tensor& of, const Layout& layout) {
  j.wrong_if(t.dtype != FA3_DTYPE_FP32, name);
  j.rank(name, t, 3);
  if (t.rank != 3) return;
  j.dims(name, t);
  j.wrong_if(t.dim[0] != 1 && t.dim[0] != of.dim[0], name);
  j.wrong_if(t.dim[1] != 1 && t.dim[1] != of.dim[2], name);
  j.wrong_if(t.dim[2] != 1 && t.dim[2] != divided_up(of.dim[1], FA3_SCALE_ROWS), name);
  j.layout(name, t, layout);
}

void judge_fp32(Judge& j, const char* name, const fa3_tensor& t, std::initializer_list<int64_t> dims,
                const Layout& layout) {
  j.wrong_if(t.dtype != FA3_DTYPE_FP32, name);
  j.rank(name, t, static_cast<int>(dims.size()));
  if (t.rank != static_cast<int>(dims.size())) return;
  j.dims(name, t);
  j.dims_are(name, t, dims);
  j.layout(name, t, layout);
}

}  // namespace

bool Verdict::explains(const std::string& message) const {
  if (!whole) return true;
  for (const auto* names : {&wrong, &open})
    for (const std::string& name : *names)
      for (const char* after : {".", " ", "-", "["})
        if (message.find(name + after) != message.npos) return true;
  return false;
}

int element_bytes(int32_t dtype) {
  return dtype == FA3_DTYPE_FP32 ? 4 : dtype == FA3_DTYPE_E4M3 || dtype == FA3_DTYPE_E5M2 ? 1 : 2;
}

bool has_elements(const fa3_tensor& tensor) {
  return tensor.rank > 0 && tensor.rank <= FA3_MAX_RANK &&
         std::all_of(tensor.dim, tensor.dim + tensor.rank, [](int64_t n) { return n > 0; });
}

void reach(const fa3_tensor& tensor, Wide& low, Wide& high) {
  low = 0, high = element_bytes(tensor.dtype);
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.dim[i] <= 1) continue;
    const Wide bytes = Wide{tensor.dim[i] - 1} * tensor.stride[i] * element_bytes(tensor.dtype);
    (bytes < 0 ? low : high) += bytes;
  }
}

std::vector<int64_t> places(const fa3_tensor& tensor) {
  std::vector<int64_t> places{0};
  if (!has_elements(tensor)) return {};
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.dim[i] == 1) continue;
    const size_t before = places.size();
    for (int64_t n = 1; n < tensor.dim[i]; ++n)
      for (size_t at = 0; at < before; ++at)
        places.push_back(places[at] + n * tensor.stride[i] * element_bytes(tensor.dtype));
  }
  return places;
}

template <class Params>
Params complete(const Params* params) {
  Params p{};
  std::memcpy(&p.struct_size, params, sizeof p.struct_size);
  const size_t size = std::clamp(p.struct_size, sizeof p.struct_size, sizeof p);
  std::memcpy(&p, params, size);
  if constexpr (requires { p.kernel; })
    if (size < offsetof(Params, kernel) + sizeof p.kernel) p.kernel = nullptr;
  return p;
}
template fa3_forward_params complete(const fa3_forward_params*);
template fa3_backward_params complete(const fa3_backward_params*);
template fa3_quantize_params complete(const fa3_quantize_params*);
template fa3_combine_params complete(const fa3_combine_params*);

Verdict judge(const fa3_forward_params* params, Mode mode) {
  Judge j;
  const fa3_forward_params p = complete(params);
  j.wrong_if(!is_sensible(params, offsetof(fa3_forward_params, lse)), "params->struct_size");
  const bool host = mode == Mode::reference, pointers = mode != Mode::shapes;
  const bool e4m3 = p.q.dtype == FA3_DTYPE_E4M3, fp32 = p.q.dtype == FA3_DTYPE_FP32;
  const bool tiles = e4m3 && p.v.rank == 5, wants_lse = p.lse.data != nullptr;
  j.wrong_if(p.flags & ~uint64_t{FA3_FLAG_DETERMINISTIC | FA3_FLAG_TWO_LEVEL}, "flags");
  j.wrong_if((p.flags & FA3_FLAG_TWO_LEVEL) && !e4m3, "flags");
  j.wrong_if(p.mask < FA3_MASK_NONE || p.mask > FA3_MASK_CAUSAL_BOTTOM_RIGHT, "mask");
  j.softmax_scale(p.softmax_scale);

  j.wrong_if(!is_one_of(p.q.dtype, {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_E4M3}) && !(host && fp32), "q");
  j.wrong_if(p.k.dtype != p.q.dtype, "k");
  j.wrong_if(p.v.dtype != p.q.dtype, "v");
  const bool o_has_16_bits = is_one_of(p.o.dtype, {FA3_DTYPE_BF16, FA3_DTYPE_FP16});
  if (e4m3) j.wrong_if(!o_has_16_bits && p.o.dtype != FA3_DTYPE_E4M3 && !(host && p.o.dtype == FA3_DTYPE_FP32), "o");
  else if (host) j.wrong_if(!o_has_16_bits && p.o.dtype != FA3_DTYPE_FP32, "o");
  else j.wrong_if(p.o.dtype != p.q.dtype, "o");

  const bool needs_o_scale = e4m3 && p.o.dtype == FA3_DTYPE_E4M3;
  j.wrong_if((p.q_scale.rank != 0) != e4m3, "q_scale");
  j.wrong_if((p.k_scale.rank != 0) != e4m3, "k_scale");
  j.wrong_if((p.v_scale.rank != 0) != e4m3, "v_scale");
  j.wrong_if((p.o_scale.rank != 0) != needs_o_scale, "o_scale");
  j.wrong_if(p.v_mean.rank != 0 && !e4m3, "v_mean");
  j.wrong_if(p.lse_offset.rank != 0 && !e4m3, "lse_offset");

  j.rank("q", p.q, 4), j.rank("k", p.k, 4), j.rank("v", p.v, tiles ? 5 : 4), j.rank("o", p.o, 4);
  if (wants_lse) j.rank("lse", p.lse, 3), j.wrong_if(p.lse.dtype != FA3_DTYPE_FP32, "lse");
  if (!j.good()) return j.verdict;

  j.dims("q", p.q), j.dims("k", p.k), j.dims("v", p.v), j.dims("o", p.o);
  const int64_t batch = p.q.dim[0], seqlen_q = p.q.dim[1], heads = p.q.dim[2], seqlen_k = p.k.dim[1],
                heads_kv = p.k.dim[2], head_dim_v = p.v.dim[3];
  j.wrong_if(p.k.dim[0] != batch, "k");
  j.wrong_if(p.k.dim[3] != p.q.dim[3], "k");
  if (tiles) j.dims_are("v", p.v, {batch, heads_kv, seqlen_k / 16 + (seqlen_k % 16 != 0), head_dim_v, 16});
  else j.dims_are("v", p.v, {batch, seqlen_k, heads_kv});
  j.dims_are("o", p.o, {batch, seqlen_q, heads, head_dim_v});
  j.heads("k", heads, heads_kv);
  const int unit = fp32 ? 1 : e4m3 ? 16 : 8;
  j.head_dim("q", p.q.dim[3], unit), j.head_dim("v", head_dim_v, unit);
  if (wants_lse) j.dims("lse", p.lse), j.dims_are("lse", p.lse, {batch, heads, seqlen_q});
  if (!j.good()) return j.verdict;

  const Layout rows{.rows = true, .host = host, .pointers = pointers};
  const Layout plain{.host = host, .max_stride = host ? INT64_MAX : INT32_MAX, .pointers = pointers};
  Layout written = rows;
  written.output = true;
  j.layout("q", p.q, rows), j.layout("k", p.k, rows), j.layout("o", p.o, written);
  j.layout("v", p.v, tiles ? Layout{.host = host, .pointers = pointers} : rows);
  if (tiles) {
    const bool empty = !has_elements(p.v);
    for (int i = 0; i < 3; ++i)
      if (p.v.dim[i] > 1) {
        j.wrong_if(!empty && !host && p.v.stride[i] % 16 != 0, "v");
        j.open_if(host || empty, "v");
      }
    j.wrong_if(!empty && (p.v.stride[3] != 16 || p.v.stride[4] != 1), "v");
    j.open_if(empty, "v");
    j.wrong_if(!empty && pointers && !host && reinterpret_cast<uintptr_t>(p.v.data) % 16 != 0, "v");
  }
  if (wants_lse) j.layout("lse", p.lse, {.output = true, .host = host, .pointers = pointers});
  if (e4m3) {
    judge_scale(j, "q_scale", p.q_scale, p.q, plain);
    judge_scale(j, "k_scale", p.k_scale, p.k, plain);
    judge_scale(j, "v_scale", p.v_scale, p.k, plain);
    if (needs_o_scale) judge_fp32(j, "o_scale", p.o_scale, {1}, plain);
    Layout mean = rows;
    mean.max_stride = plain.max_stride;
    if (p.v_mean.rank != 0) judge_fp32(j, "v_mean", p.v_mean, {batch, heads_kv, head_dim_v}, mean);
    if (p.lse_offset.rank != 0 && wants_lse)
      judge_fp32(j, "lse_offset", p.lse_offset, {batch, heads, seqlen_q}, plain);
    if (!host) j.open_if(true, "no kernel of this build");
  }
  if (!host && j.good()) {
    judge_sizes(j, p.q, p.k);
    judge_kernel(j, p, FA3_KERNEL_FORWARD);
  }
  if (pointers) {
    std::vector<Named> tensors{{"o", &p.o}};
    if (wants_lse) tensors.push_back({"lse", &p.lse});
    tensors.insert(tensors.end(), {{"q", &p.q}, {"k", &p.k}, {"v", &p.v}});
    if (e4m3) tensors.insert(tensors.end(), {{"q_scale", &p.q_scale}, {"k_scale", &p.k_scale}, {"v_scale", &p.v_scale},
                                             {"o_scale", &p.o_scale}, {"v_mean", &p.v_mean}});
    if (e4m3 && wants_lse) tensors.push_back({"lse_offset", &p.lse_offset});
    j.apart(tensors, wants_lse ? 2 : 1);
  }
  j.verdict.whole = true;
  return j.verdict;
}

Verdict judge(const fa3_backward_params* params, Mode mode) {
  Judge j;
  const fa3_backward_params p = complete(params);
  j.wrong_if(!is_sensible(params, offsetof(fa3_backward_params, mask)), "params->struct_size");
  const bool host = mode == Mode::reference, pointers = mode != Mode::shapes;
  const bool fp32 = p.q.dtype == FA3_DTYPE_FP32, has_dlse = p.dlse.rank != 0;
  j.wrong_if(p.flags & ~uint64_t{FA3_FLAG_DETERMINISTIC}, "flags");
  j.wrong_if(p.mask < FA3_MASK_NONE || p.mask > FA3_MASK_CAUSAL_BOTTOM_RIGHT, "mask");
  j.softmax_scale(p.softmax_scale);

  const Named inputs[] = {{"q", &p.q}, {"k", &p.k}, {"v", &p.v}, {"o", &p.o}, {"dout", &p.dout}};
  const Named outputs[] = {{"dq", &p.dq}, {"dk", &p.dk}, {"dv", &p.dv}};
  j.wrong_if(!is_one_of(p.q.dtype, {FA3_DTYPE_BF16, FA3_DTYPE_FP16}) && !(host && fp32), "q");
  const auto check_kind = [&](const Named& t, bool as_q) {
    if (as_q) j.wrong_if(t.tensor->dtype != p.q.dtype, t.name);
    else j.wrong_if(!is_one_of(t.tensor->dtype, {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32}), t.name);
    j.wrong_if(!host && t.tensor->dtype == FA3_DTYPE_FP32, t.name);
    j.rank(t.name, *t.tensor, 4);
  };
  for (const Named& t : inputs) check_kind(t, !host || t.tensor == &p.k || t.tensor == &p.v || t.tensor == &p.q);
  for (const Named& t : outputs) check_kind(t, !host);
  j.rank("lse", p.lse, 3), j.wrong_if(p.lse.dtype != FA3_DTYPE_FP32, "lse");
  if (has_dlse) j.rank("dlse", p.dlse, 3), j.wrong_if(p.dlse.dtype != FA3_DTYPE_FP32, "dlse");
  if (!j.good()) return j.verdict;

  const int64_t *const q = p.q.dim, *const k = p.k.dim;
  const int64_t head_dim_v = p.v.dim[3];
  for (const Named& t : inputs) j.dims(t.name, *t.tensor);
  for (const Named& t : outputs) j.dims(t.name, *t.tensor);
  j.wrong_if(k[0] != q[0] || k[3] != q[3], "k");
  j.dims_are("v", p.v, {k[0], k[1], k[2]});
  j.dims_are("o", p.o, {q[0], q[1], q[2], head_dim_v}), j.dims_are("dout", p.dout, {q[0], q[1], q[2], head_dim_v});
  j.dims_are("dq", p.dq, {q[0], q[1], q[2], q[3]}), j.dims_are("dk", p.dk, {k[0], k[1], k[2], k[3]});
  j.dims_are("dv", p.dv, {k[0], k[1], k[2], head_dim_v});
  j.dims("lse", p.lse), j.dims_are("lse", p.lse, {q[0], q[2], q[1]});
  if (has_dlse) j.dims("dlse", p.dlse), j.dims_are("dlse", p.dlse, {q[0], q[2], q[1]});
  j.heads("k", q[2], k[2]);
  j.head_dim("q", q[3], fp32 ? 1 : 8), j.head_dim("v", head_dim_v, fp32 ? 1 : 8);
  if (!j.good()) return j.verdict;

  for (const Named& t : inputs) j.layout(t.name, *t.tensor, {.rows = true, .host = host, .pointers = pointers});
  for (const Named& t : outputs)
    j.layout(t.name, *t.tensor, {.output = true, .rows = true, .host = host, .pointers = pointers});
  j.layout("lse", p.lse, {.host = host, .pointers = pointers});
  if (has_dlse) j.layout("dlse", p.dlse, {.host = host, .pointers = pointers});
  if (!host && j.good()) {
    judge_sizes(j, p.q, p.k);
    // Rows are counted here, and blocks of keys.
    j.open_if(Wide{q[0]} * q[2] * q[1] > max_tiles / 2, "q");
    j.open_if(Wide{k[0]} * k[2] * divided_up(k[1], 32) > max_tiles / 4, "k");
    judge_kernel(j, p, FA3_KERNEL_BACKWARD);
  }
  if (pointers) {
    std::vector<Named> tensors(std::begin(outputs), std::end(outputs));
    tensors.insert(tensors.end(), std::begin(inputs), std::end(inputs));
    tensors.push_back({"lse", &p.lse});
    if (has_dlse) tensors.push_back({"dlse", &p.dlse});
    j.apart(tensors, std::size(outputs));
  }
  j.verdict.whole = true;
  return j.verdict;
}

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
