// slime/utils/arguments.py (parse_megatron_role_args), slime/backends/sglang_utils/sglang_config.py, 624b824a.
#include "frontends/slime/files.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "frontends/compose/scalar.hpp"
#include "units/enums.hpp"

namespace oomplan::slime {
namespace {

using yaml::Node;

[[noreturn]] void wrong(const std::string& file, const Node& at, std::string found, std::string expected, std::string why = {}) {
  throw InputError(Problem{{file, at.line, at.column, {}},
                           std::move(found),
                           std::move(expected),
                           {},
                           std::move(why),
                           ProblemKind::refused_by_framework});
}

/// PyYAML's truth values as "true" and "false", others as they are written; "": null.
std::string word_of(const Node& value) {
  if (value.kind != Node::Kind::scalar) return {};
  if (value.quoted) return value.text;
  const compose::Node plain = compose::plain_scalar(value.text);
  if (plain.kind == compose::Node::Kind::boolean) return plain.boolean ? "true" : "false";
  return plain.kind == compose::Node::Kind::null ? std::string() : value.text;
}

/// Lists become words with blanks between them; maps are nobody's flag.
std::vector<FileArgument> arguments_of(const Node& map) {
  std::vector<FileArgument> out;
  for (const yaml::Entry& e : map.entries) {
    std::string words = word_of(e.second);
    for (const Node& item : e.second.items) words += (words.empty() ? "" : " ") + word_of(item);
    if (!words.empty()) out.push_back({e.first.text, std::move(words), e.first.line});
  }
  return out;
}

/// The list under the one key that the file must have.
const Node& list_under(const Node& root, std::string_view key, const std::string& file) {
  const Node* list = root.find(key);
  if (list == nullptr || list->kind != Node::Kind::list)
    wrong(file, root, yaml::describe(list == nullptr ? root : *list), fmt::format("a list under '{}'", key),
          "slime itself asks for it");
  return *list;
}

std::int64_t gpus_of(const Node& group, std::string_view key, const std::string& file) {
  const Node* const said = group.find(key);
  if (said == nullptr || said->kind == Node::Kind::null) return 0;
  const compose::Node plain = compose::plain_scalar(said->text);
  if (plain.kind != compose::Node::Kind::integer || plain.integer < 1 || plain.integer > (std::int64_t{1} << 17))
    wrong(file, *said, yaml::describe(*said), fmt::format("{}: a number of GPUs", key));
  return plain.integer;
}

ServerGroup group_of(const Node& group, const ServerGroup& of, const std::string& file) {
  static const std::vector<std::string> kTypes{"regular", "prefill", "decode", "placeholder", "encoder"};
  if (group.kind != Node::Kind::map) wrong(file, group, yaml::describe(group), "a map of worker_type, num_gpus, ...");
  ServerGroup out = of;
  const Node* const type = group.find("worker_type");
  out.worker = type == nullptr ? "" : type->text;
  if (std::find(kTypes.begin(), kTypes.end(), out.worker) == kTypes.end())
    wrong(file, type == nullptr ? group : *type, fmt::format("worker_type '{}'", out.worker), list_of(kTypes),
          "slime itself asks for it");
  out.gpus = gpus_of(group, "num_gpus", file);
  if (out.gpus == 0) wrong(file, group, "nothing", "num_gpus of the group", "slime itself asks for it");
  if (const std::int64_t n = gpus_of(group, "num_gpus_per_engine", file); n > 0) out.engine_gpus = n;
  if (const Node* const overrides = group.find("overrides")) out.overrides = arguments_of(*overrides);
  for (const FileArgument& a : out.overrides)
    if (a.name == "model_path") out.model = a.value;
  std::erase_if(out.overrides, [](const FileArgument& a) { return a.name == "model_path"; });
  return out;
}

bool same(const std::vector<FileArgument>& one, const std::vector<FileArgument>& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const FileArgument& a, const FileArgument& b) { return a.name == b.name && a.value == b.value; });
}

}  // namespace

bool alike(const std::vector<ServerGroup>& groups) {
  return std::all_of(groups.begin(), groups.end(), [&](const ServerGroup& g) {
    const ServerGroup& first = groups.front();
    return g.worker == "regular" && g.model == first.model && g.engine_gpus == first.engine_gpus &&
           same(g.overrides, first.overrides);
  });
}

std::vector<FileArgument> read_arguments(std::string_view text, const std::string& file) {
  return arguments_of(yaml::parse(text, file, {.what = "a configuration of slime"}));
}

std::vector<RoleArguments> read_roles(std::string_view text, const std::string& file) {
  const Node root = yaml::parse(text, file, {.what = "a configuration of slime"});
  std::vector<RoleArguments> out;
  for (const Node& entry : list_under(root, "megatron", file).items) {
    const Node* const role = entry.find("role");
    if (role == nullptr) continue;
    for (const RoleArguments& one : out)
      if (one.role == role->text)
        wrong(file, *role, fmt::format("'{}' twice", role->text), "one entry of a role", "slime itself asks for it");
    const Node* arguments = entry.find("overrides");
    if (arguments == nullptr || arguments->entries.empty()) arguments = entry.find("args");
    out.push_back({role->text, arguments == nullptr ? std::vector<FileArgument>{} : arguments_of(*arguments)});
  }
  return out;
}

std::vector<ServerGroup> read_server_groups(std::string_view text, const std::string& file) {
  const Node root = yaml::parse(text, file, {.what = "a configuration of slime"});
  std::vector<ServerGroup> out;
  for (const Node& model : list_under(root, "sglang", file).items) {
    ServerGroup of;
    if (const Node* const path = model.find("model_path")) of.model = word_of(*path);
    of.engine_gpus = gpus_of(model, "num_gpus_per_engine", file);
    const Node* groups = model.find("server_groups");
    if (groups == nullptr || groups->items.empty()) groups = model.find("engine_groups");
    if (groups == nullptr) continue;
    for (const Node& group : groups->items) out.push_back(group_of(group, of, file));
  }
  return out;
}

}  // namespace oomplan::slime
