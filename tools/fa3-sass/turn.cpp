#include "turn.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>

namespace sass {
namespace {

bool commits(const Instruction& i) { return !i.operands.empty() && i.operands.back() == "gsb0"; }

// R24, gdesc[UR16], RZ, !UPT: an accumulator that starts from zero
bool starts_from_zero(const Instruction& i) {
  return std::find(i.operands.begin(), i.operands.end(), "!UPT") != i.operands.end();
}

Registers a_operand(const Instruction& i) {
  const std::vector<Registers> read = sources(i);
  return a_in_registers(i) && !read.empty() ? read.front() : Registers{};
}

std::string shape_of(const Instruction& i) {
  const size_t at = i.opcode.find('.');
  return at == std::string::npos ? "?" : i.opcode.substr(at + 1, i.opcode.find('.', at + 1) - at - 1);
}

std::string types_of(const Instruction& i) {
  const size_t at = i.opcode.find('.'), end = at == std::string::npos ? at : i.opcode.find('.', at + 1);
  return end == std::string::npos ? "" : i.opcode.substr(end + 1);
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

  void wgmma(int position) {
    const Instruction& i = at(position);
    const Registers accumulator = destination(i);
    int gemm = -1;
    for (int g : open.gemms)
      if (gemms[static_cast<size_t>(g)].accumulator.first == accumulator.first && !starts_from_zero(i)) gemm = g;
    // A GEMM goes on through commits and waits in its midst, as long as no other comes between.
    if (gemm < 0 && last >= 0 && gemms[static_cast<size_t>(last)].accumulator.first == accumulator.first &&
        !starts_from_zero(i)) {
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
          const bool of_group = step >= group.first && (group.commit < 0 || step <= group.commit);
          if (step > position || !of_group) continue;
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

// A wait between two WGMMAs of one GEMM is what ptxas does when it gives up on the pipeline.
void find_serialised(Turn& turn) {
  for (const Gemm& gemm : turn.gemms)
    for (int position = gemm.steps.front(); position < gemm.steps.back(); ++position)
      if (turn.kinds[static_cast<size_t>(position % turn.size())] == Kind::wait)
        turn.serialised.push_back(position % turn.size());
}

// Which GEMM is which, by following the data: for each register, the GEMMs its value comes from, and those it comes
// from by way of exp2. Scores are what reaches exp2; what multiplies exp2 of the scores is P V or P^T dO; a GEMM whose
// result meets P on the way into another GEMM is dP, and that other one is dK or dQ.
class Naming {
 public:
  Naming(const Listing& listing, Turn& turn) : listing_(listing), turn_(turn) {}

  void run() {
    const size_t count = std::min<size_t>(turn_.gemms.size(), 32);
    for (int round = 0; round < (turn_.cyclic ? 3 : 1); ++round)
      for (int position = 0; position < turn_.size(); ++position) step(position);
    if (scores_ == 0) return;
    uint32_t dP = 0;
    for (size_t g = 0; g < count; ++g) {
      const uint32_t others = operand_[g].raw & ~scores_;
      if (operand_[g].exped & scores_) dP |= others;
    }
    if (dP == 0)  // P and dS went through shared memory: what meets P in arithmetic and starts from zero is dP
      for (size_t g = 0; g < count; ++g)
        if (turn_.gemms[g].zero && turn_.gemms[g].register_steps.empty() && (met_ & ~scores_ & bit(g))) dP |= bit(g);
    bool first_sum = true;
    for (size_t g = 0; g < count; ++g) {
      Gemm& gemm = turn_.gemms[g];
      if (scores_ & bit(g)) gemm.name = dP ? "S" : "QK";
      else if (dP & bit(g)) gemm.name = "dP";
      else if (dP == 0) gemm.name = "PV";
      else if (!gemm.register_steps.empty()) gemm.name = operand_[g].raw & dP ? "dK" : "dV";
      else if (gemm.zero) gemm.name = "dQ";
      else {
        gemm.name = first_sum ? "dV" : "dK";
        first_sum = false;
      }
    }
  }

 private:
  struct Origin {
    uint32_t raw = 0, exped = 0;
    void add(const Origin& other) {
      raw |= other.raw;
      exped |= other.exped;
    }
  };
  static uint32_t bit(size_t gemm) { return 1u << gemm; }

  void step(int position) {
    const Instruction& i = listing_.code[static_cast<size_t>(turn_.code[static_cast<size_t>(position)])];
    const Kind kind = turn_.kinds[static_cast<size_t>(position)];
    const Registers written = destination(i);
    if (kind == Kind::wgmma) {
      const size_t g = gemm_index(position);
      if (g >= 32) return;
      if (a_in_registers(i)) operand_[g].add(origin(a_operand(i)));
      for (int r = written.first; r < written.first + written.count && r < 256; ++r)
        registers_[static_cast<size_t>(r)] = {bit(g), 0};
      return;
    }
    if (written.count == 0) return;
    Origin result;
    const bool loads = i.opcode.starts_with("LD");  // what it reads are addresses: its result does not come from them
    if (!loads)
      for (const Registers& read : sources(i)) result.add(origin(read));
    if (kind == Kind::exp) {
      scores_ |= result.raw;
      result = {0, result.raw | result.exped};
    } else if (kind == Kind::multiply && (result.exped & scores_)) {
      met_ |= result.raw;
    }
    // A guarded instruction may leave the old value.
    for (int r = written.first; r < written.first + written.count && r < 256; ++r) {
      Origin& target = registers_[static_cast<size_t>(r)];
      if (i.guard.empty()) target = {};
      target.add(result);
    }
  }

  Origin origin(const Registers& read) const {
    Origin result;
    for (int r = read.first; r < read.first + read.count && r < 256; ++r)
      result.add(registers_[static_cast<size_t>(r)]);
    return result;
  }

  size_t gemm_index(int position) const {
    for (size_t g = 0; g < turn_.gemms.size(); ++g)
      for (int step : turn_.gemms[g].steps)
        if (step % turn_.size() == position) return g;
    return 32;
  }

  const Listing& listing_;
  Turn& turn_;
  std::array<Origin, 256> registers_{};
  std::array<Origin, 32> operand_{};
  uint32_t scores_ = 0, met_ = 0;
};

bool inside(const Turn& turn, int position, int begin, int end) {
  if (end < 0) end = turn.cyclic ? begin + turn.size() : turn.size();
  return (position > begin && position < end) ||
         (turn.cyclic && position + turn.size() > begin && position + turn.size() < end);
}

}  // namespace

bool a_in_registers(const Instruction& i) { return i.operands.size() > 1 && i.operands[1][0] == 'R'; }

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
  Naming(listing, turn).run();
  return turn;
}

}  // namespace sass
