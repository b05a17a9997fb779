#include "backward/planned_order.h"

#include <algorithm>
#include <bit>

#include "integers.h"

namespace fa3 {
namespace {

// Of query rows and keys that are in the L2 cache beside each other.
constexpr int64_t section_bytes = 20 << 20;
// The same of heads whose blocks go down together, of which only a part is in use at a time.
constexpr int64_t most_section_bytes = 48 << 20;
// So many blocks of a section leave few multiprocessors idle behind it.
constexpr int64_t fewest_section_blocks = 256;
constexpr int typical_multiprocessors = 132;

// How many heads of K and V a section has: as many as the machine runs at once with all key blocks of a sequence, and
// as fit the L2 cache with all of its rows, or with a window those of the key blocks that run at once.
int32_t section_heads_of(const BackwardProblem& problem, const BackwardRow& row, int multiprocessors) {
  const Window& window = problem.window;
  const int64_t blocks = std::max<int64_t>(1, divide_up(most_keys(problem), row.Bc));
  for (int64_t heads = std::min(problem.heads_kv, multiprocessors / blocks); heads > 1; --heads) {
    if (problem.heads_kv % heads != 0) continue;
    int64_t rows = problem.seqlen_q;
    if (window.left >= 0 && window.right >= 0)
      rows = std::min(rows, int64_t{window.left} + window.right + row.Bc * divide_up(multiprocessors, heads));
    if (problem.chunk > 0) rows = std::min(rows, problem.chunk);
    if (heads * problem.heads_per_kv() * rows * row.d * 8 <= section_bytes) return narrow(heads);
  }
  return 1;
}

// Bytes that memory has for a multiprocessor in a clock of an H100's products. From so many on more heads in a section
// than the L2 cache holds are no loss, as what is read again comes fast enough. (An H100 has 12.8, an H200 18.4, and
// between them nothing was measured; a GH200 has 15.4 or 18.8, an H20 104.)
constexpr int64_t bytes_of_fast_memory = 17;
bool has_fast_memory(const Card& card) {
  constexpr Card unknown = assumed_card(1);
  const int64_t memory = card.memory_bytes_per_us ? card.memory_bytes_per_us : unknown.memory_bytes_per_us;
  const int64_t clock = card.clock_kilohertz ? card.clock_kilohertz : unknown.clock_kilohertz;
  return memory * card.product_clocks * 1000 >= bytes_of_fast_memory * card.multiprocessors * clock;
}

bool later_see_more(const BackwardProblem& problem) { return problem.window.left < 0 && problem.window.right >= 0; }

// Of a sequence.
int64_t average_rows(const BackwardProblem& problem) {
  const int64_t average = divide_up(all_rows(problem.total_q, problem.q), std::max<int64_t>(1, problem.batch));
  return problem.chunk > 0 ? std::min(average, problem.chunk) : average;
}

// As many sequences of the longest length as there are keys for, key blocks of one of them for one head, and of all.
int64_t sequences_of(const BackwardProblem& problem) {
  return divide_up(all_rows(problem.total_k, problem.k), std::max<int64_t>(1, most_keys(problem)));
}
int64_t longest_rows(const BackwardProblem& problem) {
  return problem.chunk > 0 ? std::min(problem.seqlen_q, problem.chunk) : problem.seqlen_q;
}
int64_t blocks_of_longest(const BackwardProblem& problem, const BackwardRow& row) {
  return divide_up(std::max<int64_t>(1, most_keys(problem)), row.Bc);
}
int64_t blocks_of(const BackwardProblem& problem, const BackwardRow& row) {
  return sequences_of(problem) * problem.heads_kv * blocks_of_longest(problem, row);
}
// So many keep all multiprocessors busy, however unlike they are.
constexpr int64_t blocks_enough = 1056;

// In which order key blocks add to dQ and visit tiles. Where rows see more keys the later they come, blocks of a head
// differ in length; so they go down, from the last tile on, which all of them visit: then they are at about the same
// tiles, which are in the L2 cache. But from more than most_grouped queries on, if several query heads read each head
// of K and V, a block stays too long at each tile. (Measured, H100, us, up and down, each with the best section: d 128,
// 32 heads over 4, 16 x 1024 1197 and 932, 4 x 4096 3115 and 2686; 32 over 8, mixed documents of 16384 tokens 910 and
// 869, 1 x 16384 9133 and 9280.)
//
// In a fixed order blocks of up to 64 columns begin at the diagonal if they are many, one head reads each head of K and
// V, and sequences have four blocks to most_from_diagonal queries; otherwise they go down. (H200, d 64, speed from the
// diagonal and down, of that in any order: 32 heads, 32 x 512 1.00 and 0.97, 16 x 1024 1.00 and 0.83, 8 x 2048 0.97
// and 0.83, 4 x 4096 0.95 and 0.90, mixed documents of 16384 tokens 0.98 and 0.88, 1 x 4096 0.89 and 0.89, 64 x 256
// 1.01 and 1.02; 8 heads, 1 x 4096 0.70 and 0.95, 3 x 2048 0.92 and 0.93; d 128, 16 heads, 4 x 4096 0.92 and 0.93.
// H100, 1 x 16384, whose blocks are far apart, 0.50 and 0.95.)
//
// Under windows that are short for the sequences they go down head by head. (H200, 2 x 8192, d 128, 32 heads over 8, of
// the time in any order, by head and with all heads of a tile: window of 1024 1.02 and 1.39, of 4096 1.19 and 1.14;
// documents of 16384 tokens, window of 500, 1.16 and 1.09.)
constexpr int64_t most_grouped = 8192, most_from_diagonal = 4096;

int64_t window_width(const BackwardProblem& problem) {
  return int64_t{problem.window.left} + problem.window.right;
}

// With fast memory, where several query heads read each head of K and V, sections are larger: of up to 8 heads, under a
// causal mask from long_average queries on of 4, which is about as many blocks as run at once. Windows have to be an
// eighth of the sequences. Where the query rows that read a key have up to few_columns, blocks of a causal mask go up.
// (Measured, H200, speed over sections for the L2 cache, whose blocks go down: 64 heads over 8, d 64, and 32 over 8,
// d 128, up, sections of 4 heads, 4 x 4096 1.10 and 1.09, 2 x 8192 1.00 and 1.01; of 8, 8 x 2048 1.07 and 1.06,
// 16 x 1024 1.02, mixed documents 1.01 and 1.02, and down 1.03, 1.02, 1.01 and 1.02; 40 over 8, d 128, up and down,
// 4 x 4096 1.08 and 1.02, 8 x 2048 1.07 and 1.00; 32 over 4, of 4 heads, 4 x 4096 1.12 and 1.07, 8 x 2048 1.00 and
// 1.02, 16 x 1024 0.95 and 1.00, 2 x 8192 up 0.98. Windows, sections of 8 heads, 2 x 8192: of 4096 1.06 and 1.05, of
// 1024 1.03, of 128 1.02 and 0.99; 8 x 2048, of 512, 1.03 and 1.02. An H100, down, d 128, 4 x 4096, 8 heads instead of
// 2: 0.94.)
constexpr int64_t long_average = 2049, few_columns = 640;
}  // namespace

bool suits_fast_memory(const BackwardProblem& problem, const BackwardRow& row) {
  return sums_dq(row) && !problem.deterministic && problem.heads_per_kv() > 1 &&
         longest_rows(problem) <= most_grouped &&
         (later_see_more(problem) ||
          (counts_blocks(problem.window) && 8 * window_width(problem) >= average_rows(problem)));
}

namespace {

DqOrder dq_order_of(const BackwardProblem& problem, const BackwardRow& row, bool large_sections) {
  if (!sums_dq(row)) return DqOrder::any;
  const int64_t longest = longest_rows(problem);
  if (problem.deterministic) {
    const bool is_short = counts_blocks(problem.window) && 4 * window_width(problem) <= average_rows(problem);
    if (is_short) return DqOrder::downwards_by_head;
    const bool suits_diagonal = row.d <= 64 && problem.heads_per_kv() == 1 && longest <= most_from_diagonal &&
                                blocks_of_longest(problem, row) >= 4 && blocks_of(problem, row) >= blocks_enough;
    return suits_diagonal && later_see_more(problem) ? DqOrder::from_diagonal : DqOrder::downwards;
  }
  const bool goes_down = later_see_more(problem) && (problem.heads_per_kv() == 1 || longest <= most_grouped);
  const bool suits_upwards = large_sections && problem.heads_per_kv() * row.d <= few_columns;
  return goes_down && !suits_upwards ? DqOrder::any_downwards : DqOrder::any;
}

int64_t divisor_below(int64_t n, int64_t most) {
  while (n % most != 0) --most;
  return most;
}

int32_t large_section_heads(const BackwardProblem& problem) {
  const bool are_long = later_see_more(problem) && average_rows(problem) >= long_average;
  return narrow(divisor_below(problem.heads_kv, std::min<int64_t>(problem.heads_kv, are_long ? 4 : 8)));
}

// Elsewhere, where blocks go down, a section has up to 4 heads, so that few multiprocessors are idle at its end; fewer
// if the L2 cache does not hold what is in use of so many, but would hold it of fewer. (Measured, H100, us, sections of
// 1, 2, 4 and 8 heads, d 128, 32 heads over 8: 8 x 2048 1382, 1367, 1346 and 1459; 4 x 4096 2442, 2394, 2515 and 2549;
// 2 x 8192 4665, 4670, 4603 and 5767; mixed documents of 16384 tokens 1005, 967, 867 and 892; 32 over 4, 4 x 4096 2710,
// 2658 and 3051.) In a fixed order blocks of one reader wait less where more heads run beside each other. (Sections of
// 1, 4 and 16, 1 x 16384, 16 heads: d 64 3791, 2733 and 2427, d 128 4860, 4678 and 4611.)
constexpr int64_t longest_in_cache = 4096;
int32_t downward_section_heads(const BackwardProblem& problem, const BackwardRow& row) {
  const int64_t heads_kv = std::max<int64_t>(1, problem.heads_kv), readers = problem.heads_per_kv();
  const bool waits = problem.deterministic && readers == 1;
  int64_t heads = divisor_below(heads_kv, std::min<int64_t>(heads_kv, waits ? 16 : 4));
  const int64_t keys = all_rows(problem.total_k, problem.k), average = average_rows(problem);
  const auto fits = [&] { return heads * readers * average * row.d * 8 <= most_section_bytes; };
  while (!waits && heads > 1 && average <= longest_in_cache && !fits()) {
    const int64_t fewer = divisor_below(heads_kv, heads - 1);
    if (fewer * divide_up(keys, row.Bc) < fewest_section_blocks) break;
    heads = fewer;
  }
  return narrow(heads);
}

// How many parts each head of K and V has: as many as give the shortest expected time, in turns (parts_of in
// order.cpp), of as many sequences of the longest length as there are keys for; of the work of these as much as there
// would be if lengths were the mean of the longest and the average one.
//
// Thread blocks take a section's key blocks sequence by sequence, so the last ones' first blocks, the longest under a
// causal mask, may begin late, and end half of their time behind all others. Not so if nearly all blocks are taken at
// once; nor if the blocks of a sequence are whole waves of the machine, and these are even in number, as the longest
// blocks of a wave then begin where the shortest of the one before end. (Measured, H200, d 128, causal, 8 heads over 1,
// us, and expected, with 1, 2, 4 and 8 parts: 1 x 8192 1889, 992, 559 and 587, 2114, 1082, 554 and 575; 4 x 8192 3233,
// 2228, 2267 and 2299, 3142, 2132, 2173 and 2254.)
constexpr int64_t sum_turns = 8;  // of the pass that adds parts up
}  // namespace

int64_t listed_parts(const BackwardProblem& problem, const BackwardRow& row, const PlanBackwardParams& call) {
  const int64_t readers = problem.heads_per_kv(), sequences = sequences_of(problem);
  if (row.has(Trait::one_key_block) || !problem.has_queries() || !problem.has_keys()) return 1;
  if (readers == 1 || blocks_of(problem, row) >= blocks_enough) return 1;
  const int64_t rows_k = all_rows(problem.total_k, problem.k);
  Lengths longest{};
  longest.max_q = narrow(std::min(longest_rows(problem), all_rows(problem.total_q, problem.q)));
  longest.max_k = narrow(std::min(most_keys(problem), rows_k));
  const Sequence s = seen_part(sequence_at(longest, 0, 0, problem.window, 0));
  const Visible seen = visible_of(s, s.left != no_bound, s.right != no_bound, {0});
  const int64_t key_blocks = divide_up(s.seqlen_k, row.Bc), heads = sequences * problem.heads_kv;
  const Visits visits = visits_of(seen, key_blocks, row);
  const int64_t mean = std::min<int64_t>(rows_k / problem.batch, longest.max_k);
  const bool uneven = seen.later_rows_see_more(), alike = mean == longest.max_k;
  const int64_t all_visits = seen.bounded_left ? visits.all : visits.all * (mean + longest.max_k) / (2 * longest.max_k);

  const auto turns = [&](int64_t parts) {
    const int64_t own_turns = parts > 1 ? part_turns : block_turns, pass = parts > 1 ? sum_turns : 0;
    const int64_t blocks = heads * parts * key_blocks, longest_block = visits.longest * readers / parts + own_turns;
    if (alike && !uneven) return divide_up(blocks, typical_multiprocessors) * longest_block + pass;
    const int64_t all = (heads * all_visits * readers + blocks * own_turns) / typical_multiprocessors;
    const int64_t together = key_blocks * downward_section_heads(in_parts(problem, parts), row);
    constexpr int64_t wave = typical_multiprocessors, about = wave / 8;
    const int64_t waves = (together + about) / wave;
    const bool are_even = waves > 0 && together - waves * wave <= about && blocks / together * waves % 2 == 0;
    const bool is_late = !alike || (blocks - together > wave && !are_even);
    return std::max(longest_block, all + (is_late ? longest_block / 2 : 0)) + pass;
  };
  int64_t best = 1;
  const int64_t most_parts = most_part_blocks / std::max<int64_t>(1, call.most_blocks * problem.heads_kv);
  for (int64_t parts = 2; parts <= std::min(readers, most_parts); ++parts) {
    if (readers % parts != 0) continue;
    if (turns(parts) * 10 < turns(best) * 9) best = parts;
  }
  return best;
}

namespace {

// Whether blocks that go downwards begin apart, and how far apart: as spread_of in order.cpp says.
constexpr int64_t most_second = 1056;  // tiles: 35 MB
Spread spread_of(const BackwardProblem& problem, const BackwardRow& row, const PlanBackwardParams& call) {
  constexpr Spread none{31, 0};
  const int64_t second = problem.heads * call.most_tiles, readers = problem.heads_per_kv();
  const int64_t sequences = sequences_of(problem), blocks = blocks_of_longest(problem, row);
  const int64_t all_blocks = blocks_of(problem, row);
  const int64_t tiles = divide_up(std::max<int64_t>(1, problem.seqlen_q), row.Br);
  const bool uneven = later_see_more(problem), is_window = counts_blocks(problem.window);
  if (!problem.deterministic || !sums_dq(row) || is_window || second > most_second || all_blocks >= blocks_enough)
    return none;
  if (uneven && all_blocks <= typical_multiprocessors) return none;
  const int64_t section = uneven ? downward_section_heads(problem, row)
                                 : section_heads_of(problem, row, typical_multiprocessors);
  const int64_t together = std::min(blocks, typical_multiprocessors / section);
  const int64_t turns = sequences * problem.heads * blocks * tiles / (uneven ? 2 : 1);
  if (together * 8 * typical_multiprocessors < turns) return none;
  const int64_t apart = uneven ? 2 * row.Bc / row.Br : tiles / (blocks * std::max<int64_t>(1, readers));
  return {static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, apart)))) - 1,
          narrow(second)};
}

}  // namespace

