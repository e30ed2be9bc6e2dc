#include "frontends/slime/read.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/engine_releases.hpp"
#include "catalog/facts.hpp"
#include "frontends/command_length.hpp"
#include "frontends/megatron/flag_table.hpp"
#include "frontends/shell_words.hpp"
#include "frontends/slime/fsdp.hpp"
#include "frontends/slime/specifications.hpp"
#include "units/enums.hpp"

namespace oomplan::slime {
namespace {

using Json = nlohmann::json;

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// argparse takes a word in front of which a dash stands as a value when it is a number.
bool is_flag(std::string_view word) { return word.size() > 1 && word[0] == '-' && !number_of<double>(word).has_value(); }

constexpr std::string_view kServers = "--sglang-";

/// A flag and the words up to the next one.
struct Chunk {
  std::string written;
  std::vector<std::string> values;
  bool attached = false;  ///< --flag=value
};

std::vector<Chunk> chunks_of(std::span<const std::string> words, std::vector<std::string>& stray) {
  std::vector<Chunk> out;
  for (const std::string& word : words) {
    if (!is_flag(word)) {
      if (out.empty() || out.back().attached)
        stray.push_back(word);
      else
        out.back().values.push_back(word);
      continue;
    }
    const auto equals = word.find('=');
    Chunk chunk{word.substr(0, equals), {}, equals != std::string::npos};
    if (chunk.attached) chunk.values.push_back(word.substr(equals + 1));
    out.push_back(std::move(chunk));
  }
  return out;
}

/// The flag and what stands behind it, wherever it is said. A flag that is not there is a mistake.
void take_out(std::vector<std::string>& words, const std::string& flag, megatron::Complaints& told) {
  const auto is_it = [&](const std::string& word) { return word.substr(0, word.find('=')) == flag; };
  auto at = std::find_if(words.begin(), words.end(), is_it);
  if (at == words.end()) {
    std::vector<std::string> flags;
    for (const std::string& word : words)
      if (is_flag(word)) flags.push_back(word.substr(0, word.find('=')));
    told.problems.push_back({{"command line", 0, 0, "~" + flag},
                             "no such flag in the command",
                             "a flag to take out of it",
                             nearest(flag, flags),
                             {}});
  }
  for (; at != words.end(); at = std::find_if(words.begin(), words.end(), is_it)) {
    const bool attached = at->find('=') != std::string::npos;
    words.erase(at, attached ? at + 1 : std::find_if(at + 1, words.end(), is_flag));
  }
}

class Reader {
 public:
  Reader(const Source& source, std::vector<Chunk> chunks, SlimeText& out)
      : source_(source), chunks_(std::move(chunks)), out_(out), table_(out.family->flags()) {}

  void run() {
    out_.release = release();
    out_.own = Own(out_.release);
    custom_config();
    std::vector<std::string> megatron;
    const bool fsdp = asks_for_fsdp();
    if (fsdp)
      for (Chunk& chunk : chunks_) chunk.written = fsdp_in_full(out_.release, chunk.written);
    for (const Chunk& chunk : chunks_) {
      const Flag* own = find_flag(out_.release, chunk.written);
      const megatron::Flag* of_megatron = megatron::find_flag(chunk.written);
      if (fsdp && !fsdp_knows(out_.release, chunk.written) && !beside(chunk.written))
        out_.strangers.push_back(chunk.written);
      else if (const FsdpFlag* more = fsdp ? fsdp_flag(chunk.written) : nullptr; more != nullptr && own == nullptr)
        take(chunk, *more);
      else if (own != nullptr && of_megatron == nullptr)
        take(chunk, *own);
      else if (of_megatron != nullptr)
        hand_on(chunk, *of_megatron, megatron);
      else if (const auto second = out_.family->second_servers; !second.empty() && chunk.written.starts_with(second))
        out_.second.push_back({server_name(chunk.written, second), chunk.written, chunk.values});
      else if (beside(chunk.written))
        continue;
      else if (chunk.written.starts_with(kServers))
        out_.server.push_back({server_name(chunk.written, kServers), chunk.written, chunk.values});
      else
        unknown(chunk);
    }
    out_.megatron = megatron::read_words(megatron, out_.told);
    for (const auto& [name, value] : switches_) out_.megatron.set(name, value, megatron::spelling_of(name));
    files();
  }

