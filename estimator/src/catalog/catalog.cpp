#include "catalog/catalog.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "catalog/embedded.hpp"
#include "catalog/facts_reader.hpp"
#include "catalog/gpus_reader.hpp"
#include "catalog/read_config.hpp"
#include "catalog/sources.hpp"
#include "catalog/stored_as.hpp"
#include "catalog/text_alone.hpp"
#include "units/utf8.hpp"

namespace oomplan {
namespace {

/// What aliases.json says: short names, and ids whose architecture is that of another built-in one.
struct Aliases {
  struct Row {
    std::string takes;
    std::vector<std::string> also;
    bool first;  // the name is not the id's whose bare name it is
  };
  struct Same {
    std::string id;        // as written
    std::string built_in;  // the id whose row is taken
  };
  std::map<std::string, Row> rows;         // by normalised alias
  std::map<std::string, Same> same_shape;  // by normalised id
};

using Formats = std::map<std::string, Quantization, std::less<>>;

/// stored_formats.json: formats that checkpoints are converted to.
Formats read_formats(std::string_view text, const std::string& file) {
  const Fields outer = Fields::parse(text, file);
  Formats out;
  for (const std::string& name : outer.keys()) {
    const Fields row = outer.object(name);
    row.only({"source", "quantization_config"});
    const auto config = row.object_if("quantization_config");
    out[name] = config ? read_quantization(*config) : Quantization{};
  }
  return out;
}

void read_aliases(std::string_view text, const std::string& file, Aliases& out) {
  const Fields outer = Fields::parse(text, file);
  outer.only({"aliases", "same_shape"});
  if (const auto aliases = outer.object_if("aliases")) {
    for (const std::string& name : aliases->keys()) {
      const Fields row = aliases->object(name);
      row.only({"takes", "also", "first"});
      out.rows[normalised(name)] = {row.text("takes"), row.has("also") ? row.texts("also") : std::vector<std::string>{},
                                    row.has("first") && row.flag("first")};
    }
  }
  if (const auto same = outer.object_if("same_shape")) {
    for (const std::string& id : same->keys()) out.same_shape[normalised(id)] = {id, same->text(id)};
  }
}

}  // namespace

struct Catalog::Data {
  using Found = std::optional<ModelFound>;

  std::string directory;                     // "": built-in files only
  std::map<std::string, std::string> paths;  // normalised id -> path of the model's row, relative to models/
  std::vector<std::string> ids;

  void add(const std::vector<std::string>& found) {
    for (const std::string& path : found) {
      const std::string id = id_of_path(path);
      if (paths.emplace(normalised(id), path).second) ids.push_back(id);
    }
    std::sort(ids.begin(), ids.end());
  }

  /// The directory's file, otherwise the built-in one.
  std::pair<std::string, std::string> text_and_name(const std::string& path) const {
    if (!directory.empty()) {
      const std::string full = directory + "/" + path;
      if (auto text = file_text(full)) return {std::move(*text), full};
    }
    return {embedded_text(path), "models/" + path};
  }

  std::vector<std::string> all_ids() const {
    std::vector<std::string> out = ids;
    for (const auto& [key, same] : aliases().same_shape) out.push_back(same.id);
    return out;
  }

  Found by_id(const std::string& id) const;
  Found by_shape(const std::string& id) const;
  Found by_bare_name(const std::string& name) const;
  Found by_alias(const std::string& name) const;
  Found in_format(const ModelFound& found, std::string_view format) const;

  const Aliases& aliases() const {
    std::call_once(aliases_once_, [this] {
      read_aliases(embedded_text("aliases.json"), "models/aliases.json", aliases_);
      if (directory.empty()) return;
      const std::string path = directory + "/aliases.json";
      if (const auto text = file_text(path)) read_aliases(*text, path, aliases_);
    });
    return aliases_;
  }

