#include "turn.h"

#include <algorithm>
#include <cstdlib>
#include <deque>

#include "names.h"

namespace sass {
namespace {

bool commits(const Instruction& i) { return !i.operands.empty() && i.operands.back() == "gsb0"; }

// R24, gdesc[UR16], RZ, !UPT: an accumulator that starts from zero
bool starts_from_zero(const Instruction& i) {
  return std::find(i.operands.begin(), i.operands.end(), "!UPT") != i.operands.end();
}

std::string shape_of(const Instruction& i) {
  const size_t at = i.opcode.find('.');
  return at == std::string::npos ? "?" : i.opcode.substr(at + 1, i.opcode.find('.', at + 1) - at - 1);
}

std::string types_of(const Instruction& i) {
  const size_t at = i.opcode.find('.'), end = at == std::string::npos ? at : i.opcode.find('.', at + 1);
  return end == std::string::npos ? "" : i.opcode.substr(end + 1);
}

// Floating-point work, as opposed to moves and spills.
bool computes(Kind kind) {
  switch (kind) {
    case Kind::exp:
    case Kind::special:
    case Kind::maximum:
    case Kind::convert:
    case Kind::multiply:
    case Kind::multiply_add:
    case Kind::add:
    case Kind::mask: return true;
    default: return false;
  }
}

struct Follower {
  const Listing& listing;
  Turn& turn;
  std::deque<Group> outstanding;  // committed, not yet waited for
  std::vector<Gemm> gemms;        // of both rounds; the first round's are the result
  Group open;
  int last = -1;  // GEMM of the last WGMMA

  const Instruction& at(int position) const {
    return listing.code[static_cast<size_t>(turn.code[static_cast<size_t>(position % turn.size())])];
  }

  // Whether the WGMMA adds to what the GEMM has so far. The same registers are not enough: where ptxas has given the
  // pipeline up, S and O may take turns in them, O being moved in and out.
  bool continues(const Gemm& gemm, int position) const {
    const Instruction& i = at(position);
    const Registers accumulator = destination(i);
    if (starts_from_zero(i) || accumulator.first != gemm.accumulator.first ||
        accumulator.count != gemm.accumulator.count || shape_of(i) != gemm.shape || types_of(i) != gemm.types)
      return false;
    const bool same_form = a_in_registers(i) == a_in_registers(at(gemm.steps.back()));
    for (int between = gemm.steps.back() + 1; between < position; ++between) {
      const Kind kind = turn.kinds[static_cast<size_t>(between % turn.size())];
      if (kind == Kind::wgmma) continue;
      const bool written = accumulator.overlaps(destination(at(between)));
      if (written && !same_form) return false;
      if (!computes(kind)) continue;
      if (written) return false;
      for (const Registers& read : sources(at(between)))
        if (accumulator.overlaps(read)) return false;
    }
    return true;
  }

  void wgmma(int position) {
    const Instruction& i = at(position);
    const Registers accumulator = destination(i);
    int gemm = -1;
    for (int g : open.gemms)
      if (continues(gemms[static_cast<size_t>(g)], position)) gemm = g;
    // A GEMM goes on through commits and waits in its midst, as long as no other comes between.
    if (gemm < 0 && last >= 0 && continues(gemms[static_cast<size_t>(last)], position)) {
      gemm = last;
      open.gemms.push_back(gemm);
    }
    if (gemm < 0) {
      gemm = static_cast<int>(gemms.size());
      Gemm fresh;
      fresh.shape = shape_of(i);
      fresh.types = types_of(i);
      fresh.zero = starts_from_zero(i);
      fresh.accumulator = accumulator;
      gemms.push_back(fresh);
      open.gemms.push_back(gemm);
    }
    gemms[static_cast<size_t>(gemm)].steps.push_back(position);
    if (a_in_registers(i)) gemms[static_cast<size_t>(gemm)].register_steps.push_back(position);
    last = gemm;
    if (open.first < 0) open.first = position;
    if (!commits(i)) return;
    open.commit = position;
    outstanding.push_back(open);
    open = {};
  }

  void keep(const Group& group) {
    if (group.first >= 0 && group.first < turn.size()) turn.groups.push_back(group);
  }

  void wait(int position, int leave) {
    while (static_cast<int>(outstanding.size()) > leave) {
      outstanding.front().wait = position;
      keep(outstanding.front());
      outstanding.pop_front();
    }
  }

