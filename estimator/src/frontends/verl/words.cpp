#include "frontends/verl/words.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/native.hpp"
#include "frontends/verl/file_kinds.hpp"
#include "frontends/verl/guide.hpp"
#include "frontends/verl/job.hpp"
#include "frontends/verl/meaning.hpp"
#include "frontends/verl/read.hpp"
#include "frontends/verl/rules.hpp"
#include "frontends/verl/spell.hpp"
#include "frontends/yaml_text.hpp"
#include "job/knobs.hpp"
#include "units/json_text.hpp"

namespace oomplan::verl {
namespace {

/// One text, read and understood.
struct Understood {
  VerlText text;
  VerlMeaning meaning;
  NativeText native;
  std::vector<Note> notes;
};

Understood understood(const Source& source) {
  Understood out;
  out.text = read_verl(source);
  for (Problem& p : refusals_of(out.text)) out.text.problems.push_back(std::move(p));
  out.meaning = meaning_of(out.text);
  out.notes = out.text.notes;
  out.native = job_of(out.text, out.meaning,
                      {source.gpu, source.sequence_tokens, images_said(source.image_size), source.linear_attention}, out.notes);
  add_beside(out.native, source);
  // what verl refuses is not asked for on top
  std::erase_if(out.native.problems, [&](const Problem& p) {
    return p.kind == ProblemKind::not_supported && !p.place.path.empty() &&
           std::any_of(out.text.problems.begin(), out.text.problems.end(),
                       [&](const Problem& q) { return q.place.path == p.place.path; });
  });
  for (const std::string& word : source.overrides)
    if (word.starts_with("gpus="))
      out.native.settings.push_back(
          {"gpus", word.substr(5), {Origin::Kind::override_, {"command line", 0, 0, "gpus"}, word, {}}});
  for (Note& n : out.notes)
    if (n.place.file.empty()) n.place.file = source.name;
  for (Problem& p : out.native.problems)
    if (p.place.file.empty()) p.place.file = source.name;
  return out;
}

class VerlWords : public TextWords {
 public:
  VerlWords(const Source& source, const Catalog& catalog) : TextWords(source), catalog_(catalog), it_(understood(source_)) {
    reading_ = reading_in_words(it_);
  }

  bool native() const override { return false; }
  std::string key_of(std::string_view knob) const override {
    const std::string key = key_of_knob(it_.text, it_.meaning, knob);
    return key.empty() ? std::string(knob) : key;
  }
  std::string log_of(std::string_view) const override { return {}; }
  std::string_view guide_text(std::string_view, bool) const override { return {}; }

  std::vector<GuidePoint> guide() const override { return guide_points(it_.text, it_.meaning); }
  std::string_view guide_source() const override { return kGuide; }

  Rewrite rewrite(const Settings& asked) const override {
    Rewrite out;
    for (const auto& [knob, text] : asked) {
      Spelt spelt = spell(reading_.job, it_.text, it_.meaning, knob, text);
      if (!spelt.why.empty()) {
        out.why = std::move(spelt.why);
        return out;
      }
      const Knob* k = find_knob(reading_.job, knob).knob;
      for (const Edit& edit : spelt.edits) {
        const auto* now = it_.text.root.at(edit.path);
        const std::string from = now == nullptr ? "" : yaml::written(oomplan::value_of(*now)), to = yaml::written(edit.value);
        if (now != nullptr && from == to) continue;
        const auto same =
            std::find_if(out.changes.begin(), out.changes.end(), [&](const Change& c) { return c.key == edit.path; });
        if (same != out.changes.end()) {  // actor and reference have one model, and one key for it
          if (same->to != to) {
            out.why = fmt::format("{} is one key for several roles", edit.path);
            return out;
          }
          continue;
        }
        out.changes.push_back({edit.path, from, to, k == nullptr ? Effect::semantics : k->effect});
        out.values.push_back(edit.value);
        out.overrides.push_back(override_text(edit));
      }
    }
    return out;
  }

  Job job_with(const Rewrite& rewrite) const override { return reading_in_words(understood(with(rewrite))).job; }

