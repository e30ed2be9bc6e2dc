#include "frontends/launch/arithmetic.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>

#include <fmt/format.h>

namespace oomplan::launch {
namespace {

constexpr int kDeepestExpression = 64;  // as variables that hold expressions may refer to each other

std::int64_t wrapped(std::uint64_t value) { return static_cast<std::int64_t>(value); }
std::uint64_t bits(std::int64_t value) { return static_cast<std::uint64_t>(value); }

struct OperatorRow {
  std::string_view text;
  int level;  ///< a larger one binds closer
};
constexpr std::array<OperatorRow, 18> kBinary{{{"||", 1},
                                               {"&&", 2},
                                               {"<<", 8},
                                               {">>", 8},
                                               {"<=", 7},
                                               {">=", 7},
                                               {"==", 6},
                                               {"!=", 6},
                                               {"**", 11},
                                               {"|", 3},
                                               {"^", 4},
                                               {"&", 5},
                                               {"<", 7},
                                               {">", 7},
                                               {"+", 9},
                                               {"-", 9},
                                               {"*", 10},
                                               {"/", 10}}};
constexpr std::array<std::string_view, 11> kAssign{"<<=", ">>=", "+=", "-=", "*=", "/=", "%=", "&=", "^=", "|=", "="};

class Reader {
 public:
  Reader(std::string text, const Names& names, Budget& budget, int depth)
      : text_(std::move(text)), names_(names), budget_(budget), depth_(depth) {
    if (depth_ > kDeepestExpression) throw NoArithmetic{"expression recursion level exceeded"};
  }
  std::int64_t run() {
    skip();
    if (at_ == text_.size()) return 0;
    const std::int64_t out = comma();
    skip();
    if (at_ < text_.size()) throw NoArithmetic{fmt::format("syntax error in expression at '{}'", text_.substr(at_))};
    return out;
  }

