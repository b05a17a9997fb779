// fa3_append's launch, from what it carries alone.
#pragma once
#include "fa3.h"
#include "params/append_params.h"
#include "table/row.h"

namespace fa3::test {

// The call that the parameter block stands for.
fa3_append_params call_of(const AppendParams& p);

// Does each piece of each head of each row have one thread? As the kernel shares them (ptx/passes/append.cu).
bool is_complete(const AppendParams& p, const PassRow& row, unsigned grid);

}  // namespace fa3::test
