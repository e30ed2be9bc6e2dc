// The strings of realhf and lite, which AReaL reads with regular expressions: most match only a beginning, so that what follows
// is read over without a word (Allocation::ignored). Three degrees, each letter once, in any order: `d4m1p2`, `d4p1t2`.
#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "frontends/areal/grammars.hpp"
#include "frontends/compose/characters.hpp"

namespace oomplan::areal {
namespace {

using compose::is_digit;

/// Letters off the front of a text. `why` only where the framework would read a degree that cannot be meant.
struct Degrees {
  Dims dims;
  std::size_t length = 0;  ///< 0: the text does not start so
};

/// The longest run of different letters of `allowed`, each with digits behind it (leading zeros are read).
Degrees degrees_of(std::string_view text, std::string_view allowed) {
  Degrees out;
  std::size_t at = 0;
  while (at < text.size() && allowed.find(text[at]) != std::string_view::npos && !out.dims.degree.contains(text[at])) {
    std::size_t digits = at + 1;
    while (digits < text.size() && text[digits] == '0') ++digits;
    const bool zeros = digits > at + 1;
    std::string_view rest = text.substr(digits);
    const bool zero = zeros && (rest.empty() || !is_digit(rest[0]));
    if (!zero && (rest.empty() || !is_digit(rest[0]))) break;
    std::int64_t degree = 0;
    const std::string why = zero ? fmt::format("a degree is at least 1: '{}0'", text[at]) : take_degree(rest, text[at], degree);
    if (out.dims.why.empty()) out.dims.why = why;
    out.dims.degree[text[at]] = degree;
    while (!rest.empty() && is_digit(rest[0])) rest.remove_prefix(1);
    at = text.size() - rest.size();
    out.length = at;
  }
  return out;
}

/// The text cut where AReaL's `(engine).x+y` or `x+(engine).y` splits it.
struct Split {
  std::string_view server, other;
};

std::optional<std::string_view> behind_engine(std::string_view text, const Grammar& g) {
  for (const std::string& engine : g.inference)
    if (text.starts_with(engine) && text.substr(engine.size()).starts_with('.')) return text.substr(engine.size() + 1);
  return std::nullopt;
}

std::optional<Split> split(std::string_view text, const Grammar& g) {
  if (const auto rest = behind_engine(text, g)) {
    const std::size_t plus = rest->find('+', 1);
    if (plus != std::string_view::npos && plus + 1 < rest->size()) return Split{rest->substr(0, plus), rest->substr(plus + 1)};
  }
  for (std::size_t plus = text.find('+', 1); plus != std::string_view::npos; plus = text.find('+', plus + 1)) {
    const auto rest = behind_engine(text.substr(plus + 1), g);
    if (rest && !rest->empty()) return Split{*rest, text.substr(0, plus)};
  }
  return std::nullopt;
}

/// Builds the parts of one text; a refused degree ends it.
class Pattern {
 public:
  Pattern(std::string_view text, const Grammar& grammar) : text_(text), g_(grammar) { out_.era = grammar.era; }

  Parsed read() {
    const bool read = g_.era == Era::realhf ? realhf() : lite();
    if (!why_.empty()) return {std::nullopt, why_};
    if (!read) return {std::nullopt, expected_letters()};
    return {std::move(out_), {}};
  }

 private:
  std::string expected_letters() const {
    for (const char c : text_)
      if (c == ':' && g_.era == Era::lite)
        return "a dot, not a colon, stands behind the server's name before 0.3.2, and each of d, p and t";
    return fmt::format("each of the letters {} must stand in a part{}, in any order and without spaces",
                       fmt::join(g_.letters, ", "), g_.whole_text ? ", c and e may" : "");
  }

  /// The server is the first of the words that stands anywhere in the text.
  Backend server() const {
    for (const std::string& engine : g_.inference)
      if (text_.find(engine) != std::string_view::npos) return *oomplan::parse<Backend>(engine);
    return Backend::sglang;
  }

  void fail(const std::string& why) {
    if (why_.empty()) why_ = why;
  }
  void ignore(std::string_view rest) {
    if (rest.empty()) return;
    if (!out_.ignored.empty()) out_.ignored += ' ';
    out_.ignored += rest;
  }

  /// The three degrees at the front, with c and e where they exist; they must be all of the text where the row says so.
  std::optional<Degrees> three(std::string_view text) const {
    Degrees found = degrees_of(text, g_.whole_text ? "dptce" : g_.letters);
    for (const char letter : g_.letters)
      if (!found.dims.degree.contains(letter)) return std::nullopt;
    if (g_.whole_text && found.length != text.size()) return std::nullopt;
    return found;
  }

  bool add(std::string name, PartKind kind, const Degrees& degrees) {
    fail(degrees.dims.why);
    Dims dims = degrees.dims;
    if (const auto tensor = dims.degree.find('m'); tensor != dims.degree.end()) dims.degree['t'] = tensor->second;
    return push(std::move(name), kind, fold(dims, g_.expert_tensor_is_tensor));
  }

