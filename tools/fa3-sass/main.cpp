#include <CLI/CLI.hpp>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "check.h"
#include "diff.h"
#include "first_contract.h"
#include "json.h"
#include "places.h"
#include "preset.h"
#include "print.h"
#include "reports.h"
#include "samples.h"
#include "source.h"
#include "text.h"
#include "tidy.h"
#include "timeline.h"

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

struct Arguments {
  std::string file, second_file, kernel, second_kernel;  // empty if not given
  std::string contracts, contract, ncu;
  bool json = false, brief = false, all = false, no_budgets = false, verbose = false, init = false, full = false;
  bool clocks = false;
  std::string preset;
};

std::unique_ptr<sass::Source> source_of(const Arguments& arguments) {
  return sass::open_source(arguments.file.empty() ? sass::library() : arguments.file);
}

sass::Columns columns_for(const sass::Source& source, const std::vector<size_t>& wanted) {
  sass::Columns columns;
  for (size_t i : wanted) columns.make_room(i + 1, source.entries()[i].readable);
  return columns;
}

// Most kernels of a large library need not be disassembled for their line.
void list_table(const sass::Source& source, const std::vector<size_t>& wanted, const sass::Columns& columns,
                const sass::Colours& colours) {
  std::vector<size_t> looked_at;
  size_t wgmmas = 0;
  for (size_t i : wanted) {
    wgmmas += source.may_have_wgmmas(i);
    if (!source.record(i) || !source.record(i)->plain) looked_at.push_back(i);
  }
  if (wanted.size() > 1 && source.record(wanted[0]) && source.architecture() == sass::hopper)
    sass::print(sass::list_summary(wanted.size(), wgmmas));
  sass::print(sass::list_head(columns, colours));
  size_t next = 0;
  const auto plain_before = [&](size_t kernel) {
    for (; next < wanted.size() && wanted[next] < kernel; ++next)
      sass::print(sass::list_text(sass::plain_kernel(*source.record(wanted[next]), static_cast<int>(wanted[next]) + 1),
                                  columns, colours));
  };
  source.each(looked_at, [&](const sass::Kernel& kernel) {
    plain_before(static_cast<size_t>(kernel.number) - 1);
    sass::print(sass::list_text(kernel, columns, colours));
    ++next;
  });
  plain_before(source.entries().size());
}

int list(const Arguments& arguments, const sass::Colours& colours) {
  const auto source = source_of(arguments);
  const auto wanted = source->matching(arguments.kernel);
  if (arguments.json) {
    sass::JsonList kernels("kernels");
    source->each(wanted, [&](const sass::Kernel& kernel) { kernels.add(sass::list_json(kernel)); });
    kernels.end();
  } else {
    list_table(*source, wanted, columns_for(*source, wanted), colours);
  }
  return 0;
}

int show(const Arguments& arguments, const sass::Colours& colours) {
  const auto source = source_of(arguments);
  source->each(source->matching(arguments.kernel), [&](const sass::Kernel& kernel) {
    sass::print(sass::show_text(kernel, {arguments.brief, arguments.all, arguments.clocks}, colours) + "\n");
  });
  return 0;
}

// The one kernel of the file that is meant, for verbs that take no more.
sass::Kernel one_of(const sass::Source& source, const std::string& wanted) {
  const std::vector<size_t> found = source.matching(wanted);
  std::vector<size_t> exact;
  for (size_t i : found)
    if (found.size() == 1 || source.entries()[i].name == wanted) exact.push_back(i);
  if (exact.size() == 1) return std::move(source.read(exact).front());
  constexpr size_t shown = 40;
  std::string names;
  for (size_t i = 0; i < std::min(found.size(), shown); ++i)
    names += "\n  " + std::to_string(found[i] + 1) + "  " + sass::shortened(source.entries()[found[i]].readable);
  if (found.size() > shown) names += "\n  and " + std::to_string(found.size() - shown) + " more";
  throw std::runtime_error("one kernel is wanted, by its name or number; \"" + wanted + "\" means these:" + names);
}

