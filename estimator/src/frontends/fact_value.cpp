#include "frontends/fact_value.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace oomplan {

FactValue FactValue::list(std::vector<FactValue> items) {
  FactValue v;
  v.kind_ = Kind::list;
  v.items_ = std::move(items);
  return v;
}

FactValue FactValue::map() {
  FactValue v;
  v.kind_ = Kind::map;
  return v;
}

FactValue& FactValue::operator[](std::string_view key) {
  const auto it = std::find(keys_.begin(), keys_.end(), key);
  if (it != keys_.end()) return items_[static_cast<std::size_t>(it - keys_.begin())];
  keys_.emplace_back(key);
  return items_.emplace_back();
}

const FactValue* FactValue::find(std::string_view key) const {
  const auto it = std::find(keys_.begin(), keys_.end(), key);
  return it == keys_.end() ? nullptr : &items_[static_cast<std::size_t>(it - keys_.begin())];
}

std::string FactValue::plain() const {
  switch (kind_) {
    case Kind::boolean:
      return integer_ != 0 ? "true" : "false";
    case Kind::integer:
      return fmt::format("{}", integer_);
    case Kind::real:
      return fmt::format("{}", real_);
    default:
      return text_;
  }
}

}  // namespace oomplan
