#include "frontends/words.hpp"

#include <algorithm>
#include <iterator>

#include "frontends/key_path.hpp"
#include "frontends/unified_diff.hpp"
#include "frontends/yaml_text.hpp"

namespace oomplan {
namespace {

std::string key_in(const std::string& argument) {
  const auto begin = argument.find_first_not_of("+~");
  return begin == std::string::npos ? "" : argument.substr(begin, argument.find('=') - begin);
}
}  // namespace

Source TextWords::with(const Rewrite& rewrite) const {
  Source out = source_;
  out.overrides.insert(out.overrides.end(), rewrite.overrides.begin(), rewrite.overrides.end());
  return out;
}

Patch TextWords::patch(const Rewrite& rewrite) const {
  Patch out;
  out.overrides = rewrite.overrides;
  out.in_file = has_file();
  if (!out.in_file) return out;
  Source changed = source_;
  for (std::size_t i = 0; i < rewrite.changes.size(); ++i) {
    const std::string& path = rewrite.changes[i].key;
    const auto stale = [&](const std::string& argument) { return one_holds_the_other(key_in(argument), path); };
    std::copy_if(changed.overrides.begin(), changed.overrides.end(), std::back_inserter(out.stale), stale);
    std::erase_if(changed.overrides, stale);
    const yaml::TextChange text = yaml::with_value(changed.text, path, value_of(rewrite, i));
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
