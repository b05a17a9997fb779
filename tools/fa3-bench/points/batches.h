// Points from a file: batches as a server had them.
#pragma once
#include <string>
#include <vector>

#include "points/point.h"

namespace fa3::bench {

inline constexpr int64_t most_size = int64_t(1) << 40;    // of a point's numbers
inline constexpr int64_t most_length = int64_t(1) << 30;  // of a sequence

// The format, for the help text.
extern const char* const batches_format;

// Of JSON text: an object for a batch, or an array of such. What is wrong with it is thrown as std::invalid_argument,
// which names batch and field.
std::vector<Point> batches_of(const std::string& text);

// Of the file that --batches names, as what is thrown says.
std::vector<Point> read_batches(const std::string& path);

// Sets batch, seqlen and seqlen_k to the number of the point's lengths and to the longest. Lengths of keys that are
// absent are those of the queries. Thrown is std::invalid_argument if there are not as many of both; `q` and `k` name
// them.
void finish_lengths(Point& point, const std::string& q, const std::string& k);

// "" or why these do not go together: a window and a chunk, for example.
std::string contradiction(const PlannedCall& planned);

}  // namespace fa3::bench
