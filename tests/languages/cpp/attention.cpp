// Attention from C++20: forward and backward on the CPU, checked against plain double precision, then on a Hopper GPU.
//
//   c++ -std=c++20 attention.cpp $(pkg-config --cflags --libs fa3) -ldl
//
// The CUDA driver is looked for when the program runs, so it also starts on machines without one.
#include <dlfcn.h>
#include <fa3.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int batch = 2, seqlen_q = 40, seqlen_k = 48, heads = 4, heads_kv = 2, head_dim = 64;
constexpr size_t q_size = size_t(batch) * seqlen_q * heads * head_dim;
constexpr size_t kv_size = size_t(batch) * seqlen_k * heads_kv * head_dim;
constexpr size_t lse_size = size_t(batch) * heads * seqlen_q;

// ---- errors ----------------------------------------------------------------------------------------------------

class Refused : public std::runtime_error {
 public:
  explicit Refused(fa3_status status)
      : std::runtime_error(std::string(fa3_status_string(status)) + ": " + fa3_last_error_message()), status(status) {}
  const fa3_status status;
};

void check(fa3_status status) {
  if (status != FA3_OK) throw Refused(status);
}

void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}

// ---- numbers ---------------------------------------------------------------------------------------------------

class Bf16 {
 public:
  Bf16() = default;
  explicit Bf16(float x) {  // the nearest; of two, the even one
    const auto wide = std::bit_cast<uint32_t>(x);
    bits_ = uint16_t((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(uint32_t(bits_) << 16); }
  uint16_t bits() const { return bits_; }

 private:
  uint16_t bits_;
};
static_assert(sizeof(Bf16) == 2);

class Generator {  // Lehmer's
 public:
  std::vector<Bf16> numbers(size_t n) {  // between -2 and 2
    std::vector<Bf16> x(n);
    for (Bf16& value : x) {
      state_ = state_ * 16807 % 2147483647;
      value = Bf16(float(double(state_) / 2147483647.0 * 4 - 2));
    }
    return x;
  }

 private:
  int64_t state_ = 1;
};

int64_t checksum(int64_t sum, std::span<const Bf16> x) {
  for (Bf16 value : x) sum = (sum * 31 + value.bits()) % 2147483647;
  return sum;
}

// ---- attention, plainly ----------------------------------------------------------------------------------------

struct Exact {
  std::vector<double> o, lse;
};

// In double precision. A causal mask that ends in the bottom right corner: query i sees key j if
// j <= i + seqlen_k - seqlen_q.
Exact attention(std::span<const Bf16> q, std::span<const Bf16> k, std::span<const Bf16> v) {
  Exact exact;
  exact.o.resize(q_size), exact.lse.resize(lse_size);
  const auto row = [](auto x, int b, int i, int h, int seqlen, int n) {
    return x.subspan(((size_t(b) * size_t(seqlen) + size_t(i)) * size_t(n) + size_t(h)) * head_dim, head_dim);
  };
  for (int b = 0; b < batch; ++b)
    for (int h = 0; h < heads; ++h)
      for (int i = 0; i < seqlen_q; ++i) {
        const int kv_head = h / (heads / heads_kv);
        const auto q_row = row(q, b, i, h, seqlen_q, heads);
        const auto o_row = row(std::span(exact.o), b, i, h, seqlen_q, heads);
        double sum = 0;
        for (int j = 0; j <= i + seqlen_k - seqlen_q; ++j) {
          const auto k_row = row(k, b, j, kv_head, seqlen_k, heads_kv);
          const auto v_row = row(v, b, j, kv_head, seqlen_k, heads_kv);
          double score = 0;
          for (size_t c = 0; c < head_dim; ++c) score += double(q_row[c]) * double(k_row[c]);
          const double p = std::exp(score / std::sqrt(head_dim));
          for (size_t c = 0; c < head_dim; ++c) o_row[c] += p * double(v_row[c]);
          sum += p;
        }
        for (double& value : o_row) value /= sum;
        exact.lse[size_t((b * heads + h) * seqlen_q + i)] = std::log(sum);
      }
  return exact;
}

// ---- tensors ---------------------------------------------------------------------------------------------------

fa3_tensor packed(void* data, fa3_dtype dtype, std::initializer_list<int64_t> dims) {
  fa3_tensor tensor{data, dtype, int32_t(dims.size()), {}, {}};
  std::copy(dims.begin(), dims.end(), tensor.dim);
  check(fa3_tensor_pack(&tensor));
  return tensor;
}
fa3_tensor queries(void* data) { return packed(data, FA3_DTYPE_BF16, {batch, seqlen_q, heads, head_dim}); }
fa3_tensor keys(void* data) { return packed(data, FA3_DTYPE_BF16, {batch, seqlen_k, heads_kv, head_dim}); }
fa3_tensor sums(void* data) { return packed(data, FA3_DTYPE_FP32, {batch, heads, seqlen_q}); }

// The same names on the host (std::vector) and on the device (DeviceArray).
template <template <class...> class Array>
struct Problem {
  Array<Bf16> q, k, v, dout;
  Array<Bf16> o = Array<Bf16>(q_size), dq = Array<Bf16>(q_size), dk = Array<Bf16>(kv_size), dv = Array<Bf16>(kv_size);
  Array<float> lse = Array<float>(lse_size);

  fa3_forward_params forward() {
    fa3_forward_params params = FA3_FORWARD_PARAMS_INIT;
    params.q = queries(q.data()), params.k = keys(k.data()), params.v = keys(v.data());
    params.o = queries(o.data()), params.lse = sums(lse.data());
    params.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;  // softmax_scale 0: 1/sqrt(head_dim)
    return params;
  }
  fa3_backward_params backward() {
    fa3_backward_params params = FA3_BACKWARD_PARAMS_INIT;
    params.q = queries(q.data()), params.k = keys(k.data()), params.v = keys(v.data());
    params.o = queries(o.data()), params.lse = sums(lse.data()), params.dout = queries(dout.data());
    params.dq = queries(dq.data()), params.dk = keys(dk.data()), params.dv = keys(dv.data());
    params.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
    return params;
  }
};
using Host = Problem<std::vector>;

// ---- on the CPU ------------------------------------------------------------------------------------------------

void on_cpu(Host& host) {
  std::cout << "inputs: checksum " << checksum(checksum(checksum(0, host.q), host.k), host.v) << "\n";
  auto params = host.forward();
  check(fa3_reference_forward(&params, 0));
  const Exact exact = attention(host.q, host.k, host.v);
  for (size_t i = 0; i < q_size; ++i)  // half a unit in the last of bf16's 8 bits is at most 2^-8 of the number
    expect(std::abs(double(host.o[i]) - exact.o[i]) <= std::ldexp(std::abs(exact.o[i]), -8) + 1e-6,
           "O is not as in double precision");
  for (size_t i = 0; i < lse_size; ++i)
    expect(std::abs(double(host.lse[i]) - exact.lse[i]) <= 1e-6 * std::max(1.0, std::abs(exact.lse[i])),
           "LSE is not as in double precision");
  std::cout << "cpu: O and LSE as in double precision\n";

  auto gradients = host.backward();
  check(fa3_reference_backward(&gradients, 0));

  auto wrong = params;
  wrong.k.stride[1] += 1;
  try {
    check(fa3_forward_check(&wrong));
    throw std::logic_error("a wrong stride was accepted");
  } catch (const Refused& refused) {
    std::cout << "refused: " << refused.what() << "\n";
  }

  size_t bytes;
  check(fa3_forward_check(&params));
  check(fa3_forward_workspace_size(&params, 132, &bytes));
  std::cout << "workspace: " << bytes << " bytes on 132 multiprocessors\n";
}

// ---- on the GPU ------------------------------------------------------------------------------------------------

struct NoGpu : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void check_cuda(int error) {
  if (error) throw std::runtime_error("CUDA error " + std::to_string(error));
}

// What this program needs of the CUDA driver. The first use makes the first device's primary context current.
class Cuda {
 public:
  static const Cuda& get() {
    static const Cuda cuda;
    return cuda;
  }
  int (*allocate)(uint64_t* address, size_t bytes);
  int (*free)(uint64_t address);
  int (*to_device)(uint64_t to, const void* from, size_t bytes);
  int (*to_host)(void* to, uint64_t from, size_t bytes);

 private:
  Cuda() {
    if (!library_) throw NoGpu(dlerror());
    int (*init)(unsigned), (*device_get)(int*, int), (*primary_context)(void**, int), (*set_current)(void*);
    find(init, "cuInit"), find(device_get, "cuDeviceGet"), find(primary_context, "cuDevicePrimaryCtxRetain");
    find(set_current, "cuCtxSetCurrent"), find(allocate, "cuMemAlloc_v2"), find(free, "cuMemFree_v2");
    find(to_device, "cuMemcpyHtoD_v2"), find(to_host, "cuMemcpyDtoH_v2");
    int device;
    void* context;
    if (init(0) || device_get(&device, 0)) throw NoGpu("the driver finds no device");
    if (primary_context(&context, device) || set_current(context)) throw NoGpu("the device has no context");
  }
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (!function) throw NoGpu(dlerror());
  }
  void* const library_ = dlopen("libcuda.so.1", RTLD_NOW);
};

template <class Type>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    uint64_t address;
    check_cuda(Cuda::get().allocate(&address, size * sizeof(Type)));
    data_.reset(reinterpret_cast<Type*>(address));
  }
  explicit DeviceArray(std::span<const Type> from) : DeviceArray(from.size()) {
    check_cuda(Cuda::get().to_device(reinterpret_cast<uint64_t>(data()), from.data(), from.size_bytes()));
  }
  Type* data() { return data_.get(); }
  std::vector<Type> copy() {
    std::vector<Type> host(size_);
    check_cuda(Cuda::get().to_host(host.data(), reinterpret_cast<uint64_t>(data()), size_ * sizeof(Type)));
    return host;
  }

 private:
  struct Free {
    void operator()(Type* data) const { Cuda::get().free(reinterpret_cast<uint64_t>(data)); }
  };
  size_t size_;
  std::unique_ptr<Type, Free> data_;
};

