// The SM clock of device 0, read through NVIDIA's management library where it is installed.
#pragma once

namespace fa3::bench {

class Nvml {
 public:
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  double sm_clock_mhz() const;  // 0 if it cannot be read

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace fa3::bench
