#include "frontends/slime/launched.hpp"

#include <algorithm>
#include <array>

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
  out.dialect = family.word;
  return out;
}

}  // namespace oomplan::slime
