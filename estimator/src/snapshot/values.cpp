#include "snapshot/values.hpp"

#include <array>
#include <bit>
#include <utility>

namespace oomplan::snapshot {

std::string_view name(Kind kind) {
  constexpr std::array<std::string_view, 10> kNames{"None",     "a boolean", "an integer", "an integer of more than 64 bits",
                                                    "a number", "a text",    "bytes",      "a list",
                                                    "a tuple",  "a dict"};
  return kNames[static_cast<std::size_t>(kind)];
}

Ref Values::add(Kind kind, std::int64_t value, std::uint32_t length) {
  nodes_.push_back({value, length, kind});
  return static_cast<Ref>(nodes_.size() - 1);
}

Ref Values::add_real(double value) { return add(Kind::real, std::bit_cast<std::int64_t>(value), 0); }

Ref Values::add_text(std::size_t begin, std::size_t size, Kind kind) {
  return add(kind, static_cast<std::int64_t>(begin), static_cast<std::uint32_t>(size));
}

Ref Values::add_copied_text(std::string_view text) {
  const std::size_t begin = source_.size() + copied_.size();
  copied_ += text;
  return add_text(begin, text.size());
}

Ref Values::add_container(Kind kind, std::vector<Ref> items) {
  items_.push_back(std::move(items));
  return add(kind, static_cast<std::int64_t>(items_.size() - 1), 0);
}

void Values::append(Ref container, const Ref* first, std::size_t count) {
  auto& items = items_[static_cast<std::size_t>(nodes_[container].value)];
  items.insert(items.end(), first, first + count);
}

double Values::real(Ref ref) const { return std::bit_cast<double>(nodes_[ref].value); }

std::string_view Values::text(Ref ref) const {
  const auto begin = static_cast<std::size_t>(nodes_[ref].value);
  if (begin < source_.size()) return std::string_view(source_).substr(begin, nodes_[ref].length);
  return std::string_view(copied_).substr(begin - source_.size(), nodes_[ref].length);
}

std::optional<Ref> find(const Values& values, Ref dict, std::string_view key) {
  if (values.kind(dict) != Kind::dict) return std::nullopt;
  const auto& items = values.items(dict);
  for (std::size_t i = items.size(); i >= 2; i -= 2)
    if (values.kind(items[i - 2]) == Kind::text && values.text(items[i - 2]) == key) return items[i - 1];
  return std::nullopt;
}

}  // namespace oomplan::snapshot
