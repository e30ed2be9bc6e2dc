#include "frontends/serve_command.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>

#include "frontends/native.hpp"
#include "frontends/serve_flags.hpp"
#include "job/names.hpp"
#include "units/enums.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

constexpr const char* kFile = "command line";

/// vLLM's counts: "32k" is 32,000 and "32K" 32,768; both engines take plain numbers. Nothing for what is no count.
std::optional<std::int64_t> count_of(std::string_view text) {
  double scale = 1;
  if (!text.empty()) {
    const char last = text.back();
    const auto step = std::string_view("kmgt").find(static_cast<char>(std::tolower(static_cast<unsigned char>(last))));
    if (step != std::string_view::npos) {
      const double base = std::isupper(static_cast<unsigned char>(last)) != 0 ? 1024 : 1000;
      scale = std::pow(base, static_cast<double>(step + 1));
      text.remove_suffix(1);
    }
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(std::abs(value * scale) < 1e15)) return std::nullopt;
  return static_cast<std::int64_t>(std::llround(value * scale));
}

/// One flag as it was written.
struct Flag {
  std::string written;  ///< "--max-model-len"
  std::string name;     ///< without dashes, '_' as '-'
  std::optional<std::string> value;
  std::size_t at = 0, value_at = 0;  ///< in the words; equal for --flag=value
};

class Reader {
 public:
  Reader(const std::vector<std::string>& words, std::string_view version, std::string_view gpu, const Catalog& catalog)
      : words_(words), version_(version), gpu_(gpu), catalog_(catalog) {}

  ServeCommand read() {
    out_.words = words_;
    const std::size_t first = program();
    const auto rows = serve_flags(out_.engine);
    for (std::size_t i = first; i < words_.size();) i = word(i, rows);
    if (model_.empty()) complain("", "no model", "the model behind the program, or its flag");
    if (!problems_.empty()) throw InputError(problems_);
    finish();
    return std::move(out_);
  }

 private:
  void complain(std::string where, std::string found, std::string expected, std::string why = {}, std::string near = {}) {
    problems_.push_back(
        {{kFile, 0, 0, std::move(where)}, std::move(found), std::move(expected), std::move(near), std::move(why)});
  }
  void remark(Note::Level level, const std::string& where, std::string text) {
    notes_.push_back({level, {kFile, 0, 0, where}, std::move(text)});
  }
  void set(std::string_view key, std::string text, const Flag& flag) {
    settings_.push_back(
        {"server." + std::string(key), std::move(text), {Origin::Kind::override_, {kFile, 0, 0, flag.written}, {}, {}}});
    out_.place[std::string(key)] = flag.at;
  }

  /// Variables, then the program; where its arguments begin.
  std::size_t program() {
    std::size_t i = 0;
    for (; i < words_.size() && is_variable(words_[i]); ++i) variable(words_[i]);
    const auto at = [&](std::size_t n) { return i + n < words_.size() ? std::string_view(words_[i + n]) : std::string_view(); };
    const std::string_view name = at(0).substr(at(0).rfind('/') == std::string_view::npos ? 0 : at(0).rfind('/') + 1);
    if (name == "vllm" && at(1) == "serve") return out_.engine = EngineKind::vllm, i + 2;
    if (name == "sglang" && at(1) == "serve") return out_.engine = EngineKind::sglang, i + 2;
    if (name.starts_with("python") && at(1) == "-m") {
      if (at(2) == "sglang.launch_server") return out_.engine = EngineKind::sglang, i + 3;
      if (at(2) == "vllm.entrypoints.openai.api_server") return out_.engine = EngineKind::vllm, i + 3;
    }
    complain("",
             fmt::format("'{}'", fmt::join(std::vector<std::string>(
                                               words_.begin() + static_cast<std::ptrdiff_t>(std::min(i, words_.size())),
                                               words_.begin() + static_cast<std::ptrdiff_t>(std::min(i + 3, words_.size()))),
                                           " ")),
             "vllm serve MODEL ..., or python -m sglang.launch_server --model-path MODEL ...");
    throw InputError(problems_);
  }