// One kernel, two of one file, or the same of two files.
int timeline(const Arguments& arguments, const sass::Colours&) {
  if (!arguments.second_file.empty() && !arguments.second_kernel.empty())
    throw CLI::ValidationError("timeline takes two files, or two kernels of one");
  const auto source = source_of(arguments);
  std::vector<sass::Kernel> kernels;
  kernels.push_back(one_of(*source, arguments.kernel));
  if (!arguments.second_file.empty())
    kernels.push_back(one_of(*sass::open_source(arguments.second_file), arguments.kernel));
  else if (!arguments.second_kernel.empty())
    kernels.push_back(one_of(*source, arguments.second_kernel));
  for (const sass::Kernel& kernel : kernels)
    if (!arguments.all && kernel.loops.empty())
      throw std::runtime_error(sass::shortened(kernel.readable) +
                               ": no loop with WGMMAs to draw; --all draws the whole kernel");
  if ((arguments.clocks || !arguments.ncu.empty()) && arguments.all)
    throw CLI::ValidationError("time is known of main loops alone: --clocks and --ncu do not go with --all");
  if (!arguments.ncu.empty() && kernels.size() > 1) throw CLI::ValidationError("--ncu is for one kernel");
  std::vector<double> samples;
  if (!arguments.ncu.empty()) samples = samples_of(kernels[0], arguments.ncu, sass::read_file(arguments.ncu));
  std::vector<const sass::Kernel*> shown;
  for (const sass::Kernel& kernel : kernels) shown.push_back(&kernel);
  sass::print(sass::timeline_svg(shown, {arguments.all, arguments.clocks, samples.empty() ? nullptr : &samples}));
  return 0;
}

int floors(const Arguments& arguments, const sass::Colours& colours) {
  const auto source = source_of(arguments);
  refuse_others(*source, "floors");
  const auto wanted = source->matching(arguments.kernel);
  if (arguments.json) {
    sass::JsonList loops("loops");
    source->each(wanted, [&](const sass::Kernel& kernel) {
      for (const std::string& entry : sass::floors_json(kernel)) loops.add(entry);
    });
    loops.end();
  } else {
    const sass::Columns columns = columns_for(*source, wanted);
    sass::print(sass::floors_head(columns, colours));
    source->each(wanted, [&](const sass::Kernel& kernel) { sass::print(sass::floors_text(kernel, columns, colours)); });
  }
  return 0;
}

sass::CheckResult check_table(const Arguments& arguments, const sass::Source& source,
                              const std::vector<size_t>& kernels) {
  const auto wanted = [&](const std::string& row) {
    if (sass::kernel_number(arguments.kernel)) return row == source.entries()[kernels.front()].name;
    return sass::matches(arguments.kernel, row, row);
  };
  sass::TableCheck table(arguments.contracts.empty() ? sass::contracts_folder() : arguments.contracts, wanted,
                         !arguments.no_budgets);
  source.each(kernels, [&](const sass::Kernel& kernel) { table.add(kernel); });
  return table.result();
}

sass::CheckResult check_one_contract(const Arguments& arguments, const sass::Source& source,
                                     const std::vector<size_t>& kernels) {
  sass::Contract contract = sass::read_contract(arguments.contract, sass::read_file(arguments.contract));
  if (arguments.no_budgets) contract = sass::without_budgets(contract);
  sass::CheckResult result;
  source.each(kernels, [&](const sass::Kernel& kernel) { sass::check_contract(contract, kernel, result); });
  if (result.kernels == 0)
    throw std::runtime_error(arguments.contract + ": none of its `rows` lines covers a kernel of the file");
  return result;
}

sass::CheckResult check_preset(const std::string& preset, const sass::Source& source, std::vector<size_t> kernels) {
  if (preset != "any") std::erase_if(kernels, [&](size_t kernel) { return !source.may_have_wgmmas(kernel); });
  sass::CheckResult result;
  source.each(kernels, [&](const sass::Kernel& kernel) {
    if (sass::belongs_to(preset, kernel)) sass::check_contract(sass::preset_for(kernel), kernel, result);
  });
  if (result.kernels == 0)
    throw std::runtime_error(source.name() + ": none of these kernels is " +
                             (preset == "gemm" ? "a GEMM by WGMMAs" : "attention by WGMMAs (--preset=gemm, any)"));
  return result;
}

