#include "frontends/compose/node.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "units/utf8.hpp"

namespace oomplan::compose {
namespace {

using Kind = Node::Kind;

/// Python's repr() of a text.
std::string quoted(const std::string& text) {
  const bool single = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = single ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == quote || c == '\\') out += '\\';
    out += c;
  }
  return out + quote;
}

/// What stands in the str() of a list or a map. Interpolations in it stay as they are written, as in OmegaConf.
std::string inner_text(const Node& node) {
  switch (node.kind) {
    case Kind::text:
    case Kind::interpolation:
      return quoted(node.text);
    case Kind::missing:
      return fmt::format("'{}'", "???");
    default:
      return python_text(node);
  }
}

std::string container_text(const Node& node) {
  std::string out;
  const auto add = [&out](const std::string& piece) {
    if (!out.empty()) out += ", ";
    if (out.size() <= kLongestText) out += piece;
  };
  for (const auto& item : node.items) add(inner_text(item));
  for (const auto& entry : node.entries)
    add((entry.key_kind == Kind::text ? quoted(entry.key) : entry.key) + ": " + inner_text(entry.value));
  return node.kind == Kind::list ? "[" + out + "]" : "{" + out + "}";
}

void set_paths(Node& node, const std::string& path) {
  node.origin.place.path = path;
  const std::string prefix = path.empty() ? path : path + ".";
  for (std::size_t i = 0; i < node.items.size(); ++i) set_paths(node.items[i], prefix + std::to_string(i));
  for (auto& entry : node.entries) {
    entry.place.path = prefix + entry.key;
    set_paths(entry.value, entry.place.path);
  }
}

}  // namespace

const Node* Node::find(std::string_view key) const {
  for (const auto& entry : entries)
    if (entry.key == key && entry.key_kind == Kind::text) return &entry.value;
  return nullptr;
}
Node* Node::find(std::string_view key) {
  for (auto& entry : entries)
    if (entry.key == key && entry.key_kind == Kind::text) return &entry.value;
  return nullptr;
}

namespace {

const Node* child(const Node& node, std::string_view key) {
  if (node.kind == Kind::map) return node.find(key);
  if (node.kind != Kind::list) return nullptr;
  const auto i = index_of(key);
  return i < 0 || i >= std::ssize(node.items) ? nullptr : &node.items[static_cast<std::size_t>(i)];
}

}  // namespace

const Node* Node::at(std::string_view path) const {
  const Node* here = this;
  if (path.find('[') != std::string_view::npos) {
    for (const auto& key : split_key(path))
      if (here != nullptr) here = child(*here, key);
    return here;
  }
  // without brackets every dot parts two keys, and nothing needs to be copied
  while (here != nullptr) {
    const std::size_t dot = path.find('.');
    here = child(*here, path.substr(0, dot));
    if (dot == std::string_view::npos) break;
    path.remove_prefix(dot + 1);
  }
  return here;
}

Node* Node::at(std::string_view path) { return const_cast<Node*>(std::as_const(*this).at(path)); }

Node text_node(std::string text, Origin origin) {
  Node out;
  out.kind = Kind::text;
  out.text = std::move(text);
  out.origin = std::move(origin);
  return out;
}

std::string describe(const Node& node) {
  constexpr std::size_t kLongest = 60;
  switch (node.kind) {
    case Kind::list:
      return "a list";
    case Kind::map:
      return "a map";
    case Kind::null:
      return "null";
    case Kind::missing:
      return fmt::format("'{}'", "???");
    case Kind::boolean:  // as in YAML, not as in Python
      return node.boolean ? "'true'" : "'false'";
    default:
      break;
  }
  const std::string text = python_text(node);
  return fmt::format("'{}'", shortened(text, kLongest));
}

std::string python_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string out = fmt::format("{}", value);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

std::string python_text(const Node& node) {
  switch (node.kind) {
    case Kind::null:
      return "None";
    case Kind::boolean:
      return node.boolean ? "True" : "False";
    case Kind::integer:
      return std::to_string(node.integer);
    case Kind::real:
      return python_text(node.real);
    case Kind::missing:
      return "???";
    case Kind::text:
    case Kind::interpolation:
    case Kind::unknown:
    case Kind::broken:
      return node.text;
    case Kind::list:
    case Kind::map:
      return container_text(node);
  }
  return {};
}

std::int64_t size_of(const Node& node) {
  std::int64_t out = 1;
  for (const auto& item : node.items) out += size_of(item);
  for (const auto& entry : node.entries) out += size_of(entry.value);
  return out;
}

int depth_of(const Node& node) {
  int below = 0;
  for (const auto& item : node.items) below = std::max(below, depth_of(item));
  for (const auto& entry : node.entries) below = std::max(below, depth_of(entry.value));
  return node.is_container() ? below + 1 : 0;
}

void set_paths(Node& root) { set_paths(root, {}); }

std::vector<std::string> split_key(std::string_view key) {
  // As omegaconf/_utils.py split_key of OmegaConf 2.3.0: a head of dots and names, then ".name" and "[name]".
  std::vector<std::string> out;
  const std::size_t head = std::min(key.find('['), key.size());
  std::size_t at = 0;
  for (std::size_t dot = key.substr(0, head).find('.'); dot != std::string_view::npos; dot = key.substr(0, head).find('.', at)) {
    out.emplace_back(key.substr(at, dot - at));
    at = dot + 1;
  }
  out.emplace_back(key.substr(at, head - at));
  if (head < key.size() && out.back().empty()) out.pop_back();
  for (at = head; at < key.size();) {
    const bool bracket = key[at] == '[';
    const std::size_t end = bracket ? key.find(']', at) : std::min(key.find_first_of(".[", at + 1), key.size());
    if (end == std::string_view::npos || (!bracket && key[at] != '.')) break;
    out.emplace_back(key.substr(at + 1, end - at - 1));
    at = end + (bracket ? 1 : 0);
  }
  if (out.empty()) out.emplace_back(key);
  return out;
}

std::string joined(const std::vector<std::string>& parts, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count && i < parts.size(); ++i) out += (i == 0 ? "" : ".") + parts[i];
  return out;
}

std::int64_t index_of(std::string_view key) {
  std::int64_t out = -1;
  const auto [end, status] = std::from_chars(key.data(), key.data() + key.size(), out);
  return status == std::errc() && end == key.data() + key.size() ? out : -1;
}

}  // namespace oomplan::compose
