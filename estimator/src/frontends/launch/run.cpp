// Lists, pipelines and simple commands are followed; nothing is started (Bash Reference Manual 5.2, 3.2 and 3.7).
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "frontends/launch/evaluator.hpp"

namespace oomplan::launch {
namespace {

constexpr std::size_t kMostStarted = 10'000;
constexpr int kDeepestRun = 150;

bool declares(const Command& c) {
  static constexpr std::array<std::string_view, 5> kNames{"declare", "export", "local", "readonly", "typeset"};
  if (c.arguments.empty() || c.arguments[0].assignment) return false;
  const Word& word = c.arguments[0].word;
  return word.pieces.size() == 1 && word.pieces[0].kind == Piece::Kind::plain &&
         std::find(kNames.begin(), kNames.end(), word.pieces[0].text) != kNames.end();
}

}  // namespace

Status Evaluator::run(const Script& script) {
  Status out;
  for (const AndOr& item : script.items) {
    if (flow_ != Flow::on) break;
    out = run(item);
    last_ = out;
  }
  return flow_ == Flow::on ? out : last_;
}

Status Evaluator::run(const AndOr& item) {
  if (item.background) {
    const bool before = background_;
    background_ = true;
    subshell([&] {
      AndOr inside = item;
      inside.background = false;
      run(inside);
    });
    background_ = before;
    return {};
  }
  const auto run_at = [&](std::size_t i) {
    const bool tested = i + 1 < item.pipelines.size();
    tested_ += tested ? 1 : 0;
    const Status out = run(item.pipelines[i]);
    tested_ -= tested ? 1 : 0;
    return out;
  };
  Status status = run_at(0);
  for (std::size_t i = 1; i < item.pipelines.size() && flow_ == Flow::on; ++i) {
    last_ = status;
    const bool both = item.needs_success[i - 1];
    if (status.unknown) {
      Status yes, no{1, false, {}};
      const char32_t unit = *status.unknown;
      const Kept kept = either(
          unit, item.pipelines[i - 1].commands.back().written,
          [&] {
            if (both) yes = run_at(i);
          },
          [&] {
            if (!both) no = run_at(i);
          });
      status = kept == Kept::yes ? yes : kept == Kept::no ? no : undecided(unit);
    } else if (both == status.success()) {
      status = run_at(i);
    }
  }
  return status;
}

Status Evaluator::run(const Pipeline& pipeline) {
  tested_ += pipeline.negated ? 1 : 0;
  Status out = pipeline.commands.size() == 1 ? run(pipeline.commands[0]) : run_pipes(pipeline);
  tested_ -= pipeline.negated ? 1 : 0;
  if (pipeline.negated) return negated(out);
  return out;
}

Status Evaluator::negated(Status s) const {
  if (!s.unknown) s = {s.code == 0 ? 1 : 0, s.presumed, {}};
  return s;
}

Status Evaluator::run_pipes(const Pipeline& pipeline) {
  std::shared_ptr<Input> in = streams_.in;
  Status out, failed;
  ++tested_;  // the pipeline as a whole may fail, not its commands
  for (std::size_t i = 0; i < pipeline.commands.size(); ++i) {
    const bool last = i + 1 == pipeline.commands.size();
    const auto sink = std::make_shared<Text>();
    subshell([&] {
      streams_.in = in;
      if (!last) streams_.out[1] = sink;
      if (!last && pipeline.errors_too[i]) streams_.out[2] = sink;
      out = run(pipeline.commands[i]);
      if (flow_ == Flow::ended) out = last_;
    });
    if (!out.success() || out.unknown) failed = out;
    in = std::make_shared<Input>(Input{*sink, 0});
  }
  --tested_;
  if (state_.pipefail && (!failed.success() || failed.unknown)) out = failed;
  errexit_after(out, pipeline.commands.back().written, pipeline.commands.back().line);
  return out;
}

void Evaluator::subshell(const std::function<void()>& inside) {
  State state = std::exchange(state_, State(state_));  // not the other way round: references to variables stay good
  const Streams streams = streams_;
  const int loops = loops_;
  if (++depth_ > kDeepestRun) throw TooMuch("more than 150 commands in each other");
  budget_.spend(state_.steps_of_a_copy());
  loops_ = 0;
  inside();
  loops_ = loops;
  --depth_;
  state_ = std::move(state);
  streams_ = streams;
  if (flow_ == Flow::ended) ending_.reset();
  flow_ = Flow::on;
}

Evaluator::Kept Evaluator::either(char32_t unit, const std::string& written, const std::function<void()>& yes,
                                  const std::function<void()>& no) {
  const State before = state_;
  const Sink sink = streams_.out[1] == terminal_ ? nullptr : streams_.out[1];
  const Text printed = sink ? *sink : Text();
  const auto side = [&](const std::string& condition, const std::function<void()>& run_side) {
    conditions_.push_back(condition);
    run_side();
    conditions_.pop_back();
  };
  if (++depth_ > kDeepestRun) throw TooMuch("more than 150 commands in each other");
  budget_.spend(state_.steps_of_a_copy());
  side(written, yes);
  const State after = std::exchange(state_, before);
  const Flow flow = std::exchange(flow_, Flow::on);
  const Status status = last_;
  const Text printed_yes = sink ? std::exchange(*sink, printed) : Text();
  const std::optional<Ending> ending = std::exchange(ending_, std::nullopt);
  side("not " + written, no);
  --depth_;
  if (flow != Flow::ended && flow_ == Flow::ended) {
    note(Note::Level::info, fmt::format("taken that `{}` succeeds, as the script ends otherwise", written));
    state_ = after;
    flow_ = flow;
    ending_.reset();
    if (sink) *sink = printed_yes;
    return Kept::yes;
  }
  if (flow == Flow::ended && flow_ != Flow::ended) {
    note(Note::Level::info, fmt::format("taken that `{}` fails, as the script ends otherwise", written));
    return Kept::no;
  }
  const auto leaves = [](Flow f) { return f == Flow::from_function || f == Flow::out_of_loop || f == Flow::next; };
  const auto into = [&](Flow f) -> Left& { return f == Flow::from_function ? returned_ : broken_; };
  if (leaves(flow) && flow_ == Flow::on) {
    leave_here(into(flow), after, status, unit, written);
    conditions_.push_back("not " + written);
    if (sink && *sink != printed_yes) *sink = printed + unknown_text(Unknown::Kind::either, written, written);
    return Kept::no;
  }
  if (leaves(flow_) && flow == Flow::on) {
    leave_here(into(flow_), state_, last_, unit, written);
    conditions_.push_back(written);
    state_ = after;
    flow_ = flow;
    if (sink && *sink != printed_yes) *sink = printed + unknown_text(Unknown::Kind::either, written, written);
    return Kept::yes;
  }
  state_ = joined(after, state_, [&](const std::string& name) { return unknown_text(Unknown::Kind::either, name, written); });
  if (sink && *sink != printed_yes) *sink = printed + unknown_text(Unknown::Kind::either, written, written);
  if (flow != flow_) flow_ = Flow::on;
  if (flow_ == Flow::ended) ending_ = ending;
  return Kept::both;
}

void Evaluator::leave_here(Left& left, const State& state, const Status& status, char32_t unit, const std::string& condition) {
  const auto differs = [&](const std::string& name) { return unknown_text(Unknown::Kind::either, name, condition); };
  if (left.state && (left.status.code != status.code || left.status.unknown)) left.status = undecided(unit);
  if (!left.state) left.status = status;
  left.state = left.state ? joined(*left.state, state, differs) : state;
  left.unit = unit;
  left.condition = condition;
}

Status Evaluator::met(Left& left, Status reached, std::size_t conditions) {
  conditions_.resize(std::min(conditions, conditions_.size()));
  if (!left.state || flow_ == Flow::ended) {
    // one side ended the script: the other is the one that goes on
    if (left.state && flow_ == Flow::ended && conditions_.empty()) {
      note(Note::Level::info, fmt::format("taken that `{}` decides, as the script ends otherwise", left.condition));
      state_ = *left.state;
      flow_ = Flow::on;
      ending_.reset();
      reached = left.status;
    }
    left = {};
    return reached;
  }
  if (left.status.unknown || reached.unknown || left.status.code != reached.code) reached = undecided(left.unit);
  state_ = joined(state_, *left.state,
                  [&](const std::string& name) { return unknown_text(Unknown::Kind::either, name, left.condition); });
  left = {};
  return reached;
}

void Evaluator::end_script(int status) {
  if (flow_ == Flow::ended) return;
  last_ = {status, false, {}};
  flow_ = Flow::ended;
  ending_ = Ending{here(), status, {}, rests_on_};
}

void Evaluator::errexit_after(const Status& status, const std::string& written, int line) {
  if (!state_.errexit || tested_ > 0 || status.unknown || status.success() || flow_ != Flow::on) return;
  line_ = line;
  end_script(status.code);
  ending_->by = written;
}

Status Evaluator::run(const Command& command) {
  if (++depth_ > kDeepestRun) throw TooMuch("more than 150 commands in each other");
  budget_.spend(1);
  line_ = command.line;
  const Streams streams = streams_;
  Status out;
  try {
    if (command.kind != Command::Kind::simple && !command.redirections.empty()) redirect(command.redirections);
    out = run_kind(command);
  } catch (const NoArithmetic& e) {
    note(Note::Level::warning, fmt::format("{}: {}", command.written, e.why));
    out = {1, false, {}};
    if (command.kind != Command::Kind::arithmetic && command.kind != Command::Kind::condition && flow_ == Flow::on) {
      flow_ = Flow::discarded;  // bash goes on with the next command of the script itself
      last_ = out;
    }
  } catch (const NeedsUnknown& e) {
    out = undecided(e.unit);
  }
  if (command.kind != Command::Kind::simple) streams_ = streams;
  --depth_;
  using Kind = Command::Kind;
  const bool by_itself = command.kind == Kind::simple || command.kind == Kind::subshell || command.kind == Kind::condition ||
                         command.kind == Kind::arithmetic;
  if (by_itself) errexit_after(out, command.written, command.line);
  return out;
}

Status Evaluator::run_kind(const Command& c) {
  switch (c.kind) {
    case Command::Kind::simple:
      return simple(c);
    case Command::Kind::group:
      return run(c.body);
    case Command::Kind::subshell: {
      Status out;
      subshell([&] {
        out = run(c.body);
        if (flow_ == Flow::ended) out = last_;
      });
      return out;
    }
    case Command::Kind::branch:
      return branch(c, 0);
    case Command::Kind::choice:
      return choice(c);
    case Command::Kind::each:
      return each(c);
    case Command::Kind::count:
      return count(c);
    case Command::Kind::loop:
      return loop(c);
    case Command::Kind::menu:
      note(Note::Level::warning, "select asks its user, and is passed over");
      return {};
    case Command::Kind::function: {
      state_.functions[c.name] = {c.defined.get(), file_};
      return {};
    }
    case Command::Kind::condition:
      return test(*c.test);
    case Command::Kind::arithmetic: {
      std::vector<Field> fields{{}};
      add_pieces(c.words[0].pieces, fields, true, false);
      return of(calculated(as_bash(plain(fields.back().text)), true) != 0);
    }
  }
  return {};
}

Status Evaluator::simple(const Command& c) {
  substituted_.reset();
  if (declares(c)) {
    const Streams streams = streams_;
    redirect(c.redirections);
    const Status out = declare(c.arguments[0].word.pieces[0].text, c.arguments);
    streams_ = streams;
    return out;
  }
  std::vector<Field> fields;
  for (const Argument& argument : c.arguments) expand_word(argument.word, fields);
  if (flow_ != Flow::on) return last_;
  std::vector<StartedWord> words;
  for (Field& field : fields) {
    const bool vanishes =
        !field.kept && !field.text.empty() &&
        std::all_of(field.text.begin(), field.text.end(), [&](char32_t u) { return is_expanded(u) && is_unset(u); });
    words.push_back({plain(field.text), vanishes});
  }
  line_ = c.line;
  const Streams streams = streams_;
  redirect(c.redirections);
  const bool keeps = words.size() == 1 && bytes_of(words[0].text) == "exec";
  const Status out = execute(std::move(words), c.assignments, &c);
  if (!keeps) streams_ = streams;
  return out;
}

Status Evaluator::execute(std::vector<StartedWord> words, const std::vector<Assignment>& front, const Command* command) {
  const auto first = std::find_if(words.begin(), words.end(), [](const StartedWord& w) { return !w.vanishes; });
  if (first == words.end()) {
    for (const Assignment& a : front) assign(a);
    if (words.empty()) return substituted_.value_or(Status{});
    note(Note::Level::warning,
         fmt::format("`{}` starts nothing: {} is not set", command == nullptr ? "" : command->written, shown(words[0].text)));
    return {};
  }
  Texts arguments;
  for (auto w = std::next(first); w != words.end(); ++w)
    if (!w->vanishes) arguments.push_back(w->text);
  last_word_ = arguments.empty() ? first->text : arguments.back();
  const std::string name = first_unknown(first->text) ? "" : bytes_of(first->text);
  const bool scoped = !front.empty();
  if (scoped) {
    state_.scopes.emplace_back();
    for (const Assignment& a : front) {
      Variable made;
      made.exported = true;
      assign(a, [&made]() -> Variable& { return made; });
      state_.scopes.back()[a.name] = std::move(made);
    }
  }
  Status out;
  if (const auto function = state_.functions.find(name); function != state_.functions.end()) {
    out = call(Function(function->second), arguments, name);
  } else if (const std::optional<Status> done = name.empty() ? std::nullopt : builtin(name, arguments)) {
    out = *done;
  } else {
    out = start(std::move(words), exported());
  }
  if (scoped && state_.scopes.size() > 1) state_.scopes.pop_back();
  return out;
}

Status Evaluator::call(const Function& function, const Texts& arguments, const std::string& name) {
  if (functions_.size() > 60) throw TooMuch(fmt::format("the function {} calls itself without end", name));
  const Texts positional = std::exchange(state_.positional, arguments);
  const std::string file = std::exchange(file_, function.file);
  const int loops = std::exchange(loops_, 0);
  state_.scopes.emplace_back();
  functions_.push_back(name);
  const std::size_t conditions = conditions_.size();
  Left outer = std::exchange(returned_, {}), outer_loop = std::exchange(broken_, {});
  Status out = run(*function.body);
  if (flow_ == Flow::from_function) {
    flow_ = Flow::on;
    out = last_;
  }
  out = met(returned_, out, conditions);
  returned_ = std::move(outer);
  broken_ = std::move(outer_loop);
  functions_.pop_back();
  state_.scopes.pop_back();
  loops_ = loops;
  file_ = file;
  state_.positional = positional;
  return out;
}

Status Evaluator::start(std::vector<StartedWord> words, std::map<std::string, Text> environment) {
  if (started_.size() >= kMostStarted) throw TooMuch("more than 10000 commands");
  Started made;
  made.file = file_;
  made.line = line_;
  made.background = background_;
  made.folder = state_.folder;
  for (const std::string& condition : conditions_) made.condition += (made.condition.empty() ? "" : " and ") + condition;
  made.outer = outer_;
  made.environment = environment;
  made.words = words;
  started_.push_back(std::move(made));
  Texts texts;
  for (const StartedWord& w : words)
    if (!w.vanishes) texts.push_back(w.text);
  if (const std::optional<Status> inner = shell(words, environment)) return *inner;
  const std::string name = first_unknown(texts[0]) ? "" : bytes_of(texts[0]);
  if (const std::optional<Status> done = name.empty() ? std::nullopt : program(name, {texts.begin() + 1, texts.end()}))
    return *done;
  std::string written;
  for (const Text& t : texts) written += (written.empty() ? "" : " ") + shown(t);
  if (written.size() > 120) written = written.substr(0, 117) + "...";
  if (streams_.out[1] != terminal_) write(1, unknown_text(Unknown::Kind::outside, written));
  return {0, true, {}};
}

}  // namespace oomplan::launch
