// What goes wrong, and whose fault it is.
//
// InputError: the user's input is wrong; it carries every problem of a stage, each with its place, what was found, what was
// expected and the nearest valid spelling (exit status 2). Defect: oomplan itself is wrong (exit status 3), for example a
// free that matches no allocation. "Does not fit" is an answer, never an exception.
#pragma once
#include <stdexcept>
#include <string>
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

/// One thing that is wrong with the input. Empty fields are not printed.
struct Problem {
  Place place;
  std::string found;
  std::string expected;
  std::string nearest;  ///< the nearest valid spelling
  std::string why;
};

/// "job.yaml:14:3 actor.optimizer: found 'adamv', expected one of adamw, sgd (did you mean 'adamw'?): why".
std::string to_text(const Problem&);

/// The input is wrong. `problems` is never empty; what() joins their texts, one a line.
class InputError : public std::runtime_error {
 public:
  explicit InputError(std::vector<Problem> all);
  explicit InputError(Problem one) : InputError(std::vector<Problem>{std::move(one)}) {}
  std::vector<Problem> problems;
};

/// oomplan contradicts itself. Never caused by input.
class Defect : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace oomplan
