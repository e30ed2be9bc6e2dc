#include "frontends/servers/serve_command.hpp"
#include "frontends/servers/serve_quantization.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>
#include <oomplan/units/bytes.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/engine_releases.hpp"
#include "frontends/command_length.hpp"
#include "frontends/native.hpp"
#include "frontends/servers/serve_draft.hpp"
#include "frontends/servers/serve_flags.hpp"
#include "frontends/servers/serve_known_flags.hpp"
#include "job/first_engine.hpp"
#include "job/kernel_needs.hpp"
#include "job/names.hpp"
#include "units/enums.hpp"

namespace oomplan {
namespace {

/// What the engines write for their own choice; mm-encoder-tp-mode's is weights.
bool is_default_word(std::string_view value) {
  return value == "auto" || value == "none" || value == "None" || value == "null" || value == "{}" || value == "weights";
}

/// By what with_flag() names a degree of the layout; "" of what is none.
std::string_view degree_name(FlagMeans means) {
  switch (means) {
    case FlagMeans::tensor:
      return "tensor";
    case FlagMeans::pipeline:
      return "pipeline";
    case FlagMeans::data:
      return "data";
    case FlagMeans::expert:
      return "expert";
    case FlagMeans::all_experts:
      return "all_experts";
    default:
      return "";
  }
}

class CommandReader {
 public:
  CommandReader(const std::vector<std::string>& words, const ServeOptions& options, const Catalog& catalog)
      : words_(words), options_(options), catalog_(catalog) {}

  ServeCommand read() {
    check_length(words_, kCommandLine);
    out_.words = words_;
    const std::size_t first = program();
    release();
    read_variables(d_);
    line_ = serve_words(words_, first, d_, options_.open);
    for (std::size_t i = 0; i < line_.size();) i = word(i);
    meanings();
    drafts();
    if (model_.empty()) d_.complain({kCommandLine, 0, 0, ""}, "no model", "the model behind the program, or its flag");
    if (!d_.problems.empty()) throw InputError(d_.problems);
    const auto architecture = catalog_.model(model_).architecture;  // tells what is wrong with the model
    check_together(d_, layout_, architecture.get(), compute_);
    exchange();
    if (!d_.problems.empty()) throw InputError(d_.problems);
    finish();
    out_.engine = d_.engine;
    out_.place = d_.place;
    return std::move(out_);
  }

 private:
  /// Variables, then the program; where its arguments begin.
  std::size_t program() {
    std::size_t i = 0;
    int column = 1;
    for (; i < words_.size() && is_variable(words_[i]); ++i) {
      const std::string name = words_[i].substr(0, words_[i].find('='));
      d_.variables[name] = {words_[i].substr(name.size() + 1), {kCommandLine, 1, column, name}, i};
      column += static_cast<int>(words_[i].size()) + 1;
    }
    const auto at = [&](std::size_t n) { return i + n < words_.size() ? std::string_view(words_[i + n]) : std::string_view(); };
    const std::string_view name = at(0).substr(at(0).rfind('/') == std::string_view::npos ? 0 : at(0).rfind('/') + 1);
    const auto is = [&](EngineKind engine, std::size_t words) { return d_.engine = engine, i + words; };
    if (name == "vllm" && at(1) == "serve") return is(EngineKind::vllm, 2);
    if (name == "sglang" && at(1) == "serve") return is(EngineKind::sglang, 2);
    if (name.starts_with("python") && at(1) == "-m") {
      if (at(2) == "sglang.launch_server") return is(EngineKind::sglang, 3);
      if (at(2) == "vllm.entrypoints.openai.api_server" || at(2) == "vllm.entrypoints.api_server") return is(EngineKind::vllm, 3);
    }
    const auto begin = words_.begin() + static_cast<std::ptrdiff_t>(std::min(i, words_.size()));
    const auto end = words_.begin() + static_cast<std::ptrdiff_t>(std::min(i + 3, words_.size()));
    throw InputError(Problem{{kCommandLine, 1, column, ""},
                             fmt::format("'{}'", fmt::join(begin, end, " ")),
                             "vllm serve MODEL ..., or python -m sglang.launch_server --model-path MODEL ...",
                             at(2).empty() ? "" : nearest(at(2), {"sglang.launch_server", "vllm.entrypoints.openai.api_server"}),
                             {}});
  }

