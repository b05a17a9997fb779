#include <CLI/CLI.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string_view>

#include "check.h"
#include "diff.h"
#include "floors.h"
#include "json.h"
#include "reports.h"
#include "text.h"
#include "timeline.h"

namespace fs = std::filesystem;

namespace {

constexpr const char* file_help =
    "A library, executable, object, archive, fat binary or cubin with sm_90 code,\n"
    "or a listing of nvdisasm or cuobjdump; without one, the libfa3.so beside this program";
constexpr const char* kernel_help = "A name, part of a name, or a pattern with * and ?";
constexpr const char* second_help = "To compare with the first";
constexpr const char* exit_statuses =
    "Exit status: 0; 1 if check finds a broken rule, or diff a difference; 2 if the command line is wrong, something\n"
    "cannot be read, or no kernel matches.";

struct Arguments {
  std::string file, second_file, kernel, second_kernel;  // empty if not given
  std::string contracts = FA3_CONTRACTS, contract;
  bool json = false, brief = false, all = false, no_budgets = false, verbose = false;
};

std::string library() {
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& candidate : {here / "../../src/libfa3.so", here / "../lib/libfa3.so", fs::path("libfa3.so")})
    if (fs::exists(candidate, ignored)) return candidate.lexically_normal().string();
  throw std::runtime_error("no FILE, and no libfa3.so beside this program");
}

std::runtime_error no_match(const std::string& files, const std::string& wanted) {
  return std::runtime_error(files + (wanted.empty() ? ": no kernels" : ": no kernel matches \"" + wanted + "\""));
}

std::vector<sass::Kernel> wanted_kernels(const Arguments& arguments, const std::string& wanted) {
  const std::string file = arguments.file.empty() ? library() : arguments.file;
  std::vector<sass::Kernel> kernels = sass::kernels_of(file, wanted);
  if (kernels.empty()) throw no_match(file, wanted);
  return kernels;
}

int list(const Arguments& arguments, const sass::Colours& colours) {
  const auto kernels = wanted_kernels(arguments, arguments.kernel);
  std::cout << (arguments.json ? sass::list_json(kernels) : sass::list_text(kernels, colours));
  return 0;
}

int show(const Arguments& arguments, const sass::Colours& colours) {
  for (const sass::Kernel& kernel : wanted_kernels(arguments, arguments.kernel))
    std::cout << sass::show_text(kernel, {arguments.brief, arguments.all}, colours) << "\n";
  return 0;
}

// The one kernel of the file that is meant, for verbs that take no more.
const sass::Kernel& one_of(const std::vector<sass::Kernel>& kernels, const std::string& wanted) {
  for (const sass::Kernel& kernel : kernels)
    if (kernels.size() == 1 || kernel.record.name == wanted) return kernel;
  std::string names;
  for (const sass::Kernel& kernel : kernels) names += "\n  " + kernel.readable;
  throw std::runtime_error("one kernel is wanted; \"" + wanted + "\" means these:" + names);
}

// One kernel, two of one file, or the same of two files.
int timeline(const Arguments& arguments, const sass::Colours&) {
  if (!arguments.second_file.empty() && !arguments.second_kernel.empty())
    throw CLI::ValidationError("timeline takes two files, or two kernels of one");
  const auto first = wanted_kernels(arguments, arguments.kernel);
  std::vector<const sass::Kernel*> shown = {&one_of(first, arguments.kernel)};
  std::vector<sass::Kernel> second;
  if (!arguments.second_file.empty()) {
    Arguments other = arguments;
    other.file = arguments.second_file;
    second = wanted_kernels(other, arguments.kernel);
    shown.push_back(&one_of(second, arguments.kernel));
  } else if (!arguments.second_kernel.empty()) {
    second = wanted_kernels(arguments, arguments.second_kernel);
    shown.push_back(&one_of(second, arguments.second_kernel));
  }
  std::cout << sass::timeline_svg(shown, arguments.all);
  return 0;
}

int floors(const Arguments& arguments, const sass::Colours& colours) {
  const auto kernels = wanted_kernels(arguments, arguments.kernel);
  std::cout << (arguments.json ? sass::floors_json(kernels) : sass::floors_text(kernels, colours));
  return 0;
}

int check(const Arguments& arguments, const sass::Colours& colours) {
  const bool budgets = !arguments.no_budgets;
  const auto one_contract = [&] {
    const sass::Contract read = sass::read_contract(arguments.contract, sass::read_file(arguments.contract));
    return budgets ? read : sass::without_budgets(read);
  };
  const auto kernels = [&] { return wanted_kernels(arguments, arguments.kernel); };
  const sass::CheckResult result =
      arguments.contract.empty() ? sass::check_table(kernels(), arguments.contracts, arguments.kernel, budgets)
                                 : sass::check_contract(kernels(), one_contract());
  std::cout << (arguments.json ? sass::check_json(result) : sass::check_text(result, colours, arguments.verbose));
  return result.passed() ? 0 : 1;
}

std::vector<sass::KernelDiff> differences_of_files(const Arguments& arguments) {
  const auto before = sass::kernels_of(arguments.file, arguments.kernel),
             after = sass::kernels_of(arguments.second_file, arguments.kernel);
  if (before.empty() && after.empty())
    throw no_match(arguments.file + ", " + arguments.second_file, arguments.kernel);
  // Two cubins with one kernel each are two kernels to compare, whatever their names.
  if (before.size() == 1 && after.size() == 1) return {sass::difference(before[0], after[0])};
  return sass::differences(before, after);
}