  static bool is_variable(std::string_view word) {
    const std::size_t sign = word.find('=');
    if (sign == std::string_view::npos || sign == 0 || word[0] == '-') return false;
    return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(sign),
                       [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  }

  void variable(const std::string& word) {
    const std::string name = word.substr(0, word.find('=')), value = word.substr(name.size() + 1);
    if (name == "VLLM_USE_V1" && value == "0")
      complain(name, "0", "1", "not supported yet: the first engine in a release that has the second; name an older release");
    else if (name.starts_with("VLLM_") || name.starts_with("SGLANG_") || name == "PYTORCH_CUDA_ALLOC_CONF")
      remark(Note::Level::info, name, "not looked at");
  }

  std::size_t word(std::size_t i, std::span<const FlagRow> rows) {
    const std::string& text = words_[i];
    if (text.size() < 2 || text[0] != '-') {
      if (model_.empty() && out_.engine == EngineKind::vllm)
        model_ = text;
      else
        complain("", fmt::format("'{}'", text), "a flag");
      return i + 1;
    }
    Flag flag;
    flag.at = flag.value_at = i;
    flag.written = text.substr(0, text.find('='));
    flag.name = flag.written.substr(flag.written.starts_with("--") ? 2 : 1);
    std::replace(flag.name.begin(), flag.name.end(), '_', '-');
    if (flag.written.size() < text.size()) flag.value = text.substr(flag.written.size() + 1);
    const FlagRow* const row = find(rows, flag.name);
    const bool follows =
        i + 1 < words_.size() && (words_[i + 1].size() < 2 || words_[i + 1][0] != '-' || is_number(words_[i + 1]));
    const bool takes = row == nullptr ? follows : !is_switch(row->means);
    if (!flag.value && takes && follows) {
      flag.value = words_[i + 1];
      flag.value_at = i + 1;
    }
    const std::size_t next = std::max(flag.at, flag.value_at) + 1;
    if (row == nullptr) {
      unknown_flag(flag, rows);
    } else if (takes && !flag.value) {
      complain(flag.written, "nothing behind it", "a value");
    } else {
      understand(flag, *row);
    }
    return next;
  }

  static bool is_number(std::string_view text) { return count_of(text).has_value(); }

  static const FlagRow* find(std::span<const FlagRow> rows, std::string_view name) {
    for (const FlagRow& row : rows) {
      std::string_view left = row.flags;
      while (!left.empty()) {
        const std::string_view one = left.substr(0, left.find('|'));
        if (one == name) return &row;
        left.remove_prefix(std::min(one.size() + 1, left.size()));
      }
    }
    return nullptr;
  }

  void unknown_flag(const Flag& flag, std::span<const FlagRow> rows) {
    std::vector<std::string> names;
    for (const FlagRow& row : rows) names.emplace_back(row.flags.substr(0, row.flags.find('|')));
    const std::string near = nearest(flag.name, names);
    remark(Note::Level::warning, flag.written,
           "not known: taken as without effect on memory" + (near.empty() ? "" : fmt::format("; did you mean --{}?", near)));
  }

  void understand(const Flag& flag, const FlagRow& row) {
    const std::string value = flag.value.value_or("");
    const auto number = count_of(value);
    switch (row.means) {
      case FlagMeans::text:
        return set(row.key, value, flag);
      case FlagMeans::tokens:
        if (value == "auto" || (number && *number == -1 && row.key == "max_model_len")) return;
        if (!number) return complain(flag.written, fmt::format("'{}'", value), "a count such as 8192 or 32K");
        return set(row.key, std::to_string(*number), flag);
      case FlagMeans::bytes:
        if (!number) return complain(flag.written, fmt::format("'{}'", value), "bytes such as 25G");
        return set(row.key, fmt::format("{}B", *number), flag);
      case FlagMeans::tensor:
      case FlagMeans::pipeline:
      case FlagMeans::data:
      case FlagMeans::expert:
        return degree(flag, row, value, number);
      case FlagMeans::all_experts:
        all_experts_ = true;
        return;
      case FlagMeans::on:
        return set(row.key, "true", flag);
      case FlagMeans::sleeps:
        return set(row.key, "1", flag);
      case FlagMeans::dtype:
        return dtype(flag, value);
      case FlagMeans::kv_dtype:
        return kv(flag, value);
      case FlagMeans::quantization:
        if (value == "fp8") online_fp8_ = true;
        return;
      case FlagMeans::speculative:
        return speculative(flag, value);
      case FlagMeans::lora:
        lora_ = flag;
        return;
      case FlagMeans::one:
      case FlagMeans::none:
        if (number && *number == (row.means == FlagMeans::one ? 1 : 0)) return;
        [[fallthrough]];
      case FlagMeans::never:
        return complain(flag.written, value.empty() ? "the flag" : fmt::format("'{}'", value), "none",
                        fmt::format("not supported yet: {}", row.key));
      case FlagMeans::model:
        model_ = value;
        return;
      case FlagMeans::ignored:
      case FlagMeans::ignored_switch:
        return;
    }
  }

  void degree(const Flag& flag, const FlagRow& row, const std::string& value, std::optional<std::int64_t> number) {
    if (!number || *number < 1 || *number > 4096)
      return complain(flag.written, fmt::format("'{}'", value), "a number of GPUs from 1 to 4096");
    std::int64_t& to = row.means == FlagMeans::tensor     ? tensor_
                       : row.means == FlagMeans::pipeline ? pipeline_
                       : row.means == FlagMeans::data     ? data_
                                                          : expert_;
    to = *number;
    out_.place[row.means == FlagMeans::tensor ? "tensor" : "layout"] = flag.at;
    layout_ = flag;
  }

  void dtype(const Flag& flag, const std::string& value) {
    if (value == "auto" || value == "bfloat16") return;
    if (value == "half" || value == "float16")
      compute_ = DType::fp16;
    else if (value == "float" || value == "float32")
      compute_ = DType::fp32;
    else
      complain(flag.written, fmt::format("'{}'", value), "auto, half, float16, bfloat16, float or float32");
  }

  void kv(const Flag& flag, const std::string& value) {
    if (value == "auto") return;
    if (value.starts_with("fp8")) return set("kv", "fp8", flag);
    if (value == "bfloat16" || value == "bf16") return set("kv", "bf16", flag);
    if (value == "float16") return set("kv", "fp16", flag);
    complain(flag.written, fmt::format("'{}'", value), "auto, fp8, fp8_e4m3, fp8_e5m2, bfloat16 or float16",
             "not supported yet: other formats of the cache");
  }

  void speculative(const Flag& flag, const std::string& value) {
    const auto config = nlohmann::json::parse(value, nullptr, false);
    const auto method = config.is_object() && config.contains("method") && config["method"].is_string()
                            ? config["method"].get<std::string>()
                            : std::string();
    if (method != "mtp" && !method.ends_with("_mtp"))
      return complain(flag.written, fmt::format("'{}'", value), R"({"method": "mtp", "num_speculative_tokens": 1})",
                      "not supported yet: drafts that are not the model's own MTP blocks");
    const auto ahead = config.contains("num_speculative_tokens") ? config["num_speculative_tokens"] : nlohmann::json(1);
    if (!ahead.is_number_integer()) return complain(flag.written, ahead.dump(), "num_speculative_tokens as a whole number");
    set("draft_tokens", ahead.dump(), flag);
  }

  void finish() {
    const Flag shell{"", "", {}, 0, 0};
    const auto known = catalog_.facts().known_versions(spelling(out_.engine));
    const std::string version = version_.empty() && !known.empty() ? known.back() : std::string(version_);
    if (version_.empty()) remark(Note::Level::info, "--engine-version", fmt::format("not said: {}", version));
    std::vector<Setting> first;
    const auto put = [&](std::string key, std::string text, const std::string& where) {
      first.push_back({std::move(key), std::move(text), {Origin::Kind::override_, {kFile, 0, 0, where}, {}, {}}});
    };
    put("gpus", fmt::format("{} x {}", tensor_ * pipeline_ * data_, catalog_.gpu(gpu_.empty() ? "H100-80GB" : gpu_).name),
        "--gpu");
    put("model", model_, "");
    put("server.engine", fmt::format("{} {}", spelling(out_.engine), version), "--engine-version");
    std::string layout = fmt::format("d{}t{}", data_, tensor_);
    if (pipeline_ > 1) layout += fmt::format("p{}", pipeline_);
    const std::int64_t experts = all_experts_ ? tensor_ : expert_;
    if (experts > 1) layout += fmt::format("e{}", experts);
    put("server.layout", layout, layout_.written);
    if (lora_) lora(*lora_);
    first.insert(first.end(), settings_.begin(), settings_.end());
    NativeText text;
    text.roles = {{RoleKind::server, {kFile, 0, 0, "server"}}};
    text.settings = std::move(first);
    out_.reading = reading_of(std::move(text), kFile, catalog_);
    Role& role = out_.reading.job.roles.at(0);
    role.server.weights = compute_;
    if (online_fp8_ && role.architecture->quantization.method.empty()) role.server.weights = DType::fp8;
    out_.reading.notes.insert(out_.reading.notes.begin(), notes_.begin(), notes_.end());
  }

  /// Room for adapters, with each engine's own numbers where the command line has none.
  void lora(const Flag& flag) {
    const bool vllm = out_.engine == EngineKind::vllm;
    if (!out_.place.contains("lora.slots")) set("lora.slots", vllm ? "1" : "8", flag);
    if (out_.place.contains("lora.rank")) return;
    if (vllm)
      set("lora.rank", "16", flag);
    else
      throw InputError(Problem{{kFile, 0, 0, "--max-lora-rank"}, "nothing", "a rank", "", "SGLang reads it from the adapters"});
  }

  const std::vector<std::string>& words_;
  std::string_view version_, gpu_;
  const Catalog& catalog_;
  ServeCommand out_;
  std::string model_;
  std::int64_t tensor_ = 1, pipeline_ = 1, data_ = 1, expert_ = 1;
  bool all_experts_ = false, online_fp8_ = false;
  DType compute_ = DType::bf16;
  Flag layout_;
  std::optional<Flag> lora_;
  std::vector<Setting> settings_;
  std::vector<Problem> problems_;
  std::vector<Note> notes_;
};

}  // namespace

ServeCommand read_serve_command(const std::vector<std::string>& words, std::string_view version, std::string_view gpu,
                                const Catalog& catalog) {
  return Reader(words, version, gpu, catalog).read();
}

std::vector<std::string> with_flag(const ServeCommand& command, std::string_view key, std::string_view value) {
  std::vector<std::string> out = command.words;
  const auto rows = serve_flags(command.engine);
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const FlagRow& r) {
    return r.key == key || (key == "tensor" && r.means == FlagMeans::tensor);
  });
  if (row == rows.end()) return {};
  const std::string flag = "--" + std::string(row->flags.substr(0, row->flags.find('|')));
  const auto given = command.place.find(std::string(key));
  if (given == command.place.end()) {
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
