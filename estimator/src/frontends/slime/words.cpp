#include "frontends/slime/words.hpp"

#include <nlohmann/json.hpp>

#include "frontends/native_words.hpp"
#include "frontends/slime/job.hpp"
#include "frontends/slime/meaning.hpp"
#include "frontends/slime/read.hpp"
#include "frontends/slime/rules.hpp"
#include "units/json_text.hpp"

namespace oomplan::slime {

bool recognises(const Source& source) { return source.dialect == "slime"; }

std::unique_ptr<TextWords> words_of(const Source& source, const Catalog& catalog) {
  return std::make_unique<NativeWords>(source, [&catalog](const Source& s) { return read_job(s, catalog); });
}

std::string facts_json(const Source& source) {
  SlimeText text = read_slime(source);
  const SlimeMeaning m = meaning_of(text);
  check(text, m);
  nlohmann::ordered_json out = facts_object(m.facts);
  out["framework"] = "slime";
  out["framework_version"] = name_of(text.release);
  out["refusals"] = nlohmann::ordered_json::array();
  for (const auto& p : text.told.problems) out["refusals"].push_back(to_text(p));
  out["notes"] = nlohmann::ordered_json::array();
  for (const auto& n : text.told.notes) out["notes"].push_back(n.text);
  return json_text(out);
}

}  // namespace oomplan::slime
