// What one operator takes, and which operators can be asked for.
#pragma once
#include <string>

#include <oomplan/oomplan.hpp>
#include <oomplan/operators.hpp>

namespace oomplan {

std::string to_text(const OperatorAnswer&, const TextStyle&);
/// Schema "oomplan.operator/1".
std::string to_json(const OperatorAnswer&);
std::string operators_to_text(const TextStyle&);

}  // namespace oomplan
