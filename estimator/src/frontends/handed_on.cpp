#include "frontends/handed_on.hpp"

#include <utility>

#include <fmt/format.h>

#include "frontends/dialect.hpp"
#include "job/knobs.hpp"

namespace oomplan {
namespace {

/// Places that the other's reader tells, in the file.
class Places {
 public:
  explicit Places(const HandedOn& handed) : handed_(handed) {}
  void rename(Place& place) const {
    if (place.path.empty() || place.file != handed_.source.name) return;
    place = handed_.place_of(place.path);
  }
  Reading of(Reading reading) const {
    for (Note& note : reading.notes) rename(note.place);
    for (auto& [knob, origin] : reading.job.origins) rename(origin.place);
    return reading;
  }
  std::vector<Problem> of(std::vector<Problem> problems) const {
    for (Problem& p : problems) rename(p.place);
    return problems;
  }

 private:
  const HandedOn& handed_;
};

class HandedOnWords : public TextWords {
 public:
  HandedOnWords(const Source& file, HandedOn (*make)(const Source&), const Catalog& catalog)
      : TextWords(file), make_(make), catalog_(catalog), handed_(make(file)) {
    try {
      inner_ = oomplan::words_of(handed_.source, catalog);
    } catch (const InputError& e) {
      throw InputError(Places(handed_).of(e.problems));
    }
    reading_ = Places(handed_).of(inner_->reading());
    add_notes(handed_.notes);
  }

  bool native() const override { return false; }
  std::string key_of(std::string_view knob) const override {
    const std::string key = inner_->key_of(knob);
    return key == knob ? key : below(key);
  }
  std::string log_of(std::string_view role) const override { return inner_->log_of(role); }
  std::string_view guide_text(std::string_view knob, bool megatron) const override { return inner_->guide_text(knob, megatron); }
  std::vector<GuidePoint> guide() const override {
    std::vector<GuidePoint> out = inner_->guide();
    for (GuidePoint& point : out)
      for (std::string& text : point.overrides) text = as_argument(text);
    return out;
  }
  std::string_view guide_source() const override { return inner_->guide_source(); }

  Rewrite rewrite(const Settings& asked) const override {
    Rewrite out = inner_->rewrite(asked);
    if (!out.why.empty()) return out;
    out.overrides.clear();
    out.text.reset();
    for (std::size_t i = 0; i < out.changes.size(); ++i) {
      out.changes[i].key = below(out.changes[i].key);
      out.overrides.push_back(handed_.argument(out.changes[i].key, value_of(out, i)));
    }
    return out;
  }
  Job job_with(const Rewrite& rewrite) const override { return job_of(with(rewrite)); }

 private:
  /// "key=value" of the other's command line, "+" before it where its release lacks the key.
  std::string as_argument(std::string_view text) const {
    return fmt::format("--{}", below(text.starts_with('+') ? text.substr(1) : text));
  }
  std::string below(std::string_view key) const { return fmt::format("{}.{}", handed_.below, key); }
  Job job_of(const Source& file) const {
    const HandedOn handed = make_(file);
    return Places(handed).of(std::move(*oomplan::words_of(handed.source, catalog_)).take_reading()).job;
  }
  FactValue value_of(const Rewrite& rewrite, std::size_t number) const override {
    return number < rewrite.values.size() ? rewrite.values[number] : FactValue(rewrite.changes[number].to);
  }
  bool means_the_same(const Source& changed, const Rewrite& rewrite) const override {
    try {
      return same_settings(job_of(changed), job_with(rewrite));
    } catch (const InputError&) {
      return false;
    }
  }

  HandedOn (*make_)(const Source&);
  const Catalog& catalog_;
  HandedOn handed_;
  std::unique_ptr<TextWords> inner_;
};

}  // namespace

std::unique_ptr<TextWords> words_handed_on(const Source& file, HandedOn (*make)(const Source&), const Catalog& catalog) {
  return std::make_unique<HandedOnWords>(file, make, catalog);
}

}  // namespace oomplan
