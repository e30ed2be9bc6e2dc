#include "catalog/fields.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/class_defaults.hpp"
#include "units/enums.hpp"
#include "units/utf8.hpp"

namespace oomplan {

struct Fields::Value {
  struct Member;  // not a std::pair, which cannot be named before Value is complete
  enum class Kind : std::uint8_t { null, flag, integer, number, text, list, object };
  Kind kind = Kind::null;
  bool flag = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;  // of Kind::text; of the outermost value: the file's name
  std::string file;
  std::vector<Value> list;
  std::vector<Member> object;
};
struct Fields::Value::Member {
  std::string first;
  Value second;
};

namespace {

using Json = nlohmann::json;
constexpr std::string_view kNotFinite = "\x01nan";

constexpr std::size_t kLongest = 60;  ///< bytes of a value in a message

bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Python's json writes NaN, Infinity and -Infinity, which are no JSON: they become texts that no number accepts.
std::string with_words_for_non_finite(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool quoted = false;
  for (std::size_t i = 0; i < text.size();) {
    if (quoted && text[i] == '\\' && i + 1 < text.size()) {
      out.append(text.substr(i, 2));
      i += 2;
      continue;
    }
    if (text[i] == '"') quoted = !quoted;
    if (!quoted && (i == 0 || !letter(text[i - 1]))) {
      bool replaced = false;
      for (const std::string_view word : {std::string_view("-Infinity"), std::string_view("Infinity"), std::string_view("NaN")}) {
        if (text.substr(i, word.size()) != word) continue;
        out += "\"\\u0001nan\"";
        i += word.size();
        replaced = true;
        break;
      }
      if (replaced) continue;
    }
    out += text[i++];
  }
  return out;
}

}  // namespace

/// Receives the parser's events and builds the tree; stops at too deep a nesting.
struct Fields::Builder final : nlohmann::json_sax<Json> {
  using Kind = Value::Kind;
  Value root;
  std::vector<Value*> open;
  std::string last_key;
  std::string error;
  std::size_t values = 0;

  bool counted() {
    if (++values > kMaxJsonValues) error = fmt::format("more than {} values", kMaxJsonValues);
    return error.empty();
  }
  bool put(Value value) {
    if (!counted()) return false;
    Value* const stored = place(std::move(value));
    return stored != nullptr;
  }
  Value* place(Value value) {
    if (open.empty()) {
      root = std::move(value);
      return &root;
    }
    Value& parent = *open.back();
    if (parent.kind == Kind::list) return &parent.list.emplace_back(std::move(value));
    parent.object.push_back({last_key, std::move(value)});
    return &parent.object.back().second;
  }
  bool start(Kind kind) {
    if (!counted()) return false;
    if (open.size() >= static_cast<std::size_t>(kMaxJsonDepth)) {
      error = fmt::format("nesting of more than {} levels", kMaxJsonDepth);
      return false;
    }
    Value value;
    value.kind = kind;
    open.push_back(place(std::move(value)));
    return true;
  }
  static Value of(Kind kind) {
    Value value;
    value.kind = kind;
    return value;
  }