  void run() {
    const int rounds = turn.cyclic ? 2 : 1;
    for (int position = 0; position < rounds * turn.size(); ++position) {
      if (position == turn.size()) last = -1;
      const Kind kind = turn.kinds[static_cast<size_t>(position % turn.size())];
      if (kind == Kind::wgmma) wgmma(position);
      if (kind == Kind::wait) wait(position, wait_count(at(position)));
    }
    for (const Group& group : outstanding) keep(group);
    keep(open);
    std::sort(turn.groups.begin(), turn.groups.end(), [](const Group& a, const Group& b) { return a.first < b.first; });
    for (Gemm& gemm : gemms) {
      if (gemm.steps.front() >= turn.size()) break;  // made in order, so the indices stay
      const int end = gemm.steps.front() + turn.size();  // what lies behind was never committed
      for (std::vector<int>* steps : {&gemm.steps, &gemm.register_steps})
        std::erase_if(*steps, [&](int step) { return step >= end; });
      turn.gemms.push_back(gemm);
    }
    const int kept = static_cast<int>(turn.gemms.size());
    for (Group& group : turn.groups) std::erase_if(group.gemms, [&](int gemm) { return gemm >= kept; });
  }
};

// Registers that stay the tensor core's until the group's wait: accumulators, and the A operands held in registers.
void find_touches(const Listing& listing, Turn& turn) {
  for (const Group& group : turn.groups) {
    const int end = group.wait >= 0 ? group.wait : turn.cyclic ? 2 * turn.size() : turn.size();
    for (int position = group.first; position < end; ++position) {
      const int index = position % turn.size();
      if (turn.kinds[static_cast<size_t>(index)] == Kind::wgmma) continue;
      const Instruction& i = listing.code[static_cast<size_t>(turn.code[static_cast<size_t>(index)])];
      const Registers written = destination(i);
      bool touched = false;
      for (int g : group.gemms) {
        const Gemm& gemm = turn.gemms[static_cast<size_t>(g)];
        if (gemm.steps.front() > position) continue;
        touched |= gemm.accumulator.overlaps(written);
        for (const Registers& read : sources(i)) touched |= gemm.accumulator.overlaps(read);
        for (int step : gemm.register_steps) {
          const bool in_group = step >= group.first && (group.commit < 0 || step <= group.commit);
          if (step > position || !in_group) continue;
          const Instruction& mma =
              listing.code[static_cast<size_t>(turn.code[static_cast<size_t>(step % turn.size())])];
          touched |= a_operand(mma).overlaps(written);
        }
      }
      if (touched) turn.touches.push_back(index);
    }
  }
  std::sort(turn.touches.begin(), turn.touches.end());
  turn.touches.erase(std::unique(turn.touches.begin(), turn.touches.end()), turn.touches.end());
}

bool inside(const Turn& turn, int position, int begin, int end) {
  if (end < 0) end = turn.cyclic ? begin + turn.size() : turn.size();
  return (position > begin && position < end) ||
         (turn.cyclic && position + turn.size() > begin && position + turn.size() < end);
}

// The group that the step belongs to.
const Group* group_of(const Turn& turn, const Gemm& gemm, int step) {
  for (const Group& group : turn.groups) {
    if (step < group.first || (group.commit >= 0 && step > group.commit)) continue;
    for (int g : group.gemms)
      if (&turn.gemms[static_cast<size_t>(g)] == &gemm) return &group;
  }
  return nullptr;
}

// A wait in the midst of a GEMM that leaves none of its WGMMAs in flight is what ptxas does, for each of them, when it
// gives up on the pipeline. One that leaves the last of them in flight is a pipeline.
void find_serialised(Turn& turn) {
  for (const Gemm& gemm : turn.gemms)
    for (int position = gemm.steps.front(); position < gemm.steps.back(); ++position) {
      if (turn.kinds[static_cast<size_t>(position % turn.size())] != Kind::wait) continue;
      const auto before = std::upper_bound(gemm.steps.begin(), gemm.steps.end(), position);
      const Group* group = group_of(turn, gemm, *(before - 1));
      const bool drained = group && group->wait >= 0 && group->wait <= position;
      if (!drained) continue;
      turn.serialised.push_back(position % turn.size());
      turn.one_by_one |= group->first == group->commit;
    }
}

}  // namespace

bool a_in_registers(const Instruction& i) { return i.operands.size() > 1 && i.operands[1][0] == 'R'; }

Registers a_operand(const Instruction& i) {
  const std::vector<Registers> read = sources(i);
  return a_in_registers(i) && !read.empty() ? read.front() : Registers{};
}

int wait_count(const Instruction& i) {
  if (i.operands.empty()) return 0;
  return static_cast<int>(std::clamp(std::strtol(i.operands.back().c_str(), nullptr, 0), 0L, 255L));
}

bool Turn::in_flight(int position) const {
  for (const Group& group : groups)
    if (group.commit >= 0 && inside(*this, position, group.commit, group.wait)) return true;
  return false;
}

bool Turn::overlapped(int position) const {
  for (const Group& group : groups)
    if (inside(*this, position, group.first, group.wait)) return true;
  return false;
}

const Gemm* Turn::gemm_at(int position) const {
  for (const Gemm& gemm : gemms)
    for (int step : gemm.steps)
      if (step % size() == position) return &gemm;
  return nullptr;
}

int Turn::steps_in_flight(const Gemm& gemm, int position) const {
  return static_cast<int>(std::count_if(gemm.steps.begin(), gemm.steps.end(), [&](int step) {
    const Group* group = group_of(*this, gemm, step);
    return group && group->commit >= 0 && inside(*this, position, group->commit, group->wait);
  }));
}

Turn follow(const Listing& listing, const Cfg& cfg, const std::vector<int>& path, bool cyclic) {
  Turn turn;
  turn.cyclic = cyclic;
  for (int block : path)
    for (int i = cfg.blocks[static_cast<size_t>(block)].begin; i < cfg.blocks[static_cast<size_t>(block)].end; ++i) {
      turn.code.push_back(i);
      turn.kinds.push_back(kind_of(listing.code[static_cast<size_t>(i)]));
    }
  if (turn.code.empty()) return turn;
  Follower follower{listing, turn, {}, {}, {}};
  follower.run();
  find_touches(listing, turn);
  find_serialised(turn);
  name_gemms(listing, turn);
  return turn;
}

}  // namespace sass
