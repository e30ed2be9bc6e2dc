#include "frontends/areal/words.hpp"

#include <algorithm>
#include <list>

#include "frontends/areal/areal.hpp"
#include "frontends/areal/guide.hpp"
#include "frontends/areal/patch.hpp"
#include "frontends/areal/reading_store.hpp"
#include "frontends/areal/teller.hpp"
#include "frontends/areal/wording.hpp"
#include "frontends/key_path.hpp"
#include "frontends/keys_of_lines.hpp"
#include "frontends/native.hpp"
#include "frontends/yaml_text.hpp"
#include "job/knobs.hpp"

namespace oomplan::areal {
namespace {

/// A prompt whose length is not written is what a limit leaves beside the response: who changes the response says it.
Settings with_prompt(const Job& job, Settings wanted) {
  const auto says = [&](std::string_view key) {
    return std::any_of(wanted.begin(), wanted.end(), [&](const auto& setting) { return setting.first == key; });
  };
  if (says("response_tokens") && !says("prompt_tokens") && job.prompt_tokens > 0)
    wanted.emplace_back("prompt_tokens", get(job, "prompt_tokens"));
  return wanted;
}

/// In the words of the file: our keys become AReaL's.
Reading reading_of(const ArealText& text, const Source& source, const Catalog& catalog) {
  stop_at(text.native.problems);
  // a knob that no row translates is told by the key that gave it its value
  const auto rename = [&](Place& place) {
    std::string key = theirs(place.path, text.meaning);
    for (const Setting& s : text.native.settings)
      if (key.empty() && s.key == place.path) key = s.origin.place.path;
    if (!key.empty()) place.path = std::move(key);
  };
  try {
    NativeText native = text.native;
    add_beside(native, source);
    Reading out = oomplan::reading_of(std::move(native), source.name, catalog);
    for (auto& note : out.notes) rename(note.place);
    // where a model is named: what no tape describes of it is told there, behind the reading (estimate/role_run)
    for (const Role& role : out.job.roles)
      if (const auto at = out.job.origins.find(role.name + ".model"); at != out.job.origins.end()) rename(at->second.place);
    out.notes.insert(out.notes.begin(), text.notes.begin(), text.notes.end());
    return out;
  } catch (InputError& e) {
    std::vector<Problem> problems = e.problems;
    for (auto& p : problems) {
      rename(p.place);
      // AReaL's word for auto is null, its word for NCCL xccl
      if (p.place.path.ends_with("weight_update_mode") && p.found == "'nccl'") p.found = "'xccl'";
      if (p.expected.ends_with(", or auto")) p.expected.replace(p.expected.size() - 4, 4, "null");
    }
    stop_at(std::move(problems));
    throw;
  }
}

/// What reading the file again with other arguments needs, and what it gave the last times: a candidate is admitted first, and
/// patched when it turned out to be one of the best.
struct Kept {
  static constexpr std::size_t kMost = 16;
  using Text = std::shared_ptr<const ArealText>;
  ReadingStore store;
  std::list<std::pair<std::vector<std::string>, Text>> texts;  ///< by overrides, last made first

  const Text* find(const std::vector<std::string>& overrides) const {
    const auto it = std::find_if(texts.begin(), texts.end(), [&](const auto& row) { return row.first == overrides; });
    return it == texts.end() ? nullptr : &it->second;
  }
  const Text& keep(const std::vector<std::string>& overrides, Text text) {
    if (texts.size() >= kMost) texts.pop_back();
    return texts.emplace_front(overrides, std::move(text)).second;
  }
};

class ArealWords : public TextWords {
 public:
  ArealWords(const Source& source, const Catalog& catalog) : TextWords(source), catalog_(catalog) {
    text_ = std::make_shared<const ArealText>(read_areal(source_, kept_.store));
    reading_ = reading_of(*text_, source_, catalog_);
  }

  bool native() const override { return false; }
  std::string key_of(std::string_view knob) const override {
    const std::string key = theirs(knob, text_->meaning);
    return key.empty() ? std::string(knob) : key;
  }
  std::string log_of(std::string_view role) const override { return areal::log_of(role, text_->meaning, text_->root); }
  std::string_view guide_text(std::string_view knob, bool megatron) const override { return areal::guide_text(knob, megatron); }

  Rewrite rewrite(const Settings& asked) const override {
    const auto wanted = with_prompt(reading_.job, asked);
    Rewrite out;
    Rewritten done = areal::rewrite(source_, *text_, wanted, kept_.store);
    out.overrides = std::move(done.overrides);
    out.why = std::move(done.why);
    out.text = std::move(done.text);
    // the effect of an AReaL key is that of the strongest of our knobs that needs it
    const auto effect_of = [&](const std::string& path) {
      Effect effect = Effect::free;
      for (const auto& [knob, text] : wanted)
        if (one_holds_the_other(theirs(knob, text_->meaning), path) || theirs(knob, text_->meaning).empty())
          if (const Knob* k = find_knob(reading_.job, knob).knob) effect = std::max(effect, k->effect);
      return effect;
    };
    for (const auto& edit : done.edits) {
      const auto* now = text_->root.at(edit.path);
      out.changes.push_back({edit.path, now == nullptr ? "" : yaml::written(areal::value_of(*now)), yaml::written(edit.value),
                             effect_of(edit.path)});
      out.values.push_back(edit.value);
    }
    return out;
  }

  Job job_with(const Rewrite& rewrite) const override { return reading_of(*text_of(rewrite), source_, catalog_).job; }

 private:
  std::shared_ptr<const ArealText> text_of(const Rewrite& rewrite) const {
    if (const Kept::Text* known = kept_.find(rewrite.overrides)) return *known;
    auto kept = std::static_pointer_cast<const ArealText>(rewrite.text);
    return kept_.keep(rewrite.overrides,
                      kept ? std::move(kept) : std::make_shared<const ArealText>(read_areal(with(rewrite), kept_.store)));
  }
  FactValue value_of(const Rewrite& rewrite, std::size_t number) const override { return rewrite.values[number]; }
  bool means_the_same(const Source& changed, const Rewrite& rewrite) const override {
    try {
      const ArealText a = read_areal(changed, kept_.store);
      return a.native.problems.empty() && same_values(a.root, text_of(rewrite)->root);
    } catch (const InputError&) {
      return false;
    }
  }

  const Catalog& catalog_;
  mutable Kept kept_;  ///< what it holds changes no answer
  std::shared_ptr<const ArealText> text_;
};

}  // namespace

bool recognises(const Source& source) {
  if (!source.dialect.empty()) return source.dialect == "areal";
  const std::vector<std::string> keys = keys_of_lines(source.text);
  const auto has = [&](std::string_view key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  if (recognises(keys)) return true;
  // With a framework's version a file may leave the names of a trial, by which it is known, to the command line.
  return !source.framework_version.empty() && !has("oomplan") && (has("actor") || has("rollout") || has("train_dataset"));
}

std::unique_ptr<TextWords> words_of(const Source& source, const Catalog& catalog) {
  return std::make_unique<ArealWords>(source, catalog);
}

}  // namespace oomplan::areal
