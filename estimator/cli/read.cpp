#include <cstdio>

#include "command.hpp"
#include "frontends/launch/commands_json.hpp"
#include "frontends/launched.hpp"
#include "frontends/write.hpp"
#include "input.hpp"
#include "report/format.hpp"

namespace oomplan::cli {

int run_read(const Call& call) {
  refuse_without_command(call);
  if (call.has("facts")) {
    print(facts_json(source_as_given(call)) + "\n");
    return kFits;
  }
  if (call.has("commands")) {
    const launch::ScriptReading found = commands_of(source_as_given(call));
    print(call.json ? launch::commands_json(found) + "\n" : launch::commands_text(found));
    return kFits;
  }
  const Reading reading = read(source_of(call), call.catalog);
  for (const auto& note : reading.notes) {
    Problem line;  // printed the way problems are: place first
    line.place = note.place;
    line.why = note.text;
    std::fprintf(stderr, "%s%s\n", note.level == Note::Level::warning ? "warning: " : "", printable(to_text(line)).c_str());
  }
  print(call.json ? to_json(reading.job) : to_annotated_yaml(reading.job));
  return kFits;
}

}  // namespace oomplan::cli
