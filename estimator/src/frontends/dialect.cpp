#include "frontends/dialect.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "frontends/areal/areal.hpp"
#include "frontends/areal/facts_json.hpp"
#include "frontends/areal/launched.hpp"
#include "frontends/areal/start.hpp"
#include "frontends/areal/words.hpp"
#include "frontends/compose/override.hpp"
#include "frontends/keys_of_lines.hpp"
#include "frontends/launched.hpp"
#include "frontends/megatron/command.hpp"
#include "frontends/megatron/launched.hpp"
#include "frontends/megatron/words.hpp"
#include "frontends/native.hpp"
#include "frontends/native_words.hpp"
#include "frontends/oumi/job_file.hpp"
#include "frontends/oumi/launched.hpp"
#include "frontends/oumi/verl.hpp"
#include "frontends/oumi/words.hpp"
#include "frontends/relax/launched.hpp"
#include "frontends/rewrite.hpp"
#include "frontends/script_words.hpp"
#include "frontends/servers/launched.hpp"
#include "frontends/slime/launched.hpp"
#include "frontends/slime/words.hpp"
#include "frontends/transformers/launched.hpp"
#include "frontends/transformers/words.hpp"
#include "frontends/unread/unread.hpp"
#include "frontends/verl/launched.hpp"
#include "frontends/verl/start.hpp"
#include "frontends/verl/words.hpp"
#include "units/enums.hpp"

