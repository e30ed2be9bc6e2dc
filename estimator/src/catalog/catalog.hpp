// Look-up of models, GPUs and engine facts. All data lives in models/ and is compiled in; a directory may overlay it.
//
// A Catalog is immutable once made and may be shared between threads. It never reads the network: a model name is an alias, a
// hub id of the built-in list, a directory or config.json on disk, or a snapshot in the local Hugging Face cache.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "catalog/gpus.hpp"

namespace oomplan {

/// Reads the text of a config.json. `name` goes into Architecture::name and into errors.
/// Throws InputError: an unknown model_type or field value is named; nothing is guessed.
Architecture read_config(std::string_view text, const std::string& name);

struct ModelFound {
  std::shared_ptr<const Architecture> architecture;
  std::string id;                 ///< hub id or path that was taken
  std::string from;               ///< "built-in", "directory", "file", "Hugging Face cache"
  std::vector<std::string> also;  ///< what else an alias could have meant
};

class Catalog {
 public:
  static const Catalog& builtin();
  /// The built-in catalog with the files of `directory` laid over it. Throws InputError.
  static Catalog with_directory(const std::string& directory);
  ~Catalog();
  Catalog(Catalog&&) noexcept;
  Catalog& operator=(Catalog&&) noexcept;

  /// Throws InputError naming the nearest known models when nothing is found.
  ModelFound model(std::string_view alias_or_id_or_path) const;
  /// Hub ids of the built-in list, sorted.
  std::vector<std::string> model_ids() const;
  /// Those that have `word` in them, in any case.
  std::vector<std::string> ids_with(std::string_view word) const;
  const std::vector<Gpu>& gpus() const;
  /// By name ("H100-80GB") or alias ("h100"). Throws InputError with the nearest name.
  const Gpu& gpu(std::string_view name) const;
  const Facts& facts() const;

 private:
  Catalog();
  struct Data;
  std::unique_ptr<const Data> data_;
};

}  // namespace oomplan
