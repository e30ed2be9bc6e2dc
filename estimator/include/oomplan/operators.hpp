// What one operator of a model takes by itself: a norm, an MLP, a loss. Played by the simulator that training jobs are made of.
//
// The operator is called again and again, as a benchmark does: gradients of inputs and weights stay from one call to the next.
// Answers are torch's allocations during such a later call, whole blocks of 512 bytes, with inputs, weights, gradients and
// cuBLAS workspaces. All sizes are bytes.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/program.hpp>

namespace oomplan {
class Catalog;
}

namespace oomplan OOMPLAN_PUBLIC {

enum class OperatorPass : std::uint8_t {
  forward,   ///< with gradients on; the output goes at the end of the call
  backward,  ///< of one output, whose graph stays
  full,      ///< both
};
std::string_view name(OperatorPass);

struct OperatorCall {
  std::string name;  ///< a row of operator_rows(): "swiglu"
  std::string by;    ///< implementation: "huggingface", "torch", "liger 0.8.2"; "": the row's first one
  std::map<std::string, std::int64_t, std::less<>> sizes;  ///< by the names of the row
  DType dtype = DType::bf16;                               ///< of inputs
  DType weights = DType::bf16;                             ///< of parameters
  OperatorPass pass = OperatorPass::full;
  bool retain_graph = false;  ///< backward(retain_graph=True)
  bool gradient_held = true;  ///< the caller holds the output's gradient; otherwise it is made for the call
  std::int64_t modules = 1;   ///< modules of this kind that exist; one of them is called
  std::string gpu = "H100-80GB";
};

struct OperatorSize {
  std::string_view name, help;
  std::int64_t otherwise;  ///< what it is when it is not given; 0: it must be
};
/// An operator that can be asked for.
struct OperatorRow {
  std::string_view name, help;
  std::vector<std::string_view> by;
  std::vector<OperatorSize> sizes;
};
const std::vector<OperatorRow>& operator_rows();

struct OperatorAnswer {
  Bytes resident = 0;            ///< inputs, weights, their gradients and workspaces
  Bytes allocated = 0;           ///< highest level of a later call
  Bytes reserved = 0;            ///< of the caching allocator, from the start on
  std::vector<LiveTensor> live;  ///< at the highest moment of a later call, largest first
};
/// Throws InputError for an unknown operator, implementation, size or GPU.
OperatorAnswer ask(const OperatorCall&, const Catalog&);

}  // namespace oomplan