int diff(const Arguments& arguments, const sass::Colours& colours) {
  const bool two_files = !arguments.second_file.empty(), two_kernels = !arguments.second_kernel.empty();
  if (two_files == two_kernels) throw CLI::ValidationError("diff takes two files, or two kernels of one");
  const std::vector<sass::KernelDiff> diffs =
      two_files ? differences_of_files(arguments)
                : std::vector{sass::difference(one_of(wanted_kernels(arguments, arguments.kernel), arguments.kernel),
                                               one_of(wanted_kernels(arguments, arguments.second_kernel),
                                                      arguments.second_kernel))};
  std::cout << (arguments.json ? sass::diff_json(diffs) : sass::diff_text(diffs, colours, arguments.all));
  return std::all_of(diffs.begin(), diffs.end(), [](const sass::KernelDiff& d) { return d.same(); }) ? 0 : 1;
}

struct Flag {
  const char* name;
  bool Arguments::*value;
  const char* help;
};
constexpr Flag json = {"--json", &Arguments::json, "Print JSON"},
               brief = {"--brief", &Arguments::brief, "Sum arithmetic up"},
               all = {"--all", &Arguments::all, "Boundary loops too"},
               whole = {"--all", &Arguments::all, "The whole kernel: every loop, and the code round them"},
               every = {"--all", &Arguments::all, "List every differing instruction, not only the first"},
               no_budgets = {"--no-budgets", &Arguments::no_budgets,
                             "Leave out the numbers of instructions, which are those of the pinned compiler"},
               verbose = {"--verbose", &Arguments::verbose, "Kept rules too"};

struct Verb {
  const char* name;
  int (*run)(const Arguments&, const sass::Colours&);
  const char* help;
  std::vector<Flag> flags;
};
const std::vector<Verb> verbs = {
    {"list", list, "Registers, shared memory, spills, setmaxnreg, WGMMAs and loops of each kernel", {json}},
    {"show", show, "The main loops, annotated", {brief, all}},
    {"timeline", timeline, "The main loops as a picture, SVG on standard output; two kernels stand side by side",
     {whole}},
    {"floors", floors, "What a turn of each hot loop must cost on each unit of a multiprocessor", {json}},
    {"check", check, "The kernels of the table against their contracts", {no_budgets, verbose, json}},
    {"diff", diff, "Two builds (FILE FILE [KERNEL]), or two kernels ([FILE] KERNEL KERNEL), whatever their registers",
     {every, json}},
};

bool is_file(const std::string& word) {
  std::error_code too_long;  // as a path: a kernel's mangled name may be
  return fs::is_regular_file(word, too_long);
}

// Files and kernels are told apart by the words themselves, so their order is free.
void declare_words(CLI::App& command, Arguments& arguments, bool two) {
  const auto file = [](const std::string& word) { return is_file(word) ? "" : "no file"; };
  const auto kernel = [](const std::string& word) { return is_file(word) ? "a file" : ""; };
  const auto declare = [&](const char* name, std::string& value, const auto& accepted, const char* help) {
    command.add_option(name, value, help)->check(accepted)->type_name("");
  };
  command.validate_positionals();
  declare("FILE", arguments.file, file, file_help);
  if (two) declare("SECOND_FILE", arguments.second_file, file, second_help);
  declare("KERNEL", arguments.kernel, kernel, kernel_help);
  if (two) declare("SECOND_KERNEL", arguments.second_kernel, kernel, second_help);
}

void declare_verbs(CLI::App& app, Arguments& arguments) {
  for (const Verb& verb : verbs) {
    CLI::App& command = *app.add_subcommand(verb.name, verb.help)->group("Verbs");
    declare_words(command, arguments, verb.run == diff || verb.run == timeline);
    for (const Flag& flag : verb.flags)
      command.add_flag(flag.name, arguments.*flag.value, flag.help)->disable_flag_override();
  }
  CLI::App& command = *app.get_subcommand("check");
  command.add_option("--contracts", arguments.contracts, "Where the table's contracts are, if not in ptx/kernels")
      ->type_name("FOLDER");
  command.add_option("--contract", arguments.contract, "One contract, for any kernel that it names")->type_name("FILE");
}

int run_verb(const CLI::App& app, const Arguments& arguments) {
  for (const std::string& word : {arguments.kernel, arguments.second_kernel})
    if (word.find('/') != std::string::npos) throw std::runtime_error(word + ": no such file");
  const sass::Colours colours{isatty(1) && !std::getenv("NO_COLOR")};
  for (const Verb& verb : verbs)
    if (app.got_subcommand(verb.name)) return verb.run(arguments, colours);
  throw CLI::RequiredError("A verb");
}

}  // namespace

int main(int count, char** values) {
  Arguments arguments;
  CLI::App app("Shows what the compiler made of CUDA kernels for Hopper, and whether that is what was meant.\n"
               "fa3-sass VERB --help tells the options of a verb, and what FILE and KERNEL may be.",
               "fa3-sass");
  app.footer(exit_statuses);
  app.require_subcommand(0, 1);  // run_verb asks for one: a wrong verb is to be named
  app.get_formatter()->label("SUBCOMMAND", "VERB");
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return "fa3-sass: " + std::string(error.what()) + "\n\n" + failed->help();
  });
  declare_verbs(app, arguments);
  if (count == 2 && std::string_view(values[1]) == "help") {
    std::cout << app.help();
    return 0;
  }
  try {
    app.parse(count, values);
    return run_verb(app, arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::cerr << "fa3-sass: " << error.what() << "\n";
    return 2;
  }
}
