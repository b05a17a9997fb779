#include "device/enqueue.h"

namespace fa3 {

fa3_status enqueue(const Driver& driver, const Row& row, CUfunction function, int64_t thread_blocks, void* params,
                   bool early, CUstream stream) {
  CUlaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (early) {
    CUlaunchAttribute& overlap = attributes[count++];
    overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    overlap.value.programmaticStreamSerializationAllowed = 1;
  }
  if (row.cluster_blocks > 1) {
    CUlaunchAttribute& cluster = attributes[count++];
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim = {static_cast<unsigned>(row.cluster_blocks), 1, 1};
  }
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(thread_blocks), config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(row.threads), config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(row.smem_bytes);
  config.hStream = stream;
  config.attrs = attributes, config.numAttrs = count;
  void* arguments[] = {params};
  if (CUresult result = driver.launch_kernel_ex(&config, function, arguments, nullptr))
    return cuda_error(driver, result, "cuLaunchKernelEx");
  return FA3_OK;
}

}  // namespace fa3
