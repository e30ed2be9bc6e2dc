#include "frontends/areal/structured.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "units/enums.hpp"

namespace oomplan::areal {
namespace {

using compose::Entry;
using compose::Node;
using Json = nlohmann::ordered_json;

bool is_open(const Node& n) {  // nothing to check yet, or never
  return n.kind == Node::Kind::interpolation || n.kind == Node::Kind::missing || n.kind == Node::Kind::unknown ||
         n.kind == Node::Kind::broken;
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
      return n.kind == Node::Kind::list;
    case FieldKind::dict:
    case FieldKind::object:
      return n.kind == Node::Kind::map;
    case FieldKind::any:
      return true;
  }
  return true;
}

std::string words(const FieldType& type) {
  constexpr std::string_view kWords[] = {"a whole number", "a number", "a text", "true or false",
                                         "a list",         "a map",    "a map",  "a value"};
  return fmt::format("{}{}", kWords[static_cast<int>(type.kind)], type.optional ? " or null" : "");
}

/// Names of AReaL's documentation that are arguments in its code and keys of no file.
std::string_view argument_of_code(std::string_view key) {
  if (key == "weight_chunked_mem_mb")
    return "it is an argument of WeightUpdateMeta.from_fsdp_xccl in AReaL's code (1024 MiB), which no key of a file sets";
  return {};
}

class Builder {
 public:
  Builder(const Schema& schema, std::string_view root, bool certain) : schema_(schema), root_(root), certain_(certain) {}

  Structured run(const Node& composed) {
    out_.root = object(root_, composed, "");
    return std::move(out_);
  }

 private:
  static std::string joined(const std::string& path, std::string_view key) {
    return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
  }

  Node object(const std::string& name, const Node& given, const std::string& path) {
    Node out;
    out.kind = Node::Kind::map;
    out.origin = given.origin;
    for (const Field* field : schema_.fields(name)) {
      const Node* value = given.find(field->key);
      out.entries.push_back({field->key, Node::Kind::text, value != nullptr ? value->origin.place : Place{},
                             value != nullptr ? taken(*field, *value, joined(path, field->key)) : by_default(*field)});
    }
    for (const auto& entry : given.entries)
      if (schema_.field(name, entry.key) == nullptr) tell_unknown(out, entry, joined(path, entry.key), path.empty());
    return out;
  }

  // ---- defaults

  Origin origin_of(const Field& field) const {
    const bool example = field.owner.find(':') != std::string::npos;
    return {Origin::Kind::default_,
            {},
            fmt::format("AReaL {} default", name_of(schema_.release())),
            example ? field.owner : fmt::format("areal/api/cli_args.py:{}", field.owner)};
  }
  Node by_default(const Field& field) const {
    Node n;
    if (field.required)
      n.kind = Node::Kind::missing;
    else if (field.computed)
      n.kind = Node::Kind::unknown, n.text = "the default depends on the machine";
    else
      n = from_json(Json::parse(field.default_json), origin_of(field));
    n.origin = origin_of(field);
    return n;
  }
  Node from_json(const Json& j, const Origin& origin) const {
    Node n;
    n.origin = origin;
    if (j.is_boolean()) {
      n.kind = Node::Kind::boolean;
      n.boolean = j.get<bool>();
    } else if (j.is_number_integer()) {
      n.kind = Node::Kind::integer;
      n.integer = j.get<std::int64_t>();
    } else if (j.is_number()) {
      n.kind = Node::Kind::real;
      n.real = j.get<double>();
    } else if (j.is_string()) {
      n.kind = Node::Kind::text;
      n.text = j.get<std::string>();
    } else if (j.is_array()) {
      n.kind = Node::Kind::list;
      for (const auto& item : j) n.items.push_back(from_json(item, origin));
    } else if (j.is_object() && j.contains("class")) {
      n = made(j.at("class").get<std::string>(), j.value("set", Json::object()));
    } else if (j.is_object()) {
      n.kind = Node::Kind::map;
      for (const auto& [key, value] : j.items()) n.entries.push_back({key, Node::Kind::text, {}, from_json(value, origin)});
    }
    return n;
  }
  /// An object of a class, with arguments.
  Node made(const std::string& name, const Json& set) const {
    Node n;
    n.kind = Node::Kind::map;
    for (const Field* field : schema_.fields(name)) {
      const auto given = set.find(field->key);
      n.entries.push_back(
          {field->key, Node::Kind::text, {}, given != set.end() ? from_json(*given, origin_of(*field)) : by_default(*field)});
    }
    return n;
  }

