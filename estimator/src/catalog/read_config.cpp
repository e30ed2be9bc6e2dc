// config.json -> Architecture: finds the family, reads the decoder, then the tower.
#include <algorithm>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "catalog/catalog.hpp"
#include "catalog/class_defaults.hpp"
#include "catalog/families/towers.hpp"
#include "catalog/families/traits.hpp"
#include "catalog/parameters.hpp"
#include "catalog/read_config.hpp"

namespace oomplan {
namespace {

std::string class_of(const Fields& fields) {
  if (!fields.has("architectures")) return "";
  const auto classes = fields.texts("architectures");
  return classes.empty() ? "" : classes.front();
}

std::string model_type_of(const Fields& fields) {
  if (fields.has("model_type")) return fields.text("model_type");
  const std::string class_name = class_of(fields);
  const std::string_view known = model_type_of_class(class_name);
  if (known.empty() && !class_name.empty()) fields.refuse("model_type", "a model_type", "class " + class_name + " is not known");
  if (known.empty()) fields.refuse("model_type", "a model_type");
  return std::string(known);
}

const Family& family_of(const Fields& fields, const std::string& model_type) {
  const Family* const family = find_family(model_type, class_of(fields));
  if (family == nullptr) {
    const auto known = known_model_types();
    fields.refuse("model_type", "a known model_type", fmt::format("'{}' is not one that oomplan describes", model_type),
                  nearest(model_type, known));
  }
  return *family;
}

/// The fields as the configuration class completes them, where transformers has one for this family. A model that is told by its
/// class alone, or that ships its own code, has the class that its family is named after, if any.
Fields completed(const Fields& fields, const ClassDefaults* row) {
  if (row == nullptr) return fields;
  const Fields out = fields.over(*row);
  for (const char* key : {"layer_types", "mlp_layer_types"}) {
    if (!out.of_class(key) || !out.stated(key) || !out.is_list(key) || !out.has("num_hidden_layers")) continue;
    const auto layers = static_cast<std::size_t>(out.integer("num_hidden_layers", kLayerLimits));
    if (out.texts(key).size() != layers) out.refuse(key, fmt::format("an entry for each layer, {}", layers));
  }
  if (!row->whole_heads) return out;
  const std::int64_t heads = out.integer("num_attention_heads", kHeadLimits);
  if (out.integer("hidden_size", kHiddenLimits) % heads != 0)
    out.refuse("hidden_size", fmt::format("a multiple of {} ({} heads)", heads, heads),
               fmt::format("the class of {} in transformers {} refuses others", row->name, row->version));
  return out;
}

const ClassDefaults* defaults_of(const Family& family) {
  const ClassDefaults* const own = family.only_class.empty() ? class_defaults(family.model_type) : nullptr;
  return own != nullptr ? own : class_defaults(family.traits.family);
}

Architecture read_plain(const Fields& fields, const std::string& model_type) {
  const Family& family = family_of(fields, model_type);
  return read_decoder(completed(fields, defaults_of(family)), family.traits);
}

DType dtype_of(const Fields& fields, DType otherwise) {
  const std::string_view key = present_key(fields, "dtype|torch_dtype");
  if (!fields.has(key)) return otherwise;
  std::string text = fields.text(key);
  if (text.starts_with("torch.")) text.erase(0, 6);
  std::vector<std::string> valid;
  for (const DTypeRow& row : kDTypes) {
    if (text == row.torch) return row.value;
    if (row.torch != "uint8") valid.emplace_back(row.torch);
  }
  fields.refuse(key, list_of(valid), "", nearest(text, valid));
}

Quantization quantization_of(const Fields& fields) {
  const auto quantization = fields.object_if("quantization_config");
  Quantization out = quantization ? read_quantization(*quantization) : Quantization{};
  if (fields.text_or("expert_dtype", "") == "fp4" && !out.parts.empty()) {      // DeepSeek V4: e2m1 with a ue8m0 scale for 32
    const bool nvfp4 = quantization->text_or("moe_quant_algo", "") == "NVFP4";  // an e4m3 scale for 16
    WeightFormat experts{nvfp4 ? DType::nvfp4 : DType::mxfp4};
    experts.group = nvfp4 ? 16 : 32;
    experts.scale_bits = 8;
    if (nvfp4) out.parts = {{{.dtype = DType::fp8, .block = 128}, {"Linear"}}};
    out.parts.push_back({experts, {"experts"}});
  }
  // compressors and the indexer's weights stay in 16 bits (vllm/models/deepseek_v4/{compressor,attention}.py, 0.24)
  if (fields.has("compress_ratios") && !out.parts.empty()) {
    if (out.method == "fp8") out.ignored.clear();
    for (const char* module :
         {"compressor.kv_proj", "compressor.gate_proj", "indexer.kv_proj", "indexer.gate_proj", "scorer.weights_proj"})
      out.ignored.emplace_back(module);
  }
  return out;
}

/// Fields of heads that draft for another model (SafeAILab/EAGLE eagle/model/configs.py; vllm/model_executor/models/
/// llama_eagle3.py, 0.9 to 0.24).
DraftHead draft_of(const Fields& fields) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  DraftHead out;
  if (const std::string name = class_of(fields); name.find("agle") != std::string::npos) out.class_name = name;
  if (!fields.is_null("draft_vocab_size")) out.vocab = fields.integer_or("draft_vocab_size", 0, {1, kMost});
  if (!fields.is_null("target_hidden_size")) out.target_hidden = fields.integer_or("target_hidden_size", 0, {1, kMost});
  if (!fields.is_null("num_aux_hidden_states")) out.states = fields.integer_or("num_aux_hidden_states", out.states, {1, 64});
  const auto nested = fields.object_if("eagle_config");
  for (const Fields* from : {&fields, nested ? &*nested : nullptr})
    if (from != nullptr && from->is_list("eagle_aux_hidden_state_layer_ids"))
      if (const auto read = from->integers("eagle_aux_hidden_state_layer_ids", {0, 4096}); !read.empty())
        out.states = static_cast<std::int64_t>(read.size());
  if (nested && !nested->flag_or("use_aux_hidden_state", true)) out.states = 0;
  out.norm_before_projection = fields.flag_or("norm_before_fc", false);
  return out;
}

/// The outer tie_word_embeddings is the one that transformers applies to a model of two halves, or either one.
bool tied_as_a_whole(const Fields& outer, const ClassDefaults* whole, bool text) {
  if (whole != nullptr && whole->tied_inside) return text;
  return outer.flag_or("tie_word_embeddings", text) || (whole != nullptr && whole->tie_of_text && text);
}

/// The object at a dotted key; the outer object where the first part of it is absent (older configs are flat).
Fields text_half(const Fields& outer, std::string_view key, const ClassDefaults* whole = nullptr) {
  const std::size_t dot = key.find('.');
  const std::string_view first = key.substr(0, dot);
  const bool flat = !outer.stated(first) && (outer.stated("hidden_size") || (whole != nullptr && whole->flat_text));
  const auto inner = flat ? std::nullopt : outer.object_if(first);
  if (!inner) return outer;
  return dot == std::string_view::npos ? *inner : text_half(*inner, key.substr(dot + 1));
}

Fields completed_part(const Fields& part, const Wrapper& wrapper, std::string_view key) {
  const ClassDefaults* const row = part_defaults(wrapper.model_type, key, part.text_or("model_type", ""));
  return row == nullptr ? part : part.over(*row);
}

Architecture read_wrapped(const Fields& stated, const Wrapper& wrapper) {
  const ClassDefaults* whole = class_defaults(wrapper.model_type);
  if (whole != nullptr && !whole->fields.has(wrapper.text_key)) whole = nullptr;  // the class of a text half of that name
  // sizes of a text model, where architectures names the text half's class
  if (model_type_of_class(class_of(stated)) == wrapper.text_type && !stated.stated(wrapper.text_key)) whole = nullptr;
  const Fields outer = whole == nullptr ? stated : stated.over(*whole);
  const Fields half = text_half(outer, wrapper.text_key, whole);
  if (whole != nullptr && !whole->flat_text && half.path() == outer.path())
    outer.refuse(wrapper.text_key, "an object with the sizes",
                 "the class of " + whole->name + " reads no sizes of the text half outside of it");
  std::string text_type = half.text_or("model_type", wrapper.text_type);
  if (text_type == wrapper.model_type) text_type = wrapper.text_type;
  const Family& family = family_of(half, text_type);
  const ClassDefaults* row = part_defaults(wrapper.model_type, wrapper.text_key, half.text_or("model_type", ""));
  if (row == nullptr && half.has("model_type")) row = defaults_of(family);
  const Fields text = completed(half, row);
  Architecture out = read_decoder(text, family.traits);
  out.dtype = dtype_of(outer, dtype_of(text, out.dtype));
  out.tied = tied_as_a_whole(outer, whole, text.flag_or("tie_word_embeddings", out.tied));
  out.quantization = quantization_of(outer);
  if (out.quantization.method.empty()) out.quantization = quantization_of(text);
  const auto tower = wrapper.tower_key.empty() ? std::nullopt : outer.object_if(wrapper.tower_key);
  if (tower && wrapper.tower != nullptr) out.tower = wrapper.tower(completed_part(*tower, wrapper, wrapper.tower_key), outer);
  return out;
}

void check_size(const Fields& fields, const Architecture& out) {
  const ParameterCounts counts = count(out);
  const std::int64_t all = counts.language + counts.tower + counts.mtp + counts.mtp_copies;
  if (all <= kMostParameters) return;
  fields.refuse("model_type", fmt::format("a model of at most {} parameters", kMostParameters),
                fmt::format("the sizes make {} parameters", all));
}

}  // namespace

Architecture read_config(std::string_view text, const std::string& name) {
  return read_architecture(Fields::parse(text, name), name);
}

Architecture read_architecture(const Fields& fields, const std::string& name) {
  const std::string model_type = model_type_of(fields);
  const Wrapper* const wrapper = find_wrapper(model_type);
  Architecture out = wrapper != nullptr ? read_wrapped(fields, *wrapper) : read_plain(fields, model_type);
  if (wrapper == nullptr) {
    out.dtype = dtype_of(fields, out.dtype);
    out.quantization = quantization_of(fields);
  }
  out.name = name;
  out.model_type = model_type;
  out.draft = draft_of(fields);
  check_size(fields, out);
  return out;
}

}  // namespace oomplan
