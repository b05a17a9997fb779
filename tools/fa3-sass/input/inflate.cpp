#include "inflate.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace sass {
namespace {

constexpr int longest_code = 15;
constexpr size_t window = 32768, piece = 1 << 20;

[[noreturn]] void fail() { throw std::runtime_error("the compressed data are damaged or cut off"); }

class Bits {
 public:
  explicit Bits(std::string_view stream) : stream_(stream) {}

  // Up to 16 of the next bits, with zeros behind the stream's end; taken only by skip().
  uint32_t peek(int count) {
    while (held_ < count) {
      const uint32_t byte = at_ < stream_.size() ? static_cast<unsigned char>(stream_[at_]) : 0;
      ++at_;
      bits_ |= static_cast<uint64_t>(byte) << held_;
      held_ += 8;
    }
    return static_cast<uint32_t>(bits_ & ((uint64_t{1} << count) - 1));
  }
  void skip(int count) {
    bits_ >>= count;
    held_ -= count;
    if (at_ > stream_.size() + static_cast<size_t>(held_ / 8)) fail();
  }
  uint32_t take(int count) {
    const uint32_t value = peek(count);
    skip(count);
    return value;
  }
  std::string_view bytes(size_t count) {  // from the next whole byte on
    skip(held_ % 8);
    at_ -= static_cast<size_t>(held_ / 8);
    bits_ = 0;
    held_ = 0;
    if (at_ > stream_.size() || stream_.size() - at_ < count) fail();
    at_ += count;
    return stream_.substr(at_ - count, count);
  }

 private:
  std::string_view stream_;
  size_t at_ = 0;
  uint64_t bits_ = 0;
  int held_ = 0;
};

// A Huffman code as a table of all that the next 15 bits may be.
class Code {
 public:
  explicit Code(const std::vector<uint8_t>& lengths) : table_(size_t{1} << longest_code) {
    std::array<uint32_t, longest_code + 2> next{};
    for (const uint8_t length : lengths) ++next[length + 1u];
    next[1] = 0;  // symbols without a code
    uint32_t code = 0;
    for (size_t length = 1; length <= longest_code; ++length) {
      const uint32_t count = next[length + 1];
      next[length] = code;
      code = (code + count) << 1;
      if (code > uint32_t{2} << length) fail();  // more codes than there can be
    }
    for (size_t symbol = 0; symbol < lengths.size(); ++symbol) {
      const int length = lengths[symbol];
      if (length == 0) continue;
      uint32_t reversed = 0;
      const uint32_t mine = next[static_cast<size_t>(length)]++;
      for (int bit = 0; bit < length; ++bit) reversed |= (mine >> bit & 1) << (length - 1 - bit);
      for (size_t i = reversed; i < table_.size(); i += size_t{1} << length)
        table_[i] = {static_cast<uint16_t>(symbol), static_cast<uint8_t>(length)};
    }
  }
  uint32_t read(Bits& bits) const {
    const Entry entry = table_[bits.peek(longest_code)];
    if (entry.length == 0) fail();
    bits.skip(entry.length);
    return entry.symbol;
  }

 private:
  struct Entry {
    uint16_t symbol = 0;
    uint8_t length = 0;
  };
  std::vector<Entry> table_;
};

constexpr uint16_t length_base[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                    31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr uint8_t length_bits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                   2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr uint16_t distance_base[] = {1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129,
                                      193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193,
                                      12289, 16385, 24577};

std::vector<uint8_t> fixed_lengths() {
  std::vector<uint8_t> lengths(288, 8);
  for (size_t i = 144; i < 256; ++i) lengths[i] = 9;
  for (size_t i = 256; i < 280; ++i) lengths[i] = 7;
  return lengths;
}

class Inflater {
 public:
  Inflater(std::string_view stream, const std::function<void(std::string_view)>& use) : bits_(stream), use_(use) {}

  void run() {
    for (bool last = false; !last;) {
      last = bits_.take(1);
      switch (bits_.take(2)) {
        case 0: stored(); break;
        case 1: block(Code(fixed_lengths()), Code(std::vector<uint8_t>(30, 5))); break;
        case 2: own_codes(); break;
        default: fail();
      }
    }
    hand_over(0);
  }

 private:
  void stored() {
    const std::string_view sizes = bits_.bytes(4);
    const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(sizes[i])); };
    const uint32_t size = byte(0) | byte(1) << 8;
    if ((size ^ 0xffff) != (byte(2) | byte(3) << 8)) fail();
    text_ += bits_.bytes(size);
    if (text_.size() > piece) hand_over(window);
  }

  void own_codes() {
    static constexpr uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    const size_t literals = bits_.take(5) + 257, distances = bits_.take(5) + 1, count = bits_.take(4) + 4;
    std::vector<uint8_t> of_lengths(19), lengths;
    for (size_t i = 0; i < count; ++i) of_lengths[order[i]] = static_cast<uint8_t>(bits_.take(3));
    const Code code(of_lengths);
    while (lengths.size() < literals + distances) {
      const uint32_t symbol = code.read(bits_);
      if (symbol < 16) {
        lengths.push_back(static_cast<uint8_t>(symbol));
      } else {
        if (symbol == 16 && lengths.empty()) fail();
        const uint8_t repeated = symbol == 16 ? lengths.back() : 0;
        lengths.insert(lengths.end(), symbol == 18 ? bits_.take(7) + 11 : bits_.take(symbol == 16 ? 2 : 3) + 3,
                       repeated);
      }
    }
    if (lengths.size() > literals + distances) fail();
    const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(literals);
    block(Code({lengths.begin(), middle}), Code({middle, lengths.end()}));
  }

  void block(const Code& literals, const Code& distances) {
    for (;;) {
      const uint32_t symbol = literals.read(bits_);
      if (symbol == 256) return;
      if (symbol < 256) {
        text_ += static_cast<char>(symbol);
      } else {
        if (symbol - 257 >= std::size(length_base)) fail();
        const size_t length = length_base[symbol - 257] + bits_.take(length_bits[symbol - 257]);
        const uint32_t place = distances.read(bits_);
        if (place >= std::size(distance_base)) fail();
        const size_t distance = distance_base[place] + bits_.take(place < 2 ? 0 : static_cast<int>(place / 2 - 1));
        if (distance > text_.size()) fail();
        for (size_t i = 0; i < length; ++i) text_ += text_[text_.size() - distance];
      }
      if (text_.size() > piece) hand_over(window);
    }
  }

  // All but what later text may repeat.
  void hand_over(size_t kept) {
    const size_t given = text_.size() - std::min(kept, text_.size());
    use_(std::string_view(text_).substr(0, given));
    text_.erase(0, given);
  }

  Bits bits_;
  const std::function<void(std::string_view)>& use_;
  std::string text_;
};

}  // namespace

void inflate(std::string_view stream, const std::function<void(std::string_view)>& use) { Inflater(stream, use).run(); }

}  // namespace sass
