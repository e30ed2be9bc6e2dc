// What every door promises of what it says.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <oomplan/oomplan.hpp>

#include "doors.hpp"

namespace oomplan::fuzz {

/// Throws Broken unless it holds.
void require(bool holds, const std::string& what);
/// The texts of one: between lines of "%%". At least `least`, the last ones empty.
std::vector<std::string> parts_of(std::string_view text, std::size_t least);
std::vector<std::string> lines_of(std::string_view text);

/// Text for people: valid UTF-8, and nothing that steers a terminal or turns the direction of writing.
void check_text(std::string_view text);
/// The same, and a JSON document.
nlohmann::json check_json(const std::string& text);
/// Problems that can be shown: at least one, each with words.
void check_problems(const std::vector<Problem>& problems);

/// Whether `call` answers. An InputError is checked.
template <class Call>
bool answers(Call&& call) {
  try {
    call();
    return true;
  } catch (const InputError& error) {
    check_problems(error.problems);
    return false;
  }
}

}  // namespace oomplan::fuzz
