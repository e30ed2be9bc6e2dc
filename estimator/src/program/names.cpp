#include <array>

#include <oomplan/program.hpp>

namespace oomplan {
namespace {

constexpr std::array<std::string_view, kCategories> kCategoryNames{
    "weights", "gradients", "optimizer", "activations", "logits", "temporaries", "communication", "kv_cache",
    "buffers", "workspace", "graphs",    "context",     "nccl",   "inputs",      "host_copy",     "other"};
constexpr std::array<std::string_view, kPools> kPoolNames{"torch", "pausable", "driver", "pinned", "pageable", "shared"};
constexpr std::array<std::string_view, 6> kHolderNames{"resident", "saved for backward", "local variable", "autograd",
                                                       "caller",   "communication"};

}  // namespace

std::string_view name(Category c) { return kCategoryNames[static_cast<std::size_t>(c)]; }
std::string_view name(Pool p) { return kPoolNames[static_cast<std::size_t>(p)]; }
std::string_view name(Holder h) { return kHolderNames[static_cast<std::size_t>(h)]; }

}  // namespace oomplan
