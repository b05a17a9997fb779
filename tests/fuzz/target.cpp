// The fuzzer's target: one call of each kind with parameters that its bytes choose. The library's answers must be those
// of the header's rules (rules.h), its reasons must name what is wrong, and what it accepts and is small it computes on
// the CPU, in memory of exactly the tensors' size, so that the address sanitizer sees every access beyond.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "device/cubins.h"
#include "problems.h"
#include "rules.h"
#include "planned_rules.h"

const Fa3Cubin fa3_cubins[1] = {};  // nothing is launched here

namespace fa3::test {
namespace {

struct Counts {
  uint64_t cases, accepted, computed, refused_open;
} counts[6];
constexpr const char* kinds[] = {"forward", "backward", "quantize", "combine", "pack", "append"};

[[noreturn]] void die(const char* what, const std::string& detail) {
  std::fprintf(stderr, "%s: %s\n", what, detail.c_str());
  std::abort();
}

// The library's answer against the rules'.
void compare(const char* function, fa3_status status, const Verdict& verdict) {
  const std::string message = fa3_last_error_message();
  const auto names = [](const std::vector<std::string>& all) {
    std::string text;
    for (const std::string& name : all) text += " " + name;
    return text;
  };
  if ((status == FA3_OK) != message.empty()) die("message of another status", std::string(function) + " " + message);
  if (message.find('\n') != message.npos) die("more than a line", message);
  if (status == FA3_OK) {
    if (!verdict.may_be_accepted()) die("wrong acceptance", function + (", wrong are:" + names(verdict.wrong)));
    return;
  }
  if (status != FA3_ERROR_INVALID_ARGUMENT && status != FA3_ERROR_UNSUPPORTED)
    die("status", std::string(function) + " " + std::to_string(status) + " " + message);
  if (!verdict.may_be_refused()) die("wrong refusal", std::string(function) + " " + message);
  if (!verdict.explains(message))
    die("refused for another reason",
        message + ", wrong are:" + names(verdict.wrong) + "; open are:" + names(verdict.open));
}

// So many bytes as the caller says that it has, at their exact end.
template <class Params>
struct Exact {
  explicit Exact(const Params& p, const std::vector<unsigned char>& tail) {
    size_t bytes = std::max(std::min<size_t>(p.struct_size, 4096), sizeof p.struct_size);
    memory.reset(static_cast<unsigned char*>(std::malloc(bytes)));
    std::memcpy(memory.get(), &p, std::min(bytes, sizeof p));
    if (bytes > sizeof p) {
      std::memset(memory.get() + sizeof p, 0, bytes - sizeof p);
      std::copy_n(tail.begin(), std::min(tail.size(), bytes - sizeof p), memory.get() + sizeof p);
    }
  }
  const Params* get() const { return reinterpret_cast<const Params*>(memory.get()); }

  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<unsigned char, Free> memory;
};

// A tensor's memory: from its first byte to its last, filled with random bits.
struct Memory {
  std::vector<unsigned char> before;
  std::unique_ptr<unsigned char, Exact<fa3_tensor>::Free> bytes;
  fa3_tensor tensor;
  bool output;
  const char* name;

