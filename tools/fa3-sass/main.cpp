#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include "reports.h"
#include "text.h"

namespace fs = std::filesystem;

namespace {

constexpr const char* usage =
    R"(usage: fa3-sass VERB [FILE] [KERNEL] [OPTION...]

FILE is a shared library, executable, object, fat binary or cubin with sm_90 code, or nvdisasm's text; without one, the
libfa3.so beside this program is read. KERNEL is a name, part of a name, or a pattern with * and ?.

  list [FILE] [KERNEL]         registers, shared memory, spills, setmaxnreg, WGMMAs and loops of each kernel   (--json)
  show [FILE] KERNEL           the main loops, annotated   (--brief: arithmetic summed up; --all: boundary loops too)
)";

struct Arguments {
  std::string verb;
  std::vector<std::string> files, words;  // words are what is not a file
  std::vector<std::string> flags;
  bool has(const std::string& flag) const {
    for (const std::string& given : flags)
      if (given == flag) return true;
    return false;
  }
};

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Arguments read_arguments(int count, char** values) {
  Arguments arguments;
  if (count < 2) throw UsageError("no verb");
  arguments.verb = values[1];
  for (int i = 2; i < count; ++i) {
    const std::string word = values[i];
    if (word.rfind("--", 0) == 0) arguments.flags.push_back(word);
    else if (fs::is_regular_file(word)) arguments.files.push_back(word);
    else if (word.find('/') != std::string::npos) throw std::runtime_error(word + ": no such file");
    else arguments.words.push_back(word);
  }
  return arguments;
}

std::string library() {
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& candidate : {here / "../../src/libfa3.so", here / "../lib/libfa3.so", fs::path("libfa3.so")})
    if (fs::exists(candidate, ignored)) return candidate.lexically_normal().string();
  throw UsageError("no FILE, and no libfa3.so beside this program");
}

std::vector<sass::Kernel> wanted_kernels(const Arguments& arguments) {
  const std::string file = arguments.files.empty() ? library() : arguments.files[0];
  const std::string wanted = arguments.words.empty() ? "" : arguments.words[0];
  std::vector<sass::Kernel> kernels = sass::kernels_of(file, wanted);
  if (kernels.empty()) throw std::runtime_error(file + ": no kernel matches \"" + wanted + "\"");
  return kernels;
}

int run_verb(const Arguments& arguments, const sass::Colours& colours) {
  if (arguments.verb == "list") {
    const auto kernels = wanted_kernels(arguments);
    std::cout << (arguments.has("--json") ? sass::list_json(kernels) : sass::list_text(kernels, colours));
    return 0;
  }
  if (arguments.verb == "show") {
    for (const sass::Kernel& kernel : wanted_kernels(arguments))
      std::cout << sass::show_text(kernel, {arguments.has("--brief"), arguments.has("--all")}, colours) << "\n";
    return 0;
  }
  throw UsageError("unknown verb " + arguments.verb);
}

}  // namespace

int main(int count, char** values) {
  const sass::Colours colours{isatty(1) && !std::getenv("NO_COLOR")};
  try {
    return run_verb(read_arguments(count, values), colours);
  } catch (const UsageError& error) {
    std::cerr << "fa3-sass: " << error.what() << "\n" << usage;
  } catch (const std::exception& error) {
    std::cerr << "fa3-sass: " << error.what() << "\n";
  }
  return 2;
}
