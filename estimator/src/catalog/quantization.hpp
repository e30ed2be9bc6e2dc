// How a checkpoint stores its matrices: quantization_config of config.json, as numbers and patterns of module names.
//
// The engines decide per module (q_proj, experts, lm_head) and so does this: a Quantization answers, for one parameter of one
// layer, in which format it lies. Formats and the meaning of the keys: vllm/model_executor/layers/quantization, 0.19
// (fp8.py, compressed_tensors/, modelopt.py, awq.py, gptq_marlin.py, mxfp4.py, bitsandbytes.py).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/units/bytes.hpp>
#include <oomplan/units/dtype.hpp>

namespace oomplan {

class Fields;

/// Elements of one matrix [rows, columns] and the scales beside them. All zero scales: one fp32 scale for the matrix.
struct WeightFormat {
  DType dtype = DType::bf16;
  bool per_row = false;         ///< one fp32 scale an output row
  std::int64_t block = 0;       ///< one fp32 scale for every square of block x block elements
  std::int64_t group = 0;       ///< elements of a row that share a scale
  std::int64_t scale_bits = 0;  ///< of a group's scale
  bool zero_points = false;     ///< every group also has a zero point, as wide as an element
  bool operator==(const WeightFormat&) const = default;
};

/// Bytes of one matrix in the format, scales included.
Bytes stored_bytes(const WeightFormat&, std::int64_t rows, std::int64_t columns);

/// Modules that share a format. A target is "Linear" (every matrix of the layers), "experts", or a pattern of module names.
struct QuantizedModules {
  WeightFormat format;
  std::vector<std::string> targets;
  bool operator==(const QuantizedModules&) const = default;
};

struct Quantization {
  std::string method;                   ///< quant_method, or quant_algo where there is none; "" when nothing is quantised
  std::vector<QuantizedModules> parts;  ///< empty: what the method means is not described
  std::vector<std::string> ignored;     ///< patterns of modules that stay in 16 bits
  bool operator==(const Quantization&) const = default;
};

/// A Quantization's patterns, compiled: asked for every matrix of every layer.
class ModuleFormats {
 public:
  explicit ModuleFormats(const Quantization&);
  ~ModuleFormats();
  ModuleFormats(const ModuleFormats&) = delete;
  ModuleFormats& operator=(const ModuleFormats&) = delete;
  /// The format of a module ("model.layers.3.self_attn.q_proj"), null when it stays in 16 bits. `expert`: a matrix of routed
  /// experts; `head`: lm_head, which only a target that names it quantises. The pointer is into the Quantization.
  const WeightFormat* of(std::string_view module, bool expert, bool head) const;

 private:
  struct Pattern;
  struct Target;
  std::vector<Pattern> ignored_;
  std::vector<Target> targets_;
};

/// Does `module` fall under `pattern`: "re:..." (a regular expression from the start of the name), a glob with *, or whole parts
/// of the dotted name? The owner's prefixes (model., language_model.) count as absent on both sides.
bool names_module(std::string_view pattern, std::string_view module);

/// `config`: the object quantization_config. A method or a scheme that is not described leaves `parts` empty. Throws InputError
/// for values of a wrong type or size.
Quantization read_quantization(const Fields& config);

}  // namespace oomplan
