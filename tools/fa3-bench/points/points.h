// Which points are run: the sets that the project measures, or a grid of one's own, by one kernel or several.
#pragma once
#include <string>
#include <vector>

#include "points/point.h"

namespace fa3::bench {

// Values to combine; without change the paper's grid in bf16. 0 stands for what follows from the others: as many
// sequences as `tokens` hold, keys as queries, heads as `hidden` has of head_dim, K/V heads as heads, and V as K.
struct Grid {
  std::vector<fa3_dtype> dtypes = {FA3_DTYPE_BF16};
  std::vector<int64_t> head_dims = {64, 128, 256}, seqlens = {512, 1024, 2048, 4096, 8192, 16384};
  std::vector<bool> causal = {false, true};
  int64_t tokens = 16384, hidden = 2048, batch = 0, seqlen_k = 0, heads = 0, kv_heads = 0, head_dim_v = 0;
  PlannedCall planned = {};  // of all points; its lengths stand for batch, seqlens and seqlen_k

  std::vector<Point> points() const;
  // Makes keys as long as queries, if they have no lengths. Thrown is std::invalid_argument if there are not as many of
  // both; q and k name them.
  void check_lengths(const std::string& q, const std::string& k);
};

struct PointSet {
  const char *name, *what;
  std::vector<Point> points;
};
// All sets there are. They are defined here and nowhere else; other programs ask `fa3-bench --list --json -`.
const std::vector<PointSet>& point_sets();

// The word that asks for the kernel that the library chooses itself, beside kernels that are named.
inline constexpr const char* library_choice = "auto";

// In what forms points of e4m3 run: each point in all of them.
struct Forms {
  std::vector<VForm> v = {VForm::rows, VForm::tiles};
  std::vector<Scales> scales = {Scales::tensor};
  std::vector<bool> two_level = {false};

  // Of another dtype: the point itself. PlannedCall calls have V as rows.
  std::vector<Point> of(const Point& point) const;
};

struct Selection {
  Direction direction = Direction::forward;
  bool deterministic = false;     // FA3_FLAG_DETERMINISTIC, of the backward pass
  std::vector<std::string> sets;  // names; empty: the grid below
  std::vector<Point> batches;     // of a file; empty: sets, or the grid
  Grid grid;
  Forms forms;
  std::vector<std::string> kernels = {library_choice};  // each point once by each of them
  std::string filter;                                   // part of a label

  // left_out: receives a line for every point that a kernel does not fit. A point that the direction does not have is
  // thrown as std::invalid_argument.
  std::vector<Point> points(std::vector<std::string>* left_out = nullptr) const;
};

}  // namespace fa3::bench
