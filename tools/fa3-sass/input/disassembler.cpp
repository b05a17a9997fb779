#include "disassembler.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "../system/text.h"

namespace fs = std::filesystem;

namespace sass {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// <prefix>/lib/python3.x/site-packages/nvidia/<cu13 or a wheel's own folder>/bin
void add_wheels(const fs::path& prefix, std::vector<std::string>& folders) {
  std::error_code ignored;
  for (const char* library : {"lib", "lib64", "local/lib"})
    for (const auto& python : fs::directory_iterator(prefix / library, ignored)) {
      if (python.path().filename().string().rfind("python3", 0) != 0) continue;
      for (const char* packages : {"site-packages", "dist-packages"})
        for (const auto& wheel : fs::directory_iterator(python.path() / packages / "nvidia", ignored))
          if (fs::is_directory(wheel.path() / "bin", ignored)) folders.push_back((wheel.path() / "bin").string());
    }
}

void add_toolchains_above(fs::path folder, std::vector<std::string>& folders) {
  for (; !folder.empty(); folder = folder.parent_path()) {
    add_wheels(folder / ".toolchain", folders);
    if (folder == folder.parent_path()) return;
  }
}

}  // namespace

std::vector<std::string> tool_folders() {
  std::vector<std::string> folders;
  const std::string path = variable("PATH");
  for (std::string_view folder : split(path, ':'))
    if (!folder.empty()) folders.emplace_back(folder);
  const size_t on_path = folders.size();
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const std::string home = variable(name); !home.empty()) folders.push_back(home + "/bin");
  folders.push_back("/usr/local/cuda/bin");
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  add_wheels(program.parent_path(), folders);
  if (const std::string active = variable("VIRTUAL_ENV"); !active.empty()) add_wheels(active, folders);
  for (size_t i = 0; i < on_path; ++i)
    if (fs::exists(fs::path(folders[i]) / "python3", ignored)) add_wheels(fs::path(folders[i]).parent_path(), folders);
  if (const std::string home = variable("HOME"); !home.empty()) add_wheels(fs::path(home) / ".local", folders);
  add_toolchains_above(fs::current_path(ignored), folders);
  add_toolchains_above(program, folders);
  if (*FA3_CUDA) folders.push_back(FA3_CUDA "/bin");
  std::vector<std::string> unique;
  for (const std::string& folder : folders)
    if (std::find(unique.begin(), unique.end(), folder) == unique.end()) unique.push_back(folder);
  return unique;
}

std::string find_tool(const std::string& tool, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    const std::string candidate = folder + "/" + tool;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  std::string message = "no " + tool +
                        " found; fa3-sass reads machine code through it.\n"
                        "Install it with `pip install nvidia-cuda-" +
                        tool +
                        "`, or run this project's tools/setup, or put a "
                        "CUDA toolkit on PATH or into CUDA_HOME.\nLooked in:";
  for (const std::string& folder : folders) message += "\n  " + folder;
  throw std::runtime_error(message);
}

}  // namespace sass
