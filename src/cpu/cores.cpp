#include "cpu/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>

namespace fa3 {
namespace {

constexpr int unlimited = INT_MAX;

int affinity() {
  cpu_set_t sets[64];  // 65536 CPUs: the kernel refuses a mask smaller than its own
  if (sched_getaffinity(0, sizeof sets, sets) == 0) return std::max(1, CPU_COUNT_S(sizeof sets, sets));
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

// Reads up to two numbers from the start of a file; returns how many there were.
int read_numbers(const char* folder, const char* name, long long& first, long long& second) {
  char path[PATH_MAX];
  if (std::snprintf(path, sizeof path, "%s/%s", folder, name) >= static_cast<int>(sizeof path)) return 0;
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return 0;
  const int count = std::fscanf(file, "%lld %lld", &first, &second);
  std::fclose(file);
  return std::max(0, count);
}

// The quota of one control group: time on all CPUs per period. Version 2 has both in one file, and "max" for no quota;
// version 1 has a file for each, and -1 for no quota.
int quota(const char* folder) {
  long long time, period, none;
  if (read_numbers(folder, "cpu.max", time, period) != 2 &&
      (read_numbers(folder, "cpu.cfs_quota_us", time, none) != 1 ||
       read_numbers(folder, "cpu.cfs_period_us", period, none) != 1))
    return unlimited;
  if (time <= 0 || period <= 0) return unlimited;
  return static_cast<int>(std::min<long long>((time - 1) / period + 1, unlimited));
}

// The smallest quota of a control group and those above it. Inside a container /proc may tell the path that the group
// has outside, of which only the top is to be found here: it is the container's own group.
int smallest_quota(const char* mount, char* group) {
  int cores = unlimited;
  for (;;) {
    char folder[PATH_MAX];
    if (std::snprintf(folder, sizeof folder, "%s%s", mount, group) < static_cast<int>(sizeof folder))
      cores = std::min(cores, quota(folder));
    char* last = std::strrchr(group, '/');
    if (last == nullptr) return cores;
    *last = '\0';
  }
}

bool contains_cpu(char* controllers) {
  char* rest;
  for (char* name = strtok_r(controllers, ",", &rest); name; name = strtok_r(nullptr, ",", &rest))
    if (std::strcmp(name, "cpu") == 0) return true;
  return false;
}

// Each line of the file is "number:controllers:group"; version 2 has the number 0 and no controllers.
int all_quotas(const char* root) {
  char path[PATH_MAX], mount[PATH_MAX], line[PATH_MAX];
  if (std::snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= static_cast<int>(sizeof path)) return unlimited;
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return unlimited;
  int cores = unlimited;
  while (std::fgets(line, sizeof line, file)) {
    line[std::strcspn(line, "\n")] = '\0';
    char* controllers = std::strchr(line, ':');
    char* group = controllers ? std::strchr(controllers + 1, ':') : nullptr;
    if (group == nullptr) continue;
    *controllers++ = *group++ = '\0';
    const bool version2 = *controllers == '\0';
    if (!version2 && !contains_cpu(controllers)) continue;
    if (std::snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, version2 ? "" : "/cpu") <
        static_cast<int>(sizeof mount))
      cores = std::min(cores, smallest_quota(mount, group));
  }
  std::fclose(file);
  return cores;
}

}  // namespace

int usable_cores(const char* root) { return std::min(affinity(), all_quotas(root)); }

}  // namespace fa3