  const Formats& formats() const {
    std::call_once(formats_once_, [this] {
      const auto [text, file] = text_and_name("stored_formats.json");
      formats_ = read_formats(text, file);
    });
    return formats_;
  }

  const std::vector<Gpu>& gpus() const {
    std::call_once(gpus_once_, [this] {
      gpus_ = read_gpus(embedded_text("gpus.json"), "models/gpus.json");
      const std::string path = directory + "/gpus.json";
      if (directory.empty()) return;
      if (const auto text = file_text(path)) lay_over(read_gpus(*text, path));
    });
    return gpus_;
  }

  const Facts& facts() const {
    std::call_once(facts_once_, [this] { facts_ = Facts(all_facts()); });
    return facts_;
  }

 private:
  /// A row of the same name is replaced, a new one added.
  void lay_over(const std::vector<Gpu>& rows) const {
    for (const Gpu& row : rows) {
      const auto same = [&row](const Gpu& gpu) { return normalised(gpu.name) == normalised(row.name); };
      const auto found = std::find_if(gpus_.begin(), gpus_.end(), same);
      if (found != gpus_.end()) {
        *found = row;
      } else {
        gpus_.push_back(row);
      }
    }
  }

  /// The rows that the directory has for a fact of an engine replace all the built-in ones of that fact.
  std::vector<Fact> all_facts() const {
    std::vector<Fact> out, over;
    for (const std::string& path : embedded_paths("engines/")) append(out, read_facts(embedded_text(path), "models/" + path));
    if (directory.empty()) return out;
    for (const std::string& path : directory_paths(directory, "engines/")) {
      const std::string full = directory + "/" + path;
      if (const auto text = file_text(full)) append(over, read_facts(*text, full));
    }
    std::erase_if(out, [&over](const Fact& old) {
      return std::any_of(over.begin(), over.end(),
                         [&](const Fact& row) { return row.engine == old.engine && row.fact == old.fact; });
    });
    append(out, std::move(over));
    return out;
  }

  static void append(std::vector<Fact>& out, std::vector<Fact> more) {
    std::move(more.begin(), more.end(), std::back_inserter(out));
  }

  mutable std::once_flag aliases_once_, formats_once_, gpus_once_, facts_once_;
  mutable Aliases aliases_;
  mutable Formats formats_;
  mutable std::vector<Gpu> gpus_;
  mutable Facts facts_;
};

Catalog::Catalog() = default;
Catalog::~Catalog() = default;
Catalog::Catalog(Catalog&&) noexcept = default;
Catalog& Catalog::operator=(Catalog&&) noexcept = default;

const Catalog& Catalog::builtin() {
  static const Catalog catalog = [] {
    Catalog out;
    auto data = std::make_unique<Data>();
    data->add(embedded_paths("architectures/"));
    out.data_ = std::move(data);
    return out;
  }();
  return catalog;
}

Catalog Catalog::with_directory(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error))
    throw InputError(Problem{{directory, 0, 0, ""}, "no directory", "a directory of catalog files", "", ""});
  Catalog out;
  auto data = std::make_unique<Data>();
  data->directory = directory;
  data->add(directory_paths(directory, "architectures/"));
  data->add(embedded_paths("architectures/"));
  out.data_ = std::move(data);
  return out;
}