  static bool is_variable(std::string_view word) {
    const std::size_t sign = word.find('=');
    if (sign == std::string_view::npos || sign == 0 || word[0] == '-') return false;
    return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(sign),
                       [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  }

  /// What a flag means depends on the release.
  void release() {
    const Place place{kCommandLine, 0, 0, "--engine-version"};
    const std::string_view engine = spelling(d_.engine);
    const auto known = known_releases(catalog_.facts(), engine);
    if (options_.version.empty()) {
      d_.version = known.empty() ? "" : known.back();
      return d_.remark(Note::Level::info, place, fmt::format("not said: {}", d_.version));
    }
    const AnsweringVersion answer = answering_version(catalog_.facts(), engine, options_.version);
    if (answer.version.empty())
      throw InputError(
          Problem{place,
                  fmt::format("'{}'", options_.version),
                  known.empty() ? "a version" : fmt::format("{} {} to {}", engine, known.front(), known.back()),
                  {},
                  asked_version(options_.version).valid ? "older versions have not been read" : "that is no version"});
    d_.version = answer.version;
    if (!answer.remark.empty()) d_.remark(Note::Level::warning, place, answer.remark);
  }

  bool is_flag(std::size_t i) const {
    const std::string& text = line_[i].text;
    return text.size() >= 2 && text[0] == '-' && !count_of(text);
  }

  std::size_t word(std::size_t i) {
    const Word& word = line_[i];
    if (!is_flag(i)) {
      if (model_.empty() && d_.engine == EngineKind::vllm)
        model_ = word.text;
      else
        d_.complain({word.place.file, word.place.line, word.place.column, ""}, fmt::format("'{}'", word.text), "a flag");
      return i + 1;
    }
    Flag flag;
    flag.at = word.at;
    flag.place = word.place;
    flag.written = word.text.substr(0, word.text.find('='));
    flag.name = flag.written.substr(flag.written.starts_with("--") ? 2 : 1);
    std::replace(flag.name.begin(), flag.name.end(), '_', '-');
    if (flag.written.size() < word.text.size()) flag.value = word.text.substr(flag.written.size() + 1);
    const FlagRow* const row = find(flag);
    std::size_t next = i + 1;
    const bool takes = row != nullptr ? !is_switch(row->means) : !known_switch(d_.engine, flag.name).value_or(false);
    if (!flag.value && takes && next < line_.size() && !is_flag(next)) flag.value = line_[next++].text;
    while (row != nullptr && takes_several(row->means) && next < line_.size() && !is_flag(next))
      flag.more.push_back(line_[next++].text);
    if (row == nullptr) {
      not_described(flag);
    } else if (takes && (!flag.value || flag.value->empty())) {
      d_.complain(flag.place, "nothing behind it", "a value");
    } else {
      keep(std::move(flag), *row);
    }
    return next;
  }

  /// The row of a flag as it is spelt, as --no-SWITCH, or as the beginning of one name only, which Python's argparse takes too.
  const FlagRow* find(Flag& flag) {
    if (const FlagRow* row = row_of(d_.engine, flag.name)) return row;
    if (flag.name.starts_with("no-")) {
      const FlagRow* row = row_of(d_.engine, flag.name.substr(3));
      if (row != nullptr && is_switch(row->means)) return row;
    }
    if (flag.name.size() < 4 || !flag.written.starts_with("--") || known_switch(d_.engine, flag.name)) return nullptr;
    std::vector<std::string> longer;
    for (const std::string& name : names_of(d_.engine))
      if (name.starts_with(flag.name)) longer.push_back(name);
    const FlagRow* row = longer.size() == 1 ? row_of(d_.engine, longer[0]) : nullptr;
    if (row == nullptr) return nullptr;
    d_.remark(Note::Level::info, flag.place, fmt::format("taken as --{}", longer[0]));
    flag.name = longer[0];
    return row;
  }

  void not_described(const Flag& flag) {
    if (known_to_parser(d_.engine, flag.name, flag.written.starts_with("--")))
      return d_.remark(Note::Level::warning, flag.place, "not described: taken as without effect on memory");
    const std::string near = nearest(flag.name, names_of(d_.engine));
    d_.complain(flag.place, fmt::format("'{}'", flag.written), fmt::format("a flag of {} {}", spelling(d_.engine), d_.version),
                "its parser refuses what it does not know", near.empty() ? "" : (near.size() > 1 ? "--" : "-") + near);
  }

  /// The last one of a name counts, as in both engines.
  void keep(Flag flag, const FlagRow& row) {
    const std::string usual(usual_of(row));
    d_.off[usual] = flag.name.starts_with("no-") && !usual.starts_with("no-");
    if (d_.given.contains(usual) && d_.given[usual].at != kNotInCommand)
      d_.remark(Note::Level::warning, flag.place, "given twice: the last one counts");
    std::erase(order_, usual);
    order_.push_back(usual);
    d_.given[usual] = std::move(flag);
  }

  void meanings() {
    for (const std::string& usual : order_) {
      const FlagRow* row = row_of(d_.engine, usual);
      const Flag flag = d_.given[usual];
      if (d_.off[usual]) {
        d_.given.erase(usual);
        if (row->means == FlagMeans::shares) d_.set("share_prompts", "false", flag);
        continue;
      }
      understand(flag, *row);
    }
    if (d_.engine == EngineKind::vllm && version_matches(d_.version, "<0.8") && !d_.find("enable-prefix-caching"))
      d_.settings["share_prompts"] = {"server.share_prompts", "false", {Origin::Kind::default_, {}, {}, {}}};
  }

  void understand(const Flag& flag, const FlagRow& row) {
    const std::string value = flag.value.value_or(""), key(row.key);
    const auto number = count_of(value, d_.engine);
    switch (row.means) {
      case FlagMeans::text:
        return d_.set(key, value, flag);
      case FlagMeans::tokens:
        if (value == "auto" || (number && *number == -1 && row.key == "max_model_len")) return;
        if (!number)
          return d_.complain(flag.place, fmt::format("'{}'", value),
                             d_.engine == EngineKind::vllm ? "a count such as 8192 or 32K" : "a count such as 8192");
        return d_.set(key, std::to_string(*number), flag);
      case FlagMeans::bytes:
        if (!number) return d_.complain(flag.place, fmt::format("'{}'", value), "bytes such as 25G");
        return d_.set(key, fmt::format("{}B", *number), flag);
      case FlagMeans::gib:
        return gib(flag, key, value);
      case FlagMeans::tensor:
      case FlagMeans::pipeline:
      case FlagMeans::data:
      case FlagMeans::expert:
        return degree(flag, row, value, number);
      case FlagMeans::all_experts:
        layout_.all_experts = true;
        d_.place["all_experts"] = flag.at;
        return;
      case FlagMeans::attention:
        layout_.attention = true;
        d_.place["attention_data"] = flag.at;
        return;
      case FlagMeans::dense:
        if (number && *number == 1) return d_.set(key, "true", flag);
        return d_.complain(flag.place, fmt::format("'{}'", value), "1 or no flag",
                           "the engine itself refuses it (sglang/srt/server_args.py check_server_args, 0.5.10)");
      case FlagMeans::copies:
        if (!number) return d_.complain(flag.place, fmt::format("'{}'", value), "a number of experts");
        if (*number > 0) d_.set(key, std::to_string(*number), flag);
        return;
      case FlagMeans::exchange:
        exchange_ = flag;
        return;
      case FlagMeans::drafts:
        drafts_ = flag;
        return;
      case FlagMeans::draft:
        return d_.set(key, value, flag);
      case FlagMeans::on:
        return d_.set(key, "true", flag);
      case FlagMeans::buffers:
        if (value == "extra_buffer") d_.set(key, "true", flag);
        return;
      case FlagMeans::shares:
        return d_.set(key, "true", flag);
      case FlagMeans::shares_not:
        return d_.set(key, "false", flag);
      case FlagMeans::sleeps:
        return d_.set(key, "1", flag);
      case FlagMeans::dtype:
        return dtype(flag, value);
      case FlagMeans::kv_dtype:
        return kv(flag, value);
      case FlagMeans::quantization:
        online_ = online_name(d_.engine, value);
        return;
      case FlagMeans::sizes:
        return sizes(flag);
      case FlagMeans::compilation:
        return read_compilation(d_, flag);
      case FlagMeans::level:
        return read_optimization_level(d_, flag);
      case FlagMeans::speculative:
        return read_speculative(d_, flag);
      case FlagMeans::modalities:
        limits_ = read_modalities(d_, flag);
        return;
      case FlagMeans::json:
        return check_json(d_, flag);
      case FlagMeans::lora:
        lora_ = flag;
        return;
      case FlagMeans::one:
      case FlagMeans::none:
        if (number && *number == (row.means == FlagMeans::one ? 1 : 0)) return;
        if (row.means == FlagMeans::none && is_default_word(value)) return;
        [[fallthrough]];
      case FlagMeans::never:
        return d_.complain(flag.place, value.empty() ? "the flag" : fmt::format("'{}'", value), "none",
                           fmt::format("not supported yet: {}", row.key));
      case FlagMeans::model:
        model_ = value;
        return;
      case FlagMeans::ignored:
      case FlagMeans::ignored_several:
      case FlagMeans::ignored_switch:
        return;
    }
  }

  void gib(const Flag& flag, const std::string& key, const std::string& value) {
    double number = -1;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc{} || end != value.data() + value.size() || !(number >= 0 && number <= 65536))
      return d_.complain(flag.place, fmt::format("'{}'", value), "GiB, such as 4");
    if (number > 0) d_.set(key, fmt::format("{}B", static_cast<Bytes>(number * static_cast<double>(kGiB))), flag);
  }

