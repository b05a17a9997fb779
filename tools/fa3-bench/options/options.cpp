#include "options/options.h"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "device/card.h"
#include "options/words.h"
#include "params.h"
#include "points/batches.h"
#include "points/kernels.h"

namespace fa3::bench {

namespace {

constexpr int most_count = 1000000;

using Some = std::vector<CLI::Option*>;

Some together(std::initializer_list<Some> all) {
  Some options;
  for (const Some& some : all) options.insert(options.end(), some.begin(), some.end());
  return options;
}

// Refuses options that would be passed over. (CLI11's excludes() does that, too, but fills the help text with it.)
void keep_apart(const Some& some, const Some& barred) {
  for (const CLI::Option* one : some)
    for (const CLI::Option* other : barred)
      if (one != other && one->count() && other->count())
        throw std::invalid_argument(other->get_name() + " has no meaning beside " + one->get_name());
}

void require(const CLI::Option* option, bool there, const std::string& what) {
  if (option->count() && !there) throw std::invalid_argument(option->get_name() + " has no meaning without " + what);
}

void check_kernels(const Selection& selection) {
  const Direction direction = selection.direction;
  for (const std::string& word : selection.kernels)
    if (word != library_choice && !is_kernel(word, direction))
      throw std::invalid_argument("--kernel: \"" + word + "\" is neither " + library_choice +
                                  " nor a kernel of this build, which has " + kernel_cells(direction) +
                                  " for --direction " + name(direction));
}

// The options, group by group as the help text has them, and which go together.
class CommandLine {
 public:
  explicit CommandLine(Options& options)
      : o_(options),
        app_("fa3-bench: times fa3_forward or fa3_backward on this GPU, after checking its result against float64.\n"
             "LIST is one word or several with commas between. Exit status: 0, 1 if a point failed, 2 for a wrong\n"
             "command line, 77 if there is no Hopper GPU.",
             "fa3-bench") {
    app_.get_formatter()->column_width(28);
    app_.set_version_flag("--version", "fa3-bench " + tools::library_version());
    add_points();
    add_grid();
    add_planned();
    add_forms();
    add_protocol();
    add_in_place_of_points();
    add_plans();
    add_output();
  }

  // Returns false if help or version were asked for.
  bool parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      o_.answer = app_.help();
      return false;
    } catch (const CLI::CallForVersion& version) {
      o_.answer = version.what() + std::string("\n");
      return false;
    } catch (const CLI::ParseError& error) {
      throw std::invalid_argument(error.what());
    }
    return true;
  }

  void check() const;

 private:
  void add_points() {
    app_.option_defaults()->group("Points");
    Selection& selection = o_.selection;
    direction_ = add_choice(app_, "--direction", selection.direction, {"fwd", "bwd"},
                            "Of fwd,bwd; bwd: all that a call of fa3_backward does");
    deterministic_ = add_flag(app_, "--deterministic", selection.deterministic,
                              "FA3_FLAG_DETERMINISTIC, with --direction bwd");
    std::vector<std::string> set_names;
    std::string set_help = "Sets of points (grid)";
    for (const PointSet& set : point_sets()) {
      set_names.push_back(set.name);
      set_help += std::string("\n") + set.name + ": " + set.what;
    }
    set_ = add_list(app_, "--set", selection.sets, CLI::IsMember(set_names), set_help);
    batches_ = app_.add_option_function<std::string>(
                       "--batches", [&](const std::string& path) { selection.batches = read_batches(path); },
                       batches_format)
                   ->check(validator(file(".json", false)))
                   ->type_name("FILE");
    kernels_ = add_list(app_, "--kernel", selection.kernels, any_word,
                        "Each point by each of these kernels:\n"
                        "a name, as in the column \"kernel\";\n"
                        "the first cell of names, such as fwd: all kernels of it that fit the point;\n"
                        "auto: the one that the library chooses");
    filter_ = app_.add_option("--filter", selection.filter, "Only points whose label contains TEXT")
                  ->check(validator(part_of_label));
    list_ = add_flag(app_, "--list", o_.list, "Print labels only; with --json points and protocol, for programs");
  }

