// The files of models/: those compiled in, or those of a directory laid over them. Names of models are known from file names
// alone, so that nothing is parsed before it is asked for.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oomplan {

/// The text of a regular file of at most kMaxJsonBytes; nothing when there is none. Throws InputError when it cannot be read.
std::optional<std::string> file_text(const std::string& path);

/// Paths, relative to models/, of the files that start with `prefix` and end in ".json", sorted.
std::vector<std::string> embedded_paths(std::string_view prefix);
/// The same below a directory on disk.
std::vector<std::string> directory_paths(const std::string& directory, std::string_view prefix);

/// "architectures/Qwen--Qwen3-8B.json" is "Qwen/Qwen3-8B".
std::string id_of_path(std::string_view path);
std::string path_of_id(std::string_view id);

/// Lower case, with '_' and ' ' as '-'.
std::string normalised(std::string_view name);

/// config.json of a model in the local Hugging Face cache: the snapshot that refs/main names, otherwise the only one. Looks in
/// $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub. "" when it is not there.
std::string cached_config(std::string_view id);
/// The same of a repository's folder in a cache, as "~/.cache/huggingface/hub/models--Qwen--Qwen3-8B".
std::string config_of_cached(const std::string& folder);
/// "organisation/name", or a name alone, as the hub has it.
bool plain_id(std::string_view id);

}  // namespace oomplan