 private:
  std::string_view name() const { return out_.family->name; }
  bool asks_for_fsdp() const {
    bool out = false;
    for (const Chunk& c : chunks_)
      if (c.written == "--train-backend" && !c.values.empty()) out = c.values.front() == "fsdp";
    return out && out_.family->framework == Framework::slime;
  }
  void take(const Chunk& chunk, const FsdpFlag& flag) {
    const std::vector<std::string> values = values_of(chunk, !flag.is_switch, "");
    if (!flag.is_switch && values.empty()) return wrong(chunk, "nothing behind it", "a value");
    out_.own.set(std::string(flag.name), flag.is_switch ? Json(true) : Json(values.front()), chunk.written);
  }

  // ---- the release

  Release release(std::size_t number) const { return {&table_, number}; }
  Release release() {
    const std::string& asked = source_.framework_version;
    if (asked.empty()) return guessed();
    const AskedVersion said = asked_version(asked.starts_with('v') ? std::string_view(asked).substr(1) : asked);
    const auto& all = table_.releases();
    if (said.valid && said.name) return release(all.size() - 1);
    if (!said.valid || compare_versions(said.numbers, all.front()) < 0)
      throw InputError(Problem{{"command line", 0, 0, "--framework-version"},
                               fmt::format("'{}'", asked),
                               fmt::format("a release of {}, {} to {}", name(), all.front(), all.back()),
                               {},
                               said.valid ? "older releases are not known" : ""});
    std::size_t out = 0;
    for (std::size_t r = 0; r < all.size(); ++r)
      if (compare_versions(all[r], said.numbers) <= 0) out = r;
    if (compare_versions(said.numbers, all.back()) > 0)
      out_.told.note(Note::Level::warning, "--framework-version",
                     fmt::format("{} {} is not known; read as {}, the newest that is", name(), asked, all.back()));
    return release(out);
  }
  static bool chooses(const Flag& flag, const Chunk& c) {
    const auto is_choice = [&](const std::string& word) {
      return std::find(flag.choices.begin(), flag.choices.end(), word) != flag.choices.end();
    };
    return flag.choices.empty() || c.values.empty() || is_choice(c.values.front());
  }
  /// Has the release the flag, with that word behind it where any release has?
  bool takes(std::size_t r, const Chunk& c) const {
    if (megatron::find_flag(c.written) != nullptr || !known_in_any(table_, c.written)) return true;
    const Flag* const flag = find_flag(release(r), c.written);
    return flag != nullptr &&
           (chooses(*flag, c) || std::none_of(table_.rows().begin(), table_.rows().end(),
                                              [&](const Flag& row) { return row.name == flag->name && chooses(row, c); }));
  }
  /// The newest release that has all flags that any release has; tagged ones first.
  Release guessed() {
    const auto takes_all = [&](std::size_t r) {
      return std::all_of(chunks_.begin(), chunks_.end(), [&](const Chunk& c) { return takes(r, c); });
    };
    std::size_t out = table_.usual();
    std::vector<std::size_t> order;
    for (std::size_t r = out + 1; r-- > 0;) order.push_back(r);
    for (std::size_t r = out + 1; r < table_.releases().size(); ++r) order.push_back(r);
    for (const std::size_t r : order)
      if (takes_all(r)) {
        out = r;
        break;
      }
    out_.told.note(Note::Level::info, "--framework-version",
                   fmt::format("not said: {}, the newest release that has all of the flags", table_.releases()[out]));
    return release(out);
  }