  void add_grid() {
    app_.option_defaults()->group("A grid in place of --set");
    Grid& grid = o_.selection.grid;
    dims_ = {add_list(app_, "--dtype", grid.dtypes, CLI::IsMember({"bf16", "fp16", "e4m3"}), "Of bf16,fp16,e4m3"),
             add_list(app_, "--head-dim", grid.head_dims, number(1, most_size), ""),
             add_number(app_, "--head-dim-v", grid.head_dim_v, 1, most_size, "Of v and o, if not that of q and k"),
             add_list(app_, "--causal", grid.causal, CLI::IsMember({"0", "1"}), "Of 0,1")};
    sizes_ = {add_list(app_, "--seqlen", grid.seqlens, number(1, most_size), ""),
              add_number(app_, "--seqlen-k", grid.seqlen_k, 1, most_size, "Keys, if not as many as queries"),
              add_number(app_, "--tokens", grid.tokens, 1, most_size, "batch = tokens / seqlen"),
              add_number(app_, "--batch", grid.batch, 1, most_size, "In place of --tokens")};
    const Some heads = {
        add_number(app_, "--hidden", grid.hidden, 1, most_size, "heads = hidden / head_dim"),
        add_number(app_, "--heads", grid.heads, 1, most_size, "In place of --hidden"),
        add_number(app_, "--kv-heads", grid.kv_heads, 1, most_size, "If fewer than heads (GQA, MQA)")};
    axes_ = together({dims_, sizes_, heads});
  }

  void add_planned() {
    app_.option_defaults()->group("PlannedCall calls, of such a grid");
    PlannedCall& planned = o_.selection.grid.planned;
    lengths_ = add_list(app_, "--lengths", planned.lengths, number(0, most_length),
                        "Queries of packed sequences, such as 17,4096,300, in place of --batch and --seqlen");
    lengths_k_ = add_list(app_, "--lengths-k", planned.lengths_k, number(0, most_length),
                          "Their keys, if not as many as queries");
    planned_ = {lengths_, lengths_k_,
                add_number(app_, "--page", planned.page, 1, most_length,
                           "K and V in pages of so many keys, in any order"),
                add_number(app_, "--window", planned.window, 0, most_length,
                           "So many keys before its own a query sees, with --causal 0 also behind it"),
                add_number(app_, "--chunk", planned.chunk, 1, most_length,
                           "A query sees keys of its own chunk of so many positions"),
                app_.add_option("--softcap", planned.softcap, "Scores become X tanh(score / X)")
                   ->check(validator(real()))
                   ->type_name("X"),
                add_flag(app_, "--sinks", planned.sinks, "A sink for each head"),
                add_flag(app_, "--alibi", planned.alibi, "A slope for each head, from 2^(-8 / heads) to 2^-8"),
                add_flag(app_, "--e4m3-cache", planned.e4m3_cache, "K and V in e4m3 under Q of 16 bits")};
  }

  void add_forms() {
    app_.option_defaults()->group("Forms of each point in e4m3");
    Forms& forms = o_.selection.forms;
    forms_ = {
        add_list(app_, "--v", forms.v, CLI::IsMember({"rows", "tiles"}), "How V lies in memory (planned calls: rows)"),
        add_list(app_, "--scales", forms.scales, CLI::IsMember({"tensor", "head", "block"}), "What one scale is for"),
        add_list(app_, "--two-level", forms.two_level, CLI::IsMember({"0", "1"}), "FA3_FLAG_TWO_LEVEL, of 0,1")};
  }

  void add_protocol() {
    app_.option_defaults()->group("Protocol");
    Protocol& protocol = o_.protocol;
    add_number(app_, "--passes", protocol.passes, 1, most_count,
               "Over all points; the figure is the median of the passes' medians");
    add_number(app_, "--reps", protocol.reps, 1, most_count, "Timed runs of a pass");
    add_number(app_, "--warmups", protocol.warmups, 0, most_count, "Runs before them");
    add_number(app_, "--idle-ms", protocol.idle_ms, 0, most_count, "Pause before each point");
    add_number(app_, "--seed", protocol.seed, 0, most_size, "Of the N(0,1) inputs");
    rows_ = add_number(app_, "--check-rows", protocol.checked_rows, 0, most_count,
                       "Rows compared with float64, of dq, dk and dv each so many; 0: no check");
    clock_ = add_flag(app_, "--clock", protocol.clock,
                      "Also measure the SM clock under each load, and the share of the peak at that clock");
    timing_ = {add_flag(app_, "--cold", protocol.cold,
                        "Empty the L2 cache before each run, as a model's other layers do"),
               add_flag(app_, "--plan-in-call", protocol.plan_in_call,
                        "Lengths are planned in each call, not once before as for all layers of a model")};
  }

