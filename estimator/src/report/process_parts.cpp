#include "report/process_parts.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "report/format.hpp"

namespace oomplan {
namespace {

constexpr const char* kNoTensor = "in no live tensor";

}  // namespace

std::string category_words(Category category) {
  std::string label(name(category));
  std::replace(label.begin(), label.end(), '_', ' ');
  return label;
}

std::vector<std::pair<std::string, Bytes>> parts_of(const ProcessShare& process) {
  std::vector<std::pair<std::string, Bytes>> out;
  Bytes named = 0;
  for (std::size_t i = 0; i < process.by_category.size() && i < static_cast<std::size_t>(kCategories); ++i) {
    named += process.by_category[i];
    if (process.by_category[i] > 0) out.emplace_back(category_words(static_cast<Category>(i)), process.by_category[i]);
  }
  if (process.device > named) out.emplace_back(kNoTensor, process.device - named);
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

std::string processes_text(const std::vector<ProcessShare>& processes) {
  constexpr std::size_t kParts = 2;
  std::string out;
  for (const ProcessShare& process : processes) {
    std::string parts;
    const auto all = parts_of(process);
    for (std::size_t i = 0, said = 0; i < all.size() && said < kParts; ++i) {
      if (all[i].first == kNoTensor) continue;  // of a roomy device; elsewhere it gives back
      parts += fmt::format("{}{} {}", said++ == 0 ? "" : ", ", all[i].first, bytes_text(all[i].second));
    }
    out += fmt::format("{}{}{}", out.empty() ? "" : " and ", printable(process.roles),
                       parts.empty() ? "" : fmt::format(" ({})", parts));
  }
  return out;
}

}  // namespace oomplan
