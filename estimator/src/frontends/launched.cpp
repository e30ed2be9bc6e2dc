#include "frontends/launched.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "catalog/catalog.hpp"
#include "frontends/dialect.hpp"
#include "frontends/handing.hpp"
#include "frontends/launch/commands_json.hpp"
#include "frontends/launch/parser.hpp"
#include "frontends/launch/paths.hpp"
#include "frontends/launch/quote.hpp"
#include "units/enums.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

using launch::EntryPoint;
using launch::Launch;
using launch::ScriptReading;

[[noreturn]] void fail(Place place, std::string found, std::string expected, std::string why) {
  throw InputError(Problem{std::move(place), std::move(found), std::move(expected), {}, std::move(why)});
}

/// A command as the text of a script; variables in front of it stay variables.
std::string text_of_command(const std::vector<std::string>& words) {
  std::string out;
  bool front = true;
  for (const std::string& word : words) {
    const std::size_t sign = word.find('=');
    front = front && sign != std::string::npos && launch::is_name(std::string_view(word).substr(0, sign));
    if (!out.empty()) out += ' ';
    out += front ? word.substr(0, sign + 1) + launch::quoted_word(word.substr(sign + 1)) : launch::command_text({word});
  }
  return out;
}

launch::ScriptInput input_of(const Source& source) {
  launch::ScriptInput in;
  const bool typed = !source.command.empty();
  in.text = typed ? text_of_command(source.command) : source.text;
  in.name = typed ? kCommandName : source.name.empty() ? "<text>" : source.name;
  in.arguments = source.arguments;
  in.environment = source.environment;
  in.folder = source.folder;
  in.open = source.open;
  for (const std::string& text : source.overrides)
    if (text.starts_with("gpus=")) {
      const auto number = read_number(
          std::string_view(text).substr(5, text.find(' ') == std::string::npos ? std::string::npos : text.find(' ') - 5));
      if (number && *number.value <= 1024) in.machine.gpus = static_cast<std::int64_t>(*number.value);
    }
  return in;
}

std::string label(const Launch& l) {
  const Place place = shown_place(l.place);
  const std::string where = place.line > 0 ? fmt::format("{}:{} ", place.file, place.line) : "";
  const std::string who = l.starts == nullptr ? "" : fmt::format(" ({})", l.starts->framework);
  return fmt::format("{}{}{}{}", where, l.written, who, l.condition.empty() ? "" : fmt::format(", if {}", l.condition));
}

/// A module of the framework that is read, and was meant by one that is not: misspelt, in another folder, or without -m. "":
/// none.
std::string meant_module(const EntryPoint& starts, const launch::Entry& entry) {
  std::vector<std::string> names;
  if (!starts.name.ends_with('*')) return {};  // a program that is known by its name
  for (const auto& rows : entry_points())
    for (const EntryPoint& row : rows)
      if (row.framework == starts.framework && row.kind == launch::Entry::Kind::module && !row.dialect.empty())
        names.emplace_back(row.name.substr(0, row.name.find('*')));
  const auto end = [](std::string_view name) { return name.substr(name.rfind('.') + 1); };
  for (const std::string& name : names)
    if (name == entry.name || (end(name) == end(entry.name) && end(name) != "main_ppo")) return name;
  std::string near = nearest(entry.name, names);
  constexpr std::size_t kAlike = 4;  // letters at the beginning of its last part
  if (!near.empty() && end(near).substr(0, kAlike) == end(entry.name).substr(0, kAlike)) return near;
  return !names.empty() && end(entry.name) == "main_ppo" ? names.front() : "";
}

/// Words that look like arguments, and were started as a program: a backslash is missing in front of them.
std::vector<const launch::Started*> lost_arguments(const ScriptReading& reading) {
  std::vector<const launch::Started*> out;
  for (const launch::Started& s : reading.started) {
    const std::string word = s.words.empty() ? "" : launch::shown_text(s.words[0].text, reading.unknowns);
    const auto equals = word.find('='), dot = word.find('.');
    const bool override_ = equals != std::string::npos && dot < equals && word.find('/') > equals;
    if (override_ || word.starts_with("--")) out.push_back(&s);
  }
  return out;
}
std::string told_lost(const launch::Started& s, const ScriptReading& reading) {
  return fmt::format("a command of its own, '{}'", launch::shown_text(s.words[0].text, reading.unknowns).substr(0, 80));
}