  bool null() override { return put(Value{}); }
  bool boolean(bool b) override {
    Value value = of(Kind::flag);
    value.flag = b;
    return put(std::move(value));
  }
  bool number_integer(Json::number_integer_t n) override {
    Value value = of(Kind::integer);
    value.integer = n;
    value.number = static_cast<double>(n);
    return put(std::move(value));
  }
  bool number_unsigned(Json::number_unsigned_t n) override {
    if (n <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return number_integer(static_cast<std::int64_t>(n));
    return number_float(static_cast<double>(n), "");
  }
  bool number_float(Json::number_float_t n, const std::string&) override {
    Value value = of(Kind::number);
    value.number = n;
    return put(std::move(value));
  }
  bool string(std::string& s) override {
    Value value = of(s == kNotFinite ? Kind::number : Kind::text);
    value.number = std::numeric_limits<double>::quiet_NaN();
    value.text = s;
    return put(std::move(value));
  }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return start(Kind::object); }
  bool end_object() override {
    std::vector<std::string_view> names;
    for (const auto& [name, value] : open.back()->object) names.push_back(name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) error = fmt::format("the key '{}' twice", shortened(*twice, kLongest));
    open.pop_back();
    return error.empty();
  }
  bool start_array(std::size_t) override { return start(Kind::list); }
  bool end_array() override {
    open.pop_back();
    return true;
  }
  bool key(std::string& name) override {
    last_key = name;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const Json::exception&) override {
    error = fmt::format("a syntax error at byte {}", at);
    return false;
  }
};

namespace {

template <class Value>
std::string shown(const Value* value) {
  using Kind = typename Value::Kind;
  if (value == nullptr) return "nothing";
  switch (value->kind) {
    case Kind::null:
      return "null";
    case Kind::flag:
      return value->flag ? "true" : "false";
    case Kind::integer:
      return std::to_string(value->integer);
    case Kind::number:
      return std::isfinite(value->number) ? fmt::format("{}", value->number) : "a number that is not finite";
    case Kind::text:
      return "'" + shortened(value->text, kLongest) + "'";
    case Kind::list:
      return fmt::format("a list of {}", value->list.size());
    case Kind::object:
      return "an object";
  }
  return "?";
}

}  // namespace

Fields::Fields(std::shared_ptr<const Value> root, const Value* here, std::string path)
    : root_(std::move(root)), here_(here), path_(std::move(path)) {}

std::shared_ptr<const Fields::Value> Fields::read(std::string_view text, const std::string& file) {
  const auto fail = [&file](std::string found, std::string expected) {
    throw InputError(Problem{{file, 0, 0, ""}, std::move(found), std::move(expected), "", ""});
  };
  if (text.size() > kMaxJsonBytes) fail(fmt::format("{} bytes", text.size()), fmt::format("at most {} bytes", kMaxJsonBytes));
  Builder builder;
  const std::string clean = with_words_for_non_finite(text);
  if (!Json::sax_parse(clean, &builder)) fail(builder.error.empty() ? "no JSON" : builder.error, "a JSON text");
  builder.root.file = file;
  return std::make_shared<const Value>(std::move(builder.root));
}

Fields Fields::parse(std::string_view text, const std::string& file) {
  auto root = read(text, file);
  const Value* const here = root.get();
  Fields out(std::move(root), here, "");
  if (here->kind != Value::Kind::object) out.wrong("", here, "a JSON object");
  return out;
}

std::vector<Fields> Fields::parse_array(std::string_view text, const std::string& file) {
  const auto root = read(text, file);
  const Fields outer(root, root.get(), "");
  if (root->kind != Value::Kind::list) outer.wrong("", root.get(), "a JSON list");
  std::vector<Fields> out;
  for (std::size_t i = 0; i < root->list.size(); ++i) {
    const std::string path = fmt::format("[{}]", i);
    if (root->list[i].kind != Value::Kind::object) outer.wrong(path, &root->list[i], "an object");
    out.push_back(Fields(root, &root->list[i], path));
  }
  return out;
}

const std::string& Fields::file() const { return root_->file; }

const Fields::Value* Fields::own(std::string_view key) const {
  for (const auto& [name, value] : here_->object)
    if (name == key) return &value;
  return nullptr;
}

const Fields::Value* Fields::written(std::string_view key) const {
  if (const Value* const value = own(key)) return value;
  if (class_ == nullptr) return nullptr;
  for (const auto& [alias, field] : class_->aliases)
    if (field == key)
      if (const Value* const value = own(alias)) return value;
  return nullptr;
}

const Fields::Value* Fields::find(std::string_view key) const {
  const Value* const value = written(key);
  if (value != nullptr) return value->kind == Value::Kind::null ? nullptr : value;
  if (class_ == nullptr) return nullptr;
  const auto alias = class_->aliases.find(key);
  return alias == class_->aliases.end() ? class_->fields.find(key) : find(alias->second);
}

Fields Fields::over(const ClassDefaults& defaults) const {
  Fields out = *this;
  out.class_ = &defaults;
  for (const auto& [name, value] : here_->object) {
    if (value.kind != Value::Kind::null) continue;
    const auto alias = defaults.aliases.find(name);
    const std::string& field = alias == defaults.aliases.end() ? name : alias->second;
    if (!defaults.fields.has(field) || defaults.nullable.contains(field)) continue;
    wrong(path_of(name), &value, "no null",
          fmt::format("the class of {} in transformers {} takes none; without the key it is {}", defaults.name, defaults.version,
                      shown(defaults.fields.find(field))));
  }
  for (const auto& [name, field] : defaults.aliases) {
    const Value* const alias = own(name);
    const Value* const value = own(field);
    if (alias == nullptr || value == nullptr || shown(alias) == shown(value)) continue;
    wrong(path_of(name), alias, shown(value), fmt::format("in transformers it is another name for {}", field));
  }
  return out;
}

std::string Fields::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

void Fields::wrong(const std::string& path, const Value* found, std::string_view expected, std::string_view why,
                   std::string_view nearest) const {
  throw InputError(Problem{{file(), 0, 0, path}, shown(found), std::string(expected), std::string(nearest), std::string(why)});
}

const Fields::Value& Fields::need(std::string_view key, std::string_view expected) const {
  const Value* const value = find(key);
  if (value == nullptr) wrong(path_of(key), nullptr, expected);
  return *value;
}

bool Fields::has(std::string_view key) const { return find(key) != nullptr; }
bool Fields::stated(std::string_view key) const { return written(key) != nullptr; }
bool Fields::of_class(std::string_view key) const {
  return class_ != nullptr && (class_->fields.own(key) != nullptr || class_->aliases.contains(key));
}
bool Fields::is_null(std::string_view key) const {
  const Value* const value = written(key);
  if (value != nullptr) return value->kind == Value::Kind::null;
  return class_ != nullptr && class_->fields.is_null(key);
}
bool Fields::is_text(std::string_view key) const { return has(key) && find(key)->kind == Value::Kind::text; }
bool Fields::is_list(std::string_view key) const { return has(key) && find(key)->kind == Value::Kind::list; }
bool Fields::is_object(std::string_view key) const { return has(key) && find(key)->kind == Value::Kind::object; }
bool Fields::is_flag(std::string_view key) const { return has(key) && find(key)->kind == Value::Kind::flag; }

std::vector<std::string> Fields::keys() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : here_->object) out.push_back(name);
  return out;
}

