// Mamba mixers, under the keys that each family gives their sizes.
#pragma once
#include <string_view>

#include "catalog/families/traits.hpp"

namespace oomplan {

struct MambaKeys {
  std::string_view state, conv, expand, dt_rank, heads, head_dim, groups, inner, conv_bias, proj_bias;
  std::int64_t state_otherwise = 0, groups_otherwise = 1;  ///< 0: must be stated
  bool conv_bias_otherwise = true, norms = false;
};

inline constexpr MambaKeys kMamba1Keys{
    "state_size",    "conv_kernel", "expand", "time_step_rank", "", "", "", "intermediate_size|d_inner",
    "use_conv_bias", "use_bias",    16};
inline constexpr MambaKeys kMamba2Keys{"state_size",    "conv_kernel", "expand", "", "num_heads", "head_dim", "n_groups", "",
                                       "use_conv_bias", "use_bias",    128,      8};
inline constexpr MambaKeys kJambaMamba{"mamba_d_state",
                                       "mamba_d_conv",
                                       "mamba_expand",
                                       "mamba_dt_rank",
                                       "",
                                       "",
                                       "",
                                       "",
                                       "mamba_conv_bias",
                                       "mamba_proj_bias",
                                       16,
                                       1,
                                       true,
                                       true};
inline constexpr MambaKeys kGraniteMamba{"mamba_d_state",
                                         "mamba_d_conv",
                                         "mamba_expand",
                                         "",
                                         "mamba_n_heads",
                                         "mamba_d_head",
                                         "mamba_n_groups",
                                         "",
                                         "mamba_conv_bias",
                                         "mamba_proj_bias",
                                         256};
/// The class takes Granite's names in place of its own (configuration_nemotron_h.py __post_init__, 5.23).
inline constexpr MambaKeys kNemotronMamba{"ssm_state_size",
                                          "!mamba_d_conv|conv_kernel",
                                          "",
                                          "",
                                          "mamba_num_heads",
                                          "mamba_head_dim",
                                          "!mamba_n_groups|n_groups",
                                          "",
                                          "!mamba_conv_bias|use_conv_bias",
                                          "use_bias",
                                          128,
                                          8};

Mixer mamba1_mixer(const Fields&, std::int64_t hidden, const MambaKeys&);
Mixer mamba2_mixer(const Fields&, std::int64_t hidden, const MambaKeys&);

}  // namespace oomplan