/// Those whose programs a dialect reads.
std::vector<std::string> frameworks_read() {
  std::vector<std::string> out;
  for (const auto& rows : entry_points())
    for (const EntryPoint& row : rows)
      if (!row.dialect.empty() && std::find(out.begin(), out.end(), row.framework) == out.end()) out.emplace_back(row.framework);
  return out;
}

/// A program that no row knows, with its first argument: `vllm bench` is not `vllm serve`.
[[noreturn]] void unknown_program(const launch::Started& started, const ScriptReading& reading) {
  const Place place = shown_place({started.file, started.line, 0, {}});
  const launch::Unwrapped found = launch::unwrap(started.words);
  const auto word = [&](std::size_t i) {
    return i < started.words.size() ? launch::shown_text(started.words[i].text, reading.unknowns) : std::string();
  };
  const bool program = found.entry.kind == launch::Entry::Kind::program;
  if (program && launch::is_shell(found.entry.name) && !word(found.entry.first).empty() &&
      !word(found.entry.first).starts_with('-'))
    fail(place, fmt::format("no file {}", word(found.entry.first)), "the script that is started", {});
  const std::size_t at = program ? found.entry.at : 0;
  const std::string argument = word(at + 1);
  fail(place, {}, {},
       fmt::format("this starts {}{}, which oomplan does not read yet", launch::last_part(word(at)),
                   argument.empty() ? "" : " " + argument.substr(0, 60)));
}

/// A program whose name is a variable that nobody has set.
void say_unset_program(const ScriptReading& reading) {
  for (const launch::Started& s : reading.started) {
    if (s.words.empty()) continue;
    const std::string program = launch::shown_text(s.words[0].text, reading.unknowns);
    for (const launch::Unknown& u : reading.unknowns)
      if (u.kind == launch::Unknown::Kind::unset && program == fmt::format("${{{}}}", u.name))
        fail(shown_place({s.file, s.line, 0, {}}), fmt::format("the program {}", program), "one that starts a job",
             how_to_give(u));
  }
}

/// `bash run.sh`, where run.sh is not here: it may start the job.
void say_missing_script(const ScriptReading& reading) {
  for (const Note& n : reading.notes)
    if (const std::size_t at = n.text.find(launch::kNotHere); at != std::string::npos)
      fail(shown_place(n.place), fmt::format("no file {}", n.text.substr(0, at)), "the script that is started", {});
}

/// Why a script starts nothing that can be read.
[[noreturn]] void nothing_known(const ScriptReading& reading, const std::vector<Launch>& all, const std::string& name) {
  if (reading.broken && reading.started.empty()) throw InputError(*reading.broken);
  if (!all.empty()) {
    const Launch& last = all.back();
    const bool module = last.entry.kind == launch::Entry::Kind::module;
    fail(shown_place(last.place), {}, {},
         fmt::format("this starts the {} {}, which oomplan does not read yet", module ? "module" : "script", last.entry.name));
  }
  if (reading.broken) throw InputError(*reading.broken);
  if (reading.ended_at && reading.status != 0) {
    std::string why = reading.ended_by.empty() ? fmt::format("the script ends here with status {}", reading.status)
                                               : fmt::format("the script ends here, as `{}` fails (set -e)", reading.ended_by);
    if (!reading.said.empty()) why += fmt::format(": '{}'", reading.said.substr(0, 200));
    if (std::any_of(reading.notes.begin(), reading.notes.end(),
                    [](const Note& n) { return n.text.ends_with(launch::kNobodySaid); }))
      why += "; nobody said how many GPUs a machine has: --gpus N says it";
    std::vector<std::string> told;
    for (const std::string& variable : reading.rests_on) {
      if (std::find(told.begin(), told.end(), variable) != told.end() || told.size() >= 5) continue;
      told.push_back(variable);
      why += "; " + how_to_give({launch::Unknown::Kind::unset, variable, {}, name, 0});
    }
    fail(shown_place(*reading.ended_at), {}, {}, why);
  }
  std::vector<std::string> programs;
  for (const launch::Started& s : reading.started) {
    const std::string program =
        launch::last_part(launch::shown_text(s.words.empty() ? launch::Text() : s.words[0].text, reading.unknowns));
    if (std::find(programs.begin(), programs.end(), program) == programs.end() && programs.size() < 8)
      programs.push_back(program);
  }
  say_unset_program(reading);
  say_missing_script(reading);
  if (programs.empty()) fail({name, 0, 0, {}}, "a script that starts no program", "one that starts a job", {});
  if (reading.started.size() == 1) unknown_program(reading.started[0], reading);
  fail({name, 0, 0, {}}, fmt::format("a script that starts {} alone", fmt::join(programs, ", ")),
       fmt::format("one that starts a job of {}", list_of(frameworks_read())), {});
}

