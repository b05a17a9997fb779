#include "planned_lengths.h"

#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace fa3::test {

// The K/V blocks that rows of a sequence see, from the first to the last, row by row; at least one.
static Blocks blocks_of_rows(const PlanForwardParams& p, const Sequence& s, Rows rows) {
  const int64_t Bc = p.Bc;
  int64_t begin = INT64_MAX, end = 0;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t query = row >> p.packing.shift;
    const int64_t from = std::max<int64_t>(0, query - s.left), to = std::min<int64_t>(s.seqlen_k, query + s.right + 1);
    if (from >= to) continue;
    begin = std::min(begin, from / Bc), end = std::max(end, (to - 1) / Bc + 1);
  }
  return begin < end ? Blocks{int32_t(begin), int32_t(end)} : Blocks{0, 1};
}

void check_bounds(const PlannedLengths& made) {
  const PlanForwardParams& p = made.params;
  REQUIRE_FALSE(made.overran);
  REQUIRE((made.counts.entries >= 0 && made.counts.entries <= p.most_tiles + p.most_slots));
  REQUIRE((made.counts.slots >= 0 && made.counts.slots <= p.most_slots));
  for (const PlannedPiece& entry : made.entries) {
    const auto place = made.place_of(entry);
    REQUIRE((place.sequence >= 0 && entry.q_block >= 0 && !place.rows.none()));
    const SeenBlocks blocks = made.tile(entry);
    REQUIRE((blocks.begin <= entry.begin && entry.begin < entry.end && entry.end <= blocks.end));
    REQUIRE((entry.part >= 0 && entry.part < entry.parts && entry.parts <= p.most_parts));
    if (entry.parts > 1) REQUIRE((entry.slot >= 0 && entry.slot + entry.parts <= p.most_slots));
  }
}

// Where all pieces are under way at once, they may stand in any order. Otherwise the first ones, and where pieces are
// few all, are from the longest to the shortest, as far as buckets tell lengths apart. Where they are many, those of
// the other sequences stand together by sections: the last tiles of a section's sequences, those before the last, and
// so on; and the next section is of the same group, about, or a later one. The list may end with a tail of split tiles,
// and then a section is one sequence.
static void check_order(const PlannedLengths& made) {
  const PlanForwardParams& p = made.params;
  int32_t longest = 0, shortest = INT32_MAX;
  for (const PlannedPiece& entry : made.entries) longest = std::max(longest, made.tile(entry).length());
  const int32_t longest_piece = 16 * (longest + read_blocks(p.most_parts, p.read_length)) + p.write_length;
  const bool has_tail = made.tail_entries > 0;
  if (int64_t(made.entries.size()) * p.heads <= p.multiprocessors || (has_tail && !made.many)) return;
  if (!made.many) REQUIRE(made.sorted_entries == made.entries.size());
  for (size_t n = 0; n < made.sorted_entries; ++n) {
    const PlannedPiece& entry = made.entries[n];
    const bool is_last = entry.part == entry.parts - 1;
    const int32_t blocks = is_last || p.unit == 0 ? made.length(entry) : p.unit;
    int32_t length = 16 * made.tile(entry).length(blocks);  // in 16ths of a block, with what a part takes besides
    if (entry.parts > 1) length += p.write_length;
    if (is_last && entry.part > 0) length += 16 * read_blocks(entry.parts, p.read_length);
    // Of about the same length: the first parts of a tile may have a block more than others.
    REQUIRE(length <= int64_t{shortest} + longest_piece / (PlanScratch::buckets / 2) + 16);
    shortest = std::min(shortest, length);
  }
  // The group of a sequence by its longest tile. One with few rows may be taken for up to twice as long.
  const int32_t unit = p.unit ? p.unit : made.unit > 0 && !has_tail ? made.unit : longest;
  const int32_t most = std::min(unit, longest);
  const auto group_of = [&](int32_t length) {
    const double shorter = 1 - double(std::clamp(length, 1, most)) / most;
    return int32_t(shorter * shorter * (groups_of(p.sequences) - 1));
  };
  const size_t end = made.entries.size() - size_t(made.tail_entries);
  const auto section_of = [&](int32_t sequence) { return has_tail ? sequence : made.section_of(sequence); };
  struct Listed {
    int32_t tiles, begin, longest;  // so many of the sequence's tiles, down to this row
  };
  std::map<int32_t, Listed> listed, seen;  // by sequence
  shortest = INT32_MAX;
  const auto end_section = [&] {
    const int32_t least = shortest < longest / 2 ? 2 * shortest + 2 : longest;
    for (const auto& [sequence, in_section] : seen) {
      REQUIRE((in_section.begin == 0 && listed.emplace(sequence, in_section).second));
      REQUIRE(group_of(in_section.longest) >= group_of(least));
      shortest = std::min(shortest, in_section.longest);
    }
    seen.clear();
  };
  int32_t rank = -1, last = -1;  // of the tile before: so many behind it in its sequence, and which one that is
  for (size_t n = made.sorted_entries; n < end; ++n) {
    const PlannedPiece& entry = made.entries[n];
    const auto [sequence, rows] = made.place_of(entry);
    if (seen.count(sequence) == 0 && (rank > 0 || section_of(sequence) != section_of(last) || sequence <= last))
      end_section(), rank = last = -1;
    Listed& in_section = seen[sequence];
    REQUIRE((in_section.tiles > rank || (in_section.tiles == rank && sequence > last)));
    REQUIRE((entry.parts == 1 && (in_section.tiles == 0 || rows.end == in_section.begin)));
    rank = in_section.tiles, last = sequence;
    in_section = {in_section.tiles + 1, rows.begin, std::max(in_section.longest, made.tile(entry).length())};
  }
  end_section();
}

