#include "frontends/slime/servers.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "frontends/servers/serve_command.hpp"
#include "frontends/servers/serve_known_flags.hpp"
#include "job/knobs.hpp"
#include "units/enums.hpp"

namespace oomplan::slime {
namespace {

/// Flags that slime does not hand on (slime/backends/sglang_utils/arguments.py: skipped_args), and those of slime's own.
constexpr std::array<std::string_view, 16> kSkipped{"model-path",
                                                    "config",
                                                    "trust-remote-code",
                                                    "random-seed",
                                                    "enable-memory-saver",
                                                    "tp-size",
                                                    "port",
                                                    "nnodes",
                                                    "node-rank",
                                                    "dist-init-addr",
                                                    "gpu-id-step",
                                                    "base-gpu-id",
                                                    "nccl-port",
                                                    "skip-server-warmup",
                                                    "enable-return-routed-experts",
                                                    "tensor-parallel-size"};
/// Degrees are told apart from the command: slime says how many GPUs an engine has.
constexpr std::array<std::string_view, 8> kDegrees{
    "data-parallel-size", "dp-size", "pipeline-parallel-size", "pp-size", "expert-parallel-size", "ep-size", "ep", "nodes"};
/// What read_serve_command keeps of a format is no setting.
constexpr std::array<std::string_view, 2> kFormats{"dtype", "quantization"};

template <std::size_t n>
bool among(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Servers {
 public:
  Servers(const SlimeText& text, const ServerOf& of, const Catalog& catalog) : t_(text), of_(of), catalog_(catalog) {
    options_.gpu = of.gpu;
    options_.version = of.version;
  }

  ServerSettings run() {
    std::vector<std::string> words{"python3", "-m", "sglang.launch_server", "--model-path", of_.model};
    degrees(words);
    for (const ServerFlag& flag : of_.flags) {
      if (among(kSkipped, flag.name)) {
        out_.notes.push_back(
            {Note::Level::warning, place(flag.written), fmt::format("{} passes over it: it sets this itself", t_.family->name)});
        continue;
      }
      if (among(kFormats, flag.name) && !flag.values.empty() && flag.values[0] != "bfloat16" && flag.values[0] != "auto") {
        refuse(flag.written, fmt::format("'{}'", flag.values[0]), "bfloat16",
               fmt::format("other formats of {}'s servers", t_.family->name));
        continue;
      }
      if (among(kDegrees, flag.name) || passed_over(flag)) continue;
      words.push_back("--" + flag.name);
      words.insert(words.end(), flag.values.begin(), flag.values.end());
    }
    try {
      take(read_serve_command(words, options_, catalog_));
    } catch (const InputError& e) {
      for (Problem p : e.problems) {
        p.place = renamed(p.place);
        out_.problems.push_back(std::move(p));
      }
    }
    return std::move(out_);
  }

 private:
  void degrees(std::vector<std::string>& words) const {
    const auto add = [&](const char* flag, std::int64_t n) {
      if (n > 1) words.insert(words.end(), {flag, std::to_string(n)});
    };
    add("--tp", std::max<std::int64_t>(1, of_.engine_gpus / of_.stages));
    add("--pp", of_.stages);
    add("--dp", of_.groups);
    add("--ep", of_.experts);
  }
  Place place(std::string path) const { return {t_.told.file, 0, 0, std::move(path)}; }
  Place renamed(const Place& at) const {
    const std::string_view knob = at.path.starts_with("server.") ? std::string_view(at.path).substr(7) : "";
    for (const ServerFlag& flag : of_.flags) {
      const FlagRow* row = row_of(EngineKind::sglang, flag.name);
      if (at.path == "--" + flag.name || (!knob.empty() && row != nullptr && row->key == knob)) return place(flag.written);
    }
    if (at.path == "--tp" || at.path == "layout") return place(of_.engine_flag);
    if (at.path == "--dp") return place(of_.prefix + "data-parallel-size");
    if (at.path == "--ep") return place(of_.prefix + "expert-parallel-size");
    if (at.path == "--pp") return place(of_.prefix + "pipeline-parallel-size");
    return place(at.path.starts_with("--") ? of_.prefix + at.path.substr(2) : of_.model_flag);
  }
  void refuse(const std::string& flag, std::string found, std::string expected, const std::string& what) {
    out_.problems.push_back({place(flag),
                             std::move(found),
                             std::move(expected),
                             {},
                             fmt::format("not supported yet: {}", what),
                             ProblemKind::not_supported});
  }

  /// SGLang's own command refuses what it does not know, slime's parser does not.
  bool passed_over(const ServerFlag& flag) {
    if (known_to_parser(EngineKind::sglang, flag.name, true)) return false;
    const std::string near = nearest(flag.name, names_of(EngineKind::sglang));
    out_.notes.push_back({Note::Level::warning, place(flag.written),
                          fmt::format("no flag of SGLang: {}'s parsers pass over it{}", t_.family->name,
                                      near.empty() ? "" : fmt::format("; did you mean {}{}?", of_.prefix, near))});
    return true;
  }

  void take(const ServeCommand& command) {
    constexpr std::string_view kRole = "server.";
    const Reading& reading = command.reading;
    for (const auto& [key, origin] : reading.job.origins) {
      if (origin.kind != Origin::Kind::override_ || !key.starts_with(kRole)) continue;
      const std::string_view knob = std::string_view(key).substr(kRole.size());
      if (knob == "engine" || knob == "layout" || knob == "attention_data") continue;
      Origin told = origin;
      told.kind = Origin::Kind::file;
      told.place = place(of_.prefix + "*");
      if (const auto at = command.place.find(std::string(knob)); at != command.place.end() && at->second < command.words.size())
        told.place = renamed({{}, 0, 0, command.words[at->second].substr(0, command.words[at->second].find('='))});
      out_.settings.push_back({std::string(knob), get(reading.job, key), std::move(told)});
    }
    for (Note note : reading.notes) {
      if (note.place.path == "--engine-version") continue;  // told by slime's release
      note.place = renamed(note.place);
      out_.notes.push_back(std::move(note));
    }
  }

  const SlimeText& t_;
  const ServerOf& of_;
  const Catalog& catalog_;
  ServeOptions options_;
  ServerSettings out_;
};

}  // namespace

ServerSettings server_settings(const SlimeText& text, const ServerOf& of, const Catalog& catalog) {
  return Servers(text, of, catalog).run();
}

}  // namespace oomplan::slime