int check(const Arguments& arguments, const sass::Colours& colours) {
  const bool by_preset = !arguments.preset.empty();
  if (by_preset && !(arguments.contract.empty() && arguments.contracts.empty()))
    throw CLI::ValidationError("--preset has rules of its own, and takes no contract");
  const auto source = source_of(arguments);
  refuse_others(*source, "check");
  const auto kernels = source->matching(arguments.kernel);
  const sass::CheckResult result = by_preset                     ? check_preset(arguments.preset, *source, kernels)
                                   : arguments.contract.empty() ? check_table(arguments, *source, kernels)
                                                                : check_one_contract(arguments, *source, kernels);
  sass::print(arguments.json ? sass::check_json(result) : sass::check_text(result, colours, arguments.verbose));
  return result.passed() ? 0 : 1;
}

int contract(const Arguments& arguments, const sass::Colours&) {
  if (!arguments.init) throw CLI::RequiredError("--init");
  const auto source = source_of(arguments);
  refuse_others(*source, "contract");
  sass::print(sass::first_contract(one_of(*source, arguments.kernel)));
  return 0;
}

// Two files whose kernels are compared by name.
void each_difference(const Arguments& arguments, const std::function<void(const sass::KernelDiff&)>& use) {
  const auto first = source_of(arguments), second = sass::open_source(arguments.second_file);
  const auto matching = [&](const sass::Source& source) {
    try {
      return source.matching(arguments.kernel);
    } catch (const std::runtime_error&) {
      return std::vector<size_t>();
    }
  };
  const auto before = matching(*first), after = matching(*second);
  if (before.empty() && after.empty())
    throw std::runtime_error(first->name() + ", " + second->name() + ": no kernel matches \"" + arguments.kernel +
                             "\"");
  // Two cubins with one kernel each are two kernels to compare, whatever their names.
  if (before.size() == 1 && after.size() == 1)
    return use(sass::difference(first->read(before).front(), second->read(after).front()));
  sass::each_difference(*first, before, *second, after, use);
}

int diff(const Arguments& arguments, const sass::Colours& colours) {
  const bool two_files = !arguments.second_file.empty(), two_kernels = !arguments.second_kernel.empty();
  if (two_files == two_kernels) throw CLI::ValidationError("diff takes two files, or two kernels of one");
  bool same = true;
  std::optional<sass::JsonList> kernels;
  const auto use = [&](const sass::KernelDiff& difference) {
    same = same && difference.same();
    if (arguments.json && !kernels) kernels.emplace("kernels");
    if (arguments.json) kernels->add(sass::diff_json(difference));
    else sass::print(sass::diff_text(difference, colours, arguments.all));
  };
  if (two_files) {
    each_difference(arguments, use);
  } else {
    const auto source = source_of(arguments);
    use(sass::difference(one_of(*source, arguments.kernel), one_of(*source, arguments.second_kernel)));
  }
  if (kernels) kernels->end();
  return same ? 0 : 1;
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
               clocks = {"--clocks", &Arguments::clocks, "Time, as far as control words tell: estimated clocks"},
               verbose = {"--verbose", &Arguments::verbose, "Kept rules too"},
               full = {"--full-names", &Arguments::full, "Names of kernels at their whole length"},
               init = {"--init", &Arguments::init, "What the kernel is today, as rules that it keeps"};

struct Verb {
  const char* name;
  int (*run)(const Arguments&, const sass::Colours&);
  const char* help;
  std::vector<Flag> flags;
};
const std::vector<Verb> verbs = {
    {"list", list, "Registers, shared memory, spills, setmaxnreg, WGMMAs and loops of each kernel", {full, json}},
    {"show", show, "The main loops, annotated", {brief, all, clocks, full}},
    {"timeline", timeline, "The main loops as a picture, SVG on standard output; two kernels stand side by side",
     {whole, clocks}},
    {"floors", floors, "What a turn of each hot loop must cost on each unit of a multiprocessor", {full, json}},
    {"check", check, "The kernels of the table against their contracts; others with --contract or --preset",
     {no_budgets, verbose, full, json}},
    {"contract", contract, "With --init: a first contract for a kernel", {init}},
    {"diff", diff, "Two builds (FILE FILE [KERNEL]), or two kernels ([FILE] KERNEL KERNEL), whatever their registers",
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
    declare_words(command, arguments, verb.run == diff || verb.run == timeline);
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
