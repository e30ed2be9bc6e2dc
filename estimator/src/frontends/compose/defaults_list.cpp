#include "frontends/compose/defaults_list.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "frontends/compose/choices.hpp"
#include "frontends/compose/lookup.hpp"
#include "units/enums.hpp"

namespace oomplan::compose {
namespace {

using Kind = Node::Kind;
constexpr int kDeepestList = 32;
constexpr int kMostElements = 1000;

/// Elements of a defaults list in the order of merging; those of another list stand in the place of the element that names it.
struct Tree {
  Default node;
  bool has_list = false;  ///< then `children` counts, and the file itself is the child _self_
  std::vector<Tree> children;
};

class Walk {
 public:
  Walk(Repository& files, Choices& choices, DefaultsList& out)
      : files_(files), choices_(choices), problems_(out.problems), in_files_(out.in_files) {}

  Tree run(const std::string& primary) {
    Tree root;
    root.node.path = primary;
    root.node.primary = true;
    root.node.set_parent("", "");
    expand(root, false);
    return root;
  }

 private:
  void tell(const Default& at, std::string found, std::string expected, std::string why, std::string near = {}) {
    Place place = at.place;
    if (place.path.empty()) place.path = "defaults";
    problems_.push_back({std::move(place), std::move(found), std::move(expected), std::move(near), std::move(why)});
  }

  /// Fills the children of `tree`. Lists are walked from the end, as Hydra does: later elements override earlier ones.
  void expand(Tree& tree, bool from_interpolation) {
    Default& node = tree.node;
    if (++elements_ > kMostElements)
      throw InputError({node.place, fmt::format("more than {} elements", kMostElements), "a defaults list", {}, {}});
    const Document* file = enter(node);
    if (file == nullptr) return;
    path_.push_back(node.config_path());
    if (std::ssize(path_) > kDeepestList) refuse_circle(node);
    const Node* list = file->root.find("defaults");
    std::vector<Default> elements = list == nullptr ? std::vector<Default>{} : read_defaults(*list, node.config_path());
    const bool added = node.primary && !choices_.appended().empty();
    if (!elements.empty() || added) {
      tree.has_list = true;
      add_self(node, elements);
      if (node.primary) elements.insert(elements.end(), choices_.appended().begin(), choices_.appended().end());
      take_overrides(node, elements, from_interpolation);
      add_children(tree, elements, from_interpolation);
    }
    path_.pop_back();
  }

  /// The file of an element. nullptr: there is none to merge (told where that is wrong).
  const Document* enter(Default& node) {
    const auto name = node.name();
    const Document* file = !name || *name == "???" ? nullptr : load(node);
    if (file != nullptr) node.set_header(file->package);
    if (choices_.takes_out(node)) {
      node.deleted = true;
      return nullptr;
    }
    choices_.remember(node);
    if (!name) return nullptr;
    if (*name == "???") {
      tell_missing(node);
      return nullptr;
    }
    if (file == nullptr) {
      node.deleted = true;
      if (!node.optional) tell_not_found(node);
    }
    return file;
  }
  const Document* load(const Default& node) {
    const Document* file = files_.load(node.config_path());
    if (file != nullptr && told_.insert(file).second)
      in_files_.insert(in_files_.end(), file->problems.begin(), file->problems.end());
    return file;
  }
  [[noreturn]] void refuse_circle(const Default& node) const {
    throw InputError(
        {node.place,
         fmt::format("the config '{}' inside itself", path_.back()),
         fmt::format("at most {} levels of defaults lists", kDeepestList),
         {},
         fmt::format("the defaults lists lead in a circle: {} -> {} -> ...", path_[path_.size() - 2], path_.back())});
  }
  void tell_missing(Default& node) {
    node.deleted = true;
    const auto options = files_.options(node.group_path());
    tell(node, "???", options.empty() ? "an option" : list_of(options),
         fmt::format("You must choose '{0}': {0}=OPTION", node.override_key()));
  }
  std::vector<std::string> folders() const {
    std::vector<std::string> out = files_.folders();
    std::replace(out.begin(), out.end(), std::string(), std::string("."));
    return out;
  }
  void tell_not_found(const Default& node) {
    const std::string config = node.config_path();
    if (node.primary) {
      problems_.push_back({{join_path(files_.folders().front(), config + ".yaml"), 0, 0, {}},
                           "no such file",
                           "the primary config",
                           nearest(config, files_.options("")),
                           fmt::format("Hydra looks for '{}.yaml' (only .yaml)", config)});
      return;
    }
    const auto options = node.group ? files_.options(node.group_path()) : std::vector<std::string>{};
    const std::string why = fmt::format("in '{}': Hydra could not find '{}.yaml' in {}", path_.empty() ? "" : path_.back(),
                                        config, list_of(folders()));
    tell(node, fmt::format("'{}'", node.name().value_or("null")), options.empty() ? "a config that exists" : list_of(options),
         why, nearest(node.name().value_or(""), options));
  }

  /// Without `_self_` the file itself comes last (Hydra 1.1 and later).
  void add_self(const Default& node, std::vector<Default>& elements) {
    const auto selves = std::count_if(elements.begin(), elements.end(), [](const Default& d) { return d.is_self(); });
    if (selves > 1) tell(elements.front(), "_self_ more than once", "_self_ once", fmt::format("in '{}'", node.config_path()));
    if (selves > 0) return;
    Default self;
    self.path = "_self_";
    elements.push_back(std::move(self));
  }