  void degree(const Flag& flag, const FlagRow& row, const std::string& value, std::optional<std::int64_t> number) {
    if (!number || *number < 1 || *number > 4096)
      return d_.complain(flag.place, fmt::format("'{}'", value), "a number of GPUs from 1 to 4096");
    std::int64_t& to = row.means == FlagMeans::tensor     ? layout_.tensor
                       : row.means == FlagMeans::pipeline ? layout_.pipeline
                       : row.means == FlagMeans::data     ? layout_.data
                                                          : layout_.expert;
    to = *number;
    d_.place[std::string(degree_name(row.means))] = flag.at;
    layout_place_ = flag.place;
  }

  void sizes(const Flag& flag) {
    std::int64_t most = 0;
    std::vector<std::string> all = flag.more;
    all.insert(all.begin(), *flag.value);
    for (const std::string& one : all) {
      const auto number = count_of(one, d_.engine);
      if (!number || *number < 1) return d_.complain(flag.place, fmt::format("'{}'", one), "batches such as 1 2 4 8");
      most = std::max(most, *number);
    }
    d_.set("graph_batch", std::to_string(most), flag);
    d_.remark(Note::Level::info, flag.place,
              "graphs are counted for all usual batches up to the largest one: a bound from above");
  }

  void dtype(const Flag& flag, const std::string& value) {
    if (value == "auto") return;
    if (value == "bfloat16") return bf16_before_ampere(flag);
    if (value == "half" || value == "float16")
      compute_ = DType::fp16;
    else if (value == "float" || value == "float32")
      compute_ = DType::fp32;
    else
      d_.complain(flag.place, fmt::format("'{}'", value), "auto, half, float16, bfloat16, float or float32", {},
                  nearest(value, {"auto", "half", "float16", "bfloat16", "float", "float32"}));
  }