namespace oomplan {
namespace {

/// A job file of ours says all of it itself.
void refuse_framework_options(const Source& source) {
  const std::vector<std::string> keys = keys_of_lines(source.text);
  if (!source.framework_version.empty() && std::find(keys.begin(), keys.end(), "oomplan") == keys.end())
    throw InputError(
        Problem{{source.name, 0, 0, {}},
                "no key of a framework at the top",
                "a file of AReaL, with keys such as actor, rollout and train_dataset, or of verl, with actor_rollout_ref",
                {},
                "--framework-version is given, and files of other frameworks are not read yet"});
  std::vector<Problem> all;
  const auto refuse = [&](const std::string& option, const std::string& value, const char* instead) {
    if (!value.empty())
      all.push_back({{"command line", 0, 0, option},
                     fmt::format("'{}'", value),
                     instead,
                     {},
                     "the option is for a framework's own file; this is a job file"});
  };
  refuse("--framework-version", source.framework_version, "an override, such as framework=\"areal 1.0.4\"");
  refuse("--gpu", source.gpu, "an override, such as gpus=\"8 x H200-141GB\"");
  stop_at(std::move(all));
}

/// A configuration of a framework that is not read is no broken job file.
void refuse_other_frameworks(const Source& source) {
  if (!source.dialect.empty()) return;
  if (const std::string framework = unread::framework_of(source.text); !framework.empty())
    throw InputError(Problem{{source.name, 0, 0, {}},
                             {},
                             {},
                             {},
                             fmt::format("this is a configuration of {}, which oomplan does not read yet", framework)});
}

const std::array<Dialect, 9> kDialects{{
    // before AReaL, whose files may begin with a defaults list, too
    {"verl",
     true,
     false,
     true,
     verl::recognises,
     verl::words_of,
     verl::facts_json,
     nullptr,
     {verl::written, "run.sh", true},
     verl::entry_points,
     verl::take,
     nullptr,
     false,
     true,
     true,
     true},
    {"areal",
     true,
     false,
     true,
     areal::recognises,
     areal::words_of,
     [](const Source& source) { return areal::facts_json(areal::read_areal(source)); },
     nullptr,
     {areal::written},
     areal::entry_points,
     areal::take},
    {"oumi",
     true,
     false,
     true,
     oumi::recognises,
     oumi::words_of,
     oumi::facts_json,
     nullptr,
     {},
     oumi::entry_points,
     oumi::take,
     oumi::script_in,
     true,
     true,
     true,
     false,
     oumi::starts_verl,
     oumi::verl_of},
    {"transformers",
     true,
     false,
     true,
     transformers::recognises,
     transformers::words_of,
     transformers::facts_json,
     nullptr,
     {},
     transformers::entry_points,
     transformers::take,
     nullptr,
     true,
     true},
    // before slime, whose programs have the same names
    {"relax",
     true,
     false,
     true,
     [](const Source& source) { return slime::recognises(relax::family(), source); },
     [](const Source& source, const Catalog& catalog) { return slime::words_of(relax::family(), source, catalog); },
     [](const Source& source) { return slime::facts_json(relax::family(), source); },
     nullptr,
     {},
     relax::entry_points,
     [](Handing& handing) { return slime::take(relax::family(), handing); },
     nullptr,
     false,
     true,
     true},
    {"slime",
     true,
     false,
     true,
     [](const Source& source) { return slime::recognises(slime::family(), source); },
     [](const Source& source, const Catalog& catalog) { return slime::words_of(slime::family(), source, catalog); },
     [](const Source& source) { return slime::facts_json(slime::family(), source); },
     nullptr,
     {},
     slime::entry_points,
     [](Handing& handing) { return slime::take(slime::family(), handing); },
     nullptr,
     false,
     true},
    {"megatron",
     false,
     true,
     true,
     [](const Source& source) { return source.dialect == "megatron"; },
     [](const Source& source, const Catalog& catalog) -> std::unique_ptr<TextWords> {
       return std::make_unique<NativeWords>(source, [&catalog](const Source& s) { return megatron::read_command(s, catalog); });
     },
     nullptr,
     megatron::words_of_change,
     {},
     megatron::entry_points,
     megatron::take},
    {"server",
     false,
     true,
     true,
     [](const Source& source) { return source.dialect == "server"; },
     [](const Source& source, const Catalog& catalog) -> std::unique_ptr<TextWords> {
       return std::make_unique<NativeWords>(source, [&catalog](const Source& s) { return servers::read_server(s, catalog); });
     },
     nullptr,
     nullptr,
     {},
     servers::entry_points,
     servers::take},
    {"oomplan", false, false, false, [](const Source&) { return true; },
     [](const Source& source, const Catalog& catalog) -> std::unique_ptr<TextWords> {
       refuse_other_frameworks(source);
       refuse_framework_options(source);
       return std::make_unique<NativeWords>(
           source, [&catalog](const Source& s) { return reading_of_job_file(read_native(s), s.name, catalog); });
     },
     nullptr},
}};

void check_dialect(const std::string& dialect) {
  const std::vector<std::string> known{"oomplan", "areal",        "verl",     "slime",  "relax",
                                       "oumi",    "transformers", "megatron", "server", "launch"};  // as they are told
  if (dialect.empty() || std::find(known.begin(), known.end(), dialect) != known.end()) return;
  throw InputError(
      {{"command line", 0, 0, "dialect"}, fmt::format("'{}'", dialect), list_of(known), nearest(dialect, known), {}});
}

/// The kind of GPU is no key of such a text: it is wrong where it was typed.
void check_gpu(const Source& source, const Catalog& catalog) {
  if (source.gpu.empty()) return;
  try {
    catalog.gpu(source.gpu);
  } catch (const InputError& e) {
    std::vector<Problem> problems = e.problems;
    for (auto& p : problems) p.place = {"command line", 0, 0, "--gpu"};
    throw InputError(std::move(problems));
  }
}

}  // namespace

const Dialect& dialect_named(std::string_view name) {
  return *std::find_if(kDialects.begin(), kDialects.end(), [&](const Dialect& d) { return d.name == name; });
}

bool is_own(std::string_view framework) { return framework == kDialects.back().name; }

Started started_in(const std::string& framework, const StartAsked& asked, const Catalog& catalog) {
  std::vector<std::string> known;
  for (const Dialect& d : kDialects)
    if (d.written.text != nullptr || is_own(d.name)) known.emplace_back(d.name);
  if (std::find(known.begin(), known.end(), framework) == known.end()) {
    const bool later = unread::is_framework(framework) || std::any_of(kDialects.begin(), kDialects.end(), [&](const Dialect& d) {
                         return d.name == framework && d.entry_points().front().trains;
                       });
    throw InputError(Problem{{"command line", 0, 0, "--framework"},
                             fmt::format("'{}'", framework),
                             list_of(known),
                             later ? std::string() : nearest(framework, known),
                             later ? "not supported yet" : ""});
  }
  const Dialect& dialect = dialect_named(framework);
  Started out{{}, start_of(asked, dialect.written.shares, catalog)};
  out.source.text = dialect.written.text(out.start);
  out.source.name = dialect.written.name;
  if (!launch::is_script(out.source.text, out.source.name)) out.source.dialect = framework;
  out.source.framework_version = out.start.asked.release;
  out.source.gpu = out.start.asked.gpu;
  if (is_launch(out.source)) out.source = resolved(out.source, catalog);
  return out;
}

std::span<const std::span<const launch::EntryPoint>> entry_points() {
  static const std::vector<std::span<const launch::EntryPoint>> all = [] {
    std::vector<std::span<const launch::EntryPoint>> out;
    for (const Dialect& d : kDialects)
      if (d.entry_points != nullptr) out.push_back(d.entry_points());
    out.push_back(unread::entry_points());
    return out;
  }();
  return all;
}

std::string unread_framework_of(std::string_view text) { return unread::framework_of(text); }

const Dialect& dialect_of(const Source& source) {
  check_dialect(source.dialect);
  return *std::find_if(kDialects.begin(), kDialects.end(), [&](const Dialect& d) { return d.recognises(source); });
}

namespace {

/// What is wrong with a command that stands in a script is told at its line.
std::vector<Problem> at_its_line(std::vector<Problem> problems, const Source& source) {
  for (Problem& p : problems)
    if (p.place.file.empty() || (p.place.file == kCommandName && (p.place.line > 0 || p.place.path.empty())) ||
        (p.place.file == source.name && p.place.line == 0))
      p.place = {source.place.file, source.place.line, 0, p.place.path};
  return problems;
}

}  // namespace

std::optional<Source> script_carried_by(const Source& source) {
  for (const Dialect& d : kDialects)
    if (d.script_in != nullptr)
      if (auto script = d.script_in(source)) return script;
  return std::nullopt;
}

std::unique_ptr<TextWords> words_of(const Source& source, const Catalog& catalog) {
  check_dialect(source.dialect);
  if (source.overrides.size() > compose::kMostOverrides)
    throw InputError(Problem{{"command line", 0, 0, {}},
                             fmt::format("{} overrides", source.overrides.size()),
                             fmt::format("at most {}", compose::kMostOverrides),
                             {},
                             {}});
  if (const auto script = script_carried_by(source)) return words_of(*script, catalog);
  if (is_launch(source)) return words_of(resolved(source, catalog), catalog);
  const Dialect& dialect = dialect_of(source);
  if (!source.host_memory.empty() && !dialect.rewords) {
    Source with = source;  // our own words have a key for it
    with.overrides.push_back("host_memory=" + std::exchange(with.host_memory, {}));
    return words_of(with, catalog);
  }
  if (source.sequence_tokens > 0 && !dialect.takes_lengths)
    throw InputError(Problem{{"command line", 0, 0, "--sequence-tokens"},
                             fmt::format("{} of a job of {}", source.sequence_tokens, dialect.name),
                             "a job of verl, slime, Relax, Oumi, TRL or Transformers",
                             {},
                             "their samples have lengths of their own; other jobs say their tokens"});
  if (!source.image_size.empty() && !dialect.takes_images)
    throw InputError(Problem{{"command line", 0, 0, "--image-size"},
                             fmt::format("{} of a job of {}", source.image_size, dialect.name),
                             "a job of verl, Relax or Oumi",
                             {},
                             "a job file says it as vision.height and vision.width"});
  if (!source.linear_attention.empty() && !dialect.takes_states)
    throw InputError(Problem{{"command line", 0, 0, "--linear-attention"},
                             fmt::format("{} of a job of {}", source.linear_attention, dialect.name),
                             "a job of verl",
                             {},
                             "a job file says it as linear_attention"});
  if (dialect.takes_gpu) check_gpu(source, catalog);
  try {
    const bool another = dialect.starts_another != nullptr && dialect.starts_another(source);
    auto words = another ? words_handed_on(source, dialect.hands_on, catalog) : dialect.words(source, catalog);
    words->add_notes(source.notes);
    if (source.script) words->reword_notes([&](const std::string& text) { return in_script(*source.script, text); });
    if (dialect.rewords && source.script) return words_in_script(*source.script, std::move(words), catalog);
    return words;
  } catch (InputError& e) {
    if (source.place.line == 0) throw;
    throw InputError(at_its_line(e.problems, source));
  }
}

FileWords::FileWords(const Source& source, const Catalog& catalog) : words_(words_of(source, catalog)) {}

Reading read(const Source& source, const Catalog* given) {
  return std::move(*words_of(source, given == nullptr ? Catalog::builtin() : *given)).take_reading();
}

std::string facts_json(const Source& source) {
  if (const auto script = script_carried_by(source)) return facts_json(*script);
  if (is_launch(source)) return facts_in_script(source, facts_json(resolved_for_facts(source)));
  const Dialect& dialect = dialect_of(source);
  if (dialect.facts == nullptr)
    throw InputError(Problem{{source.name, 0, 0, {}},
                             "a job file of oomplan, or no job file",
                             "a file of AReaL",
                             {},
                             "facts are read from frameworks' files"});
  return dialect.facts(source);
}

}  // namespace oomplan
