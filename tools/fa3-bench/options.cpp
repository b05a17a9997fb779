#include "options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "device/card.h"
#include "half.h"
#include "kernels.h"
#include "params.h"

namespace fa3::bench {

namespace {

// A problem's text, "" for a word that is right.
using Check = std::function<std::string(const std::string& word)>;

CLI::Validator validator(const Check& check) {
  return {[check](const std::string& word) { return check(word); }, ""};
}

// Decimal digits only: CLI11 itself would take 010 for eight.
Check number(int64_t least, int64_t most) {
  return [=](const std::string& word) -> std::string {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool plain = error == std::errc() && end == word.data() + word.size() && std::to_string(value) == word;
    if (plain && value >= least && value <= most) return "";
    return "\"" + word + "\" is no number from " + std::to_string(least) + " to " + std::to_string(most);
  };
}
constexpr int64_t most_size = int64_t(1) << 40;
constexpr int64_t most_length = int64_t(1) << 30;
constexpr int most_count = 1000000;

// With its ending, so that `--json=yes` does not write a file named yes, nor `--json --list` one named --list.
Check file(const std::string& ending) {
  return [=](const std::string& word) -> std::string {
    const bool ends = word.size() > ending.size() && word.substr(word.size() - ending.size()) == ending;
    return ends || word == "-" ? "" : "\"" + word + "\" is neither a file's name ending in " + ending + " nor -";
  };
}

std::string any_word(const std::string&) { return ""; }

std::string part_of_label(const std::string& word) {
  return word.empty() || word[0] == '-' ? "\"" + word + "\" is no part of a label" : "";
}

// CLI11 gives a flag the word behind `=`, or else true; false for one such as --no-progress.
std::string no_value(const std::string& word) {
  return word == "true" || word == "false" ? "" : "takes no value, not \"" + word + "\"";
}

// What the words of a list stand for, and back.
void read(const std::string& word, std::string& value) { value = word; }
void read(const std::string& word, int64_t& value) { value = std::stoll(word); }
void read(const std::string& word, bool& value) { value = word == "1"; }
void read(const std::string& word, Direction& value) {
  value = word == "bwd" ? Direction::backward : Direction::forward;
}
void read(const std::string& word, fa3_dtype& value) {
  value = word == "e4m3" ? FA3_DTYPE_E4M3 : word == "bf16" ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
}
void read(const std::string& word, VForm& value) { value = word == "tiles" ? VForm::tiles : VForm::rows; }
void read(const std::string& word, Scales& value) {
  value = word == "block" ? Scales::block : word == "head" ? Scales::head : Scales::tensor;
}
std::string shown(const std::string& value) { return value; }
std::string shown(int64_t value) { return std::to_string(value); }
std::string shown(bool value) { return value ? "1" : "0"; }
std::string shown(fa3_dtype value) { return tools::dtype_name(value); }
template <class Enum>
  requires std::is_enum_v<Enum>
std::string shown(Enum value) {
  return name(value);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// Words with commas between. CLI11's own lists pass over words that are missing, as in `512,`.
template <class T>
CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<T>& list, const Check& check,
                      const std::string& help) {
  const auto each = [check](const std::string& text) -> std::string {
    for (const std::string& word : split(text))
      if (const std::string problem = check(word); !problem.empty()) return problem;
    return "";
  };
  const auto take = [&list](const std::string& text) {
    list.clear();
    for (const std::string& word : split(text)) {
      T value;
      read(word, value);
      list.push_back(value);
    }
  };
  std::vector<std::string> otherwise;
  for (const T& value : list) otherwise.push_back(shown(value));
  return app.add_option_function<std::string>(name, take, help)
      ->check(validator(each))
      ->type_name("LIST")
      ->default_str(CLI::detail::join(otherwise, ","));
}

template <class T>
CLI::Option* add_number(CLI::App& app, const std::string& name, T& value, int64_t least, int64_t most,
                        const std::string& help) {
  CLI::Option* option = app.add_option(name, value, help)->check(validator(number(least, most)))->type_name("N");
  return value != 0 ? option->capture_default_str() : option;  // 0: what the help says
}

template <class Enum>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Enum& value, const std::vector<std::string>& words,
                        const std::string& help) {
  return app.add_option_function<std::string>(name, [&value](const std::string& word) { read(word, value); }, help)
      ->check(validator(CLI::IsMember(words)))
      ->type_name("WORD")
      ->default_str(shown(value));
}

CLI::Option* add_flag(CLI::App& app, const std::string& names, bool& value, const std::string& help) {
  return app.add_flag(names, value, help)->check(validator(no_value));
}

using Some = std::vector<CLI::Option*>;

// Refuses options that would be passed over. (CLI11's excludes() does that, too, but fills the help text with it.)
void keep_apart(const Some& some, const Some& others) {
  for (const CLI::Option* one : some)
    for (const CLI::Option* other : others)
      if (one != other && one->count() && other->count())
        throw std::invalid_argument(other->get_name() + " has no meaning beside " + one->get_name());
}

void check_kernels(const Selection& selection) {
  const Direction direction = selection.direction;
  for (const std::string& word : selection.kernels)
    if (word != library_choice && !is_kernel(word, direction))
      throw std::invalid_argument("--kernel: \"" + word + "\" is neither " + library_choice +
                                  " nor a kernel of this build, which has " + kernel_cells(direction) +
                                  " for --direction " + name(direction));
}

// The grid then has the longest of them, as many times as there are sequences.
void make_grid_of_lengths(Options& o, const CLI::Option& lengths, const CLI::Option& lengths_k) {
  if (o.lengths_k.empty()) o.lengths_k = o.lengths;
  if (o.lengths_k.size() != o.lengths.size())
    throw std::invalid_argument(lengths_k.get_name() + " has " + std::to_string(o.lengths_k.size()) + " lengths, but " +
                                lengths.get_name() + " " + std::to_string(o.lengths.size()));
  Grid& grid = o.selection.grid;
  grid.batch = int64_t(o.lengths.size());
  grid.seqlens = {std::ranges::max(o.lengths)}, grid.seqlen_k = std::ranges::max(o.lengths_k);
}

}  // namespace