  /// With auto both engines take fp16 there, which is as large (vllm/config/model.py _resolve_auto_dtype, 0.19).
  void bf16_before_ampere(const Flag& flag) {
    const Gpu& gpu = catalog_.gpu(options_.gpu.empty() ? "H100-80GB" : options_.gpu);
    const int here = compute_capability(gpu.sm);
    if (here == 0 || here >= 80) return;
    if (d_.engine == EngineKind::sglang)
      return d_.remark(Note::Level::warning, flag.place,
                       "SGLang takes float16 instead: \"Use float16 due to lack of bfloat16 support\" "
                       "(sglang/srt/model_executor/model_runner.py, 0.5.10)");
    d_.complain(flag.place, fmt::format("'bfloat16' on {}", gpu.name), "auto or half",
                "the engine itself refuses it: \"Bfloat16 is only supported on GPUs with compute capability of at least 8.0\" "
                "(vllm/platforms/cuda.py check_if_supports_dtype, 0.24)");
  }

  void kv(const Flag& flag, const std::string& value) {
    if (value == "auto") return d_.set("kv", "auto", flag);
    if (value == "fp8" || value == "fp8_e4m3" || value == "fp8_e5m2") return d_.set("kv", "fp8", flag);
    if (value == "bfloat16" || value == "bf16") return d_.set("kv", "bf16", flag);
    if (value == "float16") return d_.set("kv", "fp16", flag);
    const bool vllm = d_.engine == EngineKind::vllm;
    if (value == (vllm ? "nvfp4" : "fp4_e2m1")) return d_.set("kv", vllm ? "nvfp4" : "mxfp4", flag);
    if (vllm && (value == "fp8_per_token_head" || value == "int8_per_token_head")) {
      d_.set("kv_token_scales", "true", flag);
      return d_.set("kv", "fp8", flag);
    }
    const std::vector<std::string> known{"auto", "fp8", "fp8_e4m3", "fp8_e5m2", "bfloat16", vllm ? "nvfp4" : "fp4_e2m1"};
    d_.complain(flag.place, fmt::format("'{}'", value), fmt::format("{}", fmt::join(known, ", ")),
                "not supported yet: other formats of the cache", nearest(value, known));
  }

