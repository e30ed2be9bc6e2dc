// Python, as far as it prints a literal as JSON: python3 - <<'PY' with `import json` and one print(json.dumps({...})), or the
// same behind -c. Nothing is run: what is more than a literal is not read.
#include <cctype>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "frontends/launch/evaluator.hpp"

namespace oomplan::launch {
namespace {

using Json = nlohmann::ordered_json;

class Literal {
 public:
  explicit Literal(std::string_view text) : text_(text) {}

  /// nullopt: the program is something else.
  std::optional<Json> run() {
    while (word("import"))
      if (!word("json")) return std::nullopt;
    if (!word("print") || !takes('(') || !word("json") || !takes('.') || !word("dumps") || !takes('(')) return std::nullopt;
    auto out = value(0);
    if (out && next() == ',') ++at_;
    if (!out || !takes(')')) return std::nullopt;
    if (next() == ',') ++at_;
    return takes(')') && next() == '\0' ? std::move(out) : std::nullopt;
  }

 private:
  static constexpr int kDeepest = 50;

  /// Lines end where they like: what is read is a whole anyway. A comment ends with its line.
  char next() {
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '#')
        while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      else if (std::isspace(static_cast<unsigned char>(text_[at_])) == 0 && text_[at_] != ';')
        return text_[at_];
    }
    return '\0';
  }
  bool takes(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  static bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
  bool word(std::string_view said) {
    next();
    const std::string_view rest = text_.substr(std::min(at_, text_.size()));
    if (!rest.starts_with(said) || (rest.size() > said.size() && in_name(rest[said.size()]))) return false;
    at_ += said.size();
    return true;
  }

  std::optional<Json> value(int depth) {
    if (depth > kDeepest) return std::nullopt;
    if (takes('{')) return object(depth);
    if (takes('[')) return list(depth);
    if (word("True")) return Json(true);
    if (word("False")) return Json(false);
    if (word("None")) return Json();
    const char c = next();
    return c == '"' || c == '\'' ? quoted() : number();
  }
  std::optional<Json> number() {
    std::size_t end = at_;
    while (end < text_.size() && std::string_view("0123456789.eE+-").find(text_[end]) != std::string_view::npos) ++end;
    if (end < text_.size() && in_name(text_[end])) return std::nullopt;
    Json out = Json::parse(text_.substr(at_, end - at_), nullptr, false);
    at_ = end;
    return out.is_number() ? std::optional(std::move(out)) : std::nullopt;
  }
  std::optional<Json> quoted() {
    const char mark = text_[at_++];
    std::string out;
    for (; at_ < text_.size() && text_[at_] != mark; ++at_) {
      const char c = text_[at_];
      if (c == '\n') return std::nullopt;
      if (c != '\\') {
        out += c;
        continue;
      }
      const char after = ++at_ < text_.size() ? text_[at_] : '\0';
      if (after != '\\' && after != '"' && after != '\'') return std::nullopt;
      out += after;
    }
    if (!takes(mark) || next() == mark) return std::nullopt;  // three marks, or two texts behind each other
    return Json(out);
  }
  std::optional<Json> list(int depth) {
    Json out = Json::array();
    while (!takes(']')) {
      auto one = value(depth + 1);
      if (!one) return std::nullopt;
      out.push_back(std::move(*one));
      if (!takes(',') && next() != ']') return std::nullopt;
    }
    return out;
  }
  std::optional<Json> object(int depth) {
    Json out = Json::object();
    while (!takes('}')) {
      const char c = next();
      const auto key = c == '"' || c == '\'' ? quoted() : std::nullopt;
      if (!key || !takes(':')) return std::nullopt;
      auto one = value(depth + 1);
      if (!one) return std::nullopt;
      out[key->get<std::string>()] = std::move(*one);
      if (!takes(',') && next() != '}') return std::nullopt;
    }
    return out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// As json.dumps has it: a blank behind commas and colons, and no letter beyond ASCII.
void put(const Json& value, std::string& out) {
  if (!value.is_structured()) {
    out += value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return;
  }
  const bool object = value.is_object();
  out += object ? '{' : '[';
  bool first = true;
  for (const auto& [key, one] : value.items()) {
    if (!std::exchange(first, false)) out += ", ";
    if (object) out += Json(key).dump(-1, ' ', true, Json::error_handler_t::replace) + ": ";
    put(one, out);
  }
  out += object ? '}' : ']';
}

}  // namespace

std::optional<Status> Evaluator::python_json(const Texts& words) {
  const std::string how = words.empty() ? "-" : bytes_of(words[0]);
  if (how != "-" && how != "-c") return std::nullopt;
  if (words.size() > (how == "-c" ? 2U : 1U)) return std::nullopt;  // sys.argv
  if (how == "-" && streams_.in == nullptr) return std::nullopt;
  const Text code = how == "-c" ? (words.size() == 2 ? words[1] : Text()) : rest_of_input();
  if (!is_known(code)) return std::nullopt;
  budget_.text(code.size());
  const std::string text = bytes_of(code);
  const std::optional<Json> made = Literal(text).run();
  if (!made) return std::nullopt;
  std::string out;
  put(*made, out);
  budget_.text(out.size());
  write(1, text_of(out + "\n"));
  return Status{};
}

}  // namespace oomplan::launch
