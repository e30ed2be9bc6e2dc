// What goes wrong, and whose fault it is.
//
// InputError: the user's input is wrong; it carries every problem of a stage, each with its place, what was found, what was
// expected and the nearest valid spelling (exit status 2). Defect: oomplan itself is wrong (exit status 3), for example a
// free that matches no allocation. "Does not fit" is an answer, never an exception.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/units/export.hpp>

namespace oomplan OOMPLAN_PUBLIC {

/// Where a value stands: a file with line and column (1-based; 0 = unknown), and the dotted path of the key.
struct Place {
  std::string file;
  int line = 0;
  int column = 0;
  std::string path;
};

/// What a problem means for somebody who decides whether a job may start. In this order: the first one that any problem has is
/// that of them all.
enum class ProblemKind : std::uint8_t {
  malformed,             ///< misspelt, contradictory, out of range, incomplete
  refused_by_framework,  ///< the framework itself would stop at it, with its own reason
  unknown_model,         ///< no built-in model, directory or cache has the name: whether it fits is not known
  not_supported,         ///< the job may be right; this version of oomplan cannot answer it
  defect,                ///< oomplan's own
};
std::string_view name(ProblemKind);

/// One thing that is wrong with the input. Empty fields are not printed.
struct Problem {
  Place place;
  std::string found;
  std::string expected;
  std::string nearest;  ///< the nearest valid spelling
  std::string why;
  ProblemKind kind = ProblemKind::malformed;
};

/// "job.yaml:14:3 actor.optimizer: found 'adamv', expected one of adamw, sgd (did you mean 'adamw'?): why".
std::string to_text(const Problem&);

/// The input is wrong. `problems` is never empty; what() joins their texts, one a line.
class InputError : public std::runtime_error {
 public:
  /// A problem whose reason says that something is not supported yet is of that kind.
  explicit InputError(std::vector<Problem> all);
  explicit InputError(Problem one) : InputError(std::vector<Problem>{std::move(one)}) {}
  /// Of all problems.
  ProblemKind kind() const;
  std::vector<Problem> problems;
};

/// oomplan contradicts itself. Never caused by input.
class Defect : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace oomplan
