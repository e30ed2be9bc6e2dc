// Work that its caller may stop, from a language that has no stop_token.
#pragma once
#include <functional>
#include <stop_token>

namespace oomplan {

/// Runs `work` on a thread of its own. Meanwhile `wanted` is asked every 20 ms, on the caller's thread; once it says false, or
/// throws, the token tells `work` to stop, which is waited for. Throws what either throws.
void watched(const std::function<void(const std::stop_token&)>& work, const std::function<bool()>& wanted);

}  // namespace oomplan