  Memory(const Member& member, Choices& choices) : tensor(*member.tensor), output(member.output), name(member.name) {
    Wide low, high;
    reach(tensor, low, high);
    before.resize(static_cast<size_t>(high - low));
    for (unsigned char& byte : before) byte = static_cast<unsigned char>(choices.bits());
    bytes.reset(static_cast<unsigned char*>(std::malloc(before.size())));
    std::memcpy(bytes.get(), before.data(), before.size());
    tensor.data = bytes.get() - static_cast<ptrdiff_t>(low);
  }
  void set_number(float value) {
    for (int64_t place : places(tensor)) set_number_at(place, value);
  }
  template <class Number>
  void set_number_at(int64_t place, Number value) {
    unsigned char* const at = static_cast<unsigned char*>(tensor.data) + place;
    std::memcpy(at, &value, sizeof value);
    std::memcpy(before.data() + (at - bytes.get()), &value, sizeof value);
  }
  // Nothing has changed but, where the call was accepted, elements of outputs.
  void check(bool accepted) {
    if (output && accepted)
      for (int64_t place : places(tensor)) {
        const size_t at = static_cast<size_t>(static_cast<unsigned char*>(tensor.data) + place - bytes.get());
        std::memcpy(before.data() + at, bytes.get() + at, static_cast<size_t>(element_bytes(tensor.dtype)));
      }
    if (std::memcmp(before.data(), bytes.get(), before.size()) != 0)
      die("written where nothing is to be written", name);
  }
};

bool is_tensor_of_scales(const std::string& name) { return name.ends_with("_scale"); }

// Does the reference take scales whatever they are? Those of a latent cache, too.
bool takes_any_scales(const fa3_append_params&) { return true; }
bool takes_any_scales(const fa3_forward_params& p) { return PlannedCall{p}.latent(); }
template <class Params>
bool takes_any_scales(const Params&) {
  return false;
}

// Lengths, page numbers and the like: small ones, some of them wrong, or what lies there.
void set_lengths(Memory& memory, Choices& choices) {
  if (choices.once_in(4)) return;
  const bool sums = std::string(memory.name).starts_with("cu_seqlens"), wrong = choices.once_in(4);
  const int32_t most = 1 + choices.below(24);
  int32_t sum = 0;
  for (int64_t place : places(memory.tensor)) {
    const int32_t number = choices.below(most) - (wrong ? most / 2 : 0), value = sums ? sum : number;
    if (memory.tensor.dtype == FA3_DTYPE_INT64) memory.set_number_at(place, int64_t{value});
    else memory.set_number_at(place, value);
    sum += number;
  }
}

// The work of a call on the CPU, and what it reads.
double work(const fa3_forward_params& p) {
  const bool packed_q = p.cu_seqlens_q.rank != 0, packed_k = p.cu_seqlens_k.rank != 0;
  if (packed_q && p.cu_seqlens_q.dim[0] == 1) return 0;  // no sequences
  const double rows = double(p.q.dim[0]) * (packed_q ? 1 : double(p.q.dim[1])), heads = double(p.q.dim[2 - packed_q]);
  const double pages = p.page_table.rank ? double(p.page_table.dim[1]) : 1;
  return rows * heads * pages * double(p.k.dim[1 - packed_k]) *
         (double(p.q.dim[3 - packed_q]) + double(p.v.dim[3 - packed_k]));
}
double work(const fa3_backward_params& p) {
  const bool packed_q = p.cu_seqlens_q.rank != 0, packed_k = p.cu_seqlens_k.rank != 0;
  const double rows = double(p.q.dim[0]) * (packed_q ? 1 : double(p.q.dim[1])), heads = double(p.q.dim[2 - packed_q]);
  return 3 * rows * heads * double(p.k.dim[1 - packed_k]) *
         (double(p.q.dim[3 - packed_q]) + double(p.v.dim[3 - packed_k]));
}
double work(const fa3_quantize_params& p) {
  return double(p.x.dim[0]) * double(p.x.dim[1]) * double(p.x.dim[2]) * double(p.x.dim[3]) * double(p.x.dim[3]);
}
double work(const fa3_append_params& p) {
  double all = 0;
  for (const fa3_tensor* t : {&p.k, &p.v, &p.q}) {
    double elements = t->rank > 0;
    for (int i = 0; i < t->rank; ++i) elements *= double(t->dim[i]);
    all += elements;
  }
  return all;
}
double work(const fa3_combine_params& p) {
  return double(p.o_parts.dim[0]) * double(p.o.dim[0]) * double(p.o.dim[1]) * double(p.o.dim[2]) * double(p.o.dim[3]);
}

fa3_status on_cpu(const fa3_forward_params* p, int threads) { return fa3_reference_forward(p, threads); }
fa3_status on_cpu(const fa3_backward_params* p, int threads) { return fa3_reference_backward(p, threads); }
fa3_status on_cpu(const fa3_quantize_params* p, int) { return fa3_reference_quantize(p); }
fa3_status on_cpu(const fa3_append_params* p, int) { return fa3_reference_append(p); }
fa3_status on_cpu(const fa3_combine_params* p, int) { return fa3_reference_combine(p); }

// In memory of its own. Pointers of problems that cannot be had so small stay what they are: those are not computed.
template <class Params>
void compute(Params p, Choices& choices, Counts& count) {
  if (p.struct_size < sizeof p) return;
  p.struct_size = sizeof p;
  const auto is_small = [](const fa3_tensor& t) {
    if (*std::max_element(t.dim, t.dim + t.rank) > 1 << 14) return false;
    Wide low, high, elements = 1;
    reach(t, low, high);
    for (int i = 0; i < t.rank; ++i) elements *= t.dim[i];
    return high - low <= 1 << 16 && elements <= 1 << 14;
  };
  std::vector<Memory> memory;
  memory.reserve(32);
  Verdict scales;
  for (const Member& member : members(p)) {
    fa3_tensor& t = *member.tensor;
    if (t.rank < 0 || t.rank > FA3_MAX_RANK) return;
    if (t.rank == 0 || !has_elements(t) || t.data == nullptr) continue;
    const bool numbers = t.dtype == FA3_DTYPE_INT32 || t.dtype == FA3_DTYPE_INT64;
    if (((t.dtype < FA3_DTYPE_BF16 || t.dtype > FA3_DTYPE_E4M3) && !numbers) || !is_small(t)) return;
    Memory& own = memory.emplace_back(member, choices);
    t = own.tensor;
    if (numbers) set_lengths(own, choices);
    if (!is_tensor_of_scales(member.name) || t.dtype != FA3_DTYPE_FP32) continue;
    own.set_number(0.5f);
    if (takes_any_scales(p) || !choices.once_in(16)) continue;
    const std::vector<int64_t> all = places(t);
    own.set_number_at(all[choices.below(static_cast<int>(std::min<size_t>(all.size(), 256)))],
                      choices.one_of({0.0f, -1.0f, 1.0f / 0.0f, 0.0f / 0.0f}));
    scales.wrong.push_back(member.name);
  }
  Verdict verdict = judge(&p, Mode::reference);
  if (verdict.may_be_accepted() && !(work(p) <= 3e4)) return;
  const bool empty = work(p) == 0;  // then scales need not be read
  if (verdict.may_be_accepted())
    (empty ? verdict.open : verdict.wrong).insert((empty ? verdict.open : verdict.wrong).end(), scales.wrong.begin(),
                                                  scales.wrong.end());
  const Exact<Params> exact(p, {});
  const fa3_status status = on_cpu(exact.get(), choices.once_in(64) ? 3 : 1);
  compare("reference", status, verdict);
  for (Memory& own : memory) own.check(status == FA3_OK);
  count.computed += status == FA3_OK;
}

void ask(const fa3_forward_params* p, Choices& choices, bool accepted) {
  const Verdict verdict = judge(p, Mode::shapes);
  const int32_t multiprocessors = choices.once_in(2) ? 132 : 1 + choices.below(1024);
  size_t bytes = 0;
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  const fa3_status status = fa3_forward_workspace_size(p, multiprocessors, &bytes);
  compare("workspace", status, verdict);
  if (accepted && status != FA3_OK) die("accepted, but without a workspace size", fa3_last_error_message());
  if (fa3_forward_kernel_info(p, multiprocessors, 0, &info) != status) die("info and workspace disagree", info.name);
  size_t schedule_bytes = 0;
  if (fa3_forward_schedule_size(p, multiprocessors, &schedule_bytes) != status)
    die("schedule and workspace disagree", fa3_last_error_message());
  if (status != FA3_OK) return;
  for (int launch = 0; launch < std::max(info.launches, 1); ++launch) {
    fa3_kernel_info one = FA3_KERNEL_INFO_INIT;
    if (fa3_forward_kernel_info(p, multiprocessors, launch, &one) != FA3_OK) die("no info", fa3_last_error_message());
    // A cluster has two thread blocks, wherever it runs; in kernels for short sequences each tile has one.
    const bool is_short = std::string(one.name).starts_with("fa3_fwdshort");
    const int64_t most_grid = is_short ? one.tiles : std::max(multiprocessors, 2);
    if (one.pieces < one.tiles || one.launches != info.launches || one.multiprocessors != multiprocessors ||
        (one.grid > 0) != (info.launches > 0) ||
        (one.kind == FA3_KERNEL_FORWARD && one.grid > most_grid))
      die("info", one.name);
    if (info.kind != FA3_KERNEL_FORWARD) info = one;  // of passes alone the last one
  }
  fa3_kernel_info beyond = FA3_KERNEL_INFO_INIT;
  if (fa3_forward_kernel_info(p, multiprocessors, std::max(info.launches, 1), &beyond) == FA3_OK)
    die("launch", info.name);
  if (info.launches == 0) return;
  // The header's bound; the few KB are 64 bytes for each multiprocessor. V that is made into tiles comes on top, or the
  // plan of the lengths, which is the schedule.
  const fa3_forward_params full = complete(p);
  const bool planned = std::string(info.name).starts_with("fa3_fwdplanned");
  if (planned != (schedule_bytes > 0)) die("schedule", std::string(info.name) + " " + std::to_string(schedule_bytes));
  if (planned && (full.flags & FA3_FLAG_BATCH_INVARIANT)) return;
  const size_t parts = size_t{3} * multiprocessors, few_kilobytes = 64 * (size_t(multiprocessors) + 2);
  const bool any_kernel = !planned && full.q.dim[1] <= 64 && full.q.dtype != FA3_DTYPE_E4M3;  // on whatever device
  const size_t part_bytes = any_kernel ? size_t{128} * 4 * (256 + 8) : size_t(info.block_q) * 4 * (info.head_dim_v + 8);
  double most = double(parts * part_bytes + few_kilobytes) + double(schedule_bytes);
  if (info.launches > 1 && !planned)
    most += double(full.k.dim[0]) * double((full.k.dim[1] + 15) / 16 * 16) * double(full.k.dim[2]) *
            double(full.v.dim[3]);
  const int64_t sequences = full.cu_seqlens_q.rank != 0 ? full.cu_seqlens_q.dim[0] - 1 : full.q.dim[0];
  if (planned && full.mask != FA3_MASK_CHUNK &&
      double(schedule_bytes) > 64 * double(info.pieces) + 40 * (double(sequences) + 8))
    die("schedule", std::string(info.name) + " takes " + std::to_string(schedule_bytes));
  if (bytes < FA3_FORWARD_WORKSPACE_BYTES || double(bytes) > most)
    die("workspace", std::string(info.name) + " takes " + std::to_string(bytes));
}

void ask(const fa3_backward_params* p, Choices& choices, bool accepted) {
  const Verdict verdict = judge(p, Mode::shapes);
  size_t bytes = 0;
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  const fa3_status status = fa3_backward_workspace_size(p, &bytes);
  compare("workspace", status, verdict);
  if (accepted && status != FA3_OK) die("accepted, but without a workspace size", fa3_last_error_message());
  if (fa3_backward_kernel_info(p, 1 + choices.below(1024), 0, &info) != status) die("info and workspace", info.name);
}

void ask(const fa3_quantize_params* p, Choices&, bool accepted) {
  size_t bytes = 0;
  const fa3_status status = fa3_quantize_workspace_size(p, &bytes);
  compare("workspace", status, judge(p, Mode::shapes));
  if (accepted && status != FA3_OK) die("accepted, but without a workspace size", fa3_last_error_message());
}

void ask(const fa3_append_params*, Choices&, bool) {}
void ask(const fa3_combine_params*, Choices&, bool) {}

fa3_status check(const fa3_forward_params* p) { return fa3_forward_check(p); }
fa3_status check(const fa3_backward_params* p) { return fa3_backward_check(p); }
fa3_status check(const fa3_quantize_params* p) { return fa3_quantize_check(p); }
fa3_status check(const fa3_append_params* p) { return fa3_append_check(p); }
fa3_status check(const fa3_combine_params* p) { return fa3_combine_check(p); }

template <class Params>
void try_one(Choices& choices, Counts& count) {
  Params p;
  std::vector<unsigned char> tail;
  const bool host = choices.once_in(4);
  make(p, choices, host);
  if (choices.once_in(100)) {  // nothing but random bits
    unsigned char* const bytes = reinterpret_cast<unsigned char*>(&p);
    for (size_t i = sizeof p.struct_size; i < sizeof p; ++i) bytes[i] = static_cast<unsigned char>(choices.bits());
    if constexpr (requires { p.kernel; }) p.kernel = any_kernel(choices);
  }
  const std::vector<Member> tensors = members(p);
  for (int changes = choices.below(4) - 1; changes > 0; --changes) {
    if (choices.once_in(4)) change_scalars(p, choices);
    else change(*tensors[choices.below(static_cast<int>(tensors.size()))].tensor, choices);
  }
  switch (choices.below(16)) {
    case 0: p.struct_size = static_cast<size_t>(choices.below(static_cast<int>(sizeof p) + 1)); break;
    case 1:
      tail.resize(1 + choices.below(64));
      p.struct_size = sizeof p + tail.size() + choices.below(64);
      if (choices.once_in(2)) tail.back() = 1;
      break;
    case 2:
      if (choices.once_in(8)) p.struct_size = choices.one_of<size_t>({0, 7, 4095, 4096, 4097, SIZE_MAX});
      break;
    default: break;
  }
  ++count.cases;
  const Exact<Params> exact(p, tail);
  const Verdict verdict = judge(exact.get(), Mode::device);
  const fa3_status status = check(exact.get());
  compare("check", status, verdict);
  count.accepted += status == FA3_OK;
  count.refused_open += status != FA3_OK && verdict.may_be_accepted();
  if (choices.once_in(6)) ask(exact.get(), choices, status == FA3_OK);
  if (choices.once_in(host ? 2 : 8)) compute(p, choices, count);
}

void try_pack(Choices& choices, Counts& count) {
  fa3_tensor t{};
  t.rank = choices.once_in(8) ? static_cast<int32_t>(odd_number(choices)) : 1 + choices.below(FA3_MAX_RANK);
  for (int64_t& n : t.dim) n = choices.once_in(4) ? odd_number(choices) : choices.below(40);
  for (int64_t& n : t.stride) n = -77;
  const fa3_tensor before = t;
  const fa3_status status = fa3_tensor_pack(&t);
  ++count.cases;
  count.accepted += status == FA3_OK;
  compare("pack", status, judge(before));
  if (std::memcmp(&t, &before, offsetof(fa3_tensor, stride)) != 0) die("pack", "changed what it reads");
  Wide expected = 1;
  for (int i = FA3_MAX_RANK - 1; i >= 0; --i) {
    const bool filled = status == FA3_OK && i < t.rank;
    if (t.stride[i] != (filled ? static_cast<int64_t>(expected) : -77)) die("pack", "stride");
    if (filled && t.dim[i] != 0) expected *= t.dim[i];
  }
}

void report() {
  for (int i = 0; i < 6; ++i) {
    const Counts& c = counts[i];
    if (c.cases == 0) continue;
    std::printf("%-8s %10llu cases, %2.0f%% accepted, %4.1f%% refused where the header leaves it open, %llu computed\n",
                kinds[i], static_cast<unsigned long long>(c.cases), 100.0 * double(c.accepted) / double(c.cases),
                100.0 * double(c.refused_open) / double(c.cases), static_cast<unsigned long long>(c.computed));
  }
}

}  // namespace
}  // namespace fa3::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fa3::test;
  static const int registered = std::atexit(report);
  (void)registered;
  Choices choices(data, size);
  switch (choices.below(19)) {
    case 0: try_pack(choices, counts[4]); break;
    case 16: case 17: case 18: try_one<fa3_append_params>(choices, counts[5]); break;
    case 1: case 2: case 3: try_one<fa3_combine_params>(choices, counts[3]); break;
    case 4: case 5: case 6: case 7: try_one<fa3_quantize_params>(choices, counts[2]); break;
    case 8: case 9: case 10: try_one<fa3_backward_params>(choices, counts[1]); break;
    default: try_one<fa3_forward_params>(choices, counts[0]);
  }
  return 0;
}
