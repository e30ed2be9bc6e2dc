#include "units/interruption.hpp"

#include <utility>

namespace oomplan {
namespace {

thread_local const std::stop_token* current = nullptr;

}  // namespace

InterruptionScope::InterruptionScope(const std::stop_token& stop) : before_(std::exchange(current, &stop)) {}
InterruptionScope::~InterruptionScope() { current = before_; }

void interruption_point() {
  if (current != nullptr && current->stop_requested()) throw Interrupted();
}

}  // namespace oomplan