/// The job that is asked about; the others are told.
const Launch& chosen(const std::vector<Launch>& all, const ScriptReading& reading, const Source& source,
                     std::vector<Note>& notes) {
  std::vector<const Launch*> jobs;
  for (const bool training : {true, false}) {
    if (!jobs.empty()) break;
    for (const Launch& l : all)
      if (l.starts != nullptr && (training ? l.starts->trains : !l.starts->dialect.empty())) jobs.push_back(&l);
  }
  if (jobs.empty())
    for (const Launch& l : all)
      if (l.starts != nullptr) jobs.push_back(&l);
  if (jobs.empty()) nothing_known(reading, all, source.name.empty() ? kCommandName : source.name);
  const auto tell_others = [&](const Launch* taken) {
    for (const Launch& l : all)
      if (&l != taken && l.starts != nullptr)
        notes.push_back({Note::Level::info, shown_place(l.place),
                         fmt::format("also starts {}, which is not part of this answer", l.written)});
  };
  if (source.which > 0) {
    if (source.which > static_cast<std::int64_t>(jobs.size()))
      fail({kCommandName, 0, 0, "--command"}, fmt::format("{}", source.which),
           fmt::format("1 to {}: so many jobs are started", jobs.size()), {});
    tell_others(jobs[static_cast<std::size_t>(source.which - 1)]);
    return *jobs[static_cast<std::size_t>(source.which - 1)];
  }
  if (jobs.size() > 1) {
    std::string list;
    for (std::size_t i = 0; i < jobs.size() && i < 20; ++i)
      list += fmt::format("{}{}: {}", i == 0 ? "" : "; ", i + 1, label(*jobs[i]));
    fail({source.name.empty() ? kCommandName : source.name, 0, 0, {}}, fmt::format("{} jobs", jobs.size()),
         "one, or --command N with the number of one", list);
  }
  tell_others(jobs[0]);
  return *jobs[0];
}

/// The source that the dialect's own reader takes.
Source taken(Handing& handing) {
  Source out = dialect_named(handing.launch().starts->dialect).take(handing);
  out.place = handing.place();
  return out;
}

/// What its reader objects to, in the words of the script. Where words are missing that nobody set, an error may come from that:
/// they are told beside it.
[[noreturn]] void tell(std::vector<Problem> problems, const Handing& handing, const ScriptReading& reading) {
  static_cast<void>(handing.placeholders().explain(problems));
  for (const launch::Text& gone : handing.gone())
    for (const char32_t unit : gone)
      if (launch::is_unknown(unit))
        problems.push_back({handing.place(),
                            launch::shown_text(gone, reading.unknowns),
                            "a value",
                            {},
                            "bash passes no word there: " + how_to_give(reading.unknowns[launch::index_of(unit)])});
  std::vector<Problem> first;
  for (const launch::Started* lost : lost_arguments(reading))
    first.push_back({shown_place({lost->file, lost->line, 0, {}}),
                     told_lost(*lost, reading),
                     "a backslash at the end of the line before",
                     {},
                     "bash ends the command in front of it",
                     {}});
  problems.insert(problems.begin(), first.begin(), first.end());
  throw InputError(std::move(problems));
}

/// Reads it once, so that what is wrong is told.
std::string job_of(Handing& handing, const ScriptReading& reading, const Catalog& catalog) {
  try {
    return to_json(read(taken(handing), &catalog).job);
  } catch (InputError& e) {
    tell(e.problems, handing, reading);
  }
}

/// Reads with what is unknown as placeholders: an error at one asks for it, and so does a job that changes with it.
void check_unknowns(const Launch& launch, const Source& source, const ScriptReading& reading, const Catalog& catalog) {
  std::vector<std::string> jobs;
  for (const char* const salt : {"", "other"}) {
    Handing handing(launch, source, reading, salt);
    jobs.push_back(job_of(handing, reading, catalog));
  }
  Handing first(launch, source, reading, "");
  std::string other = jobs[1];
  for (std::size_t at = other.find("unknownothervalue"); at != std::string::npos; at = other.find("unknownothervalue", at))
    other.replace(at, 17, "unknownvalue");
  if (jobs[0] == other) return;
  taken(first);
  std::string all;
  for (const launch::Unknown& u : first.placeholders().used()) all += (all.empty() ? "" : "; ") + how_to_give(u);
  fail(shown_place(launch.place), "a value that is not known", "one that the answer can rest on", all);
}

}  // namespace

