// The flags that a framework of the family adds to Megatron's and SGLang's, by release: models/frameworks/slime.json, which
// slime's own functions wrote (models/frameworks/slime_schema.py), and relax.json. Megatron's flags whose default it changes are
// among them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace oomplan::slime {

class FlagTable;
/// A release of a framework: its number among those that were read, oldest first.
struct Release {
  const FlagTable* of = nullptr;
  std::size_t number = 0;
  /// Is it this one, or a later one? REQUIRES: a name of one.
  bool since(std::string_view name) const;
};
/// "0.3.1".
const std::string& name_of(Release);

/// What stands behind a flag.
enum class FlagValue : std::uint8_t { whole, number, text, on, off, toggle };

struct Flag {
  std::vector<std::string> spellings;  ///< of a toggle the negative one second
  std::string name;                    ///< of the argument: "max_tokens_per_gpu"
  FlagValue value = FlagValue::text;
  std::string many;                                 ///< "": one value; "+", "*": a list
  std::shared_ptr<const nlohmann::json> otherwise;  ///< its default, never a null pointer
  std::vector<std::string> choices;
  std::size_t first = 0, last = 0;  ///< releases
};

class FlagTable {
 public:
  /// Of a file that is built in: "frameworks/slime.json".
  explicit FlagTable(const char* file);
  const std::vector<std::string>& releases() const { return releases_; }
  const std::vector<Flag>& rows() const { return rows_; }
  /// What a command without a version means: the last one that is tagged.
  std::size_t usual() const { return usual_; }

 private:
  std::vector<std::string> releases_;
  std::vector<Flag> rows_;
  std::size_t usual_ = 0;
};

/// Of the release; nullptr: it has none so spelt, or so named.
const Flag* find_flag(Release, std::string_view spelling);
const Flag* flag_named(Release, std::string_view name);
/// Has any release it?
bool known_in_any(const FlagTable&, std::string_view spelling);
/// "0.2.0 to 0.3.0": the releases that have it; "": none.
std::string releases_with(const FlagTable&, std::string_view spelling);
std::vector<std::string> spellings(Release);
bool takes_value(const Flag&);

}  // namespace oomplan::slime
