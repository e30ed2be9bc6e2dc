// if, case, loops, and the tests that decide about them.
#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "frontends/launch/evaluator.hpp"
#include "frontends/launch/pattern.hpp"
#include "frontends/launch/regular.hpp"

namespace oomplan::launch {

Status Evaluator::condition_of(const Script& script) {
  rests_on_.clear();
  ++tested_;
  Status out = run(script);
  --tested_;
  if (out.presumed)
    note(Note::Level::info, fmt::format("taken that `{}` {}", script.items.back().written, out.success() ? "succeeds" : "fails"));
  return out;
}

Status Evaluator::branch(const Command& c, std::size_t clause) {
  if (clause == c.clauses.size()) return c.body.items.empty() ? Status{} : run(c.body);
  const Status condition = condition_of(c.clauses[clause].condition);
  if (flow_ != Flow::on) return last_;
  Status yes, no;
  const auto then = [&] { yes = run(c.clauses[clause].body); };
  const auto otherwise = [&] { no = branch(c, clause + 1); };
  if (condition.unknown) {
    const Kept kept = either(*condition.unknown, c.clauses[clause].written, then, otherwise);
    return kept == Kept::yes ? yes : kept == Kept::no ? no : undecided(*condition.unknown);
  }
  if (condition.success()) return then(), yes;
  return otherwise(), no;
}

Status Evaluator::choice(const Command& c) {
  rests_on_.clear();
  return choice_from(c, as_bash(joined_text(c.words[0])), 0, false);
}

/// `falls`: the clause before ended in ;&
Status Evaluator::choice_from(const Command& c, const Text& subject, std::size_t clause, bool falls) {
  Status out;
  for (; clause < c.clauses.size(); ++clause) {
    const Clause& here = c.clauses[clause];
    Match match = falls ? Match::yes : Match::no;
    for (std::size_t i = 0; i < here.patterns.size() && match != Match::yes; ++i) {
      const Match m = matches(subject, as_bash(pattern_text(here.patterns[i])), budget_);
      if (m != Match::no) match = m;
    }
    if (match == Match::no) continue;
    const auto body = [&] { return here.body.items.empty() ? Status{} : run(here.body); };
    if (match == Match::unknown) {
      Status yes, no;
      const char32_t unit = first_unknown(subject).value_or(unknown(Unknown::Kind::outside, c.written));
      const Kept kept = either(
          unit, fmt::format("case {} is {}", shown(subject), here.written), [&] { yes = body(); },
          [&] { no = choice_from(c, subject, clause + 1, false); });
      return kept == Kept::yes ? yes : kept == Kept::no ? no : undecided(unit);
    }
    out = body();
    if (flow_ != Flow::on || here.end == ";;" || here.end.empty()) return out;
    falls = here.end == ";&";
  }
  return out;
}

bool Evaluator::loop_goes_on() {
  if (flow_ == Flow::on) return true;
  if (flow_ != Flow::next && flow_ != Flow::out_of_loop) return false;
  if (levels_ > 1 && loops_ > 1) {
    --levels_;
    return false;  // the loop around this one goes on from here
  }
  const bool goes_on = flow_ == Flow::next;
  flow_ = Flow::on;
  return goes_on;
}

Status Evaluator::each(const Command& c) {
  std::vector<Field> fields;
  if (c.has_words)
    fields = fields_of(c.words);
  else
    for (const Text& text : state_.positional) fields.push_back({text, true});
  Status out;
  const std::size_t conditions = conditions_.size();
  Left outer = std::exchange(broken_, {});
  ++loops_;
  for (const Field& field : fields) {
    budget_.spend(5);
    const bool unset = !field.kept && !field.text.empty() && as_bash(field.text).empty();
    if (unset) continue;
    const std::optional<char32_t> open = first_unknown(field.text);
    set(c.name, plain(field.text));
    const bool any_number = open && !field.kept && is_expanded(field.text[0]);
    if (any_number)  // a text of which nobody knows how many words it is
      either(*open, fmt::format("for {} in {}", c.name, shown(field.text)), [&] { run(c.body); }, [] {});
    else
      out = run(c.body);
    if (!loop_goes_on()) break;
  }
  --loops_;
  out = met(broken_, flow_ == Flow::on ? out : last_, conditions);
  broken_ = std::move(outer);
  return out;
}

Status Evaluator::count(const Command& c) {
  const auto value = [&](std::size_t part) -> std::int64_t {
    std::vector<Field> fields{{}};
    add_pieces(c.words[part].pieces, fields, true, false);
    return fields.back().text.empty() && part == 1 ? 1 : calculated(as_bash(plain(fields.back().text)), true);
  };
  Status out;
  value(0);
  const std::size_t conditions = conditions_.size();
  Left outer = std::exchange(broken_, {});
  ++loops_;
  while (value(1) != 0) {
    budget_.spend(5);
    out = run(c.body);
    if (!loop_goes_on()) break;
    value(2);
  }
  --loops_;
  out = met(broken_, flow_ == Flow::on ? out : last_, conditions);
  broken_ = std::move(outer);
  return out;
}

/// A loop whose round changed nothing has no end: it waits for the world outside.
bool Evaluator::stands_still(const State& before, std::size_t read) const {
  return state_ == before && (!streams_.in || streams_.in->at == read);
}

Status Evaluator::loop(const Command& c) {
  Status out;
  const std::size_t conditions = conditions_.size();
  Left outer = std::exchange(broken_, {});
  ++loops_;
  for (;;) {
    const State before = state_;
    const std::size_t read = streams_.in ? streams_.in->at : 0;
    budget_.spend(state_.steps_of_a_copy());
    Status condition = condition_of(c.clauses[0].condition);
    if (flow_ != Flow::on) break;
    if (condition.unknown) {  // until a server answers, say: its commands may run
      either(
          *condition.unknown, c.clauses[0].written,
          [&] {
            run(c.body);
            loop_goes_on();
          },
          [] {});
      out = {};
      break;
    }
    if (condition.success() == c.until) break;
    out = run(c.body);
    if (!loop_goes_on()) break;
    if (stands_still(before, read)) {
      note(Note::Level::info, fmt::format("the loop `{}` does not end by itself, and is read once", c.clauses[0].written));
      break;
    }
  }
  --loops_;
  out = met(broken_, flow_ == Flow::on ? out : last_, conditions);
  broken_ = std::move(outer);
  return out;
}

Status Evaluator::test(const Condition& c) {
  budget_.spend(1);
  switch (c.kind) {
    case Condition::Kind::negation:
      return negated(test(c.parts[0]));
    case Condition::Kind::conjunction:
    case Condition::Kind::disjunction: {
      const bool stops = c.kind == Condition::Kind::disjunction;
      const Status left = test(c.parts[0]);
      if (!left.unknown && left.success() == stops) return left;
      const Status right = test(c.parts[1]);
      if (left.unknown && !right.unknown && right.success() != stops) return left;
      return right;
    }
    case Condition::Kind::word:
      return test_unary("-n", joined_text(c.words[0]));
    case Condition::Kind::unary:
      return test_unary(c.op, joined_text(c.words[0]));
    case Condition::Kind::binary:
      break;
  }
  const Text left = joined_text(c.words[0]);
  if (c.op == "=~") return test_regular(left, pattern_text(c.words[1]));
  const bool text = c.op == "==" || c.op == "=" || c.op == "!=";
  return test_binary(c.op, left, text ? pattern_text(c.words[1]) : joined_text(c.words[1]), true);
}

Status Evaluator::test_regular(const Text& given, const Text& expression) {
  const Text left = as_bash(given);
  std::string pattern;
  for (const char32_t unit : as_bash(expression)) {
    if (is_unknown(unit)) return undecided(unit & ~kFlags);
    if (is_quoted(unit) && std::string_view(".[]()*+?{}|^$\\").find(byte_of(unit)) != std::string_view::npos) pattern += '\\';
    pattern += byte_of(unit);
  }
  if (const std::optional<char32_t> open = first_unknown(left)) return undecided(*open);
  const std::optional<Regular> regular = Regular::compile(pattern, true);
  if (!regular) return undecided(unknown(Unknown::Kind::outside, "=~ " + pattern));
  const std::string text = bytes_of(left);
  const std::vector<Span> found = regular->find(text, 0, budget_);
  Variable& groups = variable_for_writing("BASH_REMATCH");
  groups = {};
  groups.kind = Variable::Kind::indexed;
  groups.set = true;
  for (std::size_t i = 0; i < found.size(); ++i)
    groups.elements[static_cast<std::int64_t>(i)] =
        found[i].begin == std::string_view::npos ? Text() : text_of(text.substr(found[i].begin, found[i].length));
  return of(!found.empty());
}

}  // namespace oomplan::launch
