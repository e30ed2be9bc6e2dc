// The configuration classes of a framework in all its releases (models/frameworks/*.json), and the view of one of them.
//
// A dotted path starts at a root, a class of a whole file: "actor.fsdp.offload_params", "actor.scheduling_spec.0.env_vars.PATH".
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "frontends/structured/field.hpp"

namespace oomplan::structured {

/// Releases by their position, oldest first.
struct Span {
  std::size_t first = 0, last = 0;
};
template <class T>
struct Ranged {
  Span span;
  T value;
};
/// The row that holds in a release, or null.
template <class T>
const T* row_of(const std::vector<Ranged<T>>& rows, std::size_t release) {
  for (const auto& row : rows)
    if (row.span.first <= release && release <= row.span.last) return &row.value;
  return nullptr;
}

struct ReleasedClass {
  std::vector<Ranged<std::vector<std::string>>> bases;
  std::vector<std::string> keys;  ///< in the order of declaration
  std::map<std::string, std::vector<Ranged<Field>>, std::less<>> fields;
};
using ReleasedClasses = std::map<std::string, ReleasedClass, std::less<>>;

/// Where a release stands, by its name.
using Position = std::function<std::size_t(const std::string&)>;
/// "since" and "until" of a row; a row without "until" holds in the newest.
Span span_of(const nlohmann::ordered_json& row, const Position&, std::size_t newest);
ReleasedClasses read_classes(const nlohmann::ordered_json& classes, const Position&, std::size_t newest);

std::vector<std::string_view> parts_of(std::string_view path);

/// How far a path is known.
struct Walked {
  const Field* field = nullptr;  ///< nothing: unknown
  bool inside = false;           ///< the path goes on inside `field`, a dict or something of unknown make
  std::size_t known = 0;         ///< how many of the leading parts are known
  std::string owner;             ///< of an unknown path: the class that lacks the key; "" where it goes on behind a plain value
};

/// The classes of one release. Cheap to copy; the classes outlive it.
class View {
 public:
  View(const ReleasedClasses& classes, std::size_t release) : classes_(&classes), release_(release) {}
  bool has_class(std::string_view name) const;
  /// Does the class derive from `base`, or is it `base`?
  bool derives(std::string_view name, std::string_view base) const;
  /// A class's fields with the inherited ones, as a dataclass orders them: those of the farthest base first.
  std::vector<const Field*> fields(std::string_view name) const;
  /// A field of a class or of its bases. Null when there is none.
  const Field* field(std::string_view name, std::string_view key) const;
  Walked walk(std::string_view root, std::string_view path) const;
  /// The whole unknown path with the key put right, "" when none is near.
  std::string nearest(std::string_view path, const Walked&) const;
  /// Where else below a root the key stands: under the same first part if it does there, anywhere if that is one place alone.
  std::string elsewhere(std::string_view root, std::string_view first, std::string_view key) const;

 private:
  std::vector<std::string> order(std::string_view name) const;
  const ReleasedClasses* classes_;
  std::size_t release_;
};

}  // namespace oomplan::structured
