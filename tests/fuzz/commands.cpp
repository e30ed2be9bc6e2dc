// Doors of command lines.
#include <nlohmann/json.hpp>

#include "checks.hpp"
#include "frontends/megatron/command.hpp"
#include "frontends/servers/serve_command.hpp"
#include "frontends/shell_words.hpp"
#include "report/serve_report.hpp"

namespace oomplan::fuzz {

void put_serve(std::string_view text) {
  const Catalog& catalog = Catalog::builtin();
  answers([&] {
    const auto words = shell_words(text, "command line");
    ServeOptions options;
    options.open = [](const std::string&) { return std::optional<std::string>("max-model-len: 4096\n"); };
    const ServeCommand command = read_serve_command(words, options, catalog);
    const ServeAnswer found = answer(command, catalog);
    check_json(to_json(found, command));
    check_text(to_text(found, command, {}));
    for (const ServeChange& change : found.changes)
      answers([&] {
        require(answer(read_serve_command(change.words, options, catalog), catalog).fits(), "a change that does not fit");
      });
  });
}

void put_megatron(std::string_view text) {
  const auto parts = parts_of(text, 2);
  Source source{parts[0], "command line", "megatron"};
  source.overrides = lines_of(parts[1]);
  answers([&] {
    const Reading reading = read(source);
    check_json(to_json(reading.job));
    check_text(to_yaml(reading.job));
  });
  answers([&] {
    const auto words = shell_words(parts[0], "command line");
    require(shell_words(shell_text(words), "again") == words, "words that are others when they are quoted");
  });
}

}  // namespace oomplan::fuzz
