#include "frontends/transformers/arguments.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "frontends/compose/compose.hpp"

namespace oomplan::transformers {
namespace {

using compose::Node;
using structured::Field;
using structured::FieldKind;

/// What an option string sets.
struct Option {
  const Field* field = nullptr;
  bool negated = false;  ///< --no_x of a flag that is true by default
};

std::string with_hyphens(std::string text) {
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

std::map<std::string, Option> options_of(const Classes& classes, const std::string& trainer) {
  std::map<std::string, Option> out;
  for (const Field* field : classes.fields(trainer)) {
    out["--" + field->key] = {field};
    out["--" + with_hyphens(field->key)] = {field};
    if (field->type.kind != FieldKind::flag || !field->flag().value_or(false)) continue;
    out["--no_" + field->key] = {field, true};
    out["--no-" + with_hyphens(field->key)] = {field, true};
  }
  return out;
}

bool is_number(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word.find_first_not_of("0123456789.eE-+", 1) == std::string::npos;
}
/// argparse takes a word with a hyphen for an option, but for negative numbers and words with a blank.
bool is_value(const std::string& word) {
  return word.empty() || word[0] != '-' || word == "-" || is_number(word) || word.find(' ') != std::string::npos;
}

/// transformers/hf_argparser.py: string_to_bool.
std::optional<bool> truth_of(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string_view yes : {"yes", "true", "t", "y", "1"})
    if (text == yes) return true;
  for (const std::string_view no : {"no", "false", "f", "n", "0"})
    if (text == no) return false;
  return std::nullopt;
}

class Parser {
 public:
  Parser(const std::vector<std::string>& words, const Classes& classes, const std::string& trainer)
      : words_(words), options_(options_of(classes, trainer)) {
    out_.given.kind = Node::Kind::map;
  }

  Arguments run() {
    while (at_ < words_.size()) {
      const std::string& word = words_[at_++];
      if (word.starts_with("--") && word.size() > 2)
        flag(word);
      else if (!beside(word))
        fail(word, fmt::format("'{}'", word), "--key value", "it stands behind no flag that takes it");
    }
    return std::move(out_);
  }

 private:
  static Origin origin(const std::string& key, const std::string& typed) {
    return {Origin::Kind::override_, {"command line", 0, 0, key}, typed, {}};
  }
  void fail(const std::string& key, std::string found, std::string expected, std::string why) {
    out_.problems.push_back({{"command line", 0, 0, key}, std::move(found), std::move(expected), {}, std::move(why)});
  }

  /// "per_device_train_batch_size=2", said beside the command.
  bool beside(const std::string& word) {
    const auto equals = word.find('=');
    const auto option = equals == std::string::npos ? options_.end() : options_.find("--" + word.substr(0, equals));
    if (option == options_.end()) return false;
    take(option->second, word, {word.substr(equals + 1)});
    return true;
  }

  void flag(const std::string& word) {
    const auto equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::optional<Option> option = named(name);
    if (!option) return other(name, equals == std::string::npos ? std::nullopt : std::optional(word.substr(equals + 1)));
    if (option->field == nullptr) return;  // ambiguous, which is told
    if (equals != std::string::npos) return take(*option, word, {word.substr(equals + 1)});
    if (option->negated) return put(option->field->key, truth(false, word));
    take(*option, word, values(*option->field));
  }

  /// By its name or by a beginning that no other option has.
  std::optional<Option> named(const std::string& name) {
    if (const auto exact = options_.find(name); exact != options_.end()) return exact->second;
    std::vector<std::string> keys;
    std::optional<Option> found;
    for (auto row = options_.lower_bound(name); row != options_.end() && row->first.starts_with(name); ++row) {
      if (std::find(keys.begin(), keys.end(), row->second.field->key) == keys.end()) keys.push_back(row->second.field->key);
      found = row->second;
    }
    if (keys.size() < 2) return found;
    fail(name, fmt::format("{}", name), "a whole name", fmt::format("argparse: it could match {}", fmt::join(keys, ", ")));
    return Option{};
  }