 private:
  /// A variable that may be assigned to.
  struct Target {
    std::string name, subscript;
  };

  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool take(std::string_view op) {
    skip();
    if (!std::string_view(text_).substr(at_).starts_with(op)) return false;
    at_ += op.size();
    return true;
  }
  std::int64_t comma() {
    std::int64_t out = assignment();
    while (take(",")) out = assignment();
    return out;
  }
  std::int64_t assignment() {
    budget_.spend(1);
    if (++nesting_ > kDeepestExpression) throw NoArithmetic{"expression recursion level exceeded"};
    const std::size_t start = at_;
    Target target;
    std::int64_t out = 0;
    if (name(target) && assigned(target, out)) {
      --nesting_;
      return out;
    }
    at_ = start;
    out = choice();
    --nesting_;
    return out;
  }
  bool assigned(const Target& target, std::int64_t& out) {
    skip();
    for (const std::string_view op : kAssign) {
      if (!std::string_view(text_).substr(at_).starts_with(op) || (op == "=" && text_.substr(at_).starts_with("=="))) continue;
      at_ += op.size();
      const std::int64_t right = assignment();
      out = op == "=" ? right : apply(op.substr(0, op.size() - 1), value_of(target, true), right);
      store(target, out);
      return true;
    }
    return false;
  }
  std::int64_t choice() {
    const std::int64_t condition = binary(1);
    if (!take("?")) return condition;
    quiet_ += condition == 0 ? 1 : 0;
    const std::int64_t yes = comma();
    quiet_ -= condition == 0 ? 1 : 0;
    if (!take(":")) throw NoArithmetic{"`:' expected for conditional expression"};
    quiet_ += condition != 0 ? 1 : 0;
    const std::int64_t no = assignment();
    quiet_ -= condition != 0 ? 1 : 0;
    return condition != 0 ? yes : no;
  }
  /// The operator that comes next, of at least this level.
  std::string_view operator_of(int least, int& level) {
    skip();
    const std::string_view rest = std::string_view(text_).substr(at_);
    if (rest.starts_with("%") && !rest.starts_with("%=")) return level = 10, 10 >= least ? "%" : "";
    for (const OperatorRow& row : kBinary) {
      if (!rest.starts_with(row.text)) continue;
      const std::string_view after = rest.substr(row.text.size());
      const bool compares = row.level == 6 || row.level == 7;
      if (!compares && row.text != "&&" && row.text != "||" && after.starts_with("=") && !after.starts_with("==")) return "";
      level = row.level;
      return level >= least ? row.text : "";
    }
    return "";
  }
  std::int64_t binary(int least) {
    budget_.spend(1);
    std::int64_t left = unary();
    int level = 0;
    for (std::string_view op = operator_of(least, level); !op.empty(); op = operator_of(least, level)) {
      at_ += op.size();
      const bool idle = (op == "&&" && left == 0) || (op == "||" && left != 0);  // the right side is read, not done
      quiet_ += idle ? 1 : 0;
      const std::int64_t right = binary(op == "**" ? level : level + 1);
      quiet_ -= idle ? 1 : 0;
      left = apply(op, left, right);
    }
    return left;
  }
  std::int64_t apply(std::string_view op, std::int64_t a, std::int64_t b) {
    if (op == "||") return a != 0 || b != 0 ? 1 : 0;
    if (op == "&&") return a != 0 && b != 0 ? 1 : 0;
    if (op == "|") return a | b;
    if (op == "^") return a ^ b;
    if (op == "&") return a & b;
    if (op == "==") return a == b ? 1 : 0;
    if (op == "!=") return a != b ? 1 : 0;
    if (op == "<=") return a <= b ? 1 : 0;
    if (op == ">=") return a >= b ? 1 : 0;
    if (op == "<") return a < b ? 1 : 0;
    if (op == ">") return a > b ? 1 : 0;
    if (op == "<<") return wrapped(bits(a) << (bits(b) & 63));
    if (op == ">>") return a >> (bits(b) & 63);
    if (op == "+") return wrapped(bits(a) + bits(b));
    if (op == "-") return wrapped(bits(a) - bits(b));
    if (op == "*") return wrapped(bits(a) * bits(b));
    if (op == "**") return power(a, b);
    if (b == 0) {
      if (quiet_ > 0) return 0;
      throw NoArithmetic{"division by 0"};
    }
    if (b == -1) return op == "/" ? wrapped(0 - bits(a)) : 0;
    return op == "/" ? a / b : a % b;
  }
  static std::int64_t power(std::int64_t base, std::int64_t exponent) {
    if (exponent < 0) throw NoArithmetic{"exponent less than 0"};
    std::uint64_t out = 1;
    for (std::uint64_t b = bits(base), e = bits(exponent); e != 0; e >>= 1, b *= b)
      if ((e & 1) != 0) out *= b;
    return wrapped(out);
  }
  std::int64_t unary() {
    budget_.spend(1);
    if (++nesting_ > kDeepestExpression) throw NoArithmetic{"expression recursion level exceeded"};
    const std::int64_t out = unary_here();
    --nesting_;
    return out;
  }
  std::int64_t unary_here() {
    for (const std::string_view op : {"++", "--"}) {
      const std::size_t start = at_;
      Target target;
      if (take(op) && name(target)) {
        const std::int64_t out = wrapped(bits(value_of(target, true)) + (op == "++" ? 1U : ~std::uint64_t{0}));
        store(target, out);
        return out;
      }
      at_ = start;
    }
    if (take("+")) return unary();
    if (take("-")) return wrapped(0 - bits(unary()));
    if (take("~")) return ~unary();
    if (take("!")) return unary() == 0 ? 1 : 0;
    return primary();
  }
  std::int64_t primary() {
    if (take("(")) {
      const std::int64_t out = comma();
      if (!take(")")) throw NoArithmetic{"missing `)'"};
      return out;
    }
    Target target;
    if (name(target)) {
      if (take("++")) return step(target, 1);
      if (take("--")) return step(target, ~std::uint64_t{0});
      return value_of(target, false);
    }
    return number();
  }
  std::int64_t step(const Target& target, std::uint64_t by) {
    const std::int64_t before = value_of(target, true);
    store(target, wrapped(bits(before) + by));
    return before;
  }
  bool name(Target& out) {
    skip();
    const std::size_t start = at_;
    if (at_ >= text_.size() || (std::isalpha(static_cast<unsigned char>(text_[at_])) == 0 && text_[at_] != '_')) return false;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_')) ++at_;
    out.name = text_.substr(start, at_ - start);
    if (at_ >= text_.size() || text_[at_] != '[') return true;
    const std::size_t opened = ++at_;
    for (int nesting = 0; at_ < text_.size() && (text_[at_] != ']' || nesting > 0); ++at_)
      nesting += text_[at_] == '[' ? 1 : text_[at_] == ']' ? -1 : 0;
    if (at_ >= text_.size()) throw NoArithmetic{"bad array subscript"};
    out.subscript = text_.substr(opened, at_ - opened);
    ++at_;
    return true;
  }
  std::int64_t number() {
    skip();
    const std::size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '#' ||
                                  text_[at_] == '@' || text_[at_] == '_'))
      ++at_;
    const std::string_view word = std::string_view(text_).substr(start, at_ - start);
    if (word.empty())
      throw NoArithmetic{at_ < text_.size() ? fmt::format("operand expected at '{}'", text_.substr(at_)) : "operand expected"};
    std::uint64_t base = 10;
    std::string_view digits = word;
    if (const auto sign = word.find('#'); sign != std::string_view::npos) {
      base = 0;
      for (const char c : word.substr(0, sign)) base = base * 10 + static_cast<std::uint64_t>(c - '0');
      digits = word.substr(sign + 1);
      if (base < 2 || base > 64 || sign > 2) throw NoArithmetic{"invalid arithmetic base"};
    } else if (word.starts_with("0x") || word.starts_with("0X")) {
      base = 16, digits = word.substr(2);
    } else if (word.size() > 1 && word[0] == '0') {
      base = 8, digits = word.substr(1);
    }
    std::uint64_t out = 0;
    for (const char c : digits) {
      const std::uint64_t digit = digit_of(c, base);
      if (digit >= base) throw NoArithmetic{fmt::format("value too great for base at '{}'", word)};
      out = out * base + digit;
    }
    return wrapped(out);
  }
  static std::uint64_t digit_of(char c, std::uint64_t base) {
    if (c >= '0' && c <= '9') return static_cast<std::uint64_t>(c - '0');
    if (c >= 'a' && c <= 'z') return static_cast<std::uint64_t>(c - 'a') + 10;
    if (c >= 'A' && c <= 'Z') return static_cast<std::uint64_t>(c - 'A') + (base <= 36 ? 10 : 36);
    return c == '@' ? 62 : c == '_' ? 63 : 64;
  }
  /// What a variable holds is an expression itself.
  std::int64_t value_of(const Target& target, bool unset_is_zero) {
    if (quiet_ > 0) return 0;
    const Text text = names_.get(target.name, target.subscript);
    for (const char32_t unit : text)
      if (is_unknown(unit)) {
        if (unset_is_zero && names_.is_unset(unit)) return 0;
        throw NeedsUnknown{unit};
      }
    return Reader(bytes_of(text), names_, budget_, depth_ + 1).run();
  }
  void store(const Target& target, std::int64_t value) {
    if (quiet_ == 0) names_.set(target.name, target.subscript, value);
  }

  std::string text_;
  const Names& names_;
  Budget& budget_;
  int depth_;
  int nesting_ = 0;
  int quiet_ = 0;  ///< above 0: what is read is not done
  std::size_t at_ = 0;
};

}  // namespace

std::int64_t calculate(const Text& expression, const Names& names, Budget& budget) {
  for (const char32_t unit : expression)
    if (is_unknown(unit)) throw NeedsUnknown{unit};
  return Reader(bytes_of(expression), names, budget, 0).run();
}

}  // namespace oomplan::launch