  void finish() {
    std::vector<Setting> first;
    const auto put = [&](std::string key, std::string text, Place place) {
      first.push_back({std::move(key), std::move(text), {Origin::Kind::override_, std::move(place), {}, {}}});
    };
    const auto outside = [](const char* path) { return Place{kCommandLine, 0, 0, path}; };
    put("gpus", fmt::format("{} x {}", layout_.world(), catalog_.gpu(options_.gpu.empty() ? "H100-80GB" : options_.gpu).name),
        outside("--gpu"));
    put("model", model_, outside(""));
    if (options_.prompt > 0) put("prompt_tokens", std::to_string(options_.prompt), outside("--prompt"));
    if (options_.response > 0) put("response_tokens", std::to_string(options_.response), outside("--response"));
    if (options_.samples > 0) put("samples_per_prompt", std::to_string(options_.samples), outside("--samples"));
    put("server.engine", fmt::format("{} {}", spelling(d_.engine), d_.version), outside("--engine-version"));
    const std::int64_t groups = attention_groups();
    // sglang/srt/server_args.py: _handle_data_parallelism (0.5.10) switches both off with one data-parallel rank
    if (d_.engine == EngineKind::sglang && layout_.data == 1) d_.settings.erase("head_by_attention");
    std::string letters = fmt::format("d{}t{}", layout_.attention ? 1 : layout_.data, layout_.tensor);
    if (layout_.pipeline > 1) letters += fmt::format("p{}", layout_.pipeline);
    const bool vllm = d_.engine == EngineKind::vllm;
    const std::int64_t experts = layout_.all_experts ? layout_.tensor * (vllm ? groups : 1) : layout_.expert;
    if (experts > 1) letters += fmt::format("e{}", experts);
    put("server.layout", letters, layout_place_);
    if (groups > 1) put("server.attention_data", std::to_string(groups), layout_place_);
    if (options_.requests > 0) put("server.concurrency", std::to_string(options_.requests), outside("--requests"));
    if (lora_) lora(*lora_);
    for (const auto& [key, setting] : d_.settings) first.push_back(setting);
    NativeText text;
    text.roles = {{RoleKind::server, {kCommandLine, 0, 0, "server"}}};
    text.settings = std::move(first);
    out_.reading = reading_of(std::move(text), kCommandLine, catalog_);
    Role& role = out_.reading.job.roles.at(0);
    role.server.weights = compute_;
    if (version_matches(d_.version, ">=0.16")) leave_out_towers(role, limits_);
    if (online_ != nullptr && role.architecture->quantization.method.empty()) {
      role.server.online = online_->format;
      if (online_->format == OnlineFormat::none) {
        Role asked = role;  // fp8 itself is a format of weights, which leaves no trace of --dtype
        asked.server.online = OnlineFormat::fp8_per_channel;
        check_kernels(asked);
        role.server.weights = DType::fp8;
      }
    }
    check_kernels(role);
    if (compute_ == DType::fp32)  // which was not there when the others were told
      if (std::string remark = first_engine_remark(d_.engine, role.server, catalog_.gpu(out_.reading.job.cluster.gpu).sm);
          !remark.empty() && !role.server.first_engine)
        d_.remark(Note::Level::warning, outside("--dtype"), std::move(remark));
    out_.reading.notes.insert(out_.reading.notes.begin(), d_.notes.begin(), d_.notes.end());
  }

