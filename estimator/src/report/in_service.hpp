// What happens to requests in service, for people and for programs.
#pragma once
#include <string>

#include <nlohmann/json_fwd.hpp>
#include <oomplan/oomplan.hpp>

namespace oomplan {

/// A line of figures, and one of what waits or is given up. Each is indented by `indent` blanks.
std::string in_service_lines(const InService&, std::size_t indent, std::size_t width);
nlohmann::ordered_json in_service_json(const InService&);

}  // namespace oomplan
