#include "frontends/slime/launched.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frontends/launch/paths.hpp"
#include "frontends/launch/quote.hpp"

namespace oomplan::slime {
namespace {

using launch::EntryPoint;
using Kind = launch::Entry::Kind;

/// THUDM/slime 0.1.0 to 624b824a, scripts and examples. Others have a train.py, too: a flag of slime's must be there.
constexpr std::array kPrograms{
    EntryPoint{Kind::script, "train.py", "--rollout-batch-size", "slime", "its trainer", "slime"},
    EntryPoint{Kind::script, "train_async.py", "--rollout-batch-size", "slime", "its asynchronous trainer", "slime"},
    EntryPoint{Kind::script, "train.py", "--hf-checkpoint", "slime", "its trainer", "slime"},
    EntryPoint{Kind::script, "train_async.py", "--hf-checkpoint", "slime", "its asynchronous trainer", "slime"},
    EntryPoint{Kind::script, "train.py", "--update-weight-buffer-size", "slime", "its trainer", "slime"},
    EntryPoint{Kind::script, "train.py", "--actor-num-gpus-per-node", "slime", "its trainer", "slime"},
    EntryPoint{Kind::script, "train_async.py", "--actor-num-gpus-per-node", "slime", "its asynchronous trainer", "slime"},
};

/// The word behind the last flag of that name.
std::optional<std::string> value_behind(const std::vector<std::string>& words, const std::string& flag) {
  std::optional<std::string> out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == flag && i + 1 < words.size()) out = words[i + 1];
    if (words[i].starts_with(flag + "=")) out = words[i].substr(flag.size() + 1);
  }
  return out;
}

}  // namespace

std::span<const EntryPoint> entry_points() { return kPrograms; }

Source take(const Family& family, Handing& handing) {
  Source out = handing.asked();
  const std::string program = launch::last_part(handing.launch().entry.name);
  std::vector<std::string> line{program.ends_with(".py") ? program : program + ".py"};  // a module, too, is a file
  const auto& words = handing.words();
  line.insert(line.end(), words.begin() + static_cast<std::ptrdiff_t>(std::min(handing.first_argument(), words.size())),
              words.end());
  out.text = launch::command_text(line);
  // files that the script itself writes
  std::map<std::string, std::string> texts;
  for (const char* flag : {"--custom-config-path", "--megatron-config-path", "--sglang-config"})
    if (const auto path = value_behind(line, flag))
      if (auto text = handing.text_of(*path)) texts[*path] = std::move(*text);
  if (!texts.empty())
    out.open = [texts = std::move(texts), open = out.open](const std::string& path) -> std::optional<std::string> {
      if (const auto found = texts.find(path); found != texts.end()) return found->second;
      return open ? open(path) : std::nullopt;
    };
  out.dialect = family.word;
  return out;
}

}  // namespace oomplan::slime
