#include "frontends/transformers/launched.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "frontends/launch/paths.hpp"

namespace oomplan::transformers {
namespace {

using launch::EntryPoint;
using Kind = launch::Entry::Kind;

/// huggingface/trl v1.9.0: trl/cli; examples/scripts; huggingface/transformers: examples/pytorch/language-modeling. Others'
/// scripts are known by arguments that only Transformers has.
constexpr std::array kPrograms{
    EntryPoint{Kind::program, "trl", "sft", "TRL", "its SFT", "transformers"},
    EntryPoint{Kind::program, "trl", "dpo", "TRL", "its DPO", "transformers"},
    EntryPoint{Kind::program, "trl", "grpo", "TRL", "its GRPO", "transformers"},
    EntryPoint{Kind::program, "trl", "kto", "TRL", "its KTO", "transformers"},
    EntryPoint{Kind::program, "trl", "reward", "TRL", "its reward trainer", "transformers"},
    EntryPoint{Kind::program, "trl", "rloo", "TRL", "its RLOO", "transformers"},
    EntryPoint{Kind::module, "trl.scripts.*", "", "TRL", "a trainer of it", "transformers"},
    EntryPoint{Kind::script, "run_clm.py", "", "Transformers", "its language modeling", "transformers"},
    EntryPoint{Kind::script, "*", "--per_device_train_batch_size", "Transformers", "a script around its Trainer", "transformers",
               true, true},
    EntryPoint{Kind::script, "*", "--per-device-train-batch-size", "Transformers", "a script around its Trainer", "transformers",
               true, true},
    EntryPoint{Kind::module, "*", "--per_device_train_batch_size", "Transformers", "a module around its Trainer", "transformers",
               true, true},
    EntryPoint{Kind::script, "*", "--gradient_accumulation_steps", "Transformers", "a script around its Trainer", "transformers",
               true, true},
    EntryPoint{Kind::script, "trl/scripts/sft.py", "", "TRL", "its SFT", "transformers", true, true},
    EntryPoint{Kind::script, "examples/scripts/sft.py", "", "TRL", "its SFT", "transformers", true, true},
};

bool is_text_file(const std::string& word) {
  return word.ends_with(".json") || word.ends_with(".yaml") || word.ends_with(".yml");
}

/// The script's own words, without the file of arguments: --config FILE, or a file alone (run_clm.py args.json).
struct Words {
  std::string file;
  std::vector<std::string> others;
};
Words words_of_command(Handing& handing, std::size_t first) {
  const auto& all = handing.words();
  Words out;
  for (std::size_t i = first; i < all.size(); ++i) {
    const bool config = all[i] == "--config" || all[i].starts_with("--config=");
    if (config && all[i].find('=') != std::string::npos) {
      out.file = all[i].substr(9);
    } else if (config) {
      if (++i >= all.size()) handing.fail("--config without a value", "a file behind it", {});
      out.file = all[i];
    } else if (i == first && i + 1 == all.size() && is_text_file(all[i])) {
      out.file = all[i];
    } else {
      out.others.push_back(all[i]);
    }
  }
  return out;
}

/// The text of a file that the script writes, or that lies beside the job.
std::optional<std::string> found_text(Handing& handing, const std::string& path) {
  std::optional<std::string> text = handing.text_of(path);
  const std::string& job = handing.place().file;
  const auto slash = job.rfind('/');
  if (!text && slash != std::string::npos && !path.empty() && path.front() != '/')
    text = handing.text_of(job.substr(0, slash + 1) + path);
  return text;
}

}  // namespace

std::span<const EntryPoint> entry_points() { return kPrograms; }

Source take(Handing& handing) {
  const auto& all = handing.words();
  const bool trl = launch::last_part(handing.launch().entry.name) == "trl";
  const std::size_t first = std::min(handing.first_argument() + (trl ? 1 : 0), all.size());
  Words said = words_of_command(handing, first);
  Source out = handing.asked();
  if (!said.file.empty()) {
    std::optional<std::string> text = found_text(handing, said.file);
    if (!text) handing.fail(fmt::format("no file {}", said.file), "the file that --config names", {});
    out.text = std::move(*text);
    out.name = said.file;
  }
  // files that the words name, of which the script may have written some
  std::map<std::string, std::string> texts;
  for (const std::string& word : all) {
    const std::string path =
        word.starts_with("--") && word.find('=') != std::string::npos ? word.substr(word.find('=') + 1) : word;
    if (is_text_file(path))
      if (auto text = found_text(handing, path)) texts[path] = std::move(*text);
  }
  out.open = [texts = std::move(texts), open = out.open](const std::string& path) -> std::optional<std::string> {
    if (const auto found = texts.find(path); found != texts.end()) return found->second;
    return open ? open(path) : std::nullopt;
  };
  out.overrides.insert(out.overrides.begin(), said.others.begin(), said.others.end());
  out.arguments.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
  const launch::Launch& launch = handing.launch();
  if (launch.gpus_per_node) out.environment["OOMPLAN_STATED_GPUS_PER_NODE"] = fmt::format("{}", launch.gpus_per_node->value);
  if (launch.nodes) out.environment["OOMPLAN_STATED_NODES"] = fmt::format("{}", launch.nodes->value);
  out.dialect = "transformers";
  return out;
}

}  // namespace oomplan::transformers
