// What a file holds: first the names of its kernels, then each kernel when it is asked for, so that the largest library
// takes no more memory than a few of its kernels.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "../loops/kernel.h"

namespace sass {

struct Entry {
  std::string name, readable;
};

class Source {
 public:
  virtual ~Source() = default;
  const std::string& name() const { return name_; }
  // 90; or, of a file without code for it, that of Blackwell's data centre GPUs (sm_100 to sm_103).
  int architecture() const { return architecture_; }
  const std::vector<Entry>& entries() const { return entries_; }  // all kernels for it, in file order

  // The kernels that a user means: by number, from 1; by name, part of it or pattern; all of them by "". Throws
  // std::runtime_error if there are none.
  std::vector<size_t> matching(const std::string& wanted) const;

  // What is known of a kernel before it is disassembled; nothing for a listing.
  virtual const KernelRecord* record(size_t) const { return nullptr; }
  bool may_have_wgmmas(size_t kernel) const { return !record(kernel) || !record(kernel)->no_wgmmas; }

  // Each of these entries, in this order, which must be ascending.
  virtual void each(const std::vector<size_t>& wanted, const std::function<void(Kernel&&)>& use) const = 0;
  std::vector<Kernel> read(const std::vector<size_t>& wanted) const;

 protected:
  explicit Source(std::string name) : name_(std::move(name)) {}
  void add(const std::string& kernel);
  // The best of the architectures whose code was found; an error that names the others, too, if none is known here.
  void choose(const std::set<int>& found, const std::set<int>& other_archs);
  void choose(int architecture) { architecture_ = architecture; }

 private:
  int architecture_ = hopper;
  std::string name_;
  std::vector<Entry> entries_;
};

// A library, object, archive, cubin, wheel, or a listing; "-" is standard input. Throws std::runtime_error if it cannot
// be read, or has no code for sm_90.
std::unique_ptr<Source> open_source(const std::string& file);

// Its two kinds.
std::unique_ptr<Source> open_listing(const std::string& path, const std::string& name);
std::unique_ptr<Source> open_images(const std::string& path, const std::string& name);

// Throws "has code for sm_100, but what check says holds for sm_90 alone".
void refuse_others(const Source& source, const std::string& verb);

}  // namespace sass
