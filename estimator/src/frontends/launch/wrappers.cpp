#include "frontends/launch/wrappers.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "frontends/launch/parser.hpp"
#include "frontends/launch/paths.hpp"

namespace oomplan::launch {
namespace {

/// A wrapper: its words, its options without a value, and how many words stand between its options and the command.
struct Row {
  std::string_view name;
  std::string_view flags;      ///< options that take no value, separated by blanks; "*": none of them takes one
  std::size_t positional = 0;  ///< words behind the options: an image, a duration
  bool runs_python = false;    ///< what follows is a script, or with -m a module
  std::string_view text = {};  ///< the option whose value is a command line
  bool double_dash = false;    ///< the command stands behind --
};

constexpr std::string_view kDocker =
    "-i -t -d -it -ti -itd -id --rm --privileged --init --tty --interactive --detach -P --publish-all --read-only "
    "--no-healthcheck "
    "--oom-kill-disable --sig-proxy -h";
constexpr std::string_view kApptainer =
    "--nv --rocm --cleanenv -e --contain -c --containall -C --writable -w --writable-tmpfs --no-home --fakeroot -f --ipc -i "
    "--pid -p "
    "--net -n --userns -u --unsquash --no-privs --compat";
constexpr std::string_view kMpi =
    "--allow-run-as-root -allow-run-as-root --oversubscribe -oversubscribe --verbose -v --tag-output -tag-output "
    "--nooversubscribe "
    "--report-bindings -report-bindings --display-map -q -quiet --quiet";

constexpr std::array<Row, 52> kRows{{
    {"srun",
     "--exclusive --pty --unbuffered -u --label -l --overlap --no-kill -k --kill-on-bad-exit -K --oversubscribe -s "
     "--preserve-env -E "
     "--quiet -Q --verbose -v --contiguous --disable-status -X --immediate -I --spread-job --use-min-nodes "
     "--no-container-mount-home "
     "--container-writable --no-container-entrypoint --container-remap-root --mpi=none"},
    {"sbatch",
     "--exclusive --parsable --requeue --no-requeue --wait -W --contiguous --oversubscribe -s --quiet -Q --verbose -v "
     "--test-only",
     0, false, "--wrap"},
    {"salloc", "--exclusive --no-shell --quiet -Q --verbose -v --contiguous"},
    {"ray job submit", "--no-wait --verify --delete-local --log-color -v --verbose"},
    {"docker run", kDocker, 1},
    {"docker exec", kDocker, 1},
    {"podman run", kDocker, 1},
    {"podman exec", kDocker, 1},
    {"nvidia-docker run", kDocker, 1},
    {"kubectl exec", "-i -t -it -ti --stdin --tty", 1, false, {}, true},
    {"apptainer exec", kApptainer, 1},
    {"apptainer run", kApptainer, 1},
    {"singularity exec", kApptainer, 1},
    {"singularity run", kApptainer, 1},
    {"enroot start", "--root -r --rw -w", 1},
    {"nsys profile", ""},
    {"nsys launch", ""},
    {"nsys", ""},
    {"timeout", "--foreground --preserve-status --verbose -v -p -f", 1},
    {"nohup", ""},
    {"setsid", "-w -f -c --wait --fork --ctty"},
    {"nice", ""},
    {"ionice", "-t --ignore"},
    {"stdbuf", ""},
    {"taskset", "-c -a --cpu-list --all-tasks", 1},
    {"numactl", "-l --localalloc -s --show -H --hardware -a --all"},
    {"chrt", "-b -f -i -o -r -R", 1},
    {"time", "-p -v -a --verbose --portability --append"},
    {"sudo", "-E -H -n -S -s -i -b --preserve-env --login --shell --set-home --non-interactive"},
    {"catchsegv", ""},
    {"tini", "-s -g -v"},
    {"unbuffer", "-p"},
    {"uv run",
     "--frozen --no-sync --locked --isolated --active --no-project --all-extras --offline -q --quiet -v --verbose --no-dev "
     "--exact "
     "--no-env-file --no-config --all-groups --no-default-groups --no-cache -n --reinstall --refresh --native-tls --no-progress "
     "--inexact --all-packages --only-dev --no-editable --no-index -U --upgrade --no-sources --compile-bytecode --no-build "
     "--no-binary "
     "--managed-python --no-managed-python --no-python-downloads --show-resolution --no-build-isolation",
     0, false},
    {"conda run", "--no-capture-output --live-stream -v --verbose --debug-wrapper-scripts"},
    {"mamba run", "--no-capture-output --live-stream -v --verbose"},
    {"micromamba run", "--no-capture-output --live-stream -v --verbose"},
    {"poetry run", "-q -v -n --no-interaction"},
    {"pipenv run", ""},
    {"pdm run", "-s -v -q"},
    {"rye run", "-v -q"},
    {"hatch run", ""},
    {"pixi run", "--frozen --locked --no-install -v -q"},
    {"mpirun", kMpi},
    {"mpiexec", kMpi},
    {"orterun", kMpi},
    {"prun", kMpi},
    {"oumi distributed", ""},
    {"torchrun", "--standalone --no-python --no_python --use-env --use_env", 0, true},
    {"accelerate launch",
     "--multi_gpu --cpu --tpu --use_deepspeed --use_fsdp --use_megatron_lm --use_xpu --no_python --debug --quiet -q "
     "--same_network "
     "--multi-gpu --use-deepspeed --use-fsdp --use-megatron-lm --no-python",
     0, true},
    {"deepspeed",
     "--no_python --no_local_rank --save_pid --enable_each_rank_log --force_multi --elastic_training --no_ssh_check --no_ssh", 0,
     true},
    {"colossalai run", "", 0, true},
    {"torch.distributed.run", "--standalone --no-python --no_python --use-env --use_env", 0, true},
}};

/// Options with two values.
bool takes_two(const std::string& option) {
  return option == "-mca" || option == "--mca" || option == "-gmca" || option == "--gmca";
}

bool holds(std::string_view list, std::string_view word) {
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find(' ', at), list.size());
    if (list.substr(at, end - at) == word) return true;
    at = end + 1;
  }
  return false;
}

