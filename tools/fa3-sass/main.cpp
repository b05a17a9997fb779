#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <stdexcept>

#include "check.h"
#include "diff.h"
#include "floors.h"
#include "reports.h"
#include "text.h"
#include "timeline.h"

namespace fs = std::filesystem;

namespace {

constexpr const char* usage =
    R"(usage: fa3-sass VERB [FILE] [KERNEL] [OPTION...]

FILE is a shared library, executable, object, fat binary or cubin with sm_90 code, or nvdisasm's text; without one, the
libfa3.so beside this program is read. KERNEL is a name, part of a name, or a pattern with * and ?.

  list [FILE] [KERNEL]         registers, shared memory, spills, setmaxnreg, WGMMAs, loops of each kernel   (--json)
  show [FILE] KERNEL           the main loops, annotated   (--brief: arithmetic summed up; --all: boundary loops too)
  timeline [FILE] KERNEL       the main loops as a picture, SVG on standard output   (--all: boundary loops too)
  floors [FILE] [KERNEL]       what a turn of each hot loop must cost on each unit of a multiprocessor   (--json)
  check [FILE] [KERNEL]        the kernels of the table against their contracts; exit status 1 if a rule is broken
                               (--contracts=FOLDER; --contract=FILE: one contract, for any kernel it names;
                               --no-budgets: not the numbers of instructions, which are those of the pinned compiler;
                               --verbose: kept rules too; --json)
  diff FILE FILE [KERNEL]      two builds, kernel by kernel: figures that moved, instructions that came or went,
  diff [FILE] KERNEL KERNEL    whatever the registers; or two kernels. Exit status 1 if they differ   (--json)
)";

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Arguments {
  std::string verb;
  std::vector<std::string> files, words;  // words are what is not a file
  std::vector<std::string> flags;
  bool has(const std::string& flag) const { return std::find(flags.begin(), flags.end(), flag) != flags.end(); }
  std::string value(const std::string& flag, const std::string& otherwise) const {
    for (const std::string& given : flags)
      if (given.rfind(flag + "=", 0) == 0) return given.substr(flag.size() + 1);
    return otherwise;
  }
  void allow(const std::vector<std::string>& known) const {
    for (const std::string& given : flags)
      if (std::find(known.begin(), known.end(), given.substr(0, given.find('='))) == known.end())
        throw UsageError(verb + " has no option " + given);
  }
};

Arguments read_arguments(int count, char** values) {
  Arguments arguments;
  if (count < 2) throw UsageError("no verb");
  arguments.verb = values[1];
  for (int i = 2; i < count; ++i) {
    std::error_code too_long;  // as a path: a kernel's mangled name may be
    const std::string word = values[i];
    if (word.rfind("--", 0) == 0) arguments.flags.push_back(word);
    else if (fs::is_regular_file(word, too_long)) arguments.files.push_back(word);
    else if (word.find('/') != std::string::npos) throw std::runtime_error(word + ": no such file");
    else arguments.words.push_back(word);
  }
  return arguments;
}

std::string library() {
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& candidate : {here / "../../src/libfa3.so", here / "../lib/libfa3.so", fs::path("libfa3.so")})
    if (fs::exists(candidate, ignored)) return candidate.lexically_normal().string();
  throw UsageError("no FILE, and no libfa3.so beside this program");
}

std::vector<sass::Kernel> wanted_kernels(const Arguments& arguments) {
  const std::string file = arguments.files.empty() ? library() : arguments.files[0];
  const std::string wanted = arguments.words.empty() ? "" : arguments.words[0];
  std::vector<sass::Kernel> kernels = sass::kernels_of(file, wanted);
  if (kernels.empty()) throw std::runtime_error(file + ": no kernel matches \"" + wanted + "\"");
  return kernels;
}

int list(const Arguments& arguments, const sass::Colours& colours) {
  arguments.allow({"--json"});
  const auto kernels = wanted_kernels(arguments);
  std::cout << (arguments.has("--json") ? sass::list_json(kernels) : sass::list_text(kernels, colours));
  return 0;
}

int show(const Arguments& arguments, const sass::Colours& colours) {
  arguments.allow({"--brief", "--all"});
  for (const sass::Kernel& kernel : wanted_kernels(arguments))
    std::cout << sass::show_text(kernel, {arguments.has("--brief"), arguments.has("--all")}, colours) << "\n";
  return 0;
}

