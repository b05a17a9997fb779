// fa3-info: what this libfa3 is, and whether this machine can run it.
#include <fnmatch.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "params.h"
#include "report.h"

namespace fa3::info {
namespace {

constexpr int wrong_command_line = 2, cannot_run = 77;

struct Options {
  bool json = false, load = false;
  std::string kernels;  // a pattern; "" for all
};

void declare(CLI::App& app, Options& options) {
  app.set_version_flag("--version", "fa3-info " + tools::library_version());
  app.get_formatter()->column_width(28);
  app.add_option("--kernel", options.kernels, "Only kernels whose name matches, such as '*_bf16_d128_*'")
      ->type_name("PATTERN");
  app.add_flag("--load", options.load,
               "Also load the library and, on each device that can run them, the kernels; and print the times")
      ->disable_flag_override();
  app.add_flag("--json", options.json, "Print JSON")->disable_flag_override();
}

Report report(const Options& options) {
  Report report{this_machine(), {}, options.load, {}};
  for (const fa3_kernel_info& kernel : kernels())
    if (options.kernels.empty() || fnmatch(options.kernels.c_str(), kernel.name, 0) == 0)
      report.kernels.push_back(kernel);
  if (report.kernels.empty())
    throw CLI::ValidationError("--kernel: \"" + options.kernels + "\" matches no kernel of this build");
  if (options.load) {
    load(report.machine);
    report.library_load_ms = library_load_ms();
  }
  return report;
}

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw std::system_error(errno, std::generic_category(), "standard output cannot be written");
}

int run(int count, char** values) {
  Options options;
  CLI::App app("Prints what this libfa3 is, and whether this machine can run its kernels, and if not, why.",
               "fa3-info");
  app.footer("Exit status: 0 if a device of this machine can run the kernels, 77 if none can (all is printed as\n"
             "well), 2 for a wrong command line, 1 if the answer cannot be printed.");
  declare(app, options);
  try {
    app.parse(count, values);
    const Report answer = report(options);
    print(options.json ? answer.json() : answer.text());
    return answer.machine.problem.empty() ? 0 : cannot_run;
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    const int status = app.exit(error, out, err);
    print(out.str());
    if (status == 0) return 0;
    std::fprintf(stderr, "fa3-info: %s (--help lists the options)\n", error.what());
    return wrong_command_line;
  }
}

}  // namespace
}  // namespace fa3::info

int main(int count, char** values) {
  try {
    return fa3::info::run(count, values);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fa3-info: %s\n", error.what());
    return 1;
  }
}
