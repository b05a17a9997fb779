#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "input/disassembler.h"
#include "system/process.h"
#include "system/text.h"
#include "system/tidy.h"

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;

namespace {

class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    const char* old = std::getenv(name);
    had_ = old != nullptr;
    if (old) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    if (had_) setenv(name_, old_.c_str(), 1);
    else unsetenv(name_);
  }

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

void executable(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "#!/bin/sh\n";
  chmod(path.c_str(), 0755);
}

}  // namespace

TEST_CASE("no disassembler: the message says what, how to get it, and where it was looked for") {
  CHECK_THROWS_WITH(sass::find_tool("nvdisasm", {"/here/bin", "/there/bin"}),
                    ContainsSubstring("no nvdisasm found") && ContainsSubstring("pip install nvidia-cuda-nvdisasm") &&
                        ContainsSubstring("CUDA_HOME") && ContainsSubstring("PATH") &&
                        ContainsSubstring("\n  /here/bin\n  /there/bin"));
  CHECK_THROWS_WITH(sass::find_tool("cuobjdump", {}), ContainsSubstring("pip install nvidia-cuda-cuobjdump"));
}

TEST_CASE("the disassembler is found on PATH, in CUDA_HOME, and in pip's wheels, in this order") {
  const sass::TemporaryFolder folder;
  const fs::path root = folder.path();
  executable(root / "path/nvdisasm");
  executable(root / "home/bin/nvdisasm");
  executable(root / "venv/bin/python3");
  executable(root / "venv/lib/python3.11/site-packages/nvidia/cu13/bin/nvdisasm");
  executable(root / "venv/lib/python3.11/site-packages/nvidia/cu13/bin/only_in_the_wheel");
  {
    const Environment path("PATH", (root / "path").string() + ":" + (root / "venv/bin").string());
    const Environment home("CUDA_HOME", (root / "home").string());
    CHECK(sass::find_tool("nvdisasm") == (root / "path/nvdisasm").string());
    CHECK(sass::find_tool("only_in_the_wheel") ==
          (root / "venv/lib/python3.11/site-packages/nvidia/cu13/bin/only_in_the_wheel").string());
  }
  {
    const Environment path("PATH", (root / "venv/bin").string());
    const Environment home("CUDA_HOME", (root / "home").string());
    CHECK(sass::find_tool("nvdisasm") == (root / "home/bin/nvdisasm").string());
  }
  {
    const Environment path("PATH", "");
    const Environment active("VIRTUAL_ENV", (root / "venv").string());
    CHECK(sass::find_tool("only_in_the_wheel") ==
          (root / "venv/lib/python3.11/site-packages/nvidia/cu13/bin/only_in_the_wheel").string());
  }
  fs::permissions(root / "path/nvdisasm", fs::perms::owner_read);  // there, but cannot be run by others than root
  CHECK_THROWS(sass::find_tool("nvdisasm", {(root / "nowhere").string()}));
}

TEST_CASE("programs are run without a shell") {
  const sass::Output output = sass::run({"sh", "-c", "echo out; echo err >&2; exit 3"});
  CHECK(output.status == 3);
  CHECK(output.out == "out\n");
  CHECK(output.err == "err\n");
  CHECK(sass::run({"echo", "$HOME; *"}).out == "$HOME; *\n");
  CHECK(sass::run({"sh", "-c", "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2"}).out.size() == 3000000);
  CHECK(sass::run({"sh", "-c", "kill -9 $$"}).status == 128 + 9);
  CHECK_THROWS_WITH(sass::run({"/no/such/program"}), ContainsSubstring("cannot be started"));
}

TEST_CASE("patterns and names") {
  CHECK(sass::glob("fa3_*_d64_*", "fa3_fwd_bf16_d64_full"));
  CHECK(sass::glob("*", ""));
  CHECK(sass::glob("a?c*", "abcd"));
  CHECK_FALSE(sass::glob("a?c", "abcd"));
  CHECK_FALSE(sass::glob("fa3_*_d128_*", "fa3_fwd_bf16_d64_full"));
  CHECK_FALSE(sass::glob("*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
  CHECK(sass::matches("d64", "fa3_fwd_bf16_d64_full", ""));
  CHECK(sass::matches("flash::*", "_Z1", "flash::f()"));
  CHECK_FALSE(sass::matches("d6?", "fa3_fwd_bf16_d64_full", ""));
  CHECK(sass::demangle("_ZN5flash1fEv") == "flash::f()");
  CHECK(sass::demangle("miniature") == "miniature");
  CHECK(sass::number(1) == "1");
  CHECK(sass::number(0.25) == "0.25");
  CHECK(sass::number(2.0 / 3) == "0.667");
}
