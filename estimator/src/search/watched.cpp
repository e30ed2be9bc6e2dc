#include "search/watched.hpp"

#include <chrono>
#include <exception>
#include <future>
#include <thread>

namespace oomplan {

void watched(const std::function<void(const std::stop_token&)>& work, const std::function<bool()>& wanted) {
  std::promise<void> promise;
  std::future<void> done = promise.get_future();
  std::jthread worker([&](const std::stop_token& stop) {
    try {
      work(stop);
      promise.set_value();
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  });  // its end asks to stop, and waits: also when `wanted` throws
  while (done.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready)
    if (!wanted()) {
      worker.request_stop();
      break;
    }
  done.get();
}

}  // namespace oomplan
