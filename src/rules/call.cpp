#include "rules/call.h"

#include <cstring>
#include <type_traits>

#include "error.h"
#include "rules/overlap.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

// No struct of any version comes near this; a larger struct_size is uninitialised memory, not worth reading.
constexpr size_t max_struct_size = 4096;

// struct_size tells which fields a struct has only if none was ever put into padding, so there is none.
static_assert(std::has_unique_object_representations_v<fa3_tensor>);
static_assert(std::has_unique_object_representations_v<fa3_kernel_info>);

}  // namespace

Status check_struct_size(const char* name, const void* data, size_t minimum, size_t known, size_t& size) {
  if (data == nullptr) return fail(invalid, "%s is NULL", name);
  std::memcpy(&size, data, sizeof size);
  if (size < minimum || size > max_struct_size)
    return fail(invalid, "%s->struct_size is %zu, must be the size of the struct, %zu in this version", name, size,
                known);
  for (size_t i = known; i < size; ++i)
    if (static_cast<const unsigned char*>(data)[i] != 0)
      return fail(invalid, "%s->struct_size is %zu, and byte %zu is set: a field that this version does not know", name,
                  size, i);
  return FA3_OK;
}

Status check_overlap(const NamedView* tensors, size_t count, size_t outputs) {
  for (size_t i = 0; i < outputs; ++i)
    for (size_t j = i + 1; j < count; ++j)
      if (const NamedView &a = tensors[i], &b = tensors[j]; may_overlap(*a.view, *b.view))
        return fail(invalid, "%s may overlap %s: %s.data is %p, %s.data is %p", a.name, b.name, a.name, a.view->data,
                    b.name, b.view->data);
  return FA3_OK;
}

Status check_workspace(void* workspace, size_t bytes, size_t needed, const NamedView* tensors, size_t count,
                       const char* name) {
  if (workspace == nullptr)
    return fail(invalid, "%s is NULL, must be %zu bytes of device memory", name, needed);
  if (reinterpret_cast<uintptr_t>(workspace) % 16 != 0)
    return fail(invalid, "%s is %p, must be aligned to 16 bytes", name, workspace);
  if (bytes < needed)
    return fail(FA3_ERROR_WORKSPACE_TOO_SMALL, "%s_bytes is %zu, must be at least %zu", name, bytes, needed);
  const View view{workspace, FA3_DTYPE_FP32, {1, 1, 1, static_cast<int64_t>((needed + 3) / 4)}, {0, 0, 0, 1}};
  if (Extent extent; !extent_of(view, extent))
    return fail(invalid, "%s reaches beyond the address space from %p", name, workspace);
  for (size_t i = 0; i < count; ++i)
    if (may_overlap(view, *tensors[i].view))
      return fail(invalid, "%s may overlap %s: %s is %p and needs %zu bytes, %s.data is %p", name, tensors[i].name,
                  name, workspace, needed, tensors[i].name, tensors[i].view->data);
  return FA3_OK;
}

// The caller's text may be anything: the message shows its beginning, on one line, and reads no more than it shows.
Status unknown_kernel(const char* name) {
  char shown[64];  // names are shorter: they fit fa3_kernel_info.name
  size_t length = 0;
  for (; length < sizeof shown - 1 && name[length] != '\0'; ++length)
    shown[length] = name[length] >= ' ' && name[length] <= '~' ? name[length] : '?';
  shown[length] = '\0';
  return fail(FA3_ERROR_UNSUPPORTED,
              "params->kernel is \"%s%s\", no kernel of this build (fa3_kernel_info_at names those; the paper's "
              "algorithms need one with -Dpaper=true)",
              shown, length < sizeof shown - 1 ? "" : "...");
}

}  // namespace fa3