  bool push(std::string name, PartKind kind, const Folded& folds) {
    fail(folds.why);
    Part part;
    part.name = std::move(name);
    part.kind = kind;
    part.layout = folds.layout;
    part.expert_data = folds.expert_data;
    part.backend = kind == PartKind::inference ? server() : trainer();
    part.backend_stated = kind == PartKind::inference;
    part.world_only = g_.world_only && kind == PartKind::training;
    out_.parts.push_back(std::move(part));
    return true;
  }

  Backend trainer() const {
    if (g_.era == Era::realhf) return Backend::realhf;
    return g_.parser == Parser::experimental ? Backend::megatron : Backend::fsdp;
  }

  bool add_if_three(std::string name, PartKind kind, std::string_view text) {
    const auto found = three(text);
    if (!found) return false;
    ignore(text.substr(found->length));
    return add(std::move(name), kind, *found);
  }

  // --- realhf: words, then `server.x+y`, then three degrees, then `function:letters,function:letters`

  bool realhf() {
    if (std::find(g_.placings.begin(), g_.placings.end(), text_) != g_.placings.end()) {
      out_.placing = *oomplan::parse<Placing>(text_);
      return true;
    }
    if (const auto parts = split(text_, g_);
        parts && three(parts->server) && (three(parts->other) || !functions(parts->other).empty()))
      return add_if_three({}, PartKind::inference, parts->server) && trainers(parts->other);
    return trainers(text_);
  }

  /// The layouts of all model functions lie on the same GPUs.
  bool trainers(std::string_view text) {
    const std::size_t anchor = out_.parts.size();
    if (!add_if_three({}, PartKind::training, text))
      for (const auto& [name, degrees] : functions(text)) add(name, PartKind::training, degrees);
    for (std::size_t i = anchor + 1; i < out_.parts.size(); ++i) {
      const std::int64_t have = out_.parts[anchor].layout.world(), want = out_.parts[i].layout.world();
      if (have != want) fail(fmt::format("the model functions share their GPUs: {} and {}", have, want));
      out_.parts[i].anchor = anchor;
    }
    return out_.parts.size() > anchor;
  }

  /// `name:letters` between commas, the last of a name counts. Empty when one of them has no three degrees.
  std::vector<std::pair<std::string, Degrees>> functions(std::string_view text) const {
    std::map<std::string, Degrees> last;
    std::vector<std::string> order;
    const auto run = [text](std::size_t from) { return std::min(text.find_first_of(":,", from), text.size()); };
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t key = run(at);
      const std::size_t value = key < text.size() && text[key] == ':' ? run(key + 1) : key;
      if (key == at || value <= key + 1) {
        at = key + 1;
        continue;
      }
      const auto found = three(text.substr(key + 1, value - key - 1));
      if (!found) return {};
      const std::string name(text.substr(at, key - at));
      if (!last.contains(name)) order.push_back(name);
      last[name] = *found;
      at = value;
    }
    std::vector<std::pair<std::string, Degrees>> out;
    for (const std::string& name : order) out.emplace_back(name, last[name]);
    return out;
  }

  // --- lite

  bool lite() {
    const bool served = text_.find("vllm") != std::string_view::npos || text_.find("sglang") != std::string_view::npos;
    if (g_.layout_first || g_.whole_text || !served)
      if (trainer_alone(text_)) return true;
    if (const auto parts = split(text_, g_)) {
      if (!add_if_three({}, PartKind::inference, parts->server)) return false;
      if (trainer_alone(parts->other)) return true;
      if (!g_.evaluation) return false;
      if (parts->other != "eval" && parts->other != "cpu") ignore(parts->other);
      out_.parts.emplace_back().backend = Backend::cpu;
      out_.parts.back().kind = PartKind::evaluation;
      return true;
    }
    const auto rest = behind_engine(text_, g_);
    return g_.server_only && rest && add_if_three({}, PartKind::inference, *rest);
  }

  bool trainer_alone(std::string_view text) {
    return add_if_three({}, PartKind::training, text) || (g_.whole_text && hybrid(text));
  }

  /// `d4p2t2c2/d2p2t2e4`, attention before the slash. Attention needs c: the loop of extract_parallelism_strategy forgets what it
  /// found without.
  bool hybrid(std::string_view text) {
    const std::size_t slash = text.find('/');
    if (slash == std::string_view::npos) return false;
    const Degrees attention = degrees_of(text.substr(0, slash), "dptc"), experts = degrees_of(text.substr(slash + 1), "dpte");
    const bool whole = attention.length == slash && experts.length + slash + 1 == text.size();
    if (!whole || attention.dims.degree.size() != 4 || experts.dims.degree.size() != 4) return false;
    fail(attention.dims.why);
    fail(experts.dims.why);
    return push({}, PartKind::training, fold(attention.dims, experts.dims, ExpertDefault::derived));
  }

  std::string_view text_;
  const Grammar& g_;
  Allocation out_;
  std::string why_;
};

}  // namespace

Parsed parse_pattern(std::string_view text, const Grammar& grammar) { return Pattern(text, grammar).read(); }

}  // namespace oomplan::areal
