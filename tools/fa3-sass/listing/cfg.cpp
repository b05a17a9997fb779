#include "cfg.h"

#include <algorithm>
#include <map>
#include <set>

namespace sass {
namespace {

bool ends_block(const Instruction& i) {
  return i.is("BRA") || i.is("BRX") || i.is("BRXU") || i.is("JMP") || i.is("JMX") || i.is("EXIT") || i.is("RET") ||
         i.is("WARPSYNC") || (i.is("BPT") && i.has("TRAP"));
}

// Whether control can go on behind the instruction.
bool falls_through(const Instruction& i) {
  if (i.is("WARPSYNC") || i.is("BPT")) return true;
  if (!i.guard.empty() && i.guard != "@PT") return true;
  // "BRA P1, `(.L_x_5)" and "BRA.DIV" are conditional without a guard.
  return i.is("BRA") && (i.operands.size() > 1 || i.has("DIV") || i.has("ANY"));
}

std::vector<Block> blocks_of(const Listing& listing, std::vector<int>& block_of) {
  const int count = static_cast<int>(listing.code.size());
  std::vector<bool> leads(static_cast<size_t>(count) + 1, false);
  leads[0] = true;
  for (int i = 0; i < count; ++i) {
    const Instruction& instruction = listing.code[static_cast<size_t>(i)];
    for (int target : instruction.targets) leads[static_cast<size_t>(target)] = true;
    if (ends_block(instruction)) leads[static_cast<size_t>(i) + 1] = true;
  }
  std::vector<Block> blocks;
  block_of.assign(static_cast<size_t>(count), 0);
  for (int i = 0; i < count; ++i) {
    if (leads[static_cast<size_t>(i)]) blocks.push_back({i, i, {}, {}});
    blocks.back().end = i + 1;
    block_of[static_cast<size_t>(i)] = static_cast<int>(blocks.size()) - 1;
  }
  return blocks;
}

void connect(const Listing& listing, const std::vector<int>& block_of, std::vector<Block>& blocks) {
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Instruction& last = listing.code[static_cast<size_t>(blocks[b].end) - 1];
    std::set<int> successors;
    if (ends_block(last) && last.guard != "@!PT")
      for (int target : last.targets) successors.insert(block_of[static_cast<size_t>(target)]);
    if ((!ends_block(last) || falls_through(last) || last.guard == "@!PT") && b + 1 < blocks.size())
      successors.insert(static_cast<int>(b) + 1);
    blocks[b].successors.assign(successors.begin(), successors.end());
    for (int s : successors) blocks[static_cast<size_t>(s)].predecessors.push_back(static_cast<int>(b));
  }
}

std::vector<int> reverse_postorder(const std::vector<Block>& blocks) {
  std::vector<int> order;
  std::vector<bool> seen(blocks.size(), false);
  std::vector<std::pair<int, size_t>> stack{{0, 0}};
  seen[0] = true;
  while (!stack.empty()) {
    auto& [block, next] = stack.back();
    const auto& successors = blocks[static_cast<size_t>(block)].successors;
    if (next == successors.size()) {
      order.push_back(block);
      stack.pop_back();
    } else if (const int s = successors[next++]; !seen[static_cast<size_t>(s)]) {
      seen[static_cast<size_t>(s)] = true;
      stack.push_back({s, 0});
    }
  }
  std::reverse(order.begin(), order.end());
  return order;
}

// Immediate dominators (Cooper, Harvey, Kennedy), as ranks in reverse postorder.
std::vector<int> dominators(const Cfg& cfg) {
  std::vector<int> dominator(cfg.order.size(), -1);
  dominator[0] = 0;
  const auto meet = [&](int a, int b) {
    while (a != b) {
      while (a > b) a = dominator[static_cast<size_t>(a)];
      while (b > a) b = dominator[static_cast<size_t>(b)];
    }
    return a;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t r = 1; r < cfg.order.size(); ++r) {
      int best = -1;
      for (int p : cfg.blocks[static_cast<size_t>(cfg.order[r])].predecessors) {
        const int rank = cfg.rank[static_cast<size_t>(p)];
        if (rank < 0 || dominator[static_cast<size_t>(rank)] < 0) continue;
        best = best < 0 ? rank : meet(best, rank);
      }
      if (best != dominator[r]) {
        dominator[r] = best;
        changed = true;
      }
    }
  }
  return dominator;
}

