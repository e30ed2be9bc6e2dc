// What is known of a server's command line while it is read. Internal to the files serve_*.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/assemble.hpp"

namespace oomplan {

inline constexpr const char* kCommandLine = "command line";
inline constexpr std::size_t kNotInCommand = static_cast<std::size_t>(-1);

/// A word, or one that a file or a shorter form stands for.
struct Word {
  std::string text;
  Place place;                     ///< column: of its first character where all words are joined by one blank
  std::size_t at = kNotInCommand;  ///< in the command
};

/// One flag as it was written.
struct Flag {
  std::string written;  ///< "--max-model-len"
  std::string name;     ///< without dashes, '_' as '-'
  std::optional<std::string> value;
  std::vector<std::string> more;  ///< further values of a flag that takes several
  Place place;
  std::size_t at = kNotInCommand;  ///< in the command
};

struct ServeDraft {
  EngineKind engine = EngineKind::vllm;
  std::string version;                       ///< that answers
  std::map<std::string, Flag> given;         ///< by the usual spelling; the last one counts
  std::map<std::string, bool> off;           ///< switches that were given as --no-...
  std::map<std::string, Setting> settings;   ///< by our key
  std::map<std::string, std::size_t> place;  ///< of our key's flag in the command
  std::map<std::string, Word> variables;     ///< text: the value
  std::vector<Problem> problems;
  std::vector<Note> notes;

  void complain(Place where, std::string found, std::string expected, std::string why = {}, std::string near = {}) {
    problems.push_back({std::move(where), std::move(found), std::move(expected), std::move(near), std::move(why)});
  }
  void remark(Note::Level level, Place where, std::string text) { notes.push_back({level, std::move(where), std::move(text)}); }
  void set(const std::string& key, std::string text, const Flag& flag) {
    settings[key] = {"server." + key, std::move(text), {Origin::Kind::override_, flag.place, {}, {}}};
    place[key] = flag.at;
  }
  const Flag* find(const std::string& name) const {
    const auto found = given.find(name);
    return found == given.end() ? nullptr : &found->second;
  }
};

/// vLLM's counts: "32k" is 32,000 and "32K" 32,768; SGLang takes plain numbers. Nothing for what is no count.
std::optional<std::int64_t> count_of(std::string_view text, EngineKind = EngineKind::vllm);

/// The words from `first` on as the engine's own parser sees them: the lines of --config FILE in front of the others (which
/// therefore count), -O3 as its long form, --name.key VALUE as JSON of --name. `open` gives the text of a file.
std::vector<Word> serve_words(const std::vector<std::string>& command, std::size_t first, ServeDraft&,
                              const std::function<std::optional<std::string>(const std::string&)>& open);

/// Variables in front of the command.
void read_variables(ServeDraft&);

/// Flags whose value is JSON. Each complains of what is no JSON, and where.
void read_compilation(ServeDraft&, const Flag&);
void read_optimization_level(ServeDraft&, const Flag&);
void read_speculative(ServeDraft&, const Flag&);
/// --limit-mm-per-prompt: what a prompt may not have.
struct Modalities {
  bool images = true, videos = true, sound = true;
  /// Is the tower of this kind never asked? vLLM then leaves it out (vllm/model_executor/models/interfaces.py _mark_tower_model,
  /// 0.16 to 0.24); those that see videos too are left out with both alone.
  bool none_for(std::string_view tower) const { return !images && (!videos || tower == "siglip" || tower == "pixtral"); }
};
Modalities read_modalities(ServeDraft&, const Flag&);
/// What vLLM does not load of towers that are never asked.
void leave_out_towers(Role&, const Modalities&);

void check_json(ServeDraft&, const Flag&);

/// How the GPUs are laid out, once all flags are read.
struct ServeLayout {
  std::int64_t tensor = 1, pipeline = 1, data = 1, expert = 1;
  bool all_experts = false;
  bool attention = false;  ///< SGLang: data is groups of attention inside of the tensor-parallel ranks
  /// GPUs of all ranks.
  std::int64_t world() const { return tensor * pipeline * (attention ? 1 : data); }
};
/// What the engine itself refuses of flags that contradict each other, or the model. Each with the engine's source.
void check_together(ServeDraft&, const ServeLayout&, const Architecture*, DType compute);

}  // namespace oomplan
