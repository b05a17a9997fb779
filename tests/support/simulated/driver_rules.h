// What the real driver refuses (cuda.h says so), for the drivers that stand in for it.
#pragma once
#include <cuda.h>

#include <cstdint>

namespace fa3::test {

constexpr unsigned most_shared_memory = 227 * 1024, shared_memory_without_asking = 48 * 1024;

// For the only maps that the library makes: of 16-bit elements or bytes, with swizzles that the kernels know.
inline CUresult check_tensor_map(const CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, const void* data,
                                 const cuuint64_t* dim, const cuuint64_t* stride, const cuuint32_t* box,
                                 const cuuint32_t* element_stride, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle) {
  const auto aligned = [](const void* to, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(to) % bytes == 0; };
  const bool bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const cuuint64_t element_bytes = bytes ? 1 : 2;
  const cuuint64_t most_inner_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                                      : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                                             : 256 * element_bytes;
  bool legal = bytes || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  legal = legal && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
  legal = legal && (swizzle == CU_TENSOR_MAP_SWIZZLE_128B || swizzle == CU_TENSOR_MAP_SWIZZLE_64B ||
                    swizzle == CU_TENSOR_MAP_SWIZZLE_NONE);
  legal = legal && rank >= 1 && rank <= 5 && aligned(map, 64) && data && aligned(data, 16);
  for (cuuint32_t i = 0; legal && i < rank; ++i) {
    legal = dim[i] >= 1 && dim[i] <= cuuint64_t{1} << 31 && box[i] >= 1 && box[i] <= 256;
    legal = legal && element_stride[i] >= 1 && element_stride[i] <= 8;
    if (i > 0) legal = legal && stride[i - 1] % 16 == 0 && stride[i - 1] < cuuint64_t{1} << 40;
  }
  legal = legal && reinterpret_cast<uintptr_t>(data) >> 48 == 0;
  legal = legal && box[0] * element_bytes % 16 == 0 && box[0] * element_bytes <= most_inner_bytes;
  return legal ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// `asked`: the function's CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
inline CUresult check_launch(const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared, unsigned asked) {
  constexpr unsigned most_blocks[3] = {INT32_MAX, 65535, 65535}, most_threads[3] = {1024, 1024, 64};
  for (int i = 0; i < 3; ++i)
    if (grid[i] < 1 || grid[i] > most_blocks[i] || block[i] < 1 || block[i] > most_threads[i])
      return CUDA_ERROR_INVALID_VALUE;
  if (block[0] * block[1] * block[2] > 1024) return CUDA_ERROR_INVALID_VALUE;
  if (shared > shared_memory_without_asking && shared > asked) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

// Only these attributes are known here: the launch may start while the one before it ends, and the size of its
// clusters, of which the grid is a multiple.
inline CUresult check_attributes(const CUlaunchConfig& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    const auto& cluster = attribute.value.clusterDim;
    const bool legal = attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
                           ? cluster.x >= 1 && cluster.x <= 8 && cluster.y == 1 && cluster.z == 1 &&
                                 config.gridDimX % cluster.x == 0
                           : attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
                                 attribute.value.programmaticStreamSerializationAllowed == 1;
    if (!legal) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
inline const CUlaunchAttribute* attribute_of(const CUlaunchConfig& config, CUlaunchAttributeID id) {
  for (unsigned i = 0; i < config.numAttrs; ++i)
    if (config.attrs[i].id == id) return &config.attrs[i];
  return nullptr;
}

}  // namespace fa3::test
