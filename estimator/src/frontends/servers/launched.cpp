#include "frontends/servers/launched.hpp"

#include <array>

#include "frontends/launch/quote.hpp"
#include "frontends/servers/serve_command.hpp"
#include "frontends/shell_words.hpp"

namespace oomplan::servers {
namespace {

using launch::EntryPoint;
using Kind = launch::Entry::Kind;

/// vllm-project/vllm and sgl-project/sglang, as docs/serve.md has them.
constexpr std::array kPrograms{
    EntryPoint{Kind::program, "vllm", "serve", "vLLM", "its server", "server", false},
    EntryPoint{Kind::module, "vllm.entrypoints.openai.api_server", "", "vLLM", "its server", "server", false},
    EntryPoint{Kind::module, "sglang.launch_server", "", "SGLang", "its server", "server", false},
    EntryPoint{Kind::program, "sglang", "serve", "SGLang", "its server", "server", false},
};

}  // namespace

std::span<const EntryPoint> entry_points() { return kPrograms; }

Source take(Handing& handing) {
  Source out = handing.asked();
  out.dialect = "server";
  std::vector<std::string> words =
      handing.variables({"VLLM_", "SGLANG_", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"});
  words.insert(words.end(), handing.words().begin(), handing.words().end());
  out.text = launch::command_text(words);
  return out;
}

Reading read_server(const Source& source, const Catalog& catalog) {
  std::vector<Problem> problems;
  for (const std::string& text : source.overrides) {
    Problem& p = problems.emplace_back();
    p.place.file = "command line";
    p.found = "'" + text + "'";
    p.expected = "the flag itself, behind the server's command";
    p.why = "a server's command says all of the job";
  }
  if (!problems.empty()) throw InputError(std::move(problems));
  ServeOptions options;
  options.version = source.framework_version;
  options.gpu = source.gpu;
  options.open = source.open;
  return read_serve_command(shell_words(source.text, source.name), options, catalog).reading;
}

}  // namespace oomplan::servers
