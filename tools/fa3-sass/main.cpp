#include <CLI/CLI.hpp>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "system/text.h"
#include "system/tidy.h"
#include "verbs.h"
#include "views/print.h"

namespace fs = std::filesystem;

namespace {

constexpr const char* file_help =
    "A library, executable, object, archive, wheel, fat binary or cubin with sm_90 code,\n"
    "or a listing of nvdisasm or cuobjdump; - is standard input; without one, the libfa3.so beside this program";
constexpr const char* kernel_help = "A name, part of a name, a pattern with * and ?, or the number that list prints";
constexpr const char* second_help = "To compare with the first";
constexpr const char* exit_statuses =
    "Exit status: 0; 1 if check finds a broken rule, or diff a difference; 2 if the command line is wrong, something\n"
    "cannot be read or written, or no kernel matches.";

constexpr const char* version = "fa3-sass " FA3_VERSION;

using sass::Arguments;

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
               clocks = {"--clocks", &Arguments::clocks, "Time, as far as control words tell: estimated clocks"},
               verbose = {"--verbose", &Arguments::verbose,
                          "Kept rules too, and with --preset the table of hand-overs"},
               full = {"--full-names", &Arguments::full, "Names of kernels at their whole length"},
               init = {"--init", &Arguments::init, "What the kernel is today, as rules that it keeps"};

struct Verb {
  const char* name;
  int (*run)(const Arguments&, const sass::Colours&);
  const char* help;
  std::vector<Flag> flags;
};
const std::vector<Verb> verbs = {
    {"list", sass::list_verb,
     "Registers, shared memory, spills, setmaxnreg, WGMMAs and loops of each kernel",
     {full, json}},
    {"show", sass::show_verb,
     "The main loops, annotated",
     {brief, all, clocks, full}},
    {"timeline", sass::timeline_verb,
     "The main loops as a picture, SVG on standard output; two kernels stand side by side",
     {whole, clocks}},
    {"floors", sass::floors_verb,
     "What a turn of each hot loop must cost on each unit of a multiprocessor",
     {full, json}},
    {"check", sass::check_verb,
     "The kernels of the table against their contracts; others with --contract or --preset",
     {no_budgets, verbose, full, json}},
    {"contract", sass::contract_verb,
     "With --init: a first contract for a kernel",
     {init}},
    {"diff", sass::diff_verb,
     "Two builds (FILE FILE [KERNEL]), or two kernels ([FILE] KERNEL KERNEL), whatever their registers",
     {every, json}},
};

bool is_file(const std::string& word) {
  std::error_code too_long;  // as a path: a kernel's mangled name may be
  return word == "-" || (fs::exists(word, too_long) && !fs::is_directory(word, too_long));
}

// A word that is not there as a file, but cannot be a kernel either.
bool names_a_file(const std::string& word) {
  if (word.find('/') != std::string::npos) return true;
  for (const char* end : {".so", ".a", ".o", ".cubin", ".fatbin", ".whl", ".sass", ".txt"})
    if (word.ends_with(end)) return true;
  return false;
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
    declare_words(command, arguments, verb.run == sass::diff_verb || verb.run == sass::timeline_verb);
    command.set_version_flag("--version", version);
    for (const Flag& flag : verb.flags)
      command.add_flag(flag.name, arguments.*flag.value, flag.help)->disable_flag_override();
  }
  CLI::App& command = *app.get_subcommand("check");
  command
      .add_flag("--preset{attention}", arguments.preset,
                "Rules that need no table and no contract, for attention kernels, or --preset=gemm for others with\n"
                "WGMMAs, or --preset=any")
      ->check(CLI::IsMember({"attention", "gemm", "any"}));
  command.add_option("--contracts", arguments.contracts, "Where the table's contracts are, if not beside this program")
      ->type_name("FOLDER");
  app.get_subcommand("timeline")
      ->add_option("--ncu", arguments.ncu,
                   "Time as profiled: what `ncu --page source --print-source sass --csv` prints of a launch")
      ->type_name("FILE");
  command.add_option("--contract", arguments.contract, "One contract, for any kernel that it names")->type_name("FILE");
}

int run_verb(const CLI::App& app, const Arguments& arguments) {
  for (const std::string& word : {arguments.kernel, arguments.second_kernel})
    if (names_a_file(word)) throw std::runtime_error(word + ": no such file");
  if (arguments.file == "-" && arguments.second_file == "-")
    throw CLI::ValidationError("standard input can be read only once");
  if (arguments.full) sass::show_full_names();
  const sass::Colours colours{isatty(1) && !std::getenv("NO_COLOR")};
  for (const Verb& verb : verbs)
    if (app.got_subcommand(verb.name)) return verb.run(arguments, colours);
  throw CLI::RequiredError("A verb");
}

// What --help, --version and errors in the command line print.
int answer(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream out, err;
  const int status = app.exit(error, out, err);
  sass::print(out.str());
  std::cerr << err.str();
  return status == 0 ? 0 : 2;
}

int run(int count, char** values) {
  Arguments arguments;
  CLI::App app("Shows what the compiler made of CUDA kernels for Hopper, and whether that is what was meant.\n"
               "fa3-sass VERB --help tells the options of a verb, and what FILE and KERNEL may be.",
               "fa3-sass");
  app.footer(exit_statuses);
  app.require_subcommand(0, 1);  // run_verb asks for one: a wrong verb is to be named
  app.set_version_flag("--version", version);
  app.get_formatter()->label("SUBCOMMAND", "VERB");
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return "fa3-sass: " + std::string(error.what()) + "\n\n" + failed->help();
  });
  declare_verbs(app, arguments);
  std::vector<std::string> words(values + 1, values + count);
  if (!words.empty() && words[0] == "help") {  // help VERB: VERB --help
    words.erase(words.begin());
    words.insert(words.begin() + std::min<std::ptrdiff_t>(1, std::ssize(words)), "--help");
  }
  try {
    const auto named = [&](const Verb& verb) { return words[0] == verb.name; };
    if (!words.empty() && !words[0].starts_with("-") && std::ranges::none_of(verbs, named))
      throw CLI::ExtrasError({words[0]});  // also beside --help
    std::reverse(words.begin(), words.end());  // as the parser wants them
    app.parse(words);
    return run_verb(app, arguments);
  } catch (const CLI::ParseError& error) {
    return answer(app, error);
  }
}

}  // namespace

int main(int count, char** values) {
  signal(SIGPIPE, SIG_IGN);  // so that writing fails, and what is to be tidied up is
  sass::tidy_up_when_stopped();
  try {
    return run(count, values);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::broken_pipe) {  // as without the above: nobody reads on, and no word about it
      signal(SIGPIPE, SIG_DFL);
      raise(SIGPIPE);
    }
    std::cerr << "fa3-sass: standard output: cannot be written: " << error.code().message() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "fa3-sass: " << error.what() << "\n";
  }
  return 2;
}