// A few roundings to bf16, which has 8 bits, may lie between them.
void expect_close(const char* name, std::span<const Bf16> x, std::span<const Bf16> expected) {
  float largest = 0;
  for (float value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < x.size(); ++i)
    expect(std::abs(x[i] - expected[i]) <= std::ldexp(largest, -6), std::string(name) + " is not as on the CPU");
}

void on_gpu(Host& host) {
  size_t bytes, backward_bytes;
  Cuda::get();
  auto params = host.forward();
  if (fa3_forward_workspace_size(&params, 0, &bytes) != FA3_OK) throw NoGpu(fa3_last_error_message());

  Problem<DeviceArray> device{DeviceArray<Bf16>(host.q), DeviceArray<Bf16>(host.k), DeviceArray<Bf16>(host.v),
                              DeviceArray<Bf16>(host.dout)};
  params = device.forward();
  auto gradients = device.backward();
  check(fa3_backward_workspace_size(&gradients, &backward_bytes));
  DeviceArray<std::byte> workspace(std::max(bytes, backward_bytes));  // one call after the other: both may use it
  check(fa3_forward(&params, workspace.data(), bytes, nullptr));
  check(fa3_backward(&gradients, workspace.data(), backward_bytes, nullptr));

  const auto lse = device.lse.copy();
  for (size_t i = 0; i < lse_size; ++i)
    expect(std::abs(lse[i] - host.lse[i]) <= 1e-4f, "LSE is not as on the CPU");
  expect_close("O", device.o.copy(), host.o);
  std::cout << "gpu: O and LSE as on the CPU\n";
  expect_close("dq", device.dq.copy(), host.dq);
  expect_close("dk", device.dk.copy(), host.dk);
  expect_close("dv", device.dv.copy(), host.dv);
  std::cout << "gpu: gradients as on the CPU\n";
}

}  // namespace

int main() try {
  Generator random;
  Host host{random.numbers(q_size), random.numbers(kv_size), random.numbers(kv_size), random.numbers(q_size)};
  on_cpu(host);
  try {
    on_gpu(host);
  } catch (const NoGpu& why) {
    std::cout << "no Hopper GPU: " << why.what() << "\n";
  }
} catch (const std::exception& error) {
  std::cout << "failed: " << error.what() << "\n";
  return 1;
}
