#include "frontends/rewrite.hpp"

#include <algorithm>
#include <list>

#include "catalog/catalog.hpp"
#include "frontends/areal/guide.hpp"
#include "frontends/areal/patch.hpp"
#include "frontends/areal/reading_store.hpp"
#include "frontends/areal/teller.hpp"
#include "frontends/launched.hpp"
#include "frontends/unified_diff.hpp"
#include "frontends/yaml_text.hpp"
#include "job/knobs.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

using areal::FactValue;

/// A native value as YAML has it: numbers and flags plain, items as a list.
FactValue native_value(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (!text.empty() && text.size() < 18 && text.find_first_not_of("0123456789") == std::string::npos)
    return static_cast<std::int64_t>(std::stoll(text));
  if (!text.starts_with('[') || !text.ends_with(']')) {
    const auto number = read_number(text);
    return number ? FactValue(*number.value) : FactValue(text);
  }
  FactValue out = FactValue::list();
  for (std::size_t at = 1; at + 1 < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size() - 1);
    out.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(", ", end);
  }
  return out;
}

std::string key_in(const std::string& argument) {
  const auto begin = argument.find_first_not_of("+~");
  return begin == std::string::npos ? "" : argument.substr(begin, argument.find('=') - begin);
}
bool one_holds_the_other(const std::string& a, const std::string& b) {
  return a == b || a.starts_with(b + ".") || b.starts_with(a + ".");
}

}  // namespace

/// What reading the file again with other arguments needs, and what it gave the last times: a candidate is admitted first, and
/// patched when it turned out to be one of the best.
struct FileWords::Kept {
  static constexpr std::size_t kMost = 16;
  using Text = std::shared_ptr<const areal::ArealText>;
  areal::ReadingStore store;
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

FileWords::FileWords(const Source& source, const Catalog& catalog)
    : source_(is_launch(source) ? resolved(source, catalog) : source), catalog_(catalog), kept_(std::make_unique<Kept>()) {
  FileReading read = read_file_words(source_, catalog_, kept_->store);
  reading_ = std::move(read.reading);
  areal_ = std::move(read.text);
}
FileWords::~FileWords() = default;
FileWords::FileWords(FileWords&&) noexcept = default;

std::string FileWords::key_of(std::string_view knob) const {
  const std::string key = native() ? "" : areal::theirs(knob, areal_->meaning);
  return key.empty() ? std::string(knob) : key;
}

std::string FileWords::log_of(std::string_view role) const {
  return native() ? "" : areal::log_of(role, areal_->meaning, areal_->root);
}

Rewrite FileWords::rewrite(const std::vector<std::pair<std::string, std::string>>& wanted) const {
  Rewrite out;
  if (native()) {
    for (const auto& [key, text] : wanted) {
      const Knob* knob = find_knob(reading_.job, key).knob;
      out.changes.push_back(
          {key, knob == nullptr ? "" : get(reading_.job, key), text, knob == nullptr ? Effect::semantics : knob->effect});
      out.overrides.push_back(key + "=" + text);
    }
    return out;
  }
  areal::Rewritten done = areal::rewrite(source_, *areal_, wanted, kept_->store);
  out.overrides = std::move(done.overrides);
  out.why = std::move(done.why);
  out.text = std::move(done.text);
  // the effect of an AReaL key is that of the strongest of our knobs that needs it
  const auto effect_of = [&](const std::string& path) {
    Effect effect = Effect::free;
    for (const auto& [knob, text] : wanted)
      if (one_holds_the_other(areal::theirs(knob, areal_->meaning), path) || areal::theirs(knob, areal_->meaning).empty())
        if (const Knob* k = find_knob(reading_.job, knob).knob) effect = std::max(effect, k->effect);
    return effect;
  };
  for (const auto& edit : done.edits) {
    const auto* now = areal_->root.at(edit.path);
    out.changes.push_back(
        {edit.path, now == nullptr ? "" : yaml::written(areal::value_of(*now)), yaml::written(edit.value), effect_of(edit.path)});
    out.values.push_back(edit.value);
  }
  return out;
}

Source FileWords::with(const Rewrite& rewrite) const {
  Source out = source_;
  out.overrides.insert(out.overrides.end(), rewrite.overrides.begin(), rewrite.overrides.end());
  return out;
}

std::shared_ptr<const areal::ArealText> FileWords::text_of(const Rewrite& rewrite) const {
  if (const Kept::Text* known = kept_->find(rewrite.overrides)) return *known;
  return kept_->keep(
      rewrite.overrides,
      rewrite.text ? rewrite.text : std::make_shared<const areal::ArealText>(areal::read_areal(with(rewrite), kept_->store)));
}

Job FileWords::job_with(const Rewrite& rewrite) const {
  if (native()) return read(with(rewrite), &catalog_).job;
  return reading_of(*text_of(rewrite), source_.name, catalog_).job;
}

bool FileWords::means_the_same(const Source& changed, const Rewrite& rewrite) const {
  try {
    if (native()) return same_settings(read(changed, &catalog_).job, job_with(rewrite));
    const areal::ArealText a = areal::read_areal(changed, kept_->store);
    return a.native.problems.empty() && areal::same_values(a.root, text_of(rewrite)->root);
  } catch (const InputError&) {
    return false;
  }
}

Patch FileWords::patch(const Rewrite& rewrite) const {
  Patch out;
  out.overrides = rewrite.overrides;
  Source changed = source_;
  for (std::size_t i = 0; i < rewrite.changes.size(); ++i) {
    const auto& [path, value] =
        std::pair(rewrite.changes[i].key, native() ? native_value(rewrite.changes[i].to) : rewrite.values[i]);
    const auto stale = [&](const std::string& argument) { return one_holds_the_other(key_in(argument), path); };
    std::copy_if(changed.overrides.begin(), changed.overrides.end(), std::back_inserter(out.stale), stale);
    std::erase_if(changed.overrides, stale);
    const yaml::TextChange text = yaml::with_value(changed.text, path, value);
    if (!text) return out;
    changed.text = text.text;
  }
  if (!means_the_same(changed, rewrite)) {
    out.stale.clear();
    return out;
  }
  out.file = changed.text;
  out.diff = unified_diff(source_.name, source_.text, changed.text);
  return out;
}

}  // namespace oomplan
