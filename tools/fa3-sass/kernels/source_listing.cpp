// A listing as a source of kernels. It is read once for the names, and again for the kernels.
#include <algorithm>
#include <set>

#include "../listing/calls.h"
#include "../system/mapped.h"
#include "analyse.h"
#include "source.h"

namespace sass {
namespace {

// A listing may have several architectures, one after the other; one that does not say its own is taken for Hopper's.
int architecture_of(const Listing& listing) { return listing.sm == 0 ? hopper : listing.sm; }

class ListingSource : public Source {
 public:
  ListingSource(const std::string& path, const std::string& name) : Source(name), file_(path) {
    std::set<int> found;
    std::vector<std::pair<int, std::string>> names;
    std::set<std::string> called;
    functions([&](Listing&& listing) {
      found.insert(architecture_of(listing));
      names.emplace_back(architecture_of(listing), listing.name);
      for (const Instruction& i : listing.code)
        if (!i.callee.empty()) called.insert(i.callee);
    });
    choose(found, {});
    for (const auto& [sm, function] : names)
      if (sm == architecture()) add(function);
    if (called.empty()) return;
    functions([&](Listing&& listing) {
      if (architecture_of(listing) == architecture() && called.contains(listing.name))
        called_.emplace(listing.name, std::move(listing));
    });
  }

  void each(const std::vector<size_t>& wanted, const std::function<void(Kernel&&)>& use) const override {
    size_t at = 0;
    auto next = wanted.begin();
    functions([&](Listing&& listing) {
      if (next == wanted.end() || architecture_of(listing) != architecture() || at++ != *next) return;
      KernelRecord record;
      record.name = listing.name;
      Kernel kernel = analyse(record, std::move(listing), called_);
      kernel.number = static_cast<int>(at);
      use(std::move(kernel));
      ++next;
    });
  }

 private:
  void functions(const std::function<void(Listing&&)>& use) const {
    try {
      each_function(file_.bytes(), use);
    } catch (const ParseError& error) {
      throw std::runtime_error(name() + ": " + error.what());
    }
  }

  MappedFile file_;
  std::map<std::string, Listing> called_;
};

}  // namespace

std::unique_ptr<Source> open_listing(const std::string& path, const std::string& name) {
  return std::make_unique<ListingSource>(path, name);
}

}  // namespace sass
