#include "catalog/quantization.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <regex>
#include <utility>

#include "catalog/fields.hpp"

namespace oomplan {
namespace {

constexpr Limits kBits{1, 32};
constexpr Limits kGroup{-1, 1 << 20};
constexpr std::size_t kLongestPattern = 256;

// ---- names

std::string_view without_owner(std::string_view name) {
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view prefix : {"model.", "language_model.", "text_model.", "transformer."}) {
      if (!name.starts_with(prefix)) continue;
      name.remove_prefix(prefix.size());
      found = true;
    }
  }
  return name;
}

bool matches_glob(std::string_view glob, std::string_view text) {
  std::size_t g = 0, t = 0, star = std::string_view::npos, back = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      back = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++back;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

/// Whole dotted parts of `text` that read `parts`.
bool holds_parts(std::string_view text, std::string_view parts) {
  if (parts.empty()) return false;
  for (std::size_t at = text.find(parts); at != std::string_view::npos; at = text.find(parts, at + 1)) {
    const std::size_t end = at + parts.size();
    if ((at == 0 || text[at - 1] == '.') && (end == text.size() || text[end] == '.')) return true;
  }
  return false;
}

/// libstdc++ backtracks otherwise: "(.|.)(.|.)(.|.)..." takes twice as long with every group. libc++ gives up by itself.
#ifdef _GLIBCXX_RELEASE
constexpr auto kSyntax = std::regex::ECMAScript | std::regex::optimize | std::regex_constants::__polynomial;
#else
constexpr auto kSyntax = std::regex::ECMAScript | std::regex::optimize;
#endif

/// Whether counted repetitions stay few, in each other as well: each is written out.
bool repeats_little(std::string_view pattern) {
  constexpr std::size_t kMost = 256;
  std::size_t product = 1;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '{' && pattern[i] != ',') continue;
    std::size_t n = 0;
    for (++i; i < pattern.size() && std::isdigit(static_cast<unsigned char>(pattern[i])) != 0 && n <= kMost; ++i)
      n = n * 10 + static_cast<std::size_t>(pattern[i] - '0');
    product *= std::max<std::size_t>(n, 1);
    if (product > kMost) return false;
    --i;
  }
  return true;
}

/// Patterns that are answered soon: short, and no repetition of a group.
bool is_harmless(std::string_view pattern) {
  if (pattern.size() > kLongestPattern || std::count(pattern.begin(), pattern.end(), '*') > 6) return false;
  if (!repeats_little(pattern)) return false;
  for (std::size_t i = 0; i + 1 < pattern.size(); ++i)
    if (pattern[i] == ')' && (pattern[i + 1] == '*' || pattern[i + 1] == '+' || pattern[i + 1] == '{')) return false;
  return true;
}

/// compressed-tensors matches from the start of the module's name and not to its end (Python's re.match).
bool opens(const std::regex& expression, std::string_view module) {
  const auto at_start = [&](std::string_view text) {
    return std::regex_search(text.begin(), text.end(), expression, std::regex_constants::match_continuous);
  };
  const std::string bare(without_owner(module));
  try {
    return at_start(module) || at_start(bare) || at_start("model." + bare);
  } catch (const std::regex_error&) {
    return false;  // too many steps
  }
}

/// Nothing where the expression is wrong or could take long.
std::optional<std::regex> compiled(std::string_view pattern) {
  if (!pattern.starts_with("re:") || !is_harmless(pattern.substr(3))) return std::nullopt;
  try {
    return std::regex(pattern.begin() + 3, pattern.end(), kSyntax);
  } catch (const std::regex_error&) {
    return std::nullopt;
  }
}

bool matches(std::string_view pattern, const std::optional<std::regex>& expression, std::string_view module) {
  if (pattern.starts_with("re:")) return expression && opens(*expression, module);
  if (pattern.find('*') != std::string_view::npos)
    return matches_glob(pattern, module) || matches_glob(without_owner(pattern), without_owner(module));
  return holds_parts(without_owner(module), without_owner(pattern));
}

