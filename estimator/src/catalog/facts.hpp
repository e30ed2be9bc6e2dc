// Engine facts: constants of what has no tensor (context, NCCL, graphs, workspaces) and defaults of a version.
//
// models/engines/*.json hold rows {fact, versions, gpu, when, value, spread, measurements, source, kind}. For every fact,
// version, GPU and condition exactly one row matches; a test walks them all. Rows are resolved once per job, never in a fold.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/units/bytes.hpp>

#include "units/enums.hpp"

namespace oomplan {

enum class FactKind : std::uint8_t { read_in_code, measured, inferred };

template <>
inline constexpr std::array<std::pair<FactKind, std::string_view>, 3> kNames<FactKind>{
    {{FactKind::read_in_code, "read in code"}, {FactKind::measured, "measured"}, {FactKind::inferred, "inferred"}}};

struct Fact {
  std::string engine, fact;
  std::string versions;                     ///< ">=0.11,<0.21"; "" any
  std::vector<std::string> gpus;            ///< sm names; empty: any
  std::map<std::string, std::string> when;  ///< {"tensor_parallel": ">=2", "moe": "false"}; all must hold
  double value = 0;                         ///< bytes where the fact's name ends in _bytes, otherwise a plain number
  double spread = 0;                        ///< half width of the measured range, same unit
  int measurements = 0;
  std::string source;
  FactKind kind = FactKind::read_in_code;
};

/// What a row is asked for with. A condition is met when the query has the key and its value meets every comparison, joined by
/// commas: <, <=, ==, !=, >=, > compare numbers, and versions where one side has two dots or more ("4.57.1"); text without a
/// comparison is equal or not ("2", "false", "bf16"). A row without a condition on a key matches every value of it.
struct FactQuery {
  std::string version;
  std::string sm;
  std::map<std::string, std::string> conditions;
};

class Facts {
 public:
  Facts() = default;
  explicit Facts(std::vector<Fact> rows) : rows_(std::move(rows)) {}
  const std::vector<Fact>& rows() const { return rows_; }
  /// The one row that matches. Throws InputError when none does ("vllm 0.3 has no measured ... ; known versions: ..."),
  /// Defect when two do.
  const Fact& find(std::string_view engine, std::string_view fact, const FactQuery&) const;
  /// Versions of an engine that the facts know, oldest first.
  std::vector<std::string> known_versions(std::string_view engine) const;
  /// The version whose rows answer for a server's `version`, "" when none does: answering_version (catalog/engine_releases.hpp).
  std::string answering(std::string_view engine, std::string_view version) const;

 private:
  std::vector<Fact> rows_;
};

/// -1, 0, 1: a before, equal to, after b. Versions are numbers joined by dots; "0.5.10.post1" counts as 0.5.10.
int compare_versions(std::string_view a, std::string_view b);
/// Does `version` satisfy ">=0.11,<0.21"? Every version, also an unknown one (""), satisfies "".
bool version_matches(std::string_view version, std::string_view range);
/// Can `text` be the range of version_matches, the condition of Fact::when?
bool is_version_range(std::string_view text);
bool is_condition(std::string_view text);

}  // namespace oomplan