Options Options::parse(int argc, const char* const* argv) {
  Options o;
  o.progress = isatty(STDERR_FILENO);
  Selection& selection = o.selection;
  Grid& grid = selection.grid;
  Protocol& protocol = o.protocol;

  std::vector<std::string> set_names;
  std::string set_help = "Sets of points (grid)";
  for (const PointSet& set : point_sets()) {
    set_names.push_back(set.name);
    set_help += std::string("\n") + set.name + ": " + set.what;
  }

  CLI::App app(
      "fa3-bench: times fa3_forward or fa3_backward on this GPU, after checking its result against float64.\n"
      "LIST is one word or several with commas between. Exit status: 0, 1 if a point failed, 2 for a wrong command\n"
      "line, 77 if there is no Hopper GPU.",
      "fa3-bench");
  app.get_formatter()->column_width(28);
  app.set_version_flag("--version", "fa3-bench " + tools::library_version());

  app.option_defaults()->group("Points");
  CLI::Option* direction = add_choice(app, "--direction", selection.direction, {"fwd", "bwd"},
                                      "Of fwd,bwd; bwd: all that a call of fa3_backward does");
  CLI::Option* deterministic = add_flag(app, "--deterministic", selection.deterministic,
                                        "FA3_FLAG_DETERMINISTIC, with --direction bwd");
  CLI::Option* set = add_list(app, "--set", selection.sets, CLI::IsMember(set_names), set_help);
  CLI::Option* kernels = add_list(app, "--kernel", selection.kernels, any_word,
                                  "Each point by each of these kernels:\n"
                                  "a name, as in the column \"kernel\";\n"
                                  "the first cell of names, such as fwd: all kernels of it that fit the point;\n"
                                  "auto: the one that the library chooses");
  CLI::Option* filter = app.add_option("--filter", selection.filter, "Only points whose label contains TEXT")
                            ->check(validator(part_of_label));
  CLI::Option* list =
      add_flag(app, "--list", o.list, "Print labels only; with --json points and protocol, for programs");

  app.option_defaults()->group("A grid in place of --set");
  Some axes = {
      add_list(app, "--dtype", grid.dtypes, CLI::IsMember({"bf16", "fp16", "e4m3"}), "Of bf16,fp16,e4m3"),
      add_list(app, "--head-dim", grid.head_dims, number(1, most_size), ""),
      add_number(app, "--head-dim-v", grid.head_dim_v, 1, most_size, "Of v and o, if not that of q and k"),
      add_list(app, "--causal", grid.causal, CLI::IsMember({"0", "1"}), "Of 0,1")};
  const Some sizes = {
      add_list(app, "--seqlen", grid.seqlens, number(1, most_size), ""),
      add_number(app, "--seqlen-k", grid.seqlen_k, 1, most_size, "Keys, if not as many as queries"),
      add_number(app, "--tokens", grid.tokens, 1, most_size, "batch = tokens / seqlen"),
      add_number(app, "--batch", grid.batch, 1, most_size, "In place of --tokens")};
  const Some heads = {
      add_number(app, "--hidden", grid.hidden, 1, most_size, "heads = hidden / head_dim"),
      add_number(app, "--heads", grid.heads, 1, most_size, "In place of --hidden"),
      add_number(app, "--kv-heads", grid.kv_heads, 1, most_size, "If fewer than heads (GQA, MQA)")};

  axes.insert(axes.end(), sizes.begin(), sizes.end());
  axes.insert(axes.end(), heads.begin(), heads.end());

  app.option_defaults()->group("Forms of each point in e4m3");
  Forms& forms = selection.forms;
  const Some fp8 = {
      add_list(app, "--v", forms.v, CLI::IsMember({"rows", "tiles"}), "How V lies in memory"),
      add_list(app, "--scales", forms.scales, CLI::IsMember({"tensor", "head", "block"}), "What one scale is for"),
      add_list(app, "--two-level", forms.two_level, CLI::IsMember({"0", "1"}), "FA3_FLAG_TWO_LEVEL, of 0,1")};

  app.option_defaults()->group("Protocol");
  add_number(app, "--passes", protocol.passes, 1, most_count,
             "Over all points; the figure is the median of the passes' medians");
  add_number(app, "--reps", protocol.reps, 1, most_count, "Timed runs of a pass");
  add_number(app, "--warmups", protocol.warmups, 0, most_count, "Runs before them");
  add_number(app, "--idle-ms", protocol.idle_ms, 0, most_count, "Pause before each point");
  add_number(app, "--seed", protocol.seed, 0, most_size, "Of the N(0,1) inputs");
  CLI::Option* rows = add_number(app, "--check-rows", protocol.checked_rows, 0, most_count,
                                 "Rows compared with float64, of dq, dk and dv each so many; 0: no check");
  CLI::Option* clock = add_flag(app, "--clock", protocol.clock,
                                "Also measure the SM clock under each load, and the share of the peak at that clock");

  app.option_defaults()->group("In place of points");
  CLI::Option* combine =
      add_flag(app, "--combine", o.combine, "Check and time fa3_combine, beside a copy of as many bytes");
  CLI::Option* append = add_flag(app, "--append", o.append, "The same of fa3_append");
  CLI::Option* overhead = add_flag(app, "--overhead", o.overhead, "Measure the host's time per call");
  CLI::Option* reference =
      add_flag(app, "--reference", o.reference, "Run the CPU reference on a small example; needs no GPU");
  CLI::Option* plan = add_flag(app, "--plan", o.plan,
                               "Print how the library would run the points: kernels that fit, tiles, parts, waves and\n"
                               "predicted times; needs no GPU");
  CLI::Option* pieces = add_flag(app, "--pieces", o.pieces, "With --plan: also the pieces of work, in their order");
  CLI::Option* lengths = add_list(app, "--lengths", o.lengths, number(0, most_length),
                                  "With --plan: queries of packed sequences, such as 17,4096,300, in place of --batch\n"
                                  "and --seqlen");
  CLI::Option* lengths_k =
      add_list(app, "--lengths-k", o.lengths_k, number(0, most_length), "Their keys, if not as many as queries");
  CLI::Option* multiprocessors = add_number(
      app, "--multiprocessors", o.multiprocessors, 1, 1024,
      "Of the device that --plan and --list are for, an H200 otherwise (this machine's; without a GPU 132)");
  std::vector<std::string> cards;
  for (const NamedCard& known : known_cards) cards.push_back(known.name);
  CLI::Option* card = app.add_option("--card", o.card, "That --plan is for: " + CLI::detail::join(cards, ","))
                          ->check(validator(CLI::IsMember(cards)))
                          ->type_name("WORD");

  app.option_defaults()->group("Output");
  CLI::Option* csv = app.add_option("--csv", o.csv, "Name ending in .csv; - is standard output")
                         ->check(validator(file(".csv")))
                         ->type_name("FILE");
  CLI::Option* json = app.add_option("--json", o.json, "Name ending in .json; - is standard output")
                          ->check(validator(file(".json")))
                          ->type_name("FILE");
  add_flag(app, "--progress,!--no-progress", o.progress, "On standard error (default: if it is a terminal)");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    o.answer = app.help();
    return o;
  } catch (const CLI::CallForVersion& version) {
    o.answer = version.what() + std::string("\n");
    return o;
  } catch (const CLI::ParseError& error) {
    throw std::invalid_argument(error.what());
  }
  if (lengths->count()) make_grid_of_lengths(o, *lengths, *lengths_k);
  check_kernels(selection);
  if (selection.deterministic && selection.direction != Direction::backward)
    throw std::invalid_argument(deterministic->get_name() + " has no meaning without --direction bwd");
  keep_apart({set}, axes);
  keep_apart({lengths}, {set});
  keep_apart({lengths}, sizes);
  keep_apart({list}, {rows, clock, csv});
  keep_apart({plan}, {rows, clock, csv, json});
  keep_apart({list, append, combine, overhead, reference, plan}, {list, append, combine, overhead, reference, plan});
  if (o.pieces && !o.plan) throw std::invalid_argument(pieces->get_name() + " has no meaning without --plan");
  if (lengths->count() && !o.plan) throw std::invalid_argument(lengths->get_name() + " has no meaning without --plan");
  if (lengths_k->count() && !lengths->count())
    throw std::invalid_argument(lengths_k->get_name() + " has no meaning without " + lengths->get_name());
  if (multiprocessors->count() && !o.plan && !o.list)
    throw std::invalid_argument(multiprocessors->get_name() + " has no meaning without --plan or --list");
  if (card->count() && !o.plan) throw std::invalid_argument(card->get_name() + " has no meaning without --plan");
  keep_apart({card}, {multiprocessors, lengths});
  keep_apart({direction}, {append, combine, overhead, reference, plan});
  keep_apart({append, combine, overhead, reference}, {set, kernels, filter, clock, csv});
  keep_apart({overhead, reference}, {rows});
  keep_apart({append, combine, overhead, reference}, axes);
  keep_apart({append, combine, overhead, reference}, fp8);
  keep_apart({append, combine, reference}, {json});
  const auto points = selection.points();
  const bool any_fp8 = std::any_of(points.begin(), points.end(), [](const Point& p) { return p.is_fp8(); });
  for (const CLI::Option* option : fp8)
    if (option->count() && !any_fp8)
      throw std::invalid_argument(option->get_name() + " has no meaning without points of e4m3");
  return o;
}

}  // namespace fa3::bench