namespace {

ModelFound found_at(const std::string& path, const char* from) {
  const auto text = file_text(path);
  if (!text) throw InputError(Problem{{path, 0, 0, ""}, "no file", "a config.json", "", ""});
  return {std::make_shared<const Architecture>(read_config(*text, path)), path, from, {}};
}

std::optional<ModelFound> on_disk(const std::string& name) {
  std::error_code error;
  if (name.find('\0') != std::string::npos) return std::nullopt;
  if (std::filesystem::is_directory(name, error)) {
    const std::string config = name + "/config.json";
    if (std::filesystem::is_regular_file(config, error)) return found_at(config, "directory");
    if (const std::string cached = config_of_cached(name); !cached.empty()) return found_at(cached, "Hugging Face cache");
  }
  if (std::filesystem::is_regular_file(name, error)) return found_at(name, "file");
  return std::nullopt;
}

/// A built-in row: {"id", "source", "config"}.
ModelFound from_row(const std::string& text, const std::string& file, const std::string& id) {
  const Fields row = Fields::parse(text, file);
  row.only({"id", "source", "config"});
  return {std::make_shared<const Architecture>(read_architecture(row.object("config"), id)), id, "built-in", {}};
}

/// The part of an id behind the organisation.
std::string bare(const std::string& id) { return id.substr(id.find('/') + 1); }

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}
std::vector<std::string> ids_that_have(std::string_view word, const std::vector<std::string>& ids) {
  std::vector<std::string> out;
  for (const std::string& id : ids)
    if (lower(id).find(lower(word)) != std::string::npos) out.push_back(id);
  return out;
}

/// What to do about a name that nothing is known of: the one file that is needed, and how one gets it.
std::string what_is_needed(const std::string& name) {
  std::error_code error;
  if (std::filesystem::is_directory(name, error)) return "the directory has no config.json, the one file that is read of a model";
  constexpr std::string_view kNothing = "nothing of that name was found, and nothing is downloaded";
  if (!plain_id(name) || name.find('/') == std::string::npos || name.front() == '/' || name.front() == '.')
    return fmt::format("{}; a model's config.json is the one file that is read of it", kNothing);
  return fmt::format("{}; the one file that is needed comes by `hf download {} config.json`", kNothing, name);
}

[[noreturn]] void unknown_model(std::string_view name, const std::vector<std::string>& ids, const Aliases& aliases) {
  std::vector<std::string> known = ids;
  for (const std::string& id : ids) known.push_back(bare(id));
  for (const auto& [alias, row] : aliases.rows) known.push_back(alias);
  std::string shown = shortened(name, 80);
  Problem problem{{"", 0, 0, "model"},
                  "'" + shown + "'",
                  "an alias, a hub id of the built-in list or of the local Hugging Face cache, a directory or a config.json",
                  nearest(shown, known),
                  what_is_needed(shown),
                  ProblemKind::unknown_model};
  // a word of several names says more than a name that is spelt like it
  if (const auto like = ids_that_have(shown, ids); shown.size() > 1 && !like.empty()) {
    problem.nearest = *std::min_element(like.begin(), like.end(),
                                        [](const std::string& a, const std::string& b) { return a.size() < b.size(); });
    problem.why = fmt::format("{} known models have it in their names: oomplan models {} lists them", like.size(), shown);
  }
  throw InputError(std::move(problem));
}

}  // namespace

Catalog::Data::Found Catalog::Data::by_id(const std::string& id) const {
  const auto row = paths.find(normalised(id));
  if (row == paths.end()) return std::nullopt;
  const auto [text, file] = text_and_name(row->second);
  return from_row(text, file, id_of_path(row->second));
}

/// An id of the same shape keeps its own name.
Catalog::Data::Found Catalog::Data::by_shape(const std::string& id) const {
  if (auto found = by_id(id)) return found;
  const auto same = aliases().same_shape.find(normalised(id));
  if (same == aliases().same_shape.end()) return std::nullopt;
  const auto [model, format] = parts_of_stored(same->second.built_in);
  auto found = by_id(std::string(model));
  if (found && !format.empty()) found = in_format(*found, format);
  if (!found) throw Defect("aliases.json: " + same->second.built_in + " is no built-in model");
  Architecture renamed = *found->architecture;
  found->id = renamed.name = same->second.id;
  found->architecture = std::make_shared<const Architecture>(std::move(renamed));
  return found;
}

/// The same model under a name that tells its format; nullopt: the format is not known.
Catalog::Data::Found Catalog::Data::in_format(const ModelFound& found, std::string_view format) const {
  const auto row = formats().find(format);
  if (row == formats().end()) return std::nullopt;
  ModelFound out = found;
  Architecture stored = *found.architecture;
  stored.quantization = row->second;
  out.id = stored.name = stored_name(found.id, format);
  out.architecture = std::make_shared<const Architecture>(std::move(stored));
  return out;
}