std::int64_t Fields::checked(const Value& value, const std::string& path, Limits limits) const {
  if (value.kind != Value::Kind::integer || value.integer < limits.least || value.integer > limits.most)
    wrong(path, &value, fmt::format("an integer from {} to {}", limits.least, limits.most));
  return value.integer;
}

double Fields::checked(const Value& value, const std::string& path, double least, double most) const {
  const bool numeric = value.kind == Value::Kind::integer || value.kind == Value::Kind::number;
  if (!numeric || !(value.number >= least && value.number <= most))
    wrong(path, &value, fmt::format("a number from {} to {}", least, most));
  return value.number;
}

std::int64_t Fields::integer(std::string_view key, Limits limits) const {
  return checked(need(key, fmt::format("an integer from {} to {}", limits.least, limits.most)), path_of(key), limits);
}

std::int64_t Fields::integer_or(std::string_view key, std::int64_t otherwise, Limits limits) const {
  return has(key) ? integer(key, limits) : otherwise;
}

double Fields::number(std::string_view key, double least, double most) const {
  return checked(need(key, fmt::format("a number from {} to {}", least, most)), path_of(key), least, most);
}

double Fields::number_or(std::string_view key, double otherwise, double least, double most) const {
  return has(key) ? number(key, least, most) : otherwise;
}