  /// Words that belong to the flag: one, one or none of a truth value, all up to the next flag of a list.
  std::vector<std::string> values(const Field& field) {
    std::vector<std::string> out;
    const bool list = field.type.kind == FieldKind::list;
    while (at_ < words_.size() && is_value(words_[at_]) && (list || out.empty())) out.push_back(words_[at_++]);
    return out;
  }

  void other(const std::string& name, const std::optional<std::string>& value) {
    OtherFlag made{name, {}};
    if (value) made.values.push_back(*value);
    while (!value && at_ < words_.size() && is_value(words_[at_])) {
      if (words_[at_].find('=') != std::string::npos && options_.count("--" + words_[at_].substr(0, words_[at_].find('='))) > 0)
        break;
      made.values.push_back(words_[at_++]);
    }
    out_.others.push_back(std::move(made));
  }

  static Node truth(bool value, const std::string& typed) {
    Node n;
    n.kind = Node::Kind::boolean;
    n.boolean = value;
    n.origin.because = typed;
    return n;
  }

  void take(const Option& option, const std::string& typed, const std::vector<std::string>& values) {
    const Field& field = *option.field;
    const std::string written = fmt::format("--{}{}", field.key, values.empty() ? "" : " " + values.back());
    if (values.empty()) {
      const bool may = field.type.kind == FieldKind::flag && !(field.type.optional && field.default_json == "null");
      if (may) return put(field.key, truth(true, typed));
      return fail(field.key, fmt::format("{} without a value", typed),
                  field.type.kind == FieldKind::flag ? "true or false" : "a value",
                  fmt::format("argparse: argument {}: expected one argument", typed));
    }
    if (field.type.kind == FieldKind::flag) {
      const std::optional<bool> said = truth_of(values[0]);
      if (!said)
        return fail(field.key, fmt::format("'{}'", values[0]), "true or false",
                    "argparse takes yes, true, t, y, 1 and their opposites");
      return put(field.key, truth(*said, written));
    }
    if (field.type.kind == FieldKind::list) return put(field.key, list_of_texts(values, written));
    put(field.key, value_of(field, values[0], written));
  }

  static Node list_of_texts(const std::vector<std::string>& values, const std::string& written) {
    Node out;
    out.kind = Node::Kind::list;
    for (const std::string& value : values) out.items.push_back(compose::text_node(value));
    out.origin.because = written;
    return out;
  }

  Node value_of(const Field& field, const std::string& value, const std::string& written) {
    const bool dict =
        field.type.kind == FieldKind::dict || (field.type.kind == FieldKind::any && field.type.text.starts_with("dict"));
    Node out =
        dict && value.starts_with('{') ? dict_of(value, origin(field.key, written), out_.problems) : compose::text_node(value);
    const bool number = field.type.kind == FieldKind::integer || field.type.kind == FieldKind::number;
    if (number) std::erase(out.text, '_');  // Python's int() and float() pass them over
    out.origin.because = written;
    return out;
  }

  void put(const std::string& key, Node value) {
    value.origin = origin(key, value.origin.because);
    for (Node& item : value.items) item.origin = value.origin;
    if (Node* there = out_.given.find(key))
      *there = std::move(value);
    else
      out_.given.entries.push_back({key, Node::Kind::text, value.origin.place, std::move(value)});
  }

  const std::vector<std::string>& words_;
  std::map<std::string, Option> options_;
  std::size_t at_ = 0;
  Arguments out_;
};

void place_all(Node& n, const Origin& origin) {
  n.origin = origin;
  for (auto& entry : n.entries) place_all(entry.value, origin);
  for (Node& item : n.items) place_all(item, origin);
}

}  // namespace

Arguments read_arguments(const std::vector<std::string>& words, const Classes& classes, const std::string& trainer) {
  return Parser(words, classes, trainer).run();
}

compose::Node dict_of(const std::string& text, const Origin& origin, std::vector<Problem>& problems) {
  compose::Composed read = compose::load_with_dotlist(text, origin.place.file, {}, {});
  for (Problem p : read.problems) {
    p.place = origin.place;
    problems.push_back(std::move(p));
  }
  place_all(read.root, origin);
  return std::move(read.root);
}

}  // namespace oomplan::transformers
