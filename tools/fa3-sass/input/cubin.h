// The ELF side of a CUDA image: which kernels it holds and what the compiler recorded about them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sass {

constexpr int hopper = 90;  // sm_90

struct KernelRecord {
  std::string name;
  int symbol = 0;            // index in the symbol table, as nvdisasm -fun wants it
  int registers = 0;         // per thread at launch; setmaxnreg moves them later
  int stack_bytes = 0;       // frame size: spills and local arrays
  int64_t shared_bytes = 0;  // static; dynamic shared memory is a launch parameter
  int max_threads = 0;       // of __launch_bounds__ or .reqntid, 0 if there are none
  int parameter_bytes = 0;   // that a launch passes
  uint64_t code_bytes = 0;
  bool stands_alone = false;  // its code refers to nothing else in the image
  bool has_lines = false;     // the image tells the source's lines
  // What a look at the machine code tells without a disassembler: it has no WGMMAs; and it has no local memory and no
  // setmaxnreg either, and calls nothing but functions behind its own code that have no exponentials (division), so
  // that there is nothing to tell of it but this record.
  bool no_wgmmas = false, plain = false;
  // And it hands nothing over: no mbarrier, no TMA, and no barrier but those of all threads.
  bool hands_nothing_over = false;
};

struct Cubin {
  int sm = 0;           // 90 for sm_90 and sm_90a
  bool linked = false;  // and not an object for the device linker
  std::vector<KernelRecord> kernels;
};

// The number of bytes of the CUDA ELF image (EM_CUDA) that begins at `offset`, or nothing if there is none that is
// whole.
std::optional<size_t> cuda_elf_extent(std::string_view bytes, size_t offset);

// Throws std::runtime_error on a damaged image.
Cubin read_cubin(std::string_view bytes);

}  // namespace sass