constexpr std::string_view kPythonFlags = "-u -B -O -OO -I -E -s -S -q -v -d -i -b -bb -x -P";

bool is_python(const std::string& program) {
  const std::string name = last_part(program);
  if (!name.starts_with("python") && !name.starts_with("pypy")) return false;
  return name.find_first_not_of("0123456789.", name.starts_with("python") ? 6 : 4) == std::string::npos;
}

class FrontReader {
 public:
  explicit FrontReader(const std::vector<StartedWord>& words) {
    for (std::size_t i = 0; i < words.size(); ++i)
      if (!words[i].vanishes) words_.push_back(words[i].text), places_.push_back(i);
    places_.push_back(words.size());
  }

  Unwrapped run() {
    for (int levels = 0; at_ < words_.size() && levels < 50 && step(); ++levels) {
    }
    if (out_.entry.kind == Entry::Kind::none) program();
    out_.entry.at = places_[std::min(out_.entry.at, words_.size())];
    out_.entry.first = places_[std::min(out_.entry.first, words_.size())];
    return std::move(out_);
  }

 private:
  std::string text(std::size_t i) const { return i < words_.size() && is_known(words_[i]) ? bytes_of(words_[i]) : ""; }
  /// A path, also where its folder is not known: "${VENV}/bin/python" is "/bin/python".
  std::string path(std::size_t i) const {
    if (i >= words_.size()) return "";
    const auto open = std::find_if(words_[i].rbegin(), words_[i].rend(), is_unknown);
    const std::string end = bytes_of(Text(open.base(), words_[i].end()));
    return open == words_[i].rend() || end.starts_with('/') ? end : "";
  }

  /// Passes one wrapper; false: the program stands here.
  bool step() {
    const std::string name = last_part(path(at_));
    if (name == "env") return environment();
    if (is_python(name)) return python();
    for (const Row& row : kRows) {
      const std::size_t count = matched(row.name);
      if (count == 0) continue;
      Wrapper made{std::string(row.name), places_[at_]};
      at_ += count;
      return options(row, std::move(made));
    }
    return false;
  }

  /// Words of the row's name that stand here.
  std::size_t matched(std::string_view name) const {
    std::size_t count = 0;
    for (std::size_t at = 0; at < name.size(); ++count) {
      const std::size_t end = std::min(name.find(' ', at), name.size());
      const std::string word = count == 0 ? last_part(path(at_)) : text(at_ + count);
      if (word != name.substr(at, end - at)) return 0;
      at = end + 1;
    }
    return count;
  }

  bool options(const Row& row, Wrapper made) {
    bool module = false, plain = false;
    for (; at_ < words_.size(); ++at_) {
      const std::string word = text(at_);
      const std::string first =
          !words_[at_].empty() && !is_unknown(words_[at_][0]) ? std::string(1, byte_of(words_[at_][0])) : "";
      if (word == "--") {
        ++at_;
        break;
      }
      if (first != "-" || words_[at_].size() < 2) break;
      const auto sign = words_[at_].find(U'=');
      std::string option = bytes_of(words_[at_].substr(0, sign));
      if (row.runs_python && (option == "-m" || option == "--module")) {
        module = true;
        continue;
      }
      plain = plain || option == "--no_python" || option == "--no-python";
      if (sign != Text::npos) {
        made.options.emplace_back(std::move(option), words_[at_].substr(sign + 1));
      } else if (holds(row.flags, option)) {
        made.options.emplace_back(std::move(option), Text());
      } else if (option.size() > 2 && option[1] != '-' && std::isdigit(static_cast<unsigned char>(option[2])) != 0) {
        made.options.emplace_back(option.substr(0, 2), words_[at_].substr(2));  // -N4
      } else {
        at_ += takes_two(option) ? 1 : 0;
        made.options.emplace_back(std::move(option), at_ + 1 < words_.size() ? words_[at_ + 1] : Text());
        ++at_;
      }
    }
    at_ = std::min(at_, words_.size());
    if (!row.text.empty())
      for (const auto& [option, value] : made.options)
        if (option == row.text) return wrapped(std::move(made), value);
    at_ = std::min(at_ + row.positional, words_.size());
    if (row.double_dash)
      while (at_ < words_.size() && text(at_ - 1) != "--") ++at_;
    if ((row.name == "docker run" || row.name == "podman run") && text(at_).starts_with("-")) --at_;
    made.end = places_[at_];
    const bool is_launcher = row.runs_python && !plain;
    out_.wrappers.push_back(std::move(made));
    if (is_launcher) return script(module), false;
    return true;
  }

