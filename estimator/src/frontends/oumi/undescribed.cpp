#include "frontends/oumi/undescribed.hpp"

#include <algorithm>
#include <array>

namespace oomplan::oumi {
namespace {

/// By how their names begin.
struct Undescribed {
  std::string_view begins, what;
};
constexpr std::array<Undescribed, 10> kUndescribed{
    {{"microsoft/Phi-3-vision", "the vision tower of Phi-3 vision, whose own code runs"},
     {"microsoft/Phi-3.5-vision", "the vision tower of Phi-3 vision, whose own code runs"},
     {"microsoft/Phi-4-multimodal", "the towers of Phi-4 multimodal, whose own code runs"},
     {"oumi-ai/Molmo", "the vision tower of Molmo, whose own code runs"},
     {"allenai/Molmo", "the vision tower of Molmo, whose own code runs"},
     {"HuggingFaceTB/SmolVLM", "the vision tower of SmolVLM (Idefics 3)"},
     {"meta-llama/Llama-3.2-11B-Vision", "cross attention to images (Llama 3.2 Vision)"},
     {"meta-llama/Llama-3.2-90B-Vision", "cross attention to images (Llama 3.2 Vision)"},
     {"tiiuae/Falcon-H1", "attention and Mamba 2 side by side in a layer (Falcon-H1)"},
     {"tiiuae/Falcon-E", "layers of onebitllms (Falcon-E)"}}};

}  // namespace

std::string_view undescribed(std::string_view model) {
  const auto row = std::find_if(kUndescribed.begin(), kUndescribed.end(),
                                [&](const Undescribed& one) { return model.starts_with(one.begins); });
  return row == kUndescribed.end() ? std::string_view() : row->what;
}

}  // namespace oomplan::oumi
