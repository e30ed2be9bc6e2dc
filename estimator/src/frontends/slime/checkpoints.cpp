#include "frontends/slime/checkpoints.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "catalog/stored_as.hpp"

namespace oomplan::slime {
namespace {

/// Folders that pages fill from a repository of another name (slime 0.1.0 to 624b824a), or that can be one model alone.
struct Folder {
  std::string_view end, id;
};
constexpr std::array kFolders{
    Folder{"GLM-4.7-355B-A32B", "zai-org/GLM-4.7"},              // docs/en/examples/glm4.7-355B-A32B.md
    Folder{"GLM-4.5-355B-A32B", "zai-org/GLM-4.5"},              // docs/en/models/glm4.5-355B-A32B.md
    Folder{"Qwen3-4B-Instruct", "Qwen/Qwen3-4B-Instruct-2507"},  // Relax 7a346d39 scripts/training/text: no other has the name
    Folder{"Qwen3-30B-A3B-Instruct", "Qwen/Qwen3-30B-A3B-Instruct-2507"},
    Folder{"font-info/qwen3-4b-sft", "Qwen/Qwen3-4B-Instruct-2507"},  // examples/retool/README.md: tuned from it
};

/// tools/convert_hf_to_fp8.py, convert_hf_to_int4_direct.py; fp8_cast_bf16.py and convert_k2_thinking_int4_to_bf16.py.
struct Conversion {
  std::string_view end, format, how;
};
constexpr std::array kConversions{
    Conversion{"-fp8", "fp8_blocks", "stored in fp8 with a scale for 128 x 128 elements, as tools/convert_hf_to_fp8.py does"},
    Conversion{"-int4", "int4_experts_g{}",
               "its experts stored in 4 bits with a scale for {} elements, as tools/convert_hf_to_int4_direct.py does"},
    Conversion{"-bf16", "bf16", "stored in bf16"},
};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string with_group(std::string_view text, std::int64_t group) {
  std::string out(text);
  if (const std::size_t at = out.find("{}"); at != std::string::npos) out.replace(at, 2, fmt::format("{}", group));
  return out;
}

std::optional<std::string> known(const std::string& name, const Catalog& catalog) {
  try {
    return catalog.model(name).id;
  } catch (const InputError&) {  // told by the name that was given
    return std::nullopt;
  }
}

/// Of "models--Qwen--Qwen3-4B/snapshots/<commit>", Hugging Face's cache, "Qwen/Qwen3-4B"; of "Qwen3-4B-<commit>" "Qwen3-4B".
std::string without_commit(const std::string& path) {
  constexpr std::string_view kCache = "models--", kSnapshots = "/snapshots/";
  constexpr std::size_t kCommit = 40;
  const std::size_t cache = path.rfind(kCache), end = path.find(kSnapshots, cache == std::string::npos ? 0 : cache);
  if (cache != std::string::npos && end != std::string::npos) {
    std::string id = path.substr(cache + kCache.size(), end - cache - kCache.size());
    if (const std::size_t dashes = id.find("--"); dashes != std::string::npos) id.replace(dashes, 2, "/");
    return id;
  }
  const bool commit = path.size() > kCommit && path.find_last_not_of("0123456789abcdef") == path.size() - kCommit - 1 &&
                      path[path.size() - kCommit - 1] == '-';
  return path.substr(0, path.size() - (commit ? kCommit + 1 : 0));
}

std::optional<std::string> named(const std::string& written, const Catalog& catalog) {
  const std::string path = without_commit(written);
  for (const Folder& folder : kFolders)
    if (path == folder.end || path.ends_with("/" + std::string(folder.end))) return std::string(folder.id);
  const std::string last = path.substr(path.rfind('/') + 1);  // of none: npos + 1 is 0
  return last.empty() ? std::nullopt : known(last, catalog);
}

}  // namespace

std::optional<CheckpointTaken> checkpoint_of_folder(const std::string& folder, std::int64_t group, const Catalog& catalog) {
  std::string path = folder;
  while (path.ends_with('/')) path.pop_back();
  if (auto id = named(path, catalog)) return CheckpointTaken{*id, {}};
  for (const Conversion& c : kConversions) {
    if (!lower(path).ends_with(c.end)) continue;
    const auto id = named(path.substr(0, path.size() - c.end.size()), catalog);
    const auto stored = id ? known(stored_name(*id, with_group(c.format, group)), catalog) : std::nullopt;
    if (stored) return CheckpointTaken{*stored, with_group(c.how, group)};
  }
  return std::nullopt;
}

std::optional<CheckpointTaken> tuned_checkpoint(const std::string& folder, const Catalog& catalog) {
  constexpr std::array<std::string_view, 9> kFormats{"fp8", "fp4", "int4", "int8", "awq", "gptq", "gguf", "w8a8", "4bit"};
  std::string path = folder;
  while (path.ends_with('/')) path.pop_back();
  std::string name = path.substr(path.rfind('/') + 1);
  const std::string all = lower(name);
  if (std::any_of(kFormats.begin(), kFormats.end(), [&](auto f) { return all.find(f) != std::string::npos; }))
    return std::nullopt;
  for (std::size_t end = name.find_last_of("-_"); end != std::string::npos && end > 0; end = name.find_last_of("-_")) {
    name.resize(end);
    if (const auto id = known(name, catalog)) return CheckpointTaken{*id, "with whose name it begins"};
  }
  return std::nullopt;
}

}  // namespace oomplan::slime
