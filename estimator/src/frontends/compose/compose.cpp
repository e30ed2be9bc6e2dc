// As hydra/_internal/config_loader_impl.py (Hydra 1.3.2).
#include "frontends/compose/compose.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/compose/defaults_list.hpp"
#include "frontends/compose/edit.hpp"
#include "frontends/compose/lookup.hpp"
#include "units/enums.hpp"

namespace oomplan::compose {
namespace {

using Kind = Node::Kind;
constexpr std::string_view kSearchPath = "hydra.searchpath";

void append(std::vector<Problem>& to, const std::vector<Problem>& from) { to.insert(to.end(), from.begin(), from.end()); }

bool is_hydras(const std::string& key) { return key == "hydra" || key.starts_with("hydra.") || key.starts_with("hydra/"); }

Node value_or_null(const Override& given) { return given.value.value_or(Node{}); }

class Composer {
 public:
  explicit Composer(const Request& request) : request_(request), files_(request.files, {request.folder}, request.documents) {
    for (const auto& folder : request.search) files_.add_folder(folder);
  }

  Composed run() {
    out_.root.kind = Kind::map;
    try {
      read_overrides();
      add_search_path();
      DefaultsList list = defaults_list(files_, request_.config, overrides_);
      append(out_.problems, list.problems);
      append(out_.problems, list.in_files);
      out_.choices = list.choices;
      choices_ = &out_.choices;
      if (list.problems.empty()) {
        for (const auto& part : list.parts) merge(part);
        apply(list.values);
      }
    } catch (const InputError& e) {
      append(out_.problems, e.problems);
    }
    std::erase_if(out_.root.entries, [](const Entry& e) { return e.key == "hydra"; });
    set_paths(out_.root);
    out_.files = files_.opened();
    return std::move(out_);
  }

 private:
  void read_overrides() {
    if (request_.overrides.size() > kMostOverrides)
      throw InputError({{"command line", 0, 0, {}},
                        fmt::format("{} overrides", request_.overrides.size()),
                        fmt::format("at most {}", kMostOverrides),
                        {},
                        {}});
    for (const auto& typed : request_.overrides) {
      try {
        Override given = read_override(typed);
        if (!is_hydras(given.key) || given.key == kSearchPath)
          overrides_.push_back(std::move(given));
        else
          out_.set_aside.push_back(typed);
      } catch (const InputError& e) {
        append(out_.problems, e.problems);
      }
    }
  }

  /// hydra.searchpath of the primary config, or of the command line in its place.
  void add_search_path() {
    const Document* primary = files_.load(request_.config);
    Node list;
    if (primary != nullptr) {
      Lookup lookup(primary->root, request_.environment);
      const Found found = lookup.select(primary->root, std::string(kSearchPath), false);
      if (found.kind == Found::Kind::value) list = lookup.build(found);
    }
    for (const auto& given : overrides_)
      if (given.key == kSearchPath && given.kind == Override::Kind::change) list = value_or_null(given);
    std::erase_if(overrides_, [](const Override& o) { return o.key == kSearchPath; });
    if (list.kind == Kind::null) return;
    const bool texts = list.kind == Kind::list && std::all_of(list.items.begin(), list.items.end(), [](const Node& n) {
                         return n.kind == Kind::text || n.kind == Kind::unknown;
                       });
    if (!texts) {
      out_.problems.push_back({list.origin.place, describe(list), "a list of folders", {}, "hydra.searchpath is one"});
      return;
    }
    for (const auto& item : list.items) add_folder(item);
  }
  void add_folder(const Node& item) {
    constexpr std::string_view kFile = "file://";
    std::string folder = item.text;
    if (folder.starts_with(kFile)) folder.erase(0, kFile.size());
    const bool other = folder.find("://") != std::string::npos;
    if (item.kind == Kind::unknown || (other && !folder.starts_with("pkg://"))) {
      out_.warnings.push_back({item.origin.place, describe(item), "file:// or pkg:// and a folder", {}, "it is not looked into"});
      return;
    }
    if (!other) folder = join_path(request_.working_folder, folder);
    if (request_.files.list && !request_.files.list(folder))
      out_.warnings.push_back({item.origin.place, describe(item), "a folder that exists", {}, "Hydra goes on without it"});
    files_.add_folder(std::move(folder));
  }

  void merge(const Part& part) {
    Node content = files_.load(part.config)->root;
    std::erase_if(content.entries, [](const Entry& e) { return e.key == "defaults"; });
    Node embedded;
    embedded.kind = Kind::map;
    embedded.origin = content.origin;
    if (part.package.empty())
      embedded = std::move(content);
    else
      Editor(embedded, request_.environment, out_.problems).update(part.package, std::move(content), Editor::Mode::add, false);
    if (!part.primary && embedded.at(kSearchPath) != nullptr)
      out_.problems.push_back({embedded.at(kSearchPath)->origin.place,
                               std::string(kSearchPath),
                               "the primary config",
                               {},
                               fmt::format("Hydra takes it from there only, not from '{}'", part.config)});
    nodes_ += size_of(embedded);
    if (nodes_ > kMostNodes)
      throw InputError({part.place, fmt::format("more than {} values", kMostNodes), "a configuration", {}, {}});
    Editor(out_.root, request_.environment, out_.problems).merge(embedded);
  }

