#include <fmt/format.h>
#include <oomplan/guide.hpp>

#include "command.hpp"
#include "frontends/dialect.hpp"
#include "input.hpp"

namespace oomplan::cli {

int run_advise(const Call& call) {
  const Effect allow = effects_of(call);
  const std::int64_t show = call.number("diff", 1, 1000, 0);
  refuse_without_command(call);
  const Source source = source_of(call);
  if (dialect_of(source).command)
    throw InputError(Problem{{"", 0, 0, "--"},
                             "a command line",
                             "oomplan explain -- COMMAND",
                             {},
                             "explain tells which changes would help; advise writes them into files"});
  if (call.has("guide")) {
    for (const char* beside : {"diff", "allow"})
      if (call.has(beside))
        throw InputError(Problem{{"command line", 0, 0, fmt::format("--{}", beside)},
                                 "together with --guide",
                                 "one of them",
                                 {},
                                 "the guide's points are those of the framework, whatever they change"});
    const Guide answer = guide(source, call.catalog);
    print(call.json ? to_json(answer) : to_text(answer, call.style));
    return answer.estimate.fits() ? kFits : kDoesNotFit;
  }
  const Advice advice = advise(source, allow, call.catalog);
  if (show > 0) {
    const auto wrong = [&](std::string found, std::string expected) {
      throw InputError(Problem{{"", 0, 0, "--diff"}, std::move(found), std::move(expected), {}, {}});
    };
    if (static_cast<std::size_t>(show) > advice.remedies.size())
      wrong(std::to_string(show), "at most " + std::to_string(advice.remedies.size()) + ": so many changes were found");
    const Patch& patch = advice.remedies[static_cast<std::size_t>(show - 1)].patch;
    if (patch.diff.empty() && !patch.file.empty())
      wrong(std::to_string(show), "a change of the file: it says so already, but an argument undoes it");
    if (patch.diff.empty()) wrong(std::to_string(show), "a change of which the text of the file can be edited so");
    print(patch.diff);
    return kFits;
  }
  print(call.json ? to_json(advice) : to_text(advice, call.style));
  return advice.estimate.fits() ? kFits : kDoesNotFit;
}

}  // namespace oomplan::cli
