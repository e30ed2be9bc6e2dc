// What happens to requests in service: who starts, who waits, when the pool is full, who gives up its pages.
//
// All requests are asked for at once and every response grows to its full length, token by token and together: the worst that a
// rollout can ask for. Responses to one prompt may hold its pages once.
#pragma once
#include <cstdint>
#include <optional>

#include "inference/server.hpp"

namespace oomplan {

struct ServiceLoad {
  std::int64_t requests = 0;              ///< of one replica
  std::int64_t prompt = 0, response = 0;  ///< tokens
  std::int64_t samples = 1;               ///< responses to one prompt
  bool share_prompts = true;
};

/// Of the plan of any stage: pages are in force on all. Nothing when the load is not stated or the server does not start.
/// Some microseconds.
std::optional<InService> in_service(const ServerModel&, const ServerFacts&, const ServerPoint&, const ServerPlan&,
                                    const ServiceLoad&);

}  // namespace oomplan
