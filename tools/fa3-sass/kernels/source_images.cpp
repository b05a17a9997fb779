// CUDA images as a source of kernels: jobs for nvdisasm, on all cores, and what comes of them in order.
#include <algorithm>
#include <set>
#include <stdexcept>
#include <thread>

#include "../input/bundle.h"
#include "../input/disassembler.h"
#include "../input/images.h"
#include "../input/sections.h"
#include "../system/pipeline.h"
#include "../system/process.h"
#include "../system/text.h"
#include "analyse.h"
#include "source.h"

namespace sass {
namespace {

// Bytes of code. Disassembled and analysed they take forty times as much, and nvdisasm as much again.
constexpr uint64_t least_in_a_job = 128 << 10, most_in_a_job = 1 << 20, under_way = 6 << 20;

struct Place {
  size_t image;
  KernelRecord record;
  bool linked;
  int sm;
};

struct Job {
  std::vector<const Place*> kernels;
  std::vector<int> numbers;
  uint64_t code_bytes = 0;
  std::set<std::string> names{};
};

class ImageSource : public Source {
 public:
  ImageSource(const std::string& path, const std::string& name) : Source(name), images_(path, name) {
    std::set<int> found;
    std::set<std::string> linked;
    std::vector<Place> places;
    for (size_t i = 0; i < images_.all().size(); ++i) {
      const std::string_view bytes = images_.all()[i].bytes;
      const Cubin cubin = read_cubin_of(images_.all()[i]);
      let_go(bytes);
      found.insert(cubin.sm);
      for (const KernelRecord& record : cubin.kernels) places.push_back({i, record, cubin.linked, cubin.sm});
    }
    choose(found, images_.other_archs());
    for (Place& place : places) {
      if (place.sm != architecture()) continue;
      if (place.linked) linked.insert(place.record.name);
      places_.push_back(std::move(place));
    }
    // A library keeps the objects, too, from which the device linker made what runs.
    std::erase_if(places_, [&](const Place& place) { return !place.linked && linked.contains(place.record.name); });
    for (const Place& place : places_) add(place.record.name);
  }

  const KernelRecord* record(size_t kernel) const override { return &places_[kernel].record; }

  void each(const std::vector<size_t>& wanted, const std::function<void(Kernel&&)>& use) const override {
    const size_t threads = std::max(1u, std::thread::hardware_concurrency());
    const std::vector<Job> jobs = jobs_of(wanted, threads);
    const std::string nvdisasm = find_tool("nvdisasm");
    const auto make = [&](size_t job) { return disassemble(nvdisasm, jobs[job]); };
    in_order({jobs.size(), threads, under_way}, [&](size_t job) { return jobs[job].code_bytes; }, make,
             [&](std::vector<Kernel>&& kernels) {
               for (Kernel& kernel : kernels) use(std::move(kernel));
             });
  }

 private:
  static Cubin read_cubin_of(const Image& image) {
    try {
      return read_cubin(image.bytes);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(image.name + ": " + error.what());
    }
  }

  // With others in an image that is made for them; such an image tells no lines.
  static bool bundled(const Place& place) { return place.record.stands_alone && !place.record.has_lines; }

  const Image& image_of(const Job& job) const { return images_.all()[job.kernels.front()->image]; }

  bool belongs(const Job& job, const Place& place, uint64_t limit) const {
    if (job.code_bytes + place.record.code_bytes > limit || job.names.contains(place.record.name)) return false;
    const Place& first = *job.kernels.front();
    if (bundled(first) != bundled(place)) return false;
    return first.image == place.image ||
           (bundled(first) && same_kind(image_of(job).bytes, images_.all()[place.image].bytes));
  }

  std::vector<Job> jobs_of(const std::vector<size_t>& wanted, size_t threads) const {
    uint64_t all = 0;
    for (size_t i : wanted) all += places_[i].record.code_bytes;
    const uint64_t limit = std::clamp(all / threads, least_in_a_job, most_in_a_job);
    std::vector<Job> jobs;
    for (size_t i : wanted) {
      const Place& place = places_[i];
      if (jobs.empty() || !belongs(jobs.back(), place, limit)) jobs.emplace_back();
      jobs.back().kernels.push_back(&place);
      jobs.back().numbers.push_back(static_cast<int>(i) + 1);
      jobs.back().code_bytes += place.record.code_bytes;
      jobs.back().names.insert(place.record.name);
    }
    return jobs;
  }

  // Functions by name: the job's kernels, or all of its image.
  std::map<std::string, Listing> listings_of(const std::string& nvdisasm, const Job& job, bool whole) const {
    const Image& image = image_of(job);
    std::vector<std::string> command{nvdisasm, "-c", "/dev/stdin"};
    Output output;
    if (job.kernels.front()->record.has_lines) command.insert(command.begin() + 1, "-g");
    if (bundled(*job.kernels.front())) {
      std::vector<Bundled> bundled;
      for (const Place* place : job.kernels) bundled.push_back({images_.all()[place->image].bytes, &place->record});
      output = run(command, {{}, bundle(bundled)});
    } else {
      std::string symbols;
      for (const Place* place : job.kernels)
        symbols += (symbols.empty() ? "" : ",") + std::to_string(place->record.symbol);
      if (!whole) command.insert(command.end(), {"-fun", symbols});
      output = run(command, {{}, image.bytes});
    }
    if (output.status != 0) throw std::runtime_error(image.name + ": nvdisasm: " + std::string(trim(output.err)));
    std::map<std::string, Listing> listings;
    try {
      each_function(output.out, [&](Listing&& listing) {
        const std::string name = listing.name;
        listings.emplace(name, std::move(listing));
      });
    } catch (const ParseError& error) {
      throw std::runtime_error(image.name + ": nvdisasm's listing: " + error.what());
    }
    return listings;
  }

  // Whether a listing calls a function of another section, which nvdisasm prints only with the whole image.
  static bool calls_others(const std::map<std::string, Listing>& listings) {
    for (const auto& [name, listing] : listings)
      for (const Instruction& i : listing.code)
        if (!i.callee.empty() && i.entry < 0 && !listings.contains(i.callee)) return true;
    return false;
  }

  std::vector<Kernel> disassemble(const std::string& nvdisasm, const Job& job) const {
    std::map<std::string, Listing> listings = listings_of(nvdisasm, job, false);
    if (!bundled(*job.kernels.front()) && calls_others(listings))
      listings = listings_of(nvdisasm, job, true);
    std::vector<Kernel> kernels;
    for (size_t k = 0; k < job.kernels.size(); ++k) {
      const Place& place = *job.kernels[k];
      const Image& image = images_.all()[place.image];
      const auto listing = listings.find(place.record.name);
      if (listing == listings.end())
        throw std::runtime_error(image.name + ": nvdisasm did not print " + place.record.name);
      // Control words are looked at in loops with WGMMAs alone.
      if (!place.record.no_wgmmas)
        add_controls(Sections(image.bytes).code_of(place.record.name), listing->second);
      kernels.push_back(analyse(place.record, std::move(listing->second), listings));
      kernels.back().image = image.name;
      kernels.back().sm = architecture();
      kernels.back().number = job.numbers[k];
      let_go(image.bytes);
    }
    return kernels;
  }

  Images images_;
  std::vector<Place> places_;
};

}  // namespace

std::unique_ptr<Source> open_images(const std::string& path, const std::string& name) {
  return std::make_unique<ImageSource>(path, name);
}

}  // namespace sass
