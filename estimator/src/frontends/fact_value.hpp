// The value of a fact: what JSON can say, without its library in a header.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oomplan {

class FactValue {
 public:
  enum class Kind : std::uint8_t { null, boolean, integer, real, text, list, map };

  FactValue() = default;
  FactValue(std::nullptr_t) {}
  FactValue(bool b) : kind_(Kind::boolean), integer_(b ? 1 : 0) {}
  FactValue(int n) : kind_(Kind::integer), integer_(n) {}
  FactValue(std::int64_t n) : kind_(Kind::integer), integer_(n) {}
  FactValue(double n) : kind_(Kind::real), real_(n) {}
  FactValue(const char* s) : kind_(Kind::text), text_(s) {}
  FactValue(std::string s) : kind_(Kind::text), text_(std::move(s)) {}
  FactValue(std::string_view s) : kind_(Kind::text), text_(s) {}
  static FactValue list(std::vector<FactValue> items = {});
  static FactValue map();

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }
  bool is_integer() const { return kind_ == Kind::integer; }
  bool is_map() const { return kind_ == Kind::map; }
  bool empty() const { return items_.empty() && text_.empty(); }
  bool boolean() const { return integer_ != 0; }
  std::int64_t integer() const { return integer_; }
  double real() const { return real_; }
  const std::string& text() const { return text_; }
  const std::vector<FactValue>& items() const { return items_; }  ///< of a list; of a map its values
  const std::vector<std::string>& keys() const { return keys_; }  ///< of a map
  /// Of a map; made when it is not there.
  FactValue& operator[](std::string_view key);
  const FactValue* find(std::string_view key) const;
  void push_back(FactValue item) { items_.push_back(std::move(item)); }
  /// A text as it is, null as "", anything else as JSON has it.
  std::string plain() const;

  friend bool operator==(const FactValue&, const FactValue&) = default;

 private:
  Kind kind_ = Kind::null;
  std::int64_t integer_ = 0;
  double real_ = 0;
  std::string text_;
  std::vector<FactValue> items_;
  std::vector<std::string> keys_;
};

}  // namespace oomplan
