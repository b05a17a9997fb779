// Forward parameters as the host lays them out, against the type that each row's kernel takes.
#include <catch2/catch_test_macros.hpp>
#include <type_traits>
#include <utility>

#include "params/params.h"

namespace fa3::test {
namespace {

template <class Block, class All>
size_t begin_in(const All& all) {
  if constexpr (std::is_base_of_v<Block, All>)
    return size_t(reinterpret_cast<const char*>(&static_cast<const Block&>(all)) - reinterpret_cast<const char*>(&all));
  else return 0;
}

template <ForwardBlocks taken>
bool is_laid_out() {
  const ForwardParamsWith<taken> all{};
  const ForwardLayout layout(taken);
  return sizeof all == layout.bytes && layout.bytes <= 4096 && begin_in<ScaleBlock>(all) == layout.scales &&
         begin_in<TransformBlock>(all) == layout.transforms && begin_in<QvBlock>(all) == layout.qv &&
         begin_in<LatentScaleBlock>(all) == layout.latent_scales && begin_in<PlannedForwardParams>(all) == 0 &&
         begin_in<ListedForwardParams>(all) == 0;
}

}  // namespace

TEST_CASE("blocks of forward parameters begin where each row's kernel has them", "[params]") {
  [&]<size_t... i>(std::index_sequence<i...>) {
    const bool laid_out[] = {is_laid_out<blocks_of(forward_rows[i])>()...};
    for (size_t n = 0; n < forward_rows.size(); ++n) {
      INFO(forward_rows[n].name);
      CHECK(laid_out[n]);
    }
  }(std::make_index_sequence<forward_rows.size()>());
}

}  // namespace fa3::test