bool Fields::flag(std::string_view key) const {
  const Value& value = need(key, "true or false");
  if (value.kind != Value::Kind::flag) wrong(path_of(key), &value, "true or false");
  return value.flag;
}

bool Fields::flag_or(std::string_view key, bool otherwise) const {
  if (has(key)) return flag(key);
  return stated(key) && of_class(key) ? false : otherwise;  // a class that takes null: not true
}

std::string Fields::text(std::string_view key) const {
  const Value& value = need(key, "a text");
  if (value.kind != Value::Kind::text) wrong(path_of(key), &value, "a text");
  return value.text;
}

std::string Fields::text_or(std::string_view key, std::string_view otherwise) const {
  return has(key) ? text(key) : std::string(otherwise);
}

std::string Fields::scalar_text(std::string_view key) const {
  const Value& value = need(key, "a text, a number or a truth value");
  if (value.kind == Value::Kind::text) return value.text;
  if (value.kind == Value::Kind::list || value.kind == Value::Kind::object || !std::isfinite(value.number))
    wrong(path_of(key), &value, "a text, a number or a truth value");
  return shown(&value);
}

Fields Fields::object(std::string_view key) const {
  const Value& value = need(key, "an object");
  if (value.kind != Value::Kind::object) wrong(path_of(key), &value, "an object");
  return Fields(root_, &value, path_of(key));
}

std::optional<Fields> Fields::object_if(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return object(key);
}

const Fields::Value& Fields::need_list(std::string_view key, std::string_view expected) const {
  const Value& value = need(key, expected);
  if (value.kind != Value::Kind::list) wrong(path_of(key), &value, expected);
  if (value.list.size() > kMaxListLength) wrong(path_of(key), &value, fmt::format("a list of at most {}", kMaxListLength));
  return value;
}

std::vector<Fields> Fields::objects(std::string_view key) const {
  const Value& value = need_list(key, "a list of objects");
  std::vector<Fields> out;
  for (std::size_t i = 0; i < value.list.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", path_of(key), i);
    if (value.list[i].kind != Value::Kind::object) wrong(path, &value.list[i], "an object");
    out.push_back(Fields(root_, &value.list[i], path));
  }
  return out;
}

std::vector<std::int64_t> Fields::integers(std::string_view key, Limits limits) const {
  const Value& value = need_list(key, "a list of integers");
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < value.list.size(); ++i)
    out.push_back(checked(value.list[i], fmt::format("{}[{}]", path_of(key), i), limits));
  return out;
}

std::vector<double> Fields::numbers(std::string_view key, double least, double most) const {
  const Value& value = need_list(key, "a list of numbers");
  std::vector<double> out;
  for (std::size_t i = 0; i < value.list.size(); ++i)
    out.push_back(checked(value.list[i], fmt::format("{}[{}]", path_of(key), i), least, most));
  return out;
}

std::vector<std::string> Fields::texts(std::string_view key) const {
  const Value& value = need_list(key, "a list of texts");
  std::vector<std::string> out;
  for (std::size_t i = 0; i < value.list.size(); ++i) {
    if (value.list[i].kind != Value::Kind::text) wrong(fmt::format("{}[{}]", path_of(key), i), &value.list[i], "a text");
    out.push_back(value.list[i].text);
  }
  return out;
}

void Fields::only(const std::vector<std::string>& known) const {
  std::vector<Problem> problems;
  for (const auto& [name, value] : here_->object) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    problems.push_back({{file(), 0, 0, path_of(name)}, "an unknown key", "one of " + list_of(known), nearest(name, known), ""});
  }
  if (!problems.empty()) throw InputError(std::move(problems));
}

void Fields::refuse(std::string_view key, std::string_view expected, std::string_view why, std::string_view nearest_word) const {
  wrong(path_of(key), find(key), expected, why, nearest_word);
}

}  // namespace oomplan