/// Modules that one checkpoint stores apart and another as one matrix: the parts carry the same format.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kParts{{
    {"in_proj_qkvz", "in_proj_qkv"},
    {"in_proj_qkvz", "in_proj_z"},
    {"in_proj_ba", "in_proj_b"},
    {"qkv_proj", "q_proj"},
    {"gate_up_proj", "gate_proj"},
    {"gate_up_proj", "up_proj"},
    {"q_proj", "qkv_proj"},
    {"gate_proj", "gate_up_proj"},
}};

// ---- formats

WeightFormat grouped(DType dtype, std::int64_t group, std::int64_t scale_bits, bool zero_points = false) {
  WeightFormat out{dtype};
  out.group = group;
  out.scale_bits = scale_bits;
  out.zero_points = zero_points;
  out.per_row = group <= 0;
  if (group < 0) out.group = 0;
  return out;
}

WeightFormat rowwise(DType dtype) {
  WeightFormat out{dtype};
  out.per_row = true;
  return out;
}

WeightFormat blocked(DType dtype, std::int64_t block) {
  WeightFormat out{dtype};
  out.block = block;
  return out;
}

/// The words of modelopt: FP8, NVFP4, W4A16_AWQ, ...; false for others.
bool format_of_word(std::string word, std::int64_t group, WeightFormat& out) {
  for (char& c : word) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (word == "FP8") return out = WeightFormat{DType::fp8}, true;
  if (word == "FP8_PER_CHANNEL_PER_TOKEN") return out = rowwise(DType::fp8), true;
  if (word == "FP8_PB_WO") return out = blocked(DType::fp8, 128), true;
  if (word.starts_with("NVFP4") || word == "W4A16_NVFP4") return out = grouped(DType::nvfp4, group > 0 ? group : 16, 8), true;
  if (word.starts_with("MXFP4") || word == "W4A8_MXFP4_FP8") return out = grouped(DType::mxfp4, group > 0 ? group : 32, 8), true;
  if (word.starts_with("MXFP8")) return out = grouped(DType::fp8, 32, 8), true;
  return false;
}

/// The object `weights` of a group of compressed-tensors or modelopt; false when it is not described.
bool format_of_scheme(const Fields& weights, WeightFormat& out) {
  const std::int64_t bits = weights.integer("num_bits", kBits);
  const std::int64_t group = weights.integer_or("group_size", 0, kGroup);
  const std::string type = weights.text_or("type", "int"), strategy = weights.text_or("strategy", "");
  const bool floating = type == "float";
  if (bits == 8 && strategy == "block") {
    const auto block = weights.integers("block_structure", {1, 1 << 20});
    if (block.size() != 2 || block[0] != block[1]) return false;
    return out = blocked(DType::fp8, block[0]), true;
  }
  if (bits == 8 && group > 0) return out = grouped(floating ? DType::fp8 : DType::int8, group, floating ? 8 : 16), true;
  if (bits == 8 && (strategy == "channel" || !floating)) return out = rowwise(floating ? DType::fp8 : DType::int8), true;
  if (bits == 8) return out = WeightFormat{DType::fp8}, true;
  if (bits != 4) return false;
  if (!floating) return out = grouped(DType::int4, group, 16, !weights.flag_or("symmetric", true)), true;
  if (group == 16) return out = grouped(DType::nvfp4, 16, 8), true;
  if (group == 32) return out = grouped(DType::mxfp4, 32, 8), true;
  return false;
}

std::vector<std::string> patterns(const Fields& config, std::string_view key) {
  return config.has(key) && config.is_list(key) ? config.texts(key) : std::vector<std::string>{};
}

void append(std::vector<std::string>& to, std::vector<std::string> more) {
  for (std::string& one : more) to.push_back(std::move(one));
}

