#include "inflate.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

namespace sass {

void inflate(std::string_view stream, const std::function<void(std::string_view)>& use) {
  z_stream state{};
  if (inflateInit2(&state, -MAX_WBITS) != Z_OK) throw std::bad_alloc();  // no header: as in zip files
  std::vector<char> piece(1 << 18);
  int status = Z_OK;
  try {
    while (status == Z_OK) {
      if (state.avail_in == 0) {
        const size_t next = std::min<size_t>(stream.size(), std::numeric_limits<uInt>::max());
        state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stream.data()));
        state.avail_in = static_cast<uInt>(next);
        stream.remove_prefix(next);
      }
      state.next_out = reinterpret_cast<Bytef*>(piece.data());
      state.avail_out = static_cast<uInt>(piece.size());
      status = ::inflate(&state, Z_NO_FLUSH);
      use({piece.data(), piece.size() - state.avail_out});
    }
  } catch (...) {
    inflateEnd(&state);
    throw;
  }
  inflateEnd(&state);
  if (status != Z_STREAM_END) throw std::runtime_error("the compressed data are damaged or cut off");
}

}  // namespace sass
