#include "frontends/launch/entry_points.hpp"

#include "frontends/launch/paths.hpp"

namespace oomplan::launch {
namespace {

using Kind = Entry::Kind;

bool fits(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  pattern.remove_suffix(1);
  return name.starts_with(pattern);
}

bool fits(const EntryPoint& row, const Entry& entry, const std::string& first_argument,
          const std::function<bool(std::string_view)>& has) {
  if (row.kind != entry.kind) return false;
  const bool by_path = row.kind == Kind::script && row.name.find('/') != std::string_view::npos;
  const std::string name = row.kind == Kind::module ? entry.name : last_part(entry.name);
  if (!(by_path ? entry.name.ends_with(row.name) : fits(row.name, name))) return false;
  if (row.argument.empty()) return true;
  const bool first = row.kind == Kind::program || (row.kind == Kind::module && row.name.find('.') == std::string_view::npos);
  return first && !row.argument.starts_with('-') && !row.argument.ends_with('.') ? first_argument == row.argument
                                                                                 : has(row.argument);
}

}  // namespace

const EntryPoint* entry_point(std::span<const std::span<const EntryPoint>> rows, const Entry& entry,
                              const std::string& first_argument, const std::function<bool(std::string_view)>& has) {
  for (const bool last : {false, true})
    for (const auto& of_one : rows)
      for (const EntryPoint& row : of_one)
        if (row.last_resort == last && fits(row, entry, first_argument, has)) return &row;
  return nullptr;
}

}  // namespace oomplan::launch
