// The program: finds the command, runs it, and turns what was thrown into messages and an exit status.
#include <fcntl.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "catalog/catalog.hpp"
#include "command.hpp"
#include "report/format.hpp"
#include "report/report.hpp"

namespace oomplan::cli {
namespace {

int fail(int status, const std::vector<Problem>& problems, bool json) {
  for (const auto& problem : problems) std::fprintf(stderr, "oomplan: %s\n", printable(to_text(problem)).c_str());
  if (status == kDefect)
    std::fprintf(stderr,
                 "oomplan: this is a defect of oomplan %s, not of your job; please report it together with the job file\n",
                 std::string(version()).c_str());
  if (json) print(to_json(problems));
  return status;
}

Problem said(const std::string& why) {
  Problem problem;
  problem.why = why;
  problem.kind = ProblemKind::defect;
  return problem;
}

/// A server's command without `--` in front would be read as options of ours.
void ask_for_bar(const std::vector<std::string>& arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--") != arguments.end()) return;
  const auto begins = [](const std::string& word) {
    return word == "vllm" || word == "sglang" || word == "python" || word == "python3" || word.find("launch_server") != word.npos;
  };
  const auto first = std::find_if(arguments.begin(), arguments.end(), begins);
  if (first == arguments.end()) return;
  std::string own, theirs;
  for (auto it = arguments.begin(); it != first; ++it) own += " " + *it;
  for (auto it = first; it != arguments.end(); ++it) theirs += " " + *it;
  Problem problem;
  problem.found = "'" + *first + "' without -- in front of it";
  problem.expected = "oomplan serve" + own + " --" + theirs;
  throw InputError(problem);
}

int dispatch(std::vector<std::string> arguments) {
  // Options of every command may also stand in front of it.
  const auto takes_value = [](const std::string& word) {
    return std::any_of(common_options().begin(), common_options().end(),
                       [&](const OptionRow& row) { return !row.value.empty() && word == "--" + std::string(row.name); });
  };
  std::size_t at = 0;
  while (at < arguments.size() && arguments[at].size() > 1 && arguments[at][0] == '-') at += takes_value(arguments[at]) ? 2 : 1;
  if (at >= arguments.size()) {
    const auto given = [&](const char* word) { return std::find(arguments.begin(), arguments.end(), word) != arguments.end(); };
    if (given("--version") || given("-V")) return run_version({});
    if (given("--help") || given("-h")) {
      print(overview());
      return kFits;
    }
    if (!arguments.empty()) throw InputError(said("no command; see oomplan --help"));
    std::fputs(overview().c_str(), stderr);
    return kWrongInput;
  }
  const std::string name = arguments[at];
  arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(at));
  const auto all = commands();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Command& c) { return c.name == name; });
  if (found == all.end()) {
    std::vector<std::string> names;
    for (const auto& command : all) names.emplace_back(command.name);
    Problem problem = unknown("command", name, names);
    std::error_code error;
    if (std::filesystem::exists(name, error)) problem.why = "a job file follows its command, as in oomplan estimate " + name;
    throw InputError(problem);
  }
  if (name == "serve") ask_for_bar(arguments);
  for (auto& word : arguments)
    if (word == "-h") word = "--help";
  Call call = understand(*found, arguments);
  if (call.has("help")) {
    print(help_of(*found));
    return kFits;
  }
  std::optional<Catalog> overlay;
  if (call.has("models")) {
    overlay.emplace(Catalog::with_directory(std::string(call.text("models"))));
    call.catalog = &*overlay;
  } else {
    call.catalog = &Catalog::builtin();
  }
  return found->run(call);
}

/// Whoever starts the program may have closed a stream. Its number must not become that of a file that is opened later, which
/// would then be printed into: something stands there that fails, as a closed stream does.
void hold_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // the lowest that is free
}

/// Programs of a job are made, played and dropped one after the other. What one gave back the next takes: returned to the kernel
/// in between, every page would be mapped again (13,400 page faults of a 70B's check, and 3,700 so).
void keep_memory() {
#ifdef __GLIBC__
  constexpr int kMiB = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, 32 * kMiB);  // the most that glibc allows
  mallopt(M_TRIM_THRESHOLD, 1024 * kMiB);
  mallopt(M_TOP_PAD, 16 * kMiB);
  mallopt(M_MXFAST, 0);  // else every large block that comes or goes looks through all small ones that are free
#endif
}

}  // namespace

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) return;  // the reader has seen enough
  throw InputError(said("standard output cannot be written: " + std::generic_category().message(errno)));
}

}  // namespace oomplan::cli

int main(int argc, char** argv) {
  using namespace oomplan;
  using namespace oomplan::cli;
  hold_streams();
  keep_memory();
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const bool json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
  try {
    try {
      return dispatch(std::move(arguments));
    } catch (const InputError& error) {
      return fail(kWrongInput, error.problems, json);
    } catch (const std::bad_alloc&) {
      return fail(kDefect, {said("out of memory")}, json);
    } catch (const std::exception& error) {
      return fail(kDefect, {said(error.what())}, json);
    }
  } catch (const std::exception&) {  // not even the message could be written
    return kWrongInput;
  }
}
