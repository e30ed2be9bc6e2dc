#include "frontends/areal/patch.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "frontends/areal/schema.hpp"
#include "frontends/areal/teller.hpp"
#include "frontends/compose/override.hpp"

namespace oomplan::areal {
namespace {

using compose::Node;
using Leaves = std::map<std::string, std::string>;

void collect(const Node& n, const std::string& path, Leaves& out) {
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  for (std::size_t i = 0; i < n.items.size(); ++i) collect(n.items[i], below(std::to_string(i)), out);
  for (const auto& e : n.entries) collect(e.value, below(e.key), out);
  if (n.items.empty() && n.entries.empty()) out[path] = fmt::format("{} {}", static_cast<int>(n.kind), compose::python_text(n));
}
Leaves leaves(const Node& root) {
  Leaves out;
  collect(root, {}, out);
  return out;
}

/// The map or list as the file has it: without what only the release's defaults say.
FactValue stated(const Node& n) {
  if (!n.is_container()) return value_of(n);
  FactValue out = n.kind == Node::Kind::list ? FactValue::list() : FactValue::map();
  for (const auto& item : n.items) out.push_back(stated(item));
  for (const auto& e : n.entries)
    if (e.value.origin.kind != Origin::Kind::default_) out[e.key] = stated(e.value);
  return out;
}

/// A value in Hydra's grammar.
std::string hydra(const FactValue& value) {
  if (value.kind() == FactValue::Kind::text) {
    const std::string& text = value.text();
    try {
      const auto read = compose::read_override("k=" + text);
      if (!text.empty() && read.value && read.value->kind == Node::Kind::text && read.value->text == text) return text;
    } catch (const InputError&) {  // needs its quotes
    }
    std::string out;
    for (const char c : text) out += c == '\'' ? "\\'" : std::string(1, c);
    return "'" + out + "'";
  }
  if (value.is_null()) return "null";
  if (value.kind() != FactValue::Kind::list && !value.is_map()) return value.plain();
  std::string out;
  for (std::size_t i = 0; i < value.items().size(); ++i)
    out += (out.empty() ? "" : ",") + (value.is_map() ? value.keys()[i] + ":" : "") + hydra(value.items()[i]);
  return value.is_map() ? "{" + out + "}" : "[" + out + "]";
}

class Rewriter {
 public:
  Rewriter(const Source& source, const ArealText& start, ReadingStore& store) : source_(source), start_(start), store_(store) {}

  Rewritten run(const std::vector<std::pair<std::string, std::string>>& wanted) {
    for (const auto& [knob, text] : wanted)
      for (const auto& edit : wording_of(knob, text, start_).edits) wanted_.insert(edit.path);
    for (const auto& [knob, text] : wanted) {
      const Wording words = wording_of(knob, text, now());
      if (!words.refusal.empty()) return {{}, {}, fmt::format("{}: {}", knob, words.refusal), {}};
      for (const auto& edit : words.edits)
        if (!holds(now(), edit)) place(edit);
    }
    out_.overrides = arguments(out_.edits);
    if (now_ && !read_again_) out_.text = std::make_shared<const ArealText>(*std::move(now_));
    return std::move(out_);
  }

 private:
  static bool holds(const ArealText& text, const Edit& edit) {
    const Node* n = text.root.at(edit.path);
    return n != nullptr && value_of(*n) == edit.value;
  }

  std::vector<std::string> arguments(const std::vector<Edit>& edits) const {
    std::vector<std::string> out;
    for (const auto& e : edits) out.push_back(argument(e.path, e.value, start_.composed.at(e.path) == nullptr));
    return out;
  }
  ArealText read_with(const std::vector<Edit>& edits) const {
    Source changed = source_;
    for (auto& text : arguments(edits)) changed.overrides.push_back(std::move(text));
    return read_areal(changed, store_);
  }

  void place(const Edit& edit) {
    const auto same = std::find_if(out_.edits.begin(), out_.edits.end(), [&](const Edit& e) { return e.path == edit.path; });
    if (same != out_.edits.end())
      same->value = edit.value;
    else if (place_at_literal(edit))
      return;
    else
      out_.edits.push_back(place_of_use(edit));
    read_again_ = true;
  }
  /// The configuration with the edits so far.
  const ArealText& now() {
    if (read_again_) now_ = read_with(out_.edits);
    read_again_ = false;
    return now_ ? *now_ : start_;
  }

  /// The literal behind interpolations is changed only if nothing but what is wanted changes with it.
  bool place_at_literal(const Edit& edit) {
    const Node* n = now().root.at(edit.path);
    if (n == nullptr || n->via.empty()) return false;
    const std::string literal = n->via.back().key;
    if (now().composed.at(literal) == nullptr) return false;
    auto edits = out_.edits;
    edits.push_back({literal, edit.value});
    ArealText then = read_with(edits);
    if (!holds(then, edit)) return false;
    const Leaves before = leaves(now().root), after = leaves(then.root);
    const auto schema = Schema::of(start_.release);
    for (const auto& [path, value] : after) {
      const auto it = before.find(path);
      if (it != before.end() && it->second == value) continue;
      const bool own_key = path == literal && !(schema && schema->find(start_.root_class, path));
      if (!wanted_.contains(path) && !own_key) return false;
    }
    out_.edits = std::move(edits);
    now_ = std::move(then);
    return true;
  }

  /// The key itself. When it stands in a map that is an interpolation, the map is written out first.
  Edit place_of_use(const Edit& edit) {
    const auto parts = compose::split_key(edit.path);
    for (std::size_t n = 1; n < parts.size(); ++n) {
      const std::string above = compose::joined(parts, n);
      const Node* at = now().composed.at(above);
      if (at == nullptr) break;
      if (at->kind != Node::Kind::interpolation) continue;
      const Node* whole = now().root.at(above);
      if (whole == nullptr || !whole->is_container()) break;
      FactValue map = stated(*whole);
      if (!put(map, parts, n, edit.value)) break;
      return {above, std::move(map)};
    }
    return edit;
  }

  /// False: a list stands on the way.
  static bool put(FactValue& into, const std::vector<std::string>& parts, std::size_t at, const FactValue& value) {
    if (at == parts.size()) return into = value, true;
    return into.is_map() && put(into[parts[at]], parts, at + 1, value);
  }

  const Source& source_;
  const ArealText& start_;
  ReadingStore& store_;
  std::optional<ArealText> now_;
  bool read_again_ = false;
  std::set<std::string> wanted_;
  Rewritten out_;
};

}  // namespace

std::string argument(std::string_view path, const FactValue& value, bool add) {
  return fmt::format("{}{}={}", add ? "+" : "", path, hydra(value));
}

bool same_values(const Node& a, const Node& b) { return leaves(a) == leaves(b); }

Rewritten rewrite(const Source& source, const ArealText& start, const std::vector<std::pair<std::string, std::string>>& wanted,
                  ReadingStore& store) {
  return Rewriter(source, start, store).run(wanted);
}

}  // namespace oomplan::areal
