// Reads what starts slime, or a framework of its family: the words behind train.py or train_async.py, which three parsers share.
//
//     words --split by flag--> slime's own | Megatron's | SGLang's (--sglang-*), each with its release's defaults
//         --meaning--> facts --job--> roles and settings of a Job
//
// All three parsers pass over what they do not know (parse_known_args), and so does this; what was passed over is told.
// docs/slime.md is the user's side of it.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <oomplan/oomplan.hpp>

#include "frontends/megatron/arguments.hpp"
#include "frontends/slime/family.hpp"
#include "frontends/slime/files.hpp"
#include "frontends/slime/flags.hpp"

namespace oomplan::slime {

/// slime's own arguments, as its parser would leave them.
class Own {
 public:
  explicit Own(Release release) : release_(release) {}
  void set(const std::string& name, const nlohmann::json& value, std::string written);
  bool given(std::string_view name) const { return given_.find(name) != given_.end(); }
  /// As it was written, or the flag's usual spelling.
  std::string place(std::string_view name) const;
  /// null: None, or the release has no such argument.
  const nlohmann::json& value(std::string_view name) const;
  bool has(std::string_view name) const;
  bool on(std::string_view name) const;  ///< Python's truth of it
  std::optional<std::int64_t> whole(std::string_view name) const;
  std::int64_t whole_or(std::string_view name, std::int64_t otherwise) const { return whole(name).value_or(otherwise); }
  double number(std::string_view name, double otherwise) const;
  std::string text(std::string_view name) const;

 private:
  struct Given {
    std::shared_ptr<const nlohmann::json> value;
    std::string written;
  };
  Release release_;
  std::map<std::string, Given, std::less<>> given_;
};

/// A flag of SGLang: its name without dashes and prefix, hyphens inside, and what stands behind it.
struct ServerFlag {
  std::string name, written;
  std::vector<std::string> values;
};

struct SlimeText {
  explicit SlimeText(const Family& f) : family(&f) {}
  const Family* family;
  Release release;
  bool async = false;  ///< train_async.py
  Own own{{}};
  megatron::Arguments megatron;
  std::vector<ServerFlag> server;
  std::vector<ServerFlag> second;      ///< of the family's second servers
  std::int64_t score_chunk = 0;        ///< SGLANG_LOGITS_PROCESSER_CHUNK_SIZE where chunks are switched on; 0: they are not
  bool int4_training = false;          ///< OPEN_TRAINING_INT4_FAKE_QAT_FLAG of the trainer (docker/patch/*/megatron.patch)
  std::int64_t int4_group = 0;         ///< OPEN_TRAINING_INT4_GROUP_SIZE; 0: not said
  std::vector<ServerGroup> groups;     ///< of --sglang-config
  std::vector<RoleArguments> roles;    ///< of --megatron-config-path
  std::vector<std::string> patched;    ///< flags of slime's patch of Megatron, as they were written
  std::vector<std::string> strangers;  ///< flags that the parser of slime's FSDP backend refuses
  std::vector<std::string> stray;      ///< words that belong to no flag: the parsers pass over them
  megatron::Complaints told;
  std::function<std::optional<std::string>(const std::string&)> open;  ///< Source::open
  /// The last one of these names; nullptr: it is not given.
  const ServerFlag* server_flag(std::initializer_list<std::string_view> names) const;
};

/// The override that takes the place of --hf-checkpoint (--model of the program).
inline constexpr std::string_view kModelKey = "model=";

/// Throws InputError: it is no command of the framework. What is wrong with a flag is collected.
SlimeText read_slime(const Family&, const Source&);

}  // namespace oomplan::slime