bool read_groups(const Fields& config, Quantization& out) {
  const auto groups = config.object_if("config_groups");
  if (!groups) return false;
  for (const std::string& key : groups->keys()) {
    const Fields group = groups->object(key);
    const auto weights = group.object_if("weights");
    if (!weights) continue;
    QuantizedModules part;
    if (!format_of_scheme(*weights, part.format)) return false;
    part.targets = patterns(group, "targets");
    if (part.targets.empty()) part.targets = {"Linear"};
    out.parts.push_back(std::move(part));
  }
  return !out.parts.empty();
}

void read_modelopt(const Fields& config, Quantization& out) {
  const std::int64_t group = config.integer_or("group_size", 0, kGroup);
  if (const auto layers = config.object_if("quantized_layers")) {
    for (const std::string& key : layers->keys()) {
      const Fields one = layers->object(key);
      QuantizedModules part;
      if (!format_of_word(one.text_or("quant_algo", ""), one.integer_or("group_size", group, kGroup), part.format)) {
        out.parts.clear();
        return;
      }
      part.targets = {key};
      out.parts.push_back(std::move(part));
    }
    return;
  }
  WeightFormat format;
  if (format_of_word(config.text_or("quant_algo", ""), group, format)) {
    out.parts.push_back({format, {"Linear"}});
    return;
  }
  if (!read_groups(config, out)) out.parts.clear();
}

void read_int4(const Fields& config, Quantization& out, bool zero_points) {
  const std::int64_t bits = config.integer_or(config.has("bits") ? "bits" : "w_bit", 4, kBits);
  const std::int64_t group = config.integer_or(config.has("group_size") ? "group_size" : "q_group_size", 128, kGroup);
  if (bits != 4 && bits != 8) return;
  out.parts.push_back({grouped(bits == 4 ? DType::int4 : DType::int8, group, 16, zero_points), {"Linear"}});
}

/// Rules of GPTQ per module: "-:expression" leaves modules in 16 bits; any other rule is not described.
void read_rules(const Fields& config, Quantization& out) {
  const auto rules = config.object_if("dynamic");
  if (!rules) return;
  for (const std::string& key : rules->keys()) {
    if (!key.starts_with("-:")) return out.parts.clear();
    out.ignored.push_back("re:" + key.substr(2));
  }
}

void read_fp8(const Fields& config, Quantization& out) {
  WeightFormat format{DType::fp8};
  if (config.has("weight_block_size")) {
    const auto block = config.integers("weight_block_size", {1, 1 << 20});
    if (block.size() != 2 || block[0] != block[1]) return;
    format.block = block[0];
  }
  out.parts.push_back({format, {"Linear"}});
}

void read_bitsandbytes(const Fields& config, Quantization& out) {
  if (!config.flag_or("load_in_4bit", false)) {
    if (config.flag_or("load_in_8bit", false)) out.parts.push_back({rowwise(DType::int8), {"Linear"}});
    return;
  }
  const bool twice = config.flag_or("bnb_4bit_use_double_quant", false);
  out.parts.push_back({grouped(DType::nf4, 64, twice ? 8 : 32), {"Linear"}});
}

/// What keys and values are stored in: a word (FP8, NVFP4), or a scheme of 8 or 4 floating bits, as ModelOpt and
/// compressed-tensors write it. A part with the target kv_cache, which no module is named; servers read it
/// (inference/cache_format.cpp).
void read_cache(const Fields& config, Quantization& out) {
  const auto put = [&](DType format) { out.parts.push_back({WeightFormat{format}, {"kv_cache"}}); };
  if (config.has("kv_cache_scheme") && config.is_object("kv_cache_scheme")) {
    const Fields scheme = config.object("kv_cache_scheme");
    const std::int64_t bits = scheme.integer_or("num_bits", 0, {0, 32});
    if (scheme.text_or("type", "float") == "float" && (bits == 8 || bits == 4)) put(bits == 8 ? DType::fp8 : DType::nvfp4);
    return;
  }
  for (const std::string_view key : {"kv_cache_scheme", "kv_cache_quant_algo"}) {
    if (!config.has(key) || !config.is_text(key)) continue;
    std::string word = config.text_or(key, "");
    for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (word == "fp8" || word == "nvfp4") put(word == "fp8" ? DType::fp8 : DType::nvfp4);
    return;
  }
}

}  // namespace

