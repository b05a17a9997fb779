#include "points/batches.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace fa3::bench {

const char* const batches_format =
    "Points from a file, in place of --set: batches as a server had them, an object of JSON or an\n"
    "array of such, with heads, head_dim and lengths (queries of each sequence), and what else there\n"
    "is of lengths_k (keys of each), dtype, head_dim_v, kv_heads, causal (true unless it says false),\n"
    "page, window, chunk, softcap, sinks, alibi, e4m3_cache, as the options of these names, and name:\n"
    "{\"heads\": 32, \"kv_heads\": 8, \"head_dim\": 128, \"page\": 16,\n"
    " \"lengths\": [1, 1, 512], \"lengths_k\": [9000, 17, 4608]}";

namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

// One batch, and which of its fields have been asked for.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {
    if (!object.is_object()) refuse("is no object");
  }

  void number(const char* name, int64_t& value, int64_t least, int64_t most) {
    if (const Json* field = find(name)) value = integer(name, *field, least, most);
  }
  void numbers(const char* name, std::vector<int64_t>& values) {
    const Json* const field = find(name);
    if (!field) return;
    if (!field->is_array() || field->empty()) refuse(name + std::string(" is no list of numbers"));
    for (const Json& one : *field) values.push_back(integer(name, one, 0, most_length));
  }
  void real(const char* name, float& value) {
    const Json* const field = find(name);
    if (!field) return;
    if (!field->is_number() || !(field->get<double>() >= 0 && field->get<double>() <= 1e30))
      refuse(std::string(name) + " is " + field->dump() + ", must be a number from 0 to 1e30");
    value = field->get<float>();
  }
  void flag(const char* name, bool& value) {
    const Json* const field = find(name);
    if (!field) return;
    if (!field->is_boolean()) refuse(std::string(name) + " is " + field->dump() + ", must be true or false");
    value = field->get<bool>();
  }
  std::string word(const char* name, const std::string& otherwise) {
    const Json* const field = find(name);
    if (!field) return otherwise;
    if (!field->is_string()) refuse(std::string(name) + " is " + field->dump() + ", must be a text");
    return field->get<std::string>();
  }
  // Fields that nobody asked for.
  void done() const {
    for (const auto& [name, value] : object_.items())
      if (std::ranges::find(known_, name) == known_.end()) refuse("\"" + name + "\" is no field of a batch");
  }
  void require(const char* name) const {
    if (!object_.contains(name)) refuse(std::string("has no ") + name);
  }

 private:
  const Json* find(const char* name) {
    known_.emplace_back(name);
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }
  static int64_t integer(const char* name, const Json& field, int64_t least, int64_t most) {
    const bool fits = field.is_number_integer() &&
                      (!field.is_number_unsigned() || field.get<uint64_t>() <= uint64_t(most)) &&
                      field.get<int64_t>() >= least && field.get<int64_t>() <= most;
    if (!fits)
      refuse(std::string(name) + " is " + field.dump() + ", must be a number from " + std::to_string(least) + " to " +
             std::to_string(most));
    return field.get<int64_t>();
  }

  const Json& object_;
  std::vector<std::string> known_;
};

Point point_of(const Json& object) {
  Fields fields(object);
  Point p;
  p.causal = true;
  for (const char* needed : {"heads", "head_dim", "lengths"}) fields.require(needed);
  fields.number("heads", p.heads, 1, most_size);
  p.kv_heads = p.heads;
  fields.number("kv_heads", p.kv_heads, 1, most_size);
  fields.number("head_dim", p.head_dim, 1, most_size);
  fields.number("head_dim_v", p.head_dim_v, 1, most_size);
  fields.flag("causal", p.causal);
  const std::string dtype = fields.word("dtype", "bf16");
  if (dtype != "bf16" && dtype != "fp16" && dtype != "e4m3")
    refuse("dtype is \"" + dtype + "\", must be bf16, fp16 or e4m3");
  p.dtype = dtype == "e4m3" ? FA3_DTYPE_E4M3 : dtype == "bf16" ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
  PlannedCall& s = p.planned;
  fields.numbers("lengths", s.lengths);
  fields.numbers("lengths_k", s.lengths_k);
  fields.number("page", s.page, 0, most_length);
  fields.number("window", s.window, -1, most_length);
  fields.number("chunk", s.chunk, 0, most_length);
  fields.real("softcap", s.softcap);
  fields.flag("sinks", s.sinks);
  fields.flag("alibi", s.alibi);
  fields.flag("e4m3_cache", s.e4m3_cache);
  s.name = fields.word("name", "");
  fields.done();
  finish_lengths(p, "lengths", "lengths_k");
  if (const std::string why = contradiction(s); !why.empty()) refuse(why);
  return p;
}

}  // namespace

std::vector<Point> batches_of(const std::string& text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    refuse(std::string("is no JSON: ") + error.what());
  }
  std::vector<Point> points;
  const bool several = json.is_array();
  for (size_t n = 0; n < (several ? json.size() : 1); ++n) try {
      points.push_back(point_of(several ? json[n] : json));
    } catch (const std::invalid_argument& error) {
      refuse("batch " + std::to_string(n) + ": " + error.what());
    }
  if (points.empty()) refuse("has no batch");
  return points;
}

std::vector<Point> read_batches(const std::string& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || !text) refuse("--batches: " + path + " cannot be read");
  try {
    return batches_of(text.str());
  } catch (const std::invalid_argument& error) {
    refuse("--batches: " + path + ": " + error.what());
  }
}

void finish_lengths(Point& p, const std::string& q, const std::string& k) {
  std::vector<int64_t>& keys = p.planned.lengths_k;
  const std::vector<int64_t>& queries = p.planned.lengths;
  if (keys.empty()) keys = queries;
  if (keys.size() != queries.size())
    refuse(k + " has " + std::to_string(keys.size()) + " lengths, but " + q + " " + std::to_string(queries.size()));
  p.batch = int64_t(queries.size());
  p.seqlen = std::ranges::max(queries), p.seqlen_k = std::ranges::max(keys);
}

std::string contradiction(const PlannedCall& planned) {
  return planned.window >= 0 && planned.chunk > 0 ? "a call has a window or a chunk, not both" : "";
}

}  // namespace fa3::bench
