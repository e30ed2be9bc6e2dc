#include "catalog/gpus_reader.hpp"

#include "catalog/fields.hpp"

namespace oomplan {
namespace {

constexpr double kLargestRate = 1e18;

Gpu read_gpu(const Fields& row) {
  row.only({"name", "aliases", "sm", "usable", "smi_mib", "sms", "memory_bandwidth", "bf16_flops", "fp8_flops", "link_bandwidth",
            "link", "source"});
  Gpu gpu;
  gpu.name = row.text("name");
  gpu.aliases = row.texts("aliases");
  gpu.sm = row.text("sm");
  gpu.usable = row.integer("usable", {kGiB, 4096 * kGiB});
  gpu.smi_mib = row.integer("smi_mib", {1024, 4096 * 1024});
  gpu.sms = static_cast<int>(row.integer("sms", {1, 4096}));
  gpu.memory_bandwidth = row.number("memory_bandwidth", 1e9, kLargestRate);
  gpu.bf16_flops = row.number("bf16_flops", 1e9, kLargestRate);
  gpu.fp8_flops = row.number("fp8_flops", 0, kLargestRate);
  gpu.link_bandwidth = row.number("link_bandwidth", 1e6, kLargestRate);
  gpu.link = row.text("link");
  gpu.source = row.text("source");
  if (gpu.source.empty()) row.refuse("source", "where the figures come from");
  return gpu;
}

}  // namespace

std::vector<Gpu> read_gpus(std::string_view text, const std::string& file) {
  std::vector<Gpu> out;
  for (const Fields& row : Fields::parse_array(text, file)) out.push_back(read_gpu(row));
  return out;
}

}  // namespace oomplan