  // ---- files

  std::optional<std::string> text_of(const std::string& path) const {
    return path.empty() || !source_.open ? std::nullopt : source_.open(path);
  }

  /// --custom-config-path: its values replace what flags say (slime/utils/arguments.py: slime_validate_args).
  void custom_config() {
    std::string path;
    for (const Chunk& c : chunks_)
      if (c.written == "--custom-config-path" && !c.values.empty()) path = c.values.front();
    const auto text = text_of(path);
    if (!text) return;
    std::vector<std::string> taken;
    for (const FileArgument& a : read_arguments(*text, path))
      if (argument(a)) taken.push_back(a.name);
    if (!taken.empty())
      out_.told.note(Note::Level::info, "--custom-config-path", fmt::format("{} replaces {}", path, list_of(taken)));
  }
  /// As a flag behind the others. False: it is no argument, but of somebody's own code.
  bool argument(const FileArgument& a) {
    if (a.name.starts_with("sglang_")) {
      Chunk chunk{"--" + a.name, {}, false};
      std::replace(chunk.written.begin(), chunk.written.end(), '_', '-');
      if (a.value == "false") return false;
      if (a.value != "true") chunk.values = split(a.value);
      chunks_.push_back(std::move(chunk));
      return true;
    }
    if (const Flag* own = flag_named(out_.release, a.name)) {
      if (takes_value(*own))
        chunks_.push_back({own->spellings.front(), split(a.value), false});
      else
        out_.own.set(own->name, a.value == "true", own->spellings.front()), held_.push_back(own->name);
      return true;
    }
    const megatron::Flag* of_megatron = megatron::flag_named(a.name);
    if (of_megatron == nullptr) return false;
    if (megatron::takes_value(*of_megatron))
      chunks_.push_back({of_megatron->spellings.front(), split(a.value), false});
    else
      switches_.emplace_back(of_megatron->name, a.value == "true");
    return true;
  }
  static std::vector<std::string> split(const std::string& words) {
    std::vector<std::string> out;
    for (std::size_t at = 0; at < words.size();) {
      const std::size_t end = std::min(words.find(' ', at), words.size());
      if (end > at) out.push_back(words.substr(at, end - at));
      at = end + 1;
    }
    return out;
  }

  void files() {
    for (const char* name : {"sglang_config", "megatron_config_path"}) {
      if (!out_.own.has(name)) continue;
      const std::string path = out_.own.text(name);
      const auto text = text_of(path);
      if (!text) {
        out_.told.add(out_.own.place(name), fmt::format("'{}'", path), "a file that is here", "nothing of it can be read");
        continue;
      }
      if (std::string_view(name) == "sglang_config")
        groups(read_server_groups(*text, path));
      else
        out_.roles = read_roles(*text, path);
    }
  }
  /// Of servers that are alike the file says what flags say otherwise.
  void groups(std::vector<ServerGroup> groups) {
    out_.groups = std::move(groups);
    if (out_.groups.empty() || !alike(out_.groups)) return;
    const ServerGroup& one = out_.groups.front();
    if (one.engine_gpus > 0) out_.own.set("rollout_num_gpus_per_engine", one.engine_gpus, "--sglang-config");
    for (const FileArgument& a : one.overrides) {
      ServerFlag flag{a.name, "--sglang-config", a.value == "true" ? std::vector<std::string>{} : split(a.value)};
      std::replace(flag.name.begin(), flag.name.end(), '_', '-');
      if (a.value != "false") out_.server.push_back(std::move(flag));
    }
  }

  // ---- flags

  void wrong(const Chunk& chunk, std::string found, std::string expected, std::string near = {}) {
    out_.told.add(chunk.written, std::move(found), std::move(expected), "", std::move(near));
    out_.told.problems.back().kind = ProblemKind::refused_by_framework;
  }

