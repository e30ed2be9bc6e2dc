#include "layers/packed.hpp"

#include "catalog/facts.hpp"
#include "layers/eager.hpp"
#include "layers/gptq.hpp"

namespace oomplan {

std::optional<PackedCode> packed_code(std::string_view version) {
  if (version.empty()) version = kNewestBitsandbytes;
  const auto before = [&](std::string_view release) { return compare_versions(version, release) < 0; };
  if (version.front() < '0' || version.front() > '9' || before("0.42.0")) return std::nullopt;
  PackedCode code;
  code.keeps_input = before("0.43.3");
  code.shares_code = before("0.46.0");
  code.computes_as_given = before("0.47.0");
  code.dequantises_by_hand = !before("0.50.0");
  return code;
}

PackedOptions packed_options(const QuantisedBase& base, DType loaded) {
  PackedOptions out;
  if (base.format == BaseFormat::full) return out;
  out.format = base.format;
  out.nested = base.double_quant && base.format != BaseFormat::int8 && base.format != BaseFormat::gptq;
  out.bits = base.bits;
  out.group = base.group;
  out.outliers = base.outliers;
  out.compute = base.compute;
  out.dequantised = loaded;
  out.code = packed_code(base.version).value_or(PackedCode{});
  return out;
}

std::vector<PackedTensor> packed_tensors(const PackedOptions& o, std::int64_t elements, std::int64_t rows) {
  constexpr std::int64_t kCodes = 16, kNestedCodes = 256;
  if (o.format == BaseFormat::int8) return {{"", elements, DType::int8}, {"SCB", rows, DType::fp32}};
  if (o.format == BaseFormat::gptq) return gptq::tensors(o, elements / rows, rows);
  const std::int64_t blocks = ceil_div(elements, kPackedBlock);
  std::vector<PackedTensor> out{{"", ceil_div(elements, 2), DType::int8}};
  if (!o.nested) {
    out.push_back({"absmax", blocks, DType::fp32});
  } else {
    out.push_back({"absmax", blocks, DType::int8});
    out.push_back({"nested_absmax", ceil_div(blocks, kNestedBlock), DType::fp32});
    if (!o.code.shares_code) out.push_back({"nested_quant_map", kNestedCodes, DType::fp32});
    out.push_back({"nested_offset", 1, DType::fp32});
  }
  out.push_back({"quant_map", kCodes, DType::fp32});
  return out;
}

void pack(Eager& g, int matrix) {
  const auto at = static_cast<std::size_t>(matrix);
  const Shape whole = g.leaves[at].shape;
  const std::string module = g.leaves[at].name.substr(g.prefix.size());
  const auto tensors = packed_tensors(g.packed, elements(whole).coefficient, whole[0].coefficient);
  Leaf& leaf = g.leaves[at];
  leaf.unpacked = whole;
  leaf.shape = {Dim(tensors[0].elements), Dim(1)};
  leaf.dtype = tensors[0].dtype;
  leaf.packed = PackedLeaf::weight;
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    const PackedTensor& t = tensors[i];
    const int number = g.parameter(module + "." + std::string(t.name), {Dim(t.elements)}, t.dtype, false);
    g.leaves[static_cast<std::size_t>(number)].packed = t.kind;
  }
}

}  // namespace oomplan
