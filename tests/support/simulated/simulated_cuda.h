// Faults that the simulated driver's kernels can have, to see that they are found.
#pragma once

namespace fa3::test {

enum class Fault { none, nothing_done, before_workspace, behind_workspace, last_bit_of_o, last_bit_of_lse };

// The launch after so many others has this fault, all others have none. Passes do not count, but for those that
// combine and append; of these faults they and the backward kernels only have the one that nothing is done.
[[gnu::visibility("default")]] void simulate(Fault fault, int after_launches);

}  // namespace fa3::test
