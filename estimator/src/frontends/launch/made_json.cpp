// jq, as far as it makes a value of its arguments: jq -n --argjson n 8 '{actor: [1, $n]}' (jq 1.7 manual, "Object construction").
#include <cctype>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "frontends/launch/evaluator.hpp"
#include "units/json_depth.hpp"

namespace oomplan::launch {
namespace {

using Json = nlohmann::ordered_json;

class Filter {
 public:
  Filter(std::string_view text, const std::map<std::string, Json>& given) : text_(text), given_(given) {}

  /// nullopt: it is more than a value made of literals and arguments.
  std::optional<Json> run() {
    auto out = value(0);
    return out && next() == '\0' ? std::move(out) : std::nullopt;
  }

 private:
  static constexpr int kDeepest = 50;

  char next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool takes(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  std::string name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_')) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  std::optional<Json> argument() {
    const auto found = given_.find(name());
    return found == given_.end() ? std::nullopt : std::optional(found->second);
  }
  /// A number or a string, which JSON has, too; but no "\(...)".
  std::optional<Json> literal() {
    std::size_t end = at_ + 1;
    if (text_[at_] == '"') {
      while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
      ++end;
    } else {
      while (end < text_.size() && std::string_view("0123456789.eE+-").find(text_[end]) != std::string_view::npos) ++end;
    }
    if (end > text_.size()) return std::nullopt;
    Json out = Json::parse(text_.substr(at_, end - at_), nullptr, false);
    at_ = end;
    return out.is_discarded() ? std::nullopt : std::optional(std::move(out));
  }
  std::optional<Json> word() {
    const std::string said = name();
    if (said == "true" || said == "false") return Json(said == "true");
    return said == "null" ? std::optional(Json()) : std::nullopt;
  }

  std::optional<Json> value(int depth) {
    if (depth > kDeepest) return std::nullopt;
    const char c = next();
    if (takes('{')) return object(depth);
    if (takes('[')) return array(depth);
    if (takes('$')) return argument();
    if (c == '"' || std::isdigit(static_cast<unsigned char>(c)) != 0) return literal();
    return word();
  }
  std::optional<Json> array(int depth) {
    Json out = Json::array();
    if (takes(']')) return out;
    do {
      auto one = value(depth + 1);
      if (!one) return std::nullopt;
      out.push_back(std::move(*one));
    } while (takes(','));
    return takes(']') ? std::optional(std::move(out)) : std::nullopt;
  }
  std::optional<Json> object(int depth) {
    Json out = Json::object();
    if (takes('}')) return out;
    do {
      const char c = next();
      const auto quoted = c == '"' ? literal() : std::nullopt;
      const bool itself = quoted ? false : takes('$');  // {$n} is {n: $n}
      const std::size_t begin = at_;
      const std::string key = quoted && quoted->is_string() ? quoted->get<std::string>() : name();
      if (key.empty()) return std::nullopt;
      if (itself) at_ = begin;
      auto one = itself ? argument() : takes(':') ? value(depth + 1) : std::nullopt;
      if (!one) return std::nullopt;
      out[key] = std::move(*one);
    } while (takes(','));
    return takes('}') ? std::optional(std::move(out)) : std::nullopt;
  }

  std::string_view text_;
  const std::map<std::string, Json>& given_;
  std::size_t at_ = 0;
};

}  // namespace

std::optional<Status> Evaluator::jq(const Texts& words) {
  bool nothing = false, compact = false, raw = false;
  std::map<std::string, Json> given;
  std::optional<std::string> filter;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!is_known(words[i])) return std::nullopt;
    const std::string word = bytes_of(words[i]);
    if (word == "--arg" || word == "--argjson") {
      if (i + 2 >= words.size() || !is_known(words[i + 1]) || !is_known(words[i + 2])) return std::nullopt;
      const std::string said = bytes_of(words[i + 2]);
      if (!too_deep(said).empty()) return std::nullopt;
      Json value = word == "--arg" ? Json(said) : Json::parse(said, nullptr, false);
      if (value.is_discarded()) return std::nullopt;
      given[bytes_of(words[i + 1])] = std::move(value);
      i += 2;
    } else if (word.starts_with("--")) {
      nothing = nothing || word == "--null-input", compact = compact || word == "--compact-output";
      raw = raw || word == "--raw-output";
      if (word != "--null-input" && word != "--compact-output" && word != "--raw-output") return std::nullopt;
    } else if (word.starts_with('-')) {
      for (const char c : word.substr(1)) {
        nothing = nothing || c == 'n', compact = compact || c == 'c', raw = raw || c == 'r';
        if (c != 'n' && c != 'c' && c != 'r') return std::nullopt;
      }
    } else if (!filter) {
      filter = word;
    } else {
      return std::nullopt;  // files
    }
  }
  if (!nothing || !filter) return std::nullopt;
  budget_.text(filter->size());
  const std::optional<Json> made = Filter(*filter, given).run();
  if (!made) return std::nullopt;
  const bool plain_text = raw && made->is_string();
  constexpr auto kReplace = Json::error_handler_t::replace;
  const std::string out = plain_text ? made->get<std::string>() : made->dump(compact ? -1 : 2, ' ', false, kReplace);
  budget_.text(out.size());
  write(1, text_of(out + "\n"));
  return Status{};
}

}  // namespace oomplan::launch
