// The only file that knows yaml-cpp: its events are turned into our own tree, because its own nodes keep duplicate keys silently
// and expand aliases without a bound.
#include "frontends/yaml.hpp"

#include <yaml-cpp/anchor.h>
#include <yaml-cpp/emitterstyle.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "units/utf8.hpp"

namespace oomplan::yaml {
namespace {

[[noreturn]] void refuse(const std::string& file, int line, int column, std::string found, std::string expected,
                         std::string why = {}) {
  throw InputError({{file, line, column, {}}, std::move(found), std::move(expected), {}, std::move(why)});
}

void check_text(std::string_view text, const std::string& file, const Rules& rules) {
  if (text.size() > kMostBytes)
    refuse(file, 0, 0, fmt::format("{} bytes", text.size()), fmt::format("{} of at most {} bytes", rules.what, kMostBytes));
  int line = 1, column = 1;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = utf8_length(text, i);
    const bool control = n == 1 && text[i] >= 0 && text[i] < 0x20 && text[i] != '\n' && text[i] != '\t' && text[i] != '\r';
    const bool removed = text[i] == 0x7f;
    if (n == 0 || control || removed)
      refuse(file, line, column, fmt::format("the byte 0x{:02x}", static_cast<unsigned char>(text[i])), "a text file in UTF-8",
             n == 0 ? "the file may be in another encoding" : "this looks like a binary file");
    column = text[i] == '\n' ? 1 : column + 1;
    line += text[i] == '\n' ? 1 : 0;
    i += n;
  }
}

/// Puts the events together. Open collections are a stack; a finished node goes into the one below.
class Builder : public YAML::EventHandler {
 public:
  Builder(const std::string& file, const Rules& rules) : file_(file), rules_(rules) {}
  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { finish(made(Node::Kind::null, mark), anchor); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto it = anchors_.find(anchor);
    if (it == anchors_.end())
      refuse(file_, mark.line + 1, mark.column + 1, "an alias of a value that contains it", "a finite document");
    count(it->second, mark);
    Node copy = it->second;
    if (levels(copy) + static_cast<int>(open_.size()) > kDeepest) too_deep(mark);
    finish(std::move(copy), 0);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& value) override {
    Node node = made(Node::Kind::scalar, mark);
    node.text = value;
    node.quoted = tag == "!";
    node.tag = written(tag);
    if (!node.quoted && node.tag.empty() && (value == "~" || value == "null" || value == "Null" || value == "NULL"))
      node.kind = Node::Kind::null;
    finish(std::move(node), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Kind::list, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(Node::Kind::map, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;
    Node key;
    std::map<std::string, std::pair<int, int>> seen;  // key -> where
  };

  /// yaml-cpp says "?" for a plain value without a tag and "!" for a quoted one.
  static std::string written(const std::string& tag) { return tag == "?" || tag == "!" ? std::string() : tag; }
  [[noreturn]] void too_deep(const YAML::Mark& mark) {
    refuse(file_, mark.line + 1, mark.column + 1, "deeper nesting", fmt::format("at most {} levels", kDeepest));
  }
  static int levels(const Node& node) {
    int deepest = 0;
    for (const auto& item : node.items) deepest = std::max(deepest, levels(item));
    for (const auto& [key, value] : node.entries) deepest = std::max(deepest, levels(value));
    return deepest + 1;
  }
  void count(const Node& node, const YAML::Mark& mark) {
    if (++nodes_ > kMostNodes)
      refuse(file_, mark.line + 1, mark.column + 1, fmt::format("more than {} values (aliases written out)", kMostNodes),
             std::string(rules_.what));
    for (const auto& item : node.items) count(item, mark);
    for (const auto& [key, value] : node.entries) {
      count(key, mark);
      count(value, mark);
    }
  }
  Node made(Node::Kind kind, const YAML::Mark& mark) {
    Node node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    count(node, mark);
    return node;
  }
  void open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (static_cast<int>(open_.size()) >= kDeepest) too_deep(mark);
    open_.push_back({made(kind, mark), anchor, false, {}, {}});
    open_.back().node.tag = written(tag);
  }
  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    finish(std::move(done.node), done.anchor);
  }
  void finish(Node node, YAML::anchor_t anchor) {
    if (anchor != 0) anchors_[anchor] = node;
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == Node::Kind::list) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.has_key) {
      take_key(parent, std::move(node));
    } else {
      parent.has_key = false;
      parent.node.entries.push_back({std::move(parent.key), std::move(node)});
    }
  }
  void take_key(Open& parent, Node key) {
    if (key.kind != Node::Kind::scalar) refuse(file_, key.line, key.column, describe(key), "a key");
    const auto [it, fresh] = parent.seen.emplace(key.text, std::pair{key.line, key.column});
    if (!fresh && !(rules_.merge_keys && key.text == "<<" && !key.quoted))
      refuse(file_, key.line, key.column, fmt::format("the key '{}' a second time", key.text), "every key once",
             fmt::format("it stands at {}:{} already", it->second.first, it->second.second));
    parent.has_key = true;
    parent.key = std::move(key);
  }

  const std::string& file_;
  const Rules& rules_;
  Node root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Node> anchors_;
  std::size_t nodes_ = 0;
};

}  // namespace

const Node* Node::find(std::string_view key) const {
  for (const auto& [k, value] : entries)
    if (k.text == key) return &value;
  return nullptr;
}

std::string describe(const Node& node) {
  constexpr std::size_t kLongest = 60;
  switch (node.kind) {
    case Node::Kind::null:
      return "nothing";
    case Node::Kind::list:
      return "a list";
    case Node::Kind::map:
      return "a map";
    case Node::Kind::scalar:
      break;
  }
  return fmt::format("'{}'", shortened(node.text, kLongest));
}

Node parse(std::string_view text, const std::string& file, const Rules& rules) {
  check_text(text, file, rules);
  std::istringstream stream{std::string(text)};
  Builder builder(file, rules);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return {};
    Builder second(file, rules);
    if (parser.HandleNextDocument(second)) {
      const Node extra = second.take();
      refuse(file, extra.line, extra.column, "a second document", "one document");
    }
  } catch (const YAML::Exception& e) {
    const bool tabs = text.starts_with('\t') || text.find("\n\t") != std::string_view::npos;
    refuse(file, e.mark.line + 1, e.mark.column + 1, "broken YAML", {}, e.msg + (tabs ? " (tabs cannot indent)" : ""));
  }
  return builder.take();
}

}  // namespace oomplan::yaml
