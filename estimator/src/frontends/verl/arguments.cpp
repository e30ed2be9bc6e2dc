#include "frontends/verl/arguments.hpp"

#include <array>
#include <charconv>

#include <fmt/format.h>
#include <oomplan/oomplan.hpp>

#include "units/enums.hpp"

namespace oomplan::verl {
namespace {

/// Hydra 1.3.2, hydra/_internal/utils.py get_args_parser.
struct Flag {
  std::string_view name, letters;
  std::string Arguments::* value;  ///< nullptr: it starts no job of this kind
  bool takes = true;
};
constexpr std::array<Flag, 10> kFlags{{{"--config-name", "-cn", &Arguments::config_name},
                                       {"--config-path", "-cp", &Arguments::config_path},
                                       {"--config-dir", "-cd", &Arguments::config_dir},
                                       {"--cfg", "-c", nullptr},
                                       {"--package", "-p", nullptr},
                                       {"--info", "-i", nullptr},
                                       {"--resolve", "", nullptr, false},
                                       {"--multirun", "-m", nullptr, false},
                                       {"--run", "-r", nullptr, false},
                                       {"--experimental-rerun", "", nullptr}}};

[[noreturn]] void wrong(const std::string& file, std::string found, std::string expected, std::string near = {}) {
  throw InputError(Problem{{file, 0, 0, {}}, std::move(found), std::move(expected), std::move(near), {}, {}});
}

const Flag* flag_of(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  for (const Flag& flag : kFlags)
    if (name == flag.name || (!flag.letters.empty() && name == flag.letters)) return &flag;
  return nullptr;
}

std::vector<std::string> names_of_flags() {
  std::vector<std::string> out;
  for (const Flag& flag : kFlags) out.emplace_back(flag.name);
  return out;
}

}  // namespace

bool is_command(std::string_view text) {
  return text.starts_with("-m ") || text.starts_with("--nnodes=") || text.starts_with("--nproc-per-node=");
}

Arguments read_arguments(const std::vector<std::string>& words, const std::string& file) {
  Arguments out;
  std::size_t at = 0;
  for (; at < words.size() && words[at] != "-m"; ++at) {
    const auto equals = words[at].find('=');
    const std::string text = equals == std::string::npos ? "" : words[at].substr(equals + 1);
    std::int64_t n = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), n).ec != std::errc() || n < 1 || n > (1 << 17))
      wrong(file, fmt::format("'{}'", words[at]), "a number of GPUs or machines");
    (words[at].starts_with("--nnodes") ? out.nodes : out.gpus_per_node) = n;
  }
  if (at + 1 >= words.size()) wrong(file, "no module", "-m verl.trainer.main_ppo");
  out.module = words[at + 1];
  for (at += 2; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (!word.starts_with('-')) {
      out.overrides.push_back(word);
      continue;
    }
    const Flag* flag = flag_of(word);
    if (flag == nullptr) {
      const std::string bare = word.substr(std::min(word.find_first_not_of('-'), word.size()));
      const bool override_ = bare.find('.') < bare.find('=') && bare.find('=') != std::string::npos;
      wrong(file, fmt::format("'{}'", word), "an override such as key=value, or a flag of Hydra",
            override_ ? bare : nearest(word.substr(0, word.find('=')), names_of_flags()));
    }
    const auto equals = word.find('=');
    if (flag->value == nullptr && flag->takes && equals == std::string::npos) ++at;
    if (flag->value == nullptr) {
      if (flag->name == "--run") continue;
      wrong(file, fmt::format("'{}'", word), "a command that starts one job");
    }
    if (equals == std::string::npos && at + 1 == words.size())
      wrong(file, fmt::format("'{}' without a value", word), "its value");
    out.*flag->value = equals == std::string::npos ? words[++at] : word.substr(equals + 1);
  }
  return out;
}

}  // namespace oomplan::verl
