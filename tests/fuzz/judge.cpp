#include "judge.h"

#include <map>

namespace fa3::test {
namespace {

bool has_known_dims(const fa3_tensor& t) {
  return std::all_of(t.dim, t.dim + t.rank, [](int64_t n) { return n >= 0 && n <= INT32_MAX; });
}

// By looking at every element, if they are few; false otherwise, as for those that are apart.
bool share_a_byte(const fa3_tensor& a, const fa3_tensor& b) {
  Wide elements[] = {1, 1};
  for (int i = 0; i < a.rank; ++i) elements[0] *= a.dim[i];
  for (int i = 0; i < b.rank; ++i) elements[1] *= b.dim[i];
  if (elements[0] > 2048 || elements[1] > 2048) return false;
  std::vector<int64_t> places_a = places(a), places_b = places(b);
  const int64_t distance =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(b.data) - reinterpret_cast<uintptr_t>(a.data));
  const int64_t bytes_a = element_bytes(a.dtype), bytes_b = element_bytes(b.dtype);
  std::sort(places_a.begin(), places_a.end()), std::sort(places_b.begin(), places_b.end());
  for (size_t i = 0, j = 0; i < places_a.size() && j < places_b.size();) {
    const int64_t begin_a = places_a[i], begin_b = places_b[j] + distance;
    if (begin_a + bytes_a <= begin_b) ++i;
    else if (begin_b + bytes_b <= begin_a) ++j;
    else return true;
  }
  return false;
}

}  // namespace

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

void Judge::layout(const char* name, const fa3_tensor& t, const Layout& l) {
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

void Judge::apart(const std::vector<Named>& tensors, size_t outputs) {
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

const fa3_kernel_info* judge_kernel(Judge& j, const char* name, const KernelWanted& wanted) {
  if (name == nullptr) return nullptr;
  const fa3_kernel_info* const info = kernel_named(name);
  if (info == nullptr) j.wrong_if(true, "params->kernel");
  else
    j.wrong_if(info->kind != wanted.kind || info->dtype != wanted.dtype || info->head_dim < wanted.head_dim ||
                   info->head_dim_v < wanted.head_dim_v || (info->causal != 0) != wanted.causal,
               "params->kernel");
  return info;
}

void judge_packed_heads(Judge& j, const char* kernel, int64_t seqlen_q, int64_t heads, int64_t heads_kv) {
  const Wide rows = heads_kv ? Wide{2} * seqlen_q * (heads / heads_kv) : 0;
  const bool packs = std::strstr(kernel, "packed") || std::strstr(kernel, "sharedkeys") ||
                     std::strstr(kernel, "mla") || std::strstr(kernel, "plannedwide");
  j.open_if(packs && rows > max_seqlen, "params->kernel");
}

void judge_sizes(Judge& j, const fa3_tensor& q, const fa3_tensor& k) {
  j.wrong_if(q.dim[1] > max_seqlen, "q");
  j.wrong_if(k.dim[1] > max_seqlen, "k");
  const Wide heads = Wide{q.dim[0]} * q.dim[2];
  j.wrong_if(heads * divided_up(q.dim[1], 256) > max_tiles, "q");
  j.open_if(heads * divided_up(q.dim[1], 32) > max_tiles / 2, "q");
  j.open_if(heads * divided_up(q.dim[1], 32) > max_tiles / 2, "params->kernel");
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

bool Verdict::explains(const std::string& message) const {
  if (!whole) return true;
  for (const auto* names : {&wrong, &open})
    for (const std::string& name : *names)
      for (const char* after : {".", " ", "-", "["})
        if (message.find(name + after) != message.npos) return true;
  return false;
}

int element_bytes(int32_t dtype) {
  switch (dtype) {
    case FA3_DTYPE_FP32:
    case FA3_DTYPE_INT32: return 4;
    case FA3_DTYPE_INT64: return 8;
    case FA3_DTYPE_E4M3:
    case FA3_DTYPE_E5M2: return 1;
    default: return 2;
  }
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

}  // namespace fa3::test