/// "Qwen3-8B" for "Qwen/Qwen3-8B".
Catalog::Data::Found Catalog::Data::by_bare_name(const std::string& name) const {
  const std::string wanted = normalised(name);
  for (const std::string& id : all_ids())
    if (normalised(bare(id)) == wanted) return by_shape(id);
  return std::nullopt;
}

/// A name that is both an alias and the bare name of an id is the id, unless the alias says that it is first; the other is told.
Catalog::Data::Found Catalog::Data::by_alias(const std::string& name) const {
  auto found = by_bare_name(name);
  const auto alias = aliases().rows.find(normalised(name));
  if (alias == aliases().rows.end()) return found;
  std::string bare_id = found && alias->second.first ? found->id : std::string();
  if (!bare_id.empty()) found.reset();
  if (!found) found = by_shape(alias->second.takes);
  if (!found) throw Defect("aliases.json: " + alias->second.takes + " is no built-in model");
  std::vector<std::string> also{alias->second.takes};
  also.insert(also.end(), alias->second.also.begin(), alias->second.also.end());
  if (!bare_id.empty()) also.push_back(std::move(bare_id));
  for (const std::string& id : also)
    if (id != found->id) found->also.push_back(id);
  return found;
}

namespace {

/// The language model of what was found, under the name that asked for it.
ModelFound text_alone(ModelFound found) {
  Architecture text = *found.architecture;
  if (text.tower.kind.empty())
    throw InputError(Problem{{"", 0, 0, "model"},
                             "'" + found.id + std::string(kTextAlone) + "'",
                             found.id,
                             {},
                             "it has no tower that could be left out"});
  text.tower = {};
  found.id += kTextAlone;
  text.name += kTextAlone;
  found.architecture = std::make_shared<const Architecture>(std::move(text));
  return found;
}

}  // namespace

ModelFound Catalog::model(std::string_view name) const {
  if (name.ends_with(kTextAlone)) return text_alone(model(name.substr(0, name.size() - kTextAlone.size())));
  const std::string given(name);
  if (auto found = on_disk(given)) return std::move(*found);
  if (auto found = data_->by_shape(given)) return std::move(*found);
  if (auto found = data_->by_alias(given)) return std::move(*found);
  if (const auto [of, format] = parts_of_stored(name); data_->formats().contains(format))
    return *data_->in_format(model(of), format);
  const std::string config = cached_config(given);
  if (config.empty()) unknown_model(name, data_->all_ids(), data_->aliases());
  ModelFound found = found_at(config, "Hugging Face cache");
  found.id = given;
  return found;
}

std::vector<std::string> Catalog::ids_with(std::string_view word) const { return ids_that_have(word, model_ids()); }
std::vector<std::string> Catalog::model_ids() const { return data_->ids; }

const std::vector<Gpu>& Catalog::gpus() const { return data_->gpus(); }

const Gpu& Catalog::gpu(std::string_view name) const {
  const std::string wanted = normalised(name);
  std::vector<std::string> known;
  for (const Gpu& gpu : gpus()) {
    known.push_back(gpu.name);
    if (normalised(gpu.name) == wanted) return gpu;
    for (const std::string& alias : gpu.aliases) {
      if (normalised(alias) == wanted) return gpu;
      known.push_back(alias);
    }
  }
  std::vector<std::string> names;
  for (const Gpu& gpu : gpus()) names.push_back(gpu.name);
  const std::string shown = shortened(name, 80);
  throw InputError(Problem{{"", 0, 0, "gpu"}, "'" + shown + "'", "one of " + list_of(names), nearest(shown, known), ""});
}

const Facts& Catalog::facts() const { return data_->facts(); }

}  // namespace oomplan