  void add_in_place_of_points() {
    app_.option_defaults()->group("In place of points");
    combine_ = add_flag(app_, "--combine", o_.combine, "Check and time fa3_combine, beside a copy of as many bytes");
    append_ = add_flag(app_, "--append", o_.append, "The same of fa3_append");
    overhead_ = add_flag(app_, "--overhead", o_.overhead, "Measure the host's time per call");
    reference_ = add_flag(app_, "--reference", o_.reference, "Run the CPU reference on a small example; needs no GPU");
  }

  void add_plans() {
    plan_ = add_flag(app_, "--plan", o_.plan,
                     "Print how the library would run the points: kernels that fit, tiles, parts, waves and\n"
                     "predicted times; needs no GPU");
    pieces_ = add_flag(app_, "--pieces", o_.pieces, "With --plan: also the pieces of work, in their order");
    multiprocessors_ = add_number(app_, "--multiprocessors", o_.multiprocessors, 1, 1024,
                                  "Of the device that --plan and --list are for, an H200 otherwise (this machine's; "
                                  "without a GPU 132)");
    std::vector<std::string> cards;
    for (const NamedCard& known : known_cards) cards.push_back(known.name);
    card_ = app_.add_option("--card", o_.card, "That --plan is for: " + CLI::detail::join(cards, ","))
                ->check(validator(CLI::IsMember(cards)))
                ->type_name("WORD");
  }

  void add_output() {
    app_.option_defaults()->group("Output");
    csv_ = app_.add_option("--csv", o_.csv, "Name ending in .csv; - is standard output")
               ->check(validator(file(".csv")))
               ->type_name("FILE");
    json_ = app_.add_option("--json", o_.json, "Name ending in .json; - is standard output")
                ->check(validator(file(".json")))
                ->type_name("FILE");
    add_flag(app_, "--progress,!--no-progress", o_.progress, "On standard error (default: if it is a terminal)");
  }

  void keep_all_apart() const;
  void check_points() const;

  Options& o_;
  CLI::App app_;
  CLI::Option *direction_, *deterministic_, *set_, *batches_, *kernels_, *filter_, *list_, *lengths_, *lengths_k_;
  CLI::Option *rows_, *clock_, *combine_, *append_, *overhead_, *reference_, *plan_, *pieces_, *multiprocessors_;
  CLI::Option *card_, *csv_, *json_;
  Some dims_, sizes_, axes_, planned_, forms_, timing_;
};

void CommandLine::keep_all_apart() const {
  const Some without_points = {append_, combine_, overhead_, reference_};
  const Some tasks = together({{list_, plan_}, without_points});
  keep_apart({set_, batches_}, axes_);
  keep_apart({set_, batches_}, {set_, batches_});
  keep_apart(planned_, {set_, batches_});
  keep_apart({lengths_}, sizes_);
  keep_apart({list_}, {rows_, clock_, csv_});
  keep_apart({plan_}, {rows_, clock_, csv_, json_});
  keep_apart({list_, plan_}, timing_);
  keep_apart(tasks, tasks);
  keep_apart({card_}, {multiprocessors_, lengths_});
  keep_apart({direction_}, together({without_points, {plan_}}));
  keep_apart(without_points, {set_, batches_, kernels_, filter_, clock_, csv_});
  keep_apart({overhead_, reference_}, {rows_});
  for (const Some& some : {axes_, planned_, forms_, timing_}) keep_apart(without_points, some);
  keep_apart({append_, combine_, reference_}, {json_});
}

void CommandLine::check() const {
  Grid& grid = o_.selection.grid;
  require(lengths_k_, lengths_->count(), lengths_->get_name());
  if (const std::string why = contradiction(grid.planned); !why.empty()) throw std::invalid_argument(why);
  if (lengths_->count()) grid.check_lengths(lengths_->get_name(), lengths_k_->get_name());
  check_kernels(o_.selection);
  require(deterministic_, o_.selection.direction == Direction::backward, "--direction bwd");
  require(pieces_, o_.plan, plan_->get_name());
  require(multiprocessors_, o_.plan || o_.list, "--plan or --list");
  require(card_, o_.plan, plan_->get_name());
  keep_all_apart();
  check_points();
}

void CommandLine::check_points() const {
  const auto points = o_.selection.points();
  const bool any_fp8 = std::ranges::any_of(points, [](const Point& p) { return p.is_fp8(); });
  for (const CLI::Option* option : forms_) require(option, any_fp8, "points of e4m3");
}

}  // namespace

Options Options::parse(int argc, const char* const* argv) {
  Options o;
  o.progress = isatty(STDERR_FILENO);
  CommandLine line(o);
  if (line.parse(argc, argv)) line.check();
  return o;
}

}  // namespace fa3::bench