  bool beside(std::string_view written) const {
    const auto all = out_.family->beside;
    return std::any_of(all.begin(), all.end(), [&](std::string_view begin) { return written.starts_with(begin); });
  }
  static std::string server_name(std::string_view written, std::string_view prefix) {
    std::string out(written.substr(prefix.size()));
    std::replace(out.begin(), out.end(), '_', '-');
    return out;
  }

  /// Words behind a flag that takes fewer are passed over by the parser.
  std::vector<std::string> values_of(const Chunk& chunk, bool takes, const std::string& many) {
    std::size_t most = !takes ? 0 : many.empty() ? 1 : chunk.values.size();
    if (const auto exact = number_of<std::size_t>(many)) most = *exact;
    std::vector<std::string> out(chunk.values.begin(),
                                 chunk.values.begin() + static_cast<std::ptrdiff_t>(std::min(most, chunk.values.size())));
    for (std::size_t i = out.size(); i < chunk.values.size(); ++i) {
      out_.stray.push_back(chunk.values[i]);
      out_.told.note(Note::Level::warning, chunk.written,
                     fmt::format("'{}' behind it: {}'s parser passes over it", chunk.values[i], name()));
    }
    return out;
  }

  void hand_on(const Chunk& chunk, const megatron::Flag& flag, std::vector<std::string>& to) {
    to.push_back(chunk.written);
    for (std::string& value : values_of(chunk, megatron::takes_value(flag), flag.many)) to.push_back(std::move(value));
  }

  void take(const Chunk& chunk, const Flag& flag) {
    if (std::find(held_.begin(), held_.end(), flag.name) != held_.end()) return;  // a file has the last word
    const std::vector<std::string> values = values_of(chunk, takes_value(flag), flag.many);
    if (!takes_value(flag)) {
      const bool negative = flag.value == FlagValue::toggle && flag.spellings.size() > 1 && chunk.written == flag.spellings[1];
      return out_.own.set(flag.name, flag.value != FlagValue::off && !negative, chunk.written);
    }
    out_.own.set(flag.name, *flag.otherwise, chunk.written);  // where the value is wrong, nothing else is said about it
    if (values.empty() && flag.many != "*") return without_value(chunk, flag);
    Json list = Json::array();
    for (const std::string& text : values) {
      std::optional<Json> value = value_of(flag, text);
      if (!value) value = of_branch(flag, text, chunk.written);
      if (!value) return wrong(chunk, fmt::format("'{}'", text), kind_of(flag), nearest(text, flag.choices));
      list.push_back(*value);
    }
    out_.own.set(flag.name, flag.many.empty() ? list.front() : list, chunk.written);
  }

  /// A key that the user's own shell has. slime's parser ends the run without it, and memory does not depend on it.
  void without_value(const Chunk& chunk, const Flag& flag) {
    if (!chunk.written.starts_with("--wandb-")) return wrong(chunk, "nothing behind it", kind_of(flag));
    out_.told.note(Note::Level::warning, chunk.written,
                   fmt::format("nothing behind it, which {}'s parser refuses: a variable is not set", name()));
  }
  static std::string kind_of(const Flag& flag) {
    if (!flag.choices.empty()) return list_of(flag.choices);
    if (flag.value == FlagValue::whole) return fmt::format("a whole number up to {}", most_of(flag));
    return flag.value == FlagValue::number ? "a number" : "a value";
  }
  /// Products of two counts stay below 2^63. Sizes in bytes are multiplied with nothing.
  static std::int64_t most_of(const Flag& flag) {
    const bool bytes = flag.name.ends_with("_bytes") || flag.name == "update_weight_buffer_size";
    return std::int64_t{1} << (bytes ? 40 : 31);
  }
  static std::optional<Json> value_of(const Flag& flag, const std::string& text) {
    if (!flag.choices.empty() && std::find(flag.choices.begin(), flag.choices.end(), text) == flag.choices.end())
      return std::nullopt;
    if (flag.value == FlagValue::whole) {
      const auto n = number_of<std::int64_t>(text);
      return n && *n >= -most_of(flag) && *n <= most_of(flag) ? std::optional<Json>(*n) : std::nullopt;
    }
    if (flag.value == FlagValue::number) {
      const auto n = number_of<double>(text);
      return n ? std::optional<Json>(*n) : std::nullopt;
    }
    return Json(text);
  }

