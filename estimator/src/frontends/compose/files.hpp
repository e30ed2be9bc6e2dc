// The files that a composition may open: only what the caller's function returns, each once.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "frontends/compose/document_store.hpp"

namespace oomplan::compose {

struct Files {
  /// The text of a file; nullopt: there is none.
  std::function<std::optional<std::string>(const std::string& path)> read;
  /// Names in a folder (files with their endings); nullopt: there is none. May be empty: then a folder is there if the file that
  /// is asked for is, and options are not listed in messages.
  std::function<std::optional<std::vector<std::string>>(const std::string& folder)> list;
};
/// Files from a map of texts by path.
Files in_memory(std::map<std::string, std::string> texts);

/// folder/name with "." and ".." taken out; paths with a scheme (pkg://) keep it.
std::string join_path(const std::string& folder, const std::string& name);

/// Config files by their names, looked for in a list of folders (Hydra's search path); the first that has one wins.
class Repository {
 public:
  /// `documents`: may be null; outlives this.
  Repository(const Files& files, std::vector<std::string> folders, DocumentStore* documents)
      : files_(files), folders_(std::move(folders)), documents_(documents) {}

  void add_folder(std::string folder) { folders_.push_back(std::move(folder)); }
  const std::vector<std::string>& folders() const { return folders_; }
  /// The config "db/mysql", that is db/mysql.yaml. nullptr: none. Throws InputError when it cannot be read.
  const Document* load(const std::string& config);
  bool has_group(const std::string& group, const std::vector<std::string>& options);
  /// Names of the configs in a group, sorted; empty if folders cannot be listed.
  std::vector<std::string> options(const std::string& group) const;
  /// Paths that were opened, in order.
  const std::vector<std::string>& opened() const { return opened_; }

 private:
  const Files& files_;
  std::vector<std::string> folders_;
  DocumentStore* documents_;
  std::map<std::string, std::shared_ptr<const Document>> loaded_;
  std::vector<std::string> opened_;
};

}  // namespace oomplan::compose
