// Reading a JSON object without trusting it: every access states what it expects.
//
// Fields is one object of a parsed text. Asking for a key that is absent, of another type or outside of its limits throws
// InputError with the dotted path, what was found and what was expected. A key whose value is null counts as absent. Parsing
// refuses texts above kMaxJsonBytes or kMaxJsonValues, nesting above kMaxJsonDepth and keys given twice; NaN and Infinity, which
// Python writes, are read as numbers that no limit accepts.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "units/json_depth.hpp"

namespace oomplan {

inline constexpr std::size_t kMaxJsonBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxJsonValues = 1'000'000;  ///< the longest config.json that was seen has 45 thousand
inline constexpr std::size_t kMaxListLength = 10'000;     ///< of a list that is asked for

/// Inclusive limits of an integer.
struct Limits {
  std::int64_t least = 0;
  std::int64_t most = 0;
};

struct ClassDefaults;

class Fields {
 public:
  /// The object or the array of objects that `text` holds. `file` goes into errors.
  static Fields parse(std::string_view text, const std::string& file);
  static std::vector<Fields> parse_array(std::string_view text, const std::string& file);

  /// The same object where an absent key is what the configuration class says; `defaults` outlives the result. Null for a key
  /// that the class takes none for is refused.
  Fields over(const ClassDefaults& defaults) const;

  bool has(std::string_view key) const;
  /// The text itself has it, under this name or another that the class takes for it; null counts as stated.
  bool stated(std::string_view key) const;
  /// There is a configuration class; and: this is one of its fields, or another name for one.
  bool has_class() const { return class_ != nullptr; }
  bool of_class(std::string_view key) const;
  /// The key is there, and its value is null: for settings that null turns off.
  bool is_null(std::string_view key) const;
  bool is_text(std::string_view key) const;
  bool is_list(std::string_view key) const;
  bool is_object(std::string_view key) const;
  bool is_flag(std::string_view key) const;
  std::vector<std::string> keys() const;

  std::int64_t integer(std::string_view key, Limits) const;
  std::int64_t integer_or(std::string_view key, std::int64_t otherwise, Limits) const;
  /// A finite number in [least, most].
  double number(std::string_view key, double least, double most) const;
  double number_or(std::string_view key, double otherwise, double least, double most) const;
  bool flag(std::string_view key) const;
  bool flag_or(std::string_view key, bool otherwise) const;
  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string_view otherwise) const;
  /// Text, number or truth value, as it would be printed.
  std::string scalar_text(std::string_view key) const;

  Fields object(std::string_view key) const;
  std::optional<Fields> object_if(std::string_view key) const;
  std::vector<Fields> objects(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key, Limits) const;
  std::vector<double> numbers(std::string_view key, double least, double most) const;
  std::vector<std::string> texts(std::string_view key) const;

  /// Throws when a key is not one of `known`, naming the nearest.
  void only(const std::vector<std::string>& known) const;
  /// Throws InputError about `key` with the value that was found.
  [[noreturn]] void refuse(std::string_view key, std::string_view expected, std::string_view why = {},
                           std::string_view nearest = {}) const;
  const std::string& file() const;
  /// Dotted path of this object; "" for the outermost.
  const std::string& path() const { return path_; }

 private:
  struct Value;
  struct Builder;
  Fields(std::shared_ptr<const Value> root, const Value* here, std::string path);
  static std::shared_ptr<const Value> read(std::string_view text, const std::string& file);
  const Value* own(std::string_view key) const;  ///< of the text under this very name, null included
  const Value* written(std::string_view key) const;
  const Value* find(std::string_view key) const;
  const Value& need(std::string_view key, std::string_view expected) const;
  const Value& need_list(std::string_view key, std::string_view expected) const;
  std::string path_of(std::string_view key) const;
  [[noreturn]] void wrong(const std::string& path, const Value* found, std::string_view expected, std::string_view why = {},
                          std::string_view nearest = {}) const;
  std::int64_t checked(const Value&, const std::string& path, Limits) const;
  double checked(const Value&, const std::string& path, double least, double most) const;

  std::shared_ptr<const Value> root_;
  const Value* here_;
  std::string path_;
  const ClassDefaults* class_ = nullptr;
};

}  // namespace oomplan
