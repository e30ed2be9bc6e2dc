#include "frontends/structured/over_defaults.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "units/enums.hpp"

namespace oomplan::structured {
namespace {

using compose::Entry;
using compose::Node;

bool is_open(const Node& n) {  // nothing to check yet, or never
  return n.kind == Node::Kind::interpolation || n.kind == Node::Kind::missing || n.kind == Node::Kind::unknown ||
         n.kind == Node::Kind::broken;
}

/// The value has the type of its field already, so that converting it changes nothing.
bool is_of(const Node& n, FieldKind kind) {
  switch (kind) {
    case FieldKind::integer:
      return n.kind == Node::Kind::integer;
    case FieldKind::number:
      return n.kind == Node::Kind::real;
    case FieldKind::flag:
      return n.kind == Node::Kind::boolean;
    case FieldKind::text:
      return n.kind == Node::Kind::text;
    case FieldKind::list:
      return n.kind == Node::Kind::list;
    case FieldKind::dict:
    case FieldKind::object:
      return n.kind == Node::Kind::map;
    case FieldKind::any:
      return true;
  }
  return false;
}

/// OmegaConf converts a plain value to the type of its field; false when it cannot.
bool convert(Node& n, FieldKind to) {
  switch (to) {
    case FieldKind::integer: {
      if (n.kind == Node::Kind::integer) return true;
      if (n.kind == Node::Kind::text) {
        const auto [end, error] = std::from_chars(n.text.data(), n.text.data() + n.text.size(), n.integer);
        if (n.text.empty() || error != std::errc{} || end != n.text.data() + n.text.size()) return false;
        n.kind = Node::Kind::integer;
        return true;
      }
      return false;
    }
    case FieldKind::number: {
      if (n.kind == Node::Kind::real) return true;
      if (n.kind == Node::Kind::integer) {
        n.real = static_cast<double>(n.integer);
        n.kind = Node::Kind::real;
        return true;
      }
      if (n.kind != Node::Kind::text || n.text.empty()) return false;
      const auto [end, error] = std::from_chars(n.text.data(), n.text.data() + n.text.size(), n.real);
      if (error != std::errc{} || end != n.text.data() + n.text.size()) return false;
      n.kind = Node::Kind::real;
      return true;
    }
    case FieldKind::flag: {
      if (n.kind == Node::Kind::boolean) return true;
      if (n.kind == Node::Kind::integer) {
        n.boolean = n.integer != 0;
        n.kind = Node::Kind::boolean;
        return true;
      }
      if (n.kind != Node::Kind::text) return false;
      std::string low = n.text;
      std::transform(low.begin(), low.end(), low.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      const bool yes = low == "true" || low == "yes" || low == "on" || low == "y" || low == "1";
      if (!yes && low != "false" && low != "no" && low != "off" && low != "n" && low != "0") return false;
      n.boolean = yes;
      n.kind = Node::Kind::boolean;
      return true;
    }
    case FieldKind::text:
      if (n.is_container()) return false;
      if (n.kind != Node::Kind::text) {
        n.text = compose::python_text(n);
        n.kind = Node::Kind::text;
      }
      return true;
    case FieldKind::list:
    case FieldKind::dict:
    case FieldKind::object:
    case FieldKind::any:
      return is_of(n, to);
  }
  return true;
}

std::string words(const FieldType& type) {
  constexpr std::string_view kWords[] = {"a whole number", "a number", "a text", "true or false",
                                         "a list",         "a map",    "a map",  "a value"};
  return fmt::format("{}{}", kWords[static_cast<int>(type.kind)], type.optional ? " or null" : "");
}

class Builder {
 public:
  /// `makes`: the tree is wanted too, not only what is wrong with it.
  Builder(ClassTable& classes, std::string_view root, bool certain, bool makes)
      : classes_(classes), source_(classes.source()), root_(root), certain_(certain), makes_(makes) {}

  OverDefaults run(const Node& composed) {
    out_.root = object(root_, composed, "");
    return std::move(out_);
  }

 private:
  static std::string joined(const std::string& path, std::string_view key) {
    std::string out;
    out.reserve(path.size() + 1 + key.size());
    if (!path.empty()) out.append(path).append(1, '.');
    return out.append(key);
  }

  Node object(const std::string& name, const Node& given, const std::string& path) {
    Node out;
    out.kind = Node::Kind::map;
    out.origin = given.origin;
    const ClassTable::Class& known = classes_.of(name);
    if (makes_) out.entries.reserve(known.fields.size());
    for (const Field* field : known.fields) {
      const Node* value = given.find(field->key);
      if (!makes_) {
        if (value != nullptr) taken(*field, *value, joined(path, field->key));
        continue;
      }
      out.entries.push_back({field->key, Node::Kind::text, value != nullptr ? value->origin.place : Place{},
                             value != nullptr ? taken(*field, *value, joined(path, field->key)) : classes_.by_default(*field)});
    }
    for (const auto& entry : given.entries)
      if (!known.keys.contains(entry.key)) tell_unknown(out, entry, joined(path, entry.key), path.empty());
    return out;
  }

  // ---- what is given

  /// The value as its field has it; nothing when only problems are wanted.
  Node taken(const Field& field, const Node& value, const std::string& path) {
    if (is_open(value)) return copied(value);
    if (value.kind == Node::Kind::null) {
      if (!field.type.optional && field.type.kind != FieldKind::any) tell_type(value, path, field.type);
      return copied(value);
    }
    if (field.type.kind == FieldKind::object && value.kind == Node::Kind::map) return object(field.type.of, value, path);
    if (field.type.kind == FieldKind::list && value.kind == Node::Kind::list && source_.has_class(field.type.of)) {
      Node out = copied(value);
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (value.items[i].kind != Node::Kind::map) continue;
        Node item = object(field.type.of, value.items[i], fmt::format("{}.{}", path, i));
        if (makes_) out.items[i] = std::move(item);
      }
      return out;
    }
    if (is_of(value, field.type.kind)) {
      tell_choice(field, value, path);
      return copied(value);
    }
    Node out = value;
    if (!convert(out, field.type.kind)) {
      tell_type(value, path, field.type);
      return copied(value);
    }
    tell_choice(field, out, path);
    return out;
  }
  Node copied(const Node& value) const { return makes_ ? value : Node{}; }

  void tell_type(const Node& value, const std::string& path, const FieldType& type) {
    Place place = value.origin.place;
    place.path = path;
    out_.problems.push_back(
        {place, compose::describe(value), words(type), {}, fmt::format("{} has it as {}", source_.reader(), type.text)});
  }
  void tell_choice(const Field& field, const Node& value, const std::string& path) {
    if (field.choices.empty() || value.kind != Node::Kind::text) return;
    if (std::find(field.choices.begin(), field.choices.end(), value.text) != field.choices.end()) return;
    if (source_.takes(field, value.text)) return;
    Place place = value.origin.place;
    place.path = path;
    out_.problems.push_back({place, compose::describe(value), list_of(field.choices), nearest(value.text, field.choices), {}});
  }
  void tell_unknown(Node& into, const Entry& entry, const std::string& path, bool top) {
    Unknown read = source_.unknown(root_, path);
    Place place = entry.value.origin.place;
    if (place.line == 0) place = entry.place;
    place.path = path;
    Problem p{place, "an unknown key", {}, std::move(read.nearest), std::move(read.why)};
    if (!top || certain_ || !read.maybe_own) return out_.problems.push_back(std::move(p));
    into.entries.push_back(entry);
    out_.unknown.push_back(std::move(p));
  }

  ClassTable& classes_;
  const Classes& source_;
  std::string root_;
  bool certain_, makes_;
  OverDefaults out_;
};

}  // namespace

OverDefaults over_defaults(ClassTable& classes, std::string_view root_class, const compose::Node& composed, bool certain) {
  return Builder(classes, root_class, certain, true).run(composed);
}

std::vector<Problem> type_problems(ClassTable& classes, std::string_view root_class, const compose::Node& resolved) {
  std::vector<Problem> out;
  for (auto& p : Builder(classes, root_class, false, false).run(resolved).problems)
    if (p.found != "an unknown key") out.push_back(std::move(p));
  return out;
}

}  // namespace oomplan::structured
