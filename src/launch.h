// The path of fa3_forward after validation.
#pragma once
#include "driver.h"
#include "select.h"

namespace fa3 {

fa3_status launch(const Problem& problem, const Selection& selection, void* workspace, size_t workspace_bytes,
                  CUstream stream);

}  // namespace fa3
