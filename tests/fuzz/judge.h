// What the rules of all functions are written with: a verdict in the making.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <initializer_list>

#include "rules.h"

namespace fa3::test {

constexpr Wide two_to_40 = Wide{1} << 40;
constexpr int64_t max_seqlen = INT32_MAX - 1024, max_tiles = INT32_MAX - 65536;

inline int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
inline bool is_one_of(int32_t dtype, std::initializer_list<int32_t> dtypes) {
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

  void layout(const char* name, const fa3_tensor& t, const Layout& l);

  // The first `outputs` are written.
  void apart(const std::vector<Named>& tensors, size_t outputs);
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

// What kind of kernel a call can name. The kernel that it names, or null.
struct KernelWanted {
  fa3_kernel_kind kind;
  int32_t dtype;
  int64_t head_dim, head_dim_v;
  bool causal;
};
const fa3_kernel_info* kernel_named(const char* name);  // null if there is none
const fa3_kernel_info* judge_kernel(Judge& j, const char* name, const KernelWanted& wanted);

// What the kernels count in 32 bits. Tiles are of 32 to 256 rows.
void judge_sizes(Judge& j, const fa3_tensor& q, const fa3_tensor& k);
// Rows of packed heads are counted, too: up to a power of two for each query.
void judge_packed_heads(Judge& j, const char* kernel, int64_t seqlen_q, int64_t heads, int64_t heads_kv);

void judge_fp32(Judge& j, const char* name, const fa3_tensor& t, std::initializer_list<int64_t> dims,
                const Layout& layout);

}  // namespace fa3::test
