// The patterns are those of yaml/resolver.py (PyYAML 6.0.3) and omegaconf/_utils.py get_yaml_loader (OmegaConf 2.3.0).
#include "frontends/compose/scalar.hpp"
#include "frontends/compose/characters.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include <fmt/format.h>

namespace oomplan::compose {
namespace {

using Kind = Node::Kind;

constexpr std::string_view kDigits = "0123456789", kDigitsAndLine = "0123456789_";

/// Reads a pattern from left to right.
class Scan {
 public:
  explicit Scan(std::string_view s) : left_(s) {}
  bool end() const { return left_.empty(); }
  bool one(std::string_view set) {
    if (left_.empty() || set.find(left_.front()) == std::string_view::npos) return false;
    left_.remove_prefix(1);
    return true;
  }
  std::size_t run(std::string_view set) {
    const std::size_t n = std::min(left_.find_first_not_of(set), left_.size());
    left_.remove_prefix(n);
    return n;
  }
  bool word(std::string_view w) {
    if (!left_.starts_with(w)) return false;
    left_.remove_prefix(w.size());
    return true;
  }
  /// Digits with single underscores between them.
  bool grouped() {
    if (run(kDigits) == 0) return false;
    while (left_.size() > 1 && left_[0] == '_' && kDigits.find(left_[1]) != std::string_view::npos) {
      left_.remove_prefix(1);
      run(kDigits);
    }
    return true;
  }
  /// ":59", at least once.
  bool sixties() {
    std::size_t n = 0;
    for (; word(":"); ++n) {
      if (one("012345")) {
        one(kDigits);
      } else if (!one(kDigits)) {
        return false;
      }
    }
    return n > 0;
  }
  bool exponent(bool sign_needed) {
    if (!one("eE")) return false;
    if (!one("+-") && sign_needed) return false;
    return run(kDigits) > 0;
  }

