#include "frontends/areal/data_sets.hpp"

#include <algorithm>
#include <cctype>
#include <string>

namespace oomplan::areal {
namespace {

struct Longest {
  std::string_view set, type;
  std::int64_t bytes, by_qwen;
};
/// openai/grade-school-math, grade_school_math/data/train.jsonl: the longest question with its answer has 1691 bytes (of 7473),
/// and 536 tokens of the vocabulary of Qwen, Qwen2 and Qwen3 (qwen.tiktoken, digits one by one). areal/dataset/gsm8k.py puts the
/// token of the end behind both.
constexpr Longest kLongest[] = {{"gsm8k", "sft", 1691 + 1, 536 + 1}};

struct Images {
  std::string_view in_path, type;
  SampleImages of_sample;
};
constexpr std::string_view kClevr = "pictures of 480 x 320 that the reader makes as many pixels as 336 x 336";
constexpr std::string_view kSquare = "the reader cuts them to this square";
/// areal/dataset/{clevr_count_70k,geometry3k,virl39k}.py, 0.4.1 to 2.0.0. CLEVR's pictures have 480 x 320 pixels, and are made
/// smaller to 336 x 336 pixels in all; those of geometry3k are cut, or filled up, to a square.
constexpr Images kImages[] = {
    {"clevr_count_70k", "sft", {1, 274, 411, kClevr}},
    {"clevr_count_70k", "rl", {1, 274, 411, kClevr}},
    {"geometry3k", "sft", {1, 512, 512, kSquare}},
    {"geometry3k", "rl", {1, 448, 448, kSquare}},
    {"virl39k", "rl", {1, 320, 320, "the reader makes them at most so many pixels"}},
};

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}
bool of_qwen(std::string_view model) { return lower_case(model).find("qwen") != std::string::npos; }

}  // namespace

LongestSample longest_sample(std::string_view path, std::string_view type, std::string_view model) {
  while (path.ends_with('/')) path.remove_suffix(1);
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const Longest& row : kLongest) {
    if (row.set != name || row.type != type) continue;
    if (of_qwen(model)) return {row.by_qwen, "tokens of Qwen's vocabulary"};
    return {row.bytes, "its bytes, at most a token each"};
  }
  return {};
}

SampleImages images_of_sample(std::string_view path, std::string_view type) {
  const std::string lower = lower_case(path);
  for (const Images& row : kImages)
    if (row.type == type && lower.find(row.in_path) != std::string::npos) return row.of_sample;
  return {};
}

}  // namespace oomplan::areal
