// A change of good parameters of fa3_forward.
#pragma once
#include "refused.h"

namespace fa3::test {

using P = fa3_forward_params;
using Change = ChangeOf<P>;

}  // namespace fa3::test