KeyOrder order_of(const BackwardProblem& problem, const BackwardRow& row, const Card& card,
                  const PlanBackwardParams& call, int64_t parts, int64_t head_tiles) {
  KeyOrder order{};
  const bool large_sections = has_fast_memory(card) && suits_fast_memory(problem, row);
  order.dq = dq_order_of(problem, row, large_sections);
  order.spread = order.dq == DqOrder::downwards ? spread_of(problem, row, call) : Spread{31, 0};
  const int32_t section = large_sections ? large_section_heads(problem)
                          : goes_down(order.dq) && later_see_more(problem)
                              ? downward_section_heads(problem, row)
                              : section_heads_of(problem, row, typical_multiprocessors);
  order.heads = Divisor::of(narrow(problem.heads_kv));
  order.section_heads = section, order.section = Divisor::of(section);
  order.batch_heads = order.heads;
  order.parts = Divisor::of(narrow(parts)), order.ranges = order.share = Divisor::of(1);
  order.key_sums = problem.store == GradientStore::rounded ? int32_t{order.parts} : std::max(2, int32_t{order.parts});
  order.head_tiles = narrow(head_tiles);
  order.adders = 2;
  // A key block's share is rounded so many blocks later: when all that add to it have been taken, which are those
  // before it or all of its sequence, and more than the machine runs at once. So they have ended by then, also where
  // they are longer than those behind them, and nobody waits; but the later, the more is left to the last pass.
  // (Measured, H100, 132, 198 and 264 later: mixed documents of 16384 tokens, d 128, 32 heads over 8, 950, 874 and 869
  // us; windows of 128 of 32768, d 64, 64 heads over 8, 1165, 1140 and 1167.)
  const bool by_block = counts_blocks(problem.window);
  const int64_t after_it = by_block ? 0 : divide_up(most_keys(problem), row.Bc) * section;
  const int64_t halves = by_block ? 3 : later_see_more(problem) ? 4 : 2, more = typical_multiprocessors * halves / 2;
  order.behind = narrow(std::min<int64_t>(after_it + more, most_blocks));
  // Only the last pass adds second sums to the first, and stores float32; and thread blocks of rows with softcap that
  // leave sums of dK and dV have no registers to round dQ.
  const bool only_behind = order.spread.second > 0 || problem.store != GradientStore::rounded ||
                           (parts > 1 && row.has(Trait::softcap));
  order.done_behind = sums_dq(row) && !only_behind;
  if (only_behind) order.behind = narrow(most_blocks);
  return order;
}

BlockOrder query_order_of(const BackwardProblem& problem, const PlanBackwardParams& call) {
  BlockOrder order{};
  order.batch_heads = narrow(problem.heads), order.blocks = call.most_tiles;
  order.section_heads = call.section_heads * narrow(problem.heads_per_kv());
  order.sections = order.batch_heads / order.section_heads;
  order.section = Divisor::of(order.section_heads * order.blocks);
  return order;
}

}  // namespace fa3