 private:
  std::string_view left_;
};

template <class Pattern>
bool matches(std::string_view text, Pattern pattern) {
  Scan scan(text);
  return pattern(scan) && scan.end();
}

bool optional_exponent(Scan& s, bool sign_needed) { return s.end() || s.exponent(sign_needed); }

bool is_real(std::string_view text) {
  return matches(text,
                 [](Scan& s) {
                   return s.one("+-"), s.one(kDigits) && (s.run(kDigitsAndLine), s.word(".")) &&
                                           (s.run(kDigitsAndLine), optional_exponent(s, true));
                 }) ||
         matches(text,
                 [](Scan& s) { return s.word(".") && s.one(kDigits) && (s.run(kDigitsAndLine), optional_exponent(s, true)); }) ||
         matches(text,
                 [](Scan& s) {
                   return s.one("+-"),
                          s.one(kDigits) && (s.run(kDigitsAndLine), s.sixties()) && s.word(".") && (s.run(kDigitsAndLine), true);
                 }) ||
         matches(text, [](Scan& s) {  // OmegaConf: an exponent needs neither a dot nor a sign
           return s.one("+-"),
                  s.grouped() && (s.word(".") ? (s.run(kDigitsAndLine), optional_exponent(s, false)) : s.exponent(false));
         });
}

bool is_integer(std::string_view text) {
  const auto sign = [](Scan& s) { return s.one("+-"), true; };
  return matches(text, [&](Scan& s) { return sign(s) && s.word("0b") && s.run("01_") > 0; }) ||
         matches(text, [&](Scan& s) { return sign(s) && s.word("0") && (s.run("01234567_"), true); }) ||
         matches(text, [&](Scan& s) { return sign(s) && s.one("123456789") && (s.run(kDigitsAndLine), true); }) ||
         matches(text, [&](Scan& s) { return sign(s) && s.word("0x") && s.run("0123456789abcdefABCDEF_") > 0; }) ||
         matches(text, [&](Scan& s) { return sign(s) && s.one("123456789") && (s.run(kDigitsAndLine), s.sixties()); });
}

bool is_special(std::string_view text, std::string_view& which) {
  const bool sign = text.starts_with('-') || text.starts_with('+');
  which = text;
  const std::string_view word = sign ? text.substr(1) : text;
  if (word == ".inf" || word == ".Inf" || word == ".INF") return true;
  return text == ".nan" || text == ".NaN" || text == ".NAN";
}

Node broken(std::string why) {
  Node out;
  out.kind = Kind::broken;
  out.text = std::move(why);
  return out;
}
Node real(double value) {
  Node out;
  out.kind = Kind::real;
  out.real = value;
  return out;
}

/// "190:20:30" and "190:20:30.15", base sixty.
double sixties(std::string_view digits) {
  double out = 0;
  for (std::size_t at = 0; at <= digits.size();) {
    const std::size_t end = std::min(digits.find(':', at), digits.size());
    out = out * 60 + python_float(std::string(digits.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

Node integer(std::string_view text) {
  std::string digits = without_lines(text);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  if (digits.find(':') != std::string::npos) {
    const double value = sixties(digits);
    constexpr double kExact = 9007199254740992;  // 2^53
    if (value > kExact) return broken(std::string(kTooLarge));
    Node out;
    out.kind = Kind::integer;
    out.integer = static_cast<std::int64_t>(negative ? -value : value);
    return out;
  }
  int base = 10;
  if (digits.starts_with("0b") || digits.starts_with("0x")) {
    base = digits[1] == 'b' ? 2 : 16;
    digits.erase(0, 2);
    if (digits.empty()) return broken("a number without digits");
  } else if (digits.starts_with('0')) {
    base = 8;
  }
  const auto value = python_int((negative ? "-" : "") + digits, base);
  if (!value) return broken(std::string(kTooLarge));
  Node out;
  out.kind = Kind::integer;
  out.integer = *value;
  return out;
}

Node floating(std::string_view text) {
  std::string_view which;
  if (is_special(text, which)) {
    if (text.size() > 1 && (text.back() == 'n' || text.back() == 'N')) return real(std::numeric_limits<double>::quiet_NaN());
    const double inf = std::numeric_limits<double>::infinity();
    return real(text.starts_with('-') ? -inf : inf);
  }
  std::string digits = without_lines(text);
  if (digits.find(':') == std::string::npos) return real(python_float(digits));
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  return real(negative ? -sixties(digits) : sixties(digits));
}

std::optional<bool> truth(std::string_view text) {
  constexpr std::array<std::string_view, 9> kYes{"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"};
  constexpr std::array<std::string_view, 9> kNo{"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"};
  if (std::find(kYes.begin(), kYes.end(), text) != kYes.end()) return true;
  if (std::find(kNo.begin(), kNo.end(), text) != kNo.end()) return false;
  return std::nullopt;
}

}  // namespace

double python_float(const std::string& digits) {
  const char* begin = digits.data() + (digits.starts_with('+') ? 1 : 0);
  double out = 0;
  const auto status = std::from_chars(begin, digits.data() + digits.size(), out).ec;
  if (status != std::errc::result_out_of_range) return out;
  const std::size_t e = digits.find_first_of("eE");
  const bool large = e != std::string::npos ? digits.find('-', e) == std::string::npos
                                            : digits.substr(0, digits.find('.')).find_first_of("123456789") != std::string::npos;
  const double size = large ? std::numeric_limits<double>::infinity() : 0.0;
  return digits.starts_with('-') ? -size : size;
}

std::optional<std::int64_t> python_int(std::string_view digits, int base) {
  if (digits.starts_with('+')) digits.remove_prefix(1);
  std::int64_t out = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), out, base);
  if (status != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return out;
}

Node text_scalar(std::string text) {
  Node out = text_node(std::move(text));
  if (out.text == "???") out.kind = Kind::missing;
  return out;
}

Node plain_scalar(std::string_view text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return {};
  if (const auto yes = truth(text)) {
    Node out;
    out.kind = Kind::boolean;
    out.boolean = *yes;
    return out;
  }
  if (is_integer(text)) return integer(text);
  std::string_view which;
  if (is_real(text) || is_special(text, which)) return floating(text);
  if (text == "=" || text == "<<") return broken(fmt::format("PyYAML cannot construct the YAML 1.1 value '{}'", text));
  return text_scalar(std::string(text));
}

std::optional<Node> tagged_scalar(std::string_view tag, const std::string& text) {
  constexpr std::string_view kYaml = "tag:yaml.org,2002:";
  if (!tag.starts_with(kYaml)) return std::nullopt;
  tag.remove_prefix(kYaml.size());
  if (tag == "str") return text_scalar(text);
  if (tag == "null") return Node{};
  Node out = plain_scalar(text);
  if (tag == "int") return out.kind == Kind::integer || out.kind == Kind::broken ? out : broken("no integer");
  if (tag == "bool") return out.kind == Kind::boolean ? out : broken("no boolean");
  if (tag != "float") return std::nullopt;
  if (out.kind == Kind::integer) return real(static_cast<double>(out.integer));
  return out.kind == Kind::real ? out : broken("no number");
}

}  // namespace oomplan::compose