  bool wrapped(Wrapper made, const Text& value) {
    made.end = places_[at_];
    out_.wrappers.push_back(std::move(made));
    out_.entry = {Entry::Kind::text, {}, value, at_, words_.size()};
    return false;
  }

  /// Behind torchrun and its like: a script, or with -m a module.
  void script(bool module) {
    out_.entry.kind = at_ >= words_.size() ? Entry::Kind::none : module ? Entry::Kind::module : Entry::Kind::script;
    out_.entry.name = module ? text(at_) : path(at_);
    out_.entry.at = at_;
    out_.entry.first = at_ + 1;
  }

  bool environment() {
    Wrapper made{"env", places_[at_]};
    for (++at_; at_ < words_.size(); ++at_) {
      const std::string word = text(at_);
      if (word == "-u" || word == "-C" || word == "--chdir" || word == "--unset") {
        ++at_;
        continue;
      }
      if (word.starts_with("-") && word.size() > 1) continue;
      const std::size_t sign = words_[at_].find(U'=');
      const std::string name = bytes_of(words_[at_].substr(0, sign));
      if (sign == Text::npos || !is_name(name)) break;
      made.environment.emplace_back(name, words_[at_].substr(sign + 1));
    }
    at_ = std::min(at_, words_.size());
    made.end = places_[at_];
    out_.wrappers.push_back(std::move(made));
    return true;
  }

  /// Is it python -m torch.distributed.run, then that is the wrapper. python -m ray.scripts.scripts is ray.
  bool python() {
    std::size_t i = at_ + 1;
    for (; i < words_.size(); ++i) {
      const std::string word = text(i);
      if (word == "-m" || word == "-c") break;
      if (word == "-X" || word == "-W") {
        ++i;
        continue;
      }
      if (!holds(kPythonFlags, word) && !word.starts_with("-X") && !word.starts_with("-W")) break;
    }
    const std::string option = text(i);
    if (option == "-c") {
      out_.entry = {Entry::Kind::code, last_part(path(at_)), i + 1 < words_.size() ? words_[i + 1] : Text(), i + 1, i + 2};
      return false;
    }
    const std::string module = option == "-m" ? text(i + 1) : "";
    const bool ray = module == "ray.scripts.scripts" && text(i + 2) == "job" && text(i + 3) == "submit";
    if (ray || module == "torch.distributed.run" || module == "torch.distributed.launch" ||
        module == "accelerate.commands.launch") {
      Wrapper made{ray ? "ray job submit" : module.starts_with("torch") ? "torchrun" : "accelerate launch", places_[at_]};
      at_ = i + (ray ? 4 : 2);
      const auto row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == made.name; });
      return options(*row, std::move(made));
    }
    if (option == "-m") {
      out_.entry = {i + 1 < words_.size() ? Entry::Kind::module : Entry::Kind::none, module, {}, i + 1, i + 2};
    } else if (i < words_.size()) {
      out_.entry = {Entry::Kind::script, path(i), {}, i, i + 1};
    } else {
      out_.entry = {Entry::Kind::program, path(at_), {}, at_, at_ + 1};
    }
    return false;
  }

  void program() {
    const std::string name = path(at_);
    out_.entry.kind = name.empty() ? Entry::Kind::none : name.ends_with(".py") ? Entry::Kind::script : Entry::Kind::program;
    out_.entry.name = name;
    out_.entry.at = at_;
    out_.entry.first = at_ + 1;
  }

  std::vector<Text> words_;
  std::vector<std::size_t> places_;
  std::size_t at_ = 0;
  Unwrapped out_;
};

}  // namespace

Unwrapped unwrap(const std::vector<StartedWord>& words) { return FrontReader(words).run(); }

bool is_shell(const std::string& program) {
  const std::string name = last_part(program);
  return name == "bash" || name == "sh" || name == "dash" || name == "zsh" || name == "ksh";
}

}  // namespace oomplan::launch