  /// A word that a branch has.
  std::optional<Json> of_branch(const Flag& flag, const std::string& text, const std::string& written) {
    for (const Branch& row : out_.family->branches) {
      if (flag.name != row.name || text != row.word) continue;
      out_.told.note(Note::Level::warning, written,
                     fmt::format("{} is of a branch, {}, and no state of {} has it: {}", text, row.source, name(), row.what));
      return Json(text);
    }
    return std::nullopt;
  }
  /// A flag that goes with such a word.
  bool of_branch(std::string_view written) const {
    const auto all = out_.family->branches;
    return std::any_of(all.begin(), all.end(), [&](const Branch& row) {
      const std::string_view begin = row.flags;
      return !begin.empty() && written.starts_with(begin) && std::any_of(chunks_.begin(), chunks_.end(), [&](const Chunk& c) {
        return !c.values.empty() && c.values.front() == row.word;
      });
    });
  }

  /// A word of a later state that is described.
  void later(const NotYet& row, const Chunk& chunk) {
    std::string key = row.name + 2;
    std::replace(key.begin(), key.end(), '-', '_');
    out_.own.set(key, chunk.values.empty() ? Json(true) : Json(chunk.values.front()), chunk.written);
    const bool all = row.only == std::string_view("*");
    out_.told.note(Note::Level::info, chunk.written,
                   fmt::format("of a later {}: {} is read as {}", name(), all ? "it" : row.only,
                               all ? row.what : "the training that it is made of"));
  }
  void unknown(const Chunk& chunk) {
    if (is_patched(chunk.written)) return out_.patched.push_back(chunk.written);
    if (of_branch(chunk.written)) return;
    for (const NotYet& row : out_.family->later)
      if (chunk.written == row.name) {
        if (row.only == std::string_view("*")) return later(row, chunk);
        if (!chunk.values.empty() && chunk.values.front() == row.only) return later(row, chunk);
        out_.told.add(chunk.written, chunk.values.empty() ? "the flag" : fmt::format("'{}'", chunk.values.front()), "nothing",
                      fmt::format("not supported yet: {}", row.what));
        out_.told.problems.back().kind = ProblemKind::not_supported;
        return;
      }
    std::string hyphens = chunk.written;
    std::replace(hyphens.begin(), hyphens.end(), '_', '-');
    std::vector<std::string> names = spellings(out_.release);
    for (const megatron::Flag& flag : megatron::flags()) names.insert(names.end(), flag.spellings.begin(), flag.spellings.end());
    std::string why = fmt::format("no flag of {} {}: its parsers pass over it", name(), name_of(out_.release));
    if (const std::string with = releases_with(table_, chunk.written); !with.empty())
      why += fmt::format("; {} {} has it", name(), with);
    else if (const std::string near = nearest(hyphens, names); !near.empty())
      why += fmt::format("; did you mean {}?", near);
    out_.told.note(Note::Level::warning, chunk.written, std::move(why));
  }

