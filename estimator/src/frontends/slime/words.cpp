#include "frontends/slime/words.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "frontends/slime/fsdp.hpp"
#include "frontends/slime/job.hpp"
#include "frontends/slime/meaning.hpp"
#include "frontends/slime/read.hpp"
#include "frontends/slime/rules.hpp"
#include "frontends/slime/spell.hpp"
#include "job/knobs.hpp"
#include "units/json_text.hpp"

namespace oomplan::slime {
namespace {

class SlimeWords : public TextWords {
 public:
  SlimeWords(const Family& family, const Source& source, const Catalog& catalog)
      : TextWords(source), family_(family), catalog_(catalog), text_(read_slime(family, source_)), meaning_(meaning_of(text_)) {
    reading_ = read_job(family_, source_, catalog_);
  }

  bool native() const override { return false; }
  std::string key_of(std::string_view knob) const override {
    const std::string flag = flag_of(text_, knob);
    return flag.empty() ? std::string(knob) : flag;
  }
  std::string log_of(std::string_view) const override { return {}; }
  std::string_view guide_text(std::string_view, bool) const override { return {}; }
  std::vector<GuidePoint> guide() const override {
    return family_.guide == nullptr || meaning_.supervised || by_fsdp(text_) ? std::vector<GuidePoint>{}
                                                                             : family_.guide(text_, meaning_);
  }
  std::string_view guide_source() const override { return family_.guide_source; }
  /// The arrays of slime's scripts: PERF_ARGS has Megatron's degrees and budgets, SGLANG_ARGS the servers' flags.
  std::string_view neighbour_of(std::string_view flag) const override {
    if (flag.starts_with("--teacher-")) return "--opd-type";
    if (fsdp_flag(flag) != nullptr) return "--train-backend";
    return flag.starts_with("--sglang-") ? "--rollout-num-gpus-per-engine" : "--tensor-model-parallel-size";
  }

  /// A flag that two knobs ask for is appended once.
  Rewrite rewrite(const Settings& asked) const override {
    Rewrite out;
    for (const auto& [key, value] : asked) {
      Spelt spelt = spell(text_, meaning_, key, value, asked);
      if (!spelt.why.empty()) {
        out.why = std::move(spelt.why);
        return out;
      }
      const Knob* knob = find_knob(reading_.job, key).knob;
      for (const Edit& edit : spelt.edits) {
        const bool gone = edit.flag.starts_with('~');
        const std::string flag = gone ? edit.flag.substr(1) : edit.flag, from = said(text_, flag);
        const std::string to = gone ? "taken out" : edit.value.empty() ? "true" : edit.value;
        const auto known = std::find_if(out.changes.begin(), out.changes.end(), [&](const Change& c) { return c.key == flag; });
        if (from == to || known != out.changes.end()) continue;
        out.changes.push_back({flag, from, to, knob == nullptr ? Effect::semantics : knob->effect});
        out.values.emplace_back(to);
        out.overrides.push_back(edit.value.empty() ? edit.flag : edit.flag + "=" + edit.value);
      }
    }
    return out;
  }

  Job job_with(const Rewrite& rewrite) const override { return read_job(family_, with(rewrite), catalog_).job; }

 private:
  FactValue value_of(const Rewrite& rewrite, std::size_t number) const override { return rewrite.values[number]; }
  bool means_the_same(const Source& changed, const Rewrite& rewrite) const override {
    try {
      return same_settings(read_job(family_, changed, catalog_).job, job_with(rewrite));
    } catch (const InputError&) {
      return false;
    }
  }
  bool has_file() const override { return false; }

  const Family& family_;
  const Catalog& catalog_;
  SlimeText text_;
  SlimeMeaning meaning_;
};

}  // namespace

bool recognises(const Family& family, const Source& source) { return source.dialect == family.word; }

std::unique_ptr<TextWords> words_of(const Family& family, const Source& source, const Catalog& catalog) {
  return std::make_unique<SlimeWords>(family, source, catalog);
}

std::string facts_json(const Family& family, const Source& source) {
  SlimeText text = read_slime(family, source);
  const SlimeMeaning m = meaning_of(text);
  check(text, m);
  nlohmann::ordered_json out = facts_object(m.facts);
  out["framework"] = family.word;
  out["framework_version"] = name_of(text.release);
  out["refusals"] = nlohmann::ordered_json::array();
  for (const auto& p : text.told.problems) out["refusals"].push_back(to_text(p));
  out["notes"] = nlohmann::ordered_json::array();
  for (const auto& n : text.told.notes) out["notes"].push_back(n.text);
  return json_text(out);
}

}  // namespace oomplan::slime
