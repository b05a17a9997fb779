#include "calls.h"

#include <algorithm>
#include <set>

#include "kinds.h"
#include "operands.h"

namespace sass {
namespace {

// Copies of copies may be without end: beyond this many instructions a call stays a call.
constexpr int most_instructions = 200'000;

bool matters(const Instruction& i) {
  const Kind kind = kind_of(i);
  return kind == Kind::wgmma || kind == Kind::arrive || kind == Kind::wait || kind == Kind::exp;
}

// Where functions begin within a listing, as its calls tell, and its end. The listing's own code comes first.
std::vector<int> entries_of(const Listing& listing) {
  std::set<int> entries{static_cast<int>(listing.code.size())};
  for (const Instruction& i : listing.code)
    if (i.entry > 0) entries.insert(i.entry);
  return {entries.begin(), entries.end()};
}

// Whether no branch leads from one function of the listing into another.
bool separate(const Listing& listing) {
  const std::vector<int> entries = entries_of(listing);
  const auto function_at = [&](int i) { return std::upper_bound(entries.begin(), entries.end(), i); };
  for (size_t i = 0; i < listing.code.size(); ++i)
    for (int target : listing.code[i].targets)
      if (function_at(target) != function_at(static_cast<int>(i))) return false;
  return true;
}

struct Function {
  const Listing* listing = nullptr;  // none if the code is not known
  int begin = 0, end = 0;
};

class Copier {
 public:
  Copier(const Listing& kernel, const std::map<std::string, Listing>& functions)
      : kernel_(kernel), functions_(functions) {}

  Called run() {
    result_.listing.name = kernel_.name;
    result_.listing.sm = kernel_.sm;
    const std::vector<int> entries = entries_of(kernel_);
    copy({&kernel_, 0, entries.front()});
    // Functions behind the kernel's own code: where they are followed, the copies stand for them.
    for (size_t e = 0; e + 1 < entries.size(); ++e)
      if (const Function function{&kernel_, entries[e], entries[e + 1]}; !follows(function)) copy(function);
    result_.followed.assign(followed_.begin(), followed_.end());
    result_.unseen.assign(unseen_.begin(), unseen_.end());
    return std::move(result_);
  }

 private:
  Function function_of(const Instruction& call, const Listing& caller) const {
    if (call.entry >= 0) {
      const std::vector<int> entries = entries_of(caller);
      return {&caller, call.entry, *std::upper_bound(entries.begin(), entries.end(), call.entry)};
    }
    const auto other = functions_.find(call.callee);
    if (other == functions_.end() || !separate(other->second)) return {};
    return {&other->second, 0, entries_of(other->second).front()};
  }

  // Not one that is being copied already: recursion stays a call.
  bool follows(const Function& function) const {
    std::set<std::pair<const Listing*, int>> seen(open_.begin(), open_.end());
    if (seen.contains({function.listing, function.begin})) return false;
    std::vector<Function> work{function};
    while (!work.empty()) {
      const Function next = work.back();
      work.pop_back();
      if (!next.listing || !seen.insert({next.listing, next.begin}).second) continue;
      for (int i = next.begin; i < next.end; ++i) {
        const Instruction& instruction = next.listing->code[static_cast<size_t>(i)];
        if (matters(instruction)) return true;
        if (instruction.is("CALL")) work.push_back(function_of(instruction, *next.listing));
      }
    }
    return false;
  }

  // Returns from a called function lead behind its copy.
  void copy(const Function& function, bool called = false) {
    open_.push_back({function.listing, function.begin});
    std::vector<Instruction>& out = result_.listing.code;
    std::vector<int> places;
    for (int i = function.begin; i < function.end; ++i) {
      const Instruction& instruction = function.listing->code[static_cast<size_t>(i)];
      places.push_back(static_cast<int>(out.size()));
      out.push_back(instruction);
      if (!instruction.is("CALL")) continue;
      const Function callee = function_of(instruction, *function.listing);
      const int size = static_cast<int>(out.size()) + callee.end - callee.begin;
      if (!callee.listing) {
        if (!calls_by_address(instruction)) unseen_.insert(instruction.callee);
      } else if (size <= most_instructions && follows(callee)) {
        followed_.insert(instruction.callee);
        copy(callee, true);
      }
    }
    places.push_back(static_cast<int>(out.size()));
    for (size_t i = 0; i + 1 < places.size(); ++i) {
      Instruction& copied = out[static_cast<size_t>(places[i])];
      copied.entry = -1;
      for (int& target : copied.targets) target = places[static_cast<size_t>(target - function.begin)];
      if (called && copied.is("RET")) copied.targets = {places.back()};
    }
    open_.pop_back();
  }

  const Listing& kernel_;
  const std::map<std::string, Listing>& functions_;
  std::vector<std::pair<const Listing*, int>> open_;
  std::set<std::string> followed_, unseen_;
  Called result_;
};

}  // namespace

bool has_calls(const Listing& listing) {
  return std::any_of(listing.code.begin(), listing.code.end(), [](const Instruction& i) { return i.is("CALL"); });
}

bool calls_by_address(const Instruction& i) {
  return i.is("CALL") && !i.operands.empty() && operand_of(i.operands.back()).is_register();
}

Called follow_calls(Listing kernel, const std::map<std::string, Listing>& functions) {
  if (!has_calls(kernel) || !separate(kernel)) return {std::move(kernel), {}, {}};
  return Copier(kernel, functions).run();
}

}  // namespace sass
