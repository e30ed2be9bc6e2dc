#include "progress.hpp"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace oomplan::cli {
namespace {

volatile sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

}  // namespace

Progress::Progress(std::string what) {
  interrupted = 0;
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // the second one ends the program
  sigaction(SIGINT, &action, nullptr);
  watcher_ = std::jthread([this, text = std::move(what)](const std::stop_token& done) {
    using namespace std::chrono_literals;
    const bool terminal = isatty(STDERR_FILENO) == 1;
    const auto start = std::chrono::steady_clock::now();
    long told = 0;
    while (!done.stop_requested()) {
      std::this_thread::sleep_for(20ms);
      if (interrupted != 0) stop_.request_stop();
      const long seconds =
          static_cast<long>(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start).count());
      if (!terminal || seconds == told) continue;
      told = seconds;
      std::fprintf(stderr, "\r\x1b[K%s, %ld s (Ctrl-C shows what was found so far)", text.c_str(), seconds);
    }
    if (terminal && told > 0) std::fputs("\r\x1b[K", stderr);
  });
}

Progress::~Progress() {
  watcher_.request_stop();
  if (watcher_.joinable()) watcher_.join();
  signal(SIGINT, SIG_DFL);
}

}  // namespace oomplan::cli