int timeline(const Arguments& arguments, const sass::Colours&) {
  arguments.allow({"--all"});
  const auto kernels = wanted_kernels(arguments);
  std::string exact = arguments.words.empty() ? "" : arguments.words[0];
  for (const sass::Kernel& kernel : kernels)
    if (kernels.size() == 1 || kernel.record.name == exact) {
      std::cout << sass::timeline_svg(kernel, arguments.has("--all"));
      return 0;
    }
  std::string names;
  for (const sass::Kernel& kernel : kernels) names += "\n  " + kernel.readable;
  throw std::runtime_error("a picture is of one kernel; these match:" + names);
}

int floors(const Arguments& arguments, const sass::Colours& colours) {
  arguments.allow({"--json"});
  const auto kernels = wanted_kernels(arguments);
  std::cout << (arguments.has("--json") ? sass::floors_json(kernels) : sass::floors_text(kernels, colours));
  return 0;
}

int check(const Arguments& arguments, const sass::Colours& colours) {
  arguments.allow({"--contracts", "--contract", "--no-budgets", "--verbose", "--json"});
  const std::string contract = arguments.value("--contract", "");
  const std::string wanted = arguments.words.empty() ? "" : arguments.words[0];
  const bool budgets = !arguments.has("--no-budgets");
  const auto one_contract = [&] {
    const sass::Contract read = sass::read_contract(contract, sass::read_file(contract));
    return budgets ? read : sass::without_budgets(read);
  };
  const sass::CheckResult result =
      contract.empty()
          ? sass::check_table(wanted_kernels(arguments), arguments.value("--contracts", FA3_CONTRACTS), wanted, budgets)
          : sass::check_contract(wanted_kernels(arguments), one_contract());
  std::cout << (arguments.has("--json") ? sass::check_json(result)
                                        : sass::check_text(result, colours, arguments.has("--verbose")));
  return result.passed() ? 0 : 1;
}

int diff(const Arguments& arguments, const sass::Colours& colours) {
  arguments.allow({"--json"});
  std::vector<sass::KernelDiff> diffs;
  if (arguments.files.size() == 2) {
    const std::string wanted = arguments.words.empty() ? "" : arguments.words[0];
    diffs =
        sass::differences(sass::kernels_of(arguments.files[0], wanted), sass::kernels_of(arguments.files[1], wanted));
    // Two cubins with one kernel each are two kernels to compare, whatever their names.
    if (diffs.size() == 2 && diffs[0].after.empty() && diffs[1].before.empty())
      diffs = {sass::difference(sass::kernels_of(arguments.files[0], wanted)[0],
                                sass::kernels_of(arguments.files[1], wanted)[0])};
  } else if (arguments.words.size() == 2) {
    Arguments one = arguments, other = arguments;
    one.words = {arguments.words[0]};
    other.words = {arguments.words[1]};
    diffs = {sass::difference(wanted_kernels(one)[0], wanted_kernels(other)[0])};
  } else {
    throw UsageError("diff takes two files, or two kernels of one");
  }
  std::cout << (arguments.has("--json") ? sass::diff_json(diffs) : sass::diff_text(diffs, colours));
  return std::all_of(diffs.begin(), diffs.end(), [](const sass::KernelDiff& d) { return d.same(); }) ? 0 : 1;
}

int run_verb(const Arguments& arguments, const sass::Colours& colours) {
  const struct {
    const char* name;
    int (*run)(const Arguments&, const sass::Colours&);
  } verbs[] = {{"list", list}, {"show", show}, {"timeline", timeline}, {"floors", floors}, {"check", check},
               {"diff", diff}};
  for (const auto& verb : verbs)
    if (arguments.verb == verb.name) return verb.run(arguments, colours);
  if (arguments.verb == "--help" || arguments.verb == "help") {
    std::cout << usage;
    return 0;
  }
  throw UsageError("unknown verb " + arguments.verb);
}

}  // namespace

int main(int count, char** values) {
  const sass::Colours colours{isatty(1) && !std::getenv("NO_COLOR")};
  try {
    return run_verb(read_arguments(count, values), colours);
  } catch (const UsageError& error) {
    std::cerr << "fa3-sass: " << error.what() << "\n" << usage;
  } catch (const std::exception& error) {
    std::cerr << "fa3-sass: " << error.what() << "\n";
  }
  return 2;
}