  void take_overrides(const Default& node, std::vector<Default>& elements, bool from_interpolation) {
    const Default* seen = nullptr;
    for (auto& element : elements) {
      if (element.is_self()) continue;
      element.set_parent(node.group_path(), node.final_package());
      if (seen != nullptr && !element.override_ && !element.appended)
        tell(element, fmt::format("'{}' behind 'override {}'", element.path, seen->path), "overrides at the end of the list",
             fmt::format("in '{}'", node.config_path()));
      if (!element.group || !element.override_) continue;
      seen = &element;
      if (from_interpolation)
        tell(element, "an override", "none", "Hydra allows no override below a group that an interpolation chooses");
      choices_.override_in_list(node.config_path(), element);
    }
  }

  void add_children(Tree& tree, std::vector<Default>& elements, bool from_interpolation) {
    const Default parent = tree.node;
    std::vector<Tree> children;  // from the end
    for (auto it = elements.rbegin(); it != elements.rend(); ++it) {
      Default& element = *it;
      if (element.is_self()) {
        element.base = parent.base;
        children.push_back({element, false, {}});
        continue;
      }
      if (element.override_ || element.group_path().starts_with("hydra/")) continue;
      choices_.apply(element);
      if (element.several) {
        add_options(children, parent, element, from_interpolation);
        continue;
      }
      children.push_back({element, false, {}});
      if (!element.is_interpolation()) expand(children.back(), from_interpolation);
    }
    for (auto& child : children)
      if (!child.node.is_self() && child.node.is_interpolation()) follow(child, elements);
    std::reverse(children.begin(), children.end());
    tree.children = std::move(children);
  }
  void add_options(std::vector<Tree>& children, const Default& parent, const Default& element, bool from_interpolation) {
    for (auto it = element.options.rbegin(); it != element.options.rend(); ++it) {
      Default one;
      one.path = element.path + "/" + *it;
      one.package = element.package;
      one.optional = element.optional;
      one.place = element.place;
      one.set_parent(parent.group_path(), parent.final_package());
      children.push_back({std::move(one), false, {}});
      expand(children.back(), from_interpolation);
    }
  }

  /// "${model_engine}_actor": links see the options that have been chosen so far.
  void follow(Tree& child, const std::vector<Default>&) {
    Default& element = child.node;
    Node known;
    known.kind = Kind::map;
    std::vector<std::string> names;
    for (const auto& [key, option] : choices_.known()) {
      Node value = option ? text_node(*option) : Node{};
      known.entries.push_back({key, Kind::text, {}, std::move(value)});
      names.push_back(key);
    }
    const std::string written = element.group ? *element.option : element.config_path();
    Node link = text_node(written);
    link.kind = Kind::interpolation;
    known.entries.push_back({"", Kind::text, {}, std::move(link)});
    const Environment nothing;
    Lookup lookup(known, nothing);
    const Found found = lookup.follow(known.entries.back().value);
    if (found.kind != Found::Kind::value || found.node->kind != Kind::text) {
      element.deleted = true;
      return tell(element, fmt::format("'{}'", written), names.empty() ? "the name of an option" : "a link to " + list_of(names),
                  "Hydra resolves it among the options that are chosen");
    }
    if (element.group)
      element.option = found.node->text;
    else
      element.path = found.node->text;
    expand(child, true);
  }

  Repository& files_;
  Choices& choices_;
  std::vector<Problem>& problems_;
  std::vector<Problem>& in_files_;
  std::vector<std::string> path_;
  std::set<const Document*> told_;
  int elements_ = 0;
};

/// Files in order; a file with a list of its own stands where its _self_ does.
void collect(const Tree& tree, const Tree* owner, std::vector<Part>& out, std::set<std::string>& groups,
             std::vector<Problem>& problems) {
  if (tree.has_list) {
    for (const auto& child : tree.children) collect(child, &tree, out, groups, problems);
    return;
  }
  const Default& node = tree.node;
  if (node.deleted) return;
  if (node.is_self()) {
    if (owner == nullptr) return;
    out.push_back({owner->node.config_path(), owner->node.final_package(), owner->node.primary, owner->node.place});
    return;
  }
  if (!node.name()) return;
  if (node.group && !groups.insert(node.override_key()).second)
    problems.push_back({node.place, node.override_key(), "a group once",
                        node.appended ? fmt::format("{}={}", node.override_key(), *node.name()) : "",
                        "Hydra finds it more than once in the defaults list"});
  out.push_back({node.config_path(), node.final_package(), node.primary, node.place});
}

}  // namespace

DefaultsList defaults_list(Repository& files, const std::string& primary, const std::vector<Override>& overrides) {
  DefaultsList out;
  Choices choices(files, overrides, out.problems);
  try {
    const Tree tree = Walk(files, choices, out).run(primary);
    std::set<std::string> groups;
    collect(tree, nullptr, out.parts, groups, out.problems);
    choices.tell_unused();
  } catch (const InputError& e) {
    out.problems.insert(out.problems.end(), e.problems.begin(), e.problems.end());
  }
  for (const auto& [key, option] : choices.known()) out.choices[key] = option.value_or("");
  out.values = choices.take_values();
  return out;
}

}  // namespace oomplan::compose
