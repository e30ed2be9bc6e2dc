// As omegaconf/grammar_visitor.py and omegaconf/resolvers/oc (OmegaConf 2.3.0).
#include "frontends/compose/evaluation.hpp"

#include <array>

#include <fmt/format.h>

namespace oomplan::compose {
namespace {

using Kind = Node::Kind;
/// Registered by Hydra itself (hydra/_internal/utils.py and core/utils.py, Hydra 1.3.2): known only when the job runs.
constexpr std::array<std::string_view, 3> kAtLaunch{"now", "hydra", "python_version"};
constexpr std::string_view kResolvers = "oc.env, oc.select, oc.decode, oc.create, oc.deprecated, oc.dict.keys or oc.dict.values";

}  // namespace

Found Evaluation::broken(std::string why) { return {Found::Kind::broken, nullptr, std::move(why), {}}; }

Found Evaluation::value(Node node) {
  if (node.origin.place.file.empty() && node.origin.place.line == 0) node.origin = node_.origin;
  return {Found::Kind::value, lookup_.keep(std::move(node)), {}, {}};
}

const Node& Evaluation::container() const {
  const auto it = lookup_.parents().find(&node_);
  return it == lookup_.parents().end() ? lookup_.root_ : *it->second;
}

Found Evaluation::text(const Text& pieces) {
  if (pieces.size() == 1 && !pieces[0].link.empty()) return link(pieces[0].link[0]);
  std::string all;
  std::vector<Link> via;
  for (const auto& piece : pieces) {
    all += piece.text;
    if (piece.link.empty()) continue;
    Found found = link(piece.link[0]);
    if (found.kind != Found::Kind::value) return found;
    all += python_text(*found.node);
    for (auto& through : found.via)
      if (via.size() < kMostVia) via.push_back(std::move(through));
    if (all.size() > kLongestText) return broken(fmt::format("the text grows beyond {} bytes", kLongestText));
  }
  Found out = value(text_node(std::move(all)));
  out.via = std::move(via);
  return out;
}

/// The words of a path or a name put together; links in it must lead to texts.
Found Evaluation::key_of(const Text& words) {
  std::string all;
  for (const auto& word : words) {
    all += word.text;
    if (word.link.empty()) continue;
    Found found = link(word.link[0]);
    if (found.kind != Found::Kind::value) return found;
    if (found.node->kind != Kind::text)
      return broken(fmt::format("a key must be a text, and an interpolation makes it {}", describe(*found.node)));
    all += found.node->text;
    if (all.size() > kLongestText) return broken("the key is too long");
  }
  return value(text_node(std::move(all)));
}

Found Evaluation::link(const Interpolation& link) {
  Found key = key_of(link.words);
  if (key.kind != Found::Kind::value) return key;
  if (!link.resolver) return path(key.node->text);
  std::vector<Node> arguments;
  for (const auto& given : link.arguments) {
    Found found = argument(given);
    if (found.kind != Found::Kind::value) return found;
    arguments.push_back(lookup_.build(found));
  }
  return resolver(key.node->text, arguments);
}

/// Keys with leading dots start at the container of the node and go up, others at the root.
Found Evaluation::relative(std::string key, bool stop_at_missing) {
  const Node* from = &lookup_.root_;
  if (key.starts_with('.')) {
    from = &container();
    for (key.erase(0, 1); key.starts_with('.'); key.erase(0, 1)) {
      const auto it = lookup_.parents().find(from);
      if (it == lookup_.parents().end()) return broken("the key leads above the whole configuration");
      from = it->second;
    }
  }
  return lookup_.select(*from, key, stop_at_missing);
}

Found Evaluation::path(const std::string& key) {
  Found out = relative(key, true);
  if (out.kind == Found::Kind::absent) out.kind = Found::Kind::broken;
  if (out.kind != Found::Kind::value) return out;
  for (auto it = lookup_.parents().find(&node_); it != lookup_.parents().end(); it = lookup_.parents().find(it->second))
    if (it->second == out.node) return broken("the interpolation leads to a map that contains it");
  for (auto& via : out.via)
    if (via.place.line == 0 && via.place.file.empty()) via.place = node_.origin.place;
  return out;
}

Found Evaluation::argument(const Argument& given) {
  switch (given.kind) {
    case Argument::Kind::value:
      return value(given.value);
    case Argument::Kind::text:
      return text(given.text);
    case Argument::Kind::list:
    case Argument::Kind::map:
      break;
  }
  return container_argument(given);
}

Found Evaluation::container_argument(const Argument& given) {
  Node out;
  out.kind = given.kind == Argument::Kind::list ? Kind::list : Kind::map;
  out.origin = node_.origin;
  for (const auto& item : given.items) {
    Found found = argument(item);
    if (found.kind != Found::Kind::value) return found;
    out.items.push_back(lookup_.build(found));
  }
  for (const auto& [key, item] : given.entries) {
    Found found = argument(item);
    if (found.kind != Found::Kind::value) return found;
    out.entries.push_back({python_text(key), key.kind, node_.origin.place, lookup_.build(found)});
  }
  return value(std::move(out));
}

Found Evaluation::resolver(const std::string& name, const std::vector<Node>& arguments) {
  if (name == "oc.env") return environment(arguments);
  if (name == "oc.select") return select(arguments);
  if (name == "oc.decode") return decode(arguments);
  if (name == "oc.create") return create(arguments);
  if (name == "oc.deprecated") return deprecated(arguments);
  if (name == "oc.dict.keys") return dictionary(arguments, true);
  if (name == "oc.dict.values") return dictionary(arguments, false);
  for (const auto& known : kAtLaunch)
    if (name == known) return {Found::Kind::unknown, nullptr, fmt::format("{}, known at launch", name), {}};
  return broken(fmt::format("the resolver '{}' is none of {}; a program that registers its own is not run", name, kResolvers));
}

Found Evaluation::environment(const std::vector<Node>& arguments) {
  if (arguments.empty() || arguments.size() > 2) return broken("oc.env takes a name and perhaps a default");
  if (arguments[0].kind != Kind::text) return broken("oc.env takes a name");
  const std::string& name = arguments[0].text;
  const auto it = lookup_.environment_.find(name);
  if (it != lookup_.environment_.end()) return value(text_node(it->second));
  if (arguments.size() == 1) return {Found::Kind::unknown, nullptr, "environment " + name, {}};
  return value(arguments[1].kind == Kind::null ? Node{} : text_node(python_text(arguments[1])));
}

Found Evaluation::select(const std::vector<Node>& arguments) {
  if (arguments.empty() || arguments.size() > 2) return broken("oc.select takes a key and perhaps a default");
  if (arguments[0].kind != Kind::text) return broken("oc.select takes a key");
  Found found = relative(arguments[0].text, false);
  for (auto& via : found.via)
    if (via.place.line == 0 && via.place.file.empty()) via.place = node_.origin.place;
  const bool nothing = found.kind == Found::Kind::absent || found.kind == Found::Kind::no_container ||
                       (found.kind == Found::Kind::missing && !found.linked);
  if (!nothing) return found;
  return value(arguments.size() == 2 ? arguments[1] : Node{});
}

Found Evaluation::decode(const std::vector<Node>& arguments) {
  if (arguments.size() != 1) return broken("oc.decode takes one text");
  if (arguments[0].kind == Kind::null) return value({});
  if (arguments[0].kind != Kind::text) return broken(fmt::format("oc.decode takes a text, not {}", describe(arguments[0])));
  const auto read = read_element(arguments[0].text);
  if (const auto* fault = std::get_if<GrammarFault>(&read))
    return broken(fmt::format("oc.decode cannot read '{}': {}", arguments[0].text, fault->why));
  return argument(std::get<Argument>(read));
}

Found Evaluation::create(const std::vector<Node>& arguments) {
  if (arguments.size() != 1) return broken("oc.create takes one list or map");
  if (arguments[0].is_container()) return value(arguments[0]);
  if (arguments[0].kind != Kind::null) return broken("oc.create takes a list or a map here; YAML in a text is not read");
  return value({});
}

Found Evaluation::deprecated(const std::vector<Node>& arguments) {
  if (arguments.empty() || arguments.size() > 2 || arguments[0].kind != Kind::text)
    return broken("oc.deprecated takes a key and perhaps a message");
  return path(arguments[0].text);
}

Found Evaluation::dictionary(const std::vector<Node>& arguments, bool keys) {
  if (arguments.size() != 1 || arguments[0].kind != Kind::text) return broken("oc.dict.keys and oc.dict.values take a key");
  Found found = relative(arguments[0].text, true);
  if (found.kind == Found::Kind::missing) return broken(fmt::format("'{}' is missing", arguments[0].text));
  if (found.kind != Found::Kind::value) return found;
  if (found.node->kind != Kind::map) return broken(fmt::format("'{}' is no map", arguments[0].text));
  Node out;
  out.kind = Kind::list;
  for (const auto& entry : found.node->entries) {
    if (keys) {
      out.items.push_back(text_node(entry.key, node_.origin));
      continue;
    }
    Found each = lookup_.follow(entry.value);
    if (each.kind != Found::Kind::value) return each;
    out.items.push_back(lookup_.build(each));
  }
  return value(std::move(out));
}

}  // namespace oomplan::compose
