#include "stack.h"

#include <algorithm>
#include <optional>

#include "../listing/calls.h"
#include "../listing/operands.h"
#include "../system/text.h"
#include "values.h"

namespace sass {
namespace {

struct Place {
  std::uint32_t begin = 0, end = 0;
  bool overlaps(const Place& other) const { return begin < other.end && other.begin < end; }
};

// Where "STL.64 [R1+0x10], R4" stores: 16 to 24. Nothing if the address is not a fixed one of the stack.
std::optional<Place> place_of(const Instruction& i) {
  constexpr int stack_pointer = 1;
  Place place;
  bool on_stack = false;
  for (const std::string_view part : split(address_operand(i), '+')) {
    const Operand operand = operand_of(part);
    if (operand.kind == Operand::Kind::number) place.begin += operand.value;
    else if (operand.kind == Operand::Kind::lane_register && operand.index == stack_pointer) on_stack = true;
    else return std::nullopt;
  }
  place.end = place.begin + (i.has("128") ? 16 : i.has("64") ? 8 : 4);
  return on_stack ? std::optional(place) : std::nullopt;
}

}  // namespace

std::vector<int> spills(const Listing& listing, const std::vector<int>& accesses) {
  if (!has_calls(listing)) return accesses;
  std::vector<Place> read;
  for (const int i : accesses) {
    const Instruction& instruction = listing.code[static_cast<size_t>(i)];
    if (!instruction.is("LDL")) continue;
    const std::optional<Place> place = place_of(instruction);
    if (!place) return accesses;  // it may read any place
    read.push_back(*place);
  }
  std::vector<int> result;
  for (const int i : accesses) {
    const std::optional<Place> place = place_of(listing.code[static_cast<size_t>(i)]);
    if (!place || std::ranges::any_of(read, [&](const Place& other) { return place->overlaps(other); }))
      result.push_back(i);
  }
  return result;
}

bool are_of_arrays(const Listing& listing, const std::vector<int>& accesses) {
  const auto any = [&](auto wanted) {
    return std::ranges::any_of(accesses, [&](int i) { return wanted(listing.code[static_cast<size_t>(i)]); });
  };
  return any([](const Instruction& i) { return !place_of(i); }) &&
         !any([](const Instruction& i) { return i.text.find("SpillRefill") != std::string::npos; });
}

}  // namespace sass
