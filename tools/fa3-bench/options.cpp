#include "options.h"

#include <unistd.h>

#include <charconv>
#include <functional>
#include <map>
#include <stdexcept>

namespace fa3::bench {

const char* const usage = R"(fa3-bench: times fa3_forward on this GPU, after checking its result against float64.

Without options it runs the paper's grid: 16384 tokens, hidden size 2048, seqlen 512 to 16384, head_dim 64, 128 and 256,
causal and not, bf16 and fp16. Lists are separated by commas.

  --dtype LIST       bf16, fp16                     --tokens N      batch = tokens / seqlen (16384)
  --head-dim LIST    64,128,256                     --hidden N      heads = hidden / head_dim (2048)
  --causal LIST      0, 1                           --batch N       instead of --tokens
  --seqlen LIST      512,...,16384                  --heads N       instead of --hidden
  --seqlen-k N       if not seqlen                  --kv-heads N    if fewer than heads (GQA, MQA)
  --kernel LIST      run each point with each of these kernels instead of the library's choice: names as in the column
                     "kernel", or their first cells, such as fwd, which mean the kernel of that kind that fits the point
  --filter TEXT      only points whose label contains TEXT (see --list)
  --list             print the points' labels and stop

  --passes N         passes over all points (1): the result is the median of the passes' medians
  --reps N           timed runs of a pass (30)      --warmups N     runs before them (5)
  --idle-ms N        pause before each point (100)  --seed N        of the N(0,1) inputs (1)
  --check-rows N     rows compared with float64 (24); 0 skips the check
  --clock            also measure the SM clock under each load, and the share of the peak at that clock
  --overhead         measure the host's time per call instead of the points
  --reference        run the CPU reference on a small example instead; needs no GPU

  --csv FILE         --json FILE                    "-" is standard output
  --progress         show progress on standard error even if it is no terminal; --no-progress: never
)";

namespace {

int64_t number(const std::string& option, const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > (int64_t(1) << 40))
    throw std::invalid_argument(option + ": \"" + text + "\" is no number");
  return value;
}

template <class T>
std::vector<T> split(const std::string& text, const std::function<T(const std::string&)>& item) {
  std::vector<T> items;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(item(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return items;
}

}  // namespace

Options Options::parse(int argc, char* argv[]) {
  Options o;
  o.progress = isatty(STDERR_FILENO);
  using Value = const std::string&;
  const auto at_least_1 = [](const char* option, Value text) {
    const int64_t value = number(option, text);
    if (value < 1) throw std::invalid_argument(std::string(option) + " must be at least 1");
    return value;
  };
  const std::map<std::string, std::function<void()>> flags = {
      {"--overhead", [&] { o.overhead = true; }}, {"--reference", [&] { o.reference = true; }},
      {"--list", [&] { o.list = true; }},         {"--help", [&] { o.help = true; }},
      {"--clock", [&] { o.protocol.clock = true; }}, {"--progress", [&] { o.progress = true; }},
      {"--no-progress", [&] { o.progress = false; }}};
  const std::map<std::string, std::function<void(Value)>> values = {
      {"--dtype",
       [&](Value v) {
         o.grid.dtypes = split<fa3_dtype>(v, [](Value name) -> fa3_dtype {
           if (name == "bf16") return FA3_DTYPE_BF16;
           if (name == "fp16") return FA3_DTYPE_FP16;
           throw std::invalid_argument("--dtype: \"" + name + "\" is neither bf16 nor fp16");
         });
       }},
      {"--head-dim",
       [&](Value v) { o.grid.head_dims = split<int64_t>(v, [&](Value n) { return at_least_1("--head-dim", n); }); }},
      {"--seqlen",
       [&](Value v) { o.grid.seqlens = split<int64_t>(v, [&](Value n) { return at_least_1("--seqlen", n); }); }},
      {"--causal",
       [&](Value v) { o.grid.causal = split<bool>(v, [](Value n) { return number("--causal", n) != 0; }); }},
      {"--tokens", [&](Value v) { o.grid.tokens = at_least_1("--tokens", v); }},
      {"--hidden", [&](Value v) { o.grid.hidden = at_least_1("--hidden", v); }},
      {"--batch", [&](Value v) { o.grid.batch = at_least_1("--batch", v); }},
      {"--seqlen-k", [&](Value v) { o.grid.seqlen_k = at_least_1("--seqlen-k", v); }},
      {"--heads", [&](Value v) { o.grid.heads = at_least_1("--heads", v); }},
      {"--kv-heads", [&](Value v) { o.grid.kv_heads = at_least_1("--kv-heads", v); }},
      {"--kernel",
       [&](Value v) {
         o.grid.kernels = split<std::string>(v, [](Value name) {
           if (is_kernel(name)) return name;
           throw std::invalid_argument("--kernel: \"" + name + "\" is no kernel of this build, which has " +
                                       kernel_cells());
         });
       }},
      {"--filter", [&](Value v) { o.grid.filter = v; }},
      {"--passes", [&](Value v) { o.passes = int(at_least_1("--passes", v)); }},
      {"--reps", [&](Value v) { o.protocol.reps = int(at_least_1("--reps", v)); }},
      {"--warmups", [&](Value v) { o.protocol.warmups = int(number("--warmups", v)); }},
      {"--idle-ms", [&](Value v) { o.protocol.idle_ms = int(number("--idle-ms", v)); }},
      {"--check-rows", [&](Value v) { o.protocol.checked_rows = int(number("--check-rows", v)); }},
      {"--seed", [&](Value v) { o.protocol.seed = uint64_t(number("--seed", v)); }},
      {"--csv", [&](Value v) { o.csv = v; }},
      {"--json", [&](Value v) { o.json = v; }}};

  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (const auto flag = flags.find(argument); flag != flags.end()) {
      flag->second();
    } else if (const auto value = values.find(name); value != values.end()) {
      if (equals == std::string::npos && i + 1 == argc) throw std::invalid_argument(name + " needs a value");
      value->second(equals == std::string::npos ? argv[++i] : argument.substr(equals + 1));
    } else {
      throw std::invalid_argument("unknown option " + argument);
    }
  }
  return o;
}

}  // namespace fa3::bench