  /// The formats that --dtype and --quantization come to were not there when the rest was checked.
  void check_kernels(const Role& role) {
    for (const KernelNeed* need : broken_needs(role, catalog_.gpu(out_.reading.job.cluster.gpu).sm)) {
      const Flag* const dtype = d_.find("dtype");
      const Flag* const at = dtype != nullptr ? dtype : d_.find("quantization");
      const Place place = at != nullptr ? at->place : Place{kCommandLine, 0, 0, "server"};
      d_.complain(place, at != nullptr ? fmt::format("'{}'", at->value.value_or("")) : "the model", std::string(need->expected),
                  std::string(need->why));
    }
    if (!d_.problems.empty()) throw InputError(d_.problems);
  }

  /// Steps and tokens of drafts count with an algorithm alone; where it has none of its own numbers, SGLang takes three steps and
  /// verifies four tokens, and without branches one token more than steps (sglang/srt/server_args.py
  /// _handle_speculative_decoding and auto_choose_speculative_params, 0.5.10).
  void drafts() {
    if (d_.engine != EngineKind::sglang) return;
    const std::string method = drafts_ ? drafts_->value.value_or("") : "None";
    if (method == "None" || method.empty()) {
      for (const char* const key : {"draft_tokens", "draft_steps", "draft_branches", "draft_model"})
        if (const auto found = d_.settings.find(key); found != d_.settings.end()) {
          d_.remark(Note::Level::warning, found->second.origin.place, "without --speculative-algorithm it has no effect");
          d_.settings.erase(found);
        }
      return;
    }
    const bool head = method == "EAGLE3" || (method == "EAGLE" && d_.settings.contains("draft_model"));
    if (!head && method != "EAGLE" && method != "NEXTN")
      return d_.complain(drafts_->place, fmt::format("'{}'", method), "NEXTN, EAGLE or EAGLE3",
                         "not supported yet: whole models as drafts, and drafts that are looked up in the prompt");
    if (!head && d_.settings.contains("draft_model"))
      return d_.complain(drafts_->place, "'NEXTN' with a draft's checkpoint", "NEXTN alone, or EAGLE or EAGLE3",
                         "not supported yet: MTP blocks of another checkpoint");
    if (head && !d_.settings.contains("draft_model"))
      return d_.complain(drafts_->place, fmt::format("'{}'", method), "--speculative-draft-model-path beside it",
                         "EAGLE-3 drafts with a checkpoint of its own");
    if (head) d_.set("draft_method", method == "EAGLE3" ? "eagle3" : "eagle", *drafts_);
    const auto number = [&](const char* key) {
      const auto found = d_.settings.find(key);
      return found == d_.settings.end() ? std::int64_t{0} : count_of(found->second.text, d_.engine).value_or(0);
    };
    const std::int64_t steps = number("draft_steps") > 0 ? number("draft_steps") : 3;
    const bool branches = number("draft_branches") > 1;
    if (!branches || number("draft_tokens") == 0) d_.set("draft_tokens", std::to_string(steps + 1), *drafts_);
  }

  /// Groups that share the experts: vLLM's data-parallel ranks of a model that has some, SGLang's of its attention.
  std::int64_t attention_groups() const {
    if (d_.engine == EngineKind::sglang) return layout_.attention ? layout_.data : 1;
    return has_experts() ? layout_.data : 1;
  }
  bool has_experts() const {
    try {
      const auto model = catalog_.model(model_).architecture;
      return std::any_of(model->runs.begin(), model->runs.end(),
                         [](const LayerRun& run) { return run.layer.feed_forward.experts > 0; });
    } catch (const InputError&) {
      return false;  // told elsewhere
    }
  }