  // ---- what is given

  Node taken(const Field& field, const Node& value, const std::string& path) {
    if (is_open(value)) return value;
    if (value.kind == Node::Kind::null) {
      if (!field.type.optional && field.type.kind != FieldKind::any) tell_type(value, path, field.type);
      return value;
    }
    if (field.type.kind == FieldKind::object && value.kind == Node::Kind::map) return object(field.type.of, value, path);
    if (field.type.kind == FieldKind::list && value.kind == Node::Kind::list && schema_.has_class(field.type.of)) {
      Node out = value;
      for (std::size_t i = 0; i < out.items.size(); ++i)
        if (out.items[i].kind == Node::Kind::map)
          out.items[i] = object(field.type.of, value.items[i], fmt::format("{}.{}", path, i));
      return out;
    }
    Node out = value;
    if (!convert(out, field.type.kind)) {
      tell_type(value, path, field.type);
      return value;
    }
    tell_choice(field, out, path);
    return out;
  }

  void tell_type(const Node& value, const std::string& path, const FieldType& type) {
    Place place = value.origin.place;
    place.path = path;
    out_.problems.push_back({place,
                             compose::describe(value),
                             words(type),
                             {},
                             fmt::format("AReaL {} has it as {}", name_of(schema_.release()), type.text)});
  }
  void tell_choice(const Field& field, const Node& value, const std::string& path) {
    if (field.choices.empty() || value.kind != Node::Kind::text) return;
    if (std::find(field.choices.begin(), field.choices.end(), value.text) != field.choices.end()) return;
    if (field.key == "attn_impl" && !names_attention(value.text)) return;
    Place place = value.origin.place;
    place.path = path;
    out_.problems.push_back({place, compose::describe(value), list_of(field.choices), nearest(value.text, field.choices), {}});
  }
  /// From 1.0.2 on a kernel of the hub is taken, too ("org/repo"); before, nothing looked at the name
  /// (areal/engine/fsdp_utils/attn_impl.py).
  bool names_attention(const std::string& name) const {
    return schema_.release() >= release_named("1.0.2") && name.find('/') == std::string::npos;
  }
  void tell_unknown(Node& into, const Entry& entry, const std::string& path, bool top) {
    const PathRead read = schema_.find(root_, path);
    Place place = entry.value.origin.place;
    if (place.line == 0) place = entry.place;
    place.path = path;
    Problem p{place, "an unknown key", {}, read.nearest, unknown_text(read, schema_.release(), path)};
    if (const std::string_view why = argument_of_code(entry.key); !why.empty()) {
      p.why = why;
      return out_.problems.push_back(std::move(p));
    }
    const bool elsewhere = !read.others.empty() || !read.now.empty();
    if (top && !certain_ && (!elsewhere || !read.roots.empty())) {
      into.entries.push_back(entry);
      out_.unknown.push_back(std::move(p));
    } else {
      out_.problems.push_back(std::move(p));
    }
  }

  const Schema& schema_;
  std::string root_;
  bool certain_;
  Structured out_;
};

}  // namespace

Structured structured(const Schema& schema, std::string_view root_class, const compose::Node& composed, bool certain) {
  return Builder(schema, root_class, certain).run(composed);
}

std::vector<Problem> type_problems(const Schema& schema, std::string_view root_class, const compose::Node& resolved) {
  std::vector<Problem> out;
  for (auto& p : Builder(schema, root_class, false).run(resolved).problems)
    if (p.found != "an unknown key") out.push_back(std::move(p));
  return out;
}

}  // namespace oomplan::areal