  void apply(const std::vector<Override>& values) {
    Editor editor(out_.root, request_.environment, out_.problems);
    editor.set_struct(true);
    for (const auto& given : values) apply(editor, given);
  }
  void refuse(const Override& given, std::string found, std::string expected, std::string why, std::string near = {}) {
    out_.problems.push_back(
        {{"command line", 0, 0, given.key}, std::move(found), std::move(expected), std::move(near), std::move(why)});
  }
  void apply(Editor& editor, const Override& given) {
    if (given.package)
      return refuse(given, fmt::format("'{}'", given.typed), "a config group before '@'",
                    fmt::format("there is no config group '{}'", given.key));
    const std::size_t before = out_.problems.size();
    Node value = checked(value_or_null(given));
    if (out_.problems.size() > before) return;
    if (given.kind == Override::Kind::remove) return remove(editor, given, value);
    if (given.kind == Override::Kind::add && exists(given, value.is_container())) return;
    const auto mode = given.kind == Override::Kind::change ? Editor::Mode::set : Editor::Mode::add;
    if (!editor.update(given.key, std::move(value), mode, true)) name_the_group(given);
  }
  /// Interpolations in an override are checked when it is applied.
  Node checked(Node value) {
    for (auto& item : value.items) item = checked(std::move(item));
    for (auto& entry : value.entries) entry.value = checked(std::move(entry.value));
    return value.kind == Kind::text ? checked_text(std::move(value), out_.problems) : value;
  }
  /// What "+key=value" refuses: a value is there already. null and ??? do not count, and a map or a list is merged.
  bool exists(const Override& given, bool merged) {
    Lookup lookup(out_.root, request_.environment);
    const Found found = lookup.select(out_.root, given.key, false);
    const bool nowhere = found.kind == Found::Kind::missing && found.linked;
    if (found.kind == Found::Kind::broken || nowhere) {
      refuse(given, fmt::format("'{}'", given.typed), "a key that can be looked up",
             nowhere ? "an interpolation on the way leads to a missing value" : found.why);
      return true;
    }
    const bool there = found.kind == Found::Kind::unknown || (found.kind == Found::Kind::value && found.node->kind != Kind::null);
    if (there && !merged)
      refuse(given, fmt::format("'{}'", given.typed), "a key that is not there yet",
             fmt::format("an item is at '{}' already; ++ adds or overrides", given.key), given.typed.substr(1));
    return there && !merged;
  }
  /// "~a.b": the key of a map that is nearest to the one that it has not.
  std::string near_key(const std::string& key) const {
    const auto end = key.rfind('.');
    const std::string above = end == std::string::npos ? "" : key.substr(0, end);
    const Node* map = above.empty() ? &out_.root : out_.root.at(above);
    if (map == nullptr) return {};
    std::vector<std::string> keys;
    for (const auto& entry : map->entries)
      if (entry.value.kind != Kind::null) keys.push_back(entry.key);
    const std::string near = nearest(key.substr(end == std::string::npos ? 0 : end + 1), keys);
    return near.empty() ? "" : fmt::format("~{}{}{}", above, above.empty() ? "" : ".", near);
  }
  void remove(Editor& editor, const Override& given, const Node& value) {
    Node there;
    {
      Lookup lookup(out_.root, request_.environment);
      const Found found = lookup.select(out_.root, given.key, false);
      if (found.kind == Found::Kind::value) there = *found.node;
      if (found.kind == Found::Kind::missing) there = text_node("???");
    }
    if (there.kind == Kind::null)
      return refuse(given, fmt::format("'{}'", given.typed), "a key with a value",
                    "Hydra deletes only what is there and not null", near_key(given.key));
    if (value.kind != Kind::null && python_text(value) != python_text(there))
      return refuse(given, fmt::format("'{}'", given.typed), fmt::format("~{}={}", given.key, python_text(there)),
                    fmt::format("the value is {} and not {}", describe(there), describe(value)));
    if (!editor.remove(given.key))
      refuse(given, fmt::format("'{}'", given.typed), "a key of a map", "Hydra deletes no items of lists");
  }
  /// "actor.model_engine=megatron" where model_engine is a group that is chosen at the top.
  void name_the_group(const Override& given) {
    const std::string last = given.key.substr(given.key.rfind('.') + 1);
    if (last == given.key || !choices_->contains(last)) return;
    Problem& told = out_.problems.back();
    told.nearest = fmt::format("{}={}", last, given.value ? python_text(*given.value) : "");
    told.why = fmt::format("'{}' is a config group: it is chosen at the top, before any value is set", last);
  }

  const Request& request_;
  Repository files_;
  Composed out_;
  std::vector<Override> overrides_;
  const std::map<std::string, std::string>* choices_ = nullptr;
  std::int64_t nodes_ = 0;
};

}  // namespace

Composed compose(const Request& request) { return Composer(request).run(); }

Node merge_over(Node under, const Node& over, const Environment& environment, std::vector<Problem>& problems) {
  try {
    Editor(under, environment, problems).merge(over);
  } catch (const InputError& e) {
    append(problems, e.problems);
  }
  set_paths(under);
  return under;
}

Composed load_with_dotlist(const std::string& text, const std::string& file, const std::vector<std::string>& arguments,
                           const Environment& environment) {
  Composed out;
  out.root.kind = Kind::map;
  out.files = {file};
  Node typed;
  typed.kind = Kind::map;
  try {
    Document document = read_document(text, file);
    append(out.problems, document.problems);
    Editor editor(typed, environment, out.problems);
    for (const auto& argument : arguments) {
      const auto equals = argument.find('=');
      const std::string key = argument.substr(0, equals);
      const std::string written = equals == std::string::npos ? "" : argument.substr(equals + 1);
      editor.update(key, read_value(written, key, out.problems), Editor::Mode::add, true);
    }
    out.root = merge_over(std::move(document.root), typed, environment, out.problems);
  } catch (const InputError& e) {
    append(out.problems, e.problems);
  }
  return out;
}

}  // namespace oomplan::compose