std::vector<Loop> natural_loops(const Cfg& cfg) {
  const std::vector<int> dominator = dominators(cfg);
  std::map<int, std::set<int>> bodies;  // by header
  for (int tail : cfg.order)
    for (int header : cfg.blocks[static_cast<size_t>(tail)].successors) {
      const int wanted = cfg.rank[static_cast<size_t>(header)];
      int at = cfg.rank[static_cast<size_t>(tail)];
      while (at > wanted) at = dominator[static_cast<size_t>(at)];
      if (at != wanted) continue;
      std::set<int>& body = bodies[header];
      body.insert(header);
      std::vector<int> work{tail};
      while (!work.empty()) {
        const int block = work.back();
        work.pop_back();
        if (!body.insert(block).second) continue;
        for (int p : cfg.blocks[static_cast<size_t>(block)].predecessors)
          if (cfg.rank[static_cast<size_t>(p)] >= 0) work.push_back(p);
      }
    }
  std::vector<Loop> loops;
  for (const auto& [header, body] : bodies) loops.push_back({header, -1, {body.begin(), body.end()}});
  std::stable_sort(loops.begin(), loops.end(),
                   [](const Loop& a, const Loop& b) { return a.blocks.size() > b.blocks.size(); });
  for (size_t inner = 0; inner < loops.size(); ++inner)
    for (size_t outer = 0; outer < inner;
         ++outer)  // later ones are smaller, so the last that contains it is the parent
      if (loops[outer].contains(loops[inner].header)) loops[inner].parent = static_cast<int>(outer);
  return loops;
}

}  // namespace

bool Loop::contains(int block) const { return std::binary_search(blocks.begin(), blocks.end(), block); }

bool is_wgmma(const Instruction& i) { return i.is("HGMMA") || i.is("QGMMA") || i.is("IGMMA") || i.is("BGMMA"); }

Cfg control_flow(const Listing& listing) {
  Cfg cfg;
  std::vector<int> block_of;
  cfg.blocks = blocks_of(listing, block_of);
  connect(listing, block_of, cfg.blocks);
  cfg.order = reverse_postorder(cfg.blocks);
  cfg.rank.assign(cfg.blocks.size(), -1);
  for (size_t r = 0; r < cfg.order.size(); ++r) cfg.rank[static_cast<size_t>(cfg.order[r])] = static_cast<int>(r);
  cfg.loops = natural_loops(cfg);
  return cfg;
}

std::vector<int> hot_path(const Listing& listing, const Cfg& cfg, const Loop& loop,
                          const std::set<std::pair<int, int>>& first_turn_only) {
  struct Way {
    int wgmmas = -1, instructions = 0, from = -1;
    bool better_than(const Way& other) const {
      return wgmmas != other.wgmmas ? wgmmas > other.wgmmas : instructions < other.instructions;
    }
  };
  std::vector<Way> best(cfg.order.size());
  std::vector<int> ranks;
  for (int block : loop.blocks) ranks.push_back(cfg.rank[static_cast<size_t>(block)]);
  std::sort(ranks.begin(), ranks.end());
  Way whole;
  for (int rank : ranks) {
    const int id = cfg.order[static_cast<size_t>(rank)];
    const Block& block = cfg.blocks[static_cast<size_t>(id)];
    Way& way = best[static_cast<size_t>(rank)];
    if (id == loop.header) way.wgmmas = 0;
    if (way.wgmmas < 0) continue;  // reached only backwards, out of an irregular inner loop
    for (int i = block.begin; i < block.end; ++i) way.wgmmas += is_wgmma(listing.code[static_cast<size_t>(i)]);
    way.instructions += block.end - block.begin;
    for (int successor : block.successors) {
      if (!loop.contains(successor) || first_turn_only.contains({id, successor})) continue;
      const Way next{way.wgmmas, way.instructions, rank};
      const int to = cfg.rank[static_cast<size_t>(successor)];
      if (successor == loop.header) {
        if (next.better_than(whole)) whole = next;
      } else if (to > rank && next.better_than(best[static_cast<size_t>(to)])) {
        best[static_cast<size_t>(to)] = next;
      }
    }
  }
  std::vector<int> path;
  for (int rank = whole.from; rank >= 0; rank = best[static_cast<size_t>(rank)].from) {
    path.push_back(cfg.order[static_cast<size_t>(rank)]);
    if (path.back() == loop.header) break;
  }
  std::reverse(path.begin(), path.end());
  if (path.empty() && !first_turn_only.empty()) return hot_path(listing, cfg, loop, {});  // there is no other way
  return path;
}

}  // namespace sass
