// A listing as a source of kernels. It is read once for the names, and again for the kernels.
#include <algorithm>
#include <set>

#include "calls.h"
#include "mapped.h"
#include "source.h"

namespace sass {
namespace {

// A listing may have several architectures, one after the other; one that does not say its own is taken as it is.
bool for_hopper(const Listing& listing) { return listing.sm == 0 || listing.sm == 90; }

class ListingSource : public Source {
 public:
  ListingSource(const std::string& path, const std::string& name) : Source(name), file_(path) {
    std::set<int> others;
    std::set<std::string> called;
    functions([&](Listing&& listing) {
      if (!for_hopper(listing)) {
        others.insert(listing.sm);
        return;
      }
      add(listing.name);
      for (const Instruction& i : listing.code)
        if (!i.callee.empty()) called.insert(i.callee);
    });
    if (entries().empty()) throw no_hopper(name, {others.begin(), others.end()});
    if (called.empty()) return;
    functions([&](Listing&& listing) {
      if (for_hopper(listing) && called.contains(listing.name)) called_.emplace(listing.name, std::move(listing));
    });
  }

  void each(const std::vector<size_t>& wanted, const std::function<void(Kernel&&)>& use) const override {
    size_t at = 0;
    auto next = wanted.begin();
    functions([&](Listing&& listing) {
      if (next == wanted.end() || !for_hopper(listing) || at++ != *next) return;
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
