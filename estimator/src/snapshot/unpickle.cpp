#include "snapshot/unpickle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <unordered_map>
#include <utility>

#include <oomplan/units/errors.hpp>

#include "snapshot/pickle_text.hpp"
#include "snapshot/refused_opcodes.hpp"
#include "units/utf8.hpp"

namespace oomplan::snapshot {
namespace {

constexpr std::size_t kMostMarks = 10'000;

class Machine {
 public:
  Machine(Values& values, const std::string& path) : values_(values), data_(values.source()), path_(path) {}

  void run() {
    while (true) {
      start_ = at_;
      const auto code = byte();
      if (code == '.') break;
      if (values_.size() >= Values::kMost) wrong("more than 134,217,728 values");
      if (!scalar(code) && !text(code) && !container(code) && !memo(code) && !lines(code)) refuse(code);
    }
    if (stack_.size() != 1 || !marks_.empty()) wrong(fmt::format("STOP with {} values on the stack", stack_.size()));
    values_.set_root(stack_.back());
  }

 private:
  [[noreturn]] void wrong(const std::string& found, const std::string& why = {}) const {
    Problem problem;
    problem.place.file = path_;
    problem.found = fmt::format("{} at byte {}", found, start_);
    problem.expected = "a memory snapshot (torch.cuda.memory._dump_snapshot)";
    problem.why = why;
    throw InputError(problem);
  }

  [[noreturn]] void refuse(unsigned char code) {
    const std::optional<Refused> row = refused_opcode(code);
    if (!row) wrong(fmt::format("no opcode of a pickle (0x{:02x})", code));
    std::string asked;
    if (code == 'c' || code == 'i') {
      const std::string module = shortened(line(), 80);
      asked = fmt::format(" {}.{}", module, shortened(line(), 80));
    }
    wrong(fmt::format("the opcode {}{}", row->name, asked),
          row->runs ? "a snapshot is plain data; this opcode could run code, and nothing of the file was run"
                    : "a snapshot is plain data without it");
  }

  unsigned char byte() { return static_cast<unsigned char>(take(1)[0]); }
  std::string_view take(std::uint64_t count) {
    if (count > data_.size() - at_) wrong("the end of the file");
    const auto piece = std::string_view(data_).substr(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return piece;
  }
  /// Little endian, unsigned.
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    const auto raw = take(bytes);
    for (std::size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(raw[i]);
    return value;
  }
  std::string_view line() {
    const std::size_t end = data_.find('\n', at_);
    if (end == std::string::npos) wrong("a line without an end");
    const auto found = std::string_view(data_).substr(at_, end - at_);
    at_ = end + 1;
    return found;
  }

  void push(Ref ref) { stack_.push_back(ref); }
  std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  Ref top() const {
    if (stack_.size() <= bottom()) wrong("an opcode that needs a value where there is none");
    return stack_.back();
  }
  Ref pop() {
    const Ref ref = top();
    stack_.pop_back();
    return ref;
  }
  /// What stands above the last mark; the mark goes.
  std::vector<Ref> above_mark() {
    if (marks_.empty()) wrong("an opcode that needs a mark where there is none");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Ref> items(first, stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  bool scalar(unsigned char code) {
    switch (code) {
      case 'N':
        push(values_.add_none());
        return true;
      case 0x88:
      case 0x89:
        push(values_.add_boolean(code == 0x88));
        return true;
      case 'J':
        push(values_.add_integer(static_cast<std::int32_t>(number(4))));
        return true;
      case 'K':
      case 'M':
        push(values_.add_integer(static_cast<std::int64_t>(number(code == 'K' ? 1 : 2))));
        return true;
      case 0x8a:
      case 0x8b:
        push(long_integer(number(code == 0x8a ? 1 : 4)));
        return true;
      case 'G': {
        const std::uint64_t little = number(8);
        std::uint64_t bits = 0;
        for (unsigned i = 0; i < 64; i += 8) bits = bits << 8 | (little >> i & 255);
        push(values_.add_real(std::bit_cast<double>(bits)));
        return true;
      }
      case 0x80:
        if (const auto version = byte(); version > 5) wrong(fmt::format("pickle protocol {}", version));
        return true;
      case 0x95:
        if (number(8) > data_.size() - at_) wrong("a frame that is longer than the file");
        return true;
      default:
        return false;
    }
  }

  /// Two's complement, little endian, of any length.
  Ref long_integer(std::uint64_t bytes) {
    const auto raw = take(bytes);
    if (raw.empty()) return values_.add_integer(0);
    const bool negative = (static_cast<unsigned char>(raw.back()) & 128) != 0;
    const unsigned char fill = negative ? 255 : 0;
    std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = raw.size(); i-- > 0;) {
      const auto digit = static_cast<unsigned char>(raw[i]);
      if (i >= 8 && digit != fill) return values_.add_wide();
      if (i < 8) value = value << 8 | digit;
    }
    if ((static_cast<std::int64_t>(value) < 0) != negative) return values_.add_wide();
    return values_.add_integer(static_cast<std::int64_t>(value));
  }

  bool text(unsigned char code) {
    struct Row {
      unsigned char code;
      std::uint8_t length_bytes;
      Kind kind;
    };
    static constexpr std::array<Row, 9> kRows{{{0x8c, 1, Kind::text},
                                               {'X', 4, Kind::text},
                                               {0x8d, 8, Kind::text},
                                               {'U', 1, Kind::text},
                                               {'T', 4, Kind::text},
                                               {'C', 1, Kind::bytes},
                                               {'B', 4, Kind::bytes},
                                               {0x8e, 8, Kind::bytes},
                                               {0x96, 8, Kind::bytes}}};
    const auto row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.code == code; });
    if (row == kRows.end()) return false;
    const std::uint64_t length = number(row->length_bytes);
    const std::size_t begin = at_;
    push(values_.add_text(begin, take(length).size(), row->kind));
    return true;
  }

