#include "frontends/oumi/words.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/keys_of_lines.hpp"
#include "frontends/native.hpp"
#include "frontends/oumi/guide.hpp"
#include "frontends/oumi/images.hpp"
#include "frontends/oumi/job.hpp"
#include "frontends/oumi/meaning.hpp"
#include "frontends/oumi/read.hpp"
#include "frontends/oumi/rules.hpp"
#include "frontends/oumi/spell.hpp"
#include "frontends/trainers/problems.hpp"
#include "frontends/yaml_text.hpp"
#include "job/knobs.hpp"
#include "units/json_text.hpp"

namespace oomplan::oumi {
namespace {

/// One text, read and understood.
struct Understood {
  OumiText text;
  OumiMeaning meaning;
  NativeText native;
  ImagesSaid images;
  std::vector<Note> notes;
};

Understood understood(const Source& source, const Catalog* catalog) {
  Understood out;
  out.text = read_oumi(source);
  out.meaning = meaning_of(out.text);
  trainers::add_untold(out.text.problems, refusals_of(out.text, out.meaning));
  out.notes = out.text.notes;
  out.images = images_said(source.image_size);
  out.native = job_of(out.text, out.meaning, {source.gpu, source.sequence_tokens, source.open, out.images, catalog}, out.notes);
  add_beside(out.native, source);
  trainers::put_in_front(out.text.problems, out.native, out.notes, source.name);
  return out;
}

class OumiWords : public TextWords {
 public:
  OumiWords(const Source& source, const Catalog& catalog)
      : TextWords(source), catalog_(catalog), it_(understood(source_, &catalog)) {
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
      Spelt spelt = spell(it_.text, it_.meaning, knob, text);
      if (!spelt.why.empty()) {
        out.why = std::move(spelt.why);
        return out;
      }
      const Knob* k = find_knob(reading_.job, knob).knob;
      for (const Edit& edit : spelt.edits)
        if (!add(out, edit, k == nullptr ? Effect::semantics : k->effect)) return out;
    }
    return out;
  }

  Job job_with(const Rewrite& rewrite) const override { return reading_in_words(understood(with(rewrite), &catalog_)).job; }

 private:
  /// False, and `why`: two changes of one key.
  bool add(Rewrite& out, const Edit& edit, Effect effect) const {
    const auto* now = it_.text.root.at(edit.path);
    const std::string from = now == nullptr ? "" : yaml::written(oomplan::value_of(*now)), to = yaml::written(edit.value);
    if (now != nullptr && from == to) return true;
    const auto same = std::find_if(out.changes.begin(), out.changes.end(), [&](const Change& c) { return c.key == edit.path; });
    if (same != out.changes.end()) {
      if (same->to != to) out.why = fmt::format("{} is one key for several settings", edit.path);
      return same->to == to;
    }
    out.changes.push_back({edit.path, from, to, effect});
    out.values.push_back(edit.value);
    out.overrides.push_back(argument_of(edit));
    return true;
  }

  Reading reading_in_words(const Understood& it) const {
    stop_at(it.native.problems);
    try {
      NativeText native = it.native;
      std::vector<Note> notes = it.notes;
      size_images(native, it.images, catalog_, notes);
      check_units(it.text, native, catalog_);
      Reading out = oomplan::reading_of(std::move(native), source_.name, catalog_);
      for (Note& note : out.notes) rename(note.place, it);
      for (const Role& role : out.job.roles)
        if (const auto at = out.job.origins.find(role.name + ".model"); at != out.job.origins.end()) rename(at->second.place, it);
      out.notes.insert(out.notes.begin(), notes.begin(), notes.end());
      return out;
    } catch (InputError& e) {
      std::vector<Problem> problems = e.problems;
      for (Problem& p : problems) rename(p.place, it);
      throw InputError(std::move(problems));
    }
  }
  /// A knob is told by the key that gave it its value.
  static void rename(Place& place, const Understood& it) {
    for (const Setting& s : it.native.settings)
      if (s.key == place.path && !s.origin.place.path.empty()) place = s.origin.place;
  }
  FactValue value_of(const Rewrite& rewrite, std::size_t number) const override { return rewrite.values[number]; }
  bool means_the_same(const Source& changed, const Rewrite& rewrite) const override {
    try {
      return same_settings(reading_in_words(understood(changed, &catalog_)).job, job_with(rewrite));
    } catch (const InputError&) {
      return false;
    }
  }

  const Catalog& catalog_;
  Understood it_;
};

}  // namespace

bool recognises(const Source& source) {
  if (!source.dialect.empty()) return source.dialect == "oumi";
  return kind_of(keys_of_lines(source.text), source.text).has_value();
}

std::unique_ptr<TextWords> words_of(const Source& source, const Catalog& catalog) {
  return std::make_unique<OumiWords>(source, catalog);
}

std::string facts_json(const Source& source) {
  const Understood it = understood(source, nullptr);
  nlohmann::ordered_json out = facts_object(it.meaning.facts);
  out["framework"] = "oumi";
  out["framework_version"] = name_of(it.text.release);
  out["refusals"] = nlohmann::ordered_json::array();
  for (const auto& p : it.native.problems) out["refusals"].push_back(to_text(p));
  out["notes"] = nlohmann::ordered_json::array();
  for (const auto& n : it.notes) out["notes"].push_back(n.text);
  return json_text(out);
}

}  // namespace oomplan::oumi