  const Source& source_;
  std::vector<Chunk> chunks_;
  std::vector<std::pair<std::string, bool>> switches_;  ///< of Megatron, that a file sets
  std::vector<std::string> held_;                       ///< switches of slime's own that a file sets
  SlimeText& out_;
  const FlagTable& table_;
};

}  // namespace

void Own::set(const std::string& name, const Json& value, std::string written) {
  given_[name] = {std::make_shared<const Json>(value), std::move(written)};
}
std::string Own::place(std::string_view name) const {
  if (const auto found = given_.find(name); found != given_.end()) return found->second.written;
  const Flag* const flag = flag_named(release_, name);
  return flag == nullptr ? std::string(name) : flag->spellings.front();
}
const Json& Own::value(std::string_view name) const {
  static const Json none;
  if (const auto found = given_.find(name); found != given_.end()) return *found->second.value;
  const Flag* const flag = flag_named(release_, name);
  return flag == nullptr ? none : *flag->otherwise;
}
bool Own::has(std::string_view name) const { return !value(name).is_null(); }
bool Own::on(std::string_view name) const {
  const Json& v = value(name);
  if (v.is_boolean()) return v.get<bool>();
  if (v.is_number()) return v.get<double>() != 0;
  return v.is_string() ? !v.get<std::string>().empty() : !v.empty();
}
std::optional<std::int64_t> Own::whole(std::string_view name) const {
  const Json& v = value(name);
  return v.is_number_integer() ? std::optional(v.get<std::int64_t>()) : std::nullopt;
}
double Own::number(std::string_view name, double otherwise) const {
  const Json& v = value(name);
  return v.is_number() ? v.get<double>() : otherwise;
}
std::string Own::text(std::string_view name) const {
  const Json& v = value(name);
  return v.is_string() ? v.get<std::string>() : std::string();
}

const ServerFlag* SlimeText::server_flag(std::initializer_list<std::string_view> names) const {
  const ServerFlag* out = nullptr;
  for (const ServerFlag& flag : server)
    if (std::find(names.begin(), names.end(), flag.name) != names.end()) out = &flag;
  return out;
}

SlimeText read_slime(const Family& family, const Source& source) {
  SlimeText out(family);
  out.told.file = source.name.empty() ? "command line" : source.name;
  out.open = source.open;
  std::vector<std::string> words = shell_words(source.text, out.told.file);
  for (const std::string& more : source.overrides) {  // flags behind the command, or taken out of it
    if (more.starts_with("--")) words.push_back(more);
    if (more.starts_with("~--")) take_out(words, more.substr(1), out.told);
    if (more.starts_with(kModelKey)) words.push_back("--hf-checkpoint=" + more.substr(kModelKey.size()));
  }
  check_length(words, out.told.file);
  const auto script = std::find_if(words.begin(), words.end(), [](const std::string& w) { return w.ends_with(".py"); });
  if (script == words.end())
    throw InputError(Problem{{out.told.file, 0, 0, {}},
                             words.empty() ? "no command" : fmt::format("'{}'", words.front()),
                             fmt::format("{} with its flags", family.program),
                             {},
                             {}});
  out.async = script->ends_with("train_async.py");
  const auto variable = [&](const char* name) {
    const auto found = source.environment.find(name);
    return found == source.environment.end() ? std::string() : found->second;
  };
  out.int4_training = variable("OPEN_TRAINING_INT4_FAKE_QAT_FLAG") == "1";
  out.int4_group = number_of<std::int64_t>(variable("OPEN_TRAINING_INT4_GROUP_SIZE")).value_or(0);
  // sglang/srt/environ.py: EnvBool takes true, 1, yes and y
  const std::string chunks = variable("SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK");
  if (chunks == "1" || chunks == "true" || chunks == "True" || chunks == "yes")
    out.score_chunk = number_of<std::int64_t>(variable("SGLANG_LOGITS_PROCESSER_CHUNK_SIZE")).value_or(2048);
  const auto first = static_cast<std::size_t>(script - words.begin()) + 1;
  std::vector<Chunk> flags = chunks_of(std::span(words).subspan(first), out.stray);
  for (const std::string& word : out.stray)
    out.told.note(Note::Level::warning, "", fmt::format("'{}' belongs to no flag: {}'s parsers pass over it", word, family.name));
  Reader(source, std::move(flags), out).run();
  return out;
}

}  // namespace oomplan::slime
