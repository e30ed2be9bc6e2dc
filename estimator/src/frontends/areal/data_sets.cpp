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

bool of_qwen(std::string_view model) {
  std::string lower(model);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.find("qwen") != std::string::npos;
}

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

}  // namespace oomplan::areal
