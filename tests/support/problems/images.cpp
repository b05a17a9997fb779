#include "images.h"

#include <cstring>
#include <utility>

#include "half.h"
#include "random.h"

namespace fa3::test {

using tools::Layout;

namespace {

void fill_poison(Image& image, int element) {
  const uint32_t pattern = element == 4 ? poison32 : element == 2 ? poison16 * 0x10001u : poison8 * 0x1010101u;
  for (size_t i = 0; i + 4 <= image.size(); i += 4) std::memcpy(image.data() + i, &pattern, 4);
}

template <class T>
std::string check(const Image& image, const View& view, const std::vector<char>& written, const char* name, T poison) {
  const int64_t first = view.first / int64_t(sizeof(T));
  const T* data = reinterpret_cast<const T*>(image.data());
  for (size_t i = 0; i < written.size(); ++i) {
    if (bool(written[i]) == (data[i] != poison)) continue;
    return std::string(name) + ": element " + std::to_string(int64_t(i) - first) +
           (written[i] ? " was not written" : " does not belong to a row of the call and was overwritten");
  }
  return "";
}

}  // namespace

float View::read(const std::vector<Image>& images, int64_t position) const {
  return tools::read_element(data<std::byte>(images), position, dtype);
}

void View::write(std::vector<Image>& images, int64_t position, float value) const {
  tools::write_element(data<std::byte>(images), position, value, dtype);
}

void View::write_row(std::vector<Image>& images, int64_t position, const std::vector<float>& row, float scale) const {
  const auto write_all = [&](auto* to, auto convert) {
    for (size_t c = 0; c < row.size(); ++c) to[size_t(position) + c] = convert(row[c] / scale);
  };
  if (dtype == FA3_DTYPE_E4M3) return write_all(data<uint8_t>(images), tools::to_e4m3);
  if (dtype == FA3_DTYPE_FP32) return write_all(data<float>(images), [](float x) { return x; });
  if (dtype == FA3_DTYPE_BF16) return write_all(data<uint16_t>(images), tools::to_bf16);
  write_all(data<uint16_t>(images), tools::to_fp16);
}

void View::write_poison(std::vector<Image>& images, int64_t position) const {
  switch (tools::element_bytes(dtype)) {
    case 4: data<uint32_t>(images)[position] = poison32; break;
    case 2: data<uint16_t>(images)[position] = poison16; break;
    default: data<uint8_t>(images)[position] = poison8;
  }
}
bool View::is_poison(const std::vector<Image>& images, int64_t position) const {
  if (dtype == FA3_DTYPE_FP32) return data<uint32_t>(images)[position] == poison32;
  return data<uint16_t>(images)[position] == poison16;
}

Layout lay_out(const Storage& s, fa3_dtype dtype, int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) {
  constexpr int orders[4][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {1, 0, 2, 3}, {2, 0, 1, 3}};
  const int64_t extra[4] = {s.pad_b, s.pad_s, s.pad_h, 16 / tools::element_bytes(dtype) * s.pad_d};
  const int* order = orders[s.order];
  // Padding is given in entries of its dimension: the storage is that of the enlarged dims.
  const std::vector<int64_t> large = {batch + extra[0], seqlen + extra[1], heads + extra[2], head_dim + extra[3]};
  Layout layout = Layout::make(large, {order[0], order[1], order[2], order[3]});
  layout.dim = {batch, seqlen, heads, head_dim};
  if (s.share_batch) layout.stride[0] = 0;
  if (s.share_heads) layout.stride[2] = 0;
  return layout;
}

Layout lay_out_lse(const Storage& s, int64_t batch, int64_t heads, int64_t seqlen) {
  Layout layout = lay_out(s, FA3_DTYPE_FP32, batch, seqlen, heads, 1);
  layout.dim = {batch, heads, seqlen};
  layout.stride = {layout.stride[0], layout.stride[2], layout.stride[1]};
  return layout;
}

int add_image(std::vector<Image>& images, int64_t elements, int element, int64_t shift, int64_t guard) {
  const int64_t bytes = 2 * guard + shift + elements * element;
  images.emplace_back(size_t((bytes + 3) / 4 * 4));
  fill_poison(images.back(), element);
  return int(images.size()) - 1;
}

View add_view(std::vector<Image>& images, const Layout& layout, fa3_dtype dtype, int64_t shift, int64_t guard) {
  return {layout, add_image(images, layout.extent(), tools::element_bytes(dtype), shift, guard), guard + shift, dtype};
}

void fill_normal(std::vector<Image>& images, const View& view, uint64_t seed, float factor) {
  uint64_t n = 0;
  view.layout.for_each([&](int64_t at) {
    float value;
    tools::normal(seed, n++, &value, 1);
    view.write(images, at, value * factor);
  });
}

std::vector<char> elements_of(const std::vector<Image>& images, const View& view) {
  const int64_t width = tools::element_bytes(view.dtype), first = view.first / width;
  std::vector<char> flags(images[size_t(view.image)].size() / size_t(width));
  view.layout.for_each([&](int64_t position) { flags[size_t(first + position)] = true; });
  return flags;
}

std::string check_poison(const std::vector<Image>& images, const View& view, const std::vector<char>& written,
                         const char* name) {
  const Image& image = images[size_t(view.image)];
  switch (tools::element_bytes(view.dtype)) {
    case 4: return check<uint32_t>(image, view, written, name, poison32);
    case 2: return check<uint16_t>(image, view, written, name, poison16);
    default: return check<uint8_t>(image, view, written, name, poison8);
  }
}

}  // namespace fa3::test
