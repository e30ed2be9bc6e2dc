#include "report/process_parts.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "report/format.hpp"

namespace oomplan {

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
  if (process.device > named) out.emplace_back("in no live tensor", process.device - named);
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

std::string processes_text(const std::vector<ProcessShare>& processes) {
  constexpr std::size_t kParts = 2;
  std::string out;
  for (const ProcessShare& process : processes) {
    std::string parts;
    const auto all = parts_of(process);
    for (std::size_t i = 0; i < std::min(kParts, all.size()); ++i)
      parts += fmt::format("{}{} {}", i == 0 ? "" : ", ", all[i].first, bytes_text(all[i].second));
    out += fmt::format("{}{} {}{}", out.empty() ? "" : ", ", printable(process.roles), bytes_text(process.device),
                       parts.empty() ? "" : fmt::format(" ({})", parts));
  }
  return out;
}

}  // namespace oomplan
