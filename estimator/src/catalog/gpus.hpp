// GPU kinds: rows of models/gpus.json.
#pragma once
#include <string>
#include <vector>

#include <oomplan/units/bytes.hpp>

namespace oomplan {

struct Gpu {
  std::string name;                  ///< "H100-80GB"
  std::vector<std::string> aliases;  ///< "h100", "h100-sxm"
  std::string sm;                    ///< "sm90"; "gfx942" for AMD
  Bytes usable = 0;                  ///< total as the driver reports it (cudaMemGetInfo), not the label
  Bytes smi_mib = 0;                 ///< memory.total of nvidia-smi, MiB (SGLang's defaults read it)
  int sms = 0;
  double memory_bandwidth = 0;  ///< bytes per second
  double bf16_flops = 0;        ///< dense, per second
  double fp8_flops = 0;
  double link_bandwidth = 0;  ///< bytes per second to the other GPUs of a node, one direction
  std::string link;           ///< "NVLink 4", "PCIe 4"
  std::string source;
};

}  // namespace oomplan
