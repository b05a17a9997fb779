#include "places.h"

#include <filesystem>
#include <stdexcept>
#include <vector>

namespace fs = std::filesystem;

namespace sass {
namespace {

fs::path program_folder() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

// Only the program that lies there may look there: an installed one does not read the sources it was made of.
bool in_its_build() {
  std::error_code ignored;
  return fs::equivalent(program_folder(), FA3_BUILD_FOLDER, ignored);
}

std::string first_of(const std::vector<fs::path>& places, const std::string& what) {
  std::error_code ignored;
  std::string message = what + " Looked for:";
  for (const fs::path& place : places) {
    if (fs::exists(place, ignored)) return place.lexically_normal().string();
    message += "\n  " + place.lexically_normal().string();
  }
  throw std::runtime_error(message);
}

}  // namespace

std::string library() {
  const fs::path program = program_folder();
  std::vector<fs::path> places;
  if (in_its_build()) places.push_back(program / "../../src/libfa3.so");
  // This installation's folder first; others are those of Debian and Ubuntu, of Fedora, and plain.
  for (const char* folder : {FA3_LIBDIR, "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib"})
    for (const char* name : {"libfa3.so", FA3_SONAME}) places.push_back(program / ".." / folder / name);
  places.emplace_back("libfa3.so");
  return first_of(places, "no FILE, and no libfa3.so beside this program.");
}

std::string contracts_folder() {
  const fs::path program = program_folder();
  std::vector<fs::path> places;
  if (in_its_build()) places.emplace_back(FA3_CONTRACTS);
  places.push_back(program / "../share/fa3/contracts");
  return first_of(places, "no contracts beside this program; --contracts FOLDER names them.");
}

}  // namespace sass