 private:
  Reading reading_in_words(const Understood& it) const {
    stop_at(it.native.problems);
    try {
      Reading out = oomplan::reading_of(it.native, source_.name, catalog_);
      for (Note& note : out.notes) rename(note.place, it);
      // where a model is named: what no tape describes of it is told there, behind the reading (estimate/role_run)
      for (const Role& role : out.job.roles)
        if (const auto at = out.job.origins.find(role.name + ".model"); at != out.job.origins.end()) rename(at->second.place, it);
      out.notes.insert(out.notes.begin(), it.notes.begin(), it.notes.end());
      return out;
    } catch (InputError& e) {
      std::vector<Problem> problems = e.problems;
      for (Problem& p : problems) {
        degree(p, it);
        at_the_model(p, it);
        rename(p.place, it);
      }
      throw InputError(std::move(problems));
    }
  }
  /// "c6 does not divide the 32 attention heads" is about the key of that degree, and not about the layout's letters.
  static void degree(Problem& p, const Understood& it) {
    constexpr std::string_view kLayout = ".layout";
    if (!p.place.path.ends_with(kLayout) || p.why.size() < 2 || p.why[1] < '1' || p.why[1] > '9') return;
    const std::string name = p.why[0] == 't' ? "tp" : p.why[0] == 'c' ? "cp" : p.why[0] == 'e' ? "ep" : "";
    const ToldFact* f = it.meaning.find(fmt::format("roles.{}.{}", p.place.path, name));
    if (name.empty() || f == nullptr || f->origin.place.path.empty()) return;
    p.place = f->origin.place;
    p.found = fmt::format("'{}'", f->value.plain());
  }
  /// A knob that no key says follows from release and model: it is told at the model's key, by its name.
  static void at_the_model(Problem& p, const Understood& it) {
    const auto setting = [&](std::string_view key) {
      const auto& all = it.native.settings;
      return std::any_of(all.begin(), all.end(), [&](const Setting& s) { return s.key == key; });
    };
    const auto dot = p.place.path.find('.');
    if (dot == std::string::npos || setting(p.place.path)) return;
    std::string model = p.place.path.substr(0, dot) + ".model";
    if (!setting(model)) return;
    p.found = fmt::format("{} {}", std::string_view(p.place.path).substr(dot + 1), p.found);
    p.place.path = std::move(model);
  }
  /// A knob is told by the key that gave it its value.
  static void rename(Place& place, const Understood& it) {
    for (const Setting& s : it.native.settings)
      if (s.key == place.path && !s.origin.place.path.empty()) place = s.origin.place;
  }
  FactValue value_of(const Rewrite& rewrite, std::size_t number) const override { return rewrite.values[number]; }
  bool means_the_same(const Source& changed, const Rewrite& rewrite) const override {
    try {
      return same_settings(reading_in_words(understood(changed)).job, job_with(rewrite));
    } catch (const InputError&) {
      return false;
    }
  }
  bool has_file() const override { return !is_command(source_.text); }

  const Catalog& catalog_;
  Understood it_;
};

}  // namespace

bool recognises(const Source& source) {
  if (!source.dialect.empty()) return source.dialect == "verl";
  return kind_of_file(source).has_value();
}

std::unique_ptr<TextWords> words_of(const Source& source, const Catalog& catalog) {
  return std::make_unique<VerlWords>(source, catalog);
}

std::string facts_json(const Source& source) {
  const Understood it = understood(source);
  nlohmann::ordered_json out = facts_object(it.meaning.facts);
  for (const auto& role : it.meaning.absent) out["absent_roles"][role.role] = {{"v", role.why}, {"o", "code"}, {"w", role.where}};
  out["framework"] = "verl";
  out["framework_version"] = name_of(it.text.release);
  out["refusals"] = nlohmann::ordered_json::array();
  for (const auto& p : it.native.problems) out["refusals"].push_back(to_text(p));
  out["notes"] = nlohmann::ordered_json::array();
  for (const auto& n : it.notes) out["notes"].push_back(n.text);
  return json_text(out);
}

}  // namespace oomplan::verl
