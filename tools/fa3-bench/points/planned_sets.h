// Sets of planned calls: what servers and training on packed documents ask for. tests/records/*/serving.csv has them
// beside peers, by the kind and name of each point.
#pragma once
#include <vector>

#include "points/point.h"

namespace fa3::bench {

std::vector<Point> planned_decoding();  // caches in pages, with windows, sinks, latent caches and caches of e4m3
std::vector<Point> planned_prefill();   // chunks of prompts behind what lies in the cache
std::vector<Point> planned_mixed();     // both in one call
std::vector<Point> packed_documents();
std::vector<Point> masked_and_capped();  // windows, sinks, softcap, ALiBi

}  // namespace fa3::bench