Bytes stored_bytes(const WeightFormat& f, std::int64_t rows, std::int64_t columns) {
  Bytes out = bytes_of(rows * columns, f.dtype);
  if (row(f.dtype).bits > 8) return out;
  if (f.group > 0) {
    // bitsandbytes cuts a whole matrix into blocks, the others every row
    const std::int64_t groups = f.dtype == DType::nf4 ? ceil_div(rows * columns, f.group) : rows * ceil_div(columns, f.group);
    return out + ceil_div(groups * (f.scale_bits + (f.zero_points ? row(f.dtype).bits : 0)), 8);
  }
  if (f.block > 0) return out + ceil_div(rows, f.block) * ceil_div(columns, f.block) * 4;
  return out + (f.per_row ? rows * (f.scale_bits > 0 ? f.scale_bits / 8 : 4) : 4);
}

bool names_module(std::string_view pattern, std::string_view module) { return matches(pattern, compiled(pattern), module); }

struct ModuleFormats::Pattern {
  std::string text;
  std::optional<std::regex> expression;
  explicit Pattern(std::string_view pattern) : text(pattern), expression(compiled(pattern)) {}

  bool names(std::string_view module) const {
    if (matches(text, expression, module)) return true;
    const std::size_t dot = module.rfind('.');
    const std::string_view owner = module.substr(0, dot == std::string_view::npos ? 0 : dot + 1);
    for (const auto& [whole, part] : kParts)
      if (module.substr(owner.size()) == whole && matches(text, expression, std::string(owner) + std::string(part))) return true;
    return false;
  }
};

struct ModuleFormats::Target {
  Pattern pattern;
  const WeightFormat* format;
};

ModuleFormats::ModuleFormats(const Quantization& q) {
  for (const std::string& pattern : q.ignored) ignored_.emplace_back(pattern);
  for (const QuantizedModules& part : q.parts)
    for (const std::string& target : part.targets) targets_.push_back({Pattern(target), &part.format});
}
ModuleFormats::~ModuleFormats() = default;

const WeightFormat* ModuleFormats::of(std::string_view module, bool expert, bool head) const {
  for (const Pattern& pattern : ignored_)
    if (pattern.names(module)) return nullptr;
  const WeightFormat* any = nullptr;
  for (const Target& target : targets_) {
    if (target.pattern.text == "Linear") {
      if (!head) any = target.format;
    } else if (target.pattern.text == "experts" ? expert : target.pattern.names(module)) {
      return target.format;
    }
  }
  return any;
}

Quantization read_quantization(const Fields& outer) {
  const auto inner = outer.object_if("quantization");
  const Fields& config = inner ? *inner : outer;  // modelopt's hf_quant_config.json
  Quantization out;
  out.method = config.text_or("quant_method", config.text_or("quant_algo", "unnamed"));
  for (const std::string_view key :
       {"ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules"})
    append(out.ignored, patterns(config, key));
  const std::string& method = out.method;
  if (config.has("quant_algo") || method == "modelopt" || method == "modelopt_fp4") {
    read_modelopt(config, out);
  } else if (method == "compressed-tensors" || method == "compressed_tensors") {
    if (!read_groups(config, out)) out.parts.clear();
  } else if (method == "fp8") {
    read_fp8(config, out);
  } else if (method == "fbgemm_fp8") {
    out.parts.push_back({rowwise(DType::fp8), {"Linear"}});
  } else if (method == "mxfp4") {
    out.parts.push_back({grouped(DType::mxfp4, 32, 8), {"experts"}});
  } else if (method == "awq") {
    read_int4(config, out, config.flag_or("zero_point", true));
  } else if (method == "gptq") {
    read_int4(config, out, true);  // also where they are symmetric: Machete leaves the checkpoint's qzeros where they are
    read_rules(config, out);
  } else if (method == "bitsandbytes") {
    read_bitsandbytes(config, out);
  }
  if (!out.parts.empty()) read_cache(config, out);
  return out;
}

}  // namespace oomplan