bool is_launch(const Source& source) {
  if (!source.command.empty() || source.dialect == "launch") return true;
  return source.dialect.empty() && launch::is_script(source.text, source.name);
}

ScriptReading commands_of(const Source& source) {
  const launch::ScriptInput in = input_of(source);
  if (in.text.find("\r\n") != std::string::npos)
    fail({in.name, 1, 0, {}}, "lines that end in a carriage return", "lines as Linux has them (dos2unix FILE)",
         "bash takes it as part of the last word");
  if (in.text.find('\0') != std::string::npos) fail({in.name, 0, 0, {}}, "a zero byte", "the text of a script", {});
  return launch::read_script(in);
}

namespace {

/// `catalog` nullptr: no job is made.
Source resolve(const Source& source, const Catalog* catalog) {
  const ScriptReading reading = commands_of(source);
  const std::vector<Launch> all = launch::launches_of(reading, source.command.empty() ? source.text : "", entry_points());
  std::vector<Note> notes = source.notes;
  for (Note note : reading.notes) {
    note.place = shown_place(note.place);
    notes.push_back(std::move(note));
  }
  if (reading.broken)
    notes.push_back({Note::Level::warning, {}, fmt::format("bash stops reading the script there: {}", to_text(*reading.broken))});
  const Launch& launch = chosen(all, reading, source, notes);
  const EntryPoint& starts = *launch.starts;
  if (starts.dialect.empty()) {
    const std::string meant = meant_module(starts, launch.entry);
    const std::string name = fmt::format("'{}'", launch.entry.name);
    const bool script = launch.entry.kind == launch::Entry::Kind::script && meant == launch.entry.name;
    throw InputError(Problem{shown_place(launch.place),
                             meant.empty() ? ""
                             : script      ? name + " without -m"
                                           : name,
                             {},
                             meant.empty() ? "" : "-m " + meant,
                             script ? "python looks for a file of that name"
                                    : fmt::format("this starts {}, {} ({}), which oomplan does not read yet", starts.framework,
                                                  starts.what, launch.entry.name),
                             {}});
  }
  Handing handing(launch, source, reading, "");
  Source out = taken(handing);
  const auto lost = lost_arguments(reading);
  for (const launch::Started* s : lost)
    notes.push_back({Note::Level::warning, shown_place({s->file, s->line, 0, {}}),
                     told_lost(*s, reading) + ": the line before it has no backslash"});
  if (catalog != nullptr && (!handing.gone().empty() || !lost.empty())) static_cast<void>(job_of(handing, reading, *catalog));
  if (catalog != nullptr && handing.placeholders().any()) {
    check_unknowns(launch, source, reading, *catalog);
    for (const launch::Unknown& u : handing.placeholders().used())
      notes.push_back(
          {Note::Level::info, shown_place({u.file, u.line, 0, {}}),
           fmt::format("{} is not known; no figure depends on it", launch::is_name(u.name) ? u.name : "`" + u.name + "`")});
  }
  for (const launch::Text& gone : handing.gone())
    notes.push_back({Note::Level::warning, shown_place(launch.place),
                     fmt::format("{} is not set: bash passes no word there", launch::shown_text(gone, reading.unknowns))});
  if (!launch.condition.empty())
    notes.push_back({Note::Level::warning, shown_place(launch.place), fmt::format("started only if {}", launch.condition)});
  out.notes = std::move(notes);
  if (source.command.empty()) out.script = std::make_shared<const Source>(source);
  return out;
}

}  // namespace

Source resolved(const Source& source, const Catalog& catalog) { return resolve(source, &catalog); }
Source resolved_for_facts(const Source& source) { return resolve(source, nullptr); }
std::string in_script(const Source& script, const std::string& text) {
  return has_placeholder(text) ? with_names(text, commands_of(script).unknowns) : text;
}
std::string facts_in_script(const Source& script, const std::string& json) {
  return has_placeholder(json) ? json_with_names(json, commands_of(script).unknowns) : json;
}

}  // namespace oomplan