  bool container(unsigned char code) {
    switch (code) {
      case '(':
        if (marks_.size() >= kMostMarks) wrong("more than 10,000 marks");
        marks_.push_back(stack_.size());
        return true;
      case ']':
      case ')':
      case '}':
        push(values_.add_container(code == ']' ? Kind::list : code == ')' ? Kind::tuple : Kind::dict, {}));
        return true;
      case 'l':
      case 't':
      case 'd':
        push(closed(code == 'l' ? Kind::list : code == 't' ? Kind::tuple : Kind::dict, above_mark()));
        return true;
      case 0x85:
      case 0x86:
      case 0x87: {
        std::vector<Ref> items(code - std::size_t{0x84});
        for (std::size_t i = items.size(); i-- > 0;) items[i] = pop();
        push(closed(Kind::tuple, std::move(items)));
        return true;
      }
      case 'a':
        extend(Kind::list, {pop()});
        return true;
      case 's': {
        const Ref value = pop();
        const Ref key = pop();
        extend(Kind::dict, {key, value});
        return true;
      }
      case 'e':
      case 'u':
        extend(code == 'e' ? Kind::list : Kind::dict, above_mark());
        return true;
      default:
        return false;
    }
  }
  Ref closed(Kind kind, std::vector<Ref> items) {
    if (kind == Kind::dict && items.size() % 2 != 0) wrong("a key without a value");
    return values_.add_container(kind, std::move(items));
  }
  void extend(Kind kind, const std::vector<Ref>& items) {
    if (values_.kind(top()) != kind) wrong(fmt::format("items for {} behind {}", name(kind), name(values_.kind(top()))));
    if (kind == Kind::dict && items.size() % 2 != 0) wrong("a key without a value");
    values_.append(top(), items.data(), items.size());
  }

  bool memo(unsigned char code) {
    switch (code) {
      case 0x94:
        remember(memo_.size() + sparse_.size());
        return true;
      case 'q':
      case 'r':
        remember(number(code == 'q' ? 1 : 4));
        return true;
      case 'h':
      case 'j':
        recall(number(code == 'h' ? 1 : 4));
        return true;
      case '0':
        if (stack_.size() == bottom() && !marks_.empty())
          marks_.pop_back();
        else
          pop();
        return true;
      case '1':
        above_mark();
        return true;
      case '2':
        push(top());
        return true;
      default:
        return false;
    }
  }
  void remember(std::uint64_t index) {
    if (index == memo_.size() && !sparse_.contains(index))
      memo_.push_back(top());
    else if (index < memo_.size())
      memo_[static_cast<std::size_t>(index)] = top();
    else
      sparse_[index] = top();
  }
  void recall(std::uint64_t index) {
    if (index < memo_.size()) return push(memo_[static_cast<std::size_t>(index)]);
    const auto found = sparse_.find(index);
    if (found == sparse_.end()) wrong(fmt::format("memo {} that was never set", index));
    push(found->second);
  }

  /// Protocol 0: arguments that are lines of text.
  bool lines(unsigned char code) {
    switch (code) {
      case 'I':
      case 'L':
        push(decimal(line(), code == 'I'));
        return true;
      case 'F': {
        const std::optional<double> value = real_of(line());
        if (!value) wrong("a line that is no number");
        push(values_.add_real(*value));
        return true;
      }
      case 'S':
      case 'V': {
        const std::optional<std::string> plain = code == 'S' ? quoted_text(line()) : escaped_text(line());
        if (!plain) wrong("a text that does not end as it began");
        push(values_.add_copied_text(*plain));
        return true;
      }
      case 'p':
        remember(memo_number());
        return true;
      case 'g':
        recall(memo_number());
        return true;
      default:
        return false;
    }
  }
  Ref decimal(std::string_view digits, bool may_be_boolean) {
    if (may_be_boolean && (digits == "00" || digits == "01")) return values_.add_boolean(digits == "01");
    if (!may_be_boolean && digits.ends_with('L')) digits.remove_suffix(1);
    const std::optional<std::int64_t> value = integer_of(digits);
    if (!value) wrong("a line that is no integer of 64 bits");
    return values_.add_integer(*value);
  }
  std::uint64_t memo_number() {
    const std::optional<std::int64_t> index = integer_of(line());
    if (!index || *index < 0) wrong("a line that is no number of a memo");
    return static_cast<std::uint64_t>(*index);
  }

  Values& values_;
  const std::string& data_;
  const std::string& path_;
  std::size_t at_ = 0, start_ = 0;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Ref> memo_;                          // numbers are given in order
  std::unordered_map<std::uint64_t, Ref> sparse_;  // others
};

}  // namespace

Values unpickle(std::string data, const std::string& path) {
  Values values(std::move(data));
  Machine(values, path).run();
  return values;
}

}  // namespace oomplan::snapshot