  /// Buffers of DeepEP, pplx, MoRI, NIXL and FlashInfer are theirs to size. vLLM uses them where data-parallel ranks share whole
  /// experts (vllm/model_executor/layers/fused_moe/config.py use_all2all_kernels, 0.9.2), SGLang wherever one is named.
  void exchange() {
    const bool vllm = d_.engine == EngineKind::vllm;
    const auto variable = d_.variables.find("VLLM_ALL2ALL_BACKEND");
    const bool set = vllm && variable != d_.variables.end();
    if (!exchange_ && !set) return;
    const std::string value = exchange_ ? exchange_->value.value_or("") : variable->second.text;
    if (value == "none" || value == "naive" || value == "allgather_reducescatter") return;
    if (vllm && (attention_groups() == 1 || !layout_.all_experts)) return;
    if (!vllm && value == "deepep") {
      const Flag* const mode = d_.find("deepep-mode");
      const std::string said = mode != nullptr ? mode->value.value_or("") : "auto";
      if (said != "auto" && said != "normal" && said != "low_latency")
        return d_.complain(mode->place, fmt::format("'{}'", said), "auto, normal or low_latency");
      layout_.all_experts = true;  // whatever --ep-size says
      return d_.set("exchange", said == "auto" ? "deepep" : "deepep_" + said, *exchange_);
    }
    d_.complain(exchange_ ? exchange_->place : variable->second.place, fmt::format("'{}'", value),
                vllm ? "allgather_reducescatter" : "deepep or none", fmt::format("not supported yet: buffers of {}", value));
  }

  /// Room for adapters, with each engine's own numbers where the command line has none.
  void lora(const Flag& flag) {
    const bool vllm = d_.engine == EngineKind::vllm;
    if (!d_.place.contains("lora.slots")) d_.set("lora.slots", vllm ? "1" : "8", flag);
    if (d_.place.contains("lora.rank")) return;
    if (vllm)
      d_.set("lora.rank", "16", flag);
    else
      throw InputError(
          Problem{{kCommandLine, 0, 0, "--max-lora-rank"}, "nothing", "a rank", "", "SGLang reads it from the adapters"});
  }

  const std::vector<std::string>& words_;
  const ServeOptions& options_;
  const Catalog& catalog_;
  ServeCommand out_;
  ServeDraft d_;
  std::vector<Word> line_;
  std::vector<std::string> order_;  ///< usual spellings, as their last ones come
  std::string model_;
  ServeLayout layout_;
  Place layout_place_{kCommandLine, 0, 0, "layout"};
  Modalities limits_;
  const OnlineName* online_ = nullptr;  ///< of --quantization
  DType compute_ = DType::bf16;
  std::optional<Flag> lora_, exchange_, drafts_;
};

}  // namespace

ServeCommand read_serve_command(const std::vector<std::string>& words, const ServeOptions& options, const Catalog& catalog) {
  return CommandReader(words, options, catalog).read();
}

std::vector<std::string> without_switches(const ServeCommand& command, const std::vector<std::string>& keys) {
  std::vector<std::size_t> places;
  for (const std::string& key : keys)
    if (const auto given = command.place.find(key); given != command.place.end() && given->second != kNotInCommand)
      places.push_back(given->second);
  std::sort(places.rbegin(), places.rend());
  std::vector<std::string> out = command.words;
  for (const std::size_t place : places) out.erase(out.begin() + static_cast<std::ptrdiff_t>(place));
  return out;
}

std::vector<std::string> with_flag(const ServeCommand& command, std::string_view key, std::string_view value) {
  std::vector<std::string> out = command.words;
  const auto rows = serve_flags(command.engine);
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const FlagRow& r) { return r.key == key || degree_name(r.means) == key; });
  if (row == rows.end()) return {};
  const std::string flag = "--" + std::string(usual_of(*row));
  const auto given = command.place.find(std::string(key));
  if (given == command.place.end() || given->second == kNotInCommand) {
    out.push_back(flag);
    if (!is_switch(row->means)) out.emplace_back(value);
    return out;
  }
  std::string& word = out[given->second];
  if (is_switch(row->means)) return out;
  if (const std::size_t sign = word.find('='); sign != std::string::npos)
    word.replace(sign + 1, std::string::npos, value);
  else if (given->second + 1 < out.size())
    out[given->second + 1] = value;
  return out;
}

}  // namespace oomplan
