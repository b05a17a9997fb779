#include "kernel.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "disassembler.h"
#include "figures.h"
#include "names.h"
#include "process.h"
#include "text.h"

namespace sass {
namespace {

bool has_wgmma(const Listing& listing, const Cfg& cfg, const Loop& loop) {
  for (int block : loop.blocks)
    for (int i = cfg.blocks[static_cast<size_t>(block)].begin; i < cfg.blocks[static_cast<size_t>(block)].end; ++i)
      if (is_wgmma(listing.code[static_cast<size_t>(i)])) return true;
  return false;
}

// The innermost loops with WGMMAs; of those that do the same GEMMs the shortest is the hot one.
void find_loops(Kernel& kernel) {
  std::vector<bool> wgmma, inner(kernel.cfg.loops.size(), true);
  for (const Loop& loop : kernel.cfg.loops) wgmma.push_back(has_wgmma(kernel.listing, kernel.cfg, loop));
  for (size_t l = 0; l < wgmma.size(); ++l)
    if (wgmma[l] && kernel.cfg.loops[l].parent >= 0) inner[static_cast<size_t>(kernel.cfg.loops[l].parent)] = false;
  for (size_t l = 0; l < wgmma.size(); ++l) {
    if (!wgmma[l] || !inner[l]) continue;
    WgmmaLoop loop;
    loop.loop = static_cast<int>(l);
    loop.path = hot_path(kernel.listing, kernel.cfg, kernel.cfg.loops[l]);
    loop.turn = follow(kernel.listing, kernel.cfg, loop.path, true);
    if (!loop.turn.gemms.empty()) kernel.loops.push_back(std::move(loop));
  }
  std::vector<Turn*> turns;
  for (WgmmaLoop& loop : kernel.loops) turns.push_back(&loop.turn);
  name_across(turns);
  for (WgmmaLoop& loop : kernel.loops) describe_gemms(loop);
  std::sort(kernel.loops.begin(), kernel.loops.end(),
            [](const WgmmaLoop& a, const WgmmaLoop& b) { return a.turn.code.front() < b.turn.code.front(); });
  std::map<std::string, size_t> shortest;
  for (size_t l = 0; l < kernel.loops.size(); ++l) {
    const auto [best, fresh] = shortest.emplace(kernel.loops[l].gemms, l);
    if (!fresh && kernel.loops[l].turn.size() < kernel.loops[best->second].turn.size()) best->second = l;
  }
  for (size_t l = 0; l < kernel.loops.size(); ++l) kernel.loops[l].hot = shortest[kernel.loops[l].gemms] == l;
}

struct Job {
  std::string image;
  int sm = 0;
  std::string file;  // the image, written out for nvdisasm
  std::vector<KernelRecord> kernels;
  bool whole = true;  // all of the image's kernels are wanted
};

// Disassembling everything at once costs gigabytes on the largest libraries, so a job takes at most this many kernels.
constexpr size_t kernels_a_job = 64;

// Functions by name: the job's kernels, or all of its image.
std::map<std::string, Listing> listings_of(const std::string& nvdisasm, const Job& job, bool whole) {
  std::vector<std::string> command{nvdisasm, "-c"};
  if (!whole) {
    std::string symbols;
    for (const KernelRecord& kernel : job.kernels)
      symbols += (symbols.empty() ? "" : ",") + std::to_string(kernel.symbol);
    command.insert(command.end(), {"-fun", symbols});
  }
  command.push_back(job.file);
  const Output output = run(command);
  if (output.status != 0) throw std::runtime_error(job.image + ": nvdisasm: " + std::string(trim(output.err)));
  std::map<std::string, Listing> listings;
  try {
    for (Listing& listing : parse(output.out)) {
      const std::string name = listing.name;
      listings.emplace(name, std::move(listing));
    }
  } catch (const ParseError& error) {
    throw std::runtime_error(job.image + ": nvdisasm's listing: " + error.what());
  }
  return listings;
}

// Whether a listing calls a function of another section, which nvdisasm prints only with the whole image.
bool calls_others(const std::map<std::string, Listing>& listings) {
  for (const auto& [name, listing] : listings)
    for (const Instruction& i : listing.code)
      if (!i.callee.empty() && i.entry < 0 && !listings.contains(i.callee)) return true;
  return false;
}

std::vector<Kernel> disassemble(const std::string& nvdisasm, const Job& job) {
  std::map<std::string, Listing> listings = listings_of(nvdisasm, job, job.whole);
  if (!job.whole && calls_others(listings)) listings = listings_of(nvdisasm, job, true);
  std::vector<Kernel> kernels;
  for (const KernelRecord& record : job.kernels) {
    const auto listing = listings.find(record.name);
    if (listing == listings.end()) throw std::runtime_error(job.image + ": nvdisasm did not print " + record.name);
    kernels.push_back(analyse(record, std::move(listing->second), listings));
    kernels.back().image = job.image;
    kernels.back().sm = job.sm;
  }
  return kernels;
}

std::runtime_error no_hopper(const std::string& path, const std::set<int>& others) {
  std::string found;
  for (int sm : others) found += (found.empty() ? "sm_" : ", sm_") + std::to_string(sm);
  return std::runtime_error(path + ": has code for " + found + ", but none for sm_90, and other code is not supported");
}

std::vector<Job> jobs_of(const std::string& path, const std::string& wanted, const TemporaryFolder& folder) {
  std::vector<Job> jobs;
  std::set<int> others;
  bool hopper = false;
  for (const Image& image : images_of(path)) {
    const Cubin cubin = read_cubin(image.bytes);
    if (cubin.sm != 90) {
      others.insert(cubin.sm);
      continue;
    }
    hopper = true;
    std::vector<KernelRecord> kernels;
    for (const KernelRecord& kernel : cubin.kernels)
      if (matches(wanted, kernel.name, demangle(kernel.name))) kernels.push_back(kernel);
    if (kernels.empty()) continue;
    const std::string file = folder.path() + "/" + std::to_string(jobs.size()) + ".cubin";
    std::ofstream(file, std::ios::binary) << image.bytes;
    for (size_t begin = 0; begin < kernels.size(); begin += kernels_a_job) {
      const size_t end = std::min(begin + kernels_a_job, kernels.size());
      const auto first = kernels.begin() + static_cast<std::ptrdiff_t>(begin),
                 last = kernels.begin() + static_cast<std::ptrdiff_t>(end);
      jobs.push_back({image.name, cubin.sm, file, {first, last}, end - begin == cubin.kernels.size()});
    }
  }
  if (!hopper) throw no_hopper(path, others);
  return jobs;
}

// A listing may have several architectures, one after the other; one that does not say its own is taken as it is.
void refuse_others(const std::string& path, std::vector<Listing>& listings) {
  std::set<int> others;
  std::erase_if(listings, [&](const Listing& listing) {
    const bool other = listing.sm != 0 && listing.sm != 90;
    if (other) others.insert(listing.sm);
    return other;
  });
  if (listings.empty()) throw no_hopper(path, others);
}

bool is_text_listing(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(4096, '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(file.gcount()));
  return start.find('\0') == std::string::npos &&
         (start.find(".text.") != std::string::npos || start.find("Function :") != std::string::npos);
}

}  // namespace

Kernel analyse(const KernelRecord& record, Listing listing, const std::map<std::string, Listing>& others) {
  Kernel kernel;
  kernel.record = record;
  kernel.readable = demangle(record.name);
  Called called = follow_calls(std::move(listing), others);
  kernel.listing = std::move(called.listing);
  kernel.followed = std::move(called.followed);
  kernel.unseen = std::move(called.unseen);
  kernel.cfg = control_flow(kernel.listing);
  find_loops(kernel);
  kernel.protocol = protocol_of(kernel);
  for (WgmmaLoop& loop : kernel.loops) loop.figures = loop_figures(kernel, loop);
  kernel.figures = kernel_figures(kernel);
  for (const std::string& scope : scopes()) kernel.scopes[scope] = scope_figures(kernel, scope);
  return kernel;
}

std::vector<Kernel> kernels_of(const std::string& path, const std::string& wanted) {
  std::vector<Kernel> kernels;
  if (is_text_listing(path)) {
    try {
      std::vector<Listing> listings = parse(read_file(path));
      refuse_others(path, listings);
      std::map<std::string, Listing> called;
      if (std::any_of(listings.begin(), listings.end(), has_calls))
        for (const Listing& listing : listings) called.emplace(listing.name, listing);
      for (Listing& listing : listings) {
        KernelRecord record;
        record.name = listing.name;
        if (matches(wanted, record.name, demangle(record.name)))
          kernels.push_back(analyse(record, std::move(listing), called));
      }
    } catch (const ParseError& error) {
      throw std::runtime_error(path + ": " + error.what());
    }
    return kernels;
  }
  const TemporaryFolder folder;
  const std::vector<Job> jobs = jobs_of(path, wanted, folder);
  if (jobs.empty()) return kernels;
  const std::string nvdisasm = find_tool("nvdisasm");
  std::vector<std::vector<Kernel>> results(jobs.size());
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::string failure;
  const auto work = [&] {
    for (size_t job = next++; job < jobs.size(); job = next++) {
      try {
        results[job] = disassemble(nvdisasm, jobs[job]);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (failure.empty()) failure = error.what();
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 1; t < std::min<size_t>(std::max(1u, std::thread::hardware_concurrency()), jobs.size()); ++t)
    threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (!failure.empty()) throw std::runtime_error(failure);
  for (std::vector<Kernel>& result : results)
    for (Kernel& kernel : result) kernels.push_back(std::move(kernel));
  return kernels;
}

}  // namespace sass