void check(const PlannedLengths& made) {
  check_bounds(made), check_order(made);
  const PlanForwardParams& p = made.params;
  struct Pieces {
    Rows rows;
    std::vector<Work> parts;
  };
  std::map<std::tuple<int32_t, int32_t, int32_t>, Pieces> tiles;  // by sequence, head and first row
  std::set<int32_t> slots, tickets;
  for (int32_t n = 0; n < int32_t(made.entries.size()) * p.heads; ++n) {
    const PlannedPiece& entry = made.entries[size_t(n / p.heads)];
    const auto place = made.place_of(entry);
    Pieces& pieces = tiles[{place.sequence, n % p.heads, place.rows.begin}];
    pieces.rows = place.rows, pieces.parts.push_back(made.work(n));
  }
  size_t wanted = 0;
  for (int32_t b = 0; b < p.sequences; ++b) {
    const Sequence& s = made.sequences[size_t(b)];
    const int32_t rows = s.seqlen_q << p.packing.shift;
    for (int32_t head = 0; head < p.heads; ++head)
      for (int32_t row = 0; row < rows; ++wanted) {
        REQUIRE(tiles.count({b, head, row}) == 1);
        auto& [own, parts] = tiles[{b, head, row}];
        const Blocks blocks = blocks_of_rows(p, s, own);
        row = own.end;
        std::sort(parts.begin(), parts.end(), [](const Work& x, const Work& y) { return x.part < y.part; });
        int32_t begin = blocks.begin;
        for (size_t i = 0; i < parts.size(); ++i) {
          const Work& work = parts[i];
          REQUIRE((work.part == int(i) && work.parts == int(parts.size())));
          REQUIRE((work.begin == begin && work.begin < work.end));
          begin = work.end;
          if (work.parts == 1) continue;
          REQUIRE((work.slot == parts[0].slot && work.split_tile == parts[0].split_tile));
          const int32_t slot = work.slot + work.part;
          REQUIRE((slot >= 0 && slot < made.counts.slots * p.heads && slots.insert(slot).second));
        }
        REQUIRE(begin == blocks.end);
        if (parts.size() == 1) continue;
        const int32_t ticket = parts[0].split_tile;
        REQUIRE((ticket >= 0 && ticket < made.counts.slots / 2 * p.heads && tickets.insert(ticket).second));
      }
  }
  REQUIRE(tiles.size() == wanted);  // none of other rows
}

static const ForwardRow& row_of(const char* name) {
  const int row = row_named(name);
  REQUIRE(row >= 0);
  return forward_row(row);
}
const ForwardRow& wide() { return row_of("fa3_fwd_bf16_d128_causal_192x64"); }
const ForwardRow& packed() { return row_of("fa3_fwdpacked_bf16_d128_full_64x64"); }

std::vector<int32_t> any_lengths(std::mt19937& random, size_t count, int32_t most) {
  std::vector<int32_t> lengths;
  for (size_t i = 0; i < count; ++i) {
    const int32_t scale = 1 << random() % 14;
    lengths.push_back(random() % 8 == 0 ? 0 : std::min(most, 1 + int32_t(random() % uint32_t(scale))));
  }
  return lengths;
}

}  // namespace fa3::test
